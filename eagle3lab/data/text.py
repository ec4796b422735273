"""Normal form of a text and digests of it: what 'the same prompt' means everywhere in this room."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_WORD = re.compile(r"\w+")


def normalise(text: str) -> str:
    """NFKC, case folded, words only, single spaces; a text without words keeps its characters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_WORD.findall(folded)) or folded.strip()


def digest(text: str) -> str:
    """SHA-256 of a text as hex. Lone surrogates (legal in JSON escapes) are kept apart, not refused."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def share(seed: int, key: str) -> float:
    """A number in [0, 1) that depends on `seed` and `key` alone: the base of every stable random choice."""
    return int(digest(f"{seed}:{key}")[:13], 16) / 16**13
