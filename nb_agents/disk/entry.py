"""Directory entries, examined without following links; only regular files are opened."""

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
"""Suffix of a file that is still being written."""
_NAMED = 10
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories of control characters, lone surrogates and line separators."""

_LIST = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process short of file descriptors or memory: they say nothing about the file, and the
same call may succeed later.
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
"""Errors for a file that may not be read, or that was replaced by something else."""

Kind = Literal["file", "folder", "link", "pipe", "socket", "device", "closed", "deep"]
"""File type; "closed" is a directory that may not be listed, "deep" one nested too deeply."""

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
    """A path that is refused; ``strerror`` completes a sentence whose subject is the path."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)


@dataclass(frozen=True)
class DirEntry:
    """An entry that a walk found; it can be opened until the walk goes on.

    Attributes:
        path: Relative to the directory, with forward slashes.
        kind: The file type.
        stat: The entry's own status, never that of a link's target.
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
        """The path of the directory that it is in, or ""."""
        return self.path.rpartition("/")[0]

    @property
    def depth(self) -> int:
        """The number of directories above the entry."""
        return self.path.count("/")

    @property
    def what(self) -> str:
        """The file type in words, such as "a symlink"."""
        return _WORDS[self.kind]

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
        """Open the file for reading as a descriptor, which costs a quarter; errors as of `open`."""
        with _as_refused():
            return _open_if_file(self.name, self._folder)  # the walk has looked at it

    def target(self) -> str:
        """Return the text of a symlink.

        Raises:
            RefusedError: It is no longer a symlink.
            OSError: The read failed for another reason.
        """
        with _as_refused():
            return os.readlink(self.name, dir_fd=self._folder)


@contextmanager
def _as_refused() -> Generator[None]:
    """Raise `RefusedError` for errors of one file; pass those of the disk on."""
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
        prefix: What precedes each name in `DirEntry.path`.

    Returns:
        Files sorted by name, then subdirectories. The caller closes the descriptor.

    Raises:
        OSError: It is not a directory, or can't be read.
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


def _entries(prefix: str, name: str, folder: int) -> Iterator[DirEntry]:
    with suppress(FileNotFoundError):  # deleted since the directory was read
        found = stat_at(name, folder)
        yield DirEntry(prefix + name, kind_of(found.st_mode), found, folder)


def open_file(name: str | os.PathLike[str], folder: int | None = None) -> BinaryIO:
    """Open a regular file for reading, without blocking and not as a link.

    Args:
        name: Its name in an open directory, or a path whose parents may be links.
        folder: The open directory's descriptor.

    Raises:
        RefusedError: It is a link, a pipe, a socket or a device.
        OSError: It is missing, a directory, or can't be read.
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
    # It may have been swapped since it was looked at: open without blocking, then check again.
    file = os.open(name, _READ, dir_fd=folder)
    try:
        require_file(os.fstat(file))
        return file
    except BaseException:
        os.close(file)
        raise


def require_file(found: os.stat_result) -> None:
    """Check that a status is that of a regular file.

    Raises:
        RefusedError: It is that of a link, a pipe, a socket or a device.
        IsADirectoryError: It is that of a directory.
    """
    kind = kind_of(found.st_mode)
    if kind == "folder":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind != "file":
        raise RefusedError(f"is {_WORDS[kind]}, not a file")


def stat_at(name: str | os.PathLike[str], folder: int | None = None) -> os.stat_result:
    """Return the status of a name in an open directory, or of a path, not as a link.

    Raises:
        OSError: There is no such name.
    """
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def kind_of(mode: int) -> Kind:
    """Return the file type in a status's mode."""
    return _KINDS.get(stat.S_IFMT(mode), "device")


def join_names(left_out: Iterable[str]) -> str:
    """Join the names of skipped files; of many, name the first ones and count the rest."""
    names = [*left_out]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def printable_name(name: str) -> str:
    """Return a file's name with control characters, lone surrogates and line ends escaped."""
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in _UNSHOWN else c for c in name)
