"""Asking the person from code that works for a run: a function given to agents as a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nb_agents.errors import UserError

__all__ = ["ask", "bind_asker"]

_current: ContextVar[Callable[[str], str] | None] = ContextVar("nb_agents_asker", default=None)


def ask(prompt: str) -> str:
    """Ask the person who watches the run that this code works for, and wait for the answer.

    For plain functions given as tools; in an async one it would hold up the others.

    Args:
        prompt: The question; it is shown on the panel, and `Run.answer` answers it.

    Returns:
        What the person wrote.

    Raises:
        UserError: There is no run here, or the person refuses to answer.
        AgentStopped: The run is being stopped. Let it pass.

    Example:
        @nb_agents.tool
        def choose(options: list[str]) -> str:
            "Let the person choose."
            return nb_agents.ask(f"Which of {options}?")
    """
    asker = _current.get()
    if asker is None:
        raise UserError("nb_agents.ask asks for a run: call it in a function given as a tool.")
    return asker(prompt)


@contextmanager
def bind_asker(asker: Callable[[str], str]) -> Iterator[None]:
    """Make ``asker`` what `ask` uses, within the block and the tasks that it starts."""
    reset = _current.set(asker)
    try:
        yield
    finally:
        _current.reset(reset)
