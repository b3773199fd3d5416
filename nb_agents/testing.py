"""A scripted model for tests, without a network or an LLM.

Example:
    >>> from nb_agents.testing import Answer, ScriptedModel, Vote
    >>> model = ScriptedModel(Answer("42"), Vote("agent1"))

`scripted_team` makes a team of scripted models:

    team = scripted_team(
        a=ScriptedModel(Answer("42"), Vote("agent1")),
        b=ScriptedModel(Answer("41"), Vote("agent1")),
    )
    run = nb_agents.start("What is six times seven?", config=team)
    run.wait()

The last turn repeats when the script is used up, so a model can always answer.
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
    """Blocks a scripted model until the test opens the gate. Thread-safe.

    Example:
        >>> gate = Gate()
        >>> turn = Turn(text="one two ", gate=gate)
        >>> gate.open()
    """

    def __init__(self) -> None:
        self._first_call: Future[None] = Future()
        # A running future can't be cancelled by a waiting task.
        self._first_call.set_running_or_notify_cancel()
        # Models reach the gate on the loop thread, and the test waits on another.
        self._changed = threading.Condition()
        self.reached = 0

    def open(self) -> None:
        """Release the waiting models, and let later ones pass."""
        if not self._first_call.done():
            self._first_call.set_result(None)

    def wait_reached(self, count: int = 1, timeout_s: float = 60.0) -> None:
        """Block until models have reached the gate.

        Args:
            count: Number of times, counted from the creation of the gate.
            timeout_s: Seconds to wait.

        Raises:
            TimeoutError: The gate was reached fewer times.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.reached >= count, timeout_s):
                raise TimeoutError(f"The gate was reached {self.reached} times, not {count}.")

    async def wait(self) -> None:
        """Wait until the gate is open."""
        with self._changed:
            self.reached += 1
            self._changed.notify_all()
        await asyncio.wrap_future(self._first_call)


@dataclass(frozen=True)
class Turn:
    """One reply of a scripted model.

    Attributes:
        text: Text that is streamed word by word, before the calls.
        calls: Tool calls. Their arguments are streamed in chunks.
        delay_s: Seconds to wait after each word or chunk.
        gate: Gate at which to wait, between the text and the calls.
        error: Exception to raise after the text.
        hang: Whether to send nothing more after the text, without ending the stream.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    delay_s: float = 0.0
    gate: Gate | None = None
    error: Exception | None = None
    hang: bool = False


def Answer(content: str, **more: Any) -> Turn:
    """Return a turn that submits an answer. ``more`` is passed to `Turn`."""
    return Turn(calls=(Call(ANSWER.name, {"content": content}),), **more)


def Vote(agent_id: str, reason: str = "best", **more: Any) -> Turn:
    """Return a turn that votes for an agent such as "agent1". ``more`` is passed to `Turn`."""
    return Turn(calls=(Call(VOTE.name, {"agent_id": agent_id, "reason": reason}),), **more)


class ScriptedModel:
    """A backend that replies to requests with scripted turns, in order.

    It checks the order of the messages in each request as strictly as any model server.

    Args:
        turns: One turn per request. The last one repeats. A callable gets the messages and returns
            the turn.

    Attributes:
        requests: The messages of each request so far.
        open_streams: Number of currently open requests.
    """

    name = "scripted"
    server = ""
    calls_tools = True
    takes_images = True

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
        """Open a request; see `nb_agents.models.backend.Backend.stream`."""
        return self._backend.stream(messages, tools)

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        turn = self._turns[min(len(self.requests), len(self._turns) - 1)]
        self.requests.append(list(messages))
        _check_order(messages)
        self.open_streams += 1
        try:
            turn = turn(messages) if callable(turn) else turn
            async for delta in _deltas(turn, f"call_{len(self.requests)}"):
                yield delta
        finally:
            self.open_streams -= 1


def _check_order(messages: Sequence[ModelMessage]) -> None:
    """Raise AssertionError if a strict server would reject the order of messages."""
    calls: list[str] = []
    for number, message in enumerate(messages):
        kinds = [part.part_kind for part in message.parts]
        assert message.kind == ("response" if number % 2 else "request"), number
        if message.kind == "response":
            calls = [call.tool_call_id for call in message.tool_calls]
            continue
        if number == 0 and kinds[0] == "system-prompt":
            kinds.pop(0)
        assert kinds == (["tool-return"] * len(calls) if calls else ["user-prompt"]), kinds
        ids = [part.tool_call_id for part in message.parts if part.part_kind == "tool-return"]
        assert ids == calls, ids
    last = messages[-1]
    assert last.kind == "request" or last.state == "suspended", last.kind


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
        timeout_s: The orchestrator timeout in seconds.
        models: Agent ids and their models, in registration order.

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
