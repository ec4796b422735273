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
from .records import OK, RESULTS, all_records, newest, read_record
from .root import show_path
from .stages import Stage, get_stage

LATEST = "latest"


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
    """The identity of a run of `stage`: parameters, upstream runs with their artefacts, and code.

    Left out: where runs are kept (runs_dir) and how an upstream run was asked for (by id or as "latest").
    """
    unhashed = {"runs_dir", *(run_parameter(name) for name in get_stage(stage).needs)}
    made_of = {
        "stage": stage,
        "parameters": {name: value for name, value in values.items() if name not in unhashed},
        "upstream": {name: [run.id, run.digest] for name, run in upstream.items()},
        "code": code_sha256,
    }
    fingerprint = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode("utf-8")).hexdigest()
    return Identity(fingerprint, f"{profile}-{stage}-{fingerprint[:8]}")


def find_upstream(stage: Stage, upstream: str, wanted: str, profile: str, runs_dir: Path) -> UpstreamRun:
    """The run of `upstream` that `stage` reads: `wanted` is a run id, or "latest" for the newest ok one of
    the profile.

    UpstreamError names the notebook that makes it and the command, when there is no such finished run.
    """
    maker = get_stage(upstream)
    way_out = f"run {maker.notebook} first: python -m eagle3lab run {profile} --only {upstream}"
    if wanted == LATEST:
        record = newest(all_records(runs_dir), upstream, profile, OK)
        if record is None:
            raise UpstreamError(
                f"{stage.name} needs a finished {upstream} run of profile {profile!r} in "
                f"{show_path(runs_dir)}, and there is none; {way_out}"
            )
    else:
        record = read_record(runs_dir / wanted)
        if record is None:
            raise UpstreamError(
                f"{stage.name} needs the run {wanted!r} ({run_parameter(upstream)}), which is not in "
                f"{show_path(runs_dir)}; {way_out}"
            )
        if record["stage"] != upstream or record["state"] != OK:
            raise UpstreamError(
                f"{wanted} is a {record['stage']} run in state {record['state']!r}; {stage.name} "
                f"needs an ok {upstream} run; {way_out}"
            )
    return UpstreamRun(upstream, record["run_id"], runs_dir / record["run_id"])
