"""ag2: a stream of events for each agent, saved by its log; stopped by cancelling its task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from ag2 import Agent, MemoryStream
from ag2.config import OpenAIConfig
from ag2.events import (
    BaseEvent,
    ModelMessageChunk,
    ModelRequest,
    ModelResponse,
    TextInput,
    ToolCallsEvent,
    ToolResultsEvent,
)
from ag2.knowledge import EventLogWriter, SqliteKnowledgeStore

from bench.libraries.player import NAMES, PROMPT, play, work

_CONVERSATION = (ModelRequest, ModelResponse, ToolCallsEvent, ToolResultsEvent)


class Ag2Agents:
    """Three agents, each with a log of its own."""

    def __init__(self, url: str, root: Path) -> None:
        self._url = url
        self._log = EventLogWriter(SqliteKnowledgeStore(root / "log.sqlite"))
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        fresh = [ModelRequest([TextInput(PROMPT)])]
        self._tasks = [asyncio.create_task(self._run(name, fresh)) for name in NAMES]
        await asyncio.wait(self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def saved(self) -> dict[str, str]:
        return {name: _words(await self._log.load(name)) for name in NAMES}

    async def resume(self) -> None:
        fresh = [ModelRequest([TextInput(PROMPT)])]
        past = {name: await self._log.load(name) or fresh for name in NAMES}
        left = [name for name in NAMES if not _is_done(past[name])]
        await asyncio.gather(*(self._run(name, past[name]) for name in left))

    async def _run(self, name: str, past: Iterable[BaseEvent]) -> None:
        # The agent continues from the last one.
        events = [event for event in past if isinstance(event, _CONVERSATION)]
        config = OpenAIConfig(name, api_key="k", base_url=self._url, streaming=True)
        # Without `persist_all` an answer that is cut leaves no words.
        stream = MemoryStream(id=name, persist_all=True)
        try:
            await Agent(name, config=config, tools=[work]).resume(*events, stream=stream)
        finally:
            await self._log.persist(name, await stream.history.get_events())


def _words(events: Iterable[BaseEvent]) -> str:
    said = [e.content for e in events if isinstance(e, ModelResponse) and e.content]
    return said[-1] if said else "".join(e.content for e in _chunks(events))


def _chunks(events: Iterable[BaseEvent]) -> list[ModelMessageChunk]:
    return [e for e in events if isinstance(e, ModelMessageChunk)]


def _is_done(events: list[BaseEvent]) -> bool:
    last = events[-1] if events else None
    return isinstance(last, ModelResponse) and not last.tool_calls


if __name__ == "__main__":
    play(Ag2Agents)
