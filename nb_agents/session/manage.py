"""Renames, exports, forks and deletes whole sessions.

    <root>/.removed/<random>    being deleted, or left by a process that died while deleting

A session is deleted by renaming it into that directory first, while no turn can start, so that a
partially deleted session is never listed. The next deletion removes anything left there.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from nb_agents.config.spec import safe_name
from nb_agents.disk.entry import TEMP, DirEntry
from nb_agents.disk.private import make_folder, open_private
from nb_agents.errors import (
    SessionBusyError,
    UnknownSessionError,
    UserError,
    as_storage_error,
)
from nb_agents.session.archive import add_session
from nb_agents.session.copying import copy_tree
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.journal import first_event
from nb_agents.session.layout import (
    CLAIM_LOCK,
    COPIES_FOLDER,
    SNAPSHOTS,
    TurnPaths,
    is_real_directory,
    new_session,
    prevent_turns,
    store_workspaces_if_dead,
    turns_of,
)
from nb_agents.session.ownership import confirm_turns, evidence_of, find_owner_mark, user_mark
from nb_agents.session.views import read_json, write_views

_UNFINISHED = shutil.ignore_patterns(COPIES_FOLDER.name, f"*{TEMP}")
"""Selects the files in ``snapshots`` that a turn needs only while it runs."""


class SessionCopy(NamedTuple):
    """An export or fork of a session.

    Attributes:
        path: The zip file, or the new session's directory.
        left_out: Descriptions of the entries that were not copied.
    """

    path: Path
    left_out: tuple[str, ...]


def rename_session(session: Path, name: str) -> Path:
    """Rename a session.

    Args:
        session: The session's directory.
        name: The new id.

    Returns:
        The session's new directory.

    Raises:
        UserError: The name is not a valid directory name, or is taken.
        SessionBusyError: A turn of the session is live or starting.
        StorageError: The session can't be renamed.
    """
    try:
        target = session.with_name(safe_name(name))
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    if target.exists():
        raise UserError(f"Session {name!r} already exists. Choose another name.")
    with as_storage_error(target), prevent_turns(session):
        session.rename(target)
    return target


def archive_path(session: Path, file: str | os.PathLike[str] | None = None) -> Path:
    """Return the absolute path of a session's zip file.

    Args:
        session: The session's directory.
        file: The name that the user chose, or None for that of the session. It may lack ``.zip``.
    """
    target = Path(file or f"{session.name}.zip").expanduser().absolute()
    return target if target.suffix == ".zip" else target.with_name(f"{target.name}.zip")


def export_session(session: Path, file: str | os.PathLike[str] | None = None) -> SessionCopy:
    """Export a session as a zip file.

    Links are not followed. Links to targets inside the session are stored as links.

    Args:
        session: The session's directory.
        file: The zip file. Defaults to ``<session>.zip`` in the working directory.

    Returns:
        The zip file, and descriptions of skipped entries: pipes, sockets, devices, unreadable
        files, and links to targets outside the session.

    Raises:
        UserError: The file already exists.
        StorageError: The file can't be written.
    """
    target = archive_path(session, file)
    with as_storage_error(target):
        try:
            file_object = open_private(target, "xb")
        except FileExistsError:
            raise UserError(f"{target} already exists. Choose another file name.") from None
        try:
            with file_object, zipfile.ZipFile(file_object, "w", zipfile.ZIP_DEFLATED) as archive:
                left_out = add_session(archive, session)
        except BaseException:
            with suppress(OSError):
                target.unlink()
            raise
    return SessionCopy(target, left_out)


def last_resumption(session: Path, turn: int) -> int:
    """Return the last turn in the chain of resumptions that starts with a turn.

    Args:
        session: The session's directory.
        turn: The number of a turn. If it is complete or was not resumed, it is returned.
    """
    for paths in turns_of(session):
        started = first_event(paths.journal)
        if (started.get("resumes"), started.get("point", 0)) != (turn, 0):
            continue
        if not load_turn(TurnPaths(session / f"turn_{turn}")).is_complete:
            turn = paths.number
    return turn


def fork_session(session: Path, turn: int, now: datetime) -> SessionCopy:
    """Create a new session with copies of the first turns of another one.

    Args:
        session: The session's directory.
        turn: The number of the last turn to copy.
        now: The local time, for the new session's name.

    Returns:
        The new session's directory, and descriptions of skipped entries: pipes, sockets, devices
        and unreadable files.

    Raises:
        UnknownSessionError: The session has no such turn.
        SessionBusyError: The turn is live.
        StorageError: The copy failed. No partial session is left.
    """
    turns = turns_of(session)
    copied = [t for t in turns if t.number <= turn]
    if turn not in {t.number for t in turns}:
        latest = f"{session.name}/{turns[-1].number}" if turns else ""
        raise UnknownSessionError(f"{session.name}/{turn}", str(session.parent), latest)
    if copied[-1].is_live():
        raise SessionBusyError(session.name, f"turn {turn} is live")
    fork = new_session(session.parent, now)
    return SessionCopy(fork, copy_turns(copied, fork))


def copy_turns(turns: Sequence[TurnPaths], fork: Path) -> tuple[str, ...]:
    """Copy turns of a session, and its snapshots, into an empty one.

    Args:
        turns: The turns. The last turn is added last, so its presence shows that the copy is
            complete.
        fork: The new session's directory, which is removed if the copy fails.

    Returns:
        Descriptions of the skipped entries.

    Raises:
        StorageError: The copy failed.
    """
    session, left_out = turns[-1].path.parent, list[str]()
    store_workspaces_if_dead(turns[-1])
    aside = (
        fork / ".copied"
    )  # complete turns are renamed from here, so a kill leaves no partial one
    with as_storage_error(fork):
        try:
            for paths in turns:
                name = paths.path.name
                skipped = copy_tree(paths.path, aside / name, _is_wanted)
                left_out += [f"{name}/{each}" for each in skipped]
            if is_real_directory(session / SNAPSHOTS):
                pair = session / SNAPSHOTS, aside / SNAPSHOTS
                shutil.copytree(*pair, symlinks=True, ignore=_UNFINISHED, copy_function=_share)
                (aside / SNAPSHOTS).rename(fork / SNAPSHOTS)
            for paths in turns:
                (aside / paths.path.name).rename(fork / paths.path.name)
            aside.rmdir()
        except OSError:
            shutil.rmtree(fork, ignore_errors=True)
            raise
    return tuple(left_out)


def _share(source: str, target: str) -> None:
    """Hard-link a stored file, which never changes. Copies it if links are not supported."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _is_wanted(entry: DirEntry) -> bool:
    """Return whether an entry of a turn is neither its lock nor a temporary file."""
    is_temp = entry.name.startswith(".") and entry.name.endswith(".tmp")
    return entry.depth > 0 or not (is_temp or entry.name == "owner.lock")


_REMOVED = ".removed"


def delete_session(session: Path) -> None:
    """Delete a session and all its files.

    Args:
        session: The session's directory.

    Raises:
        UserError: The directory is a link.
        SessionBusyError: A turn of the session is live or starting.
        StorageError: The files can't be deleted.
    """
    with as_storage_error(session):
        with _removable(session):
            _move_to_removed(session, session.parent)
        _delete(session.parent)


def strip_session(session: Path) -> None:
    """Delete a session's files except its answers, metadata and summary.

    The session can still be listed, shown and continued. Its incomplete turns can't be resumed.

    Args:
        session: The session's directory.

    Raises:
        UserError: The directory is a link.
        SessionBusyError: A turn of the session is live or starting.
        StorageError: The files can't be deleted, or the remaining ones can't be updated.
    """
    with as_storage_error(session):
        with _removable(session):
            for turn in map(load_turn, turns_of(session)):
                if turn.view.seq:
                    _write_answers_again(turn)
            is_own = find_owner_mark(evidence_of(session), user_mark) is not None
            for path in strippable_paths(session):
                _move_to_removed(path, session.parent)
            if is_own:  # the journals, which had the owner's mark, are deleted
                confirm_turns(evidence_of(session))
        _delete(session.parent)


def _write_answers_again(turn: PastTurn) -> None:
    """Rewrite a turn's files from its journal, because they will be trusted without it."""
    owner = str(read_json(turn.paths.metadata).get("owner") or "")
    for path in (turn.paths.answer, turn.paths.partial_answers):
        path.unlink(missing_ok=True)
    write_views(turn.view, turn.paths, owner)


def strippable_paths(session: Path) -> list[Path]:
    """Return the paths that `strip_session` deletes: journals, workspaces, logs.

    Raises:
        OSError: The session can't be read.
    """
    turns = turns_of(session)
    remaining = {session / CLAIM_LOCK, *(turn.path for turn in turns)}
    for turn in turns:
        remaining |= {turn.metadata, turn.answer, turn.partial_answers, turn.mark}
        remaining |= {turn.summary, turn.winners}
    # The target of a link may belong to another user and is not searched.
    folders = [session, *(turn.path for turn in turns if is_real_directory(turn.path))]
    paths = [folder / name for folder in folders for name in sorted(os.listdir(folder))]
    return [path for path in paths if path not in remaining]


@contextmanager
def _removable(session: Path) -> Iterator[None]:
    """Prevent turns from starting while a session is deleted. Raises `UserError` for a link."""
    if not is_real_directory(session):
        raise UserError(
            f"{session} is a link or does not exist. Delete links and their targets yourself."
        )
    with prevent_turns(session):
        yield


def _move_to_removed(path: Path, root: Path) -> None:
    """Move a path to the directory of removed files."""
    while True:
        make_folder(root / _REMOVED)
        try:
            path.rename(root / _REMOVED / secrets.token_hex(8))
            return
        except FileNotFoundError:  # another deletion has just removed that directory
            if not os.path.lexists(path):
                raise


def _delete(root: Path) -> None:
    try:
        shutil.rmtree(root / _REMOVED)
    except OSError as exc:
        # Another process has deleted the directory, or has moved files there that it will delete.
        if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise
