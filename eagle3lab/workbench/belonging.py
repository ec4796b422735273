"""Which finished runs of a profile belong together: the newest chain, and what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .artefacts import manifest_digest, read_manifest
from .lineage import ancestors
from .records import MANIFEST, OK, read_record
from .stages import STAGES

Record = dict[str, Any]
# The first of these that has a run tells which chain is the newest one: a drafter, a measurement of another profile's
# drafter, or how far a first chain has come.
_DECIDES = ("training", "scaling", "serving", "diagnostics", "extraction", "inference", "data_prep")


def foreign_drafter(record: Mapping[str, Any]) -> str | None:
    """The folder of somebody's drafter that a run looked at; None where it is the one of its chain."""
    return record["parameters"].get("draft", {}).get("value")


def newest_chain(records: list[Record], runs_dir: Path) -> dict[str, Record]:
    """Stage -> record of finished runs that were made from one another, in the order of the stages.

    records: of one profile, oldest first. The newest training decides: it stands with what it was made from (runs of
    other profiles too), and with the newest run of each later stage that was made from the same.
    """
    own = [record for record in records if record["state"] == OK and not foreign_drafter(record)]
    latest = {record["stage"]: record for record in own}
    deciding = next((latest[stage] for stage in _DECIDES if stage in latest), None)
    lineage = {**ancestors(deciding, runs_dir), deciding["stage"]: deciding["run_id"]} if deciding else {}
    chain = {}
    for stage in STAGES:
        if stage in lineage:
            found = read_record(runs_dir / lineage[stage])
        else:
            of_stage = [record for record in reversed(own) if record["stage"] == stage]
            found = next((record for record in of_stage if not _differing(record, lineage, runs_dir)), None)
        if found and found["state"] == OK:
            chain[stage] = found
            lineage[stage] = found["run_id"]
    return chain


def beside(records: list[Record], chain: Mapping[str, Record], runs_dir: Path) -> list[tuple[Record, str]]:
    """Finished runs of a profile outside its newest chain, each with what it belongs to.

    Of each stage the newest run with each foreign drafter, and the newest other one, if it is newer than the chain's.
    """
    lineage = {stage: record["run_id"] for stage, record in chain.items()}
    found: dict[tuple[str, str | None], Record] = {}
    for stage in STAGES:
        newer = True
        for record in reversed([each for each in records if (each["stage"], each["state"]) == (stage, OK)]):
            drafter = foreign_drafter(record)
            if record["run_id"] == lineage.get(stage):
                newer = False
            elif drafter or newer:
                found.setdefault((stage, drafter), record)
    return [(record, _belongs_to(record, lineage, runs_dir)) for record in found.values()]


def _belongs_to(record: Mapping[str, Any], lineage: Mapping[str, str], runs_dir: Path) -> str:
    if drafter := foreign_drafter(record):
        return f"drafter {drafter}"
    other = _differing(record, lineage, runs_dir)
    nearest = other.get("training") or next(reversed(other.values()), None)
    if nearest in lineage.values():
        return f"made from {nearest} before that was made anew"
    return f"made from {nearest}" if nearest else "newer than the chain above"


def _differing(record: Mapping[str, Any], lineage: Mapping[str, str], runs_dir: Path) -> dict[str, str]:
    """Stage -> run id of what a run was made from and `lineage` has another run of, or the same made anew since."""
    made_from = ancestors(record, runs_dir)
    return {
        stage: made_from[stage]
        for stage in STAGES
        if stage in made_from
        and (lineage.get(stage, made_from[stage]) != made_from[stage] or _made_anew(stage, record, runs_dir))
    }


def _made_anew(stage: str, record: Mapping[str, Any], runs_dir: Path) -> bool:
    """Whether a run that another was made from has other artefacts by now (`--force` keeps its id)."""
    entry = record["upstream"].get(stage, {})
    folder = runs_dir / entry.get("run_id", "")
    if "manifest_sha256" not in entry or not (folder / MANIFEST).exists():
        return False
    return manifest_digest(read_manifest(folder)) != entry["manifest_sha256"]
