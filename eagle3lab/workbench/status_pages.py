"""The status report as text: Markdown, and one HTML page that needs no other file. All values are escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
NOTHING = "nothing"
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#1a1a1a;"
    "background:#fff}table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3em .7em;"
    "border-bottom:1px solid #d9d9d9;vertical-align:top;overflow-wrap:anywhere}h2{margin:1.4em 0 .3em}"
    ".warnings td{color:#a33c00}"
)


def markdown_page(first_line: str, sections: Mapping[str, Rows], notes: Mapping[str, str]) -> str:
    """A table a section, below it the section's note if it has rows. Cell text is escaped for Markdown tables and for
    the HTML that Markdown lets through."""
    parts = [f"{first_line}\n"]
    for title, rows in sections.items():
        parts.append(f"## {title}\n\n{markdown_table(rows)}\n")
        if rows and title in notes:
            parts.append(f"{notes[title]}\n")
    return "\n".join(parts)


def html_page(title: str, first_line: str, sections: Mapping[str, Rows], notes: Mapping[str, str]) -> str:
    """A whole page with its own style, no script, nothing loaded from elsewhere; notes as in `markdown_page`."""
    parts = []
    for name, rows in sections.items():
        note = f"<p>{html.escape(notes[name])}</p>" if rows and name in notes else ""
        table = f"<h2>{html.escape(name)}</h2>{_html_table(rows)}{note}"
        parts.append(f'<section class="{name.lower()}">{table}</section>')
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{html.escape(title)}</h1><p>{html.escape(first_line)}</p>{''.join(parts)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def markdown_table(rows: Rows) -> str:
    """Rows of the same keys as a table; cell text is escaped as in `markdown_page`."""
    if not rows:
        return NOTHING
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    lines += [" | ".join(_cell(value) for value in row.values()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: Any) -> str:
    text = html.escape(str(value), quote=False)
    return text.replace("|", "\\|").replace("\n", " ")


def _html_table(rows: Rows) -> str:
    if not rows:
        return f"<p>{NOTHING}</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    lines = ["".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) for row in rows]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
