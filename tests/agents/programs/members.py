"""Agents that files name as ``object: tests.agents.programs.members:NAME``; their models are at
the address in the environment."""

from __future__ import annotations

import os
from typing import Any

from tests.agents.programs.frameworks import pydantic_agent

__all__ = ["MODEL_URL", "function"]

MODEL_URL = "TESTS_MODEL_URL"


class _Address:
    """A model server at the address in the environment."""

    url = property(lambda self: os.environ[MODEL_URL])


def __getattr__(name: str) -> Any:
    """Create the agent of a framework on access, when the address is known."""
    if name == "writer":
        return pydantic_agent(_Address())  # type: ignore[arg-type]
    raise AttributeError(name)


async def function(task: str, ctx: Any) -> str:
    """Vote for the first answer, or answer if there is none."""
    if ctx.voters:
        return str(ctx.voters[0])
    return str(await ctx.step("write", lambda: f"The function's: {task}"))
