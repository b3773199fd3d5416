"""Plays the rounds of an agent with the replies and tool results of a recording.

`ModelRound` does the work, so a replay takes the same decisions as a run. Only the model and the
tools are replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from nb_agents import events as ev
from nb_agents.agents.decisions import Decision
from nb_agents.agents.model_runner import ModelRound, opening_messages
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Promise, Round
from nb_agents.agents.spawning import SPAWNING_TOOLS
from nb_agents.agents.subagents import CALL_AGENT
from nb_agents.errors import ModelCallError
from nb_agents.extensions.replays.script import ReplayStep
from nb_agents.extensions.replays.stage import ReplayStage
from nb_agents.tools.base import Toolbox, ToolResult, current_call
from nb_agents.tools.task_plan import PLAN_TOOLS
from nb_agents.tools.workspace import FILE_TOOLS

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.tools import ToolDefinition

_OF_SUBAGENTS = frozenset({CALL_AGENT, *SPAWNING_TOOLS})
"""Tools that run: the sub-agents that they start answer from the recording."""
_OF_FILES = frozenset({*FILE_TOOLS, *PLAN_TOOLS})
"""Tools that run, because they only change the agent's workspace."""


class ReplayRunner:
    """An `nb_agents.agents.runner.AgentRunner` that answers from a recording.

    Args:
        stage: The state of the replay.
        name: The model's display name.
    """

    resumes: Promise = "exactly"

    def __init__(self, stage: ReplayStage, name: str) -> None:
        self.name = name
        self._stage = stage

    async def before_round(self, agent: str, number: int) -> None:
        """Wait until the recorded steps before a round have happened."""
        await self._stage.turn_of(ReplayStep("round", agent, number))

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`.

        Raises:
            ModelCallError: The replay differs from the recording.
        """
        stage, agent = self._stage, round.agent
        model = RecordedModel(stage, agent, self.name)
        emit = round.emit

        def observe(event: ev.Event) -> None:
            if isinstance(event, ev.ModelStarted) and event.agent == agent:
                model.call = event.call
            emit(event)

        round.emit = observe
        round.toolbox = _RecordedToolbox(stage, agent, round.toolbox)
        stage.done(ReplayStep("round", agent, round.number))
        loop = ModelRound(model, round)
        round.flush = loop.flush
        try:
            decision = await loop.run(opening_messages(round.opening))
        except ModelCallError:
            stage.done(ReplayStep("failure in round", agent, round.number))
            if stage.failure:
                raise ModelCallError(self.name, stage.reason_of(agent)) from None
            raise
        end = ReplayStep("decision in round", agent, round.number)
        if not await stage.turn_of(end):
            raise ModelCallError(self.name, stage.reason_of(agent))
        # The driver records the decision before another task of the loop runs.
        stage.done(end)
        return decision

    async def close(self) -> None:
        """Do nothing, because a replay opens no connections."""


class RecordedModel:
    """A `nb_agents.models.backend.Backend` with the replies of one agent.

    Args:
        stage: The state of the replay.
        agent: The agent's id.
        name: The model's display name.

    Attributes:
        call: The number of the request that is made next.
    """

    server = ""
    calls_tools = True

    def __init__(self, stage: ReplayStage, agent: str, name: str) -> None:
        self.name = name
        self.call = 0
        self._stage = stage
        self._agent = agent

    @asynccontextmanager
    async def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[StreamedResponse]:
        """Return the recorded reply; see `Backend.stream`."""
        stage, place = self._stage, (self._agent, self.call)
        stage.check(*place, messages)
        reply = stage.script.replies.get(place)
        stage.done(ReplayStep("request", *place))
        if reply is None and place not in stage.script.errors:
            await stage.until_failure()  # the other agents' decisions end this request
        await stage.take(ReplayStep("reply", *place))
        if stage.failure or reply is None:
            raise _NotReplayedError(stage.reason_of(self._agent) or stage.script.errors[place])
        yield _RecordedStream(reply)  # type: ignore[misc]


class _NotReplayedError(Exception):
    """Raised in a request that has no recorded reply. It is not retried."""


class _RecordedStream:
    """The part of pydantic-ai's stream that `ModelRound` uses, for a complete reply."""

    def __init__(self, reply: ModelResponse) -> None:
        self._reply = reply
        self.usage = reply.usage
        self.finish_reason = reply.finish_reason
        self.model_name = reply.model_name
        self.timestamp = reply.timestamp
        self.provider_name = reply.provider_name
        self.provider_url = reply.provider_url
        self.provider_details = reply.provider_details

    async def __aiter__(self) -> AsyncIterator[Any]:
        for event in _part_starts(self._reply):
            yield event

    def get(self) -> ModelResponse:
        return copy(self._reply)


def _part_starts(reply: ModelResponse) -> Iterator[Any]:
    from pydantic_ai.messages import PartStartEvent

    for number, part in enumerate(reply.parts):
        yield PartStartEvent(index=number, part=part)


class _RecordedToolbox(Toolbox):
    """An agent's tools, whose calls return the recorded results.

    Tools that only change the agent's workspace run as well, so that the files exist.
    """

    def __init__(self, stage: ReplayStage, agent: str, tools: Toolbox) -> None:
        super().__init__(tools.tools, tools.keep, tools.place)
        self._stage = stage
        self._agent = agent

    def with_tools(self, tools: Any) -> Toolbox:
        return _RecordedToolbox(self._stage, self._agent, super().with_tools(tools))

    def is_repeatable(self, name: str) -> bool:
        started = self._stage.script.calls.get((self._agent, current_call().id))
        return super().is_repeatable(name) if started is None else started.is_repeatable

    async def call(self, name: str, args: str | dict[str, Any] | None) -> ToolResult:
        stage, place = self._stage, (self._agent, current_call().id)
        recorded = stage.script.results.get(place)
        if recorded is None or recorded.outcome not in ("ok", "error"):
            await stage.until_failure()  # the other agents' decisions end this call
            return ToolResult(stage.failure, is_error=True)
        result = ToolResult(recorded.result, is_error=recorded.outcome == "error")
        tool = self._named(name)
        if tool is not None and name in _OF_SUBAGENTS:
            result = await tool.call(args)
        elif tool is not None and name in _OF_FILES and not (result.is_error or tool.asks):
            await tool.call(args)
        await stage.take(ReplayStep("tool call", *place))
        return result
