"""The tool call that code works for, as one value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["ToolCall", "calling", "current_call"]


@dataclass
class ToolCall:
    """One call of a tool.

    Attributes:
        agent: Whose it is: an agent's id, or the address of its step; "" for nobody's.
        is_repeated: Whether it may have happened before: it was cut in its middle, and is made
            again. A tool then takes done for done.
        began: Whether its tool was let begin.
        thread: Number of the thread in which it was left running; 0 when it was not.
    """

    agent: str = ""
    is_repeated: bool = False
    began: bool = True
    thread: int = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that it has not begun within the block, nor after it when the block raises."""
        self.began = False
        yield
        self.began = True


# Functions of a person are called without it, and may call agents or ask from any thread.
_current: ContextVar[ToolCall | None] = ContextVar("nb_agents_tool_call", default=None)


@contextmanager
def calling(call: ToolCall) -> Iterator[ToolCall]:
    """Make a call within the block.

    Args:
        call: What `current_call` gives there, in tasks and threads that begin there, too.
    """
    reset = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(reset)


def current_call() -> ToolCall:
    """Return the call that is made here; one that is nobody's where none is."""
    return _current.get() or ToolCall()
