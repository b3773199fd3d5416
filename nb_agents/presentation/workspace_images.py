"""Embeds images from workspaces in a turn's card.

Only files in the agent's workspace and images within an answer's text are embedded, because other
images would cause requests to a server. An agent may have replaced an image with any other file, a
link or a pipe. Therefore nothing outside the workspace is read, and only PNG, JPEG and SVG files
are shown. SVG is shown as an image, so its scripts and links have no effect.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from nb_agents.disk.directory import Directory
from nb_agents.tools.python import FOLDER
from nb_agents.view.run_view import RunView

MAX_IMAGES = 6
"""Maximum number of images on a card, including repeated ones."""
MAX_BYTES = 300_000
"""Maximum size of an image in bytes, because it becomes part of the notebook file."""

_SVG = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<svg[\s>]", re.DOTALL)
_DATA = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([\w+/=-]+)", re.IGNORECASE | re.ASCII)
_KINDS: dict[str, Callable[[bytes], bool]] = {
    "png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "gif": lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "webp": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
    "svg+xml": lambda data: _SVG.match(data) is not None,
}
_SUFFIXES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".svg": "svg+xml"}


@dataclass(frozen=True)
class WorkspaceImage:
    """An image from a workspace.

    Attributes:
        about: The agent and the path of the file.
        src: The image as a data URI.
    """

    about: str
    src: str


class WorkspaceImages:
    """The images that one card shows.

    Args:
        view: The view of the turn. Only files that it lists are read.
        path: The turn's directory.
    """

    def __init__(self, view: RunView, path: Path) -> None:
        self._files = {(file.agent, file.path): file for file in view.files}
        self._path = path
        self._emitted: list[tuple[str, str]] = []

    def in_answer(self, workspace: str) -> Callable[[str], str]:
        """Return a function from an image's address in an answer to its data URI or ""."""

        def image(address: str) -> str:
            if match := _DATA.fullmatch(address):
                return self._decoded(match[1].lower(), match[2])
            return self._read(workspace, str(PurePosixPath(unquote(address))))

        return image

    def plots(self) -> Iterator[WorkspaceImage]:
        """Yield plots from agents' Python code that no answer shows, up to the limit."""
        for owner, name in self._files:
            is_plot = name.endswith(".png") and name.rpartition("/")[0] == FOLDER
            if is_plot and (owner, name) not in self._emitted and (src := self._read(owner, name)):
                yield WorkspaceImage(f"{owner}: {name}", src)

    def _read(self, workspace: str, name: str) -> str:
        file = self._files.get((workspace, name))
        kind = _SUFFIXES.get(PurePosixPath(name).suffix.lower(), "")
        if file is None or not kind or file.size > MAX_BYTES or len(self._emitted) == MAX_IMAGES:
            return ""
        data = b""
        with (
            suppress(OSError, ValueError),
            Directory.at(self._path / "workspaces" / workspace) as folder,
        ):
            data = folder.read(name, MAX_BYTES)
        return self._emit(kind, data, (workspace, name))

    def _decoded(self, kind: str, encoded: str) -> str:
        """Return an image within a text as a data URI, or "" if it is none or too large."""
        data = b""
        if len(encoded) <= MAX_BYTES * 4 // 3 + 4:
            with suppress(ValueError):
                data = base64.b64decode(encoded, validate=True)
        return self._emit(kind, data, ("", sha256(data).hexdigest()))

    def _emit(self, kind: str, data: bytes, key: tuple[str, str]) -> str:
        if len(self._emitted) == MAX_IMAGES or not _KINDS[kind](data):
            return ""
        self._emitted.append(key)
        return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
