"""Plain aligned tables, and the machine's facts above them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from statistics import median
from typing import NamedTuple

__all__ = [
    "PRINTED",
    "Table",
    "machine",
    "p95",
    "paired_ratio",
    "print_machine",
    "print_table",
    "spread",
    "verdict",
]

_PACKAGES = ("nb_agents", "pydantic-ai-slim", "openai", "httpx2", "anyio", "ipykernel", "anywidget")


class Table(NamedTuple):
    """A table as it was printed.

    Attributes:
        load: How many processes wanted the cores: above their number, times mean little.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    load: float = 0


PRINTED: list[Table] = []
"""All tables of this process, in order."""


def machine() -> tuple[str, str]:
    """Return what the figures depend on: the machine, and the versions of packages."""
    system = f"{platform.system()} {platform.release()}"
    where = f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"
    return where, ", ".join(f"{name} {version(name)}" for name in _PACKAGES)


def print_machine() -> None:
    """Print what the figures depend on."""
    print("\n".join(machine()))


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a head, first column to the left, the others to the right."""
    load = round(os.getloadavg()[0], 1)
    PRINTED.append(Table(title, head, rows, load))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}\nmachine's load in the last minute: {load}")
    for row in (head, ["-" * w for w in widths], *rows):
        first, *others = zip(row, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(cell.rjust(w) for cell, w in others)]))


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Format a sample as "median (minimum-maximum)"."""
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), median(values), max(values)))
    return f"{middle} ({low}-{high})" if len(values) > 1 else middle


def paired_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Give the median ratio of measurements made in turn: a busy machine slows both of a pair."""
    return median(value / other for value, other in zip(values, others, strict=True))


def p95(values: Sequence[float]) -> float:
    """Give the value that 95 % don't exceed."""
    return sorted(values)[round(0.95 * (len(values) - 1))]


def verdict(is_met: bool) -> str:
    """Word whether an aim was met."""
    return "met" if is_met else "missed"
