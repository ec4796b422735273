import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.data.corpus import (
    CorpusError,
    corpus_summary,
    merge,
    nested_subsets,
    read_corpus,
    row_digest,
    write_corpus,
)
from eagle3lab.data.spans import MaskError


def _prompt(n, **more):
    return {"id": f"s-{n}", "set": "s", "split": "train", "prompt_ids": [1, 10 + n], "n_prompt": 2} | more


def _done(n, output=(5, 6, 2), finish="stop", **more):
    return {"id": f"s-{n}", "output_ids": list(output), "finish_reason": finish} | more


def test_rows_join_the_ids_as_they_came():
    merged = merge([_prompt(1), _prompt(2)], [_done(2, prompt_ids=[1, 12]), _done(1, (9,), "length")])
    assert list(merged) == [
        {"id": "s-2", "set": "s", "split": "train", "origin": "target", "input_ids": [1, 12, 5, 6, 2],
         "loss_spans": [[2, 5]], "finish_reason": "stop"},
        {"id": "s-1", "set": "s", "split": "train", "origin": "target", "input_ids": [1, 11, 9],
         "loss_spans": [[2, 3]], "finish_reason": "length"},
    ]  # fmt: skip
    assert merged.counts == {"input": 2, "rows": 2, "rows_target": 2}


def test_every_completion_is_a_row_or_skipped_with_a_reason():
    merged = merge([_prompt(1), _prompt(2)], [_done(1), _done(1), _done(2, ())])
    assert [row["id"] for row in merged] == ["s-1"]
    assert merged.skipped == {"duplicate_id": 1, "empty_answer": 1}
    assert merged.counts["input"] == merged.counts["rows"] + sum(merged.skipped.values())


@pytest.mark.parametrize(
    ("references", "ids"),
    [
        ("none", ["s-1"]),
        ("unanswered", ["s-1", "s-2-reference"]),
        ("all", ["s-1", "s-1-reference", "s-2-reference"]),
    ],
)
def test_reference_answers_are_rows_of_their_own_origin(references, ids):
    prompts = [
        _prompt(1, reference_ids=[7, 2]),
        _prompt(2, reference_ids=[8, 8], reference_cut=True),
        _prompt(3),
    ]
    rows = list(merge(prompts, [_done(1)], references))
    assert [row["id"] for row in rows] == ids
    assert [row["origin"] for row in rows] == ["target"] + ["reference"] * (len(ids) - 1)
    finish = {row["id"]: row["finish_reason"] for row in rows}
    assert finish.get("s-2-reference", "length") == "length"
    assert finish.get("s-1-reference", "stop") == "stop"


def test_answers_of_other_prompts_are_refused():
    with pytest.raises(CorpusError, match="'s-9' answers no prompt"):
        list(merge([_prompt(1)], [_done(9)]))
    with pytest.raises(CorpusError, match="other prompt ids"):
        list(merge([_prompt(1)], [_done(1, prompt_ids=[1, 99])]))
    with pytest.raises(ValueError, match="possible: none, unanswered, all"):
        merge([], [], "some")


def test_a_prompt_without_tokens_would_train_on_everything():
    with pytest.raises(MaskError, match="s-1: the loss mask is all one"):
        list(merge([_prompt(1, prompt_ids=[])], [_done(1)]))


def test_a_corpus_comes_back_as_it_was_written(tmp_path):
    rows = list(merge([_prompt(n) for n in range(1500)], [_done(n, range(n % 7 + 1)) for n in range(1500)]))
    summary = write_corpus(tmp_path / "corpus.parquet", iter(rows))
    assert list(read_corpus(tmp_path / "corpus.parquet")) == rows
    assert summary == corpus_summary(tmp_path / "corpus.parquet")
    assert (summary["rows"], summary["origins"]) == (1500, {"target": 1500})
    assert summary["tokens"] == sum(len(r["input_ids"]) for r in rows)
    assert summary["loss_tokens"] == summary["tokens"] - 2 * 1500
    assert [r["id"] for r in read_corpus(tmp_path / "corpus.parquet", ids=["s-9", "s-1499"])] == [
        "s-9",
        "s-1499",
    ]
    assert list(read_corpus(tmp_path / "corpus.parquet", split="heldout")) == []


def test_the_fingerprint_is_of_the_rows_not_of_their_order(tmp_path):
    rows = list(merge([_prompt(n) for n in range(4)], [_done(n) for n in range(4)]))

    def fingerprint(rows):
        return write_corpus(tmp_path / "c.parquet", rows)["fingerprint"]

    assert fingerprint(rows) == fingerprint(rows[::-1])
    changed = [dict(rows[0], loss_spans=[[3, 5]]), *rows[1:]]
    assert fingerprint(rows) != fingerprint(changed)
    assert row_digest(rows[0]) != row_digest(changed[0])


def test_a_bad_corpus_leaves_no_file(tmp_path):
    row = next(iter(merge([_prompt(1)], [_done(1)])))
    for bad, error in [
        ([row, row], CorpusError),
        ([], CorpusError),
        ([dict(row, loss_spans=[])], MaskError),
        ([dict(row, loss_spans=[[0, 5]])], MaskError),
    ]:
        with pytest.raises(error):
            write_corpus(tmp_path / "corpus.parquet", bad)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_parquet_file_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(CorpusError, match="not a corpus"):
        corpus_summary(tmp_path / "x.parquet")


@settings(deadline=None)
@given(
    counts=st.dictionaries(st.sampled_from("abcde"), st.integers(1, 40), min_size=1),
    cuts=st.sets(st.floats(0.01, 1), min_size=1, max_size=4),
    seed=st.integers(0, 5),
    random=st.randoms(use_true_random=False),
)
def test_subsets_are_nested_stratified_and_independent_of_order(counts, cuts, seed, random):
    strata = {f"{name}{n}": name for name, size in counts.items() for n in range(size)}
    sizes = sorted({max(1, round(cut * len(strata))) for cut in cuts})
    subsets = nested_subsets(strata, sizes, seed, strata)
    shuffled = list(strata)
    random.shuffle(shuffled)
    assert nested_subsets(shuffled, sizes, seed, strata) == subsets
    for small, large in zip(sizes, sizes[1:], strict=False):
        assert subsets[large][:small] == subsets[small]
    for size in sizes:
        assert len(set(subsets[size])) == size
        for name, whole in counts.items():
            got = sum(strata[key] == name for key in subsets[size])
            assert abs(got - size * whole / len(strata)) <= (1 + len(counts)) / 2


def test_subsets_without_strata_keep_their_choice_when_rows_are_added():
    first = nested_subsets([f"r{n}" for n in range(50)], [10], seed=1)[10]
    more = nested_subsets([f"r{n}" for n in range(60)], [20], seed=1)[20]
    assert [key for key in more if int(key[1:]) < 50][:10] == first[: len([k for k in more if int(k[1:]) < 50])][:10]
    assert nested_subsets([f"r{n}" for n in range(50)], [10], seed=2)[10] != first


@pytest.mark.parametrize(
    ("ids", "sizes", "message"),
    [(["a", "a"], [1], "repeat"), (["a"], [2], "larger than the corpus"), (["a", "b"], [2, 1], "increasing"),
     (["a"], [], "increasing"), (["a"], [0], "increasing")],
)  # fmt: skip
def test_impossible_subsets_are_refused(ids, sizes, message):
    with pytest.raises(ValueError, match=message):
        nested_subsets(ids, sizes, seed=0)
