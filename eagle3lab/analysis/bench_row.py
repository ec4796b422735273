"""A measured setting: speed, accept length, cost of a cycle, and the accept length at which it would break even."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from eagle3lab.draft.chain import chain_draft_tokens

BASELINE = 0  # num_steps of plain decoding
PERCENTILES = (0.5, 0.95, 0.99)
NOISY_ROUNDS = 0.25  # share by which a setting's best round may beat its worst, both over the baseline's same round


@dataclass(frozen=True)
class Condition:
    """What a setting shares with the baseline it is compared with. cuda_graphs None: the engine has none to switch."""

    concurrency: int = 1
    temperature: float = 0.0
    cuda_graphs: bool | None = None

    def __str__(self) -> str:
        streams = "one stream" if self.concurrency == 1 else f"{self.concurrency} streams"
        warm = f", temperature {self.temperature:g}" if self.temperature else ""
        graphs = "" if self.cuda_graphs is None else f", CUDA graphs {'on' if self.cuda_graphs else 'off'}"
        return f"{streams}{warm}{graphs}"


ONE_STREAM = Condition()


@dataclass(frozen=True)
class BenchRow:
    """One setting over all prompts.

    tok_s         median over the rounds of (tokens of all prompts and streams / seconds); low, high: slowest and
                  fastest round.
    accept_length tokens per verification over all rounds (None for the baseline).
    cycle_ms      milliseconds of one verification cycle = concurrency * accept_length / tok_s; of a plain step.
    break_even    accept length above which this setting is faster than the baseline of the same run.
    speedup       tok_s / the baseline's; low, high: lowest and highest of the rounds' own ratios.
    differing     answers that are not the baseline's, over all rounds (0 = lossless). None: sampled answers, which are
                  compared by their distribution (`lossless.py`).
    temperature, cuda_graphs   as in `Condition`.
    errors        requests without a usable answer, over all rounds.
    request_s, first_s   50th, 95th and 99th percentile of the seconds of a request, and of those up to its first token;
                  None: not observed. request_tok_s: median over the requests of tokens / seconds.
    """

    setting: str
    num_steps: int
    topk: int
    num_draft_tokens: int
    concurrency: int
    tok_s: float
    tok_s_low: float
    tok_s_high: float
    accept_length: float | None
    cycle_ms: float
    break_even: float | None
    speedup: float
    speedup_low: float
    speedup_high: float
    prompts: int
    rounds: int
    tokens: int
    differing: int | None
    temperature: float = 0.0
    cuda_graphs: bool | None = None
    errors: int = 0
    request_s: tuple[float, ...] | None = None
    first_s: tuple[float, ...] | None = None
    request_tok_s: float | None = None

    @property
    def condition(self) -> Condition:
        return Condition(self.concurrency, self.temperature, self.cuda_graphs)

    @property
    def gain(self) -> str:
        """The speed-up with the range of its rounds."""
        return f"x{self.speedup:.2f} [{self.speedup_low:.2f}, {self.speedup_high:.2f}]"

    @classmethod
    def read(cls, values: dict) -> "BenchRow":
        """From JSON, where its tuples are lists."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def break_even(accept_length: float, spec_tok_s: float, base_tok_s: float) -> float:
    """Accept length at which speculation is as fast as plain decoding: cost of a cycle (accept_length / spec_tok_s
    seconds) / cost of a plain step (1 / base_tok_s)."""
    if min(accept_length, spec_tok_s, base_tok_s) <= 0:
        raise ValueError(f"not positive: {accept_length=}, {spec_tok_s=} or {base_tok_s=}")
    return accept_length * base_tok_s / spec_tok_s


def not_measurable(rows: Sequence[BenchRow], condition: Condition = ONE_STREAM) -> str:
    """Why the speeds measured in a condition carry no break-even; "" where they do.

    A break-even below 1 would be a cycle cheaper than a plain step, which it contains. Rounds whose speed-ups differ by
    more than NOISY_ROUNDS say that the machine was not quiet. What slows both sides of a round alike does not: setting
    and baseline take turns, and a break-even is a ratio of the two.
    """
    here = [row for row in rows if row.condition == condition]
    settings = [row for row in here if row.accept_length is not None]
    baseline = next((row for row in here if row.accept_length is None), None)
    if not settings:
        return ""
    worst = max(settings, key=lambda row: row.speedup_high / row.speedup_low)
    noisy = worst.speedup_high > (1 + NOISY_ROUNDS) * worst.speedup_low
    least = min(row.break_even for row in settings)
    impossible = least < 1
    if not noisy and not impossible:
        return ""
    found = [f"{worst.setting} x{worst.speedup_low:.2f} to x{worst.speedup_high:.2f} in its rounds"] if noisy else []
    if baseline is not None:
        found.append(f"baseline rounds {baseline.tok_s_low:.1f} to {baseline.tok_s_high:.1f} tok/s")
    found.append(f"break-even {least:.2f}" + (" (impossible below 1)" if impossible else ""))
    return f"{', '.join(found)}: the machine was {'busy' if noisy else 'not quiet, or the rounds were too few'}"


def cycle_ms(accept_length: float, tok_s: float) -> float:
    """Milliseconds of a verification cycle (accept_length 1: of a plain decoding step)."""
    return 1000.0 * accept_length / tok_s


def percentiles(values: Sequence[float | None]) -> tuple[float, ...] | None:
    """PERCENTILES of the values; None when there are none, or one is not known."""
    if not values or any(value is None for value in values):
        return None
    return tuple(float(value) for value in np.quantile(values, PERCENTILES))


def setting_name(num_steps: int, topk: int, num_draft_tokens: int) -> str:
    """What a chain or a tree is called in tables and figures."""
    return f"chain {num_steps}" if topk == 1 else f"tree {num_steps} x {topk}, {num_draft_tokens} tokens"


def make_row(
    num_steps: int,
    speeds: Sequence[float],
    base_speeds: Sequence[float],
    tau: float | None,
    topk: int = 1,
    num_draft_tokens: int | None = None,
    condition: Condition = ONE_STREAM,
    **counted,
) -> BenchRow:
    """The row of one setting from the speeds of its rounds (tokens per second, all streams together) and of the
    baseline's same rounds. tau: its accept length. num_draft_tokens None: a chain. num_steps 0: the baseline itself.
    counted: the other fields of the row (prompts, tokens, differing ...)."""
    plain = num_steps == BASELINE
    draft_tokens = chain_draft_tokens(num_steps) if num_draft_tokens is None else num_draft_tokens
    tok_s, base_tok_s = median(speeds), median(base_speeds)
    ratios = [s / b for s, b in zip(speeds, base_speeds, strict=True)]
    return BenchRow(
        setting="baseline" if plain else setting_name(num_steps, topk, draft_tokens),
        num_steps=num_steps,
        topk=0 if plain else topk,
        num_draft_tokens=0 if plain else draft_tokens,
        concurrency=condition.concurrency,
        tok_s=tok_s,
        tok_s_low=min(speeds),
        tok_s_high=max(speeds),
        accept_length=tau,
        cycle_ms=condition.concurrency * cycle_ms(tau or 1.0, tok_s),
        break_even=None if tau is None else break_even(tau, tok_s, base_tok_s),
        speedup=tok_s / base_tok_s,
        speedup_low=min(ratios),
        speedup_high=max(ratios),
        rounds=len(speeds),
        temperature=condition.temperature,
        cuda_graphs=condition.cuda_graphs,
        **counted,
    )
