"""Second turns hold the first answer, as a chat would send it."""

import pytest

from eagle3lab.analysis.turns import ask_second_turns
from eagle3lab.engines.base import Completion


class Tokenizer:
    """A token a character; the template writes roles in brackets."""

    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt):
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"

    def __call__(self, text, **options):
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, ids):
        return "".join(map(chr, ids))


ROWS = [
    {"id": "mt-1", "set": "mt", "messages": [{"role": "user", "content": "2+2?"}], "later_turns": ["Sure?"],
     "prompt_ids": [50, 51]},
    {"id": "one", "set": "other", "messages": [{"role": "user", "content": "Hi"}], "prompt_ids": [52]},
    {"id": "mt-2", "set": "mt", "messages": [{"role": "user", "content": "3+3?"}], "later_turns": ["Really sure?"],
     "prompt_ids": [53]},
]  # fmt: skip
TEXT = "[user]2+2?[assistant]4[user]Sure?[assistant]"


class Engine:
    """Answers "4" and ends."""

    end_ids = frozenset([1])

    def __init__(self):
        self.asked = []

    def generate(self, requests, batch_size):
        for request in requests:
            self.asked.append(request)
            yield Completion(request.id, request.input_ids, [ord("4"), 1], "stop", 0.1)


def test_the_first_answer_is_in_the_prompt_without_its_end_token(tmp_path):
    engine = Engine()
    found = ask_second_turns(engine, ROWS[:2], Tokenizer(), 16, None, tmp_path / "turns.jsonl")
    assert [(r.id, r.input_ids, r.max_tokens, r.temperature) for r in engine.asked] == [("mt-1", [50, 51], 16, 0.0)]
    (second,) = found.rows
    assert second["prompt_ids"] == [ord(c) for c in TEXT] and second["n_prompt"] == len(TEXT)
    assert (second["id"], second["set"], second["later_turns"]) == ("mt-1-turn2", "mt", [])
    assert (found.too_long, str(found)) == ([], "1 second turns")


def test_a_second_turn_that_does_not_fit_with_its_answer_is_left_out_and_counted(tmp_path):
    def ids(context):
        found = ask_second_turns(Engine(), ROWS, Tokenizer(), 16, context, tmp_path / "turns.jsonl")
        return [row["id"] for row in found.rows], found

    room = len(TEXT) + 16  # the other second prompt is seven tokens longer
    kept, found = ids(room)
    assert kept == ["mt-1-turn2"] and found.too_long == ["mt-2-turn2"]
    assert str(found) == "1 second turns, 1 too long for the context: mt-2-turn2"
    assert ids(room - 1)[0] == [] and ids(room + 7)[0] == ["mt-1-turn2", "mt-2-turn2"]


def test_a_restart_asks_the_same_second_turns(tmp_path):
    class Stops(Engine):
        def generate(self, requests, batch_size):
            yield next(super().generate(requests, batch_size))
            raise KeyboardInterrupt

    path, options = tmp_path / "turns.jsonl", (ROWS, Tokenizer(), 16, None)
    with pytest.raises(KeyboardInterrupt):
        ask_second_turns(Stops(), *options, path)
    engine = Engine()
    again = ask_second_turns(engine, *options, path)
    assert [request.id for request in engine.asked] == ["mt-2"]
    assert again == ask_second_turns(Engine(), *options, tmp_path / "whole.jsonl")
    still = Engine()
    assert ask_second_turns(still, *options, path) == again and still.asked == []
