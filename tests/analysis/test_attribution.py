"""The waterfall against hand calculations, and that it always adds up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.analysis.accept import PromptCycles
from eagle3lab.analysis.attribution import (
    END,
    VOCABULARY,
    Walked,
    attribute,
    best_possible,
    verifications,
    walked,
)
from eagle3lab.draft.chain import first_slot, walk

V = 12
KNOWN = np.ones(V, dtype=bool)
KNOWN[11] = False
# x0 x1 are the prompt, x2 comes from the prefill; x6 has no draft id
IDS = np.array([0, 1, 2, 3, 4, 5, 11, 7, 8, 9, 10])


def answer(accepted, ids=IDS, n_prompt=2, id="a"):
    return Walked(id, "chat", n_prompt, ids, tuple(accepted))


@pytest.fixture
def by_hand():
    """Chains of 3 from slots 1, 4, 5, 7: two right and x5 wrong; x6 has no draft id; x7 right and x8 wrong; the last
    can only have x9, because x10 ends the answer."""
    return verifications([answer([2, 0, 1, 1])], 3, KNOWN)


def test_the_columns_by_hand(by_hand):
    assert by_hand.slot_C.tolist() == [1, 4, 5, 7]
    assert by_hand.room_C.tolist() == [3, 3, 3, 1]
    assert by_hand.stopped_C.tolist() == [True, True, True, False]
    assert by_hand.unknown_C.tolist() == [False, True, False, False]


def test_the_waterfall_by_hand(by_hand):
    whole = attribute(by_hand)
    assert whole.accept_length == 2.0  # 8 tokens in 4 verifications
    tokens = {part.name: part.tokens for part in whole.parts}
    assert tokens == {VOCABULARY: 3, "position 1": 0, "position 2": 2, "position 3": 1, END: 2}
    assert {part.name: part.lost for part in whole.parts}[VOCABULARY] == 0.75
    assert whole.part("position 2").verifications == 1
    assert [part.name for part in whole.parts] == list(tokens)


def test_the_conditionals_by_hand(by_hand):
    first, second, third = attribute(by_hand).positions
    assert (first.reached, first.accepted, first.unknown) == (4, 3, 1)
    assert (first.conditional, first.conditional_known) == (0.75, 1.0)
    assert (second.reached, second.accepted, second.unknown) == (2, 1, 0)  # the last chain had no second draft
    assert (third.reached, third.conditional, third.conditional_known) == (1, 0.0, 0.0)


def test_the_gains_by_hand(by_hand):
    whole = attribute(by_hand)
    # without ends 1 + 3/4 + 3/8 + 0 = 2.125; position 2 mended: 1 + 3/4 + 3/4 + 0; position 3: 1 + 3/4 + 3/8 + 3/8
    assert whole.part(END).gain == pytest.approx(0.125)
    assert whole.part(VOCABULARY).gain == pytest.approx(1 + 1 + 0.5 + 0 - 2.125)
    assert whole.part("position 1").gain == 0  # its only miss is the vocabulary's
    assert whole.part("position 2").gain == pytest.approx(0.375)
    assert whole.part("position 3").gain == pytest.approx(0.375)


def test_a_chain_that_the_end_cuts_after_a_wrong_draft_is_charged_to_both():
    # x2 .. x5, chain of 3 at slot 1: x3 wrong, x3 commits; then slot 2: x4 wrong, then slot 3: x5 is the bonus
    whole = attribute(verifications([answer([0, 0, 0], ids=IDS[:6])], 3, KNOWN))
    # room 2, 1, 0: a perfect drafter would have lost 1 + 2 + 3 to the end, the wrong first drafts cost 2 + 1
    assert {part.name: part.tokens for part in whole.parts if part.tokens} == {"position 1": 3, END: 6}


def test_nothing_is_lost_by_a_drafter_that_is_always_right():
    ids = np.zeros(2 + 1 + 8, dtype=int)
    whole = attribute(verifications([answer([3, 3], ids=ids)], 3, KNOWN))
    assert whole.accept_length == 4.0 and sum(part.tokens for part in whole.parts) == 0


@st.composite
def rows(draw):
    steps = draw(st.integers(1, 5))
    found = []
    for number in range(draw(st.integers(1, 4))):
        n_prompt, n_answer = draw(st.integers(1, 4)), draw(st.integers(2, 20))
        n = n_prompt + n_answer
        ids = np.array(draw(st.lists(st.integers(0, V - 1), min_size=n, max_size=n)))
        hits = np.array(draw(st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=n, max_size=n)))
        for slot in range(n):  # a token without a draft id is never hit
            for step in range(steps):
                if slot + 2 + step < n and not KNOWN[ids[slot + 2 + step]]:
                    hits[slot, step] = False
        accepted = walk(hits, first_slot(n_prompt), n)
        found.append(Walked(f"r{number}", "s", n_prompt, ids, tuple(accepted)))
    return steps, found


@settings(max_examples=200, deadline=None)
@given(rows())
def test_the_parts_always_add_up_to_the_token(case):
    steps, answers = case
    whole = attribute(verifications(answers, steps, KNOWN))
    assert sum(part.tokens for part in whole.parts) == (steps + 1) * whole.verifications - whole.committed
    assert whole.committed == sum(len(a.input_ids_T) - a.n_prompt - 1 for a in answers)
    assert all(part.tokens >= 0 for part in whole.parts)
    assert all(part.gain >= -1e-9 for part in whole.parts if part.name != END)


@settings(max_examples=100, deadline=None)
@given(rows())
def test_a_perfect_drafter_loses_only_the_end(case):
    steps, answers = case
    known = np.ones(V, dtype=bool)
    perfect = [
        Walked(a.id, a.set, a.n_prompt, a.input_ids_T, tuple(walk(np.ones((len(a.input_ids_T), steps), bool),
               first_slot(a.n_prompt), len(a.input_ids_T))))
        for a in answers
    ]  # fmt: skip
    whole = attribute(verifications(perfect, steps, known))
    assert {part.name for part in whole.parts if part.tokens} <= {END}


def test_intervals_are_over_answers():
    right, wrong = answer([3, 3], ids=np.zeros(11, int), id="r"), answer([0] * 8, ids=np.zeros(11, int), id="w")
    whole = attribute(verifications([right, wrong], 3, KNOWN))
    low, high = whole.part("position 1").interval
    # only the wrong answer: 6 chains with room for 3 and two for 2 and 1 tokens, lost 5 * 3 + 3 + 2 + 1 in 8 chains
    assert low == 0.0 and high == pytest.approx(whole.part("position 1").tokens / 8)
    assert attribute(verifications([right], 3, KNOWN)).part("position 1").interval is None


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="make 9 tokens, but the answer has 8"):
        answer([3, 3], ids=IDS[:10])
    with pytest.raises(ValueError, match="3 drafts accepted at slot 1, at most 2"):
        verifications([answer([3, 3], ids=np.zeros(11, int))], 2, KNOWN)
    with pytest.raises(ValueError, match="has no draft id: whose map"):
        verifications([answer([3, 3])], 3, np.arange(V) != 4)  # x4 is among the accepted
    with pytest.raises(ValueError, match="no verification"):
        verifications([], 3, KNOWN)


def test_rows_are_joined_with_their_cycles():
    row = answer([2, 0, 1, 1])
    short = Walked("b", "chat", 2, IDS[:3], ())
    joined = walked([short, row], [PromptCycles("a", (2, 0, 1, 1)), PromptCycles("b", ())])
    assert [one.id for one in joined] == ["a"]
    assert joined[0].accepted == (2, 0, 1, 1)


def test_the_best_possible_by_hand():
    # chains of 3: x3 x4 x5 and the bonus x6 (no draft id), then x7 x8 x9 and x10: 8 tokens in 2 verifications
    assert best_possible([answer([2, 0, 1, 1])], 3, KNOWN) == 4.0
    # without x4: x3 and the bonus x4; x5, then x6 has no draft id; x7 x8 x9 and x10: 8 tokens in 3
    assert best_possible([answer([2, 0, 1, 1])], 3, KNOWN & (np.arange(V) != 4)) == 8 / 3


@settings(max_examples=50, deadline=None)
@given(rows())
def test_nothing_beats_the_best_possible_and_only_vocabulary_and_end_are_below_the_most(case):
    steps, answers = case
    whole = attribute(verifications(answers, steps, KNOWN))
    assert whole.accept_length <= best_possible(answers, steps, KNOWN) + 1e-9 <= steps + 1 + 2e-9
