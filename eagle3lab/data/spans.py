"""Loss spans: [[start, end), ...] over input_ids; l_t = 1 where x_t was generated and is trained on."""

from __future__ import annotations


class MaskError(ValueError):
    """Loss spans that cannot be meant: outside the row, overlapping, nothing trained, or everything
    trained."""


def check_spans(n_tokens: int, spans: list[list[int]], row: str = "row") -> None:
    """Raise MaskError unless the spans are ordered, apart, inside the row, and train some but not all
    tokens."""
    last = 0
    for start, end in spans:
        if not last <= start < end <= n_tokens:
            raise MaskError(f"{row}: loss span [{start}, {end}) is empty, out of order or outside 0..{n_tokens}")
        last = end
    trained = sum(end - start for start, end in spans)
    if trained == 0:
        raise MaskError(f"{row}: the loss mask is all zero; the conversation holds no answer of the target")
    if trained == n_tokens:
        raise MaskError(f"{row}: the loss mask is all one; the prompt is missing, so there is nothing to answer")
