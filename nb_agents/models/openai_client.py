"""What OpenAI's SDK does anew for each token and each request, done in a cheaper way.

The SDK goes through each chunk of a stream field by field in Python, as it takes what no type
describes. Most chunks are as described; those pydantic makes, to the same objects, and the SDK
makes the others: a third less work for each token. And each client asks the machine which platform
it is, in another thread, before its first request; pydantic-ai sends each request by a copy of the
client, so that each asks.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["lighten"]


def lighten(client: AsyncOpenAI) -> None:
    """Let a client, and its copies, do less for each token and each request.

    This overrides two private parts, which is why `pyproject.toml` bounds the SDK. Where the SDK
    uses them otherwise, or no more, all is done its own way.

    Args:
        client: Changed in place.
    """
    kind: Any = type(client)
    client.__class__ = _lighter(kind)


@cache
def _lighter(kind: Any) -> Any:
    """Make a client's class over another one."""
    from openai._base_client import get_platform
    from openai.types.chat import ChatCompletionChunk

    class Lighter(kind):  # type: ignore[misc]
        @property
        def _platform(self) -> Any:
            return platform

        @_platform.setter
        def _platform(self, found: Any) -> None:
            """A new client does not know it yet."""

        def _process_response_data(self, **given: Any) -> Any:
            if given.get("cast_to") is ChatCompletionChunk:
                try:
                    # Strict, as the SDK converts nothing either.
                    return ChatCompletionChunk.model_validate(given.get("data"), strict=True)
                except ValidationError:
                    pass
            return super()._process_response_data(**given)

    platform = get_platform()
    return Lighter
