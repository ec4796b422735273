"""Identity of a run: what it is made of decides its name, so equal work is found, not repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .artefacts import checked_path, manifest_digest, read_manifest
from .files import read_json
from .params import run_parameter
from .records import OK, RESULTS, all_records, read_record
from .root import show_path
from .set_places import set_files
from .stages import Stage, get_stage

LATEST, NONE = "latest", "none"


class UpstreamError(RuntimeError):
    """A run that a stage needs is missing or unfinished; the text names the notebook and the command."""


@dataclass(frozen=True)
class UpstreamRun:
    """A finished run that another one reads from."""

    stage: str
    id: str
    folder: Path

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        return read_manifest(self.folder)

    @cached_property
    def results(self) -> dict[str, Any]:
        return read_json(self.folder / RESULTS)

    @cached_property
    def record(self) -> dict[str, Any]:
        return read_record(self.folder) or {}

    @cached_property
    def digest(self) -> str:
        """Hash of its artefacts (figures and logs apart)."""
        return manifest_digest(self.manifest)

    def artefact(self, key: str) -> Path:
        """Path of an artefact, its size and hash checked; ArtefactError names the file."""
        return checked_path(self.folder, self.manifest, key)


@dataclass(frozen=True)
class Identity:
    """Fingerprint (sha256 hex) of a run and the id made of it."""

    fingerprint: str
    run_id: str


def identify(
    stage: str, profile: str, values: Mapping[str, Any], upstream: Mapping[str, UpstreamRun], code_sha256: str
) -> Identity:
    """The identity of a run of `stage`: parameters, upstream runs with their artefacts, code, files of its sets.

    Left out are the parameters of `unhashed`.
    """
    made_of = {
        "stage": stage,
        "parameters": {name: value for name, value in values.items() if name not in unhashed(get_stage(stage))},
        "upstream": {name: [run.id, run.digest] for name, run in upstream.items()},
        "code": code_sha256,
    }
    if files := set_files(values):
        made_of["files"] = files
    fingerprint = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode("utf-8")).hexdigest()
    return Identity(fingerprint, f"{profile}-{stage}-{fingerprint[:8]}")


def unhashed(stage: Stage) -> set[str]:
    """Parameters that are no part of a run's identity: where runs are kept (runs_dir), how an upstream run was asked
    for (by id or as "latest"), and the manner in which the stage works."""
    return {"runs_dir", *stage.manner, *(run_parameter(name) for name in stage.needs)}


def ancestors(record: Mapping[str, Any], runs_dir: Path) -> dict[str, str]:
    """Stage -> run id of everything a run was made from, by the `upstream` entries of the records.

    The walk ends where a record is gone: what lies above it is unknown then.
    """
    found = {stage: entry["run_id"] for stage, entry in record["upstream"].items()}
    for run_id in list(found.values()):
        above = read_record(runs_dir / run_id)
        found = {**(ancestors(above, runs_dir) if above else {}), **found}
    return found


@dataclass(frozen=True)
class Source:
    """A run seen as one that others are made from.

    ancestors: stage -> run id of what it was (or will be) made from itself. pending: this chain has yet to run
    it; its id, or an ancestor's, is None while that depends on runs before it.
    """

    run_id: str | None
    ancestors: Mapping[str, str | None]
    pending: bool = False

    def lineage(self, stage: str) -> dict[str, str | None]:
        """Stage -> run id, of itself and its ancestors; `stage` is its own."""
        return {**self.ancestors, stage: self.run_id}


def needed(stage: Stage, values: Mapping[str, Any]) -> list[str]:
    """The stages that a run reads from: what its stage needs, but for what it can do without where the parameter says
    "none"."""
    return [name for name in stage.needs if name not in stage.spares or values[run_parameter(name)] != NONE]


def choose_upstream(
    stage: Stage,
    values: Mapping[str, Any],
    profile: str,
    runs_dir: Path,
    chain: Mapping[str, Source] | None = None,
) -> dict[str, Source]:
    """The runs that `stage` reads, one for each of its needs (see `needed`), which all belong together.

    1. A run named by its id in `<upstream>_run` is taken.
    2. "latest" is settled from the last needed stage to the first. Where a run chosen so far was itself made
       from a run of the stage in question, that ancestor is taken: the newest training decides which
       inference the diagnostics read. Else it is the run that this `chain` (stage -> Source) holds, else the
       newest ok run of the profile that was made from the runs named by id (the newest, if none was).
    3. UpstreamError when a chosen run was made from another run than the chosen one of that stage; it names
       both ids and the parameter to set. So it does when a run is missing or not ok, with the notebook that
       makes it and the command.
    """
    chosen: dict[str, Source] = {}
    for upstream in needed(stage, values):
        if (wanted := values[run_parameter(upstream)]) != LATEST:
            chosen[upstream] = _named(stage, upstream, wanted, profile, runs_dir)
    named = {upstream: source.run_id for upstream, source in chosen.items()}
    chain = chain or {}
    for upstream in sorted(needed(stage, values), key=lambda name: get_stage(name).number, reverse=True):
        if upstream in chosen:
            continue
        made_from = next((s.ancestors[upstream] for s in chosen.values() if upstream in s.ancestors), None)
        if upstream in chain and made_from in (None, chain[upstream].run_id):
            chosen[upstream] = chain[upstream]
        elif made_from:
            chosen[upstream] = _named(stage, upstream, made_from, profile, runs_dir)
        else:
            chosen[upstream] = _newest_fitting(stage, upstream, named, profile, runs_dir)
    _refuse_mixed(stage, chosen)
    return chosen


def upstream_runs(stage: Stage, sources: Mapping[str, Source], runs_dir: Path) -> dict[str, UpstreamRun]:
    """The chosen runs that are there already, in the order of the stage's needs."""
    ids = {name: sources[name].run_id for name in stage.needs if name in sources and not sources[name].pending}
    return {name: UpstreamRun(name, run_id, runs_dir / run_id) for name, run_id in ids.items() if run_id}


def finished_run(stage: str | tuple[str, ...], run_id: str, runs_dir: Path) -> UpstreamRun:
    """A finished run of `stage` (or of one of several), whichever profile it is of; UpstreamError when there is none
    of that id."""
    stages = (stage,) if isinstance(stage, str) else stage
    record = read_record(runs_dir / run_id)
    if record is None or record["stage"] not in stages or record["state"] != OK:
        found = "there is none" if record is None else f"it is a {record['stage']} run in state {record['state']!r}"
        wanted = " or ".join(stages)
        raise UpstreamError(f"{run_id!r} must be a finished {wanted} run in {show_path(runs_dir)}: {found}")
    return UpstreamRun(record["stage"], run_id, runs_dir / run_id)


def _newest_fitting(
    stage: Stage, upstream: str, named: Mapping[str, str | None], profile: str, runs_dir: Path
) -> Source:
    wanted = (upstream, profile, OK)
    records = [r for r in all_records(runs_dir) if (r["stage"], r["profile"], r["state"]) == wanted]
    if not records:
        raise UpstreamError(
            f"{stage.name} needs a finished {upstream} run of profile {profile!r} in "
            f"{show_path(runs_dir)}, and there is none; {_way_out(upstream, profile)}"
        )
    sources = [Source(record["run_id"], ancestors(record, runs_dir)) for record in reversed(records)]
    fitting = (s for s in sources if all(s.ancestors.get(name, run) == run for name, run in named.items()))
    return next(fitting, sources[0])  # none fits: the newest, which is then refused by name


def _named(stage: Stage, upstream: str, run_id: str, profile: str, runs_dir: Path) -> Source:
    record = read_record(runs_dir / run_id)
    if record is None:
        raise UpstreamError(
            f"{stage.name} needs the run {run_id!r} ({run_parameter(upstream)}), which is not in "
            f"{show_path(runs_dir)}; {_way_out(upstream, profile)}"
        )
    if record["stage"] != upstream or record["state"] != OK:
        raise UpstreamError(
            f"{run_id} is a {record['stage']} run in state {record['state']!r}; {stage.name} "
            f"needs an ok {upstream} run; {_way_out(upstream, profile)}"
        )
    return Source(run_id, ancestors(record, runs_dir))


def _refuse_mixed(stage: Stage, chosen: Mapping[str, Source]) -> None:
    for below, source in chosen.items():
        for above, other in chosen.items():
            made_from = source.ancestors.get(above)
            if None in (made_from, other.run_id) or made_from == other.run_id:
                continue
            raise UpstreamError(
                f"{stage.name} cannot mix runs: {source.run_id or f'the {below} run of this chain'} was made "
                f"from {made_from}, not from {other.run_id}; set {run_parameter(above)} to {made_from}, or "
                f"{run_parameter(below)} to a run made from {other.run_id}"
            )


def _way_out(upstream: str, profile: str) -> str:
    notebook = get_stage(upstream).notebook
    return f"run {notebook} first: python -m eagle3lab run {profile} --only {upstream}"
