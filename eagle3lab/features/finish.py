"""Making a store readable when all its writers are done, and taking damaged shards out of it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from eagle3lab.features.index import Index
from eagle3lab.features.layout import (
    FORMAT,
    IDENTITY,
    STORE,
    FeatureStoreError,
    check_fingerprint,
    identity,
    manifest_path,
    quarantine_folder,
    read_index,
    read_parts,
    shard_is_whole,
    sizes,
    told_when_full,
    write_index,
)
from eagle3lab.workbench.files import write_json_atomic


def finish_store(folder: str | Path, expected_ids: Iterable[str] | None = None) -> dict:
    """Joins the parts of a folder into a store that can be read; returns store.json's content.

    Without `expected_ids` every part has to be closed. With them, all of these rows have to be there, and the shards of
    parts that were cut off are taken as they are. A row that several parts hold (captured again after a crash) counts
    once, that of the first part by name; `duplicates` says how many others there are.

    Raises FeatureStoreError for no part, an unclosed part, parts of different things, damaged shards, missing rows.
    """
    folder, expected = Path(folder), None if expected_ids is None else list(expected_ids)
    parts = read_parts(folder)
    if not parts:
        raise FeatureStoreError(f"{folder} holds no part of a feature store; run the extraction")
    first = next(iter(parts.values()))
    for manifest in parts.values():
        check_fingerprint(folder, identity(manifest), identity(first))
    unfinished = [part for part, manifest in parts.items() if not manifest["complete"]]
    if unfinished and expected is None:
        raise FeatureStoreError(
            f"{folder}: part {', '.join(unfinished)} was not closed; let its writer end, or pass expected_ids to take "
            "the rows it holds"
        )
    shards = [entry for manifest in parts.values() for entry in manifest["shards"]]
    try:
        index, duplicates = checked_index(folder, shards)
    except DamagedShardError:
        if expected is None:
            raise
        return finish_store(
            folder, expected
        )  # without the shards that were moved aside: other parts may have their rows
    missing = [row_id for row_id in expected or () if row_id not in index]
    if missing:
        raise FeatureStoreError(
            f"{folder} lacks {len(missing)} of the expected rows ({', '.join(map(repr, missing[:3]))} ...); run the "
            "extraction again, it captures only these"
        )
    store = {
        "format": FORMAT,
        **{name: first[name] for name in IDENTITY},
        "fingerprint": first["fingerprint"],
        "complete": True,
        **sizes(shards),
        "rows": len(index),
        "tokens": index.total("n"),
        "teacher_slots": index.total("n_last"),
        "duplicates": duplicates,
        "shards": shards,
    }
    with told_when_full(folder):
        write_json_atomic(folder / STORE, store)
    return store


def checked_index(folder: Path, shards: list[dict]) -> tuple[Index, int]:
    """The rows of the listed shards, part after part, and how many were passed over because an earlier part has them.

    Damaged shards are moved aside, and a DamagedShardError names them and their rows.
    """
    by_part: dict[str, list[dict]] = {}
    for entry in shards:
        by_part.setdefault(entry["part"], []).append(entry)
    joined, duplicates = Index(), 0
    for part, own in by_part.items():
        index, lacking = read_index(folder, part, own)
        damage = {entry["name"]: "missing, or of another size" for entry in own if not shard_is_whole(folder, entry)}
        damage |= dict.fromkeys(lacking, "the index does not hold all its rows")
        if damage:
            raise quarantine(folder, part, damage)
        duplicates += sum(not joined.add(row) for row in index.rows())
    return joined, duplicates


def quarantine(folder: Path, part: str, damage: dict[str, str]) -> "DamagedShardError":
    """Takes shards (name -> what is wrong) out of a part and returns the error to raise.

    Their files are moved to `quarantine_folder`, the part no longer lists them, and the store is unfinished until their
    rows were captured again. Several readers may do this at once: each leaves the same files behind.
    """
    manifest = read_parts(folder)[part]
    index, _ = read_index(folder, part, manifest["shards"])
    lost = [entry for entry in manifest["shards"] if entry["name"] in damage]
    (folder / STORE).unlink(missing_ok=True)
    manifest["shards"] = [entry for entry in manifest["shards"] if entry["name"] not in damage]
    manifest |= {"complete": False, **sizes(manifest["shards"])}
    write_json_atomic(manifest_path(folder, part), manifest)
    write_index(folder, part, (row for row in index.rows() if row["shard"] not in damage))
    aside = quarantine_folder(folder)
    aside.mkdir(exist_ok=True)
    for name in damage:
        with suppress(FileNotFoundError):  # it was missing, or another reader was quicker
            os.replace(folder / name, aside / name)
    names = "; ".join(f"{name} ({why})" for name, why in damage.items())
    return DamagedShardError(
        f"{folder} is damaged: {names}. Moved to {aside}; run the extraction again, it captures only the "
        f"{sum(entry['rows'] for entry in lost)} rows that were in there",
        [row["id"] for row in index.rows() if row["shard"] in damage],
    )


class DamagedShardError(FeatureStoreError):
    """Shards were moved aside because they are damaged. `row_ids` are their rows, as far as the index knows them."""

    def __init__(self, message: str, row_ids: list[str]):
        super().__init__(message)
        self.row_ids = row_ids
