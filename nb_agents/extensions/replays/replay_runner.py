"""Plays the rounds of an agent with the replies and tool results of a recording.

`ModelRound` does the work, so a replay takes the same decisions as a run. Only the model and the
tools are replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from nb_agents import events as ev
from nb_agents.agents.context_folding import ContextFolder, Folding, Summarize
from nb_agents.agents.decisions import Decision
from nb_agents.agents.folded_history import History
from nb_agents.agents.model_runner import ModelRound, load_round, opening_messages
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Promise, Round
from nb_agents.agents.spawning import SPAWNING_TOOLS
from nb_agents.agents.subagents import CALL_AGENT
from nb_agents.cancel import CancelToken, bind
from nb_agents.config.context_keys import ContextSpec
from nb_agents.errors import ModelCallError
from nb_agents.extensions.replays.script import (
    ReplayStep,
    RoundScript,
    opening_of_round,
    step_of_call,
)
from nb_agents.extensions.replays.stage import RecordedFailureError, ReplayStage
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
        agent: The agent's id.
        name: The model's display name.
    """

    def __init__(self, stage: ReplayStage, agent: str, name: str) -> None:
        self.name = name
        self.resumes = cast(Promise, stage.script.promises.get(agent, "exactly"))
        self._stage = stage

    async def before_round(self, agent: str, number: int) -> None:
        """Wait until the recorded steps before a round have happened.

        A round that the recording does not contain waits for the stop that ended its agent.
        """
        step = ReplayStep("round", agent, number)
        await self._stage.until_stop_before(step)
        await self._stage.turn_of(step)

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`.

        Raises:
            ModelCallError: The replay differs from the recording.
        """
        stage, agent = self._stage, round.agent
        await stage.turn_of(ReplayStep("round", agent, round.number))
        stage.done(ReplayStep("round", agent, round.number))
        try:
            decision = await self._play(round, past)
        except ModelCallError:
            stage.done(ReplayStep("failure in round", agent, round.number))
            if stage.failure:
                raise ModelCallError(self.name, stage.reason_of(agent)) from None
            raise
        if stage.ends_undecided(agent, round.number):
            round.decision = None
            await stage.until_stop(stage.upcoming(agent))
        end = ReplayStep("decision in round", agent, round.number)
        if not await stage.turn_of(end):
            raise ModelCallError(self.name, stage.reason_of(agent))
        # The driver records the decision before another task of the loop runs.
        stage.done(end)
        return decision

    async def _play(self, round: Round, past: PastRound | None) -> Decision:
        stage, agent = self._stage, round.agent
        if (played := stage.script.rounds.get((agent, round.number))) is not None:
            return await self._repeat(round, played)
        model = RecordedModel(stage, agent, self.name)
        emit = round.emit

        def observe(event: ev.Event) -> None:
            if isinstance(event, ev.ModelStarted) and event.agent == agent:
                model.call, model.attempt = event.call, event.attempt
            emit(event if stage.failure else stage.script.as_recorded(event, model.attempt))
            # Some calls don't reach the toolbox, such as those after the time for tools is over.
            if (step := step_of_call(event)) is not None:
                stage.done(step)

        round.emit = observe
        round.toolbox = _RecordedToolbox(stage, agent, round.toolbox)
        loop = ModelRound(model, round, RecordedFolding(stage, self.name))
        round.flush, round.can_fold = loop.flush, True
        opening = past.opening if past else round.opening
        return await loop.run(opening_messages(opening), past and load_round(past))

    async def _repeat(self, round: Round, played: RoundScript) -> Decision:
        """Record the events of a round again, whose runner is not simulated."""
        stage, agent = self._stage, round.agent
        if played.started is not None:
            recorded = opening_of_round(played.started)
            stage.check_opening(agent, round.number, recorded, opening_messages(round.opening))
        for step, event in played.events:
            if not await stage.turn_of(step):
                raise ModelCallError(self.name, stage.reason_of(agent))
            round.emit(replace(event, seq=0, at=0.0))
            if isinstance(event, ev.ModelStarted):
                stage.requests += 1
            stage.done(step)
        decision = stage.script.decisions.get((agent, round.number))
        if decision is None:
            await stage.until_stop(stage.upcoming(agent))
        if decision is None or stage.failure:
            raise ModelCallError(self.name, stage.reason_of(agent))
        if isinstance(decision, str):
            await stage.turn_of(ReplayStep("failure in round", agent, round.number))
            raise ModelCallError(self.name, decision.removeprefix(f"{self.name}: "))
        return decision

    async def close(self) -> None:
        """Do nothing, because a replay opens no connections."""


class RecordedFolding(Folding):
    """Folds conversations where the recording folded them.

    Args:
        stage: The state of the replay.
        model: The model's display name.
    """

    def __init__(self, stage: ReplayStage, model: str) -> None:
        super().__init__(ContextSpec(), model=model)
        self._stage = stage

    def folder(self, round: Round, summarize: Summarize) -> ContextFolder:
        """Return an object that folds the conversation of one round; see `Folding`."""
        return _RecordedFolder(self, round, summarize, self._stage)


class _RecordedFolder(ContextFolder):
    """Folds one conversation with the recorded events."""

    def __init__(
        self, folding: Folding, round: Round, summarize: Summarize, stage: ReplayStage
    ) -> None:
        super().__init__(folding, round, summarize)
        self._stage = stage
        self._ask = summarize
        self._of_round = round

    async def fold_if_needed(self, history: History) -> None:
        stage, agent = self._stage, self._of_round.agent
        self._of_round.fold_request = None
        while (step := stage.upcoming(agent)) is not None:
            if step.kind == "fold":
                event = stage.script.folds[agent][int(step.name) - 1]
                await stage.turn_of(step)
                history.fold(event)
                self._of_round.emit(replace(event, seq=0, at=0.0))
                stage.done(step)
            elif step.kind == "request" and stage.is_summary(step):
                await self._ask(None, [])
            else:
                return

    async def count(self, messages: list[ModelMessage], response: ModelResponse) -> None:
        """Do nothing, because no size decides when to fold."""


class RecordedModel:
    """A `nb_agents.models.backend.Backend` with the replies of one agent.

    Args:
        stage: The state of the replay.
        agent: The agent's id.
        name: The model's display name.

    Attributes:
        call: The number of the request that is made next.
        attempt: The number of the attempt at it.
    """

    server = ""
    calls_tools = True

    def __init__(self, stage: ReplayStage, agent: str, name: str) -> None:
        self.name = name
        self.call = self.attempt = 0
        self._stage = stage
        self._agent = agent

    @asynccontextmanager
    async def stream(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[StreamedResponse]:
        """Return the recorded reply; see `Backend.stream`."""
        stage, agent, call = self._stage, self._agent, self.call
        attempt, place = f"{call}.{self.attempt}", (agent, call)
        stage.check(*place, messages)
        stage.done(ReplayStep("request", agent, attempt))
        failed = stage.script.failures.get((agent, call, self.attempt))
        if failed is not None and not stage.failure:
            await stage.take(ReplayStep("failure of request", agent, attempt))
            text, is_retried = failed.error, failed.retry_in_s is not None
            raise RecordedFailureError(stage.reason_of(agent) or text, is_retried=is_retried)
        reply = stage.script.replies.get(place)
        if reply is None and not stage.failure:
            cut = stage.script.cuts.get(place)
            if cut is None or cut.usage is None:  # the stop came before the first chunk
                await stage.until_stop(ReplayStep("end of request", agent, call))
            yield _CutStream(stage, place)  # type: ignore[misc]
        await stage.take(ReplayStep("reply", agent, call))
        if stage.failure or reply is None:
            raise RecordedFailureError(stage.reason_of(agent))
        yield _RecordedStream(reply)  # type: ignore[misc]


class _CutStream:
    """A stream with the text of a reply that a stop has cut."""

    finish_reason = model_name = timestamp = provider_name = provider_url = provider_details = None

    def __init__(self, stage: ReplayStage, place: tuple[str, int]) -> None:
        from pydantic_ai.usage import RequestUsage

        self.usage = RequestUsage()
        self._stage = stage
        self._place = place

    async def __aiter__(self) -> AsyncIterator[Any]:
        from pydantic_ai.messages import PartStartEvent, TextPart

        stage, (agent, call) = self._stage, self._place
        if text := stage.script.partial.get(self._place):
            yield PartStartEvent(index=0, part=TextPart(text))
        # The stop, or the other agents' decisions, end this request.
        await stage.until_stop(ReplayStep("end of request", agent, call))
        raise RecordedFailureError(stage.reason_of(agent))


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
        end = ReplayStep("tool call", *place)
        recorded = stage.script.results.get(place)
        if recorded is None or recorded.outcome not in ("ok", "error"):
            await stage.until_stop(end)  # or the other agents' decisions end this call
            return ToolResult(stage.failure, is_error=True)
        result = ToolResult(recorded.result, is_error=recorded.outcome == "error")
        tool = self._named(name)
        if tool is not None and name in _OF_SUBAGENTS:
            result = await tool.call(args)
        elif tool is not None and name in _OF_FILES and not (result.is_error or tool.asks):
            # The recorded call ended by itself, so a recorded stop must not end it.
            with anyio.CancelScope(shield=True), bind(CancelToken("recorded call")):
                await tool.call(args)
        await stage.take(end)
        return result
