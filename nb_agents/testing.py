"""A scripted model, for our tests and yours: no network, no LLM, every case at will.

Example:
    >>> from nb_agents.testing import Answer, ScriptedModel, Vote
    >>> model = ScriptedModel(Answer("42"), Vote("agent1"))

A team of them is an ordinary config:

    team = scripted_team(
        a=ScriptedModel(Answer("42"), Vote("agent1")),
        b=ScriptedModel(Answer("41"), Vote("agent1")),
    )
    run = nb_agents.start("What is six times seven?", config=team)
    run.wait()

The last turn repeats when the script is used up, so a script always has an end.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from nb_agents.config.decision_tools import ANSWER, VOTE
from nb_agents.config.team import TeamSpec
from nb_agents.models.backend import Backend, PydanticBackend
from nb_agents.models.providers import load

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.models.function import AgentInfo
    from pydantic_ai.tools import ToolDefinition

__all__ = ["Answer", "Call", "Gate", "ScriptedModel", "Turn", "Vote", "scripted_team"]


@dataclass(frozen=True)
class Call:
    """A tool call.

    Attributes:
        tool: The tool's name.
        args: Its arguments.
    """

    tool: str
    args: dict[str, Any] = field(default_factory=dict)


class Gate:
    """Holds a model at a point until the test lets it go; thread-safe and needs no sleeping.

    Example:
        >>> gate = Gate()
        >>> turn = Turn(text="one two ", gate=gate)
        >>> gate.open()
    """

    def __init__(self) -> None:
        self._opened: Future[None] = Future()
        # A running future can't be cancelled by those who wait for it.
        self._opened.set_running_or_notify_cancel()
        # Separates the loop thread, where models come to the gate, from the test's.
        self._changed = threading.Condition()
        self.reached = 0

    def open(self) -> None:
        """Release the model, and all later calls."""
        if not self._opened.done():
            self._opened.set_result(None)

    def wait_reached(self, count: int = 1, timeout_s: float = 60.0) -> None:
        """Block until models have come to the gate.

        Args:
            count: How many times, since the gate was made.
            timeout_s: Seconds to wait.

        Raises:
            TimeoutError: They did not come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.reached >= count, timeout_s):
                raise TimeoutError(f"The gate was reached {self.reached} times, not {count}.")

    async def wait(self) -> None:
        """Wait until the gate is open."""
        with self._changed:
            self.reached += 1
            self._changed.notify_all()
        await asyncio.wrap_future(self._opened)


@dataclass(frozen=True)
class Turn:
    """One reply of a scripted model.

    Attributes:
        text: Streamed word by word, before the calls.
        calls: Tool calls, their arguments streamed in pieces.
        delay_s: Seconds to wait before each word or piece.
        gate: Waited for after the text, before the calls; once per turn.
        error: Raised after the text instead of finishing.
        hang: Go silent for ever after the text.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    delay_s: float = 0.0
    gate: Gate | None = None
    error: Exception | None = None
    hang: bool = False


def Answer(content: str, **more: Any) -> Turn:
    """Return a turn that submits an answer; ``more`` is passed to `Turn`."""
    return Turn(calls=(Call(ANSWER.name, {"content": content}),), **more)


def Vote(agent_id: str, reason: str = "best", **more: Any) -> Turn:
    """Return a turn that votes for ``agent1`` …; ``more`` is passed to `Turn`."""
    return Turn(calls=(Call(VOTE.name, {"agent_id": agent_id, "reason": reason}),), **more)


class ScriptedModel:
    """A backend that plays turns in order.

    Args:
        turns: What it does at each request; the last repeats. A callable is given the messages
            and returns the turn.

    Attributes:
        requests: The messages of each request so far.
        open_streams: Requests that are open now.
    """

    name = "scripted"
    server = ""
    calls_tools = True

    def __init__(self, *turns: Turn | Callable[[list[ModelMessage]], Turn]) -> None:
        load()
        from pydantic_ai.models.function import FunctionModel

        self._turns = turns or (Turn(text="(nothing scripted)"),)
        self.requests: list[list[ModelMessage]] = []
        self.open_streams = 0
        self._backend = PydanticBackend(FunctionModel(stream_function=self._play), self.name)

    def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Open one request; see `nb_agents.models.backend.Backend.stream`."""
        return self._backend.stream(messages, tools)

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        turn = self._turns[min(len(self.requests), len(self._turns) - 1)]
        self.requests.append(list(messages))
        self.open_streams += 1
        try:
            turn = turn(messages) if callable(turn) else turn
            async for delta in _deltas(turn, f"call_{len(self.requests)}"):
                yield delta
        finally:
            self.open_streams -= 1


async def _deltas(turn: Turn, call_id: str) -> AsyncIterator[Any]:
    from pydantic_ai.models.function import DeltaToolCall

    for word in re.findall(r"\S+\s*", turn.text) or [""]:
        yield word
        await anyio.sleep(turn.delay_s)
    if turn.gate:
        await turn.gate.wait()
    if turn.error:
        raise turn.error
    if turn.hang:
        await anyio.sleep_forever()
    for number, call in enumerate(turn.calls, 1):
        name: str | None = call.tool
        for piece in re.findall(r"\S+\s*", json.dumps(call.args)):
            yield {number: DeltaToolCall(name, piece, tool_call_id=f"{call_id}_{number}")}
            name = None
            await anyio.sleep(turn.delay_s)


def scripted_team(timeout_s: float | None = None, **models: Backend) -> TeamSpec:
    """Return a team of scripted models.

    Args:
        timeout_s: The orchestrator timeout, seconds.
        models: For each agent id, its model, in registration order.

    Returns:
        A team for `nb_agents.start`.
    """
    data: dict[str, Any] = {
        "agents": [
            {"id": agent, "backend": {"type": "python", "instance": model}}
            for agent, model in models.items()
        ]
    }
    if timeout_s is not None:
        data["timeout_settings"] = {"orchestrator_timeout_seconds": timeout_s}
    return TeamSpec.model_validate(data)
