"""A stage's run as its notebook sees it: parameters, upstream runs, artefacts, results, progress."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from .artefacts import ArtefactError, describe
from .files import append_jsonl, read_jsonl, write_bytes_atomic, write_json_atomic, write_text_atomic
from .kernel_record import KernelRecord
from .lineage import UpstreamRun, finished_run
from .progress import Progress
from .records import MANIFEST, METRICS, RESULTS, now
from .root import from_root
from .stages import get_stage

Item = TypeVar("Item")
HEADLINE = "headline"  # name of the headline results in results.json
LONGEST_HEADLINE = 240  # characters: two lines of a page


class Run:
    """A run folder being filled. Made by `open_run`; works the same under Jupyter, papermill and the
    runner.

    id, stage: names; folder: absolute Path of runs/<id>/; p: the parameters as attributes, fitted to their
    types.
    """

    def __init__(
        self,
        run_id: str,
        stage: str,
        folder: Path,
        values: Mapping[str, Any],
        upstream: Mapping[str, UpstreamRun],
        kernel_record: KernelRecord | None,
    ) -> None:
        self.id = run_id
        self.stage = stage
        self.folder = folder
        self.p = SimpleNamespace(**values)
        self._upstream = dict(upstream)
        self._kernel_record = kernel_record
        self._manifest: dict[str, dict[str, Any]] = {}
        self._results: dict[str, Any] = {HEADLINE: []}
        self._progress = Progress(folder)
        read_jsonl(folder / METRICS, repair=True)  # a run that was cut off may have left half a line

    def __repr__(self) -> str:
        return f"Run({self.id})"

    def upstream(self, stage: str) -> UpstreamRun:
        """The finished run of `stage` that this one reads from; KeyError when the stage is not among its
        needs, or was left out.
        """
        if stage in get_stage(self.stage).spares and stage not in self._upstream:
            raise KeyError(f'{stage}_run is "none", and no parameter names what stands in place of that run')
        if stage not in self._upstream:
            raise KeyError(f"{self.stage} does not need {stage!r}; it needs {', '.join(self._upstream) or 'nothing'}")
        return self._upstream[stage]

    def finished(self, stage: str | tuple[str, ...], run_id: str) -> UpstreamRun:
        """A finished run (of one of several stages) in the same folder of runs that is none of this run's upstream,
        named by a parameter."""
        return finished_run(stage, run_id, self.folder.parent)

    def path(self, name: str) -> Path:
        """A path inside the run folder; its parent folder is made."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @staticmethod
    def from_root(path: str | Path) -> Path:
        """A parameter's path, relative ones from the repository root (the working directory is the
        caller's).
        """
        return from_root(path)

    def add(self, key: str, path: str | Path, kind: str) -> Path:
        """Register a file or directory of the run folder as artefact `key` (bytes and sha256 go to the
        manifest).

        kind: "data", "checkpoint", "report", "table" ... are input to later stages; "figure" and "log" are
        shown only. Returns the path. ArtefactError when it does not exist or lies outside the run folder.
        """
        path = Path(path)
        path = path if path.is_absolute() else self.folder / path
        self._manifest[key] = describe(self.folder, path, kind)
        return path

    def result(self, **values: Any) -> None:
        """Add named results (JSON scalars, lists, dicts); ValueError for NaN or infinity, TypeError for the
        rest. The name "headline" is taken by `headline`.
        """
        for name, value in values.items():
            if name == HEADLINE:
                raise ValueError("headline results are added with run.headline(text)")
            try:
                self._results[name] = json.loads(json.dumps(value, allow_nan=False))
            except (ValueError, TypeError) as error:
                raise type(error)(f"result {name!r} = {value!r}: {error}") from error

    def headline(self, text: str) -> None:
        """Add one of the stage's most telling results to the status report: a readable line with its setting.

        E.g. `accept length 1.53 (simulated, chain 3, temperature 0, 64 prompts)`. Lines are kept in order under
        "headline" in results.json; a line that is there already is not added again (a cell run twice).
        One of more than 240 characters ends after a word, with "…". ValueError unless it is one line.
        """
        line = text.strip()
        if not line or "\n" in line:
            raise ValueError(f"a headline is one line, not {text!r}")
        if len(line) > LONGEST_HEADLINE:
            whole_words = line[: LONGEST_HEADLINE - 1].rpartition(" ")[0]
            line = f"{whole_words or line[: LONGEST_HEADLINE - 2]} …"
        if line not in self._results[HEADLINE]:
            self._results[HEADLINE].append(line)

    def metric(self, row: Mapping[str, Any]) -> None:
        """Append a row to metrics.jsonl with the time (UTC, ISO 8601) under "time"."""
        append_jsonl(self.folder / METRICS, {**row, "time": now()})

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        return read_jsonl(self.folder / METRICS)

    def keep_metrics(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the metric rows for which `keep` is false, e.g. those after the checkpoint a stage continues
        from.
        """
        rows = [row for row in self.metrics() if keep(row)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text_atomic(self.folder / METRICS, text)

    def progress(
        self,
        done: float,
        total: float | None,
        unit: str = "",
        note: str = "",
        seconds_left: float | Literal["by rate"] | None = "by rate",
    ) -> None:
        """Show that `done` of `total` units are done: in the terminal, and in one display in the notebook.

        seconds_left: an estimate of the caller's own (None: not known yet) instead of the one by the rate so far.
        """
        self._progress.update(done, total, unit, note, seconds_left)

    def track(
        self,
        items: Iterable[Item],
        total: float | None = None,
        unit: str = "rows",
        *,
        done: float = 0,
        size: Callable[[Item], float] | None = None,
        at: Callable[[Item], float] | None = None,
        note: Callable[[Item], str] | None = None,
    ) -> Iterator[Item]:
        """Yield `items` and show progress after each was used by the loop's body.

        total: units in all (default: len(items), where it has one). done: units done before (a resumed
        stage). size: units an item counts for (default 1), or at: how many units are done once it is, e.g.
        `at=lambda row: row["step"]`. note: a short text about the item. The source is closed with the loop.
        """
        if total is None and hasattr(items, "__len__"):
            total = done + len(items)  # type: ignore[arg-type]
        text = ""
        self.progress(done, total, unit)
        try:
            for item in items:
                yield item
                done = at(item) if at else done + (size(item) if size else 1)
                text = note(item) if note else ""
                self.progress(done, total, unit, text)
        finally:
            if close := getattr(items, "close", None):
                close()

    def figure(self, figure: Any, name: str) -> Path:
        """Save a matplotlib figure as figures/<name>.png (150 dpi) and register it as artefact `name`."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        path = self.path(f"figures/{name}.png")
        write_bytes_atomic(path, buffer.getvalue())
        return self.add(name, path, "figure")

    def finish(self) -> None:
        """Write manifest and results; the run counts as complete. ArtefactError when one its stage makes is
        missing.
        """
        lacking = [key for key in get_stage(self.stage).makes if key not in self._manifest]
        if lacking:
            raise ArtefactError(f"{self.stage} must make {', '.join(lacking)}: call run.add(key, path, kind) for each")
        write_json_atomic(self.folder / RESULTS, self._results)
        write_json_atomic(self.folder / MANIFEST, dict(sorted(self._manifest.items())))
        if self._kernel_record:
            self._kernel_record.finish()
        print(f"{self.id}: {len(self._manifest)} artefacts, {len(self._results) - 1} results")
