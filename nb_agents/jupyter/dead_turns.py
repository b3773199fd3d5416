"""What a kernel reports when it starts: what died, and what goes on elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from nb_agents.errors import SessionUnreadableError
from nb_agents.jupyter.ipython import display
from nb_agents.nouns import count
from nb_agents.presentation.asking import question
from nb_agents.presentation.sweep_list import live_work
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.layout import LISTED, TurnPaths, session_root, sessions_in, turns_of
from nb_agents.session.views import read_json
from nb_agents.verbs.on_sessions import readable, unread


def report_dead_turns() -> None:
    """Print which turns were cut off when their kernel died; reading them mends their files."""
    found = sessions_in(session_root())
    said = [str(each) for each in found.unreadable]
    # Turns that nobody has used for long were reported before.
    for path in found.by_use[:LISTED]:
        said += readable(path, _dead)
    said += _dead_sweeps(session_root())
    said += _work_elsewhere(session_root())
    for sentence in said:
        display({"text/plain": sentence})


def _dead(session: Path) -> list[str]:
    last = turns_of(session)[-1]
    is_dead = _never_ended(last) and not last.is_live()
    return [_died(load_turn(last))] if is_dead else []


def _died(turn: PastTurn) -> str:
    name = turn.paths.session
    said = (
        f"Incomplete turn {name}/{turn.paths.number}: its kernel died. Kept: {_kept(turn)}. "
        f"`%agents show {name}` shows it, `%agents resume {name}` goes on."
    )
    return " ".join([said, *map(question, turn.view.gates.values()), *unread([turn])])


def _never_ended(paths: TurnPaths) -> bool:
    data = read_json(paths.metadata)
    if not data:
        return os.path.lexists(paths.journal)
    return data.get("run_status") in ("pending", "in-progress", "awaiting")


def _kept(turn: PastTurn) -> str:
    files = count(turn.view.file_count or 0, "file")
    if turn.view.recipe:
        steps = [s for s in turn.view.steps.values() if s.unit in ("agent", "bash")]
        done = sum(s.status == "ok" for s in steps)
        return f"{count(done, 'step')}, {files}"
    agents = turn.view.agents.values()
    answers, partial = sum(1 for a in agents if a.answers), sum(1 for a in agents if a.unsubmitted)
    return f"{count(answers, 'answer')}, {count(partial, 'partial text')}, {files}"


def _dead_sweeps(root: Path) -> list[str]:
    """Return a sentence about each sweep below a session root whose process died."""
    from nb_agents.sweeps.manifest import has_died, is_live_sweep, sweep_paths
    from nb_agents.sweeps.sweep_fold import fold_notes

    said = list[str]()
    for path in sweep_paths(root):
        fold = fold_notes(path)
        try:
            is_dead = not is_live_sweep(path) and has_died(path, fold)
        except SessionUnreadableError as exc:
            said.append(str(exc))
            continue
        if is_dead:
            done = fold.completed + len(fold.failures)
            said.append(
                f"Sweep {path.name}: its kernel died with {done} of {fold.total} rows complete. "
                "The same cell goes on with the others and asks for nothing twice."
            )
    return said


def _work_elsewhere(root: Path) -> list[str]:
    """Return a sentence about each run of another process, and each sweep as a whole.

    Args:
        root: The session root, below which a sweep is known by its name alone.
    """
    from nb_agents.sweeps.sweep_fold import fold_notes

    alone, sweeps = live_work()
    said = list[str]()
    for path, where in sorted(sweeps.items()):
        if where == "here":
            continue
        name = path.name if path.parent == root.resolve() else str(path)
        said.append(
            f"Sweep {name} goes on elsewhere, with {fold_notes(path).completed} rows complete: "
            f"`%agents sweeps` shows it, `%agents stop {name}` stops it."
        )
    said += [
        f"Run {run.id} goes on in {run.where}: `%agents show {run.id}` shows it, "
        f"`%agents stop {run.id}` stops it."
        for run in alone
        if run.where and not run.is_over
    ]
    return said
