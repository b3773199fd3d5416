"""Images that a cell showed, as files in the agent's workspace."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from nb_agents.disk.directory import Directory

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
    with suppress(OSError), Directory.at(workspace) as directory:
        # What is no directory comes first.
        entries = takewhile(lambda entry: entry.kind != "folder", directory.walk(FOLDER))
        names = [entry.name for entry in entries]
        taken = {name.split("_")[1] for name in names if "_" in name}
    number = last + 1
    while str(number) in taken:
        number += 1
    return number


def write_plots(workspace: Path, plots: Sequence[Plot]) -> None:
    """Write images below a workspace; nothing there is replaced.

    Args:
        workspace: The agent's directory.
        plots: What to write.

    Raises:
        OSError: One of them can't be written.
    """
    with Directory.at(workspace) as directory:
        for plot in plots:
            with directory.create(f"{FOLDER}/{plot.name}") as file:
                file.write(plot.data)
