"""The protocol of an agent that plays rounds: our model loop, or any other implementation.

A team's member, a recipe's step and a sub-agent get their runner from `Runners` and don't depend on
its kind. A runner is handed a `Round` in neutral terms; it emits events, stops at boundaries, and
ends in a decision. The rules of stopping:

    graceful    work in hand is finished, and nothing new begins: `Round.scope.checkpoint` raises
    at once     `play` is cancelled: close what is open, emit what has arrived, re-raise

Whatever was emitted is kept. A resume hands over the same round with its `PastRound`.
"""

from __future__ import annotations

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
from nb_agents.errors import said_by
from nb_agents.tools.base import Toolbox, summarize
from nb_agents.unicode import well_formed

Promise = Literal["exactly", "in steps", "goes on", "starts again"]
"""What a resume of an agent promises: that it repeats no finished call; that it starts again, and
its finished steps and calls are kept; that it continues from a summary of what it said and did; or
that it starts again, with nothing kept."""


@dataclass
class Round:
    """One round of one agent: the input of a runner.

    Attributes:
        agent: The agent's id, or the address of its step.
        number: From 1.
        opening: The first messages of the round.
        toolbox: Its tools, besides those that decide.
        context: Which decisions it may make, and the notes that it gets.
        emit: Called with each event.
        scope: Where a stop takes effect.
        workspace: Its directory.
        task: What is asked, alone: the task, or a step's prompt.
        calls: How many model calls it has begun before.
        seen: For each agent with answers, how many of them the opening shows.
        heard: How many of the user's follow-up texts are in it.
        decision: The decision, as soon as it is known: a cut afterwards does not lose it.
        flush: Emits the words that have arrived since the last time; by default those of `call`.
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
    flush: Callable[[], None] = field(init=False)
    _open: list[WordStream] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.flush = self._flush_calls

    def _flush_calls(self) -> None:
        for words in tuple(self._open):
            words.flush()

    def begin_tool(self, call_id: str, tool: str, args: Any, **more: Any) -> None:
        """Emit that a tool call begins; ``more`` are other fields of `ToolStarted`."""
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
        """Emit the end of a tool call, also if it never began or is left in its thread.

        Args:
            call_id: Its id.
            tool: The tool's name.
            outcome: How it ended.
            result: What the model is told.
            began: When it began, by the loop's clock.
            more: Other fields of `ToolFinished`.
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
        self, place: str = "", digest: str = "", model: str = ""
    ) -> AsyncIterator[WordStream]:
        """Journal one call of a model or program, whose words are written within the block.

        The call is recorded as finished when the block completes, as cut after a stop, and as
        failed after an error.

        Args:
            place: Where it is made, in a program of the user's.
            digest: Of what it is asked.
            model: The model's name, of a program that chooses it itself.
        """
        self.calls += 1
        call = self.calls
        words = WordStream(self.agent, call, self.emit, place)
        self._open.append(words)
        self.emit(
            ev.ModelStarted(agent=self.agent, call=call, place=place, digest=digest, model=model)
        )
        try:
            yield words
        except Exception as exc:
            words.flush()
            self.emit(ev.ModelFailed(agent=self.agent, call=call, error=said_by(exc)))
            raise
        except BaseException:  # a stop, or the agent has decided elsewhere
            words.flush()
            self.emit(ev.ModelCut(agent=self.agent, call=call))
            raise
        finally:
            self._open.remove(words)
        words.finish()


class WordStream:
    """The words of one call, as they come.

    Attributes:
        response: What the call gave, for its end; by default its words.
        form: Its form, as `ModelFinished` has it.
        usage: What it used.
    """

    def __init__(
        self, agent: str, call: int, emit: Callable[[ev.Event], None], place: str = ""
    ) -> None:
        self._agent, self._call, self._emit, self._place = agent, call, emit, place
        self.response: Any = None
        self.form = "words"
        self._wake = current_policy().wake
        self._new: dict[ev.Channel, list[str]] = {}
        self._text: list[str] = []
        self.usage = ev.Usage(input_tokens=0, output_tokens=0)

    @property
    def text(self) -> str:
        """The words so far, without thoughts."""
        return "".join(self._text)

    def write(self, text: str, channel: ev.Channel = "text") -> None:
        """Add words; cheap, to be called for each piece."""
        self._new.setdefault(channel, []).append(text)
        if channel != "thinking":
            self._text.append(text)
        self._wake()

    def flush(self) -> None:
        """Emit the words that have arrived since the last time."""
        new, self._new = self._new, {}
        for channel, pieces in new.items():
            text = well_formed("".join(pieces))
            self._emit(
                ev.TextStreamed(agent=self._agent, call=self._call, channel=channel, text=text)
            )

    def finish(self) -> None:
        """Emit the end of the call."""
        self.flush()
        said = {"text": well_formed(self.text)} if self.response is None else self.response
        self._emit(
            ev.ModelFinished(
                agent=self._agent,
                call=self._call,
                response=said,
                form=self.form,
                usage=self.usage,
                place=self._place,
            )
        )


class AgentRunner(Protocol):
    """Plays the rounds of one agent in one turn, several at a time in a recipe.

    Attributes:
        name: What people call the model or program behind it.
        resumes: What a resume promises; shown before a run starts, and on its card.
    """

    name: str
    resumes: Promise

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round until it is decided.

        Args:
            round: The round.
            past: The journalled part of an interrupted round; None for a new one.

        Raises:
            AgentStopped: At a boundary, when a stop was asked for.
            ModelCallError: The agent can't be reached, or made no decision.
        """
        ...

    async def close(self) -> None:
        """Close open connections and processes within one second."""
        ...


class Runners:
    """The runners of a turn's agents, each made when its first round begins.

    Args:
        make: Makes an agent's runner; may block.
    """

    def __init__(self, make: Callable[[AgentSpec], AgentRunner]) -> None:
        self._make = make
        self._making = anyio.Lock()
        # By all that a step's wish for a model can change of an agent: specs have no hash.
        self._made: dict[tuple[str, str, str], AgentRunner] = {}
        self._open: dict[int, Round] = {}

    async def of(self, agent: AgentSpec) -> AgentRunner:
        """Return an agent's runner."""
        key = (agent.id, agent.backend.type, agent.backend.model)
        if (runner := self._made.get(key)) is not None:
            return runner
        # Steps that begin at the same moment share one, and come to their models in their order.
        async with self._making:
            if key not in self._made:
                self._made[key] = await to_thread.run_sync(self._make, agent)
        return self._made[key]

    async def play(self, agent: AgentSpec, round: Round, past: PastRound | None) -> Decision:
        """Play a round: a new one, which is journalled first, or one that was begun before.

        Args:
            agent: The agent.
            round: The round.
            past: The journalled part of an interrupted round; None for a new one.
        """
        runner = await self.of(agent)
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
        self._open[id(round)] = round
        try:
            return await runner.play(round, past)
        finally:
            del self._open[id(round)]

    def flush(self) -> None:
        """Emit the words that have arrived in all rounds."""
        for round in tuple(self._open.values()):
            round.flush()

    async def close(self) -> None:
        """End all runners."""
        for runner in self._made.values():
            with suppress(Exception):
                await runner.close()
