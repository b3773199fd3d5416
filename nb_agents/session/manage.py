"""Renaming, exporting, forking and deleting whole sessions.

    <root>/.removed/<random>    being deleted, or left by a process that died while deleting

A session is first renamed into that directory, while no turn can start in it, so that a
half-deleted session is never listed. The next deletion removes anything left there.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nb_agents.config.spec import safe_name
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import TEMP, DirEntry, RefusedError, printable_name
from nb_agents.errors import (
    SessionBusyError,
    StorageError,
    UnknownSessionError,
    UserError,
    as_storage_error,
)
from nb_agents.session.copying import copy_file, copy_tree
from nb_agents.session.history import is_up_to_date, load_turn
from nb_agents.session.layout import (
    ALLOT_LOCK,
    TurnPaths,
    is_real_directory,
    keep_idle,
    new_session,
    store_workspaces_if_dead,
    turns_of,
)
from nb_agents.session.ownership import confirm_turns, evidence_of, judge, known_mark
from nb_agents.session.snapshots import HELD, SNAPSHOTS

_FIRST_S, _LAST_S = 315_619_200, 4_354_646_400
"""The range of times in a zip: the second day of 1980 to the last but one of 2107. Files may have
others. Source: PKWARE's APPNOTE, 4.4.6.
"""

_UNFINISHED = shutil.ignore_patterns(HELD.name, f"*{TEMP}")
"""Of the snapshots what a turn holds while it works."""


class SessionCopy(NamedTuple):
    """An export or fork of a session.

    Attributes:
        path: The zip, or the new session's directory.
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
        UserError: The name is not valid for a directory, or is taken.
        SessionBusyError: A turn of the session is live or starting.
        StorageError: The session can't be renamed.
    """
    try:
        target = session.with_name(safe_name(name))
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    if target.exists():
        raise UserError(f"There is a session {name!r} already. Choose another name.")
    with as_storage_error(target), keep_idle(session):
        session.rename(target)
    return target


def export_session(session: Path, file: str | os.PathLike[str] | None = None) -> SessionCopy:
    """Export a session as a zip.

    Links within the session are stored as links. None is followed.

    Args:
        session: The session's directory.
        file: The zip; by default the session's name in the working directory.

    Returns:
        The zip's path, and descriptions of what was left out: pipes, sockets, devices, links that
        lead out, and unreadable files.

    Raises:
        UserError: The file exists.
        StorageError: The zip can't be written.
    """
    target = Path(file or f"{session.name}.zip").expanduser().absolute()
    if target.suffix != ".zip":
        target = target.with_name(f"{target.name}.zip")
    with as_storage_error(target):
        try:
            made = open(target, "xb")
        except FileExistsError:
            raise UserError(f"{target} exists already. Name another file.") from None
        try:
            with made, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                left_out = _fill(archive, session)
        except BaseException:
            with suppress(OSError):
                target.unlink()
            raise
    return SessionCopy(target, left_out)


def fork_session(session: Path, turn: int, now: datetime) -> SessionCopy:
    """Create a session with a copy of the first turns of another.

    Args:
        session: The session's directory.
        turn: The last turn to copy.
        now: Local time, for the new session's name.

    Returns:
        The new session's directory, and descriptions of what was left out: pipes, sockets, devices
        and unreadable files.

    Raises:
        UnknownSessionError: The session has no such turn.
        SessionBusyError: That turn is live.
        StorageError: The copy failed; no partial session is left.
    """
    turns = turns_of(session)
    taken = [t for t in turns if t.number <= turn]
    if turn not in {t.number for t in turns}:
        latest = f"{session.name}/{turns[-1].number}" if turns else ""
        raise UnknownSessionError(f"{session.name}/{turn}", str(session.parent), latest)
    if taken[-1].is_live():
        raise SessionBusyError(session.name, f"turn {turn} is live")
    fork = new_session(session.parent, now)
    return SessionCopy(fork, copy_turns(taken, fork))


def copy_turns(turns: Sequence[TurnPaths], fork: Path) -> tuple[str, ...]:
    """Copy turns of a session, and its snapshots, into an empty one.

    Args:
        turns: The turns, of which the last comes last: once it is there, all are.
        fork: The new session's directory, which is removed if the copy fails.

    Returns:
        Descriptions of what was left out.

    Raises:
        StorageError: The copy failed.
    """
    session, left_out = turns[-1].path.parent, list[str]()
    store_workspaces_if_dead(turns[-1])
    aside = fork / ".copied"  # from where whole turns are moved: a kill leaves none in part
    with as_storage_error(fork):
        try:
            for paths in turns:
                name = paths.path.name
                left = copy_tree(paths.path, aside / name, _is_no_leftover)
                left_out += [f"{name}/{each}" for each in left]
            if is_real_directory(session / SNAPSHOTS):
                kept = session / SNAPSHOTS, aside / SNAPSHOTS
                shutil.copytree(*kept, symlinks=True, ignore=_UNFINISHED, copy_function=_share)
                (aside / SNAPSHOTS).rename(fork / SNAPSHOTS)
            for paths in turns:
                (aside / paths.path.name).rename(fork / paths.path.name)
            aside.rmdir()
        except OSError:
            shutil.rmtree(fork, ignore_errors=True)
            raise
    return tuple(left_out)


def _share(source: str, target: str) -> None:
    """Link a kept file, which is never written to again; copy it where links are not supported."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _is_no_leftover(entry: DirEntry) -> bool:
    """Return whether an entry of a turn is neither its lock nor an unfinished temporary file."""
    is_temp = entry.name.startswith(".") and entry.name.endswith(".tmp")
    return entry.depth > 0 or not (is_temp or entry.name == "owner.lock")


def _fill(archive: zipfile.ZipFile, session: Path) -> tuple[str, ...]:
    left_out: list[str] = []
    for turn in turns_of(session)[-1:]:
        store_workspaces_if_dead(turn)
    with Directory.real(Path(os.path.realpath(session))) as directory:
        for entry in directory.walk():
            if PurePosixPath(entry.path).is_relative_to(HELD):
                continue
            try:
                _add(archive, session.name, entry)
            except RefusedError as exc:
                left_out.append(f"{printable_name(entry.path)} ({exc.strerror})")
    return tuple(left_out)


def _add(archive: zipfile.ZipFile, session: str, entry: DirEntry) -> None:
    # Names in a zip are Unicode: bytes that are not UTF-8 are escaped.
    name = f"{session}/{entry.path}".encode(errors="surrogateescape").decode(
        errors="backslashreplace"
    )
    moment = time.localtime(min(max(entry.stat.st_mtime, _FIRST_S), _LAST_S))
    info = zipfile.ZipInfo(name, moment[:6])
    info.external_attr = entry.stat.st_mode << 16
    if entry.kind == "folder":
        info.filename += "/"
        archive.writestr(info, b"")
    elif entry.kind == "link":
        archive.writestr(info, _inner(entry))
    elif entry.kind == "file":
        info.compress_type = zipfile.ZIP_DEFLATED
        info.file_size = entry.stat.st_size
        with entry.open() as opened, archive.open(info, "w") as made:
            copy_file(opened, made, info.file_size)
    else:
        raise RefusedError(entry.what)


def _inner(entry: DirEntry) -> bytes:
    """Return the text of a link that stays within the session.

    Components ``..`` may only come first, where the parents are real directories: after another
    link, they could lead anywhere.
    """
    text = entry.target()
    ups = [part == ".." for part in text.split("/")]
    if text.startswith("/") or sum(ups) > entry.depth or sorted(ups, reverse=True) != ups:
        raise RefusedError("leads out")
    return os.fsencode(text)


_REMOVED = ".removed"


def delete_session(session: Path) -> None:
    """Delete a session and all its files.

    Args:
        session: The session's directory.

    Raises:
        UserError: The directory is a link.
        SessionBusyError: A turn of the session is live or starting.
        StorageError: The session can't be deleted.
    """
    with as_storage_error(session):
        with _removable(session):
            _put_aside(session, session.parent)
        _delete(session.parent)


def strip_session(session: Path) -> None:
    """Delete a session's files except its answers, their metadata and its summary.

    The session can still be listed, shown and continued, but its incomplete turns can't be resumed.

    Args:
        session: The session's directory.

    Raises:
        UserError: The directory is a link.
        SessionBusyError: A turn of the session is live or starting.
        StorageError: The files can't be deleted, or those to keep can't be brought up to date.
    """
    for turn in map(load_turn, turns_of(session)):  # load_turn repairs a killed turn's files
        if turn.view.seq and not is_up_to_date(turn.view, turn.paths):
            raise StorageError(str(turn.paths.metadata), "it is not up to date")
    with as_storage_error(session):
        with _removable(session):
            is_own = judge(evidence_of(session), known_mark) is not None
            for path in strippable_paths(session):
                _put_aside(path, session.parent)
            if is_own:  # what has borne its owner's mark is gone
                confirm_turns(evidence_of(session))
        _delete(session.parent)


def strippable_paths(session: Path) -> list[Path]:
    """Return the paths that `strip_session` deletes: journals, workspaces, logs.

    Raises:
        OSError: The session can't be read.
    """
    turns = turns_of(session)
    kept = {session / ALLOT_LOCK, *(turn.path for turn in turns)}
    for turn in turns:
        kept |= {turn.metadata, turn.answer, turn.partial_answers, turn.mark}
        kept |= {turn.summary, turn.winners}
    # The target of a link belongs to someone else.
    places = [session, *(turn.path for turn in turns if is_real_directory(turn.path))]
    found = [place / name for place in places for name in sorted(os.listdir(place))]
    return [path for path in found if path not in kept]


@contextmanager
def _removable(session: Path) -> Iterator[None]:
    """Keep turns from starting while a session is deleted; refuse a link."""
    if not is_real_directory(session):
        raise UserError(
            f"{session} is a link or gone. Delete a link, and what it leads to, yourself."
        )
    with keep_idle(session):
        yield


def _put_aside(path: Path, root: Path) -> None:
    """Move a path to the directory of removed files."""
    while True:
        (root / _REMOVED).mkdir(exist_ok=True)
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
        # Another process has deleted it, or has moved something there, which it will delete.
        if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise
