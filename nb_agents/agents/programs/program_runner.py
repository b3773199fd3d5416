"""Plays the rounds of agents that are programs of the user's.

A framework's adapter knows how to run its agents with our journal and tools; this module what a
round is. An agent decides by the tools that end a round, or by the text that its run ends in.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.ballot import Ballot
from nb_agents.agents.decisions import (
    Abstention,
    Answered,
    Decision,
    Submitted,
    Voted,
    read_call,
)
from nb_agents.agents.programs.call_log import CallLog, Decided
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Promise, Round
from nb_agents.config.decision_tools import ANSWER
from nb_agents.errors import ModelCallError, NbAgentsError, said_by
from nb_agents.tools.base import Tool, Toolbox

MAX_TRIES = 3
"""Runs of a program in one round, until it decides it."""

END_S = 1.0
"""Time of a program to close what it has open after a stop at once, seconds."""

VOTE_BY_LABEL = (
    "You can call no tool here. If one of the answers is the best as it is, write only its label: "
    "{labels}."
)


@dataclass
class Conversation:
    """What a program is asked, and where it stands; an adapter keeps it between two runs.

    Attributes:
        log: The journal of its calls.
        system: The agent's role and rules; may be "".
        prompt: What it is asked now.
        task: The task alone.
        tools: Our tools, for it to offer to its models. Their calls do all there is to do but for
            journalling, and those that end the round are not journalled.
        voters: The labels of the answers that it may vote for.
        history: The conversation so far, in the framework's form; None before the first run.
    """

    log: CallLog
    system: str
    prompt: str
    task: str
    tools: Sequence[Tool] = ()
    voters: tuple[str, ...] = ()
    history: Any = None


class Converse(Protocol):
    """Runs an agent of a framework until it ends in a text."""

    def __call__(self, agent: Any, talk: Conversation, /, **more: Any) -> Coroutine[Any, Any, str]:
        """Run it; ``more`` are arguments of the framework's own run."""
        ...


@dataclass(frozen=True)
class Framework:
    """How the agents of a framework are run.

    Attributes:
        converse: Runs one.
        resumes: What a resume promises.
        calls_tools: Whether it is offered our tools.
        sees_rounds: Whether it is asked again when there is something to vote on.
    """

    converse: Converse
    resumes: Promise = "exactly"
    calls_tools: bool = True
    sees_rounds: bool = True


@dataclass
class ProgramRunner:
    """Plays rounds by running an agent of a framework, or a function; see `AgentRunner`.

    Attributes:
        name: What people call it.
        program: The agent's object.
        framework: How it is run.
    """

    name: str
    program: Any
    framework: Framework
    resumes: Promise = field(init=False)

    def __post_init__(self) -> None:
        self.resumes = self.framework.resumes

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`."""
        opening = past.opening if past else round.opening
        offer = round.context.offer()
        if offer.text_stands_for == "no vote" and not self.framework.sees_rounds:
            return Submitted() if offer.judges else Abstention()
        log, ballot = CallLog(round, past), Ballot(round)
        asked = "\n\n".join(opening.asks)
        judge = round.context.judge_vote
        voters = tuple(label for label in offer.voters if not judge(label).refusal)
        if voters and not self.framework.calls_tools:
            asked += "\n\n" + VOTE_BY_LABEL.format(labels=", ".join(voters))
        tools = _offered(round, ballot, log) if self.framework.calls_tools else ()
        talk = Conversation(log, opening.system, asked, round.task, tools, voters)
        for _ in range(MAX_TRIES):
            said = await self._run(talk)
            ballot.check(self.name)
            if round.decision is None:
                round.decision, talk.prompt = read_text(said, round)
            if round.decision is not None:
                return round.decision
        raise ModelCallError(self.name, f"It made no decision in {MAX_TRIES} tries.")

    async def _run(self, talk: Conversation) -> str:
        try:
            with talk.log.run():
                return await _cancelled_once(self.framework.converse(self.program, talk))
        except Decided:
            return ""
        except NbAgentsError:
            raise
        except Exception as exc:
            # A framework may have made an error of its own of a stop.
            talk.log.round.scope.checkpoint()
            raise ModelCallError(self.name, said_by(exc, named=True)) from exc

    async def close(self) -> None:
        """Do nothing: each run closes what it has opened."""


async def _cancelled_once(run: Coroutine[Any, Any, str]) -> str:
    """Await a program in a task of its own, which a stop at once cancels once.

    Where the scopes of anyio cancel, each await of a clean-up is cancelled again: frameworks that
    are made for asyncio don't come to the end of theirs.
    """
    task = asyncio.ensure_future(run)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.move_on_after(END_S, shield=True):
            await asyncio.wait([task])
        if task.done() and not task.cancelled():
            task.exception()  # it is known that it was cut
        raise


def _offered(round: Round, ballot: Ballot, log: CallLog) -> list[Tool]:
    """Return the tools of a round, in which those that decide end the program."""
    offer = round.context.offer()
    deciding = ballot.tools() if offer.judges or not offer.text_counts else []

    def ends(tool: Tool) -> Tool:
        async def call(args: dict[str, Any]) -> str:
            result = await tool.call(args)
            if ballot.ended.is_set():
                await log.settled()
                raise Decided
            return result

        return Tool.from_definition(tool.definition, call)

    return [*map(ends, deciding), *own_tools(round.toolbox)]


def own_tools(toolbox: Toolbox) -> list[Tool]:
    """Return the tools of a toolbox, for a program to offer."""
    return [
        Tool.from_definition(
            each.definition, partial(toolbox.call, each.name), is_repeatable=each.is_repeatable
        )
        for each in toolbox.tools
    ]


def read_text(said: str, round: Round) -> tuple[Decision | None, str]:
    """Return the decision that a program's last text is, and why there is none.

    Text is an answer, or, of an agent whose answer stands, a vote if it names one label.
    """
    offer, text = round.context.offer(), said.strip()
    if offer.judges:
        return Submitted(), ""
    labels = [name for name in offer.voters if re.search(rf"\b{re.escape(name)}\b", text)]
    if text in offer.voters or (offer.text_stands_for == "no vote" and len(labels) == 1):
        target, refusal = round.context.judge_vote(labels[0])
        if not refusal:
            return Voted(target, "" if text == labels[0] else text), ""
    if offer.text_stands_for == "no vote":
        told = f"{round.agent} votes for no one answer. Its own stands."
        round.emit(ev.Noticed(text=told))
        return Abstention(), ""
    if not text:
        return None, prompts.NO_TEXT
    reading = read_call(ANSWER.name, {"content": text}, round.context)
    if isinstance(reading.decision, Answered):
        return reading.decision, ""
    return None, reading.complaint
