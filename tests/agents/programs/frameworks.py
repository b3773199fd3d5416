"""Agents of other frameworks, all alike, for tests that each of them must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model_server import ModelServer

__all__ = ["FRAMEWORKS"]

Function = Callable[..., Any]


def pydantic_agent(server: ModelServer, *tools: Function, model: str = "m") -> Any:
    """An agent of pydantic-ai, named "p"."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=server.url, api_key="k")
    return Agent(OpenAIChatModel(model, provider=provider), tools=tools, name="p")


def openai_agent(server: ModelServer, *tools: Function, model: str = "m") -> Any:
    """An agent of the OpenAI Agents SDK, named "o"."""
    from agents import Agent, OpenAIChatCompletionsModel, function_tool
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0)
    return Agent(
        "o",
        tools=[*map(function_tool, tools)],
        model=OpenAIChatCompletionsModel(model, openai_client=client),
    )


def ag2_agent(server: ModelServer, *tools: Function, model: str = "m") -> Any:
    """An agent of ag2, named "g"."""
    from ag2 import Agent
    from ag2.config import OpenAIConfig

    config = OpenAIConfig(model, api_key="k", base_url=server.url, streaming=True, max_retries=0)
    return Agent("g", config=config, tools=tools)


FRAMEWORKS: dict[str, Callable[..., Any]] = {
    "pydantic-ai": pydantic_agent,
    "openai": openai_agent,
    "ag2": ag2_agent,
}
