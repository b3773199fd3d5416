"""What a person does with whole sessions: rename, export, fork, delete.

    <root>/.removed/<random>    what is being deleted, or was when its process died

A session that is deleted is renamed into there first, while no turn can begin in it. No turn is
looked for there, and whoever deletes something next removes what is left. Nobody ever finds half a
session.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from nb_agents.config.team import safe_name
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import Entry, RefusedError, shown
from nb_agents.errors import SessionBusyError, StorageError, UnknownSessionError, UserError
from nb_agents.session.copying import copy_file, copy_tree
from nb_agents.session.history import is_up_to_date, load_turn
from nb_agents.session.layout import (
    ALLOT_LOCK,
    is_real,
    new_session,
    resting,
    settle_dead,
    turns_of,
)

__all__ = [
    "Made",
    "delete_session",
    "export_session",
    "fork_session",
    "rename_session",
    "strip_session",
    "work_of",
]

_FIRST_S, _LAST_S = 315_619_200, 4_354_646_400
"""The second day of 1980 and the last but one of 2107: a zip's years, and an agent may set others.
Source: PKWARE's APPNOTE, 4.4.6.
"""


class Made(NamedTuple):
    """What was made of a session.

    Attributes:
        path: The zip, or the new session's directory.
        left_out: What of the session is not in it, in words.
    """

    path: Path
    left_out: tuple[str, ...]


def rename_session(session: Path, name: str) -> Path:
    """Give a session another name.

    Args:
        session: Its directory.
        name: The new id.

    Returns:
        Its directory afterwards.

    Raises:
        UserError: The name can't be a directory, or is taken.
        SessionBusyError: A turn of it is live, or begins.
        StorageError: The disk refused.
    """
    try:
        target = session.with_name(safe_name(name))
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    if target.exists():
        raise UserError(f"There is a session {name!r} already. Choose another name.")
    try:
        with resting(session):
            session.rename(target)
    except OSError as exc:
        raise StorageError(str(target), exc.strerror or str(exc)) from None
    return target


def export_session(session: Path, file: str | os.PathLike[str] | None = None) -> Made:
    """Put a session into a zip.

    Links that lead to something in the session go in as links. None is followed.

    Args:
        session: Its directory.
        file: The zip; by default the session's name in the working directory.

    Returns:
        The zip's path, and what was left out: pipes, sockets, devices, links that lead out, and
        what can't be read.

    Raises:
        UserError: The file exists.
        StorageError: The disk refused.
    """
    target = Path(file or f"{session.name}.zip").expanduser().absolute()
    if target.suffix != ".zip":
        target = target.with_name(f"{target.name}.zip")
    try:
        made = open(target, "xb")
    except FileExistsError:
        raise UserError(f"{target} exists already. Name another file.") from None
    except OSError as exc:
        raise StorageError(str(target), exc.strerror or str(exc)) from None
    try:
        with made, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            left_out = _fill(archive, session)
    except BaseException as exc:
        with suppress(OSError):
            target.unlink()
        if isinstance(exc, OSError):
            raise StorageError(str(target), exc.strerror or str(exc)) from None
        raise
    return Made(target, left_out)


def fork_session(session: Path, turn: int, now: datetime) -> Made:
    """Make a new session that begins with the first turns of another.

    Args:
        session: The session's directory.
        turn: The last turn to take along.
        now: Local time, for the new session's name.

    Returns:
        The new session's directory, and what was left out: pipes, sockets, devices, and what can't
        be read.

    Raises:
        UnknownSessionError: The session has no such turn.
        SessionBusyError: That turn is live.
        StorageError: The disk refused; no half session is left.
    """
    turns = turns_of(session)
    taken = [t for t in turns if t.number <= turn]
    if turn not in {t.number for t in turns}:
        latest = f"{session.name}/{turns[-1].number}" if turns else ""
        raise UnknownSessionError(f"{session.name}/{turn}", str(session.parent), latest)
    if taken[-1].is_live():
        raise SessionBusyError(session.name, f"turn {turn} is live")
    settle_dead(taken[-1])
    fork, left_out = new_session(session.parent, now), list[str]()
    try:
        for paths in taken:
            name = paths.path.name
            left = copy_tree(paths.path, fork / name, _is_no_leftover)
            left_out += [f"{name}/{each}" for each in left]
    except OSError as exc:
        shutil.rmtree(fork, ignore_errors=True)
        raise StorageError(str(fork), exc.strerror or str(exc)) from None
    return Made(fork, tuple(left_out))


def _is_no_leftover(entry: Entry) -> bool:
    """Whether an entry of a turn is no process's own: its lock, or a file that it was writing."""
    is_temp = entry.name.startswith(".") and entry.name.endswith(".tmp")
    return entry.depth > 0 or not (is_temp or entry.name == "owner.lock")


def _fill(archive: zipfile.ZipFile, session: Path) -> tuple[str, ...]:
    left_out: list[str] = []
    for turn in turns_of(session)[-1:]:
        settle_dead(turn)
    with Directory(Path(os.path.realpath(session))) as directory:
        for entry in directory.walk():
            try:
                _add(archive, session.name, entry)
            except RefusedError as exc:
                left_out.append(f"{shown(entry.path)} ({exc.strerror})")
    return tuple(left_out)


def _add(archive: zipfile.ZipFile, session: str, entry: Entry) -> None:
    # A zip holds Unicode: of other names, the bytes are written out.
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


def _inner(entry: Entry) -> bytes:
    """Return the text of a link that leads to something in the session.

    It may go up only first of all, while it is in real directories: further on, another link could
    take it elsewhere.
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
        session: Its directory.

    Raises:
        UserError: It is a link.
        SessionBusyError: A turn of it is live, or begins.
        StorageError: The disk refused.
    """
    with _told(session):
        with _removable(session):
            _put_aside(session, session.parent)
        _delete(session.parent)


def strip_session(session: Path) -> None:
    """Delete what a session holds besides its answers, their metadata and its summary.

    It is listed and shown as before, and can be continued; an incomplete turn of it can't be
    resumed any more.

    Args:
        session: Its directory.

    Raises:
        UserError: It is a link.
        SessionBusyError: A turn of it is live, or begins.
        StorageError: The disk refused, or what stays can't be brought up to date before.
    """
    for turn in map(load_turn, turns_of(session)):  # which mends the files of one that was killed
        if turn.view.seq and not is_up_to_date(turn.view, turn.paths):
            raise StorageError(str(turn.paths.metadata), "it is not up to date")
    with _told(session):
        with _removable(session):
            for path in work_of(session):
                _put_aside(path, session.parent)
        _delete(session.parent)


def work_of(session: Path) -> list[Path]:
    """List what `strip_session` deletes of a session: journals, workspaces, logs.

    Args:
        session: Its directory.

    Raises:
        OSError: It can't be read.
    """
    turns = turns_of(session)
    kept = {session / ALLOT_LOCK, *(turn.path for turn in turns)}
    for turn in turns:
        kept |= {turn.metadata, turn.answer, turn.partial_answers, turn.summary, turn.winners}
    # What a link leads to is somebody's.
    places = [session, *(turn.path for turn in turns if is_real(turn.path))]
    found = [place / name for place in places for name in sorted(os.listdir(place))]
    return [path for path in found if path not in kept]


@contextmanager
def _removable(session: Path) -> Iterator[None]:
    """Let no turn of a session begin meanwhile; what is somebody else's is not removed."""
    if not is_real(session):
        raise UserError(
            f"{session} is a link or gone. Delete a link, and what it leads to, yourself."
        )
    with resting(session):
        yield


def _put_aside(path: Path, root: Path) -> None:
    """Move what goes to where nobody looks for it."""
    while True:
        (root / _REMOVED).mkdir(exist_ok=True)
        try:
            path.rename(root / _REMOVED / secrets.token_hex(8))
            return
        except FileNotFoundError:  # who deletes as well has just taken away the place
            if not os.path.lexists(path):
                raise


def _delete(root: Path) -> None:
    try:
        shutil.rmtree(root / _REMOVED)
    except OSError as exc:
        # Another process deletes, too, or has put something there by now, which it will delete.
        if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


@contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageError(str(place), exc.strerror or str(exc)) from None
