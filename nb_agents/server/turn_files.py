"""The routes that read the files of turns, as a JupyterLab drive or as plain downloads.

The files are untrusted, because they were written by models and their tools. Images and text are
sent with their content type and a policy under which they can't run or fetch anything. Other files
are sent as attachments. Symbolic links to targets outside the turn's directory are not followed.
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
from tornado import web

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import DirEntry, RefusedError
from nb_agents.server.handler import Handler, handles_route
from nb_agents.server.places import NameResolver, UnknownNameError
from nb_agents.session.layout import TurnPaths

MAX_BYTES = 50_000_000
"""Maximum size of a file to show in JupyterLab, in bytes. It is sent in a single response."""

_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
_SHOW_ONLY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""The content security policy of files. They can be shown, but can't run or load anything."""
_TEXTS = frozenset(".txt .md .csv .tsv .json .jsonl .log .yaml .yml .toml .py".split())

Model = dict[str, Any]


@handles_route("get_contents")
async def get_contents(request: Handler, name: str) -> None:
    """Reply with the Jupyter contents model of a directory or file."""
    name = name.strip("/")
    if not name:  # the root of the file browser is empty: turns are opened by name
        request.reply(_directory("", None, []))
        return
    paths, inside = await to_thread(find_turn_file, request.places, name)
    wants = request.get_query_argument("content", "1") != "0"
    format_ = request.get_query_argument("format", "")
    try:
        request.reply(await to_thread(_model, paths, name, inside, wants, format_))
    except (OSError, RefusedError) as exc:
        raise UnknownNameError(name) from exc


@handles_route("get_file")
async def get_file(request: Handler, name: str) -> None:
    """Reply with the bytes of a file."""
    paths, inside = await to_thread(find_turn_file, request.places, name.strip("/"))
    try:
        file = await to_thread(open_turn_file, paths, inside)
    except (OSError, RefusedError) as exc:
        raise UnknownNameError(name) from exc
    with file:
        kind = _sent_as(inside)
        request.set_header("Content-Security-Policy", _SHOW_ONLY)
        request.set_header("X-Content-Type-Options", "nosniff")
        request.set_header("Cache-Control", "no-cache")
        if not kind:
            request.set_attachment_header(PurePosixPath(inside).name)
        kind = kind or "application/octet-stream"
        request.set_header("Content-Type", kind)
        await request.send(file)
        request.finish(set_content_type=kind)


def _sent_as(path: str) -> str:
    """Return the content type of a file that a browser may show, or "" for others."""
    suffix = PurePosixPath(path).suffix.lower()
    return _IMAGES.get(suffix) or ("text/plain; charset=utf-8" if suffix in _TEXTS else "")


def find_turn_file(resolver: NameResolver, name: str) -> tuple[TurnPaths, str]:
    """Split a path into a turn and a path within the turn's directory.

    Raises:
        UnknownNameError: The path contains no turn.
    """
    names = name.split("/")
    for end, each in enumerate(names, 1):
        if each.startswith("turn_"):
            with suppress(UnknownNameError):
                return resolver.turn("/".join(names[:end])), "/".join(names[end:])
    raise UnknownNameError(name)


def open_turn_file(paths: TurnPaths, inside: str) -> BinaryIO:
    """Open a file of a turn. Links out of the turn's directory are refused."""
    with Directory.at(paths.path) as turn:
        return turn.open(inside)


def _model(paths: TurnPaths, name: str, inside: str, wants: bool, format_: str) -> Model:
    with Directory.at(paths.path) as turn:
        if turn.kind(inside or ".") == "folder":
            files = [
                each for each in turn.entries(inside or ".") if each.kind in ("file", "folder")
            ]
            file_entries = [_entry(name, each) for each in files]
            return _directory(name, None, file_entries if wants else None)
        with turn.open(inside) as file:
            status = os.fstat(file.fileno())
            if not wants:
                return _file(name, status)
            if status.st_size > MAX_BYTES:
                raise web.HTTPError(413, f"The file exceeds {MAX_BYTES} bytes and can't be shown.")
            return _with_content(_file(name, status), file.read(MAX_BYTES), format_)


def _entry(name: str, entry: DirEntry) -> Model:
    path = f"{name}/{entry.name}"
    is_folder = stat.S_ISDIR(entry.stat.st_mode)
    return _directory(path, entry.stat, None) if is_folder else _file(path, entry.stat)


def _directory(path: str, status: os.stat_result | None, content: list[Model] | None) -> Model:
    model = _base(path, status)
    if content is None:
        return {**model, "type": "directory"}
    return {**model, "type": "directory", "content": content, "format": "json"}


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
    """Return a notebook without trusted cells, or None if the data is not a notebook."""
    try:
        # nbformat removes the cells' "trusted" metadata when it writes.
        reads: Any = nbformat.reads
        writes: Any = nbformat.writes
        return json.loads(writes(reads(data.decode(), as_version=4)))
    except Exception:  # a model may have written anything
        return None
