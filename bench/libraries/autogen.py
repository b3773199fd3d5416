"""autogen-agentchat: agents with one cancellation token; each state is saved when its run ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_ext.models.openai import OpenAIChatCompletionClient

from bench.libraries.player import GO_ON, NAMES, PROMPT, play, work

_STREAMING: dict[str, Any] = {"model_client_stream": True, "reflect_on_tool_use": True}


class AutogenAgents:
    """Three agents, each with its own state."""

    def __init__(self, url: str, root: Path) -> None:
        self._url = url
        self._root = root
        self._token = CancellationToken()

    async def begin(self) -> None:
        await asyncio.gather(*(self._run(name, PROMPT) for name in NAMES), return_exceptions=True)

    def stop(self) -> None:
        self._token.cancel()

    async def saved(self) -> dict[str, str]:
        return {name: _words(self._state(name)) for name in NAMES}

    async def resume(self) -> None:
        saved = await self.saved()
        left = [name for name in NAMES if not saved[name]]
        again = (self._run(n, GO_ON if self._state(n) else PROMPT) for n in left)
        await asyncio.gather(*again, return_exceptions=True)

    async def _run(self, name: str, task: str) -> None:
        agent = AssistantAgent(
            name,
            self._client(name),
            tools=[work],
            reflect_on_tool_use=True,
            model_client_stream=True,
        )
        if state := self._state(name):
            await agent.load_state(state)
        try:
            async for _ in agent.run_stream(task=task, cancellation_token=self._token):
                pass
        finally:
            self._file(name).write_text(json.dumps(await agent.save_state()))

    def _client(self, name: str) -> Any:
        return OpenAIChatCompletionClient(
            model=name,
            base_url=self._url,
            api_key="k",
            model_info={
                "vision": False,
                "function_calling": True,
                "json_output": False,
                "structured_output": False,
                "family": "unknown",
            },
        )

    def _state(self, name: str) -> dict[str, Any]:
        file = self._file(name)
        return json.loads(file.read_text()) if file.exists() else {}

    def _file(self, name: str) -> Path:
        return self._root / f"{name}.json"


def _words(state: dict[str, Any]) -> str:
    messages = state.get("llm_context", {}).get("messages", [])
    said = [m["content"] for m in messages if m["type"] == "AssistantMessage"]
    return next((each for each in reversed(said) if isinstance(each, str)), "")


if __name__ == "__main__":
    play(AutogenAgents)
