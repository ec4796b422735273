"""Held-out prompts of several sets, taken in turn."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from eagle3lab.data.prepare import read_prompts
from eagle3lab.workbench.files import read_jsonl


def in_turn(by_set: Mapping[str, list], limit: int | None = None) -> list:
    """One row of each set after the other, so that a limit leaves no set out while another has many."""
    longest = max((len(rows) for rows in by_set.values()), default=0)
    mixed = [rows[i] for i in range(longest) for rows in by_set.values() if i < len(rows)]
    return mixed[:limit]


def mixed_prompts(prepared: str | Path, limit: int | None = None, only: Collection[str] = ()) -> list[dict[str, Any]]:
    """Held-out prompt rows of a prepared folder (sets, then benchmark suites), taken in turn, at most `limit`.

    only: names of sets and suites to take them from; none: all. ValueError for a name that has none there.
    """
    folder = Path(prepared)
    rows = [row for one in sorted(folder.glob("[!.]*/")) for row in read_prompts(one, "heldout")]
    by_set: dict[str, list] = {}
    for row in rows + read_jsonl(folder / "suites.jsonl"):
        by_set.setdefault(row["set"], []).append(row)
    if missing := sorted(set(only) - by_set.keys()):
        raise ValueError(
            f"{folder} has no held-out prompts of {', '.join(missing)}, only of {', '.join(by_set)}: "
            "name the suite or set in notebook 01, so that none of its prompts is trained on"
        )
    return in_turn({name: found for name, found in by_set.items() if not only or name in only}, limit)
