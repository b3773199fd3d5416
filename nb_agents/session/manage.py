"""What a person does with whole sessions: rename, export, delete, fork."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from nb_agents.config.team import safe_name
from nb_agents.errors import SessionBusyError, StorageError, UnknownSessionError, UserError
from nb_agents.session.layout import TurnPaths, new_session, turns_of

__all__ = ["delete_session", "export_session", "fork_session", "rename_session"]

_NOT_COPIED = shutil.ignore_patterns("owner.lock", ".*.tmp")


def rename_session(session: Path, name: str) -> Path:
    """Give a session another name.

    Args:
        session: Its directory.
        name: The new id.

    Returns:
        Its directory afterwards.

    Raises:
        UserError: The name can't be a directory, or is taken.
        SessionBusyError: A turn of it is live.
        StorageError: The disk refused.
    """
    _refuse_live(session)
    try:
        target = session.with_name(safe_name(name))
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    if target.exists():
        raise UserError(f"There is a session {name!r} already. Choose another name.")
    try:
        session.rename(target)
    except OSError as exc:
        raise StorageError(str(target), exc.strerror or str(exc)) from None
    return target


def export_session(session: Path, file: str | os.PathLike[str] | None = None) -> Path:
    """Put a session into a zip.

    Args:
        session: Its directory.
        file: The zip; by default the session's name in the working directory.

    Returns:
        The zip's path.

    Raises:
        UserError: The file exists.
        StorageError: The disk refused.
    """
    target = Path(file or f"{session.name}.zip").expanduser().absolute()
    if target.suffix != ".zip":
        target = target.with_name(f"{target.name}.zip")
    if target.exists():
        raise UserError(f"{target} exists already. Name another file.")
    try:
        made = shutil.make_archive(
            str(target.with_suffix("")), "zip", root_dir=session.parent, base_dir=session.name
        )
    except OSError as exc:
        with suppress(OSError):
            target.unlink()
        raise StorageError(str(target), exc.strerror or str(exc)) from None
    return Path(made)


def delete_session(session: Path) -> None:
    """Delete a session and all its files.

    Args:
        session: Its directory.

    Raises:
        SessionBusyError: A turn of it is live.
        StorageError: The disk refused; some files may be gone.
    """
    _refuse_live(session)
    try:
        shutil.rmtree(session)
    except OSError as exc:
        raise StorageError(str(session), exc.strerror or str(exc)) from None


def fork_session(session: Path, turn: int, now: datetime) -> Path:
    """Make a new session that begins with the first turns of another.

    Args:
        session: The session's directory.
        turn: The last turn to take along.
        now: Local time, for the new session's name.

    Returns:
        The new session's directory.

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
    fork = new_session(session.parent, now)
    try:
        for paths in taken:
            _copy_turn(paths, fork)
    except OSError as exc:
        shutil.rmtree(fork, ignore_errors=True)
        raise StorageError(str(fork), exc.strerror or str(exc)) from None
    return fork


def _copy_turn(paths: TurnPaths, fork: Path) -> None:
    shutil.copytree(
        paths.path,
        fork / paths.path.name,
        symlinks=True,
        ignore=_NOT_COPIED,
        ignore_dangling_symlinks=True,
    )


def _refuse_live(session: Path) -> None:
    turns = turns_of(session)
    if turns and turns[-1].is_live():
        raise SessionBusyError(session.name, f"turn {turns[-1].number} is live")
