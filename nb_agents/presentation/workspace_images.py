"""Images of a turn's workspaces, as they stand in its card.

They are embedded, as an image elsewhere would be a request to somebody's server. An agent may have
put any file in an image's place, or a link or a pipe: nothing outside its workspace is read, and
nothing but a PNG, a JPEG or an SVG is shown, the last as an image, in which neither scripts nor
addresses count.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from nb_agents.disk.directory import Directory
from nb_agents.tools.python import FOLDER
from nb_agents.view.run_view import RunView

MAX_IMAGES = 6
"""Of one card, be they the same."""
MAX_BYTES = 300_000
"""Of one image, which a notebook's file holds."""

_SVG = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<svg[\s>]", re.DOTALL)
_KINDS: dict[str, Callable[[bytes], bool]] = {
    "png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "svg+xml": lambda data: _SVG.match(data) is not None,
}
_SUFFIXES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".svg": "svg+xml"}


@dataclass(frozen=True)
class WorkspaceImage:
    """An image of a workspace.

    Attributes:
        about: The agent and the file.
        src: A data URI.
    """

    about: str
    src: str


class WorkspaceImages:
    """The images that one card shows.

    Args:
        view: The turn; only files that it lists are read.
        path: Its directory.
    """

    def __init__(self, view: RunView, path: Path) -> None:
        self._files = {(file.agent, file.path): file for file in view.files}
        self._path = path
        self._shown: list[tuple[str, str]] = []

    def in_answer(self, workspace: str) -> Callable[[str], str]:
        """Return what gives the data URI of an image that an answer of this workspace names."""

        def image(address: str) -> str:
            return self._read(workspace, str(PurePosixPath(unquote(address))))

        return image

    def plots(self) -> Iterator[WorkspaceImage]:
        """Yield the first plots that no answer has shown, of those that agents' Python made."""
        for owner, name in self._files:
            is_plot = name.endswith(".png") and name.rpartition("/")[0] == FOLDER
            if is_plot and (owner, name) not in self._shown and (src := self._read(owner, name)):
                yield WorkspaceImage(f"{owner}: {name}", src)

    def _read(self, workspace: str, name: str) -> str:
        file = self._files.get((workspace, name))
        kind = _SUFFIXES.get(PurePosixPath(name).suffix.lower(), "")
        if file is None or not kind or file.size > MAX_BYTES or len(self._shown) == MAX_IMAGES:
            return ""
        data = b""
        with (
            suppress(OSError, ValueError),
            Directory.at(self._path / "workspaces" / workspace) as folder,
        ):
            data = folder.read(name, MAX_BYTES)
        if not _KINDS[kind](data):
            return ""
        src = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
        self._shown.append((workspace, name))
        return src
