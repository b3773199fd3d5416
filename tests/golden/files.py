"""The golden files, and the functions that generate them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.golden.projections import cards, projections
from tests.golden.surface import PANEL_TYPES, SURFACE, panel_types

__all__ = ["REGENERATE", "ROOT", "golden_files", "leftover_files"]

ROOT = Path(__file__).parents[2]
REGENERATE = "make golden"

_HERE = Path("tests/golden")
_FOLDERS = {"surface": SURFACE, "projections": projections(), "cards": cards()}


def golden_files() -> dict[Path, Callable[[], str]]:
    """Return what makes each golden file, by its path from the repository's root."""
    made = {
        _HERE / folder / name: make
        for folder, files in _FOLDERS.items()
        for name, make in files.items()
    }
    return {PANEL_TYPES: panel_types, **made}


def leftover_files() -> list[Path]:
    """Return the files that nothing makes any more."""
    there = [path for folder in _FOLDERS for path in (ROOT / _HERE / folder).glob("*")]
    return sorted({path.relative_to(ROOT) for path in there} - golden_files().keys())
