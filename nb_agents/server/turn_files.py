"""The files of turns under ``/nb-agents``, to be read: as a drive of JupyterLab, and each as it is.

Models and their tools wrote them. So a browser is sent images, tables and text as what they are,
with no right to run or to fetch anything, and all else to be saved. Nothing outside of a turn's
directory is opened, wherever a link leads.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from asyncio import to_thread
from contextlib import suppress
from datetime import UTC, datetime
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import nbformat
from jupyter_server.base.handlers import APIHandler
from tornado import web

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import DirEntry, RefusedError
from nb_agents.server.handlers import Handler, Route, allowed
from nb_agents.server.places import Places, UnknownNameError
from nb_agents.session.layout import TurnPaths

MAX_BYTES = 50_000_000
"""Bytes of a file that is sent in one piece, to be shown in JupyterLab."""

_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
_TEXTS = frozenset(".txt .md .csv .tsv .json .jsonl .log .yaml .yml .toml .py".split())

Model = dict[str, Any]


class TurnContents(Handler):
    """A directory or a file of a turn, as Jupyter's contents API has it."""

    @allowed("read")
    async def get(self, name: str) -> None:
        """Reply with its model."""
        name = name.strip("/")
        if not name:  # where a file browser begins: turns are named, and not listed
            self.reply(_directory("", None, []))
            return
        paths, inside = await to_thread(_find, self.places, name)
        wants = self.get_query_argument("content", "1") != "0"
        format_ = self.get_query_argument("format", "")
        try:
            self.reply(await to_thread(_model, paths, name, inside, wants, format_))
        except (OSError, RefusedError) as exc:
            raise UnknownNameError(name) from exc


class TurnFile(Handler):
    """A file of a turn."""

    @property
    def content_security_policy(self) -> str:
        """What a page may do that is made of such a file: show it."""
        return "default-src 'none'; style-src 'unsafe-inline'; sandbox"

    @allowed("read")
    async def get(self, name: str) -> None:
        """Reply with its bytes."""
        paths, inside = await to_thread(_find, self.places, name.strip("/"))
        try:
            file = await to_thread(_open, paths, inside)
        except (OSError, RefusedError) as exc:
            raise UnknownNameError(name) from exc
        with file:
            kind = _sent_as(inside)
            self.set_header("X-Content-Type-Options", "nosniff")
            self.set_header("Cache-Control", "no-cache")
            if not kind:
                self.set_attachment_header(PurePosixPath(inside).name)
            self.set_header("Content-Type", kind or "application/octet-stream")
            await self.send(file)
            # Not its base's, which would call it JSON.
            super(APIHandler, self).finish()


def _sent_as(path: str) -> str:
    """Return the content type of what a browser may show, else ""."""
    suffix = PurePosixPath(path).suffix.lower()
    return _IMAGES.get(suffix) or ("text/plain; charset=utf-8" if suffix in _TEXTS else "")


def _find(places: Places, name: str) -> tuple[TurnPaths, str]:
    """Return the turn that a name begins with, and the rest of it."""
    names = name.split("/")
    for end, each in enumerate(names, 1):
        if each.startswith("turn_"):
            with suppress(UnknownNameError):
                return places.turn("/".join(names[:end])), "/".join(names[end:])
    raise UnknownNameError(name)


def _open(paths: TurnPaths, inside: str) -> BinaryIO:
    with Directory.at(paths.path) as turn:
        return turn.open(inside)


def _model(paths: TurnPaths, name: str, inside: str, wants: bool, format_: str) -> Model:
    with Directory.at(paths.path) as turn:
        if turn.kind(inside or ".") == "folder":
            found = [
                each for each in turn.entries(inside or ".") if each.kind in ("file", "folder")
            ]
            listed = [_entry(name, each) for each in found]
            return _directory(name, None, listed if wants else None)
        with turn.open(inside) as file:
            status = os.fstat(file.fileno())
            if not wants:
                return _file(name, status)
            if status.st_size > MAX_BYTES:
                raise web.HTTPError(413, f"A file of more than {MAX_BYTES} bytes is not shown.")
            return _with_content(_file(name, status), file.read(MAX_BYTES), format_)


def _entry(name: str, entry: DirEntry) -> Model:
    path = f"{name}/{entry.name}"
    is_folder = stat.S_ISDIR(entry.stat.st_mode)
    return _directory(path, entry.stat, None) if is_folder else _file(path, entry.stat)


def _directory(path: str, status: os.stat_result | None, content: list[Model] | None) -> Model:
    made = _base(path, status)
    if content is None:
        return {**made, "type": "directory"}
    return {**made, "type": "directory", "content": content, "format": "json"}


def _file(path: str, status: os.stat_result) -> Model:
    kind = "notebook" if path.endswith(".ipynb") else "file"
    mime = None if kind == "notebook" else guess_type(path)[0]
    return {**_base(path, status), "type": kind, "mimetype": mime, "size": status.st_size}


def _base(path: str, status: os.stat_result | None) -> Model:
    at = datetime.fromtimestamp(status.st_mtime if status else 0, UTC).isoformat()
    return {
        "name": path.rpartition("/")[2],
        "path": path,
        "created": at,
        "last_modified": at,
        "writable": False,
        "content": None,
        "format": None,
        "mimetype": None,
        "size": None,
        "hash": None,
        "hash_algorithm": None,
    }


def _with_content(model: Model, data: bytes, format_: str) -> Model:
    if model["type"] == "notebook" and (notebook := _notebook(data)) is not None:
        return {**model, "format": "json", "content": notebook}
    if format_ != "base64":
        with suppress(UnicodeDecodeError):
            text = data.decode()
            mime = model["mimetype"] or "text/plain"
            return {**model, "type": "file", "format": "text", "mimetype": mime, "content": text}
    content = base64.b64encode(data).decode()
    mime = model["mimetype"] or "application/octet-stream"
    return {**model, "type": "file", "format": "base64", "mimetype": mime, "content": content}


def _notebook(data: bytes) -> Any:
    """Return a notebook none of whose cells is trusted; None for what is none."""
    try:
        # Written as to a file: what says that a cell is trusted is left out.
        reads: Any = nbformat.reads
        writes: Any = nbformat.writes
        return json.loads(writes(reads(data.decode(), as_version=4)))
    except Exception:  # whatever a model wrote into it
        return None


FILE_ROUTES: tuple[Route, ...] = (
    (r"/contents/?(?P<name>.*)", TurnContents),
    (r"/files/(?P<name>.+)", TurnFile),
)
