"""crewai: a crew of one for each agent, with checkpoints; stopped by cancelling its task."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import LLM, Agent, Crew, Task
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import BaseTool

from bench.libraries.player import NAMES, PROMPT, play, work


class Work(BaseTool):
    """c's tool."""

    name: str = "work"
    description: str = "Run a command."

    async def _arun(self, command: str) -> str:
        return await work(command)

    def _run(self, command: str) -> str:
        return asyncio.run(work(command))


class CrewaiAgents:
    """Three crews, each with checkpoints of its own."""

    def __init__(self, url: str, root: Path) -> None:
        os.environ["HOME"] = str(root)
        self._url = url
        self._root = root
        self._tasks: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._run(name, self._crew(name))) for name in NAMES]
        await asyncio.wait(self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def saved(self) -> dict[str, str]:
        return {name: self._answer(name) for name in NAMES}

    async def resume(self) -> None:
        left = [name for name in NAMES if not self._answer(name)]
        await asyncio.gather(*(self._run(name, self._restored(name)) for name in left))

    async def _run(self, name: str, crew: Crew) -> None:
        await crew.akickoff()

    def _crew(self, name: str) -> Crew:
        llm = LLM(model=f"openai/{name}", base_url=self._url, api_key="k", stream=True)
        agent = Agent(
            role=name, goal=PROMPT, backstory=PROMPT, llm=llm, tools=[Work()], max_retry_limit=0
        )
        task = Task(description=PROMPT, expected_output="An answer.", agent=agent)
        keep = CheckpointConfig(location=str(self._root / name))
        return Crew(agents=[agent], tasks=[task], checkpoint=keep)

    def _restored(self, name: str) -> Crew:
        if not (files := self._checkpoints(name)):
            return self._crew(name)
        return Crew.from_checkpoint(CheckpointConfig(restore_from=files[-1]))

    def _checkpoints(self, name: str) -> list[Path]:
        files = (self._root / name).rglob("*.json")
        return sorted(files, key=lambda file: file.stat().st_mtime_ns)

    def _answer(self, name: str) -> str:
        """Find the answer in the newest checkpoint that has one."""
        for file in reversed(self._checkpoints(name)):
            if found := _raw(json.loads(file.read_text())):
                return found
        return ""


def _raw(state: Any) -> str:
    """Find a task's output, wherever in a checkpoint."""
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    if isinstance(state, dict) and isinstance(output := state.get("output"), dict):
        return str(output.get("raw", ""))
    return next(filter(None, map(_raw, parts)), "")


if __name__ == "__main__":
    play(CrewaiAgents)
