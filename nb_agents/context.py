"""Setting context variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable within the block, and in the tasks and threads that begin there."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
