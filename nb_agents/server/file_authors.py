"""The route that names the agent's call that wrote each line of a file in an editor."""

from __future__ import annotations

from asyncio import to_thread
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from nb_agents.disk.directory import read_file
from nb_agents.launch.file_blame import MAX_BYTES, blame_text
from nb_agents.launch.file_calls import FileCall
from nb_agents.server.handler import Handler, handles_route
from nb_agents.server.openapi import AuthoredText
from nb_agents.server.places import NameResolver, UnknownNameError
from nb_agents.server.turn_files import find_turn_file, open_turn_file
from nb_agents.session.layout import sessions_in


@handles_route("get_authors")
async def get_authors(request: Handler) -> None:
    """Reply with the calls that wrote the lines of a text."""
    body = request.body(AuthoredText)
    request.reply(await to_thread(_authors, request.places, body.path, body.text))


def _authors(resolver: NameResolver, path: str, text: str) -> dict[str, Any]:
    file, content = _read(resolver, path)
    saved = content.decode("utf-8", "replace")
    folder = str(PurePosixPath(path).parent)
    sessions = [
        session for root in resolver.session_roots(folder) for session in sessions_in(root).by_use
    ]
    authors = [call for _, call in blame_text(sessions, file, saved, text)]
    calls = sorted({each for each in authors if each is not None}, key=lambda each: each.at)
    positions: dict[FileCall | None, int] = {each: n for n, each in enumerate(calls)}
    return {
        "calls": [each._asdict() for each in calls],
        "lines": [positions.get(each) for each in authors],
        "is_current": saved.splitlines() == text.splitlines(),
    }


def _read(resolver: NameResolver, path: str) -> tuple[Path, bytes]:
    """Return the real path and the content of a file of a turn, or below the server's root.

    Raises:
        UnknownNameError: There is no such file.
    """
    try:
        with suppress(UnknownNameError):
            turn, inside = find_turn_file(resolver, path.strip("/"))
            with open_turn_file(turn, inside) as file:
                return turn.path / inside, file.read(MAX_BYTES)
        found = resolver.file(resolver.folder("."), path.lstrip("/"))
        if found is not None:
            return found, read_file(found, MAX_BYTES)
    except OSError as exc:
        raise UnknownNameError(path) from exc
    raise UnknownNameError(path)
