"""Finding damage that only reading finds: every row of a store against its checksum.

Sizes of shards are checked wherever a store is opened; bytes that changed within a shard show when its rows are read.
"""

from pathlib import Path

from eagle3lab.features.codec import Codec, teacher_tensors, token_tensors
from eagle3lab.features.finish import DamagedShardError, quarantine
from eagle3lab.features.layout import read_index, read_parts, shard_is_whole
from eagle3lab.features.shardfile import ShardFile, checksum


def set_damaged_aside(folder: str | Path) -> list[DamagedShardError]:
    """Reads all rows of a folder and moves damaged shards to quarantine, so that their rows are captured again.

    Returns what was found, an error a part, which names shards and rows; it is not raised. No other process may write.
    """
    folder, found = Path(folder), []
    for part, manifest in read_parts(folder).items():
        codec, damage = Codec.of(manifest["codec"]), {}
        index, lacking = read_index(folder, part, manifest["shards"])
        rows_of: dict[str, list[dict]] = {}
        for row in index.rows():
            rows_of.setdefault(row["shard"], []).append(row)
        for entry in manifest["shards"]:
            why = _fault(folder, entry, rows_of.get(entry["name"], []), codec)
            if entry["name"] in lacking:
                why = "the index does not hold all its rows"
            if why:
                damage[entry["name"]] = why
        if damage:
            found.append(quarantine(folder, part, damage))
    return found


def _fault(folder: Path, entry: dict, rows: list[dict], codec: Codec) -> str | None:
    """What is wrong with a shard, None for nothing."""
    if not shard_is_whole(folder, entry):
        return "missing, or of another size"
    try:
        shard = ShardFile(folder / entry["name"], entry.get("header_crc32"))
        for row in rows:
            start, last = row["offset"], row["last_offset"]
            stored = shard.read(token_tensors(codec), start, start + row["n"])
            stored |= shard.read(teacher_tensors(codec), last, last + row["n_last"])
            if checksum(stored) != row["crc32"]:
                return f"the checksum of row {row['id']!r} differs"
    except (EOFError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None
