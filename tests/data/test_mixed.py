"""Held-out prompts are taken in turn from the sets and suites that are asked for."""

import pytest

from eagle3lab.data.mixed import mixed_prompts
from eagle3lab.workbench.files import append_jsonl


@pytest.fixture
def prepared(tmp_path):
    """Two sets, one with a prompt to train on, and a suite."""
    for name, splits in (("alpha", ["heldout", "train", "heldout"]), ("beta", ["heldout"])):
        (tmp_path / name).mkdir()
        for number, split in enumerate(splits):
            append_jsonl(tmp_path / name / "prompts.jsonl", {"id": f"{name}-{number}", "set": name, "split": split})
    for number in range(3):
        append_jsonl(tmp_path / "suites.jsonl", {"id": f"mt-{number}", "set": "mt_bench", "split": "heldout"})
    return tmp_path


def ids(rows):
    return [row["id"] for row in rows]


def test_every_set_and_suite_has_its_turn(prepared):
    assert ids(mixed_prompts(prepared)) == ["alpha-0", "beta-0", "mt-0", "alpha-2", "mt-1", "mt-2"]
    assert ids(mixed_prompts(prepared, 4)) == ["alpha-0", "beta-0", "mt-0", "alpha-2"]


def test_only_the_named_ones_are_taken(prepared):
    assert ids(mixed_prompts(prepared, only=["mt_bench"])) == ["mt-0", "mt-1", "mt-2"]
    assert ids(mixed_prompts(prepared, 2, ["mt_bench", "alpha"])) == ["alpha-0", "mt-0"]


def test_a_name_without_prompts_is_refused_with_those_that_have_some(prepared):
    with pytest.raises(
        ValueError, match="no held-out prompts of gsm_symbolic, only of alpha, beta, mt_bench.*notebook 01"
    ):
        mixed_prompts(prepared, only=["mt_bench", "gsm_symbolic"])
