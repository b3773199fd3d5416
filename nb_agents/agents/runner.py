"""The protocol of agent runners, which play an agent's rounds.

Team members, recipe steps and sub-agents get their runner from `Runners` and don't depend on its
kind. A runner gets a `Round`, emits events, stops at boundaries, and returns a decision. Stopping
works like this:

    graceful     finish the current work and begin nothing new: `Round.scope.checkpoint` raises
    immediate    `play` is cancelled: close connections, emit the text received so far, re-raise

Emitted events are never lost. A resume passes the same round with its `PastRound`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.decisions import Decision, RoundContext
from nb_agents.agents.message_json import Opening
from nb_agents.agents.replay import PastRound
from nb_agents.agents.stop_scope import StopScope, current_policy
from nb_agents.config.team import AgentSpec
from nb_agents.errors import error_message
from nb_agents.models.failures import is_throttled
from nb_agents.models.retry import Wait
from nb_agents.models.tool_rules import ANY_MODEL, ToolRules
from nb_agents.models.usage import UsageMeter
from nb_agents.tools.base import Toolbox, summarize
from nb_agents.tools.gate import ToolGate
from nb_agents.unicode import well_formed

Promise = Literal["exactly", "in steps", "goes on", "starts again"]
"""What a runner guarantees about a resume.

In this order: no finished call is repeated; the agent starts again, but finished steps and calls
are not repeated; it continues from a summary of its text and calls; it starts from the beginning.
"""


@dataclass
class Round:
    """One round of an agent, as passed to a runner.

    Attributes:
        agent: The agent's id, or the address of its step.
        number: The round's number, starting at 1.
        opening: The first messages of the round.
        toolbox: The agent's tools, without the decision tools.
        context: The decisions that the agent may make, and the notes that it gets.
        emit: Called with each event.
        scope: The stop scope of the round.
        workspace: The agent's workspace.
        task: The task or the step's prompt, without instructions.
        calls: The number of model calls that the agent has started.
        seen: The number of answers of each agent in the opening.
        heard: The number of the user's messages in the opening.
        decision: The decision. A runner sets it early, so that a later interruption can't lose it.
        flush: Emits the text received since the last flush. By default, the text of `call`.
        can_fold: Whether its runner folds the conversation on request.
        fold_request: What the user wants to keep when the conversation is folded next. None if
            there is no such request.
    """

    agent: str
    number: int
    opening: Opening
    toolbox: Toolbox
    context: RoundContext
    emit: Callable[[ev.Event], None]
    scope: StopScope
    workspace: Path = field(default_factory=Path)
    task: str = ""
    calls: int = 0
    seen: Mapping[str, int] = field(default_factory=dict)
    heard: int = 0
    decision: Decision | None = None
    can_fold: bool = False
    fold_request: str | None = None
    flush: Callable[[], None] = field(init=False)
    _open: list[TextStream] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.flush = self._flush_calls

    def _flush_calls(self) -> None:
        for words in tuple(self._open):
            words.flush()

    def begin_tool(self, call_id: str, tool: str, args: Any, **more: Any) -> None:
        """Emit the start of a tool call. ``more`` contains additional fields of `ToolStarted`."""
        more.setdefault("summary", summarize(tool, args))
        self.emit(ev.ToolStarted(agent=self.agent, call_id=call_id, tool=tool, args=args, **more))

    def end_tool(
        self,
        call_id: str,
        tool: str,
        outcome: Any,
        result: str,
        began: float | None = None,
        **more: Any,
    ) -> None:
        """Emit the end of a tool call, even if it never started or is still running in its thread.

        Args:
            call_id: The call's id.
            tool: The tool's name.
            outcome: The outcome, as in `ToolFinished`.
            result: The result for the model.
            began: The start time on the event loop's clock. None means that it never started.
            more: Additional fields of `ToolFinished`.
        """
        took = 0.0 if began is None else anyio.current_time() - began
        self.emit(
            ev.ToolFinished(
                agent=self.agent,
                call_id=call_id,
                tool=tool,
                outcome=outcome,
                result=str(result),
                seconds=round(took, 3),
                **{"size": len(result), **more},
            )
        )

    @asynccontextmanager
    async def call(
        self,
        place: str = "",
        digest: str = "",
        model: str = "",
        attempt: int = 0,
        waited_s: float = 0.0,
    ) -> AsyncIterator[TextStream]:
        """Record a model call. The block writes the call's text to the yielded stream.

        The call is recorded as finished when the block completes, as cut if it is stopped, and as
        failed if it raises.

        Args:
            place: The address of the call within an agent function, or "".
            digest: A digest of the messages.
            model: The model's name, if the agent chooses it itself.
            attempt: The number of the attempt, starting at 1. 0 if the run's retry policy does not
                apply.
            waited_s: Seconds since the first attempt failed.
        """
        self.calls += 1
        call = self.calls
        words = TextStream(self.agent, call, self.emit, place)
        self._open.append(words)
        self.emit(
            ev.ModelStarted(
                agent=self.agent,
                call=call,
                attempt=attempt or 1,
                place=place,
                digest=digest,
                model=model,
            )
        )
        try:
            yield words
        except Exception as exc:
            if attempt:
                words.wait = await current_policy().retry_after(exc, attempt, waited_s)
            self.emit(
                ev.ModelFailed(
                    agent=self.agent,
                    call=call,
                    error=error_message(exc),
                    is_throttled=is_throttled(exc),
                    usage=words.end(),
                    place=place,
                    **wait_fields(words.wait),
                )
            )
            raise
        except BaseException:  # a stop, or the agent decided in another call
            self.emit(ev.ModelCut(agent=self.agent, call=call, usage=words.end()))
            raise
        finally:
            self._open.remove(words)
        words.finish()


def wait_fields(wait: Wait | None) -> dict[str, Any]:
    """Return the fields of a `ModelFailed` that say when the call is tried again.

    Args:
        wait: The delay before the next attempt, or None after the last one.
    """
    if wait is None or not wait.reason:
        return {"retry_in_s": None if wait is None else wait.delay_s}
    at = round(time.time() + wait.delay_s, 3)
    return {
        "retry_in_s": wait.delay_s,
        "waits_for": wait.reason,
        "retry_at": at,
        "wait_limit_s": wait.limit_s,
        "waited_s": round(wait.waited_s, 3),
    }


class TextStream:
    """The streamed text of one model call.

    Attributes:
        response: The response to record at the end. None records the text.
        form: The format of the response, as in `ModelFinished`.
        usage: The usage to record at the end, if it was reported.
        chars: The number of characters received so far, including those of tool calls.
        meter: Counts the usage while the reply streams. None if the call is not a model call.
        wait: After a failure, the delay before the next attempt. None after the last one.
    """

    def __init__(
        self, agent: str, call: int, emit: Callable[[ev.Event], None], address: str = ""
    ) -> None:
        self._agent, self._call, self._emit, self._place = agent, call, emit, address
        self.response: Any = None
        self.form = "words"
        self._wake = current_policy().wake
        self._new: dict[ev.Channel, list[str]] = {}
        self._text: list[str] = []
        self.usage = ev.Usage(input_tokens=0, output_tokens=0)
        self.chars = 0
        self.meter: UsageMeter | None = None
        self.wait: Wait | None = None

    @property
    def text(self) -> str:
        """The text received so far, without thoughts."""
        return "".join(self._text)

    def write(self, text: str, channel: ev.Channel = "text") -> None:
        """Add a chunk of text. This is cheap."""
        self.chars += len(text)
        self._new.setdefault(channel, []).append(text)
        if channel != "thinking":
            self._text.append(text)
        self._wake()

    def flush(self) -> None:
        """Emit the text that has arrived since the last flush."""
        new, self._new = self._new, {}
        for channel, pieces in new.items():
            text = well_formed("".join(pieces))
            self._emit(
                ev.TextStreamed(agent=self._agent, call=self._call, channel=channel, text=text)
            )
        if self.meter is not None and (usage := self._growth(self.meter)) is not None:
            self._emit(ev.UsageUpdated(agent=self._agent, call=self._call, usage=usage))

    @staticmethod
    def _growth(meter: UsageMeter) -> ev.Usage | None:
        return meter.growth(current_policy().spending.step)

    def end(self) -> ev.Usage | None:
        """Emit the rest of the text. Returns the known usage, or None."""
        meter, self.meter = self.meter, None
        self.flush()
        if meter is not None:
            return meter.usage()
        return None if self.usage == ev.Usage() else self.usage

    def finish(self) -> None:
        """Emit the event that ends the call."""
        self.end()
        text = {"text": well_formed(self.text)}
        self._emit(
            ev.ModelFinished(
                agent=self._agent,
                call=self._call,
                response=text if self.response is None else self.response,
                form=self.form,
                usage=self.usage,
                place=self._place,
            )
        )


class AgentRunner(Protocol):
    """Plays the rounds of one agent in one turn. In a recipe, several rounds may run in parallel.

    Attributes:
        name: The display name of its model or program.
        resumes: What it guarantees about a resume. Shown before a run starts, and on its card.
    """

    name: str
    resumes: Promise

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round until it is decided.

        Args:
            past: The journalled part of an interrupted round, or None for a new one.

        Raises:
            AgentStopped: A stop was requested.
            ModelCallError: The agent can't be reached, or made no decision.
        """
        ...

    async def close(self) -> None:
        """Close open connections and processes within one second."""
        ...


class Runners:
    """The runners of a turn's agents. Each is created when its first round begins.

    Args:
        make: Creates an agent's runner. May block.
        notice: Called with each notice for the user, which is one sentence.
    """

    def __init__(
        self,
        make: Callable[[AgentSpec], AgentRunner],
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._make = make
        self._gate = ToolGate(notice)
        self._lock = anyio.Lock()
        # Keyed by everything that a step's choice of a model can change. Specs are not hashable.
        self._made: dict[tuple[str, str, str], AgentRunner] = {}
        self._open: dict[int, Round] = {}
        self._fold_requests: dict[str, str] = {}

    async def of(self, agent: AgentSpec) -> AgentRunner:
        """Return an agent's runner, and create it if necessary."""
        key = (agent.id, agent.backend.type, agent.backend.model)
        if (runner := self._made.get(key)) is not None:
            return runner
        # Steps that start at the same moment share a runner, and call their models in order.
        async with self._lock:
            if key not in self._made:
                self._made[key] = await to_thread.run_sync(self._make, agent)
        return self._made[key]

    async def before_round(self, agent: AgentSpec, number: int) -> None:
        """Wait until an agent's runner lets a new round begin.

        Its prompt is made afterwards. Runners that replay a recording start rounds in its order.
        """
        if wait := getattr(await self.of(agent), "before_round", None):
            await wait(agent.id, number)

    async def play(self, agent: AgentSpec, round: Round, past: PastRound | None) -> Decision:
        """Play a new round, which is recorded first, or continue an interrupted one.

        Args:
            past: The journalled part of an interrupted round, or None for a new one.
        """
        runner = await self.of(agent)
        rules: ToolRules = getattr(runner, "tool_rules", ANY_MODEL)
        round.toolbox = await self._gate.admit(agent.id, round.toolbox, rules)
        if past is None:
            round.emit(
                ev.RoundStarted(
                    agent=round.agent,
                    number=round.number,
                    seen=dict(round.seen),
                    system=round.opening.system,
                    asks=round.opening.asks,
                    heard=round.heard,
                    resumes=runner.resumes,
                )
            )
        round.fold_request = self._fold_requests.pop(round.agent, None)
        self._open[id(round)] = round
        try:
            return await runner.play(round, past)
        finally:
            del self._open[id(round)]

    def request_fold(self, agent: str, keep: str) -> bool:
        """Request that an agent's conversation is folded before its next model request.

        Args:
            agent: The agent's id.
            keep: What the summary must keep, or "".

        Returns:
            Whether its conversation can be folded. Between two rounds, that of the next one is
            folded.
        """
        rounds = [each for each in self._open.values() if each.agent == agent]
        for each in rounds:
            each.fold_request = keep
        if not rounds:
            self._fold_requests[agent] = keep
        return all(each.can_fold for each in rounds)

    def flush(self) -> None:
        """Emit the text received so far in all rounds."""
        for round in tuple(self._open.values()):
            round.flush()

    async def close(self) -> None:
        """Close all runners."""
        for runner in self._made.values():
            with suppress(Exception):
                await runner.close()
