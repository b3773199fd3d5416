"""What a process is given: its environment variables and its temporary directory.

An agent's processes get the variables that are listed here and those that the team's file names,
and nothing else: of the others nobody can tell which are secrets. A proxy's address may hold a
password, and an index's a token, so those are named or left out, too.

A temporary directory is removed also when its process was killed: by the first run of the next one.
Each has a lock beside it, which its process holds; the operating system frees that when the process
dies, also by ``kill -9``. A free lock says that nobody needs the directory any more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from nb_agents.config.secret_names import is_secret_name

__all__ = ["ORDINARY", "ScratchFolder", "agents_env", "persons_env", "remove_leftovers"]

PLACE = "/tmp"
"""Not the person's own TMPDIR: the name of a socket has at most 107 bytes. Source: unix(7)."""
_PREFIX = "nb_agents_"
_NEW = ".new_nb_agents_"
_LOCK = "owner.lock"

ORDINARY = frozenset(
    {"HOME", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER"}
    # One by one: LC_ANYTHING is what people send a secret by through ssh.
    | {"LANG", "LANGUAGE", "LC_ADDRESS", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION"}
    | {"LC_MEASUREMENT", "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER"}
    | {"LC_TELEPHONE", "LC_TIME"}
    # Where the notebook's Python and its libraries are.
    | {"CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)
"""The variables that an agent's processes get unasked, as far as they are set."""


class ScratchFolder:
    """A new temporary directory, which only this user may enter.

    Attributes:
        path: The directory.
    """

    def __init__(self) -> None:
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=PLACE)).resolve()
        self._lock = _lock_of(new)
        self._lock.acquire()
        # It has its name once it is locked: before, another process would take it for a leftover.
        self._outer = new.rename(new.with_name(_PREFIX + new.name.removeprefix(_NEW)))
        self.path = self._outer / "d"
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the directory with all that is in it; may block."""
        _remove(self._outer)
        self._lock.release()


def remove_leftovers() -> None:
    """Remove the directories of this user's processes that have died; may block."""
    for path in _directories():
        lock = _lock_of(path)
        with suppress(OSError, Timeout), lock.acquire(blocking=False):
            _remove(path)


def _directories() -> Iterator[Path]:
    with suppress(OSError), os.scandir(PLACE) as entries:
        for entry in entries:
            # Anybody may make directories there, and links of that name.
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and os.path.exists(os.path.join(entry.path, _LOCK)):
                    yield Path(entry.path)


def _lock_of(path: Path) -> FileLock:
    return FileLock(path / _LOCK, thread_local=False)


def _remove(path: Path) -> None:
    """Remove a tree, also where an agent took the right to do so."""
    for folder, names, _ in os.walk(path):
        for name in (os.path.join(folder, name) for name in names):
            if not os.path.islink(name):
                with suppress(OSError):
                    os.chmod(name, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def agents_env(
    extra: Mapping[str, str], named: Iterable[str] = (), secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Make the environment of a process that works for an agent.

    Args:
        extra: Variables to add.
        named: Names of variables that it gets besides, whatever their values; they go before all.
        secrets: Values that must not leak, such as the keys of a team.

    Returns:
        The environment.
    """
    hidden = set(secrets)
    kept = {name: value for name in ORDINARY if (value := os.environ.get(name)) is not None}
    kept = {name: value for name, value in kept.items() if value not in hidden}
    return kept | dict(extra) | {n: os.environ[n] for n in named if n in os.environ}


def persons_env(extra: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Make the environment of a command that a recipe's author wrote: this process's own.

    Such a command is the person's own, as if typed into their terminal, and Amplifier's recipes
    count on its variables. Left out are those with a secret's name (`is_secret_name`) and those
    whose value is one of ``secrets``; a step that needs one of them names it in its ``env``.

    Args:
        extra: Variables to add, or to pass on in spite of this.
        secrets: Values that must not leak, such as the keys of a team.

    Returns:
        The environment.
    """
    hidden = set(secrets) - {""}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not is_secret_name(name) and value not in hidden
    }
    return kept | dict(extra)
