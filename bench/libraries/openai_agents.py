"""openai-agents: a SQLite session for each agent; stopped by `cancel()` of the streamed run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.result import RunResultStreaming
from openai import AsyncOpenAI

from bench.libraries.player import GO_ON, NAMES, PROMPT, play, work


class OpenaiAgents:
    """Three agents, each with its own session in one file."""

    def __init__(self, url: str, root: Path) -> None:
        set_tracing_disabled(True)
        self._client = AsyncOpenAI(base_url=url, api_key="k")
        self._file = root / "sessions.sqlite"
        self._runs: list[RunResultStreaming] = []

    async def begin(self) -> None:
        await asyncio.gather(*(self._run(name, PROMPT) for name in NAMES))

    def stop(self) -> None:
        for run in self._runs:
            run.cancel()

    async def saved(self) -> dict[str, str]:
        return {name: _words(await self._session(name).get_items()) for name in NAMES}

    async def resume(self) -> None:
        saved = await self.saved()
        await asyncio.gather(*(self._run(name, GO_ON) for name in NAMES if not saved[name]))

    async def _run(self, name: str, prompt: str) -> None:
        model = OpenAIChatCompletionsModel(model=name, openai_client=self._client)
        agent = Agent(name=name, model=model, tools=[function_tool(work)])
        run = Runner.run_streamed(agent, prompt, session=self._session(name))
        self._runs.append(run)
        async for _ in run.stream_events():
            pass

    def _session(self, name: str) -> SQLiteSession:
        return SQLiteSession(name, self._file)


def _words(items: list[Any]) -> str:
    said = [item["content"] for item in items if item.get("role") == "assistant"]
    return said[-1][0]["text"] if said else ""


if __name__ == "__main__":
    play(OpenaiAgents)
