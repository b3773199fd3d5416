"""Reads what earlier runs of a team have used, from the latest sessions of a session root.

Only sessions of this user count, because others could have written any number. The amount that is
read is limited, so that a check and a start stay fast.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nb_agents.config.team import TeamSpec
from nb_agents.errors import SessionUnreadableError
from nb_agents.events import Event, TurnStarted
from nb_agents.launch.estimate import Estimate, PastRun
from nb_agents.models.prices import FREE, prices_of
from nb_agents.options import RunOptions
from nb_agents.session.event_lines import read_event
from nb_agents.session.journal import first_event
from nb_agents.session.layout import TurnPaths, session_root, turns_of
from nb_agents.session.ownership import Evidence, evidence_of, find_owner_mark, user_mark
from nb_agents.turns.budget import Budget, asks_at_budget, budget_of
from nb_agents.view.fold import fold
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView

MAX_RUNS = 5
"""Maximum number of runs on which an estimate is based."""

MAX_SESSIONS = 50
"""Maximum number of sessions in which runs are looked for, the latest first."""

MAX_BYTES = 16_000_000
"""Maximum number of bytes of journals that are read."""

_TEXT = b',"kind":"text_streamed",'

Members = Sequence[tuple[str, str]]


def estimate_of(
    team: TeamSpec,
    options: RunOptions | None = None,
    roots: Iterable[Path] = (),
    *,
    work: str = "",
    rows: int = 0,
    budget: Budget | None = None,
    with_prices: bool = True,
) -> Estimate:
    """Return what is known about the cost of a run of a team.

    Args:
        team: The team.
        options: The run's options, with its budget and session root. None means the defaults.
        roots: Directories with sessions. By default, the session root.
        work: The name of the recipe, or of other work. "" for a task.
        rows: Number of rows of a sweep. 0 for a single run.
        budget: The limits. By default, those of the options and the team.
        with_prices: Whether to look up the prices of the models, which imports their libraries.

    Raises:
        UserError: The budget in the environment is not a number above 0.
    """
    options = options or RunOptions()
    places = [*roots] or [session_root(options.session_root)]
    is_free = all(agent.backend.type == FREE for agent in team.everyone)
    return Estimate(
        len(team.agents),
        () if is_free else past_runs(places, _members(team), work),
        prices_of(team.everyone) if with_prices else {},
        budget_of(team, options) if budget is None else budget,
        asks_at_budget(team, options),
        rows,
        is_team=not work,
    )


def past_runs(roots: Iterable[Path], members: Members, work: str = "") -> tuple[PastRun, ...]:
    """Return what the latest completed runs of a team have used, the latest first.

    Args:
        roots: Directories with sessions.
        members: The backend type and model of each agent, sorted.
        work: The name of the recipe, or of other work. "" for a task.
    """
    runs: dict[bytes, PastRun] = {}  # by their first line, because a fork copies the journals
    left = MAX_BYTES
    for session in _latest(roots):
        turns = _turns(session)
        if not any(_matches(first_event(turn.journal), members, work) for turn in turns):
            continue
        size = sum(_size(turn) for turn in turns)
        if size > left:
            continue
        left -= size
        for line, run in _runs_of(evidence_of(session), members, work):
            runs.setdefault(line, run)
        if len(runs) >= MAX_RUNS:
            break
    return tuple(runs.values())[:MAX_RUNS]


def _members(team: TeamSpec) -> Members:
    backends = [agent.backend for agent in team.agents]
    return sorted((each.type, each.model or each.type) for each in backends)


def _latest(roots: Iterable[Path]) -> list[Path]:
    """Return the directories that changed last, the latest first."""
    found: list[tuple[float, str]] = []
    for root in roots:
        with suppress(OSError), os.scandir(root) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    return [Path(path) for _, path in heapq.nlargest(MAX_SESSIONS, found)]


def _turns(session: Path) -> list[TurnPaths]:
    try:
        return turns_of(session)
    except SessionUnreadableError:
        return []


def _size(turn: TurnPaths) -> int:
    try:
        return turn.journal.lstat().st_size
    except OSError:
        return 0


def _matches(started: Mapping[str, Any], members: Members, work: str) -> bool:
    """Return whether a journal's first line is the start of a run of a team."""
    if started.get("kind") != "turn_started" or started.get("recipe", "") != work:
        return False
    return _recorded_members(started.get("team")) == members


def _runs_of(
    turns: Sequence[Evidence], members: Members, work: str
) -> Iterator[tuple[bytes, PastRun]]:
    """Yield the first line and the use of each completed run of a session, the latest first."""
    if find_owner_mark(turns, user_mark) is None:
        return
    journals = {turn.paths.number: [*_events(turn.journal)] for turn in turns}
    for turn in reversed(turns):
        events = _with_resumed(journals, turn.paths.number)
        started = events[0] if events else None
        if not isinstance(started, TurnStarted) or started.recipe != work:
            continue
        if _recorded_members(started.team) == members and (run := _past_run(fold(events))):
            yield turn.journal.partition(b"\n")[0], run


def _recorded_members(team: Any) -> Members:
    """Return the members of the team in a journal's first event, or () if it has none."""
    try:
        backends = [agent["backend"] for agent in team["agents"]]
        return sorted((each["type"], each["model"] or each["type"]) for each in backends)
    except (LookupError, TypeError):
        return ()


def _events(journal: bytes) -> Iterator[Event]:
    """Yield the events of a journal, without the text, which does not matter for its cost."""
    for line in journal.split(b"\n"):
        if line and _TEXT not in line[:100]:
            with suppress(ValidationError):
                yield read_event(line)


def _with_resumed(journals: Mapping[int, Sequence[Event]], number: int) -> list[Event]:
    """Return the events of a turn and of the turns that it resumed, or [] for a rewind."""
    chain: list[Sequence[Event]] = []
    while events := journals.get(number):
        chain.append(events)
        started = events[0]
        if not isinstance(started, TurnStarted) or started.point:
            return []
        if not 0 < started.resumes < number:
            break
        number = started.resumes
    return [event for each in reversed(chain) for event in each]


def _past_run(view: RunView) -> PastRun | None:
    if view.status != "completed":
        return None
    calls = sum(agent.calls for agent in view.agents.values())
    cost = None if total_cost(view) is None else view.task_cost
    return PastRun(len(view.agents), calls, view.task_tokens, cost) if calls else None
