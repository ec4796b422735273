"""Loops, refusals, empty and cut answers: found where they are, not where they are not, and treated as asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.data.quality import (
    LEAST_ROUNDS,
    LEAST_TOKENS,
    LONGEST_PERIOD,
    Loop,
    closing_loop,
    is_refusal,
    quality_by_set,
    treat_cut,
)

END = 1


def brute_force_loop(ids):
    """The shortest period that repeats often enough at the end, tried one by one."""
    for period in range(1, LONGEST_PERIOD + 1):
        length = period
        while length < len(ids) and ids[-length - 1] == ids[-length - 1 + period]:
            length += 1
        if length >= max(LEAST_ROUNDS * period, LEAST_TOKENS):
            return Loop(len(ids) - length, period)
    return None


@given(
    head=st.lists(st.integers(0, 3), max_size=40),
    round_=st.lists(st.integers(0, 3), min_size=1, max_size=14),
    rounds=st.integers(0, 12),
    tail=st.lists(st.integers(0, 3), max_size=2),
)
def test_a_closing_loop_is_the_one_of_brute_force(head, round_, rounds, tail):
    ids = head + round_ * rounds + tail
    assert closing_loop(ids) == brute_force_loop(ids) == closing_loop(np.array(ids, dtype=np.int32))


def test_a_loop_of_a_long_sentence_is_found_and_one_of_three_rounds_is_not():
    sentence = list(range(100, 600))
    assert closing_loop([7, 8, *sentence * 4]) == Loop(2, 500)
    assert closing_loop([7, 8, *sentence * 3]) is None
    assert closing_loop(list(range(2000))) is None
    assert closing_loop([5] * (LEAST_TOKENS - 1)) is None
    assert closing_loop([]) is None


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, but that is not possible.",
        "Sorry, I cannot do this.",
        "<think>The user asks for something bad.</think>\n\nI cannot assist with that request.",
        "As an AI language model, I have no opinion on this.",
        "抱歉，我不能提供这些信息。",
        "Unfortunately, I am unable to browse the web.",
    ],
)
def test_refusals_are_found(text):
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "Sure! Here is the function you asked for.",
        "<think>I'm sorry, but is that safe? It is.</think>Here you go.",
        "The capital of France is Paris. " * 10 + "I'm sorry, but that is all I know.",
        "def cannot(): pass",
        "As an aid to memory, write it down.",
        "",
    ],
)
def test_other_answers_are_not(text):
    assert not is_refusal(text)


WORDS = {1: "", 2: "yes ", 3: " ", 4: "I'm sorry, but no. "}


def decode(ids):
    return "".join(WORDS.get(token, f"w{token} ") for token in ids)


def answer(key, name, ids, reason="stop"):
    return {"id": key, "set": name, "output_ids": ids, "finish_reason": reason}


ANSWERS = [
    answer("a1", "a", [2, END]),
    answer("a2", "a", [END]),
    answer("a3", "a", [3, 3, END]),
    answer("b1", "b", [4, 2, END]),
    answer("b2", "b", [10, 11, *[5, 6] * 20], "length"),
    answer("b3", "b", [7] * 40 + [END]),
    answer("b4", "b", [*range(20, 60)], "length"),
]


def test_counts_by_set_with_examples():
    a, b = quality_by_set(ANSWERS, decode)
    assert (a.set, a.answers, a.tokens, a.cut, a.empty, a.refusal, a.loop) == ("a", 3, 6, 0, 2, 0, 0)
    assert (b.set, b.answers, b.cut, b.empty, b.refusal, b.loop) == ("b", 4, 2, 0, 1, 2)
    assert b.looped_tokens == 40 + 41 and b.tokens == 3 + 42 + 41 + 40
    assert a.examples["empty"] == ["a2", "a3"] and b.examples["loop"] == ["b2", "b3"]
    assert b.shares() == {"cut": 0.5, "empty": 0.0, "refusal": 0.25, "loop": 0.5}


def test_cut_answers_are_kept_dropped_or_marked():
    kept = {row["id"]: row for row in treat_cut(ANSWERS, "keep_prefix")}
    assert kept["b2"]["output_ids"] == [10, 11, 5, 6] and kept["b2"]["finish_reason"] == "length"
    assert [row for key, row in kept.items() if key != "b2"] == [row for row in ANSWERS if row["id"] != "b2"]
    assert [row["id"] for row in treat_cut(ANSWERS, "drop")] == ["a1", "a2", "a3", "b1", "b3"]
    marked = {row["id"]: row for row in treat_cut(ANSWERS, "mark")}
    assert {key for key, row in marked.items() if row["finish_reason"] == "loop"} == {"b2"}
    assert marked["b2"]["output_ids"] == ANSWERS[4]["output_ids"] and marked["b4"] == ANSWERS[6]
    assert ANSWERS[4]["finish_reason"] == "length"  # what came in is not changed
    with pytest.raises(ValueError, match="keep_prefix, drop, mark"):
        treat_cut(ANSWERS, "keep")
