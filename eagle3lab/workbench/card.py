"""The records behind a drafter's model card, and the folder with it that a model hub takes.

The card is written from finished runs when it is asked for: the training run, what that was made from, and what was
measured with its drafter since. No run folder is touched, so a card can be written anew whenever more is known.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from .artefacts import gone_files
from .belonging import foreign_drafter
from .card_text import CardFacts, card_text
from .files import atomic_folder, read_json, write_json_atomic
from .lineage import UpstreamError, UpstreamRun, ancestors, finished_run
from .records import OK, all_records, newest, read_record
from .root import from_root, show_path

CARD, TRAINING = "README.md", "training.json"
_MEASURE = ("diagnostics", "serving", "scaling")  # stages that look at a drafter


@dataclass(frozen=True)
class Given:
    """What no record says, for the front matter: the drafter's license as a hub names it, and the hub name of a target
    that was a local folder. ValueError unless "other", and no other license, comes with its name."""

    license: str | None = None
    base_model: str | None = None
    license_name: str | None = None

    def __post_init__(self) -> None:
        if (self.license == "other") != bool(self.license_name):
            raise ValueError(
                "a license that a hub does not list is given as --license other --license-name NAME (and its text as "
                "a file LICENSE beside the card); one that it lists needs no name"
            )


def training_run(named: str, runs_dir: str | Path = "runs") -> UpstreamRun:
    """The finished training run of that id, or the newest one of the profile of that name.

    UpstreamError when there is none, with those that there are.
    """
    folder = from_root(runs_dir)
    if read_record(folder / named) is None:
        trained = [record for record in all_records(folder) if (record["stage"], record["state"]) == ("training", OK)]
        record = newest(trained, "training", named)
        if record is None:
            there = [f"{record['profile']} ({record['run_id']})" for record in trained]
            raise UpstreamError(
                f"{named!r} must be a profile with a finished training run in {show_path(folder)}, or such a run's id; "
                f"there are: {', '.join(there) or 'none'}"
            )
        named = record["run_id"]
    return finished_run("training", named, folder)


def card(run: UpstreamRun, given: Given = Given()) -> str:
    """The model card of a training run's drafter, Markdown with a hub's front matter.

    ArtefactError when the drafter's files are no longer those that the run wrote.
    """
    return card_text(_facts(run, given))


def _facts(run: UpstreamRun, given: Given) -> CardFacts:
    draft = run.artefact("draft")
    runs_dir, runs = run.folder.parent, {"training": run}
    for stage, run_id in ancestors(run.record, runs_dir).items():
        if read_record(runs_dir / run_id) is not None and not gone_files(runs_dir / run_id):
            runs[stage] = UpstreamRun(stage, run_id, runs_dir / run_id)
    records = [record for record in all_records(runs_dir) if record["state"] == OK and _of(record, run.id)]
    for record in records:  # oldest first: the newest of a stage stays
        if not gone_files(runs_dir / record["run_id"]):
            runs[record["stage"]] = UpstreamRun(record["stage"], record["run_id"], runs_dir / record["run_id"])
    target = run.record["parameters"]["target"]["value"]
    base_model = given.base_model or _hub_name(target)
    return CardFacts(
        target=target,
        license=given.license,
        license_name=given.license_name,
        target_license=_target_license(from_root(target), base_model),
        base_model=base_model,
        config=read_json(draft / "config.json"),
        training=read_json(draft / TRAINING),
        weights_sha256=run.manifest["draft"]["files"]["model.safetensors"]["sha256"],
        store=_store(runs),
        accept=read_json(runs["diagnostics"].artefact("checks")).get("accept", []) if "diagnostics" in runs else [],
        records={stage: each.record for stage, each in runs.items()},
        results={stage: each.results for stage, each in runs.items()},
    )


def write_hub_folder(run: UpstreamRun, folder: str | Path, given: Given = Given()) -> Path:
    """A new folder with the drafter's files and its card as README.md, whole or not at all; returns its path.

    Its training.json names the target as the card does, by its hub name or its folder's, and by its fingerprint: where
    it lay on this machine is nobody else's business.
    UpstreamError when `folder` exists: what lies there is somebody's.
    """
    folder = Path(folder).expanduser()
    if folder.exists():
        raise UpstreamError(f"{folder} exists: name a new folder, or remove it first")
    facts, draft = _facts(run, given), run.artefact("draft")
    with atomic_folder(folder) as part:
        for name in run.manifest["draft"]["files"]:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(draft / name, part / name)
        named = facts.base_model or PurePath(facts.target).name
        told = {"target": named, "target_fingerprint": facts.store.get("fingerprint", {}).get("target")}
        write_json_atomic(part / TRAINING, {**facts.training, **told})
        (part / CARD).write_text(card_text(facts), encoding="utf-8")
    return folder


def _of(record: Mapping[str, Any], training_id: str) -> bool:
    """Is it a run that measured this training's drafter (a diagnosis of somebody else's folder is not)."""
    made_from = record["upstream"].get("training", {}).get("run_id") == training_id
    return record["stage"] in _MEASURE and made_from and not foreign_drafter(record)


def _store(runs: Mapping[str, UpstreamRun]) -> dict[str, Any]:
    """What the features say of themselves, stored ones or those captured while training; empty where they are gone."""
    folder = runs["extraction"].folder / "features" if "extraction" in runs else None
    found = [folder / name for name in ("store.json", "live.json") if (folder / name).exists()] if folder else []
    return read_json(found[0]) if found else {}


def _hub_name(target: str) -> str | None:
    """The target's name on a hub; None for a local folder, whose path is nobody else's business."""
    local = target.startswith(("/", ".", "~")) or target.count("/") != 1 or from_root(target).exists()
    return None if local else target


def _target_license(folder: Path, base_model: str | None) -> str:
    """Where the target's terms stand, as far as its folder or its name tells: hints, and no guess. "": nowhere."""
    hints = []
    if folder.is_dir():
        if named := _front_matter(folder / CARD).get("license"):
            hints.append(f"{CARD} of the target names {named}")
        texts = sorted(path.name for path in folder.iterdir() if path.name.lower().startswith(("license", "licence")))
        hints += [f"its folder holds {name}" for name in texts]
    if base_model:
        hints.append(f"see the model card of {base_model}")
    return "; ".join(hints)


def _front_matter(path: Path) -> dict[str, Any]:
    """The fields at the head of a model card; none where there is no card, or one that cannot be read."""
    parts = path.read_text(encoding="utf-8", errors="replace").split("---", 2) if path.exists() else []
    try:
        fields = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except yaml.YAMLError:
        fields = None
    return fields if isinstance(fields, dict) else {}
