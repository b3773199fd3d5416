"""Plays the rounds of agents that users write in Python.

A framework's adapter runs its agents with the journal and tools of nb_agents. This module adds the
rules of a round: an agent decides with the decision tools, or with the final text of its run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

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
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Promise, Round
from nb_agents.agents.stop_scope import current_policy
from nb_agents.agents.written_calls import written_call
from nb_agents.config.decision_tools import ANSWER
from nb_agents.errors import ModelCallError, NbAgentsError, error_message
from nb_agents.extensions.external_agents.frameworks.call_log import CallLog
from nb_agents.extensions.external_agents.frameworks.program_work import Decided, ProgramWork
from nb_agents.extensions.external_agents.frameworks.refused_calls import refusal_in
from nb_agents.models.failures import QuotaLimit
from nb_agents.models.retry import time_to_retry
from nb_agents.tools.base import Tool, Toolbox

MAX_TRIES = 3
"""Maximum number of runs of a program in a round without a decision."""

VOTE_BY_LABEL = (
    "You can't call tools here. To vote for one of the answers, write only its label: {labels}."
)


@dataclass
class Conversation:
    """The prompt, tools and history of a program in one round.

    Attributes:
        log: Records its calls.
        system: The agent's role and rules, or "".
        prompt: The prompt of the next run.
        task: The task without instructions.
        tools: The tools that the program's models get from nb_agents. The adapter must record
            their calls, except calls of decision tools.
        voters: The labels of the answers that it may vote for.
        history: The messages of earlier runs in the framework's format. None before the first run.
    """

    log: CallLog
    system: str
    prompt: str
    task: str
    tools: Sequence[Tool] = ()
    voters: tuple[str, ...] = ()
    history: Any = None


class Converse(Protocol):
    """A function that runs an agent of a framework until it returns its final text."""

    def __call__(self, agent: Any, talk: Conversation, /, **more: Any) -> Coroutine[Any, Any, str]:
        """Run the agent. ``more`` contains arguments for the framework's run method."""
        ...


@dataclass(frozen=True)
class Framework:
    """How to run the agents of a framework.

    Attributes:
        converse: Runs an agent.
        resumes: What is guaranteed about a resume.
        calls_tools: Whether agents get tools from nb_agents.
        sees_rounds: Whether agents are asked to vote.
    """

    converse: Converse
    resumes: Promise = "exactly"
    calls_tools: bool = True
    sees_rounds: bool = True


@dataclass
class ProgramRunner:
    """Plays rounds by running an agent of a framework or a function. See `AgentRunner`.

    Attributes:
        name: The display name.
        program: The agent object or function.
        framework: How to run it.
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
        prompt = "\n\n".join(opening.asks)
        judge = round.context.judge_vote
        voters = tuple(label for label in offer.voters if not judge(label).refusal)
        if voters and not self.framework.calls_tools:
            prompt += "\n\n" + VOTE_BY_LABEL.format(labels=", ".join(voters))
        tools = _offered(round, ballot, log) if self.framework.calls_tools else ()
        talk = Conversation(log, opening.system, prompt, round.task, tools, voters)
        for _ in range(MAX_TRIES):
            text = await self._run(talk)
            ballot.check(self.name)
            if round.decision is None:
                names = {tool.name for tool in tools}
                round.decision, talk.prompt = read_text(text, round, names)
            if round.decision is not None:
                return round.decision
        raise ModelCallError(self.name, f"It made no decision in {MAX_TRIES} attempts.")

    async def _run(self, talk: Conversation) -> str:
        work = talk.log.work = ProgramWork(talk.log.round.agent)
        try:
            with talk.log.run():
                return await work.run(self.framework.converse(self.program, talk))
        except Decided:
            return ""
        except NbAgentsError:
            raise
        except Exception as exc:
            # A framework may have turned a stop into its own error.
            talk.log.round.scope.checkpoint()
            raise ModelCallError(self.name, _describe(exc)) from exc

    async def close(self) -> None:
        """Do nothing, because each run closes its own resources."""


def _describe(error: Exception) -> str:
    """Return the message of a framework's error, with advice if its provider refuses calls."""
    text, refusal, now = error_message(error, named=True), refusal_in(error), time.time()
    at = None if refusal is None else time_to_retry(refusal, now)
    if at is None:
        return text
    advice = QuotaLimit(current_policy().quota_wait_s).advice(at - now)
    return f"{text.removesuffix('.')}. {advice}"


def _offered(round: Round, ballot: Ballot, log: CallLog) -> list[Tool]:
    """Return the tools of a round. A decision ends the program."""
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
    """Return a toolbox's tools, to pass to the models that a user's program calls."""
    return [
        Tool.from_definition(
            each.definition, partial(toolbox.call, each.name), is_repeatable=each.is_repeatable
        )
        for each in toolbox.tools
    ]


def read_text(text: str, round: Round, tools: Collection[str] = ()) -> tuple[Decision | None, str]:
    """Parse a program's final text into a decision. Returns the decision, or None and the reason.

    The text is an answer, or a vote if the agent has answered and the text contains one label. Text
    that calls one of the tools is not a decision.
    """
    if written := written_call(text, tools):
        return None, prompts.WRITTEN_CALL.format(tool=written)
    offer, text = round.context.offer(), text.strip()
    if offer.judges:
        return Submitted(), ""
    labels = [name for name in offer.voters if re.search(rf"\b{re.escape(name)}\b", text)]
    if text in offer.voters or (offer.text_stands_for == "no vote" and len(labels) == 1):
        target, refusal = round.context.judge_vote(labels[0])
        if not refusal:
            return Voted(target, "" if text == labels[0] else text), ""
    if offer.text_stands_for == "no vote":
        notice = f"{round.agent} does not vote for a single answer. Its own answer still counts."
        round.emit(ev.Noticed(text=notice))
        return Abstention(), ""
    if not text:
        return None, prompts.NO_TEXT
    reading = read_call(ANSWER.name, {"content": text}, round.context)
    if isinstance(reading.decision, Answered):
        return reading.decision, ""
    return None, reading.complaint
