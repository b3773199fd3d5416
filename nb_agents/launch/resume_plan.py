"""Computes what a resume keeps and what it runs again, as a pure function of a turn's events.

The resume itself, its preview, the notice and the card all use the same result, so they always
agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.agents.message_json import calls_of
from nb_agents.agents.placed_calls import action_for_unfinished_call
from nb_agents.agents.replay import (
    Past,
    PastChild,
    PastRound,
    UnfinishedCallAction,
)
from nb_agents.agents.subagents import CALL_AGENT
from nb_agents.config.decision_tools import DECISIONS
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.events import Event, ModelFinished
from nb_agents.launch.team_kind import kind_of, started_of, stored_team
from nb_agents.launch.trust import calls_again, is_yours, would_run
from nb_agents.launch.work_kind import ResumeArguments, StepsPreview, WorkResume, WorkSource
from nb_agents.nouns import count, dollars
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths
from nb_agents.unicode import without_controls
from nb_agents.view.run_view import RunView

MAX_NEXT = 5
"""Maximum number of next steps that a preview names."""


@dataclass(frozen=True)
class Preview:
    """The work that a resume keeps, and the work that it runs again.

    Attributes:
        turn: Number of the turn to resume.
        answers, votes, calls: The number of answers, votes and finished model calls that are kept.
        asked_again: Agents with an interrupted or failed model call, which is sent again.
        begun_again: Agents that failed and start a new round.
        tools_again: Tool calls that run, again or for the first time, as "agent: tool".
        tools_told: Interrupted tool calls that do not run again.
        cost: Estimated cost of the repeated model calls in US dollars, based on the agents' calls
            so far. None if a price is unknown.
        recipe: What is kept and runs again of the steps of a recipe; None for a team.
        unread: Agents that start a new round because their part of the journal is damaged.
        goes_on: Agents that continue from a summary of their work, and may repeat calls.
        steps_kept: External agents that start again, with their finished calls and steps kept.
        starts_again: External agents that start again, with nothing kept.
        would_run: Lines about everything that would be run or called, if the session is not this
            user's. None for the user's own session.
    """

    turn: int
    answers: int
    votes: int
    calls: int
    asked_again: tuple[str, ...]
    begun_again: tuple[str, ...]
    tools_again: tuple[str, ...]
    tools_told: tuple[str, ...]
    cost: float | None
    recipe: StepsPreview | None = None
    unread: tuple[str, ...] = ()
    goes_on: tuple[str, ...] = ()
    steps_kept: tuple[str, ...] = ()
    starts_again: tuple[str, ...] = ()
    would_run: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """Return the preview as a few sentences."""
        summary = self.kept_work
        gates = self.recipe.gates if self.recipe else ()
        stuck_reason = self.recipe.stuck if self.recipe else ""
        asks = f" Asks again: the gate of {', '.join(gates)}." if gates else ""
        if self.recipe and self.recipe.to_ask:
            steps = ", ".join(self.recipe.to_ask)
            asks += (
                f" Asks before running again, because it was interrupted: the command of {steps}."
            )
        more = ""
        if self.tools_told:
            more = (
                f" Not run again, because it may have taken effect: {self.not_again}. The model "
                f"is asked to check and to do what is missing."
            )
        for agents, description in (
            (self.goes_on, "Continued from a summary, so calls may be repeated"),
            (self.steps_kept, "Started again, with finished steps kept"),
            (self.starts_again, "Started again from the beginning"),
        ):
            if agents:
                more += f" {description}: {', '.join(agents)}."
        calls = count(self.calls, "finished model call")
        return (
            f"Resumes turn {self.turn}: {summary} and {calls} are kept. "
            f"Runs again: {self.runs_again}.{self._next}{more}{asks}"
            + (f" {stuck_reason}" if stuck_reason else "")
            + self._warning
        )

    @property
    def kept_work(self) -> str:
        """The number of finished steps that are kept; for a team, of answers and votes."""
        if self.recipe is not None:
            return count(self.recipe.finished, "finished step")
        return f"{count(self.answers, 'answer')}, {count(self.votes, 'vote')}"

    @property
    def _warning(self) -> str:
        if self.would_run is None:
            return ""
        lines = "".join(f"\n  {without_controls(line)}" for line in self.would_run) or " nothing."
        return f"\nNot created by you on this machine, so it asks first. It would run:{lines}"

    @property
    def _next(self) -> str:
        if (recipe := self.recipe) is None:
            return ""
        named = {*recipe.gates, *recipe.failed, *recipe.cut, *recipe.to_ask, *recipe.tried}
        steps = [step for step in recipe.next if step not in named]
        more = ", …" if len(steps) > MAX_NEXT else ""
        return f" Next: {', '.join(steps[:MAX_NEXT])}{more}." if steps else ""

    @property
    def runs_again(self) -> str:
        """A description of everything that runs again, or "nothing"."""
        return ", ".join(self._repeated_parts()) or "nothing"

    @property
    def not_again(self) -> str:
        """The interrupted tool calls that do not run again, or ""."""
        return ", ".join(f"the tool call {call}" for call in self.tools_told)

    def _repeated_parts(self) -> Iterator[str]:
        if self.asked_again:
            estimate = dollars(self.cost)
            price = f", about {estimate}" if estimate else ""
            calls = count(len(self.asked_again), "model call")
            yield f"{calls} interrupted or failed ({', '.join(self.asked_again)}{price})"
        yield from (f"the round of {agent} (it failed)" for agent in self.begun_again)
        yield from (f"the round of {agent} (its journal is damaged)" for agent in self.unread)
        yield from (f"the tool call {call}" for call in self.tools_again)
        if (recipe := self.recipe) is not None:
            yield from (f"the step {step} (its output is discarded)" for step in recipe.again)
            yield from (f"the step {step} (it failed)" for step in recipe.failed)
            for step in recipe.cut:
                yield f"the command of {step} (interrupted, may be partly done)"
            yield from (f"the command of {step} (it failed)" for step in recipe.tried)


class Resumption(NamedTuple):
    """The state from which a resume continues, and its preview.

    Attributes:
        past: The agents' state.
        going: The state from which the turn's work continues.
        preview: The work that is kept, and the work that runs again.
    """

    past: Past
    going: WorkResume
    preview: Preview


def what_resumes(
    events: Sequence[Event],
    again: Sequence[str] = (),
    team: TeamSpec | None = None,
    changed: WorkSource | None = None,
    values: Mapping[str, Any] | None = None,
    from_step: str = "",
) -> Resumption:
    """Return the state from which a resume continues, and what it runs again.

    Args:
        events: The turn's events, preceded by those of the turns that it resumed.
        again: Agents that the user wants to restart.
        team: The team with the rules to apply. By default, the team in the journal.
        changed: Work to run instead of the turn's own.
        values: Values and outputs of steps to add to those of the work.
        from_step: Id of the step that runs again with everything after it, or "".

    Raises:
        UserError: The turn can't be resumed, for example because its journal lacks its start.
    """
    started = started_of(events)
    arguments = ResumeArguments(events, again, team, changed, values or {}, from_step)
    continuation = kind_of(started).plan_resume(arguments)
    past, to_call = continuation.past, continuation.to_call
    rounds = {agent: past.rounds[agent] for agent in to_call if agent in past.rounds}
    children_by_call = _called_by(rounds, past.children, past.state.live)
    rounds |= {
        agent: each.round for agent, each in children_by_call.items() if each.is_open and each.round
    }
    open_calls = _calls_left(rounds, children_by_call)
    is_resent = {agent: each.is_asking and each.batched is None for agent, each in rounds.items()}
    resent = tuple(agent for agent in rounds if is_resent[agent])
    damaged = tuple(agent for agent in past.unread if agent in continuation.next)
    new_rounds = [agent for agent in to_call if agent not in rounds and agent not in damaged]
    finished = [e for e in events if isinstance(e, ModelFinished)]
    preview = Preview(
        turn=started.turn,
        answers=len(past.state.answers),
        votes=len(past.state.votes),
        calls=len(finished),
        asked_again=resent,
        begun_again=tuple(agent for agent in new_rounds if agent in past.failed),
        tools_again=tuple(f"{c.agent}: {c.tool}" for c in open_calls if c.action != "told"),
        tools_told=tuple(f"{c.agent}: {c.tool}" for c in open_calls if c.action == "told"),
        cost=_cost_of(resent, finished),
        recipe=continuation.steps,
        unread=damaged,
        goes_on=_with_promise(rounds, "goes on"),
        steps_kept=_with_promise(rounds, "in steps"),
        starts_again=_with_promise(rounds, "starts again"),
    )
    return Resumption(past, continuation, preview)


def _with_promise(rounds: Mapping[str, PastRound], promise: str) -> tuple[str, ...]:
    return tuple(agent for agent, each in rounds.items() if each.resumes == promise)


def preview_of(view: RunView, paths: TurnPaths) -> Preview | None:
    """Return what a resume of a turn would do, according to its journal.

    Returns:
        The preview, or None if there is nothing to resume or a resume is not possible.
    """
    if view.status not in ("cancelled", "failed"):
        return None
    try:
        events = past_events(paths)
        return checked(what_resumes(events), stored_team(started_of(events)), paths.path.parent)
    except UserError:  # reported by the resume itself
        return None


def checked(resumption: Resumption, team: TeamSpec | None, session: Path) -> Preview:
    """Return the preview, with the lines that users must check if the session is not theirs."""
    if is_yours(session):
        return resumption.preview
    return replace(resumption.preview, would_run=would_run_of(resumption, team))


def would_run_of(resumption: Resumption, team: TeamSpec | None) -> tuple[str, ...]:
    """Return lines about everything that a resume would run or call, for a user to check."""
    work = resumption.going.would_run
    return would_run(team, work, calls_again(resumption.past)) if team else ()


def _called_by(
    rounds: Mapping[str, PastRound], children: Mapping[str, PastChild], live: Collection[str]
) -> dict[str, PastChild]:
    """Return the sub-agents that continue with their callers, or that have unreported results."""
    children_by_call: dict[str, PastChild] = {}
    open_rounds = dict(rounds)
    for agent, child in children.items():
        by = child.called
        if child.is_told or (not child.is_open and by.spawned):
            continue
        is_repeated = any(
            each.id == by.call_id and each.action == "made again"
            for each in _calls_of(by.caller, open_rounds.get(by.caller))
        )
        if is_repeated or (by.spawned and by.caller in live):
            children_by_call[agent] = child
            if child.is_open and child.round:
                open_rounds[agent] = child.round
    return children_by_call


class _OpenCall(NamedTuple):
    """An unfinished tool call of a round's last response."""

    agent: str
    id: str
    tool: str
    action: UnfinishedCallAction


def _calls_of(agent: str, past: PastRound | None) -> Iterator[_OpenCall]:
    for call_id, call in past.placed.items() if past else ():
        if call.tool and not call.is_finished:
            assert past is not None
            yield _OpenCall(
                agent, call_id, call.tool, action_for_unfinished_call(past.placed, call_id)
            )
    if past is None or past.was_asking or not past.exchanges:
        return
    last = past.exchanges[-1]
    for number, (tool, _) in enumerate(calls_of(last.response)):
        if number not in last.results and tool not in DECISIONS:
            yield _OpenCall(
                agent, f"{last.call}.{number}", tool, last.action_for_unfinished_call(number)
            )


def _calls_left(
    rounds: Mapping[str, PastRound], children_by_call: Mapping[str, PastChild]
) -> list[_OpenCall]:
    """Return the unfinished calls, except those that only wait for a continuing sub-agent."""
    waiting = {(c.called.caller, c.called.call_id) for c in children_by_call.values()}
    calls = [call for agent, each in rounds.items() for call in _calls_of(agent, each)]
    return [c for c in calls if c.tool != CALL_AGENT or (c.agent, c.id) not in waiting]


def _cost_of(agents: Sequence[str], finished: Sequence[ModelFinished]) -> float | None:
    """Estimate the cost of one more call by each agent, as the mean of its finished calls."""
    total = 0.0
    for agent in agents:
        costs = [e.usage.cost for e in finished if e.agent == agent]
        priced = [each for each in costs if each is not None]
        if not priced or len(priced) < len(costs):
            return None
        total += sum(priced) / len(priced)
    return total
