"""Agents that files name as ``object: tests.agents.programs.members:NAME``; their models are at
the address in the environment."""

from __future__ import annotations

import os
from typing import Any

from tests.agents.programs.frameworks import pydantic_agent

__all__ = ["MODEL_URL", "function", "writer"]

MODEL_URL = "TESTS_MODEL_URL"


class _Address:
    """A model server, by the address in the environment."""

    url = property(lambda self: os.environ.get(MODEL_URL, "http://127.0.0.1:9/v1"))


writer: Any = pydantic_agent(_Address())  # type: ignore[arg-type]


async def function(task: str, ctx: Any) -> str:
    """Vote for the first answer, once there is one, or answer."""
    if len(ctx.voters) and "agent1" in ctx.prompt.partition("<CURRENT_ANSWERS>")[2]:
        return str(ctx.voters[0])
    return str(await ctx.step("write", lambda: f"The function's: {task}"))
