"""Per-set changes of a raw row before its adapter sees it: a row filter, and other names for its columns.

`where` is written as a user says it: `average_test_score>=0.8`, `exit_status==submitted and target==true`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eagle3lab.data.adapters.base import RowError, mapping_of

_OPERATORS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt,
              "<": operator.lt}  # fmt: skip
_CONDITION = re.compile(r"\s*(?P<column>[\w.\- ]+?)\s*(?P<operator>==|!=|>=|<=|>|<)\s*(?P<value>.+?)\s*")


@dataclass(frozen=True)
class Condition:
    """One comparison of a column with a value. Numbers are compared as numbers, also where the column holds text."""

    column: str
    operator: str
    value: str | float

    def holds(self, row: Any) -> bool:
        """Whether the row is wanted; RowError when it lacks the column, or holds no number there."""
        row = mapping_of(row)
        if self.column not in row:
            raise RowError("no_column", f"where: {self.column!r} is not among {', '.join(map(str, row))}")
        found = row[self.column]
        if isinstance(self.value, float):
            try:
                found = float(found)
            except (TypeError, ValueError) as error:
                raise RowError("not_a_number", f"where: {self.column} is {str(found)[:40]!r}") from error
            return _OPERATORS[self.operator](found, self.value)
        return _OPERATORS[self.operator](str(found).casefold(), self.value)


def parse_where(text: str) -> list[Condition]:
    """The conditions of a `where`, all of which must hold; none for an empty text. ValueError names the bad part."""
    conditions = []
    for part in re.split(r"\s+and\s+", text) if text.strip() else []:
        match = _CONDITION.fullmatch(part)
        if not match:
            raise ValueError(f"where {part!r} is not COLUMN OPERATOR VALUE; operators: {', '.join(_OPERATORS)}")
        value: str | float = match["value"].strip("'\"").casefold()
        try:
            value = float(value)
        except ValueError:
            if match["operator"] not in ("==", "!="):
                raise ValueError(f"where {part!r}: {match['operator']} needs a number") from None
        conditions.append(Condition(match["column"], match["operator"], value))
    return conditions


def parse_columns(text: str) -> dict[str, str]:
    """`prompt:query,answer:reply` -> {"prompt": "query", "answer": "reply"}: the adapter's name, the data's name."""
    found = {}
    for part in text.split(",") if text.strip() else []:
        wanted, colon, given = (piece.strip() for piece in part.partition(":"))
        if not (wanted and colon and given):
            raise ValueError(f"columns {part!r} is not WANTED:GIVEN, the adapter's name and the data's")
        found[wanted] = given
    return found


def row_filter(where: str, columns: str) -> Callable[[Any], tuple[Any, str | None]]:
    """A function: raw row -> (row with the columns renamed, the condition it misses or None)."""
    conditions, names = parse_where(where), parse_columns(columns)

    def look(row: Any) -> tuple[Any, str | None]:
        for condition in conditions:
            if not condition.holds(row):
                return row, f"{condition.column} is {str(row[condition.column])[:40]}"
        if names:
            missing = sorted(set(names.values()) - set(mapping_of(row)))
            if missing:
                raise RowError("no_column", f"columns: {', '.join(missing)} not among {', '.join(map(str, row))}")
            row = dict(row) | {wanted: row[given] for wanted, given in names.items()}
        return row, None

    return look
