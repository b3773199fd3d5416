"""Checks user callbacks, which may take fewer parameters than there are arguments."""

from __future__ import annotations

import inspect
from typing import Any

from nb_agents.errors import UserError


def accepted_argument_count(function: Any, count: int) -> int | None:
    """Return how many of ``count`` positional arguments a function accepts.

    Args:
        function: Any object.
        count: The number of available arguments.

    Returns:
        The largest number of arguments with which it can be called, or None if there is none.

    Example:
        >>> [accepted_argument_count(f, 1) for f in (lambda: False, print, lambda a, b: a)]
        [0, 1, None]
    """
    if not callable(function):
        return None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C
        return count
    for number in range(count, -1, -1):
        try:
            signature.bind(*[None] * number)
        except TypeError:
            continue
        return number
    return None


def check_callbacks(options: object, **counts: int) -> None:
    """Check the signatures of the callbacks in an options object.

    Args:
        options: The object. Attributes that are None are skipped.
        counts: The number of arguments passed to each callback, by attribute name.

    Raises:
        UserError: A value is not callable, or requires more arguments.
    """
    for name, count in counts.items():
        function = getattr(options, name)
        if function is None or accepted_argument_count(function, count) is not None:
            continue
        expected = "at most one parameter" if count == 1 else f"at most {count} parameters"
        if callable(function):
            raise UserError(f"{name} has unsupported parameters. Use a function with {expected}.")
        kind = type(function).__name__
        raise UserError(f"{name} is of type {kind!r}. Use a function with {expected}.")
