"""Counts and lengths of what a set's preparation kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from eagle3lab.workbench.files import iter_jsonl, read_json

ERRORS = "errors.jsonl"  # of a set: the rows that are not kept, each with its reason
ORDER = "sets.json"  # of a prepared folder: the summaries of its sets, in the order they were asked for
_LONGEST_DETAIL = 100  # characters
_QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9, "p99": 0.99}


class Tally:
    """Adds up the kept rows of a set. `kept` counts conversations; each is one prompt, or one or more samples."""

    def __init__(self) -> None:
        self.kept = self.references = self.loss_tokens = 0
        self.splits, self.languages, self.finish = Counter(), Counter(), Counter()
        self.prompt_lengths, self.sample_lengths = array("q"), array("q")

    def add(self, rows: list[Mapping[str, Any]], language: str) -> None:
        """Count one conversation by its rows (a prompt, or samples) and the language of its first user text."""
        self.kept += 1
        self.splits[rows[0]["split"]] += 1
        self.languages[language] += 1
        for row in rows:
            if "prompt_ids" in row:
                self.prompt_lengths.append(row["n_prompt"])
                self.references += "reference_ids" in row
                continue
            self.sample_lengths.append(len(row["input_ids"]))
            self.loss_tokens += sum(end - start for start, end in row["loss_spans"])
            self.finish[row["finish_reason"]] += 1

    def summary(self) -> dict[str, Any]:
        """{"splits", "languages", "references", "prompt_tokens", "samples", "sample_tokens", "loss_tokens",
        "finish_reasons"}; lengths as their sum and quantiles, empty where there are none."""
        return {
            "splits": dict(self.splits),
            "languages": dict(self.languages.most_common()),
            "references": self.references,
            "prompt_tokens": quantiles(self.prompt_lengths),
            "samples": len(self.sample_lengths),
            "sample_tokens": quantiles(self.sample_lengths),
            "loss_tokens": self.loss_tokens,
            "finish_reasons": dict(self.finish),
        }


def lost_rows(summaries: Iterable[Mapping[str, Any]], prepared: str | Path, shown: str) -> str | None:
    """What errors cost, with the first one of the first set that has any, where all are listed, and what to do: `4 of
    30 rows lost to errors and left out (1 more skipped by limits and filters); first: mine (rows.jsonl), line 4: not
    JSON: ...; all: runs/.../mine/errors.jsonl; ...`. None without errors.

    shown: the folder `prepared` as a reader finds it.
    """
    summaries = list(summaries)
    errors, skipped = (sum(sum(one[fate].values()) for one in summaries) for fate in ("errors", "skipped"))
    if not errors:
        return None
    broken = next(one for one in summaries if one["errors"])
    name, origin = broken["set"], broken["origin"]
    source = next(origin[kind] for kind in ("file", "folder", "package", "hub") if origin.get(kind))
    told = (row for row in iter_jsonl(Path(prepared) / name / ERRORS) if row["kind"] == "error")
    first = min(told, key=lambda row: row["row"])
    where = f"line {first['line']}" if "line" in first else f"row {first['row']} (from 0)"
    what = shorten(first["detail"], _LONGEST_DETAIL, placeholder=" ...")
    return (
        f"{errors:,} of {sum(one['input'] for one in summaries):,} rows lost to errors and left out ({skipped:,} more "
        f"skipped by limits and filters); first: {name} ({source}), {where}: {what}; all: {shown}/{name}/{ERRORS}; the "
        "rest is used; to have them too, mend the data and run data_prep with --force"
    )


class NothingKept(ValueError):
    """A set of which no row can be used: its adapter, its path or its options are not what was meant."""


def require_rows(summaries: Iterable[Mapping[str, Any]], prepared: str | Path, shown: str) -> None:
    """Raises NothingKept for the first set that keeps no row, with the most frequent reasons and one row's detail.

    shown: the folder `prepared` as a reader finds it.
    """
    for one in summaries:
        if one["prompts"] or one["tokenized"]:
            continue
        fates = Counter(one["skipped"]) + Counter(one["errors"])
        reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in fates.most_common(3)) or "it has none"
        told = next((row["detail"] for row in iter_jsonl(Path(prepared) / one["set"] / ERRORS) if row["detail"]), "")
        detail = f" ({shorten(told, _LONGEST_DETAIL, placeholder=' ...')})" if told else ""
        raise NothingKept(
            f"set {one['set']!r} keeps none of its {one['input']:,} rows: {reasons}{detail}; each row's reason: "
            f"{shown}/{one['set']}/{ERRORS}. Does its adapter fit its columns, and are its limits meant so? "
            "Without the set: leave it out of sets"
        )


def quantiles(lengths: Iterable[int]) -> dict[str, float]:
    """{"sum", "min", "p10", "median", "p90", "p99", "max"} of lengths (linear between neighbours); empty for none."""
    ordered = sorted(lengths)
    if not ordered:
        return {}

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return round(ordered[low] + (place - low) * (ordered[high] - ordered[low]), 1)

    found = {name: at(value) for name, value in _QUANTILES.items()}
    return {"sum": sum(ordered), "min": ordered[0]} | found | {"max": ordered[-1]}


def set_summaries(prepared: str | Path) -> list[dict[str, Any]]:
    """The summaries of a prepared folder's sets, in the order in which they were asked for."""
    return read_json(Path(prepared) / ORDER)
