"""A context manager that sets a context variable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable in the block and in tasks started there."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
