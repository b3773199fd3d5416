"""The page of figures, with plots, generated from the results of `make bench ARGS=--keep`.

`write` generates the page and its plots at each build of the site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

__all__ = ["page", "write"]

_NUMBER = re.compile(r"(?:<=|<|~)?\s*(\d[\d,]*(?:\.\d+)?)")
_GREY = "#808080"
"""Readable on a light and on a dark background."""


def write(kept: Path, folder: Path) -> None:
    """Write the page, and a plot for each table.

    Args:
        kept: The directory of the JSON files.
        folder: The directory of the page.
    """
    runs = [json.loads(file.read_text("utf-8")) for file in sorted(kept.glob("*.json"))]
    (folder / "figures.md").write_text(page(runs), "utf-8")
    for table in _newest(runs).values():
        _plot(table, runs, folder / f"figures-{_slug(table)}.svg")


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: the newest measurement of each table, and its plot."""
    text = "# Benchmarks\n\n`make bench` measures these figures on your machine. "
    text += "`make bench ARGS=--keep` adds them to this page. In a plot, the filled dot is the "
    text += "newest measurement.\n\n"
    for table in _newest(runs).values():
        title, *notes = table["title"].split("\n")
        name, _, about = title.partition(": ")
        text += f"## {name[0].upper()}{name[1:]}\n\n{about}\n"
        text += "".join(f"{note}\n" for note in notes)
        text += f"\nMeasured on {table['at'][:10]}, {table['machine']}; load of the machine: "
        text += f"{table['load']:g}. With a load above the number of cores, times mean little.\n\n"
        if _columns(table):
            text += f"![{name}](figures-{_slug(table)}.svg)\n\n"
        lines = [table["head"], ["---"] * len(table["head"]), *table["rows"]]
        text += "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines) + "\n"
    return text


def _newest(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the newest measurement of each table, by the table's name."""
    return {
        _name(table): {**table, "at": run["at"], "machine": run["machine"]}
        for run in runs
        for table in run["tables"]
    }


def _plot(table: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Plot each column of numbers: the newest value of a row filled, older values open."""
    if not (columns := _columns(table)):
        return
    labels = [row[0][:44] for row in table["rows"]]
    height = 0.5 + 0.28 * len(labels)
    size = (9, height * len(columns))
    with pyplot.rc_context({"svg.hashsalt": "figures", "text.color": _GREY, "font.size": 9}):
        figure, axes = pyplot.subplots(len(columns), 1, figsize=size, squeeze=False)
        for ax, column in zip(axes[:, 0], columns, strict=True):
            for run in runs[:-1]:
                ax.plot(*_points(run, table, column), "o", mfc="none", mec=_GREY, ms=5)
            ax.plot(*_points(runs[-1], table, column), "o", color="#2a7de1", ms=6)
            ax.set_yticks(range(len(labels)), labels)
            ax.set_ylim(len(labels) - 0.5, -0.5)
            ax.set_xlim(left=0)
            ax.set_title(table["head"][column], loc="left", color=_GREY, fontsize=9)
            ax.tick_params(colors=_GREY)
            for side in ax.spines.values():
                side.set_color(_GREY)
            ax.grid(axis="x", color=_GREY, alpha=0.25)
        figure.tight_layout()
        figure.savefig(file, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _points(run: Mapping[str, Any], table: Mapping[str, Any], column: int) -> Iterable[list[float]]:
    """Return a column's values in one run, and the row of each value."""
    rows = [row[0] for row in table["rows"]]
    found = [
        (value, rows.index(row[0]))
        for other in run["tables"]
        if _name(other) == _name(table) and other["head"] == table["head"]
        for row in other["rows"]
        if row[0] in rows and (value := _value(row[column])) is not None
    ]
    return [value for value, _ in found], [float(at) for _, at in found]


def _columns(table: Mapping[str, Any]) -> list[int]:
    """Return the columns with numbers in at least two rows, except aims."""
    heads = table["head"]
    return [
        at
        for at in range(1, len(heads))
        if heads[at] != "aim" and sum(_value(row[at]) is not None for row in table["rows"]) > 1
    ]


def _value(cell: str) -> float | None:
    found = _NUMBER.match(cell)
    return float(found[1].replace(",", "")) if found else None


def _name(table: Mapping[str, Any]) -> str:
    return str(table["title"].partition(":")[0])


def _slug(table: Mapping[str, Any]) -> str:
    return re.sub(r"\W+", "-", _name(table).lower()).strip("-")[:60]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "\\<")
