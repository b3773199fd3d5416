"""Environment variables and temporary directories of the processes that agents start.

An agent's processes get the variables listed here and those named in the team file. Any other
variable may be a secret: even the URL of a proxy or package index may contain a password or token.

The temporary directory of a killed process is removed when a later process starts its first run.
Each process holds a lock in its directory, which the operating system releases when the process
dies, even after ``kill -9``. A directory with a free lock is no longer in use.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from nb_agents.config.secret_names import is_secret_name
from nb_agents.disk.lock import FileLock
from nb_agents.disk.private import make_folder, private_lock
from nb_agents.disk.removal import remove_tree

PLACE = "/tmp"
"""Parent of temporary directories. TMPDIR may be too long: a socket's path has at most 107 bytes.
Source: unix(7).
"""
_PREFIX = "nb_agents_"
_NEW = ".new_nb_agents_"
_LOCK = "owner.lock"

ORDINARY = frozenset(
    {"HOME", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER"}
    # Not LC_*, because ssh forwards those, and some users pass secrets in LC_SECRET or the like.
    | {"LANG", "LANGUAGE", "LC_ADDRESS", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION"}
    | {"LC_MEASUREMENT", "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER"}
    | {"LC_TELEPHONE", "LC_TIME"}
    # The locations of the notebook's Python and its libraries.
    | {"CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)
"""The variables that an agent's processes inherit by default."""


class ScratchFolder:
    """A new temporary directory that only this user can enter; `path` is its location."""

    def __init__(self) -> None:
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=PLACE)).resolve()
        self._lock = _lock_of(new)
        self._lock.acquire()
        # Renamed only once it is locked. Otherwise another process would consider it a leftover.
        self._outer = new.rename(new.with_name(_PREFIX + new.name.removeprefix(_NEW)))
        self.path = self._outer / "d"
        make_folder(self.path, exist_ok=False)

    def remove(self) -> None:
        """Remove the directory and its contents. May block."""
        remove_tree(self._outer)
        self._lock.release()


def remove_leftovers() -> None:
    """Remove the temporary directories of this user's dead processes. May block."""
    for path in _directories():
        lock = _lock_of(path)
        with suppress(OSError, Timeout), lock.acquire(blocking=False):
            remove_tree(path)


def _directories() -> Iterator[Path]:
    with suppress(OSError), os.scandir(PLACE) as entries:
        for entry in entries:
            # Any user can create directories and links with such names in /tmp.
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and os.path.exists(os.path.join(entry.path, _LOCK)):
                    yield Path(entry.path)


def _lock_of(path: Path) -> FileLock:
    return private_lock(path / _LOCK)


def agent_env(
    extra: Mapping[str, str], named: Iterable[str] = (), secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Return the environment of a process that an agent starts.

    Args:
        extra: Variables to add.
        named: Names of further variables to inherit, even if their values are secret. They
            override ``extra``.
        secrets: Values that must not leak, such as a team's keys.
    """
    hidden = set(secrets)
    inherited = {n: v for n, v in os.environ.items() if n in ORDINARY and v not in hidden}
    return inherited | dict(extra) | {n: os.environ[n] for n in named if n in os.environ}


def user_env(extra: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of a command in a recipe: this process's variables, without secrets.

    Such a command is considered written by the user, and Amplifier's recipes rely on the variables.
    Variables with a secret-looking name (`is_secret_name`) or with a value in ``secrets`` are left
    out. A step that needs one of them must list it in its ``env``.

    Args:
        extra: Variables to add, even if their name or value suggests a secret.
        secrets: Values that must not leak, such as a team's keys.
    """
    hidden = set(secrets) - {""}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not is_secret_name(name) and value not in hidden
    }
    return inherited | dict(extra)
