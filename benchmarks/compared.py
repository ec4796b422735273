"""Training recipes compared seed by seed: the table that `benchmarks.recipes` prints."""

import statistics
from dataclasses import dataclass


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error (nan for one value)."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.mean(values), error


@dataclass(frozen=True)
class Compared:
    """One arm over its seeds, against `base`: the SpecForge-like recipe at its best learning rate.

    ratio: accepted drafts a cycle (accept length minus one) over theirs, the mean over the seeds that both have;
    error: its standard error, nan for one seed; rate: tokens trained a second, where it was told.
    """

    arm: str
    lengths: dict[int, float]
    base: str
    ratio: float
    error: float
    rate: float | None

    @property
    def accept_length(self) -> float:
        """Mean over the seeds."""
        return statistics.mean(self.lengths.values())


def compare(results: list[dict], num_steps: int) -> list[Compared]:
    """The arms of the lines of results.jsonl, longest accept length first, each against the SpecForge-like recipe.

    Its learning rate is the best one of those that ran with the most seeds. A study without it is held against plain
    EAGLE-3 ("no norms"), without that against "ours"; without all of them, ratios are nan.
    """
    lengths: dict[str, dict[int, float]] = {}
    for row in results:
        if "accept_length" in row:
            lengths.setdefault(row["arm"], {})[row["seed"]] = row["accept_length"][str(num_steps)]
    theirs = {name: by for name, by in lengths.items() if name.startswith("specforge")}
    for name in ("no norms", "ours"):
        theirs = theirs or ({name: lengths[name]} if name in lengths else {})
    base = max(theirs, key=lambda name: (len(theirs[name]), statistics.mean(theirs[name].values())), default="")
    compared = []
    for name, by in lengths.items():
        pairs = [(by[seed] - 1) / (lengths[base][seed] - 1) for seed in by if base and lengths[base].get(seed, 1) > 1]
        ratio, error = mean_and_error(pairs) if pairs else (float("nan"), float("nan"))
        rates = [row["tokens_per_second"] for row in results if row["arm"] == name and row.get("tokens_per_second")]
        compared.append(Compared(name, by, base, ratio, error, statistics.median(rates) if rates else None))
    return sorted(compared, key=lambda one: -one.accept_length)


def report(results: list[dict], num_steps: int) -> str:
    """The comparison as text, one line an arm, then what diverged."""
    compared = compare(results, num_steps)
    base = compared[0].base if compared else ""
    lines = [f"chain of {num_steps}, simulated, temperature 0; compared with: {base}"]
    for one in compared:
        by_seed = ", ".join(f"{one.lengths[seed]:.3f}" for seed in sorted(one.lengths))
        rate = f"{one.rate:6.0f} tokens/s" if one.rate else ""
        lines.append(
            f"{one.arm:25s} accept length {one.accept_length:.3f} ({by_seed})   "
            f"accepted drafts x{one.ratio:.2f} +- {one.error:.2f}   {rate}"
        )
    return "\n".join(lines + [f"{row['arm']}, seed {row['seed']}: diverged" for row in results if "diverged" in row])
