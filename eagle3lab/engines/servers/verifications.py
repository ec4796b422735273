"""Verifications of an answer: what each accepted, in the convention of `SpecCompletion.accepted`."""

from collections.abc import Sequence


class CountsDisagree(ValueError):
    """Two numbers of one answer that cannot both be true."""


def cut_to_answer(accepted: Sequence[int], n_output: int) -> list[int]:
    """Drafts accepted by each verification of an answer of which only the first `n_output` tokens are kept.

    The verification that reaches past the end keeps what it committed before it, the last token as its bonus token.
    Raises CountsDisagree when the verifications do not reach the end.
    """
    kept, left = [], n_output - 1
    for drafts in accepted:
        if left == 0:
            break
        committed = min(drafts + 1, left)
        kept.append(committed - 1)
        left -= committed
    if left:
        raise CountsDisagree(
            f"{len(accepted)} verifications accepting {sum(accepted)} drafts end {left} tokens before the answer of "
            f"{n_output}"
        )
    return kept
