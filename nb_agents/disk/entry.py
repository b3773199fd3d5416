"""What a directory holds, told without following a link; only regular files are opened."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

__all__ = [
    "Entry",
    "Kind",
    "LACKING",
    "RefusedError",
    "Scanned",
    "TEMP",
    "in_words",
    "kind_of",
    "look_at",
    "open_file",
    "require_file",
    "scan",
    "shown",
]

TEMP = ".nb_agents.tmp"
"""How the name of a file ends that is not whole yet."""
_NAMED = 10
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, half surrogate pairs and line ends."""

_LIST = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process that has no descriptor or no memory left just now: they tell nothing of what
it wanted to look at, which it finds as it was the next time.
"""

_UNREADABLE = (
    errno.EACCES,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENXIO,
    errno.EPERM,
)
"""Errors of a file that may not be read, or is something else by now."""

Kind = Literal["file", "folder", "link", "pipe", "socket", "device", "closed", "deep"]
"""What a name stands for; "closed" is a directory that may not be listed, "deep" one too far down.
"""

_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_WORDS: dict[Kind, str] = {
    "file": "a file",
    "folder": "a directory",
    "link": "a symlink",
    "pipe": "a pipe",
    "socket": "a socket",
    "device": "a device",
    "closed": "a directory that can't be read",
    "deep": "a directory too far down",
}


class RefusedError(OSError):
    """A path that is not gone; ``strerror`` ends the sentence that the path begins."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)


@dataclass(frozen=True)
class Entry:
    """What a walk found. It can be opened until the walk goes on.

    Attributes:
        path: Relative to the directory, with forward slashes.
        kind: What it is.
        stat: Of itself, never of what a link leads to.
    """

    path: str
    kind: Kind
    stat: os.stat_result
    _folder: int

    @property
    def name(self) -> str:
        """The last name of its path."""
        return self.path.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """How many directories it lies in."""
        return self.path.count("/")

    @property
    def what(self) -> str:
        """What it is, in words."""
        return _WORDS[self.kind]

    @property
    def about(self) -> str:
        """Its path and what it is, in words."""
        return f"{shown(self.path)} ({self.what})"

    def open(self) -> BinaryIO:
        """Open it for reading.

        Raises:
            RefusedError: It is no regular file by now, or can't be read.
            OSError: The disk refused.
        """
        with _as_refused():
            return open_file(self.name, self._folder)

    def target(self) -> str:
        """Return the text of a symlink.

        Raises:
            RefusedError: It is none by now.
            OSError: The disk refused.
        """
        with _as_refused():
            return os.readlink(self.name, dir_fd=self._folder)


@contextmanager
def _as_refused() -> Generator[None]:
    """Tell what is wrong with one file from what is wrong with the disk."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _UNREADABLE or isinstance(exc, RefusedError):
            raise
        raise RefusedError(f"can't be read: {exc.strerror}") from exc


class Scanned(NamedTuple):
    """A directory that was looked through: its open descriptor, and what it holds."""

    folder: int
    entries: Iterator[Entry]


def scan(name: str, folder: int, prefix: str) -> Scanned:
    """Open a directory of an open one, and look what it holds.

    Args:
        name: Its name there.
        folder: The descriptor of the one that is open.
        prefix: Goes before each name in `Entry.path`.

    Returns:
        What is no directory, sorted by name, then the directories. The descriptor is the caller's.

    Raises:
        OSError: It is no directory, or can't be read.
    """
    inner = os.open(name, _LIST, dir_fd=folder)
    try:
        found = [each for each in os.listdir(inner) if not each.endswith(TEMP)]
        entries = [entry for each in found for entry in _entries(prefix, each, inner)]
    except BaseException:
        os.close(inner)
        raise
    entries.sort(key=lambda entry: (entry.kind == "folder", entry.name))
    return Scanned(inner, iter(entries))


def _entries(prefix: str, name: str, folder: int) -> Iterator[Entry]:
    with suppress(FileNotFoundError):  # deleted since the directory was read
        found = look_at(name, folder)
        yield Entry(prefix + name, kind_of(found.st_mode), found, folder)


def open_file(name: str, folder: int) -> BinaryIO:
    """Open a regular file of an open directory for reading, and nothing else.

    Raises:
        RefusedError: It is a link, a pipe, a socket or a device.
        OSError: There is none, it is a directory, or can't be read.
    """
    require_file(look_at(name, folder))
    # Another thing may have come in its place: opened without waiting, it is looked at again.
    file = os.open(name, _READ, dir_fd=folder)
    try:
        require_file(os.fstat(file))
        return open(file, "rb")
    except BaseException:
        os.close(file)
        raise


def require_file(found: os.stat_result) -> None:
    """Refuse what is no regular file.

    Raises:
        RefusedError: It is something else.
        IsADirectoryError: It is a directory.
    """
    kind = kind_of(found.st_mode)
    if kind == "folder":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind != "file":
        raise RefusedError(f"is {_WORDS[kind]}, not a file")


def look_at(name: str, folder: int) -> os.stat_result:
    """Look at a name of an open directory, without following it.

    Raises:
        OSError: There is none.
    """
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def kind_of(mode: int) -> Kind:
    """Return the kind that a file's mode tells."""
    return _KINDS.get(stat.S_IFMT(mode), "device")


def in_words(left_out: Iterable[str]) -> str:
    """Name what was left out; of many, the first ones."""
    told = [*left_out]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return ", ".join(told[:_NAMED]) + more


def shown(name: str) -> str:
    """Write a file's name on one line, in characters that can be encoded."""
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in _UNSHOWN else c for c in name)
