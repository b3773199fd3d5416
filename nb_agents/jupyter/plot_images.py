"""The plots of a turn as images for its card, inside of it: a card asks no server for anything.

An agent may have put any file there, and a link or a pipe by that name: none leads out of its
workspace, nothing but a PNG is shown.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nb_agents.disk.directory import Directory
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
        data = _read(turn / "workspaces" / file.agent, f"{FOLDER}/{name}")
        if data is None:
            continue
        src = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        yield PlotImage(f"{file.agent}: {file.path}", src)
        count += 1
        if count == MAX_PLOTS:
            return


def _read(workspace: Path, name: str) -> bytes | None:
    """Give a PNG of a workspace, or None."""
    with suppress(OSError, ValueError), Directory.at(workspace) as directory:
        data = directory.read(name, MAX_BYTES)
        return data if data.startswith(_PNG) else None
    return None
