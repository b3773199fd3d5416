"""The two kinds of clients to compare: a team of nb_agents, and bare streams of the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

import nb_agents
from nb_agents import RunOptions
from tests.kit.cards import panel_state
from tests.kit.models import http_client
from tests.kit.runs import Run
from tests.kit.teams import TeamSpec
from tests.kit.views import RunView

__all__ = ["Show", "bare_streams", "live_team", "team"]

Show = Callable[[Run], Callable[[RunView], object]]
"""Creates the callback that gets each view of a run."""

_SCHEMA = {"type": "object", "properties": {"content": {"type": "string"}}}
_TOOL = ToolDefinition(name="new_answer", parameters_json_schema=_SCHEMA)


def team(url: str, count: int) -> dict[str, Any]:
    """Make a team file's content: so many agents, all at the server."""
    backend = {"type": "openai", "model": "bench", "base_url": url, "api_key": "k"}
    return {"agents": [{"id": f"a{n:03}", "backend": backend} for n in range(count)]}


@contextmanager
def live_team(url: str, count: int, show: Show | None = None) -> Iterator[Run]:
    """Provide a run, which is stopped at the end.

    Args:
        url: The model server's.
        count: How many agents.
        show: Makes what is called with its view, as often as in a notebook; by default it makes the
            state that a widget draws.
    """
    spec = TeamSpec.model_validate(team(url, count))
    with TemporaryDirectory() as root:
        run = nb_agents.start(
            "Write at length.", config=spec, options=RunOptions(session_root=Path(root))
        )
        run.subscribe((show or _for_widget)(run))
        try:
            yield run
        finally:
            run.stop(now=True)
            run.wait(raise_on_stop=False)


def _for_widget(run: Run) -> Callable[[RunView], object]:
    return lambda view: panel_state(view, run.id, time.time())


@asynccontextmanager
async def bare_streams(
    url: str, count: int, on_token: Callable[[], None] = lambda: None
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Provide tasks of streams, which are cancelled at the end; their client is closed."""
    async with http_client() as client:
        provider = OpenAIProvider(base_url=url, api_key="k", http_client=client)
        model = OpenAIChatModel("bench", provider=provider)
        tasks = [asyncio.create_task(_stream(model, on_token)) for _ in range(count)]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _stream(model: OpenAIChatModel, on_token: Callable[[], None]) -> None:
    parameters = ModelRequestParameters(function_tools=[_TOOL], allow_text_output=True)
    messages = [ModelRequest.user_text_prompt("Write at length.")]
    async with model_request_stream(
        model, messages, model_request_parameters=parameters, model_settings={"max_retries": 0}
    ) as stream:
        async for event in stream:
            if event.event_kind == "part_delta":
                on_token()
