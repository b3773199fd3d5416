"""Examines directory entries without following links, and opens only regular files."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

TEMP = ".nb_agents.tmp"
"""Suffix of temporary files that are still being written."""
_MAX_NAMED = 10
_ESCAPED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of control and format characters, lone surrogates and line separators."""
_JOINERS = "\u200c\u200d"
"""Format characters that emoji and some scripts need."""

_LIST = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that mean that the process is out of file descriptors or memory.

The file may be fine, and the same call may succeed later.
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
"""Errors for a file that can't be read, or that was replaced by a file of another kind."""

Kind = Literal["file", "folder", "link", "pipe", "socket", "device", "closed", "deep"]
"""A file type. "closed" is a directory that can't be listed, "deep" one nested too deeply."""

_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_KIND_NAMES: dict[Kind, str] = {
    "file": "a file",
    "folder": "a directory",
    "link": "a symlink",
    "pipe": "a pipe",
    "socket": "a socket",
    "device": "a device",
    "closed": "a directory that can't be read",
    "deep": "a directory nested too deeply",
}


class RefusedError(OSError):
    """Raised when a path is refused. ``strerror`` is a predicate, such as "is a pipe"."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)


@dataclass(frozen=True)
class DirEntry:
    """An entry found by a walk. It can be opened until the walk continues.

    Attributes:
        path: The path relative to the directory, with forward slashes.
        kind: The file type.
        stat: The status of the entry. For a link, that of the link itself.
    """

    path: str
    kind: Kind
    stat: os.stat_result
    _folder: int

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def above(self) -> str:
        """The path of the parent directory, or ""."""
        return self.path.rpartition("/")[0]

    @property
    def depth(self) -> int:
        """The number of directories above the entry."""
        return self.path.count("/")

    @property
    def what(self) -> str:
        """The file type in words, such as "a symlink"."""
        return _KIND_NAMES[self.kind]

    @property
    def about(self) -> str:
        """The path and the file type, in words."""
        return f"{printable_name(self.path)} ({self.what})"

    def open(self) -> BinaryIO:
        """Open the file for reading.

        Raises:
            RefusedError: It is no longer a regular file, or can't be read.
            OSError: The read failed for another reason.
        """
        with _as_refused():
            return open_file(self.name, self._folder)

    def descriptor(self) -> int:
        """Open the file and return its descriptor.

        Four times as fast as `open`, and raises the same errors.
        """
        with _as_refused():
            return _open_if_file(self.name, self._folder)  # the walk has checked the type

    def target(self) -> str:
        """Return the target of a symlink.

        Raises:
            RefusedError: It is no longer a symlink.
            OSError: The read failed for another reason.
        """
        with _as_refused():
            return os.readlink(self.name, dir_fd=self._folder)


@contextmanager
def _as_refused() -> Generator[None]:
    """Convert errors that concern a single file to `RefusedError`, but not disk errors."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _UNREADABLE or isinstance(exc, RefusedError):
            raise
        raise RefusedError(f"can't be read: {exc.strerror}") from exc


class Scanned(NamedTuple):
    """A scanned directory: its open descriptor and its entries."""

    folder: int
    entries: Iterator[DirEntry]


def scan(name: str, folder: int, prefix: str) -> Scanned:
    """Open a subdirectory of an open directory and list its entries.

    Args:
        name: The subdirectory's name.
        folder: The open directory's descriptor.
        prefix: The prefix of each `DirEntry.path`.

    Returns:
        Files sorted by name, then subdirectories. The caller closes the descriptor.

    Raises:
        OSError: The name is not a directory, or can't be read.
    """
    inner = os.open(name, _LIST, dir_fd=folder)
    try:
        names = [each for each in os.listdir(inner) if not each.endswith(TEMP)]
        entries = [entry for each in names for entry in _entries(prefix, each, inner)]
    except BaseException:
        os.close(inner)
        raise
    entries.sort(key=lambda entry: (entry.kind == "folder", entry.name))
    return Scanned(inner, iter(entries))


def _entries(prefix: str, name: str, folder: int) -> Iterator[DirEntry]:
    with suppress(FileNotFoundError):  # deleted since the directory was read
        status = stat_at(name, folder)
        yield DirEntry(prefix + name, kind_of(status.st_mode), status, folder)


def open_file(name: str | os.PathLike[str], folder: int | None = None) -> BinaryIO:
    """Open a regular file for reading, without blocking or following a link.

    Args:
        name: The file's name in an open directory, or a path. Its parents may be links.
        folder: The open directory's descriptor, or None for a path.

    Raises:
        RefusedError: The file is a link, a pipe, a socket or a device.
        OSError: The file is missing, a directory, or can't be read.
    """
    file = open_descriptor(name, folder)
    try:
        return open(file, "rb")
    except BaseException:
        os.close(file)
        raise


def open_descriptor(name: str | os.PathLike[str], folder: int | None = None) -> int:
    """Open a regular file as `open_file` does, and return its descriptor."""
    require_file(stat_at(name, folder))
    return _open_if_file(name, folder)


def _open_if_file(name: str | os.PathLike[str], folder: int | None) -> int:
    # The file may have been swapped since the check: open it without blocking, then check again.
    file = os.open(name, _READ, dir_fd=folder)
    try:
        require_file(os.fstat(file))
        return file
    except BaseException:
        os.close(file)
        raise


def require_file(status: os.stat_result) -> None:
    """Check that a status belongs to a regular file.

    Raises:
        RefusedError: The file is a link, a pipe, a socket or a device.
        IsADirectoryError: The file is a directory.
    """
    kind = kind_of(status.st_mode)
    if kind == "folder":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind != "file":
        raise RefusedError(f"is {_KIND_NAMES[kind]}, not a file")


def stat_at(name: str | os.PathLike[str], folder: int | None = None) -> os.stat_result:
    """Return the status of a name in an open directory, or of a path, without following a link.

    Raises:
        OSError: The name does not exist.
    """
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def kind_of(mode: int) -> Kind:
    """Return the file type of a status's mode."""
    return _KINDS.get(stat.S_IFMT(mode), "device")


def can_be_path(text: str) -> bool:
    """Return whether a string can be a path: it has no NUL and no lone surrogates."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def join_names(left_out: Iterable[str]) -> str:
    """Join the names of skipped files.

    After the first ones, only the number of the rest is shown.
    """
    names = [*left_out]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def printable_name(name: str) -> str:
    """Return a file name with control, format and bidi characters and line ends escaped."""
    return "".join(ascii(c)[1:-1] if _needs_escape(c) else c for c in name)


def _needs_escape(char: str) -> bool:
    return unicodedata.category(char) in _ESCAPED and char not in _JOINERS
