"""Removes old sessions, and then the ledgers of budgets that no turn needs any more.

A ledger is needed as long as a session has a turn of its task, because a resume or fork of that
turn counts what the task has used. A day's ledger is needed until the next day has one, which takes
over what its turns had used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

from nb_agents.disk.directory import Directory
from nb_agents.disk.private import private_lock
from nb_agents.errors import UserError
from nb_agents.events import TurnStarted
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import BUDGETS, TurnPaths, sessions_in, turns_of
from nb_agents.session.prune import Pruned, PruneSpec, Pruning
from nb_agents.turns.day_budget import DayLedger
from nb_agents.turns.groups import groups_in, kinds
from nb_agents.turns.ledger import read_entries
from nb_agents.turns.task_ledger import task_id

ENDING = ".json"
KEPT_DAYS = 2
"""Number of ledgers of days that are always kept: a turn that runs now may need the last two."""


def prune(root: Path, spec: PruneSpec) -> Pruned:
    """Remove old sessions in a session root, and in its groups, and ledgers without a session.

    Args:
        root: The session root.
        spec: The sessions to remove.

    Returns:
        The numbers of removed and kept sessions.
    """
    pruning = Pruning(spec)
    pruning.remove_sessions(root)
    for kind in kinds():
        kind.prune(root, pruning)
    _remove(root / BUDGETS, pruning, lambda paths: _unused_tasks(paths, root, pruning))
    _remove(DayLedger().folder, pruning, lambda paths: paths[:-KEPT_DAYS])
    return pruning.done


def _remove(
    folder: Path, pruning: Pruning, choose: Callable[[list[Path]], list[Path] | Iterator[Path]]
) -> None:
    """Remove the old ledgers in a directory.

    Args:
        folder: The directory.
        pruning: The spec, and the numbers of removed files.
        choose: Returns those of the ledgers, sorted by name, that may be removed.
    """
    spec, done = pruning.spec, pruning.done
    if not os.path.lexists(folder):
        return
    try:
        # A turn that starts in between waits for the lock, and then writes its ledger again.
        with (
            Directory.at(folder, follows_links=False) as directory,
            nullcontext() if spec.is_dry_run else private_lock(folder / "lock"),
        ):
            files = {each.path: each.stat for each in directory.entries() if each.kind == "file"}
            ledgers = sorted(folder / name for name in files if name.endswith(ENDING))
            for path in choose(ledgers):
                if files[path.name].st_mtime >= spec.before:
                    continue
                if not spec.is_dry_run:
                    directory.remove(path.name)
                done.ledgers += 1
                done.files += 1
                done.size_bytes += files[path.name].st_size
    except (OSError, UserError) as exc:
        done.unread.append(f"{folder} was not cleaned up: {exc}")


def _unused_tasks(paths: list[Path], root: Path, pruning: Pruning) -> Iterator[Path]:
    """Yield the ledgers of tasks of which no session has a turn."""
    remaining = cache(
        lambda: _task_ids(root, pruning)
    )  # reads all journals, which is rarely needed
    for path in paths:
        if not _has_session(path, pruning) and path.name.partition(".")[0] not in remaining():
            yield path


def _has_session(path: Path, pruning: Pruning) -> bool:
    """Return whether a turn in a ledger exists, or may exist because the ledger is damaged."""
    try:
        entries = read_entries(path)
    except (OSError, ValueError):
        return True
    sessions = {Path(entry.turn).parent for entry in entries.values() if entry.turn}
    return any(path.is_dir() for path in sessions - pruning.removed)


def _task_ids(root: Path, pruning: Pruning) -> set[str]:
    """Return the ids of the tasks in a session root. Sessions may have been renamed or moved.

    Raises:
        UserError: A session can't be read, so that its tasks are unknown.
    """
    ids = set[str]()
    for folder in (root, *(path for _, path in groups_in(root))):
        sessions = sessions_in(folder)
        if sessions.unreadable:
            raise sessions.unreadable[0]
        for session in sessions.by_use:
            if session not in pruning.removed:
                ids.update(task for turn in turns_of(session) for task in _ids_of(turn))
    return ids


def _ids_of(turn: TurnPaths) -> Iterator[str]:
    with suppress(FileNotFoundError):
        yield from (
            task_id(event.task, event.at)
            for event in read_journal(turn.journal).events
            if isinstance(event, TurnStarted)
        )
