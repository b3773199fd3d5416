"""The file that marks the directory of a sweep."""

from __future__ import annotations

import os
from pathlib import Path

SWEEP_FILE = "sweep.json"
"""The description of a sweep, in the directory that contains the sessions of its rows."""

ESTIMATE = "estimate"
"""The key of that file with the lines about the sweep's cost, as estimated before it started."""


def is_sweep(path: Path) -> bool:
    """Return whether a directory contains a sweep."""
    return os.path.isfile(path / SWEEP_FILE)  # Path.is_file raises if the name is too long


def sweep_paths(root: Path) -> list[Path]:
    """Return the directories of the sweeps in a session root, sorted by name."""
    try:
        return sorted(path.parent for path in root.glob(f"*/{SWEEP_FILE}"))
    except OSError:
        return []
