"""Tables for notebooks: plain DataFrames with readable numbers, and the units they are written in."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
from pandas.io.formats.style import Styler

from eagle3lab.analysis.bench_row import not_measurable
from eagle3lab.analysis.breakeven import NOT_MEASURABLE


def human_bytes(n: float) -> str:
    """Bytes with a binary unit: 57344 -> '56.0 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:,.1f} TiB"


def human_hours(hours: float) -> str:
    """Hours as the two units a person would say: 0.5 -> '30 min', 55.2 -> '55.2 h', 0.01 -> '36 s'."""
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"


def human_count(value: float) -> str:
    """Three digits and a unit: 12000 -> '12K', 3412345 -> '3.41M', 870 -> '870'."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:,.3g}{unit}" if abs(value) < 1e12 else f"{value / size:,.0f}{unit}"
    return f"{value:.3g}"


def rounded(table: pd.DataFrame, digits: int | dict[str, int] = 2) -> pd.DataFrame:
    """A copy with float columns rounded: one number of digits for all, or one a column."""
    if isinstance(digits, int):
        digits = {name: digits for name in table.columns if pd.api.types.is_float_dtype(table[name])}
    return table.round(digits)


def legible(table: pd.DataFrame) -> Styler:
    """The table as a notebook shows it: text whole and to the left, numbers to the right, a named index as a column of
    its own, no numbers of rows. All values are escaped."""
    table = table if table.index.names == [None] else table.reset_index()
    left = [{"selector": part, "props": "text-align: left; white-space: normal"} for part in ("th", "td")]
    numbers = [name for name in table.columns if pd.api.types.is_numeric_dtype(table[name])]
    right = {name: [{"selector": "", "props": "text-align: right"}] for name in numbers}
    styler = table.style.hide().format(_short, escape="html").format_index(escape="html", axis=1)
    return styler.set_table_styles(left).set_table_styles(right, overwrite=False)


def _short(value):
    return f"{round(value, 3):g}" if isinstance(value, float) else value


def check_table(rows: Sequence) -> pd.DataFrame:
    """Doctor rows, those to be mended first; commands where there are any."""
    order = {"fault": 0, "warning": 1, "not checked": 2, "ok": 3}
    table = pd.DataFrame([asdict(row) for row in sorted(rows, key=lambda row: order[row.verdict])])
    if len(table) and not table["command"].any():
        table = table.drop(columns="command")
    return table.set_index("check") if len(table) else table


def bench_table(rows: Sequence) -> pd.DataFrame:
    """Benchmark rows in reading order, by condition where there are several; `range` is the slowest and the fastest
    round. Latencies: 50th, 95th, 99th percentile. No break-even where the speeds of a condition carry none."""
    unknown = {row.condition for row in rows if not_measurable(rows, row.condition)}
    table = pd.DataFrame(
        [
            {
                "setting": row.setting,
                "at": str(row.condition),
                "num_draft_tokens": row.num_draft_tokens or "-",
                "accept_length": _or_dash(row.accept_length, ".2f"),
                "break_even": NOT_MEASURABLE
                if row.break_even is not None and row.condition in unknown
                else _or_dash(row.break_even, ".2f"),
                "tok/s": f"{row.tok_s:.1f}",
                "range": f"{row.tok_s_low:.1f} to {row.tok_s_high:.1f}",
                "speedup": f"{row.speedup:.2f}x",
                "ms per cycle": f"{row.cycle_ms:.1f}",
                "tok/s a request": _or_dash(row.request_tok_s, ".1f"),
                "first token, ms": _milliseconds(row.first_s),
                "request, ms": _milliseconds(row.request_s),
                "differing": _or_dash(row.differing, "d"),
                "errors": row.errors,
            }
            for row in rows
        ]
    )
    if table["at"].nunique() > 1:
        return table.set_index(["at", "setting"])
    return table.drop(columns="at").set_index("setting")


def settings_table(rows: Sequence) -> pd.DataFrame:
    """What became of each setting (`GridRow`): the share of its verifications that accepted draft 1, drafts 1 and 2
    and so on (of a tree: by depth), and how many accepted exactly 0, 1, ...; or why it was not measured."""
    table = pd.DataFrame(
        [
            {
                "setting": str(row.cell),
                "accepted up to draft 1, 2, ...": _listed(row.positions and row.positions.joint, ".0%"),
                "verifications by drafts accepted": _listed(row.histogram, ","),
                "not measured": row.reason,
            }
            for row in rows
        ]
    )
    return table if table["not measured"].any() else table.drop(columns="not measured")


def accept_table(summaries: Sequence) -> pd.DataFrame:
    """Accept-length summaries, one a row, with the setting each was measured in."""
    return pd.DataFrame(
        [
            {
                "set": s.setting.set,
                "engine": s.setting.engine,
                "num_steps": s.setting.num_steps,
                "topk": s.setting.topk,
                "num_draft_tokens": s.setting.num_draft_tokens,
                "temperature": s.setting.temperature,
                "accept_length": round(s.accept_length, 3),
                "95 % interval": "-" if s.interval is None else f"{s.interval[0]:.2f} to {s.interval[1]:.2f}",
                "prompts": s.prompts,
                "verifications": s.verifications,
            }
            for s in summaries
        ]
    )


def loss_table(whole) -> pd.DataFrame:
    """The waterfall (`Attribution`) as rows that add up, its first and last row included."""
    rows = [{"part": "most possible", "tokens a verification": whole.num_steps + 1.0}]
    for part in whole.parts:
        interval = "-" if part.interval is None else f"{part.interval[0]:.3f} to {part.interval[1]:.3f}"
        rows.append(
            {
                "part": part.name,
                "tokens a verification": -part.lost,
                "95 % interval of the loss": interval,
                "drafts lost": f"{part.tokens:,}",
                "verifications": f"{part.verifications:,}",
                "gain without it": f"{part.gain:+.3f}",
            }
        )
    rows.append({"part": "accept length", "tokens a verification": whole.accept_length})
    return pd.DataFrame(rows).set_index("part").round(3).fillna("")


def conditional_table(whole) -> pd.DataFrame:
    """Draft positions of an `Attribution`: among the drafts whose predecessors were all accepted, how many were."""
    return pd.DataFrame(
        [
            {
                "draft position": one.position,
                "reached": one.reached,
                "accepted": one.accepted,
                "token without a draft id": one.unknown,
                "share accepted": _or_dash(one.conditional, ".1%"),
                "of tokens with a draft id": _or_dash(one.conditional_known, ".1%"),
            }
            for one in whole.positions
        ]
    ).set_index("draft position")


def plain_table(rows: Sequence, index: str) -> pd.DataFrame:
    """Any dataclass rows, a column a field."""
    table = pd.DataFrame([asdict(row) for row in rows])
    return table.set_index(index) if len(table) else table


def _milliseconds(seconds: Sequence[float] | None) -> str:
    return "-" if seconds is None else " / ".join(f"{1000 * value:.0f}" for value in seconds)


def _listed(values: Sequence | None, form: str) -> str:
    return "-" if values is None else " / ".join(_or_dash(value, form) for value in values)


def _or_dash(value, form: str) -> str:
    return "-" if value is None else format(value, form)
