"""Exact resume: go on with an incomplete turn as if it had never been stopped.

The journal of the old turn is folded into where its agents were; the new turn's journal begins
there. No model call and no tool call that finished runs again, and what will is told before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from nb_agents.agents.replay import OpenRound, Past, another_try, replay
from nb_agents.cancel import CancelPolicy
from nb_agents.config.recipe import Recipe
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, SessionBusyError, UserError
from nb_agents.events import (
    Event,
    ModelFinished,
    StopRequested,
    TurnStarted,
)
from nb_agents.models.providers import check_team, load
from nb_agents.runs.execution import Resumed, Work
from nb_agents.runs.launch import config_path, launch, owner, owner_of, timeout_of
from nb_agents.runs.options import RunOptions, chosen_options
from nb_agents.runs.recipes import (
    Again,
    Going,
    going_on,
    keep_recipe,
    read_recipe,
    what_runs_again,
)
from nb_agents.runs.run import Run
from nb_agents.runs.work import checked_functions
from nb_agents.session import layout
from nb_agents.session.copying import copy_workspaces
from nb_agents.session.history import PastTurn, Session, load_session, past_events
from nb_agents.session.layout import TurnPaths

__all__ = ["Preview", "preview", "resume"]


@dataclass(frozen=True)
class Preview:
    """What a resume will do.

    Attributes:
        turn: Number of the turn that it goes on with.
        answers, votes, calls: What is kept: answers, votes, finished model calls.
        asked_again: Agents whose model call was cut: it is sent again.
        tools_again: Tool calls that were cut or never ran, as "agent: tool".
        cost: US dollars that asking again may cost, by what those agents' calls cost so far; None
            when no price is known.
        recipe: What a recipe's turn does again; None for a team's.
    """

    turn: int
    answers: int
    votes: int
    calls: int
    asked_again: tuple[str, ...]
    tools_again: tuple[str, ...]
    cost: float | None
    recipe: Again | None = None

    def __str__(self) -> str:
        """Say it in a sentence or two."""
        kept = f"{self.answers} answer(s), {self.votes} vote(s)"
        if self.recipe is not None:
            kept = f"{self.recipe.finished} finished step(s)"
        return (
            f"Resumes turn {self.turn}: {kept} and {self.calls} finished model call(s) are kept. "
            f"Runs again: {', '.join(self._again()) or 'nothing'}.{self._gates()}"
        )

    def _gates(self) -> str:
        gates = self.recipe.gates if self.recipe else ()
        return f" Asks again: the gate of {', '.join(gates)}." if gates else ""

    def _again(self) -> list[str]:
        again = []
        if self.asked_again:
            count = len(self.asked_again)
            price = "" if self.cost is None else f", about ${self.cost:.3f}"
            calls = f"{count} model call{'' if count == 1 else 's'}"
            again.append(f"{calls} cut or failed ({', '.join(self.asked_again)}{price})")
        again += [f"the tool call {call}" for call in self.tools_again]
        if self.recipe is not None:
            again += [f"the step {step} (it failed)" for step in self.recipe.failed]
            again += [
                f"the command of {step} (cut: it may have happened in part)"
                for step in self.recipe.cut
            ]
            again += [f"the command of {step} (it failed)" for step in self.recipe.tried]
        return again


def preview(session: str = "", session_root: str | os.PathLike[str] | None = None) -> Preview:
    """Say what `resume` would do, without doing it.

    Args:
        session: The session's id; "" means the one used last.
        session_root: Where sessions are.

    Returns:
        The preview.

    Raises:
        UserError: There is nothing to resume.
    """
    turn, _ = _find(session, session_root)
    events = past_events(turn.paths)
    going = _going(events, None, TeamSpec.model_construct(agents=()))
    past = going.past if going else _past(_agents(events), events)
    return _preview(turn, past, events, going)


def resume(
    session: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    session_root: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    *,
    agent: str = "",
    recipe: str | os.PathLike[str] | Recipe | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    policy: CancelPolicy | None = None,
    options: RunOptions | None = None,
    debug: bool = False,
) -> Run:
    """Go on with the incomplete last turn of a session: same task, same agents, from there.

    Args:
        session: The session's id; "" means the one used last.
        config: The team; by default the turn's own file, else the team as the journal has it.
        session_root: Where sessions are; by default NB_AGENTS_SESSIONS or .nb_agents/sessions.
        timeout: Orchestrator timeout in seconds, counted anew; by default the team's.
        agent: Id of an agent that was stopped alone and takes part again; then the turn may be
            complete, too. The others stay as they were; votes and a new answer decide once more.
        recipe: Takes the place of the recipe that the turn has kept: what finished stays as it is.
        tools: Functions that all agents may call: those of the turn are not stored.
        policy: Grace time and hooks of a stop.
        options: Time, retries, stop, approvals and callbacks at once; in the place of ``timeout``
            and ``policy``.
        debug: Whether to write debug.log into the turn's directory.

    Returns:
        The run, as the next turn of the session.

    Raises:
        UserError: There is nothing to resume, or the team is another one.
        SessionBusyError: The session is being run.
        StorageError: The session can't be written.
    """
    turn, past_session = _find(session, session_root, agent)
    events = past_events(turn.paths)
    again = _again(agent, events)
    team = _team(config, events)
    spec = team.spec
    check_team(spec)
    load({agent.backend.type for agent in spec.everyone})
    functions = checked_functions(tools)
    going = _going(events, recipe, spec)
    past = going.past if going else _past([a.id for a in spec.agents], events, again)
    before = past_session.before(turn.paths.number)
    chosen = chosen_options(options, timeout, policy, spec)
    timeout_s = timeout_of(chosen.timeout_s, spec, is_recipe=going is not None)
    told = str(_preview(turn, past, events, going))
    notices = (told, *team.notices, *(going.notices if going else ()))

    def make(paths: TurnPaths) -> Work:
        copy_workspaces(turn.paths.workspaces, paths.workspaces)
        if going is not None:
            keep_recipe(paths, going.recipe, turn.view.recipe)
        return Work(
            task=turn.view.task,
            spec=spec,
            paths=paths,
            history=before.messages,
            context=(*spec.context_paths, *before.context_paths),
            timeout_s=timeout_s,
            notices=notices,
            owner=owner(),
            config=team.path,
            resumed=Resumed(
                turn.paths.number, past, turn.view, going.progress if going else None, again
            ),
            recipe=going.recipe if going else None,
            given=going.progress.context if going else {},
            functions=functions,
            options=chosen.options,
        )

    return launch(past_session.path, make, chosen.policy, debug, resume)


def _find(
    session: str, root: str | os.PathLike[str] | None, agent: str = ""
) -> tuple[PastTurn, Session]:
    found = load_session(layout.find_session(layout.session_root(root), session))
    last = found.turns[-1]
    name = f"{found.path.name}/{last.paths.number}"
    if last.is_live and agent:
        raise UserError(
            f"Turn {name} still goes on, and an agent takes part again in the next one. Wait for "
            f"its end or stop it, then resume {agent!r}."
        )
    if last.is_live:
        raise SessionBusyError(found.path.name, owner_of(found.path))
    if last.is_complete and not agent:
        raise UserError(
            f"Turn {name} is complete: there is nothing to resume. "
            f"`%%agents --continue --session {found.path.name}` asks something new."
        )
    if not last.view.recipe and not _agents(past_events(last.paths)):
        raise UserError(
            f"Turn {name} has no journal, so that its calls are not known one by one. "
            f"`%%agents --continue --session {found.path.name}` goes on with what it holds."
        )
    return last, found


def _going(
    events: Sequence[Event], changed: str | os.PathLike[str] | Recipe | None, team: TeamSpec
) -> Going | None:
    """Find where the turn's recipe goes on; None for a team's turn."""
    if not any(isinstance(e, TurnStarted) and e.recipe for e in events):
        if changed is not None:
            raise UserError("The turn ran no recipe: leave out --recipe.")
        return None
    going = going_on(events, None)
    if changed is None:
        return going
    return going_on(events, read_recipe(changed, going.progress.context, team))


def _agents(events: Sequence[Event]) -> list[str]:
    started = [e for e in events if isinstance(e, TurnStarted)]
    return [a.id for a in started[-1].agents] if started else []


def _again(agent: str, events: Sequence[Event]) -> tuple[str, ...]:
    """Name who takes part again; refuse one that was not stopped alone."""
    if not agent:
        return ()
    if any(isinstance(e, TurnStarted) and e.recipe for e in events):
        raise UserError(f"The turn ran a recipe, which has no agent {agent!r} to resume alone.")
    known = _agents(events)
    if agent not in known:
        raise UserError(f"The turn has no agent {agent!r} to resume. It has: {', '.join(known)}.")
    alone = {e.agent for e in events if isinstance(e, StopRequested)}
    if agent not in alone or agent not in replay(known, events).state.out:
        raise UserError(
            f"Agent {agent!r} was not stopped alone, so there is nothing to resume of it by itself."
        )
    return (agent,)


def _past(agents: Sequence[str], events: Sequence[Event], again: tuple[str, ...] = ()) -> Past:
    """Fold the turn; when nobody was left and nobody had answered, all get another try."""
    past = replay(agents, events, again)
    if past.state.live or past.state.answers:
        return past
    return replay(agents, another_try(agents, events))


class _Team(NamedTuple):
    """The team that goes on, the file that it is from or "", and what a person should know."""

    spec: TeamSpec
    path: str = ""
    notices: tuple[str, ...] = ()


def _team(config: str | os.PathLike[str] | TeamSpec | None, events: Sequence[Event]) -> _Team:
    """Find the team that goes on: the agents of the turn, as the person or the turn names them."""
    started = [e for e in events if isinstance(e, TurnStarted)][-1]
    if isinstance(config, TeamSpec):
        return _Team(_same_agents(config, started))
    if config is not None:
        return _Team(_same_agents(TeamSpec.from_file(config), started), config_path(config))
    is_there = bool(started.config) and Path(started.config).is_file()
    if is_there:
        try:
            spec = _same_agents(TeamSpec.from_file(started.config), started)
            return _Team(spec, started.config)
        except ConfigError:
            if started.team is None:
                raise
    if started.team is None:
        raise UserError(
            "The team of this turn can't be made from its journal: a model was made in Python, or "
            "a base_url has a password. Give the team again: --config FILE, or config=."
        )
    changed = f"{started.config} is not that team any more; it goes on as the journal has it."
    try:
        spec = TeamSpec.model_validate(started.team)
    except ValidationError:  # a newer nb_agents, or a damaged disk
        raise UserError(
            "The team of this turn can't be read from its journal. Give the team again: "
            "--config FILE, or config=."
        ) from None
    spec = _same_agents(spec, started)
    return _Team(spec, started.config, (changed,) if is_there else ())


def _same_agents(spec: TeamSpec, started: TurnStarted) -> TeamSpec:
    spec = spec.without(_skipped(spec, started))
    if started.recipe:
        return spec
    wanted = [a.id for a in started.agents]
    same = spec.without({a.id for a in spec.agents} - {*wanted})
    if [a.id for a in same.agents] != wanted:
        raise ConfigError(
            f"The turn's agents are {', '.join(wanted)}; the team has "
            f"{', '.join(a.id for a in spec.agents)}. Resume it with its own, or use --continue."
        )
    return same


def _skipped(spec: TeamSpec, started: TurnStarted) -> set[str]:
    """Name those of a team that can't run here, and that the turn was started without."""
    stored = started.team or {}
    everyone = [*stored.get("agents", ()), *stored.get("callable_agents", ())]
    known = {a.id for a in started.agents} | {a.get("id") for a in everyone}
    return {each.agent for each in spec.unsupported} - known


def _preview(turn: PastTurn, past: Past, events: Sequence[Event], going: Going | None) -> Preview:
    recipe = what_runs_again(going.progress, events) if going else None
    rounds = {a: r for a, r in past.rounds.items() if recipe is None or a in recipe.open}
    asked = tuple(a for a, r in rounds.items() if r.was_asking)
    tools = tuple(f"{a}: {t}" for a, r in rounds.items() for t in _unfinished_tools(r))
    finished = [e for e in events if isinstance(e, ModelFinished)]
    return Preview(
        turn.paths.number,
        len(past.state.answers),
        len(past.state.votes),
        len(finished),
        asked,
        tools,
        _cost_of(asked, finished),
        recipe,
    )


def _unfinished_tools(past: OpenRound) -> list[str]:
    if past.was_asking or not past.exchanges:
        return []
    last = past.exchanges[-1]
    calls = [p for p in last.response.get("parts", ()) if p.get("part_kind") == "tool-call"]
    return [
        str(call.get("tool_name"))
        for number, call in enumerate(calls)
        if number not in last.results and call.get("tool_name") not in ("new_answer", "vote")
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
