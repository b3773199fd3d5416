"""Environment variables and temporary directories of the processes that agents start.

An agent's processes get the variables listed here and those named in the team's file, and no
others, as any other may be a secret. That includes the addresses of proxies and package indexes,
which may contain a password or a token.

The temporary directory of a process that was killed is removed by the first run of the next one.
Each process holds a lock in its directory, which the operating system releases when the process
dies, also by ``kill -9``; a directory whose lock is free is no longer needed.
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

PLACE = "/tmp"
"""Not the user's TMPDIR: a socket's path has at most 107 bytes. Source: unix(7)."""
_PREFIX = "nb_agents_"
_NEW = ".new_nb_agents_"
_LOCK = "owner.lock"

ORDINARY = frozenset(
    {"HOME", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER"}
    # One by one, as people pass secrets through ssh in variables such as LC_SECRET.
    | {"LANG", "LANGUAGE", "LC_ADDRESS", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION"}
    | {"LC_MEASUREMENT", "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER"}
    | {"LC_TELEPHONE", "LC_TIME"}
    # The locations of the notebook's Python and its libraries.
    | {"CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)
"""The variables that an agent's processes inherit by default."""


class ScratchFolder:
    """A new temporary directory that only this user may enter.

    Attributes:
        path: The directory.
    """

    def __init__(self) -> None:
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=PLACE)).resolve()
        self._lock = _lock_of(new)
        self._lock.acquire()
        # Renamed only once locked: earlier, another process would take it for a leftover.
        self._outer = new.rename(new.with_name(_PREFIX + new.name.removeprefix(_NEW)))
        self.path = self._outer / "d"
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the directory and its contents; may block."""
        _remove(self._outer)
        self._lock.release()


def remove_leftovers() -> None:
    """Remove the directories of this user's dead processes; may block."""
    for path in _directories():
        lock = _lock_of(path)
        with suppress(OSError, Timeout), lock.acquire(blocking=False):
            _remove(path)


def _directories() -> Iterator[Path]:
    with suppress(OSError), os.scandir(PLACE) as entries:
        for entry in entries:
            # Any user may create directories and links of that name there.
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and os.path.exists(os.path.join(entry.path, _LOCK)):
                    yield Path(entry.path)


def _lock_of(path: Path) -> FileLock:
    return FileLock(path / _LOCK, thread_local=False)


def _remove(path: Path) -> None:
    """Remove a tree, even where an agent removed the permissions for it."""
    for folder, names, _ in os.walk(path):
        for name in (os.path.join(folder, name) for name in names):
            if not os.path.islink(name):
                with suppress(OSError):
                    os.chmod(name, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def agent_env(
    extra: Mapping[str, str], named: Iterable[str] = (), secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Return the environment of a process that an agent starts.

    Args:
        extra: Variables to add.
        named: Names of variables to pass on as well, whatever their values; they override
            ``extra``.
        secrets: Values that must not leak, such as a team's keys.
    """
    hidden = set(secrets)
    kept = {n: each for n, each in os.environ.items() if n in ORDINARY and each not in hidden}
    return kept | dict(extra) | {n: os.environ[n] for n in named if n in os.environ}


def user_env(extra: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of a command that a recipe's author wrote: this process's variables.

    Such a command is the user's own, as if typed into their terminal, and Amplifier's recipes rely
    on its variables. Those with a secret's name (`is_secret_name`) and those whose value is one of
    ``secrets`` are left out; a step that needs one names it in its ``env``.

    Args:
        extra: Variables to add, even when they have a secret's name or value.
        secrets: Values that must not leak, such as a team's keys.
    """
    hidden = set(secrets) - {""}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not is_secret_name(name) and value not in hidden
    }
    return kept | dict(extra)
