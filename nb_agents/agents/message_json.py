"""Reads and writes model messages in a journal, as pydantic-ai's JSON.

A journal stores each model's response (`ModelFinished.response`) in the format of the runner that
requested it. Only this module and `nb_agents.agents.model_runner` know that format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.events import RoundStarted

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_ai.messages import ModelMessage


class Opening(NamedTuple):
    """The first messages of a round.

    Attributes:
        system: The agent's role and rules.
        asks: The task, as one or more user messages.
    """

    system: str
    asks: tuple[str, ...]


class AskedCall(NamedTuple):
    """A tool call in a response.

    Attributes:
        tool: The tool's name.
        arguments: The arguments as JSON text.
    """

    tool: str
    arguments: str


def dump_messages(messages: Iterable[ModelMessage]) -> list[Any]:
    """Return messages as JSON."""
    dumped: list[Any] = _adapter().dump_python(list(messages), mode="json")
    return dumped


def load_messages(data: Iterable[Any]) -> list[ModelMessage]:
    """Return the messages of a JSON list.

    Raises:
        ValueError: The JSON does not contain messages.
    """
    return _adapter().validate_python(list(data))


def _adapter() -> TypeAdapter[list[ModelMessage]]:
    # Import the package first: two threads that import different modules of it can see each
    # other's half-initialized modules.
    from pydantic_ai import messages

    return messages.ModelMessagesTypeAdapter


def calls_of(response: Any) -> tuple[AskedCall, ...]:
    """Return the tool calls of a stored response, in order."""
    return tuple(
        AskedCall(str(part.get("tool_name")), _text(part.get("args")))
        for part in _parts(response)
        if part.get("part_kind") == "tool-call"
    )


def text_of(response: Any) -> str:
    """Return the text of a stored response."""
    parts = _parts(response)
    texts = (str(each.get("content") or "") for each in parts if each.get("part_kind") == "text")
    return "\n\n".join(texts).strip()


def opening_of(started: RoundStarted) -> Opening:
    """Return the first messages of a round, even from a journal of version 0.1."""
    if not started.request:
        return Opening(started.system, started.asks)
    parts = [part for message in started.request for part in _parts(message)]
    texts = {
        kind: tuple(str(p.get("content") or "") for p in parts if p.get("part_kind") == kind)
        for kind in ("system-prompt", "user-prompt")
    }
    return Opening("\n\n".join(texts["system-prompt"]), texts["user-prompt"])


def _parts(message: Any) -> Sequence[Mapping[str, Any]]:
    parts = message.get("parts") if isinstance(message, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
