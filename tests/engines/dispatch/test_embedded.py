"""The embedded engine under the same journal: what it says, it would have said alone; cut off, it goes on."""

import pytest

from eagle3lab.engines.base import NonFiniteError
from eagle3lab.engines.dispatch.embedded import dispatch_embedded
from eagle3lab.engines.dispatch.journal import JournalError
from eagle3lab.engines.dispatch.work import Partition, Sampling, Work
from tests.engines.dispatch.fakes import answers, aside
from tests.tiny import CONTEXT, END, VOCAB

PARTITION = Partition("short", concurrency=4, max_tokens=24)


def prompts(name, n):
    return [(f"{name}-{i}", [2 + (7 * i + j) % (VOCAB - 2) for j in range(1 + i % 9)]) for i in range(n)]


WORKS = [Work("a", PARTITION, prompts("a", 14)), Work("b", PARTITION, prompts("b", 9))]


def alone(reference, input_ids, max_tokens):
    """Greedy decoding by transformers' own generate."""
    import torch

    ids = torch.tensor([input_ids])
    out = reference.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
    )
    out = out[0, len(input_ids) :].tolist()
    return out, "stop" if out[-1] == END else "length"


def expected(reference):
    return {
        key: (work.set, ids, *alone(reference, ids, work.partition.max_tokens))
        for work in WORKS
        for key, ids in work.prompts
    }


@pytest.fixture(scope="module")
def small(folders):
    from transformers import AutoModelForCausalLM

    from eagle3lab.engines.embedded import EmbeddedEngine

    reference = AutoModelForCausalLM.from_pretrained(folders["llama"], attn_implementation="eager").eval()
    return EmbeddedEngine(folders["llama"]), expected(reference)


def run(works, engine, folder, **more):
    return list(dispatch_embedded(works, engine, folder, "tiny", batch_size=4, **more))


def test_every_row_has_the_answer_of_greedy_decoding(small, tmp_path):
    engine, right = small
    last = run(WORKS, engine, tmp_path)[-1]
    assert answers(tmp_path) == right
    assert (last.rows, last.done, last.waiting) == (23, 23, 0)
    assert last.tokens == sum(len(row[2]) for row in right.values())


class CutOff(BaseException):
    pass


class Cutting:
    """The engine, cut off after some answers."""

    def __init__(self, engine, after):
        self.target, self.engine, self.after, self.asked = engine.target, engine, after, []

    def generate(self, requests, batch_size):
        self.asked += [request.id for request in requests]
        for completion in self.engine.generate(requests, batch_size):
            if self.after == 0:
                raise CutOff
            self.after -= 1
            yield completion


def test_cut_off_anywhere_it_goes_on_where_it_was(small, tmp_path):
    engine, right = small
    for after in (3, 6, 0, 5):
        with pytest.raises(CutOff):
            run(WORKS, Cutting(engine, after), tmp_path)
    done = set(answers(tmp_path))
    assert len(done) == 14
    rest = Cutting(engine, 100)
    run(WORKS, rest, tmp_path)
    assert answers(tmp_path) == right and set(rest.asked) == set(right) - done


def test_views_come_while_it_works(small, tmp_path, monkeypatch):
    monkeypatch.setattr("eagle3lab.engines.dispatch.view.FIRST_GAP_S", 0.0)
    monkeypatch.setattr("eagle3lab.engines.dispatch.view.GAPS", 1e12)
    views = run(WORKS, small[0], tmp_path)
    assert [view.done for view in views] == [*range(1, 24), 23]
    assert all(view.rows == view.done + view.waiting == 23 for view in views)
    assert all(0 <= view.on_way <= 4 for view in views)
    assert views[12].time_left.seconds > 0 and views[-1].time_left.seconds == 0


def test_a_row_that_does_not_fit_is_set_aside_and_the_others_are_answered(small, tmp_path):
    engine, right = small
    works = [Work("a", PARTITION, [*WORKS[0].prompts, ("huge", [5] * (CONTEXT - 3))])]
    last = run(works, engine, tmp_path)[-1]
    assert aside(tmp_path) == {"huge": "context"} and last.errors == {"context": 1}
    assert answers(tmp_path) == {key: row for key, row in right.items() if key.startswith("a-")}


def test_rows_of_another_targets_vocabulary_end_it_at_once(small, tmp_path):
    works = [Work("a", PARTITION, [*WORKS[0].prompts, ("foreign", [VOCAB + 5])])]
    with pytest.raises(ValueError, match="another target"):
        run(works, small[0], tmp_path)


def test_a_row_with_broken_logits_is_found_and_set_aside(small, tmp_path):
    engine, right = small

    class Broken(Cutting):
        def generate(self, requests, batch_size):
            for n, completion in enumerate(self.engine.generate(requests, batch_size)):
                if n >= 2 and any(request.id == "a-6" for request in requests):
                    raise NonFiniteError("row 'a-6'")
                if completion.id == "a-6":
                    raise NonFiniteError("row 'a-6'")
                yield completion

    last = run(WORKS, Broken(engine, 0), tmp_path)[-1]
    assert aside(tmp_path) == {"a-6": "failed"}
    assert answers(tmp_path) == {key: row for key, row in right.items() if key != "a-6"}
    assert (last.done, last.set_aside, last.on_way) == (22, 1, 0)


def test_another_target_or_temperature_is_not_mixed_in(small, tmp_path):
    run(WORKS[:1], small[0], tmp_path)
    with pytest.raises(JournalError, match="temperature=0.0, now it is 0.5"):
        run(WORKS, small[0], tmp_path, sampling=Sampling(0.5))
    run(WORKS, small[0], tmp_path)  # another set may be added
    assert answers(tmp_path).keys() == small[1].keys()


def test_drawn_answers_do_not_depend_on_the_batch(small, tmp_path):
    for name, works in (("one", WORKS), ("two", WORKS[::-1])):
        run(works, small[0], tmp_path / name, sampling=Sampling(0.9, seed=3))
    assert answers(tmp_path / "one") == answers(tmp_path / "two") != small[1]
