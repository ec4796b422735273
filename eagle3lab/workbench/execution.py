"""One notebook executed by papermill, and what really happened: papermill's own record cannot be trusted.

papermill reports success after `sys.exit(0)`, marks every cell completed after a dead kernel, and knows
timeouts per cell only. The outcome is judged here, outside the kernel, from the exception, the cells and
the artefacts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from .artefacts import ArtefactError, missing_files, read_manifest
from .files import read_json, write_json_atomic
from .guards import (
    KERNEL,
    WallClockLimit,
    close_event_loop,
    kernel_environment,
    quiet_papermill,
    signals_as_interrupts,
)
from .notebooks import step_name
from .processes import end_marked_processes
from .records import FAILED, INTERRUPTED, KERNEL_DIED, OK, STOPPED_EARLY, TIMEOUT
from .root import repository_root
from .stages import Stage

START_TIMEOUT = 180  # seconds a kernel may take to start (several starts at once are slow)
IOPUB_TIMEOUT = 60  # seconds to wait for a finished cell's output (papermill's 4 fail on heavy output)
LOGS = ("stdout", "stderr", "kernel")  # what cells print, and what the kernel's process says besides


@dataclass(frozen=True)
class Limits:
    """wall_seconds: for the whole stage; cell_seconds: for one cell (None: no limit)."""

    wall_seconds: float | None = None
    cell_seconds: float | None = None


@dataclass
class CellWatch:
    """Which code cell runs, since when; `step` is its papermill_description, or `cell N`."""

    on_start: Callable[[str], None]
    cell: int | None = None
    step: str = ""
    started: float = field(default_factory=time.monotonic)

    def cell_started(self, cell: Mapping[str, Any], cell_index: int) -> None:
        if cell["cell_type"] == "code":
            self.cell, self.started = cell_index, time.monotonic()
            self.step = step_name(cell["source"]) or f"cell {cell_index}"
            self.on_start(self.step)

    def error(self, name: str, message: str) -> dict[str, Any]:
        return {"cell": self.cell, "step": self.step, "name": name, "message": message}


def _open_log(folder: Path, name: str) -> TextIO:
    path = folder / "logs" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def _logged_kernel(log: TextIO) -> type:
    """A kernel manager whose kernels write to `log` what they say outside of cells (libraries, crashes)."""
    from jupyter_client.manager import AsyncKernelManager

    class LoggedKernelManager(AsyncKernelManager):
        async def start_kernel(self, **options: Any) -> None:
            await super().start_kernel(stdout=log, stderr=log, **options)

    return LoggedKernelManager


def execute(
    stage: Stage,
    output: Path,
    parameters: Mapping[str, Any],
    mark: str,
    limits: Limits,
    on_step: Callable[[str], None],
) -> tuple[str, dict[str, Any] | None]:
    """Execute a stage's notebook to `output` and return (state, error) as they belong in run.json.

    Returns whatever the outcome; the kernel and all processes it started are gone by then.
    """
    watch = CellWatch(on_step)
    notebook, problem = None, None
    try:
        with signals_as_interrupts(limits.wall_seconds), ExitStack() as open_logs:
            logs = {name: open_logs.enter_context(_open_log(output.parent, name)) for name in LOGS}
            try:
                with kernel_environment(mark), quiet_papermill():
                    notebook = _papermill(stage, output, parameters, limits, watch, logs)
            except BaseException as error:
                problem = error
            finally:
                close_event_loop()
                end_marked_processes(mark)
    except KeyboardInterrupt as late:  # a signal between papermill's end and the end of cleaning up
        end_marked_processes(mark)
        problem = problem or late
    state, error = _judge(stage, output.parent, notebook, problem, watch, limits)
    _tell_notebook(output, state)
    return state, error


def _papermill(
    stage: Stage,
    output: Path,
    parameters: Mapping[str, Any],
    limits: Limits,
    watch: CellWatch,
    logs: Mapping[str, TextIO],
) -> Any:
    import papermill

    return papermill.execute_notebook(
        str(stage.notebook_path),
        str(output),
        parameters=dict(parameters),
        kernel_name=KERNEL,
        language="python",
        cwd=str(repository_root()),
        progress_bar=False,
        stdout_file=logs["stdout"],
        stderr_file=logs["stderr"],
        kernel_manager_class=_logged_kernel(logs["kernel"]),
        start_timeout=START_TIMEOUT,
        iopub_timeout=IOPUB_TIMEOUT,
        execution_timeout=limits.cell_seconds,
        interrupt_on_timeout=True,
        coalesce_streams=True,
        on_cell_start=watch.cell_started,
    )


def _judge(
    stage: Stage, folder: Path, notebook: Any, problem: BaseException | None, watch: CellWatch, limits: Limits
) -> tuple[str, dict[str, Any] | None]:
    if problem is None:
        return _judge_finished(stage, folder, notebook, watch)
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    name, message = type(problem).__name__, str(problem)
    if isinstance(problem, WallClockLimit):
        return TIMEOUT, watch.error(name, message)
    if isinstance(problem, KeyboardInterrupt):
        return INTERRUPTED, watch.error(name, message or "interrupted")
    if isinstance(problem, DeadKernelError) or (isinstance(problem, RuntimeError) and "Kernel died" in message):
        hint = "the kernel's process is gone (killed, often for want of memory); see logs/kernel.log"
        return KERNEL_DIED, watch.error(name, hint)
    if isinstance(problem, PapermillExecutionError):
        if limits.cell_seconds and time.monotonic() - watch.started >= limits.cell_seconds:
            return TIMEOUT, watch.error("CellTimeout", f"the cell ran past its limit of {limits.cell_seconds:g} s")
        state = INTERRUPTED if problem.ename == "KeyboardInterrupt" else FAILED
        return state, watch.error(problem.ename, problem.evalue)
    return FAILED, watch.error(name, message)


def _judge_finished(stage: Stage, folder: Path, notebook: Any, watch: CellWatch) -> tuple[str, dict[str, Any] | None]:
    """papermill came to an end without complaint: ok needs every cell run and every artefact made."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        left = any(output.get("ename") == "SystemExit" for output in cell.outputs)
        if left or cell.execution_count is None:
            watch.cell = index
            return STOPPED_EARLY, watch.error("SystemExit", "sys.exit() ended the notebook; later cells never ran")
    try:
        manifest = read_manifest(folder)
    except ArtefactError as error:
        return FAILED, watch.error("ArtefactError", str(error))
    lacking = [key for key in stage.makes if key not in manifest] + missing_files(folder, manifest)
    if lacking:
        return FAILED, watch.error("ArtefactError", f"artefacts are missing: {', '.join(lacking)}")
    return OK, None


def _tell_notebook(output: Path, state: str) -> None:
    """Put the true state into the executed notebook's metadata, where papermill's is wrong."""
    if not output.exists():
        return
    notebook = read_json(output)
    notebook["metadata"]["eagle3lab"] = {"run_id": output.parent.name, "state": state}
    if state != OK:
        notebook["metadata"].setdefault("papermill", {})["exception"] = True
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code" and cell.get("execution_count") is None:
                cell["metadata"].setdefault("papermill", {})["status"] = "not completed"
    write_json_atomic(output, notebook)
