"""Equivalent agents of other frameworks, for tests that all of them must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from tests.model_server import ModelServer

__all__ = ["FRAMEWORKS"]

Function = Callable[..., Any]


def _client() -> Any:
    """Return an HTTP client that keeps no connection open, because nothing would close them."""
    return httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))


def pydantic_agent(server: ModelServer, *tools: Function, model: str = "m") -> Any:
    """Return an agent of pydantic-ai, named "p"."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=server.url, api_key="k", http_client=_client())
    return Agent(OpenAIChatModel(model, provider=provider), tools=tools, name="p")


def openai_agent(server: ModelServer, *tools: Function, model: str = "m") -> Any:
    """Return an agent of the OpenAI Agents SDK, named "o"."""
    from agents import Agent, OpenAIChatCompletionsModel, function_tool
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0, http_client=_client())
    return Agent(
        "o",
        tools=[*map(function_tool, tools)],
        model=OpenAIChatCompletionsModel(model, openai_client=client),
    )


def ag2_agent(server: ModelServer, *tools: Function, model: str = "m") -> Any:
    """Return an agent of ag2, named "g"."""
    from ag2 import Agent
    from ag2.config import OpenAIConfig

    config = OpenAIConfig(
        model, "k", server.url, streaming=True, max_retries=0, http_client=_client()
    )
    return Agent("g", config=config, tools=tools)


FRAMEWORKS: dict[str, Callable[..., Any]] = {
    "pydantic-ai": pydantic_agent,
    "openai": openai_agent,
    "ag2": ag2_agent,
}
