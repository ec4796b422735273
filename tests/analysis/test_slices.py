"""Slices against hand calculations: every draft is in one slice, and what they lose adds up."""

import numpy as np
import pytest

from eagle3lab.analysis.attribution import END, Walked, attribute, verifications
from eagle3lab.analysis.slices import attempts, grid, slice_by

KNOWN = np.ones(12, dtype=bool)
IDS = np.arange(11)
# chains of 3 from slots 1, 4, 5, 7 (see test_attribution): accepted 2, 0, 1, 1
ANSWER = Walked("a", "chat", 2, IDS, (2, 0, 1, 1))


@pytest.fixture
def tried():
    return attempts(verifications([ANSWER], 3, KNOWN))


def test_the_attempts_by_hand(tried):
    # chain 1 names x3 x4 (right) and x5; chain 2 x6; chain 3 x7 (right) and x8; chain 4 x9, then the answer ends
    assert tried.token_N.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert tried.hit_N.tolist() == [True, True, False, False, True, False, True]
    assert tried.step_N.tolist() == [0, 1, 2, 0, 0, 1, 0]
    assert tried.lost_N.tolist() == [0, 0, 1, 3, 0, 2, 0]


def test_slices_by_hand(tried):
    labels = np.array(["p", "p", "p", "word", "word", "number", "number", "word", "word", "word", "word"])
    word, number = slice_by(tried, [labels])
    assert (word.label, word.attempts, word.accepted) == ("word", 5, 4)  # x3 x4 x7 x8 x9, of which x8 is wrong
    assert word.acceptance == 0.8 and word.lost == 2 / 4
    assert (number.attempts, number.accepted, number.lost) == (2, 0, 4 / 4)
    assert (word.begun, word.accept_length) == (3, 7 / 3)  # chains 1, 3, 4 begin with x3, x7, x9: 3 + 2 + 2 tokens
    assert (number.begun, number.accept_length) == (1, 1.0)
    assert word.small and word.interval is None and word.answers == 1


def test_what_the_slices_lose_adds_up_to_the_waterfall():
    random = np.random.default_rng(1)
    from eagle3lab.draft.chain import walk

    answers, labels = [], []
    for number in range(6):
        n = int(random.integers(8, 40))
        accepted = walk(random.random((n, 4)) < 0.6, 2, n)
        answers.append(Walked(f"r{number}", "s", 3, random.integers(0, 12, n), tuple(accepted)))
        labels.append(random.choice(["a", "b", "c"], n))
    v = verifications(answers, 4, KNOWN)
    slices = slice_by(attempts(v), labels)
    whole = attribute(v)
    lost = 5 - whole.accept_length - whole.part(END).lost
    assert sum(one.lost for one in slices) == pytest.approx(lost)
    assert sum(one.begun for one in slices) <= len(v)
    assert sum(one.attempts for one in slices) == len(attempts(v))


def test_order_and_whole_answer_labels():
    other = Walked("b", "code", 2, IDS, (3, 3))
    tried = attempts(verifications([ANSWER, other], 3, KNOWN))
    slices = slice_by(tried, ["chat", "code"], order=("none of these", "code"))
    assert [one.label for one in slices] == ["code", "chat"]  # named first, though it has fewer attempts
    assert [one.attempts for one in slices] == [6, 7]
    assert slices[0].acceptance == 1.0 and slices[0].accept_length == 4.0


def test_small_is_marked_and_large_is_not():
    long = np.zeros(402, dtype=int)
    answers = [Walked(f"r{i}", "s", 2, long, (0,) * 399) for i in range(5)]
    tried = attempts(verifications(answers, 1, KNOWN))
    (whole,) = slice_by(tried, ["all"] * 5)
    assert not whole.small and whole.interval == (0.0, 0.0)
    (few,) = slice_by(attempts(verifications(answers[:4], 1, KNOWN)), ["all"] * 4)
    assert few.small  # many attempts, but four answers


def test_labels_must_fit_the_answer(tried):
    with pytest.raises(ValueError, match=r"a: \(3,\) labels for 11 tokens"):
        slice_by(tried, [np.array(["x", "y", "z"])])


def test_grid_by_hand(tried):
    labels = np.array(["low"] * 6 + ["high"] * 5)
    counted = grid(tried, [labels], ("low", "high", "never"))
    assert counted.attempts_RK.tolist() == [[1, 1, 1], [3, 1, 0], [0, 0, 0]]
    assert counted.accepted_RK.tolist() == [[1, 1, 0], [2, 0, 0], [0, 0, 0]]
