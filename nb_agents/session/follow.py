"""Following a turn by its journal, whichever process writes it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from anyio import to_thread
from pydantic import ValidationError

from nb_agents.errors import UserError
from nb_agents.events import EVENT, Event
from nb_agents.session.layout import TurnPaths

__all__ = ["follow"]

POLL_S = 0.1
"""How often a journal that others write is looked at: as often as its writer tells of streams."""

_CHUNK = 1 << 20


async def follow(path: str | os.PathLike[str]) -> AsyncIterator[Event]:
    """Give all events of a turn: those so far, then each that comes, until nobody writes it.

    Args:
        path: The turn's directory, such as ``run.path``.

    Raises:
        UserError: There is no turn.

    Example:
        async for event in nb_agents.follow(".nb_agents/sessions/talk/turn_1"):
            print(event.kind)
    """
    paths = TurnPaths(Path(path))
    if not paths.journal.is_file():
        raise UserError(f"{paths.path} is no turn: it has no {paths.journal.name}.")
    reader = _Reader(paths.journal)
    is_live = True
    while True:
        while events := await to_thread.run_sync(reader.read):
            for event in events:
                yield event
        if not is_live:
            return
        await anyio.sleep(POLL_S)
        # Whatever its writer wrote last is read once more after it has let go.
        is_live = await to_thread.run_sync(paths.is_live)


class _Reader:
    """Reads on in a journal, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[Event]:
        """Read what has come since the last time; a line that can't be read is left out."""
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read(_CHUNK)
            while data and b"\n" not in data and (more := file.read(_CHUNK)):
                data += more
        data = data[: data.rfind(b"\n") + 1]
        self._at += len(data)
        events = []
        for line in data.split(b"\n")[:-1]:
            try:
                events.append(EVENT.validate_json(line))
            except ValidationError:
                continue
        return events
