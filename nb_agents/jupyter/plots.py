"""The plots of a turn as images for its card, inside of it: a card asks no server for anything.

An agent may have put any file there, and a link or a pipe by that name: none is followed, nothing
but a PNG is shown.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nb_agents.tools.plots import FOLDER
from nb_agents.view import RunView

__all__ = ["MAX_BYTES", "MAX_PLOTS", "PlotImage", "plots_of"]

MAX_PLOTS = 6
MAX_BYTES = 300_000

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class PlotImage:
    """One image.

    Attributes:
        about: Whose it is, and its file.
        src: A data URI.
    """

    about: str
    src: str


def plots_of(view: RunView, path: str) -> list[PlotImage]:
    """Read the plots that the turn's workspaces have, the first few that are not too large.

    Args:
        view: The turn; only files that it lists are read.
        path: Its directory.
    """
    return list(_images(view, Path(path)))


def _images(view: RunView, turn: Path) -> Iterator[PlotImage]:
    count = 0
    for file in view.files:
        folder, _, name = file.path.rpartition("/")
        if folder != FOLDER or not name.endswith(".png") or file.size > MAX_BYTES:
            continue
        data = _read(turn / "workspaces" / file.agent, name)
        if data is None:
            continue
        src = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        yield PlotImage(f"{file.agent}: {file.path}", src)
        count += 1
        if count == MAX_PLOTS:
            return


def _read(workspace: Path, name: str) -> bytes | None:
    """Give a PNG of a workspace's folder of plots, or None."""
    with suppress(OSError, ValueError):
        folder = os.open(workspace / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            # Without waiting: a pipe would wait for a writer.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            data = opened.read(MAX_BYTES + 1)
        if data.startswith(_PNG) and len(data) <= MAX_BYTES:
            return data
    return None
