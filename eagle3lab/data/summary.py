"""Counts and lengths of what a set's preparation kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eagle3lab.workbench.files import read_json

ORDER = "sets.json"  # of a prepared folder: the summaries of its sets, in the order they were asked for
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
