"""Tables for notebooks: plain DataFrames with readable numbers, and the units they are written in."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd


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


def check_table(rows: Sequence) -> pd.DataFrame:
    """Doctor rows, those to be mended first."""
    order = {"fault": 0, "warning": 1, "not checked": 2, "ok": 3}
    table = pd.DataFrame([asdict(row) for row in sorted(rows, key=lambda row: order[row.verdict])])
    return table.set_index("check") if len(table) else table


def bench_table(rows: Sequence) -> pd.DataFrame:
    """Benchmark rows in reading order; `range` is the slowest and the fastest round."""
    return pd.DataFrame(
        [
            {
                "setting": row.setting,
                "num_draft_tokens": row.num_draft_tokens or "-",
                "accept_length": _or_dash(row.accept_length, ".2f"),
                "break_even": _or_dash(row.break_even, ".2f"),
                "tok/s": f"{row.tok_s:.1f}",
                "range": f"{row.tok_s_low:.1f} to {row.tok_s_high:.1f}",
                "speedup": f"{row.speedup:.2f}x",
                "ms per cycle": f"{row.cycle_ms:.1f}",
                "answers differing": row.differing,
            }
            for row in rows
        ]
    ).set_index("setting")


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


def position_table(positions: dict) -> pd.DataFrame:
    """PositionAcceptance by name -> a row per draft position, a column per name and kind (shares)."""
    columns = {
        f"{name} {kind}": getattr(acceptance, kind)
        for name, acceptance in positions.items()
        for kind in ("marginal", "joint", "conditional")
        if any(share is not None for share in getattr(acceptance, kind))
    }
    table = pd.DataFrame(columns, dtype=float).round(3)
    table.index = pd.RangeIndex(1, len(table) + 1, name="draft position")
    return table


def _or_dash(value, form: str) -> str:
    return "-" if value is None else format(value, form)
