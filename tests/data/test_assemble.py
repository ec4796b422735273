"""A corpus put together whole: prompts, suites, native sets and completions, by arrays and by lists."""

import json
import tracemalloc

import numpy as np
import pytest

from eagle3lab.data.assemble import assemble_corpus, completions_of, prepared_prompts
from eagle3lab.data.corpus import CorpusError, corpus_summary, merge, read_corpus, write_corpus
from eagle3lab.data.mixing import Shuffled
from tests.data.test_mixing import _row


@pytest.fixture
def prepared(tmp_path):
    """A prepared folder of two sets of prompts, a suite and a native set, and completions."""
    folder, completions = tmp_path / "prepared", []

    def lines(path, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    for number, name in enumerate("ab"):
        prompts = []
        for n in range(40):
            key, split = f"{name}-{100 * number + n:016x}", "heldout" if n % 10 == 0 else "train"
            ids = [1, 100 * number + n + 10]
            row = {"id": key, "set": name, "split": split, "messages": [{"role": "user", "content": "x"}]}
            prompts.append(row | {"prompt_ids": ids, "n_prompt": 2, "reference_ids": [9, 9], "reference_cut": False})
            if n % 4:
                completions.append({"id": key, "prompt_ids": ids, "output_ids": [n, 5], "finish_reason": "stop"})
        lines(folder / name / "prompts.jsonl", prompts)
    lines(folder / "suites.jsonl", [{"id": "quiz-1", "set": "quiz", "split": "heldout", "prompt_ids": [1, 3]}])
    completions.append({"id": "quiz-1", "prompt_ids": [1, 3], "output_ids": [4], "finish_reason": "length"})
    lines(folder / "native" / "prompts.jsonl", [])
    lines(folder / "native" / "tokenized.jsonl", [_row("native", 5000 + n) for n in range(20)])
    lines(folder / ".half.1-ab.tmp" / "prompts.jsonl", [{"id": "no", "set": "no", "split": "train", "prompt_ids": [1]}])
    lines(tmp_path / "completions.jsonl", completions)
    return tmp_path


def test_the_corpus_is_put_together_whole(prepared):
    path = prepared / "corpus.parquet"
    summary = assemble_corpus(prepared / "prepared", completions_of(prepared / "completions.jsonl"), path, seed=1)
    assert summary["sets"] == {"a": 30, "b": 30, "native": 20, "quiz": 1}
    assert summary["input"] == summary["rows"] == 81 and summary["left_out"] == {}
    rows = list(read_corpus(path))
    answers = [json.loads(line) for line in (prepared / "completions.jsonl").read_text().splitlines()]
    expected = {a["id"]: a["prompt_ids"] + a["output_ids"] for a in answers}
    assert {row["id"]: row["input_ids"] for row in rows if row["set"] != "native"} == expected
    assert [row["set"] for row in rows] != sorted(row["set"] for row in rows)
    assert sorted(p.name for p in prepared.iterdir()) == ["completions.jsonl", "corpus.parquet", "prepared"]
    again = assemble_corpus(prepared / "prepared", reversed(answers), prepared / "other.parquet", seed=1)
    assert again == summary
    assert list(read_corpus(prepared / "other.parquet")) == rows


def test_references_join_for_training_only_and_every_row_is_accounted_for(prepared):
    completions = [json.loads(line) for line in (prepared / "completions.jsonl").read_text().splitlines()]
    completions.append(completions[0])
    summary = assemble_corpus(
        prepared / "prepared", completions, prepared / "corpus.parquet", references="unanswered",
        weights={"a": 1, "b": 1, "native": 1},
    )  # fmt: skip
    # 36 training rows of a and of b, answers and references, and 20 of native: 20 of each are kept
    assert summary["left_out"] == {"duplicate_id": 1, "heldout_reference": 4, "weight": 36 + 36 + 20 - 60}
    assert summary["input"] == 61 + 1 + 20 + 20
    assert summary["origins"]["reference"] > 0
    assert {row["split"] for row in read_corpus(prepared / "corpus.parquet") if row["origin"] == "reference"} == {
        "train"
    }


def test_merging_arrays_and_lists_is_the_same(prepared):
    prompts = list(prepared_prompts(prepared / "prepared"))
    assert all(isinstance(row["prompt_ids"], np.ndarray) and "messages" not in row for row in prompts)
    as_lists = [row | {"prompt_ids": row["prompt_ids"].tolist()} for row in prompts]
    answers = [json.loads(line) for line in (prepared / "completions.jsonl").read_text().splitlines()]
    arrays = write_corpus(prepared / "a.parquet", merge(prompts, completions_of(prepared / "completions.jsonl")))
    assert (
        write_corpus(prepared / "b.parquet", merge(as_lists, answers))
        == arrays
        == corpus_summary(prepared / "a.parquet")
    )
    with pytest.raises(CorpusError, match="other prompt ids"):
        list(merge(prompts, [answers[0] | {"prompt_ids": [1, 99]}]))


def test_memory_holds_a_bucket_of_rows_not_the_corpus(tmp_path):
    random = np.random.default_rng(0)

    def rows():
        for n in range(10_000):
            yield _row("a", n, input_ids=random.integers(0, 1000, 1000).astype(np.int32))  # 40 MB together

    list(Shuffled([_row("a", 1)], 0, tmp_path))  # imports
    tracemalloc.start()
    for _ in Shuffled(rows(), 0, tmp_path):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 32 buckets of at most 64 waiting rows of 4 kB; read back, one bucket is 1.3 MB
    assert peak < 32 * 64 * 4000 * 1.5
