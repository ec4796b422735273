"""The text behind every token, and what kind of token it is.

Shapes: T tokens of a row.

Texts are cut by incremental decoding: a token's piece is what decoding one token more adds, so pieces join to the whole
text, spaces included, whatever the tokenizer does at the start of a text. A character made of several tokens is the
piece of its last one; the ones before it have empty pieces and take the kind of that last one.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

LOOK_BACK = 4  # tokens decoded before a piece, so that it is cut as inside a text
REPLACEMENT = "\ufffd"  # what decoding makes of half a character

CLASSES = ("special", "code", "whitespace", "number", "word", "punctuation")
PARTS = ("reasoning", "answer", "tool call")
FENCE = "```"
# How the families write where thinking and calling begin and end.
_OPEN = {"reasoning": ("<think>", "◁think▷", "<|channel|>analysis"),
         "tool call": ("<tool_call>", "<|tool_calls_section_begin|>", "<|tool▁calls▁begin|>", "<｜tool▁calls▁begin｜>",
                       "[TOOL_CALLS]", "<|python_tag|>")}  # fmt: skip
_CLOSE = ("</think>", "◁/think▷", "<|channel|>final", "</tool_call>", "<|tool_calls_section_end|>",
          "<|tool▁calls▁end|>", "<｜tool▁calls▁end｜>")  # fmt: skip


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text each token adds, specials shown. Joined: the decoded text, but for half a character at the end."""
    ids, pieces, emitted = [int(i) for i in ids], [], 0
    for end in range(1, len(ids) + 1):
        start = max(0, emitted - LOOK_BACK)
        before = _decode(tokenizer, ids[start:emitted])
        piece = _decode(tokenizer, ids[start:end])[len(before) :]
        half = piece.endswith(REPLACEMENT) and end - emitted < 4 and end < len(ids)
        pieces.append("" if half else piece)
        emitted = emitted if half else end
    return pieces


def _decode(tokenizer, ids) -> str:
    if not ids:
        return ""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _whole(pieces: Sequence[str]) -> list[str]:
    """Pieces with that of a character's last token given to all its tokens."""
    filled, following = [], ""
    for piece in reversed(pieces):
        following = piece or following
        filled.append(following)
    return filled[::-1]


def token_classes(ids: Sequence[int], pieces: Sequence[str], special_ids: Collection[int] = ()) -> list[str]:
    """One of CLASSES a token. code: between two fences of three backticks, or after an open one; the fences too."""
    inside, classes, special_ids = _fenced(pieces), [], set(special_ids)
    for token, piece, code in zip(ids, _whole(pieces), inside, strict=True):
        if int(token) in special_ids:
            classes.append("special")
        elif code:
            classes.append("code")
        elif piece.isspace() or not piece:
            classes.append("whitespace")
        elif any(c.isalpha() for c in piece):
            classes.append("word")
        elif any(c.isnumeric() for c in piece):
            classes.append("number")
        else:
            classes.append("punctuation")
    return classes


def _fenced(pieces: Sequence[str]) -> list[bool]:
    text, ends = "".join(pieces), list(accumulate(len(piece) for piece in pieces))
    fences = [match.start() for match in re.finditer(FENCE, text)]
    regions = [(a, b + len(FENCE)) for a, b in zip(fences[::2], [*fences[1::2], len(text)], strict=False)]
    spans = zip([0, *ends[:-1]], ends, strict=True)
    return [any(start < b and max(end, start + 1) > a for a, b in regions) for start, end in spans]


def answer_parts(prompt_text: str, pieces: Sequence[str]) -> list[str]:
    """One of PARTS a token of an answer; markers count with the part they open or close.

    A prompt that ends by opening a block of thoughts puts the answer's beginning inside it.
    """
    text, starts = "".join(pieces), [0, *accumulate(len(piece) for piece in pieces)][:-1]
    opens = {mark: part for part, marks in _OPEN.items() for mark in marks}
    marks = sorted([*opens, *_CLOSE], key=len, reverse=True)
    opened = [mark for mark in _OPEN["reasoning"] if prompt_text.rstrip().endswith(mark)]
    borders, names = [0], ["reasoning" if opened else "answer"]
    for match in re.finditer("|".join(map(re.escape, marks)), text):
        part = opens.get(match.group())
        borders.append(match.start() if part else match.end())
        names.append(part or "answer")
    return [names[bisect_right(borders, start) - 1] for start in starts]
