"""Tokens and cost of model calls, including calls whose reply was not completed.

Providers report usage at different times. OpenAI-compatible providers send it in the last event.
Anthropic sends prompt tokens in the first event and output tokens in the last. Google sends both in
every event. Whatever a provider has not reported is estimated from the text sent and received.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nb_agents.events import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.usage import RequestUsage

CHARS_PER_TOKEN = 4
"""Average for English text, in the tokenizers of all providers."""

REPORT_STEP = 250
"""Number of new tokens after which the usage of a running call is written to the journal again.

If the process is killed, at most this many tokens of each running call are not counted.
"""


def usage_of(response: ModelResponse, *, is_free: bool = False) -> Usage:
    """Return the tokens and cost of a response.

    Args:
        response: A finished response.
        is_free: Whether the model's calls cost nothing.

    Returns:
        The tokens and the cost. The cost is None if genai-prices, which works offline, does not
            know the model.
    """
    usage, cost = response.usage, 0.0 if is_free else cost_of(response)
    return Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=cost)


def cost_of(response: ModelResponse) -> float | None:
    """Return the cost of a response in US dollars, or None if the model's price is unknown.

    The price is that of the service tier with which the provider says it made the reply.
    """
    try:
        cost = float(response.cost().total_price)
        # genai-prices has the prices of most tiers; without one, it uses the standard price.
        share = _share_of_tier(response)
        if share < 1 and cost == float(replace(response, provider_details=None).cost().total_price):
            cost *= share
    except (LookupError, AssertionError, ValueError):
        # ValueError: the server sent no usage, because some local ones do.
        return None
    return cost


BATCH_TIER = {"processing": "batch"}
"""The details of replies from a batch, as pydantic-ai and genai-prices name them."""

_TIER_SHARES = {
    ("google", "service_tier", "flex"): 0.5,
    ("openai", "processing", "batch"): 0.5,
    ("anthropic", "processing", "batch"): 0.5,
}
"""The price of a tier as a share of the standard price, if genai-prices doesn't have it.

The keys are the provider, and a key and value of the details that it reports with a reply.

Source: https://ai.google.dev/gemini-api/docs/flex-inference,
https://platform.openai.com/docs/guides/batch and
https://platform.claude.com/docs/en/build-with-claude/batch-processing
"""


def _share_of_tier(response: ModelResponse) -> float:
    details = response.provider_details or {}
    return math.prod(
        share
        for (provider, key, value), share in _TIER_SHARES.items()
        if (response.provider_name or "").startswith(provider) and details.get(key) == value
    )


def estimated_tokens(chars: int) -> int:
    """Return the approximate number of tokens in this many characters of text."""
    return -(-chars // CHARS_PER_TOKEN)


class UsageMeter:
    """Counts the tokens and cost of a running model call.

    Args:
        sent_chars: Returns the number of characters that were sent; called at most once.
        received_chars: Returns the number of characters that have arrived.
        price: Returns the cost of tokens in US dollars, or None if it is unknown.
    """

    def __init__(
        self,
        sent_chars: Callable[[], int],
        received_chars: Callable[[], int],
        price: Callable[[int, int], float | None] = lambda sent, received: None,
    ) -> None:
        self._sent_chars = sent_chars
        self._received_chars = received_chars
        self._price = price
        self._estimated_input = -1
        self._reported = (0, 0)
        self._reported_chars = 0
        self._journalled = 0

    def report(self, input_tokens: int, output_tokens: int) -> None:
        """Record the totals that the provider has reported for the text that arrived so far."""
        if output_tokens != self._reported[1]:
            self._reported_chars = self._received_chars()
        self._reported = input_tokens, output_tokens

    def usage(self) -> Usage:
        """Return the usage so far. `estimated` is True if some of it has not been reported."""
        sent, received = self._tokens()
        is_reported = self._reported[0] and self._reported_chars == self._received_chars()
        cost = self._price(sent, received)
        return Usage(
            input_tokens=sent, output_tokens=received, cost=cost, estimated=not is_reported
        )

    def growth(self, step: int = REPORT_STEP) -> Usage | None:
        """Return the usage so far if it has grown by `step` tokens since this last returned it."""
        total = sum(self._tokens())
        if total - self._journalled < step:
            return None
        self._journalled = total
        return self.usage()

    def _tokens(self) -> tuple[int, int]:
        sent, received = self._reported
        unreported = self._received_chars() - self._reported_chars
        return sent or self._estimate(), received + estimated_tokens(unreported)

    def _estimate(self) -> int:
        if self._estimated_input < 0:
            self._estimated_input = estimated_tokens(self._sent_chars())
        return self._estimated_input


class StreamMeter(UsageMeter):
    """Counts the tokens and cost of a pydantic-ai stream.

    Args:
        sent_chars: Returns the number of characters that were sent; called at most once.
        received_chars: Returns the number of characters that have arrived.
        is_free: Whether the model's calls cost nothing.
    """

    def __init__(
        self,
        stream: StreamedResponse,
        sent_chars: Callable[[], int],
        received_chars: Callable[[], int],
        *,
        is_free: bool = False,
    ) -> None:
        def price(sent: int, received: int) -> float | None:
            return 0.0 if is_free else _price_of(stream, sent, received)

        super().__init__(sent_chars, received_chars, price)
        self._stream = stream

    def update(self) -> None:
        """Record the reported usage. Call this after each event of the stream."""
        usage = self._stream.usage
        if (usage.input_tokens, usage.output_tokens) != self._reported:
            self.report(usage.input_tokens, usage.output_tokens)

    def usage(self) -> Usage:
        """Return the usage so far; see `UsageMeter.usage`."""
        self.update()
        return super().usage()


def _price_of(stream: StreamedResponse, sent: int, received: int) -> float | None:
    from pydantic_ai.messages import ModelResponse

    usage: RequestUsage = copy(stream.usage)
    usage.input_tokens, usage.output_tokens = sent, received
    usage.unmeasured_requests = 0
    priced = ModelResponse(
        parts=[],
        usage=usage,
        model_name=stream.model_name,
        timestamp=stream.timestamp,
        provider_name=stream.provider_name,
        provider_url=stream.provider_url,
        provider_details=stream.provider_details,
    )
    return cost_of(priced)


def _chars_in(part: Any, *names: str) -> int:
    return sum(_size(getattr(part, name, None)) for name in names)


def _size(value: Any) -> int:
    """Return the number of characters of all text in a value; files don't count."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _size(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return len(str(value)) if isinstance(value, int | float) else 0


def sent_chars(messages: Iterable[ModelMessage], tools: Sequence[ToolDefinition] = ()) -> int:
    """Return the number of characters of text in a request.

    Args:
        messages: The conversation.
        tools: The tools that are offered to the model.
    """
    parts = (part for message in messages for part in message.parts)
    schemas = (_size([tool.name, tool.description, tool.parameters_json_schema]) for tool in tools)
    return sum(_chars_in(part, "content", "args") for part in parts) + sum(schemas)
