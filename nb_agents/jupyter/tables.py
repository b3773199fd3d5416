"""A small table in a cell: HTML and text of the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import escape

from nb_agents.jupyter.ipython import display

__all__ = ["show_table"]


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Display rows under their heads, or a sentence when there are none."""
    if not rows:
        display({"text/plain": empty}, raw=True)
        return
    display({"text/html": _html(heads, rows), "text/plain": _text(heads, rows)}, raw=True)


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
