"""Requests to models, and the words that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nb_agents.events.base_event import BaseEvent, Count, Dollars, Seconds

__all__ = [
    "Channel",
    "ModelCut",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "TextStreamed",
    "Usage",
]

Channel = Literal["text", "thinking", "answer", "call"]
"""What streamed words are: plain text, reasoning, an answer, or the JSON of another tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a model call used.

    Attributes:
        input_tokens: Tokens sent.
        output_tokens: Tokens received.
        cost: US dollars, or None when no price is known for the model.
    """

    input_tokens: Count = 0
    output_tokens: Count = 0
    cost: Dollars | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStarted(BaseEvent):
    """A model request is about to be sent; ``call`` counts the agent's requests from 1."""

    agent: str
    call: Count
    attempt: Count = 1
    kind: Literal["model_started"] = "model_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(BaseEvent):
    """Words that arrived since the last such event of this call and channel."""

    agent: str
    call: Count
    channel: Channel
    text: str
    tool: str = ""
    kind: Literal["text_streamed"] = "text_streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFinished(BaseEvent):
    """A model request ended well; ``response`` is pydantic-ai's JSON of the whole message."""

    agent: str
    call: Count
    response: Any
    usage: Usage
    kind: Literal["model_finished"] = "model_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed(BaseEvent):
    """An attempt failed.

    Attributes:
        error: Why, for people.
        retry_in_s: Seconds until the next attempt; None when this was the last.
        is_throttled: Whether the server refused it because there are too many requests.
    """

    agent: str
    call: Count
    error: str
    retry_in_s: Seconds | None = None
    is_throttled: bool = False
    kind: Literal["model_failed"] = "model_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCut(BaseEvent):
    """A model request was cut by an immediate stop; its words so far are kept."""

    agent: str
    call: Count
    kind: Literal["model_cut"] = "model_cut"
