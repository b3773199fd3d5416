"""Computing what a resume keeps and what it runs again, as a pure function of a turn's events.

The resume itself, its preview, the notice and the card all use the same result, so that none can
promise what another does not do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from nb_agents.agents import voting
from nb_agents.agents.message_json import calls_of
from nb_agents.agents.placed_calls import fate_of
from nb_agents.agents.replay import Fate, Past, PastChild, PastRound, readable, replay
from nb_agents.agents.subagents import CALL_AGENT
from nb_agents.agents.voting import Rules, rules_of
from nb_agents.config.decision_tools import DECISIONS
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.events import Event, ModelFinished, TurnStarted
from nb_agents.launch.trust import calls_again, is_yours, would_run
from nb_agents.nouns import count
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths
from nb_agents.unicode import without_controls
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe
    from nb_agents.launch.recipes import RecipePreview, RecipeResume


@dataclass(frozen=True)
class Preview:
    """What a resume keeps and what it runs again.

    Attributes:
        turn: Number of the turn to resume.
        answers, votes, calls: The number of answers, votes and finished model calls kept.
        asked_again: Agents whose model call was interrupted or failed, and is sent again.
        begun_again: Agents that failed, and start a new round.
        tools_again: Tool calls that run, again or for the first time, as "agent: tool".
        tools_told: Tool calls that were interrupted and do not run again.
        cost: Estimated US dollars of the repeated model calls, from the agents' calls so far; None
            when a price is unknown.
        recipe: The steps of a recipe that run again; None for a team.
        unread: Agents that start a new round because their part of the journal is damaged.
        goes_on: Agents that go on from what they had said, and may make calls of their own again.
        steps_kept: Programs that start again, with their finished calls and steps kept.
        starts_again: Programs that start again, with nothing kept.
        would_run: What it would run and whom it would ask, in lines, when the session is not this
            user's; None for one's own.
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
    recipe: RecipePreview | None = None
    unread: tuple[str, ...] = ()
    goes_on: tuple[str, ...] = ()
    steps_kept: tuple[str, ...] = ()
    starts_again: tuple[str, ...] = ()
    would_run: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """Return the preview in a sentence or two."""
        kept = f"{count(self.answers, 'answer')}, {count(self.votes, 'vote')}"
        if self.recipe is not None:
            kept = count(self.recipe.finished, "finished step")
        gates = self.recipe.gates if self.recipe else ()
        stuck = self.recipe.stuck if self.recipe else ""
        asks = f" Asks again: the gate of {', '.join(gates)}." if gates else ""
        if self.recipe and self.recipe.to_ask:
            steps = ", ".join(self.recipe.to_ask)
            asks += (
                f" Asks whether to run again (cut: it may have happened): the command of {steps}."
            )
        more = ""
        if self.tools_told:
            more = (
                f" Not run again, as all or a part of it may have happened: {self.not_again}; the "
                "model gets a message to check, and to do what is missing."
            )
        for agents, what in (
            (self.goes_on, "From what they had said and done, not call by call, go on"),
            (self.steps_kept, "From the beginning, with their finished steps kept, run"),
            (self.starts_again, "From the beginning run"),
        ):
            if agents:
                more += f" {what}: {', '.join(agents)}."
        calls = count(self.calls, "finished model call")
        return (
            f"Resumes turn {self.turn}: {kept} and {calls} are kept. "
            f"Runs again: {self.runs_again}.{more}{asks}"
            + (f" {stuck}" if stuck else "")
            + self._warning
        )

    @property
    def _warning(self) -> str:
        if self.would_run is None:
            return ""
        lines = "".join(f"\n  {without_controls(line)}" for line in self.would_run) or " nothing."
        return f"\nNot made by you, or not on this machine: asks first. It would run:{lines}"

    @property
    def runs_again(self) -> str:
        """A description of everything that runs again; "nothing" when nothing does."""
        return ", ".join(self._parts()) or "nothing"

    @property
    def not_again(self) -> str:
        """The tool calls that were interrupted and do not run again, or ""."""
        return ", ".join(f"the tool call {call}" for call in self.tools_told)

    def _parts(self) -> Iterator[str]:
        if self.asked_again:
            price = "" if self.cost is None else f", about ${self.cost:.3f}"
            calls = count(len(self.asked_again), "model call")
            yield f"{calls} cut or failed ({', '.join(self.asked_again)}{price})"
        yield from (f"the round of {agent} (it failed)" for agent in self.begun_again)
        yield from (f"the round of {agent} (its journal is damaged)" for agent in self.unread)
        yield from (f"the tool call {call}" for call in self.tools_again)
        if (recipe := self.recipe) is not None:
            yield from (f"the step {step} (its output is not kept)" for step in recipe.again)
            yield from (f"the step {step} (it failed)" for step in recipe.failed)
            for step in recipe.cut:
                yield f"the command of {step} (cut: it may have happened in part)"
            yield from (f"the command of {step} (it failed)" for step in recipe.tried)


class Resumption(NamedTuple):
    """The state that a resume continues from, and its preview.

    Attributes:
        past: The agents' state.
        going: The recipe's state; None for a team's turn.
        preview: What is kept and what runs again.
    """

    past: Past
    going: RecipeResume | None
    preview: Preview


def what_resumes(
    events: Sequence[Event],
    again: Sequence[str] = (),
    team: TeamSpec | None = None,
    changed: Recipe | None = None,
    given: Mapping[str, Any] | None = None,
    from_step: str = "",
) -> Resumption:
    """Return the state that a resume continues from, and what it runs again.

    Args:
        events: The turn's events, preceded by those of the turns that it resumed.
        again: Agents named by the user, which take part again.
        team: The team whose rules apply; by default the one in the journal.
        changed: A recipe that replaces the turn's.
        given: Values that are added to the recipe's context, or outputs of its steps.
        from_step: Id of the recipe's step that runs again, with all that comes after it; or "".

    Raises:
        UserError: The turn can't be resumed: its start or its recipe is missing in its journal.
        ConfigError: The turn's recipe can't be parsed.
    """
    started = started_of(events)
    going, recipe = None, None
    if started.recipe:
        from nb_agents.launch.recipes import plan_resume, resume_preview  # what a team never needs

        going = plan_resume(events, changed, given or {}, from_step)
        recipe = resume_preview(going, events)
    past = going.past if going else readable(replay(_ids(started), events, again))
    asked = recipe.open if recipe else _to_ask(past, _rules(team, started))
    rounds = {agent: past.rounds[agent] for agent in asked if agent in past.rounds}
    called = _called_by(rounds, past.children, past.state.live)
    rounds |= {agent: each.round for agent, each in called.items() if each.is_open and each.round}
    left = _calls_left(rounds, called)
    sent = tuple(agent for agent, each in rounds.items() if each.is_asking)
    lost = tuple(agent for agent in past.unread if agent in (recipe.next if recipe else asked))
    closed = [agent for agent in asked if agent not in rounds and agent not in lost]
    finished = [e for e in events if isinstance(e, ModelFinished)]
    shown = Preview(
        turn=started.turn,
        answers=len(past.state.answers),
        votes=len(past.state.votes),
        calls=len(finished),
        asked_again=sent,
        begun_again=tuple(agent for agent in closed if agent in past.failed),
        tools_again=tuple(f"{c.agent}: {c.tool}" for c in left if c.fate != "told"),
        tools_told=tuple(f"{c.agent}: {c.tool}" for c in left if c.fate == "told"),
        cost=_cost_of(sent, finished),
        recipe=recipe,
        unread=lost,
        goes_on=_promised(rounds, "goes on"),
        steps_kept=_promised(rounds, "in steps"),
        starts_again=_promised(rounds, "starts again"),
    )
    return Resumption(past, going, shown)


def _promised(rounds: Mapping[str, PastRound], promise: str) -> tuple[str, ...]:
    return tuple(agent for agent, each in rounds.items() if each.resumes == promise)


def preview_of(view: RunView, paths: TurnPaths) -> Preview | None:
    """Return what a resume of a turn would do, from its journal.

    Returns:
        The preview; None when there is nothing to resume, or a resume is not possible.
    """
    if view.status not in ("cancelled", "failed"):
        return None
    try:
        events = past_events(paths)
        return checked(what_resumes(events), stored_team(started_of(events)), paths.path.parent)
    except UserError:  # a resume reports it
        return None


def checked(kept: Resumption, team: TeamSpec | None, session: Path) -> Preview:
    """Return the preview, with what a person must check first if the session is a stranger's."""
    if is_yours(session):
        return kept.preview
    return replace(kept.preview, would_run=would_run_of(kept, team))


def would_run_of(kept: Resumption, team: TeamSpec | None) -> tuple[str, ...]:
    """Return what a resume would run and whom it would ask, in lines that a person can check."""
    recipes = kept.going.recipes if kept.going else ()
    return would_run(team, recipes, calls_again(kept.past)) if team else ()


def started_of(events: Sequence[Event]) -> TurnStarted:
    """Return the event that started a turn; of turns that resumed one another, the last one's.

    Raises:
        UserError: It is missing.
    """
    started = [e for e in events if isinstance(e, TurnStarted)]
    if not started:
        raise UserError("The journal of this turn has no beginning: there is nothing to resume.")
    return started[-1]


def stored_team(started: TurnStarted) -> TeamSpec | None:
    """Return the team in a turn's first event; None when it is missing or not valid here."""
    try:
        return None if started.team is None else TeamSpec.model_validate(started.team)
    except ValidationError:  # a newer nb_agents, or a damaged disk
        return None


def _ids(started: TurnStarted) -> list[str]:
    return [agent.id for agent in started.agents]


def _rules(team: TeamSpec | None, started: TurnStarted) -> Rules:
    known = team or stored_team(started)
    return rules_of(known, started.timeout_s) if known else Rules(turn_limit_s=started.timeout_s)


def _to_ask(past: Past, rules: Rules) -> tuple[str, ...]:
    """Return the agents that a resumed team will call, in registration order."""
    match voting.next_step(past.state, rules):
        case voting.Coordinate():
            return voting.awaited(past.state, rules)
        case voting.Present(winner=winner) | voting.Judge(winner=winner):
            return (winner,)
        case _:
            return ()


def _called_by(
    rounds: Mapping[str, PastRound], children: Mapping[str, PastChild], live: Collection[str]
) -> dict[str, PastChild]:
    """Return the sub-agents that go on because their callers do, or whose results are passed on."""
    called: dict[str, PastChild] = {}
    known = dict(rounds)
    for agent, child in children.items():
        by = child.called
        if child.is_told or (not child.is_open and by.spawned):
            continue
        is_made = any(
            each.id == by.call_id and each.fate == "made again"
            for each in _calls_of(by.caller, known.get(by.caller))
        )
        if is_made or (by.spawned and by.caller in live):
            called[agent] = child
            if child.is_open and child.round:
                known[agent] = child.round
    return called


class _OpenCall(NamedTuple):
    """A tool call that a round's last response made and that did not finish."""

    agent: str
    id: str
    tool: str
    fate: Fate


def _calls_of(agent: str, past: PastRound | None) -> Iterator[_OpenCall]:
    for place, call in past.placed.items() if past else ():
        if call.tool and not call.is_finished:
            assert past is not None
            yield _OpenCall(agent, place, call.tool, fate_of(past.placed, place))
    if past is None or past.was_asking or not past.exchanges:
        return
    last = past.exchanges[-1]
    for number, (tool, _) in enumerate(calls_of(last.response)):
        if number not in last.results and tool not in DECISIONS:
            yield _OpenCall(agent, f"{last.call}.{number}", tool, last.fate(number))


def _calls_left(
    rounds: Mapping[str, PastRound], called: Mapping[str, PastChild]
) -> list[_OpenCall]:
    """Return the calls, but for those that only wait for a sub-agent that goes on."""
    waiting = {(c.called.caller, c.called.call_id) for c in called.values()}
    calls = [call for agent, each in rounds.items() for call in _calls_of(agent, each)]
    return [c for c in calls if c.tool != CALL_AGENT or (c.agent, c.id) not in waiting]


def _cost_of(agents: Sequence[str], finished: Sequence[ModelFinished]) -> float | None:
    """Estimate the cost of one more call of each agent, as the mean of its finished calls."""
    total = 0.0
    for agent in agents:
        costs = [e.usage.cost for e in finished if e.agent == agent]
        known = [cost for cost in costs if cost is not None]
        if not known or len(known) < len(costs):
            return None
        total += sum(known) / len(known)
    return total
