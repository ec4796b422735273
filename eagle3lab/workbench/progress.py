"""Progress of a stage: one file the runner's terminal reads, one display in the notebook."""

from __future__ import annotations

import html
import time
from pathlib import Path
from typing import Any, Literal

from .files import write_json_atomic
from .records import PROGRESS, now

_SHORTEST_GAP = 0.5  # seconds between two writes


def duration(seconds: float | None) -> str:
    """`1:02:03`, `2:03`, or `?` for None."""
    if seconds is None:
        return "?"
    minutes, secs = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def progress_text(state: dict[str, Any]) -> str:
    """One line: `1,200/5,000 rows · 41.3 rows/s · 1:32 left · note`, or `22.8 s each` where one takes longer."""
    unit = f" {state['unit']}" if state["unit"] else ""
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    parts = [f"{state['done']:,}{total}{unit}"]
    if state["rate"]:
        rate, counted = state["rate"], unit.partition(" of ")[0]  # "answers of part 1 of 2" come as answers a second
        parts.append(f"{rate:,.1f}{counted}/s" if rate >= 1 else f"{1 / rate:,.1f} s each")
    if state["seconds_left"] is not None:
        parts.append(f"{duration(state['seconds_left'])} left")
    return " · ".join(parts + ([state["note"]] if state["note"] else []))


class Progress:
    """Writes progress.json (whole, at most about twice a second) and updates one display handle.

    Rate and time left count from the first call of a phase, so rows found done at a resume do not flatter
    them. A new unit or total, or a count that falls, begins a phase.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._phase: tuple[Any, ...] | None = None
        self._written = 0.0
        self._handle: Any = None
        self._begin = (0.0, 0.0)
        self._last_done = 0.0

    def update(
        self,
        done: float,
        total: float | None,
        unit: str = "",
        note: str = "",
        seconds_left: float | Literal["by rate"] | None = "by rate",
    ) -> None:
        """Tell that `done` of `total` (None: unknown) units are done. `seconds_left`: a better estimate than the one by
        rate, None where there is none yet."""
        clock = time.monotonic()
        fresh = (total, unit) != self._phase or done < self._last_done
        if fresh:
            self._phase, self._begin, self._handle = (total, unit), (clock, done), None
        self._last_done = done
        if not fresh and done != total and clock - self._written < _SHORTEST_GAP:
            return
        self._written = clock
        begun, done_before = self._begin
        gained = done - done_before
        rate = gained / (clock - begun) if gained > 0 and clock > begun else None
        if seconds_left == "by rate":
            seconds_left = (total - done) / rate if rate and total is not None else None
        state = {
            "done": done, "total": total, "unit": unit, "note": note, "rate": rate, "seconds_left": seconds_left,
            "updated": now(),
        }  # fmt: skip
        write_json_atomic(self._path, state)
        self._show(state)

    def _show(self, state: dict[str, Any]) -> None:
        try:
            from IPython import get_ipython
            from IPython.display import display
        except ImportError:
            return
        if get_ipython() is None:
            return
        text = progress_text(state)
        full = state["total"] or 1
        bar = (
            f'<progress value="{state["done"]}" max="{full}" style="width:12em"></progress> '
            if state["total"] is not None
            else ""
        )
        data = {"text/plain": text, "text/html": f"{bar}<span>{html.escape(text)}</span>"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
