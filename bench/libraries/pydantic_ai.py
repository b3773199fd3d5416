"""pydantic-ai: a cancellation token; each agent's messages are saved as JSON when its run ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic_ai import Agent, CancellationToken
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.libraries.player import GO_ON, NAMES, PROMPT, play, work


class PydanticAgents:
    """Three agents, each with its own history."""

    def __init__(self, url: str, root: Path) -> None:
        self._provider = OpenAIProvider(base_url=url, api_key="k")
        self._root = root
        self._token = CancellationToken()

    async def begin(self) -> None:
        await asyncio.gather(*(self._run(name, PROMPT, []) for name in NAMES))

    def stop(self) -> None:
        self._token.cancel()

    async def saved(self) -> dict[str, str]:
        return {name: _words(self._messages(name)) for name in NAMES}

    async def resume(self) -> None:
        past = {name: self._messages(name) for name in NAMES}
        left = [name for name in NAMES if not _is_done(past[name])]
        await asyncio.gather(*(self._run(n, GO_ON if past[n] else PROMPT, past[n]) for n in left))

    async def _run(self, name: str, prompt: str, history: list[ModelMessage]) -> None:
        agent = Agent(OpenAIChatModel(name, provider=self._provider), tools=[work])
        try:
            async with agent.iter(
                prompt, message_history=history, cancellation_token=self._token
            ) as run:
                async for node in run:
                    if Agent.is_model_request_node(node):
                        async with node.stream(run.ctx) as stream:
                            async for _ in stream:
                                pass
                messages = run.all_messages()
        except RunCancelled as exc:
            messages = exc.all_messages()
        self._file(name).write_bytes(ModelMessagesTypeAdapter.dump_json(messages))

    def _messages(self, name: str) -> list[ModelMessage]:
        file = self._file(name)
        return ModelMessagesTypeAdapter.validate_json(file.read_bytes()) if file.exists() else []

    def _file(self, name: str) -> Path:
        return self._root / f"{name}.json"


def _words(messages: list[ModelMessage]) -> str:
    texts = [m.text for m in messages if isinstance(m, ModelResponse) and m.text]
    return texts[-1] if texts else ""


def _is_done(messages: list[ModelMessage]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, ModelResponse) and last.state == "complete"


if __name__ == "__main__":
    play(PydanticAgents)
