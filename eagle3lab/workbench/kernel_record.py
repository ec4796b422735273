"""The run record of a notebook that no runner drives (Jupyter, plain papermill), kept from inside the
kernel.

It follows the cells: an error makes it `failed`, the next cell that works makes it `running` again, and
`run.finish()` makes it `ok`. What a kernel cannot write (its own death) shows as a `running` record without
its process, which readers take as interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .records import (
    FAILED,
    INTERRUPTED,
    OK,
    RUNNING,
    STOPPED_EARLY,
    end_record,
    read_record,
    refuse_busy,
    write_record,
)

_following: KernelRecord | None = None


class KernelRecord:
    """Writes run.json from the kernel. An ok record opened again stays as it is until the run is finished
    anew.
    """

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        self._folder = folder
        self._record = record
        refuse_busy(folder)
        old = read_record(folder)
        self._silent = old is not None and old["state"] == OK
        self._write()
        _follow(self)

    def finish(self) -> None:
        """The run is complete: state ok."""
        self._silent = False
        self._record = end_record(self._record, OK)
        self._write()
        _follow(None)

    def after_cell(self, result: Any) -> None:
        """IPython's post_run_cell: note how the cell ended."""
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            if self._record["state"] != RUNNING:
                self._record = {
                    **self._record,
                    "state": RUNNING,
                    "ended": None,
                    "seconds": None,
                    "error": None,
                }
                self._write()
            return
        details = {"cell": result.execution_count, "name": type(error).__name__, "message": str(error)}
        self._record = end_record(self._record, _state_of(error), details)
        self._write()

    def _write(self) -> None:
        if not self._silent:
            write_record(self._folder, self._record)


def _state_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return STOPPED_EARLY if error.code in (None, 0) else FAILED
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED


def _follow(record: KernelRecord | None) -> None:
    """Let `record` alone hear of this kernel's cells (a run opened again replaces the one before)."""
    global _following
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is None:
        return
    if _following is not None:
        shell.events.unregister("post_run_cell", _following.after_cell)
    _following = record
    if record is not None:
        shell.events.register("post_run_cell", record.after_cell)
