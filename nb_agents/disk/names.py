"""Matches file names in different Unicode normal forms."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path


def composed(name: str) -> str:
    """Return a name in Unicode's normal form C, so that different spellings compare equal."""
    return unicodedata.normalize("NFC", name)


def as_on_disk(path: Path) -> Path:
    """Return a path in the Unicode normal form that its names have on disk.

    Names from macOS and its archives are decomposed ("e" and an accent), typed names are composed,
    and most file systems treat the two as different names.

    Args:
        path: A path from user input.

    Returns:
        The existing path, or ``path`` itself if it does not exist in any normal form.
    """
    try:
        if str(path).isascii() or os.path.lexists(path):
            return path
    except ValueError:  # no file can have such a name
        return path
    existing = Path(path.anchor)
    for name in path.relative_to(existing).parts:
        spelled = _spelled(existing, name)
        if spelled is None:
            return path
        existing /= spelled
    return existing


def _spelled(folder: Path, name: str) -> str | None:
    """Return the spelling of a name in a directory, or None if it does not exist."""
    try:
        if name.isascii() or os.path.lexists(folder / name):
            return name
        composed_name = composed(name)
        return next((each for each in os.listdir(folder) if composed(each) == composed_name), None)
    except (OSError, ValueError):
        return None
