"""Reads the chunks of OpenAI's SDK by pydantic: a third less work for each token of its streams.

The SDK goes through each chunk field by field in Python, as it takes what no type describes. Most
chunks are as described; those pydantic makes, to the same objects, and the SDK makes the others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["read_by_pydantic"]


def read_by_pydantic(client: AsyncOpenAI) -> None:
    """Let pydantic make the chunks of a client's streams, and of those of its copies.

    This overrides a private method, which is why `pyproject.toml` bounds the SDK. Where the SDK
    calls it otherwise, or no more, the chunks are its own.

    Args:
        client: Changed in place.
    """
    kind: Any = type(client)
    client.__class__ = _reading(kind)


@cache
def _reading(kind: Any) -> Any:
    """Make a client's class over another one: pydantic-ai sends each request by a copy."""
    from openai.types.chat import ChatCompletionChunk

    class Reading(kind):  # type: ignore[misc]
        def _process_response_data(self, **given: Any) -> Any:
            if given.get("cast_to") is ChatCompletionChunk:
                try:
                    # Strict, as the SDK converts nothing either.
                    return ChatCompletionChunk.model_validate(given.get("data"), strict=True)
                except ValidationError:
                    pass
            return super()._process_response_data(**given)

    return Reading
