"""Resumes turns whose process ended while they waited for a provider, once their wait is over.

The journal says until when an agent waits (`nb_agents.events.ModelFailed`), and when a batch was
sent, whose turn is resumed soon and then waits for the batch as before. A turn is resumed if
its process died or was ended by the system, not if the user stopped it. `claim_turn` prevents two
processes from resuming the same turn.

The runs of a group, such as a sweep, are resumed if no process runs the group. Not more of them
work at the same time than in the group itself, and they share the budget that is left of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from nb_agents.disk.private import private_lock
from nb_agents.errors import SessionBusyError, SessionUnreadableError, UserError
from nb_agents.launch.api import resume
from nb_agents.launch.host import SIGNALLED
from nb_agents.launch.trust import is_yours
from nb_agents.options import RunOptions
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths, session_root, sessions_in, turns_of
from nb_agents.session.lookup import origin_of, with_origin
from nb_agents.session.views import read_json
from nb_agents.turns.budget import usage_of_task, with_process_limit
from nb_agents.turns.groups import OpenRuns, groups_in
from nb_agents.view.run_view import ProviderWait, RunView

WAITS_LOCK = "waits.lock"
"""The file in a group's directory that is locked while its runs are resumed."""


class WaitingTurn(NamedTuple):
    """A turn that waits for a provider and that no process is running.

    Attributes:
        paths: The turn.
        wait: The wait that ends first.
        cost: US dollars that its task has cost.
    """

    paths: TurnPaths
    wait: ProviderWait
    cost: float = 0.0


class ResumedTurn(NamedTuple):
    """The result of an attempt to resume a turn.

    Attributes:
        name: The turn, as SESSION/TURN or GROUP/SESSION/TURN.
        until: When its wait is over, or when its batch is looked at, in Unix seconds.
        resumed: The new turn, or "" if it was not resumed.
        error: Why it was not resumed. "" if it was, or if it still waits: for its provider, or for
            other runs of its group.
    """

    name: str
    until: float
    resumed: str = ""
    error: str = ""


def interrupted_wait(view: RunView) -> ProviderWait | None:
    """Return the wait that ends first of a turn whose process ended. None for other turns.

    Args:
        view: The view of a turn that no process is running.
    """
    stop = view.stop
    was_ended = stop is not None and (stop.source, stop.reason) == ("parent", SIGNALLED)
    if view.ending != "killed" and not was_ended:
        return None
    waits = [agent.wait for agent in view.agents.values() if agent.wait is not None]
    return min(waits, key=lambda wait: wait.due, default=None)


def waiting_turn(session: Path) -> WaitingTurn | None:
    """Return the last turn of a session if it waits for a provider and no process is running it.

    Args:
        session: The session's directory.
    """
    try:
        turns = turns_of(session)
    except SessionUnreadableError:
        return None
    if not turns or turns[-1].is_live() or not is_yours(session):
        return None
    metadata = read_json(turns[-1].metadata)
    if metadata and metadata.get("status") != "incomplete":
        return None
    view = load_turn(turns[-1]).view
    wait = interrupted_wait(view)
    return None if wait is None else WaitingTurn(turns[-1], wait, usage_of_task(view).cost)


def resume_due_turns(root: Path | None, now: float) -> list[ResumedTurn]:
    """Resume the turns whose wait is over, each in its own process.

    Args:
        root: The session root. None means the default root.
        now: The current time, in Unix seconds.

    Returns:
        The turns that wait or were resumed. A turn that another process resumes at the same time is
        left out.
    """
    root = session_root(root)
    results = [*_resumed(filter(None, map(waiting_turn, sessions_in(root).by_use)), now)]
    for kind, path in groups_in(root):
        # The lock prevents that two processes use the same rest of a limit. If another one has it,
        # that one resumes the runs.
        with suppress(SessionUnreadableError, Timeout, OSError):
            if not kind.is_live(path):
                with private_lock(path / WAITS_LOCK, 0):
                    results += _resumed_in_group(path, kind.open_runs(path), now)
    return results


def _resumed(
    turns: Iterable[WaitingTurn],
    now: float,
    group: str = "",
    places: float = math.inf,
    left: float | None = None,
) -> Iterator[ResumedTurn]:
    """Resume the turns whose wait is over, as long as there are places.

    Args:
        turns: The turns.
        now: The current time, in Unix seconds.
        group: The name of their group and a slash, or "".
        places: The maximum number of turns to resume.
        left: US dollars that a turn may cost, or None.
    """
    for paths, wait, cost in turns:
        turn = ResumedTurn(f"{group}{paths.session}/{paths.number}", wait.due)
        try:
            if wait.due <= now and places > 0:
                with with_process_limit(None if left is None else cost + left):
                    turn = turn._replace(resumed=f"{group}{_resume(paths, wait)}")
                places -= 1
        except SessionBusyError:
            continue
        except UserError as exc:
            turn = turn._replace(error=str(exc))
        yield turn


def _resumed_in_group(path: Path, runs: OpenRuns, now: float) -> Iterator[ResumedTurn]:
    """Resume runs of a group that no process runs."""
    waiting = sorted(filter(None, map(waiting_turn, runs.sessions)), key=lambda turn: turn.wait.due)
    group = f"{path.name}/"
    if runs.refusal:
        for paths, wait, _ in waiting:
            error = runs.refusal if wait.due <= now else ""
            yield ResumedTurn(f"{group}{paths.session}/{paths.number}", wait.due, error=error)
        return
    live = sum(map(_is_live, runs.sessions)) if waiting else 0
    yield from _resumed(waiting, now, group, runs.limit - live, runs.left)


def _is_live(session: Path) -> bool:
    with suppress(SessionUnreadableError):
        return any(turn.is_live() for turn in turns_of(session)[-1:])
    return False


def _resume(paths: TurnPaths, wait: ProviderWait) -> str:
    limit_s = None if wait.reason == "batch" else wait.limit_s  # None means that of the task
    options = RunOptions(detach=True, session_root=paths.root, wait_for_quota=limit_s)
    with with_origin(origin_of(paths)):  # the new turn belongs to the same notebook
        run = resume(paths.session, options=options)
    return f"{run.session}/{run.turn}"
