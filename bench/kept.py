"""Saves the results of benchmarks as JSON, and reports changes since the last time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.table import Table, machine

__all__ = ["FOLDER", "KEPT", "changes", "figures", "keep"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "bench"
KEPT = ROOT / "docs" / "bench"
"""The results that the site shows; in git."""
LEAST_CHANGE = 0.2
_NUMBER = re.compile(r"(?:<=|<|~)?\s*(\d[\d,]*(?:\.\d+)?)")


def keep(tables: Sequence[Table], folder: Path = FOLDER) -> list[str]:
    """Write the tables to a new file, and compare them with earlier ones.

    Args:
        tables: The results.
        folder: The directory of the file. Each table is compared with the newest file in it, or in
            `KEPT`, that has the same table.

    Returns:
        Sentences about figures that differ from the last saved ones by at least a fifth.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before: dict[str, float] = {}
    files = {*folder.glob("*.json"), *(KEPT.glob("*.json") if folder == FOLDER else ())}
    for file in sorted(files, key=lambda file: file.name):
        before |= json.loads(file.read_text("utf-8"))["figures"]
    now = figures(tables)
    where, versions = machine()
    at = datetime.now(UTC)
    found: dict[str, Any] = {"at": at.isoformat(), "machine": where, "versions": versions}
    found |= {"figures": now, "tables": [table._asdict() for table in tables]}
    file = folder / f"{at:%Y%m%d_%H%M%S_%f}.json"
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False), "utf-8")
    return changes(before, now)


def figures(tables: Sequence[Table]) -> dict[str, float]:
    """Return the number that each cell begins with, by title, row and column."""
    return {
        f"{table.title.partition(':')[0]} / {row[0]} / {head}": float(found[1].replace(",", ""))
        for table in tables
        for row in table.rows
        for head, cell in zip(table.head[1:], row[1:], strict=True)
        if (found := _NUMBER.match(cell))
    }


def changes(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return a sentence for each figure that is at least a fifth more or less than before."""
    return list(_changes(before, now))


def _changes(before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
    for name, value in now.items():
        old = before.get(name)
        if old is None or old == value:
            continue
        change = (value - old) / old if old else float("inf")
        if abs(change) >= LEAST_CHANGE:
            yield f"{name}: {old:g} -> {value:g} ({change:+.0%})"
