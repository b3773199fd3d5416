"""The form of a model's messages in a journal: pydantic-ai's JSON, which is read here alone.

A journal holds what each model answered (`ModelFinished.response`) in the form of the runner that
asked it; to everybody but `nb_agents.agents.model_runner` it is opaque, down to the few facts here.
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
        asks: The task: one or more user messages.
    """

    system: str
    asks: tuple[str, ...]


class AskedCall(NamedTuple):
    """A call of a tool that a response asks for.

    Attributes:
        tool: The tool's name.
        arguments: Its arguments, as JSON text.
    """

    tool: str
    arguments: str


def dump_messages(messages: Iterable[ModelMessage]) -> list[Any]:
    """Return messages as JSON."""
    dumped: list[Any] = _adapter().dump_python(list(messages), mode="json")
    return dumped


def load_messages(data: Iterable[Any]) -> list[ModelMessage]:
    """Return the messages in JSON.

    Raises:
        ValueError: The JSON does not hold messages.
    """
    return _adapter().validate_python(list(data))


def _adapter() -> TypeAdapter[list[ModelMessage]]:
    # The package first: two threads that begin with different modules of it see each other's half.
    from pydantic_ai import messages

    return messages.ModelMessagesTypeAdapter


def calls_of(response: Any) -> tuple[AskedCall, ...]:
    """Return the calls of tools that a stored response asks for, in order."""
    return tuple(
        AskedCall(str(part.get("tool_name")), _text(part.get("args")))
        for part in _parts(response)
        if part.get("part_kind") == "tool-call"
    )


def opening_of(started: RoundStarted) -> Opening:
    """Return how a round opened; journals of version 0.1 hold it as messages."""
    if not started.request:
        return Opening(started.system, started.asks)
    parts = [part for message in started.request for part in _parts(message)]
    said = {
        kind: tuple(str(p.get("content") or "") for p in parts if p.get("part_kind") == kind)
        for kind in ("system-prompt", "user-prompt")
    }
    return Opening("\n\n".join(said["system-prompt"]), said["user-prompt"])


def _parts(message: Any) -> Sequence[Mapping[str, Any]]:
    parts = message.get("parts") if isinstance(message, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
