"""What would run, with which values and why, found out without a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .artefacts import gone_files
from .code_hash import changed_files, code_digest, stage_code
from .lineage import Identity, Source, UpstreamRun, choose_upstream, identify, needed, unhashed, upstream_runs
from .params import ParameterError, Resolved, resolve_parameters, run_parameter, share_overrides
from .records import OK, RUNNING, all_records, newest, observed_state, read_record
from .replaced import settle
from .root import from_root
from .set_places import missing_places, refuse_unknown_adapters
from .stages import Stage, get_stage, select_stages


@dataclass(frozen=True)
class StagePlan:
    """One row of a plan.

    identity is None while an upstream stage (`waits_for`) has yet to run. ancestors: stage -> run id of all it
    is made from (None: not known before others ran). state: the state of the run found under that identity, or
    None. why: the reason it runs, or "unchanged".
    """

    stage: Stage
    profile: str
    resolved: Resolved
    runs_dir: Path
    code: dict[str, str]
    upstream: dict[str, UpstreamRun]
    ancestors: dict[str, str | None]
    identity: Identity | None
    waits_for: str | None
    state: str | None
    will_run: bool
    why: str

    @property
    def run_id(self) -> str:
        """The run id, or `after <stage>` while it is not known."""
        return self.identity.run_id if self.identity else f"after {self.waits_for}"

    @property
    def source(self) -> Source:
        """This run as later stages of the chain see it."""
        run_id = self.identity.run_id if self.identity else None
        return Source(run_id, self.ancestors, pending=self.will_run)

    @property
    def folder(self) -> Path:
        if self.identity is None:
            raise RuntimeError(f"{self.stage.name} has no run folder before {self.waits_for} has run")
        return self.runs_dir / self.identity.run_id


def plan(
    profile: str,
    overrides: Mapping[str, Any] | None = None,
    stages: list[str] | None = None,
    force: bool = False,
) -> list[StagePlan]:
    """The plan of a chain of stages (default: all). Raises what running it would raise before a kernel
    starts.
    """
    names = stages or select_stages()
    shared = share_overrides(names, overrides or {})
    chain: dict[str, StagePlan] = {}
    for name in names:
        chain[name] = plan_stage(name, profile, shared[name], chain, force)
    rows = list(chain.values())
    for row in rows:
        refuse_large_amounts(rows, row.upstream)
    return rows


def not_there(rows: Sequence[StagePlan]) -> list[str]:
    """A line for each file that a stage would read and that nobody makes: those of the data sets."""
    return [line for row in rows if row.will_run for line in missing_places(row.resolved.values)]


def refuse_large_amounts(rows: Sequence[StagePlan], upstream: Mapping[str, UpstreamRun]) -> None:
    """ParameterError when a scaling study among `rows` asks for more than the extraction among `upstream` holds: what
    the study would say itself, only after the full training."""
    for row in rows:
        asked = row.resolved.values
        if row.stage.name != "scaling" or not row.will_run or "extraction" not in upstream:
            continue
        results = upstream["extraction"].results
        most = {"rows": results.get("train_rows"), "tokens": results.get("tokens")}.get(asked.get("vary", ""))
        if most is not None and max(asked["amounts"], default=0) > most:
            raise ParameterError(
                f"scaling: amounts = {asked['amounts']}: {upstream['extraction'].id} holds no more than {most:,} "
                f"{asked['vary']}; name smaller amounts (the full training is one more point by itself)"
            )


def plan_stage(
    stage: str,
    profile: str,
    overrides: Mapping[str, Any] | None = None,
    chain: Mapping[str, StagePlan] | None = None,
    force: bool = False,
) -> StagePlan:
    """The plan of one stage. `chain` holds the plans of the stages before it: their runs are its "latest".

    Good runs that a killed `--force` left aside are put back first. Raises ParameterError, LayerError, NotebookError,
    UpstreamError.
    """
    spec = get_stage(stage)
    resolved = resolve_parameters(stage, profile, overrides)
    runs_dir = from_root(resolved.values["runs_dir"])
    refuse_unknown_adapters(spec, resolved.values)
    settle(runs_dir)
    code = stage_code(stage)
    before = {name: row.source for name, row in (chain or {}).items()}
    sources = choose_upstream(spec, resolved.values, profile, runs_dir, before)
    upstream = upstream_runs(spec, sources, runs_dir)
    read = needed(spec, resolved.values)
    waits_for = next((name for name in read if name not in upstream), None)
    ancestors = {above: run for name in read for above, run in sources[name].lineage(name).items()}
    chosen = {run_parameter(name): run.id for name, run in upstream.items()}
    resolved = replace(resolved, values={**resolved.values, **chosen})
    identity = None
    if waits_for is None:
        identity = identify(stage, profile, resolved.values, upstream, code_digest(code))
    row = StagePlan(
        spec, profile, resolved, runs_dir, code, upstream, ancestors, identity, waits_for, None, True, ""
    )  # fmt: skip
    return _judge(row, force)


def _judge(row: StagePlan, force: bool) -> StagePlan:
    record = read_record(row.folder) if row.identity else None
    state = observed_state(record) if record else None
    if row.stage.always:
        return replace(row, state=state, why="runs every time")
    if force:
        return replace(row, state=state, why="forced, from nothing")
    if record is None:
        return replace(row, why=_difference(row))
    if state == RUNNING:
        return replace(row, state=state, why="is running now")
    if state != OK:
        return replace(row, state=state, why=f"was {state}: continues where it stopped")
    gone = gone_files(row.folder)
    if gone:
        return replace(row, state=state, why=f"files are gone: {', '.join(gone)}")
    if changes := _changes(record, row, set(row.stage.manner)):
        return replace(row, state=state, why=f"goes on in another manner: {changes}")
    return replace(row, state=state, will_run=False, why="unchanged")


def _difference(row: StagePlan) -> str:
    """Why there is no such run yet: how it differs from the newest run of the same stage and profile."""
    last = newest(all_records(row.runs_dir), row.stage.name, row.profile)
    if last is None:
        return "never run"
    reasons = []
    names = {*row.resolved.values, *last["parameters"]} - unhashed(row.stage)
    if changes := _changes(last, row, names):
        reasons.append(f"parameters changed: {changes}")
    files = changed_files(last["code"], row.code)
    if files:
        reasons.append("code changed: " + ", ".join(files))
    changed_upstream = [
        name
        for name, run in row.upstream.items()
        if last["upstream"].get(name) != {"run_id": run.id, "manifest_sha256": run.digest}
    ]
    if changed_upstream:
        reasons.append("upstream changed: " + ", ".join(changed_upstream))
    if row.waits_for:
        reasons.append(f"{row.waits_for} runs first")
    return "; ".join(reasons) or "the files of its sets changed"


def _changes(record: Mapping[str, Any], row: StagePlan, names: set[str]) -> str:
    """Which of the named parameters have other values now than in the record: `lr 0.1 -> 0.2, ...`."""
    old = {name: entry["value"] for name, entry in record["parameters"].items()}
    new = row.resolved.values
    changed = [name for name in {**new, **old} if name in names and _shown(old, name) != _shown(new, name)]
    return ", ".join(f"{name} {_shown(old, name)} -> {_shown(new, name)}" for name in changed)


def _shown(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "(none)"
