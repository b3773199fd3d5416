"""Reports turns whose kernel died, and runs of other processes, when a kernel starts."""

from __future__ import annotations

import os
from pathlib import Path

from nb_agents.errors import SessionUnreadableError
from nb_agents.jupyter.ipython import display
from nb_agents.nouns import count
from nb_agents.presentation.asking import question
from nb_agents.presentation.live_work import live_work
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.layout import LISTED, TurnPaths, session_root, sessions_in, turns_of
from nb_agents.session.views import read_json
from nb_agents.turns.groups import groups_in, kind_at
from nb_agents.verbs.on_sessions import describe_or_error, read_warnings


def report_dead_turns() -> None:
    """Print turns and groups whose kernel died, and live runs of other processes.

    Loading a dead turn repairs its files.
    """
    sessions = sessions_in(session_root())
    lines = [str(each) for each in sessions.unreadable]
    # Turns that have not been used for a long time were reported before.
    for path in sessions.by_use[:LISTED]:
        lines += describe_or_error(path, _dead_turns)
    lines += _dead_groups(session_root())
    lines += _work_elsewhere(session_root())
    for line in lines:
        display({"text/plain": line})


def _dead_turns(session: Path) -> list[str]:
    last = turns_of(session)[-1]
    is_dead = _has_no_end(last) and not last.is_live()
    return [_dead_turn_message(load_turn(last))] if is_dead else []


def _dead_turn_message(turn: PastTurn) -> str:
    name = turn.paths.session
    message = (
        f"Incomplete turn {name}/{turn.paths.number}: its kernel died. Saved: {_saved_work(turn)}. "
        f"`%agents show {name}` shows it, `%agents resume {name}` resumes it."
    )
    return " ".join([message, *map(question, turn.view.gates.values()), *read_warnings([turn])])


def _has_no_end(paths: TurnPaths) -> bool:
    data = read_json(paths.metadata)
    if not data:
        return os.path.lexists(paths.journal)
    return data.get("run_status") in ("pending", "in-progress", "awaiting")


def _saved_work(turn: PastTurn) -> str:
    files = count(turn.view.file_count or 0, "file")
    if turn.view.has_steps:
        steps = [s for s in turn.view.steps.values() if s.unit in ("agent", "bash")]
        done = sum(s.status == "ok" for s in steps)
        return f"{count(done, 'step')}, {files}"
    agents = turn.view.agents.values()
    answers, partial = sum(1 for a in agents if a.answers), sum(1 for a in agents if a.unsubmitted)
    return f"{count(answers, 'answer')}, {count(partial, 'partial text')}, {files}"


def _dead_groups(root: Path) -> list[str]:
    """Return a sentence for each group in a session root whose process died."""
    lines = list[str]()
    for kind, path in groups_in(root):
        try:
            lines.append(kind.death_notice(path))
        except SessionUnreadableError as exc:
            lines.append(str(exc))
    return [line for line in lines if line]


def _work_elsewhere(root: Path) -> list[str]:
    """Return a sentence for each live run and group of other processes.

    Args:
        root: The current session root. Groups outside it are shown with their path. Runs outside it
            are only counted, because most of them belong to other notebooks.
    """
    alone, groups = live_work()
    lines = list[str]()
    for path, where in sorted(groups.items()):
        if where == "here" or (kind := kind_at(path)) is None:
            continue
        lines.append(
            kind.live_notice(path, path.name if path.parent == root.resolve() else str(path))
        )
    live = [run for run in alone if run.where and not run.is_over]
    near = [run for run in live if run.path.is_relative_to(root.resolve())]
    lines += [
        f"Run {run.id} is running in {run.where}: `%agents show {run.id}` shows it, "
        f"`%agents stop {run.id}` stops it."
        for run in near
    ]
    if far := len(live) - len(near):
        verb, pronoun = ("is", "it") if far == 1 else ("are", "them")
        lines.append(
            f"{count(far, 'run')} of other directories {verb} running: `%agents runs` lists "
            f"{pronoun}."
        )
    return lines
