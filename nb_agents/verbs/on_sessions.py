"""The verbs on sessions, and on all that a session root holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nb_agents.disk.entry import join_names
from nb_agents.errors import UserError, said_by
from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.session.history import PastTurn, load_session
from nb_agents.session.layout import LISTED, sessions_in
from nb_agents.session.manage import delete_session, export_session, rename_session
from nb_agents.verbs.facts import SweepFacts, facts_of_session, facts_of_sweep_at
from nb_agents.verbs.verb import Caller, Outcome

logger = logging.getLogger("nb_agents")

HEADS = ("session", "turns", "last turn", "used", "tokens", "cost", "task")
SWEEP_HEADS = ("sweep", "status", "complete", "failed", "tokens", "cost", "task")


def sessions(root: Path, caller: Caller, *, all: bool = False) -> Outcome:
    """List the sessions on disk, the one used last first."""
    from nb_agents.sweeps.manifest import sweep_paths

    found = sessions_in(root)
    rows, notes = list[tuple[str, ...]](), [str(each) for each in found.unreadable]
    shown = found.by_use if all else found.by_use[:LISTED]
    for path in shown:
        notes += readable(path, partial(_row, rows=rows))
    if more := text.older(len(found.by_use) - len(shown)):
        notes.append(more)
    if sweep_paths(root):
        notes.append(f"Sweeps are listed by `{caller.door.line('sweeps', [])}`.")
    empty = "" if rows or notes else f"No sessions in {text.shown_path(root)}."
    facts = [facts_of_session(root / row[0]) for row in rows]
    return Outcome(empty, {}, HEADS, rows, notes, facts)


def _row(path: Path, rows: list[tuple[str, ...]]) -> list[str]:
    session = load_session(path)
    rows.append(text.listed(session))
    return unread(session.turns)


def readable(session: Path, say: Callable[[Path], list[str]]) -> list[str]:
    """Return what is said of a session, or a sentence when it can't be shown."""
    try:
        return say(session)
    except UserError as exc:
        return [str(exc)]
    except Exception as exc:  # a defect of ours, which must not hide all sessions until it is gone
        logger.exception("session %s can't be shown", session.name)
        return [f"Session {session.name!r} can't be shown: {said_by(exc, named=True)}."]


def unread(turns: Sequence[PastTurn]) -> list[str]:
    """Return a sentence about what could not be read of some turns, if anything."""
    found = [f"{t.paths.session}/{t.paths.number}: {w}" for t in turns for w in t.warnings]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return [f"Not read: {found[0]}{more}."] if found else []


def sweeps(root: Path, caller: Caller) -> Outcome:
    """List the sweeps on disk."""
    from nb_agents.sweeps.manifest import sweep_paths

    facts = [facts_of_sweep_at(path) for path in sweep_paths(root)]
    empty = "" if facts else "There are no sweeps."
    return Outcome(empty, {}, SWEEP_HEADS, [sweep_row(each) for each in facts], items=facts)


def sweep_row(sweep: SweepFacts) -> tuple[str, ...]:
    """Return a sweep's row of `SWEEP_HEADS`."""
    rows = sweep.rows
    done, used = f"{rows.done} of {rows.total}", text.tokens(sweep.tokens)
    spent, task = text.cost(sweep.cost), text.clip(sweep.task, 60)
    return (sweep.session, sweep.state, done, str(rows.failed), used, spent, task)


def rename(session: Path, caller: Caller, *, name: str) -> Outcome:
    """Rename a session."""
    path = rename_session(session, name)
    facts = {"session": path.name, "path": str(path)}
    return Outcome(f"Session {session.name} is {path.name} now.", facts)


def export(session: Path, caller: Caller, *, file: str | None = None) -> Outcome:
    """Export a session as a zip."""
    made = export_session(session, file)
    size = made.path.stat().st_size
    left_out = f" Left out: {join_names(made.left_out)}." if made.left_out else ""
    facts = {"path": str(made.path), "bytes": size, "left_out": list(made.left_out)}
    return Outcome(f"Wrote {text.shown_path(made.path)} ({text.size(size)}).{left_out}", facts)


def delete(session: Path, caller: Caller, *, yes: bool = False) -> Outcome:
    """Delete a session and all its files, after asking."""
    if not (yes or caller.confirm(_question(session))):
        return Outcome("Nothing was deleted.", {"session": session.name, "deleted": False})
    delete_session(session)
    facts = {"session": session.name, "deleted": True}
    return Outcome(f"Session {session.name} is deleted.", facts)


def _question(session: Path) -> str:
    turns = len(load_session(session).turns)
    return f"Delete session {session.name} ({count(turns, 'turn')}) and all its files?"


def prune(
    root: Path,
    caller: Caller,
    *,
    older: str,
    keep_answers: bool = False,
    incomplete: bool = False,
    yes: bool = False,
) -> Outcome:
    """Remove the sessions, and rows of sweeps, that were not used for long."""
    from nb_agents.sweeps.prune import PruneSpec, parse_age
    from nb_agents.sweeps.prune import prune as remove

    before = time.time() - parse_age(older)
    spec = PruneSpec(before, keep_answers, incomplete, is_dry_run=not yes)
    done = remove(root, spec)
    return Outcome(text.pruned(done, spec), {"removed": yes, **asdict(done)})
