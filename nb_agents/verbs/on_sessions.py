"""Verbs that act on sessions and session roots."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nb_agents.disk.entry import join_names, printable_name
from nb_agents.disk.private import open_private
from nb_agents.errors import UserError, as_storage_error, error_message
from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.presentation.page import session_page
from nb_agents.session.archive import verify_archive
from nb_agents.session.history import PastTurn, load_session
from nb_agents.session.layout import LISTED, sessions_in
from nb_agents.session.manage import (
    archive_path,
    delete_session,
    export_session,
    rename_session,
)
from nb_agents.session.prune import PruneSpec, parse_age
from nb_agents.turns.groups import kinds
from nb_agents.turns.ledger_prune import prune as prune_root
from nb_agents.verbs.facts import session_facts
from nb_agents.verbs.outcome import CheckReport, Reply, Table
from nb_agents.verbs.verb import Caller

logger = logging.getLogger("nb_agents")

CHANGE_HEADS = ("file", "change", "where")
SHOWN_CHANGES = 100
HEADS = ("session", "turns", "last turn", "used", "tokens", "cost", "task")


def sessions(root: Path, caller: Caller, *, all: bool = False) -> Table:
    """List the sessions on disk, most recently used first."""
    on_disk = sessions_in(root)
    rows, notes = list[tuple[str, ...]](), [str(each) for each in on_disk.unreadable]
    listed_sessions = on_disk.by_use if all else on_disk.by_use[:LISTED]
    for path in listed_sessions:
        notes += describe_or_error(path, partial(_row, rows=rows))
    if more := text.older_sessions_note(len(on_disk.by_use) - len(listed_sessions)):
        notes.append(more)
    for kind in kinds():
        if kind.paths(root):
            command = caller.entry_point.line(f"{kind.noun}s", [])
            notes.append(f"`{command}` lists {kind.noun}s.")
    empty = "" if rows or notes else f"No sessions in {text.shown_path(root)}."
    facts = [session_facts(root / row[0], caller.entry_point) for row in rows]
    return Table(HEADS, rows, facts, notes, empty)


def _row(path: Path, rows: list[tuple[str, ...]]) -> list[str]:
    session = load_session(path)
    rows.append(text.session_row(session))
    return read_warnings(session.turns)


def describe_or_error(session: Path, say: Callable[[Path], list[str]]) -> list[str]:
    """Return `say(session)`, or an error message if it raises."""
    try:
        return say(session)
    except UserError as exc:
        return [str(exc)]
    except Exception as exc:  # a bug of nb_agents, which must not hide all other sessions
        logger.exception("session %s can't be shown", session.name)
        return [f"Session {session.name!r} can't be shown: {error_message(exc, named=True)}."]


def read_warnings(turns: Sequence[PastTurn]) -> list[str]:
    """Return a sentence about files of the turns that could not be read, if there are any."""
    warnings = [f"{t.paths.session}/{t.paths.number}: {w}" for t in turns for w in t.warnings]
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return [f"Not read: {warnings[0]}{more}."] if warnings else []


def rename(session: Path, caller: Caller, *, name: str) -> Reply:
    """Rename a session."""
    path = rename_session(session, name)
    facts = {"session": path.name, "path": str(path)}
    return Reply(f"Session {session.name} was renamed to {path.name}.", facts)


def export(session: Path, caller: Caller, *, file: str | None = None, html: bool = False) -> Reply:
    """Export a session as a zip file, with --html also as a page to read without nb_agents."""
    target = archive_path(session, file)
    page = target.with_suffix(".html") if html else None
    if page is not None and page.exists():
        raise UserError(f"{page} already exists. Choose another file name.")
    archive = export_session(session, target)
    size = archive.path.stat().st_size
    left_out = f" Left out: {join_names(archive.left_out)}." if archive.left_out else ""
    facts = {"path": str(archive.path), "bytes": size, "left_out": list(archive.left_out)}
    command = caller.entry_point.line("verify", [text.shown_path(archive.path)])
    lines = [
        f"Wrote {text.shown_path(archive.path)} ({text.size(size)}).{left_out} "
        f"`{command}` finds later changes."
    ]
    if page is not None:
        written = _write_page(page, session_page(load_session(session), archive.path.name))
        facts |= {"page": str(page), "page_bytes": written}
        lines.append(f"Wrote {text.shown_path(page)} ({text.size(written)}).")
    return Reply("\n".join(lines), facts)


def _write_page(target: Path, page: str) -> int:
    """Write a page, and return its size in bytes.

    Raises:
        UserError: The file already exists.
        StorageError: The file can't be written.
    """
    data = page.encode(errors="replace")
    with as_storage_error(target):
        try:
            with open_private(target, "xb") as file:
                file.write(data)
        except FileExistsError:
            raise UserError(f"{target} already exists. Choose another file name.") from None
    return len(data)


def verify(file: str, caller: Caller) -> CheckReport:
    """Find what was changed in an exported session: edited, cut, added or moved."""
    verified = verify_archive(Path(file).expanduser())
    manifest, changes = verified.manifest, verified.changes
    facts = {
        "is_unchanged": not changes,
        "changes": [change._asdict() for change in changes],
        "fingerprint": manifest.fingerprint,
        "is_own": manifest.is_own,
        "entries": verified.entries,
        "events": verified.events,
    }
    rows = [(printable_name(each.path), each.kind, each.detail) for each in changes[:SHOWN_CHANGES]]
    return CheckReport(
        Reply(text.verification(verified), facts), CHANGE_HEADS, rows, is_ok=not changes
    )


def delete(session: Path, caller: Caller, *, yes: bool = False) -> Reply:
    """Delete a session and all its files, after asking for confirmation."""
    if not (yes or caller.confirm(_question(session))):
        return Reply("Nothing was deleted.", {"session": session.name, "deleted": False})
    delete_session(session)
    facts = {"session": session.name, "deleted": True}
    return Reply(f"Session {session.name} was deleted.", facts)


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
) -> Reply:
    """Remove sessions and sweep rows that have not been used for some time."""
    before = time.time() - parse_age(older)
    spec = PruneSpec(before, keep_answers, incomplete, is_dry_run=not yes)
    done = prune_root(root, spec)
    return Reply(text.prune_summary(done, spec), {"removed": yes, **asdict(done)})
