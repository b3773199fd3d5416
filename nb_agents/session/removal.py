"""Removing sessions: whole, or all but their answers. Nobody ever finds half of one.

    <root>/.removed/<random>    what is being deleted, or was when its process died

What goes is renamed into there first, while no turn can begin in its session, and deleted then. No
turn is looked for there, and whatever is there may be deleted by whoever removes something next.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nb_agents.errors import StorageError, UserError
from nb_agents.session.history import is_up_to_date, load_turn
from nb_agents.session.layout import ALLOT_LOCK, is_real, resting, turns_of

__all__ = ["delete_session", "strip_session", "work_of"]

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
