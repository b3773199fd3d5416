"""Whose tool call the code that runs now belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["calling", "current_caller"]

_caller: ContextVar[str] = ContextVar("nb_agents_caller", default="")


@contextmanager
def calling(agent: str) -> Iterator[None]:
    """Say, within the block, that it is this agent's tool call.

    Args:
        agent: The agent's id, or the address of its step.
    """
    reset = _caller.set(agent)
    try:
        yield
    finally:
        _caller.reset(reset)


def current_caller() -> str:
    """Give the agent whose tool call this is; "" outside of one."""
    return _caller.get()
