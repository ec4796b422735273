"""Thoughts written into an answer's text: `<think>..</think>` and OpenThoughts' own tags."""

from __future__ import annotations

_THOUGHTS = (("<think>", "</think>"), ("<|begin_of_thought|>", "<|end_of_thought|>"))
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")


def split_thought(text: str) -> tuple[str, str]:
    """(thought, answer) of an answer's text, both stripped; ("", text) where it holds none.

    A thought stands at the head of the text. Its opening tag may be missing (where the prompt opens it, as
    DeepSeek-R1's and Kimi's do). A thought that is opened and never closed was cut off: both are then empty. Tags in
    the middle of an answer are part of it.
    """
    for opening, closing in _THOUGHTS:
        head, closed, rest = text.partition(closing)
        before, opened, thought = head.partition(opening)
        if not closed:
            if text.lstrip().startswith(opening):
                return "", ""
            continue
        if opened and before.strip():
            continue
        return (thought if opened else head).strip(), _solution(rest)
    return "", _solution(text)


def _solution(text: str) -> str:
    opening, closing = _SOLUTION
    stripped = text.strip()
    if stripped.startswith(opening):
        stripped = stripped[len(opening) :].partition(closing)[0].strip()
    return stripped
