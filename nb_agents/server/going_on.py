"""Going on with what is on disk, each time in a process of its own: no kernel is there to do it."""

from __future__ import annotations

from pathlib import Path

from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.options import RunOptions
from nb_agents.runs.registry import start
from nb_agents.runs.resume import resume
from nb_agents.runs.resumption import started_of, stored_team
from nb_agents.runs.run import Run
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths, turns_of

__all__ = ["continue_session", "resume_turn"]


def resume_turn(paths: TurnPaths) -> Run:
    """Go on with an incomplete turn.

    Args:
        paths: The turn.

    Returns:
        The run, as the next turn of the session.

    Raises:
        UserError: It is complete, or a later turn went on with it.
        SessionBusyError: The session is being run.
    """
    last = turns_of(paths.path.parent)[-1]
    if last.number != paths.number:
        raise UserError(f"{paths.session}/{paths.number} is followed by turn {last.number}.")
    root = paths.root
    return resume(paths.session, options=RunOptions(detach=True, session_root=root))


def continue_session(session: Path, task: str) -> Run:
    """Ask the team of a session's last turn something new.

    Args:
        session: The session's directory.
        task: What is asked.

    Returns:
        The run, as the next turn of the session.

    Raises:
        UserError: The team isn't known, or can't be used.
        SessionBusyError: The session is being run.
    """
    options = RunOptions(detach=True, session_root=session.parent)
    return start(task, _team(turns_of(session)[-1]), session.name, True, options=options)


def _team(last: TurnPaths) -> str | TeamSpec:
    """Find the team of a turn: its file, or else as the journal has it."""
    started = started_of(past_events(last))
    if started.config and Path(started.config).is_file():
        return started.config
    team = stored_team(started)
    if team is None:
        raise UserError(
            f"The team of {last.session} can't be made from its journal. In a cell, "
            f"`%%agents --continue --session {last.session} --config FILE` names it."
        )
    return team
