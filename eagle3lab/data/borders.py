"""Where a character border of a text falls among its token ids, proven without offsets.

A border is proven by tokenising the text up to it: the ids must be the first ids of the whole. To do that for many
borders of a long text in linear time, the shorter text is tokenised from the last special token before the border
on: a tokenizer cuts a text at its special tokens before anything else, and each piece is compared with the whole.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from eagle3lab.data.chat import ChatError, token_ids


def token_borders(tokenizer: Any, text: str, borders: Sequence[int]) -> tuple[list[int], list[int]]:
    """(ids of the text, for each character border the number of ids before it). `borders` must not decrease.

    ChatError when a token runs across a border, so that the text up to it has other ids than the whole begins with.
    """
    ids = token_ids(tokenizer, text)
    anchors = _special_starts(tokenizer, text)
    found: list[int] = []
    at_char = at_token = 0
    for border in borders:
        place = bisect_right(anchors, border)
        if place and anchors[place - 1] > at_char:
            at_token = _after(tokenizer, ids, at_token, text[at_char : anchors[place - 1]], border)
            at_char = anchors[place - 1]
        found.append(_after(tokenizer, ids, at_token, text[at_char:border], border))
    return ids, found


def _after(tokenizer: Any, ids: list[int], at_token: int, piece: str, border: int) -> int:
    piece_ids = token_ids(tokenizer, piece) if piece else []
    end = at_token + len(piece_ids)
    if ids[at_token:end] != piece_ids:
        raise ChatError(f"tokens run across the border at character {border} ({piece[-20:]!r} stands before it)")
    return end


def _special_starts(tokenizer: Any, text: str) -> list[int]:
    """Where special tokens start in the text. Those that swallow spaces beside them are no safe place to cut."""
    specials = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special and not (token.lstrip or token.rstrip or token.single_word) and token.content
    ]
    if not specials:
        return []
    pattern = "|".join(re.escape(content) for content in sorted(specials, key=len, reverse=True))
    return [match.start() for match in re.finditer(pattern, text)]
