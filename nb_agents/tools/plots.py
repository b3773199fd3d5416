"""Images that a cell showed, as files in the agent's workspace."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Plot", "next_number", "png", "write_plots"]

FOLDER = "plots"
_MAX_BYTES = 10_000_000
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Plot:
    """One image.

    Attributes:
        name: Its file's, in `FOLDER`.
        data: A PNG.
    """

    name: str
    data: bytes


def png(value: Any) -> bytes | None:
    """Decode an image that an interpreter sent; None when it is none, or too large."""
    if not isinstance(value, str) or len(value) > _MAX_BYTES * 4 // 3:
        return None
    try:
        data = base64.b64decode(value)
    except ValueError:
        return None
    return data if data.startswith(_PNG) else None


def next_number(workspace: Path, last: int) -> int:
    """Give the next cell's number: one that no plot there has, from an earlier turn perhaps."""
    taken = set()
    with suppress(OSError):
        taken = {name.split("_")[1] for name in os.listdir(workspace / FOLDER) if "_" in name}
    number = last + 1
    while str(number) in taken:
        number += 1
    return number


def write_plots(workspace: Path, plots: Sequence[Plot]) -> None:
    """Write images below a workspace.

    An agent may have put symlinks there, and may put some at any moment: none is followed, and
    nothing is replaced.

    Args:
        workspace: The agent's directory.
        plots: What to write.

    Raises:
        OSError: One of them can't be written.
    """
    with _folder(workspace) as folder:
        for plot in plots:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(plot.name, flags, 0o644, dir_fd=folder), "wb") as file:
                file.write(plot.data)


@contextmanager
def _folder(workspace: Path) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY
    root = os.open(workspace, flags)
    try:
        with suppress(FileExistsError):
            os.mkdir(FOLDER, dir_fd=root)
        folder = os.open(FOLDER, flags | os.O_NOFOLLOW, dir_fd=root)
    finally:
        os.close(root)
    try:
        yield folder
    finally:
        os.close(folder)
