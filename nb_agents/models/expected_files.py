"""Tells the limits of responses which ones are files, such as the results of a batch.

Separate from `response_limits`, because that imports the HTTP library.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from nb_agents.context import within

is_file: ContextVar[bool] = ContextVar("is_file", default=False)
"""Whether the responses in this context are files."""


def expecting_file() -> AbstractContextManager[None]:
    """Apply the limit of files to the responses in a ``with`` block, not those of replies."""
    return within(is_file, True)
