"""A small table in a cell: HTML and text of the same rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import escape

from nb_agents.jupyter.ipython import display
from nb_agents.terminal import without_controls

__all__ = ["show_table"]

_LINE_END = re.compile(r"\s*\n\s*")


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Display rows under their heads, or a sentence when there are none."""
    if not rows:
        display({"text/plain": empty})
        return
    rows = [[_LINE_END.sub(" ", without_controls(cell)) for cell in row] for row in rows]
    display({"text/html": _html(heads, rows), "text/plain": _text(heads, rows)})


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th style="text-align:left">{escape(h)}</th>' for h in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(c)}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _text(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(r[i]) for r in [heads, *rows]) for i in range(len(heads))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in [heads, *rows]]
    return "\n".join(line.rstrip() for line in lines)
