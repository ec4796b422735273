"""Normal form of a text and digests of it: what 'the same prompt' means everywhere in this room."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_WORD = re.compile(r"\w+")
_ROW_ID = re.compile(r"(?P<stem>.*-(?P<key>[0-9a-f]{16}))(?:-t\d+|-reference)?")
_SCRIPTS = {
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]"),
    "cyrillic": re.compile(r"[\u0400-\u04ff]"),
    "greek": re.compile(r"[\u0370-\u03ff]"),
    "arabic": re.compile(r"[\u0600-\u06ff]"),
    "hebrew": re.compile(r"[\u0590-\u05ff]"),
    "devanagari": re.compile(r"[\u0900-\u097f]"),
    "thai": re.compile(r"[\u0e00-\u0e7f]"),
    "hangul": re.compile(r"[\uac00-\ud7af\u1100-\u11ff]"),
    "kana": re.compile(r"[\u3040-\u30ff]"),
    "han": re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]"),
}
_SCRIPT_SAMPLE = 2000  # characters looked at


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


def script_of(text: str) -> str:
    """The script of most letters of a text's beginning: a guess at its language by its writing alone.

    Latin letters stand for English, French, code and more; kana count as Japanese even among Han characters.
    "none" where there is no letter of a known script.
    """
    sample = text[:_SCRIPT_SAMPLE]
    counts = {name: len(pattern.findall(sample)) for name, pattern in _SCRIPTS.items()}
    if counts["kana"]:
        counts["kana"] += counts["han"]
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "none"
