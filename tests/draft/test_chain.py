"""The walk against a decoder that writes token by token, and the slot conventions by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.draft import chain


def decode_token_by_token(truth, drafts, n_prompt, num_steps):
    """Greedy chain decoding as an engine does it: it knows only what is committed, and asks the target for
    the rest.

    truth: the greedy continuation, so the target's argmax after truth[:n] is truth[n]. drafts[t][i]: the
    draft's
    token for position t + 2 + i.
    """
    committed = truth[: n_prompt + 1]  # the prompt and the prefill's token
    accepted = []
    while len(committed) < len(truth):
        slot = len(committed) - 2  # feature of the token before the last committed one
        proposal = [drafts[slot][i] for i in range(num_steps)]
        count = 0
        for token in proposal:
            if len(committed) == len(truth) or token != truth[len(committed)]:
                break
            committed = committed + [token]
            count += 1
        if len(committed) < len(truth):
            committed = committed + [truth[len(committed)]]  # bonus
            accepted.append(count)
        else:
            accepted.append(count - 1)  # cut: the last committed token counts as the bonus
    assert committed == truth
    return accepted


@st.composite
def answers(draw):
    n_prompt = draw(st.integers(1, 5))
    n_tokens = n_prompt + draw(st.integers(1, 25))
    steps = draw(st.integers(1, 5))
    token = st.integers(0, 1)
    truth = draw(st.lists(token, min_size=n_tokens, max_size=n_tokens))
    chains = st.lists(token, min_size=steps, max_size=steps)
    drafts = draw(st.lists(chains, min_size=n_tokens, max_size=n_tokens))
    return n_prompt, n_tokens, steps, truth, drafts


def hits_of(truth, drafts, beyond):
    """Whether draft [t, i] is the true token t+2+i; past the end: `beyond` (must not matter)."""
    return np.array(
        [
            [row[i] == truth[t + 2 + i] if t + 2 + i < len(truth) else beyond for i in range(len(row))]
            for t, row in enumerate(drafts)
        ]
    )


@settings(max_examples=300, deadline=None)
@given(answers(), st.booleans(), st.data())
def test_walk_is_greedy_chain_decoding(case, beyond, data):
    n_prompt, n_tokens, steps, truth, drafts = case
    num_steps = data.draw(st.integers(1, steps))
    walked = chain.walk(hits_of(truth, drafts, beyond), chain.first_slot(n_prompt), n_tokens, num_steps)
    assert walked == decode_token_by_token(truth, drafts, n_prompt, num_steps)


def test_walk_by_hand():
    # prompt x0 x1, answer x2 .. x8: x2 from the prefill, six tokens to commit
    hits = np.zeros((9, 3), bool)
    hits[1] = [True, True, False]  # slot 1 predicts x3 x4 x5: two right, x5 is the bonus
    hits[4] = [False, True, True]  # slot 4 predicts x6: wrong; the later hits do not count; x6 is the bonus
    hits[5] = [True, True, True]  # slot 5 predicts x7 x8 x9: the end x8 counts as the bonus
    assert chain.first_slot(2) == 1
    assert chain.walk(hits, 1, 9) == [2, 0, 1]
    assert chain.walk(hits, 1, 9, num_steps=1) == [1, 0, 0, 1]  # from slots 1, 3, 4, 5


def test_walk_with_nothing_and_everything_right():
    assert chain.walk(np.zeros((10, 4), bool), 3, 10) == [0] * 5
    assert chain.walk(np.ones((10, 4), bool), 3, 10) == [4]  # exactly four drafts and the bonus
    assert chain.walk(np.ones((4, 4), bool), 3, 5) == []  # an answer of the prefill's token alone


def test_walk_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match="5 slots; 10 tokens need 8"):
        chain.walk(np.ones((5, 2), bool), 1, 10)
    with pytest.raises(ValueError, match="num_steps=3"):
        chain.walk(np.ones((9, 2), bool), 1, 10, num_steps=3)
    with pytest.raises(ValueError, match="bool matrix"):
        chain.walk(np.ones((9, 2)), 1, 10)
    with pytest.raises(ValueError, match="no token after the prompt"):
        chain.walk(np.ones((9, 2), bool), 8, 9)


def test_answer_slots_by_hand():
    # prompt of 2, 6 tokens: slots 1.. ; slot 1 predicts x3 x4, slot 2 x4 x5, slot 3 x5 only
    expected = np.zeros((6, 2), bool)
    expected[1] = expected[2] = True
    expected[3, 0] = True
    assert (chain.answer_slots(2, 6, 2) == expected).all()


def test_small_conventions():
    assert chain.predicted_token(5, 0) == 7
    assert chain.chain_draft_tokens(3) == 4  # SGLang: steps 3 = 4 draft tokens
    with pytest.raises(ValueError):
        chain.first_slot(0)
