"""Forks a turn several times from one checkpoint, as a sweep.

    <root>/<sweep>/<row>/turn_1 … turn_N    copied from the session
                         turn_N+1           starts at the checkpoint

Each row is a separate session, because turns of a session can't run at the same time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from pathlib import Path

from nb_agents.config.secrets import snapshot
from nb_agents.config.team import TeamSpec
from nb_agents.disk.private import make_folder
from nb_agents.errors import NotYoursError, UserError
from nb_agents.events import Event
from nb_agents.events.work_kinds import TEAM
from nb_agents.extensions.sweeps.manifest import DEFAULT_LIMIT
from nb_agents.extensions.sweeps.mapping import with_timeout
from nb_agents.extensions.sweeps.source import Row
from nb_agents.extensions.sweeps.sweep import Sweep, SweepSpec
from nb_agents.launch.api import resume, stop_live_turn
from nb_agents.launch.resume import would_resume
from nb_agents.launch.rewind import RewindRequest, check_times
from nb_agents.launch.run import Run, begin
from nb_agents.launch.team_kind import kind_of, started_of
from nb_agents.launch.trust import is_yours
from nb_agents.masking import safe_errors
from nb_agents.options import RunOptions
from nb_agents.session.layout import TurnPaths, session_root, turns_of
from nb_agents.session.manage import copy_turns
from nb_agents.signatures import described, takes
from nb_agents.turns.budget import (
    Budget,
    asks_at_budget,
    budget_of,
    left_of_budget,
    usage_of_task,
    with_budget_of,
)
from nb_agents.turns.groups import group_of_turn
from nb_agents.turns.task_ledger import check_budget
from nb_agents.turns.turn_spec import checked_functions
from nb_agents.view.run_view import RunView


@dataclass(frozen=True)
class ForkRequest(RewindRequest):
    """The arguments of `nb_agents.fork`, which describes them."""

    _: KW_ONLY
    times: int = field(metadata=described("number of forks"))

    def __post_init__(self) -> None:
        """Check the number of forks."""
        super().__post_init__()
        check_times(self.times)


@safe_errors
@takes(ForkRequest)
def fork(request: ForkRequest) -> Sweep:
    """Continue several times from the same checkpoint of a turn, as rows of a sweep.

    Each fork is a separate session, and the old turn does not change. Repeating the call continues
    the same sweep, and a higher number adds to it. The forks share what the task has left of its
    budget.

    Args:
        turn: As for `nb_agents.rewind`.
        to: The checkpoint; see `nb_agents.rewind`.
        times: Number of forks.
        config: As for `nb_agents.rewind`.
        say: A message for the agents.
        agent: The only agent that gets the message. By default, all agents get it.
        model: The model for all agents from the checkpoint on.
        now: Whether to interrupt model and tool calls in a live turn.
        tools: Functions that all agents may call. Pass them again, because they are not stored.
        options: The options of each fork.

    Returns:
        The running sweep.

    Raises:
        UserError: As for `nb_agents.rewind`, or because the agents may change user files.

    Example:
        sweep = nb_agents.fork(to="before ben's 2nd answer", times=5)
    """
    return _start(stop_live_turn(request))


def _start(request: ForkRequest) -> Sweep:
    past, session = request.find()
    team = request.team_of(past.events).spec
    turn, options = past.paths, with_budget_of(past.view, request.options)
    _refuse_user_files(past.events, team)
    budget = budget_of(team, options)
    check_budget(past, session, budget)
    if not options.trust and not is_yours(turn.path.parent):
        raise NotYoursError(turn.session, would_resume(turn.path.parent, team))
    path = _root_of(turn) / _name_of(request, team)
    at = request.at.point
    fork_request = request.changed(config=team, tools=checked_functions(request.tools))
    context = copy_context()  # rows start in threads, which need the notebook's context
    return Sweep(
        SweepSpec(
            path,
            {
                "source": str(turn.path),
                "task": f"{past.view.task} (again from {at} of {turn.session}/{turn.number})",
                "rows": request.times,
                "first_turn": turn.number + 1,
            },
            tuple(Row(f"try_{n}", {"try": n}) for n in range(1, request.times + 1)),
            lambda row, timeout: context.copy().run(
                _start_fork, with_limit(fork_request, timeout), turn, path / row.name
            ),
            limit=DEFAULT_LIMIT,
            budget=_budget_of_all(past.view, team, options),
            tools=fork_request.tools,
            first_turn=turn.number + 1,
            timeout=options.timeout_s,
            models=lambda row: team.models,
        )
    )


def with_limit(request: ForkRequest, timeout: float | None) -> ForkRequest:
    """Return the request with another time limit in seconds, or the same limit for None."""
    return request.changed(options=with_timeout(request.options, timeout))


def _budget_of_all(view: RunView, team: TeamSpec, options: RunOptions) -> Budget:
    """Return a budget at which no more forks start. The forks themselves share a ledger."""
    if asks_at_budget(team, options):  # each fork asks
        return Budget()
    return left_of_budget(usage_of_task(view), budget_of(team, options))


def _start_fork(request: ForkRequest, turn: TurnPaths, fork: Path) -> Run:
    """Start a row's run, or resume it."""
    copied = TurnPaths(fork / turn.path.name)
    request = request.for_copy(copied)
    forked = turns_of(fork)
    if any(each.has_begun for each in forked if each.number > turn.number):
        assert not isinstance(request.config, str)
        return resume(fork.name, request.config, tools=request.tools, options=request.options)
    if turn.number not in {each.number for each in forked}:
        shutil.rmtree(fork, ignore_errors=True)  # an incomplete copy
        make_folder(fork)
        copy_turns(
            [each for each in turns_of(turn.path.parent) if each.number <= turn.number], fork
        )
    return begin(request)


def _refuse_user_files(events: Sequence[Event], team: TeamSpec) -> None:
    """Raise `UserError` if several forks would change the same user files."""
    started, orchestrator = started_of(events), team.orchestrator
    is_team = started.work_kind == TEAM
    own: Path | str | None = None
    if not is_team:
        own = kind_of(started).past_project(events) or team.project
    elif orchestrator.writes_context_paths:
        own = next(each.path for each in orchestrator.context_paths if each.permission == "write")
    if own is not None:
        copies = ", or set `write_mode: auto` to give each fork a copy" if is_team else ""
        raise UserError(
            f"Several forks can't change the same user files in {str(own)!r}. Fork once, without "
            f"--times{copies}."
        )


def _root_of(turn: TurnPaths) -> Path:
    """Return the session root. For a row of a sweep, return that of the sweep."""
    sweep = group_of_turn(turn.path)
    return session_root(turn.root if sweep is None else sweep.parent)


def _name_of(request: ForkRequest, team: TeamSpec) -> str:
    """Return a name that is the same for the same checkpoint, message and team."""
    models = [(agent.id, agent.backend.type, agent.backend.model) for agent in team.everyone]
    parts = [str(request.options.session_root), request.say, request.agent, snapshot(team), models]
    digest = sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:8]
    at = request.at
    return f"{at.paths.session}_{at.paths.number}_at_{at.point.seq}_{digest}"
