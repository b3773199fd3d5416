"""What an agent needs of a model: a stream of pydantic-ai events for messages and tools.

The message types, their JSON, tool schemas, usage and prices are pydantic-ai's. Always streaming:
a server notices a lost client only then, so a stop ends the spending. The SDKs' own retries are
off, because each would be a model call that no stop can see; `nb_agents.models.retry` has ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.tools import ToolDefinition

from nb_agents.events import Usage

__all__ = ["Backend", "PydanticBackend", "usage_of"]


class Backend(Protocol):
    """A model that an agent can speak to."""

    @property
    def name(self) -> str:
        """The model's name as a person knows it."""
        ...

    def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Open one request.

        Args:
            messages: The conversation so far, ending in a request.
            tools: What the model may call.

        Returns:
            A context manager over pydantic-ai's stream: iterate it for events, then `get()` for
            the whole response. Leaving the context closes the connection.
        """
        ...


class PydanticBackend:
    """A backend over any pydantic-ai model.

    Args:
        model: The model.
        name: Its name for a person; by default the model's own.
        settings: pydantic-ai model settings, such as temperature.
    """

    def __init__(
        self, model: Model, name: str = "", settings: dict[str, Any] | None = None
    ) -> None:
        self._model = model
        self._settings: Any = {**(settings or {}), "max_retries": 0}
        self.name = name or model.model_name

    def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Open one request; see `Backend.stream`."""
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.models import ModelRequestParameters

        return model_request_stream(
            self._model,
            messages,
            model_request_parameters=ModelRequestParameters(
                function_tools=list(tools), allow_text_output=True
            ),
            model_settings=self._settings,
        )


def usage_of(response: ModelResponse) -> Usage:
    """Sum up what a response used.

    Args:
        response: A finished response.

    Returns:
        Tokens, and the cost where genai-prices (offline data) knows the model, else None.
    """
    try:
        cost: float | None = float(response.cost().total_price)
    except (LookupError, AssertionError, ValueError):
        # ValueError: the server told no usage, as some local ones do.
        cost = None
    usage = response.usage
    return Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=cost)
