"""What a resume of a turn keeps and what it does again: one pure function of the turn's events.

The resume itself goes on from what it gives; the preview, the notice and the card tell the rest of
the same value. So none of them can promise what another does not do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from nb_agents.agents import voting
from nb_agents.agents.decisions import DECISIONS
from nb_agents.agents.replay import OpenRound, Past, readable, replay
from nb_agents.agents.voting import Rules, rules_of
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.events import Event, ModelFinished, TurnStarted
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe
    from nb_agents.runs.recipes import Again, RecipeResume

__all__ = [
    "Preview",
    "Resumption",
    "preview_of",
    "started_of",
    "stored_team",
    "what_resumes",
]


@dataclass(frozen=True)
class Preview:
    """What a resume will do.

    Attributes:
        turn: Number of the turn that it goes on with.
        answers, votes, calls: What is kept: answers, votes, finished model calls.
        asked_again: Agents whose model call was cut or failed: it is sent again.
        begun_again: Agents whose work had come to nothing: they begin a round anew.
        tools_again: Tool calls that were cut or never ran, as "agent: tool".
        cost: US dollars that asking again may cost, by what those agents' calls cost so far; None
            when no price is known.
        recipe: What a recipe's turn does again; None for a team's.
        unread: Agents that begin a new round, because the journal of theirs is damaged.
        spawned_again: Sub-agents that were cut, and begin anew once they are waited for.
    """

    turn: int
    answers: int
    votes: int
    calls: int
    asked_again: tuple[str, ...]
    begun_again: tuple[str, ...]
    tools_again: tuple[str, ...]
    cost: float | None
    recipe: Again | None = None
    unread: tuple[str, ...] = ()
    spawned_again: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in a sentence or two."""
        kept = f"{self.answers} answer(s), {self.votes} vote(s)"
        if self.recipe is not None:
            kept = f"{self.recipe.finished} finished step(s)"
        gates = self.recipe.gates if self.recipe else ()
        asks = f" Asks again: the gate of {', '.join(gates)}." if gates else ""
        return (
            f"Resumes turn {self.turn}: {kept} and {self.calls} finished model call(s) are kept. "
            f"Runs again: {self.runs_again}.{asks}"
        )

    @property
    def runs_again(self) -> str:
        """All that is done again, in words; "nothing" when that is so."""
        return ", ".join(self._parts()) or "nothing"

    def _parts(self) -> Iterator[str]:
        if self.asked_again:
            count = len(self.asked_again)
            price = "" if self.cost is None else f", about ${self.cost:.3f}"
            calls = f"{count} model call{'' if count == 1 else 's'}"
            yield f"{calls} cut or failed ({', '.join(self.asked_again)}{price})"
        yield from (f"the round of {agent} (it failed)" for agent in self.begun_again)
        yield from (f"the round of {agent} (its journal is damaged)" for agent in self.unread)
        yield from (f"the tool call {call}" for call in self.tools_again)
        yield from (f"{each}, when it is waited for" for each in self.spawned_again)
        if (recipe := self.recipe) is not None:
            yield from (f"the step {step} (it failed)" for step in recipe.failed)
            for step in recipe.cut:
                yield f"the command of {step} (cut: it may have happened in part)"
            yield from (f"the command of {step} (it failed)" for step in recipe.tried)


class Resumption(NamedTuple):
    """Where a resume goes on, and what a person should know of it.

    Attributes:
        past: Where the agents were.
        going: Where the recipe goes on; None for a team's turn.
        preview: What is kept and what is done again.
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
) -> Resumption:
    """Find where a resume goes on, and what it does again.

    Args:
        events: Of the turn; those of the turns that it resumed come first.
        again: Agents that a person names: they take part again.
        team: Whose rules hold; by default those of the team as the journal has it.
        changed: Takes the place of the recipe that the turn has kept.
        given: Values that its recipe goes on with besides.

    Returns:
        Where it goes on.

    Raises:
        UserError: The turn can't be resumed: its beginning, or its recipe, is not in its journal.
        ConfigError: Its recipe can't be read.
    """
    started = started_of(events)
    going, recipe = None, None
    if started.recipe:
        from nb_agents.runs.recipes import plan_resume, resume_preview  # what a team never needs

        going = plan_resume(events, changed, given or {})
        recipe = resume_preview(going, events)
    past = going.past if going else readable(replay(_ids(started), events, again))
    asked = recipe.open if recipe else _to_ask(past, _rules(team, started))
    rounds = {agent: past.rounds[agent] for agent in asked if agent in past.rounds}
    sent = tuple(agent for agent, each in rounds.items() if each.was_asking)
    lost = tuple(agent for agent in past.unread if agent in (recipe.next if recipe else asked))
    closed = [agent for agent in asked if agent not in rounds and agent not in lost]
    finished = [e for e in events if isinstance(e, ModelFinished)]
    told = Preview(
        turn=started.turn,
        answers=len(past.state.answers),
        votes=len(past.state.votes),
        calls=len(finished),
        asked_again=sent,
        begun_again=tuple(agent for agent in closed if agent in past.failed),
        tools_again=tuple(f"{a}: {t}" for a, each in rounds.items() for t in _left_to_run(each)),
        cost=_cost_of(sent, finished),
        recipe=recipe,
        unread=lost,
        spawned_again=tuple(k for k, s in past.spawned.items() if s.text is None and not s.error),
    )
    return Resumption(past, going, told)


def preview_of(view: RunView, paths: TurnPaths) -> Preview | None:
    """Tell what a resume of a turn would do; reads its journal.

    Args:
        view: The turn.
        paths: Where it is.

    Returns:
        The preview; None when there is nothing to resume, or it can't be.
    """
    if view.status not in ("cancelled", "failed"):
        return None
    try:
        return what_resumes(past_events(paths)).preview
    except UserError:  # which a resume would tell
        return None


def started_of(events: Sequence[Event]) -> TurnStarted:
    """Return the first line of a turn's journal.

    Raises:
        UserError: It is not there.
    """
    started = [e for e in events if isinstance(e, TurnStarted)]
    if not started:
        raise UserError("The journal of this turn has no beginning: there is nothing to resume.")
    return started[-1]


def stored_team(started: TurnStarted) -> TeamSpec | None:
    """Return a turn's team as its journal has it; None when it is not there, or can't be read."""
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
    """Name the agents of a team that a resume asks for anything, in registration order."""
    match voting.next_step(past.state, rules):
        case voting.Coordinate():
            return voting.awaited(past.state, rules)
        case voting.Present(winner=winner) | voting.Judge(winner=winner):
            return (winner,)
        case _:
            return ()


def _left_to_run(past: OpenRound) -> list[str]:
    """Name the tools of a round's last response that have not run to their end."""
    if past.was_asking or not past.exchanges:
        return []
    last = past.exchanges[-1]
    calls = [p for p in last.response.get("parts", ()) if p.get("part_kind") == "tool-call"]
    return [
        str(call.get("tool_name"))
        for number, call in enumerate(calls)
        if number not in last.results and call.get("tool_name") not in DECISIONS
    ]


def _cost_of(agents: Sequence[str], finished: Sequence[ModelFinished]) -> float | None:
    """Price one more call of each agent as the mean of those that it finished."""
    total = 0.0
    for agent in agents:
        costs = [e.usage.cost for e in finished if e.agent == agent]
        known = [cost for cost in costs if cost is not None]
        if not known or len(known) < len(costs):
            return None
        total += sum(known) / len(known)
    return total
