"""Going on several times from one point of a turn: a sweep whose rows are forks of its session.

    <root>/<sweep>/<row>/turn_1 … turn_N    copied from the session
                         turn_N+1           goes on from the point

Each row has a session of its own, as turns of one session can't work at the same time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from nb_agents.config.secrets import snapshot
from nb_agents.config.team import TeamSpec
from nb_agents.errors import NotYoursError, UserError
from nb_agents.events import Event
from nb_agents.launch.api import begin, resume
from nb_agents.launch.resume import project_of, would_resume
from nb_agents.launch.resume_plan import started_of
from nb_agents.launch.rewind import RewindRequest
from nb_agents.launch.trust import is_yours
from nb_agents.masking import safe_errors
from nb_agents.runs.run import Run
from nb_agents.runs.turn_spec import checked_functions
from nb_agents.session.layout import TurnPaths, session_root, turns_of
from nb_agents.session.manage import copy_turns
from nb_agents.sweeps.manifest import sweep_of
from nb_agents.sweeps.mapping import DEFAULT_LIMIT
from nb_agents.sweeps.source import Row
from nb_agents.sweeps.sweep import Sweep, SweepSpec


@safe_errors
def try_again(request: RewindRequest, times: int) -> Sweep:
    """Go on several times from one point of a turn, as `nb_agents.rewind` with ``times``.

    Args:
        request: The rewind, of a turn that is not live.
        times: The number of forks.

    Returns:
        The sweep, without waiting for it.

    Raises:
        UserError: As for `nb_agents.rewind`; or the agents may change files of the person's own.
    """
    past, _ = request.find()
    team = request.team_of(past.events).spec
    turn, options = past.paths, request.options
    _refuse_own_files(past.events, team)
    if not options.trust and not is_yours(turn.path.parent):
        raise NotYoursError(turn.session, would_resume(turn.path.parent, team))
    path = _root_of(turn) / _name_of(request, team)
    at = request.at.point
    again = replace(
        request,
        config=team,
        tools=checked_functions(request.tools),
        options=replace(options, session_root=path),
    )
    context = copy_context()  # whose notebook it is; rows begin in threads
    return Sweep(
        SweepSpec(
            path,
            {
                "source": str(turn.path),
                "task": f"{past.view.task} (again from {at} of {turn.session}/{turn.number})",
                "rows": times,
                "first_turn": turn.number + 1,
            },
            tuple(Row(f"try_{n}", {"try": n}) for n in range(1, times + 1)),
            lambda row: context.copy().run(_begin, again, turn, path / row.name),
            limit=DEFAULT_LIMIT,
            tools=again.tools,
            first_turn=turn.number + 1,
        )
    )


def _begin(request: RewindRequest, turn: TurnPaths, fork: Path) -> Run:
    """Begin a row's run, or go on with it."""
    copied = TurnPaths(fork / turn.path.name)
    request = replace(request, session=fork.name, at=request.at.in_copy(copied))
    forked = turns_of(fork)
    if any(each.has_begun for each in forked if each.number > turn.number):
        assert not isinstance(request.config, str)
        return resume(fork.name, request.config, tools=request.tools, options=request.options)
    if turn.number not in {each.number for each in forked}:
        shutil.rmtree(fork, ignore_errors=True)  # a copy that a kill has cut
        fork.mkdir()
        copy_turns(
            [each for each in turns_of(turn.path.parent) if each.number <= turn.number], fork
        )
    return begin(request)


def _refuse_own_files(events: Sequence[Event], team: TeamSpec) -> None:
    """Refuse forks that would all change the same files of the person's own."""
    is_recipe, wanted = bool(started_of(events).recipe), team.orchestrator
    own: Path | str | None = None
    if is_recipe:
        own = project_of(events) or team.project
    elif wanted.writes_context_paths:
        own = next(each.path for each in wanted.context_paths if each.permission == "write")
    if own is not None:
        copies = "" if is_recipe else ", or set `write_mode: auto`, which gives each a copy"
        raise UserError(
            f"Several forks can't all change your own files in {str(own)!r}. Go on once, without "
            f"--times{copies}."
        )


def _root_of(turn: TurnPaths) -> Path:
    """Return the session root; of a sweep's row, that of the sweep."""
    sweep = sweep_of(turn.path)
    return session_root(turn.root if sweep is None else sweep.parent)


def _name_of(request: RewindRequest, team: TeamSpec) -> str:
    """Return the sweep's name: the same for the same point, word and team."""
    models = [(agent.id, agent.backend.type, agent.backend.model) for agent in team.everyone]
    said = [str(request.options.session_root), request.say, request.say_to, snapshot(team), models]
    digest = sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:8]
    at = request.at
    return f"{request.session}_{at.paths.number}_at_{at.point.seq}_{digest}"
