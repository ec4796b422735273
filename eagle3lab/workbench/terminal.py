"""What the runner shows in the terminal: one line a stage, redrawn in place; plain lines where there is no
terminal.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, TextIO

from .progress import duration, progress_text

_QUIET_GAP = 30.0  # seconds between two lines of the same step when the output is not a terminal


class Terminal:
    """Shows stage, step, rate and time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._stage, self._step = "", ""
        self._began = time.monotonic()
        self._last_line = 0.0
        self._last_step: str | None = None
        self._drawn = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def begin(self, stage: str) -> None:
        self._stage, self._step, self._began, self._last_step = stage, "starting", time.monotonic(), None
        self.draw(None)

    def step(self, name: str) -> None:
        """The notebook came to its next step."""
        self._step = name

    def draw(self, progress: dict[str, Any] | None) -> None:
        """Show the stage's line, with the progress its notebook wrote (None: none yet in this step)."""
        clock = time.monotonic()
        text = f"{self._stage} · {duration(clock - self._began)} · {self._step}"
        if progress:
            text += f" · {progress_text(progress)}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}", end="", file=self._stream, flush=True)
            self._drawn = True
        elif clock - self._last_line >= _QUIET_GAP or (progress is None and self._last_step is None):
            print(text, file=self._stream, flush=True)
            self._last_line, self._last_step = clock, self._step

    def _clear(self) -> None:
        if self._drawn:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{'':<{width}}\r", end="", file=self._stream, flush=True)
            self._drawn = False
