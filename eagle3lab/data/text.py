"""Normal form of a text and digests of it: what 'the same prompt' means everywhere in this room."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_WORD = re.compile(r"\w+")
_ROW_ID = re.compile(r"(?P<stem>.*-(?P<key>[0-9a-f]{16}))(?:-t\d+|-reference)?")


def normalise(text: str) -> str:
    """NFKC, case folded, words only, single spaces; a text without words keeps its characters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_WORD.findall(folded)) or folded.strip()


def digest(text: str) -> str:
    """SHA-256 of a text as hex. Lone surrogates (legal in JSON escapes) are kept apart, not refused."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def row_stem(row_id: str) -> tuple[str, str | None]:
    """(stem, text key) of a row's id, `<set>-<text key>` and what follows it (`-t3`: one answer of several, or
    `-reference`).

    Rows of two sets with the same text key have the same normalised text; rows with the same stem are of one
    conversation. An id of another form is its own stem and has no text key.
    """
    match = _ROW_ID.fullmatch(row_id)
    return (match["stem"], match["key"]) if match else (row_id, None)


def share(seed: int, key: str) -> float:
    """A number in [0, 1) that depends on `seed` and `key` alone: the base of every stable random choice."""
    return int(digest(f"{seed}:{key}")[:13], 16) / 16**13
