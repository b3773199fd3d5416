"""A directory that somebody hostile may change while it is read, written, listed or copied.

A path is never checked first and opened then: it is walked name by name, each opened in the
directory before it and never as a link. A symlink is followed by its text alone, name by name, and
only while that leads inside; so whatever is swapped meanwhile, nothing beyond the directory is
opened. Only regular files are opened, without waiting: pipes, sockets and devices are told apart.

A hard link is a file like any other: a sandbox can make none to the outside (it is another mount),
these functions make none, and a file that is replaced gets an inode of its own.

This is the walk of Linux's ``openat2(RESOLVE_BENEATH)`` in calls that every POSIX system has.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from nb_agents.disk.entry import (
    LACKING,
    TEMP,
    Entry,
    Kind,
    RefusedError,
    kind_of,
    look_at,
    open_file,
    require_file,
    scan,
)

__all__ = ["Directory", "Guard", "MAX_DEPTH", "read_file", "real_above", "take_file"]

MAX_DEPTH = 100
"""Directories within each other that are walked: each takes a descriptor."""
_MAX_LINKS = 40
"""Symlinks followed on one path. Source: Linux's MAXSYMLINKS, path_resolution(7)."""

# O_PATH: walking through a directory needs no right to list it.
_ENTER = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a directory that is gone, or was swapped for something else."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

Guard = Callable[[tuple[str, ...], os.stat_result | None], bool]
"""Whether the names beneath a directory, or what is there now, may not be changed."""


class Directory:
    """An open directory, and what lies beneath it.

    Paths are relative, with forward slashes; ``..`` goes back on the way that was walked.

    Args:
        path: Real: absolute, and no name of it is followed as a link.
        is_protected: Tells what may not be changed; by default everything may.

    Raises:
        OSError: It is no directory, or can't be opened.
    """

    def __init__(self, path: Path, is_protected: Guard | None = None) -> None:
        self.path = path
        self._is_protected = is_protected
        self._fd = os.open(path.anchor, _ENTER)
        for name in path.parts[1:]:
            above = self._fd
            try:
                self._fd = os.open(name, _ENTER, dir_fd=above)
            finally:
                os.close(above)

    @classmethod
    def at(cls, path: Path) -> Directory:
        """Open a directory whose own name is no link; those above it may be links.

        Raises:
            OSError: It is no directory, or can't be opened.
        """
        return cls(real_above(path))

    def __enter__(self) -> Directory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def kind(self, path: str, *, follow: bool = True) -> Kind:
        """Return what a path stands for; see `open` for its arguments and errors."""
        with self._place(path, follow=follow) as (folder, name):
            return kind_of(look_at(name, folder).st_mode)

    def open(self, path: str, *, follow: bool = True) -> BinaryIO:
        """Open a file for reading.

        Args:
            path: The file.
            follow: Whether its last name may be a link that leads inside.

        Raises:
            RefusedError: The path leads out, or to no regular file.
            OSError: There is none, or it can't be read.
        """
        with self._place(path, follow=follow) as (folder, name):
            return open_file(name, folder)

    def read(self, path: str, limit: int | None = None, *, follow: bool = True) -> bytes:
        """Read a whole file; see `open` for arguments and errors.

        Args:
            path: The file.
            limit: Bytes that it may have at most; a larger one is refused.
            follow: As for `open`.
        """
        with self.open(path, follow=follow) as file:
            if limit is None:
                return file.read()
            if (
                os.fstat(file.fileno()).st_size <= limit
                and len(data := file.read(limit + 1)) <= limit
            ):
                return data
        raise RefusedError(f"is larger than {limit} bytes")

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file as a whole (temp → rename); missing directories are made.

        Args:
            path: The file; its permissions stay.
            data: Its new content.

        Raises:
            RefusedError: The path leads out, is protected, or is a link.
            OSError: The disk refused; the old file stands.
        """
        with self._place(path, follow=False, make=True, changes=True) as (folder, name):
            mode = _replaceable_mode(name, folder)
            temp = f".{secrets.token_hex(4)}{TEMP}"
            try:
                with open(os.open(temp, _NEW, 0o666, dir_fd=folder), "wb") as file:
                    file.write(data)
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=folder)
                raise

    def create(self, path: str) -> BinaryIO:
        """Make a file for writing; missing directories are made, nothing is replaced.

        Raises:
            RefusedError: The path leads out or is protected.
            OSError: The name is taken, or the disk refused.
        """
        with self._place(path, follow=False, make=True, changes=True) as (folder, name):
            return open(os.open(name, _NEW, 0o666, dir_fd=folder), "wb")

    def make(self, path: str) -> None:
        """Make a directory and those above it, as far as they are missing.

        Raises:
            RefusedError: The path leads out or is protected.
            OSError: A name of it is something else, or the disk refused.
        """
        with self._place(f"{path}/.", make=True, changes=True):
            pass

    def link(self, path: str, text: str) -> None:
        """Make a symlink of that text, wherever that leads: nothing here follows it out.

        Raises:
            RefusedError: The path leads out or is protected.
            OSError: The name is taken, or the disk refused.
        """
        with self._place(path, follow=False, changes=True) as (folder, name):
            os.symlink(text, name, dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove a regular file.

        Raises:
            RefusedError: The path leads out, is protected, or is no regular file.
            OSError: There is none, or the disk refused.
        """
        with self._place(path, follow=False, changes=True) as (folder, name):
            require_file(look_at(name, folder))
            os.unlink(name, dir_fd=folder)

    def walk(self, path: str = ".") -> Generator[Entry]:
        """Go through all that lies beneath, without following links.

        Args:
            path: Where to begin.

        Yields:
            Of each directory what is no directory, sorted, then each directory and what it holds.
            What vanishes meanwhile is left out.

        Raises:
            RefusedError: The path leads out.
            OSError: It is no directory, or can't be listed.
        """
        with self._place(f"{path}/.") as (folder, name):
            ways = [scan(name, folder, "")]
        try:
            while ways:
                entry = next(ways[-1].entries, None)
                if entry is None:
                    os.close(ways.pop().folder)
                elif entry.kind != "folder":
                    yield entry
                elif len(ways) > MAX_DEPTH:
                    yield replace(entry, kind="deep")
                else:
                    try:
                        ways.append(scan(entry.name, ways[-1].folder, f"{entry.path}/"))
                    except PermissionError:
                        entry = replace(entry, kind="closed")
                    except OSError as exc:
                        if exc.errno not in _VANISHED:
                            raise
                        continue
                    yield entry
        finally:
            for way in ways:
                os.close(way.folder)

    @contextmanager
    def _place(
        self, path: str, *, follow: bool = True, make: bool = False, changes: bool = False
    ) -> Iterator[tuple[int, str]]:
        """Walk to the directory that holds a path's last name; give it and that name."""
        way = _Way(self._fd, self._is_protected if changes else None)
        try:
            name = self._walk(way, path, follow, make)
            yield way.folder, name
        finally:
            way.restart()

    def _walk(self, way: _Way, path: str, follow: bool, make: bool) -> str:
        # A path that ends in "/." means the directory itself, which a link may stand for.
        todo, links = [*reversed(path.split("/"))], 0
        while todo:
            name = todo.pop()
            is_last = not todo
            if name in ("", "."):
                continue
            if name == "..":
                way.back()
                continue
            text = None if is_last and not follow else _link_text(name, way.folder)
            if text is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise RefusedError("leads through too many links")
                if text.startswith("/"):
                    text = self._inside(text)
                    way.restart()
                todo += reversed(text.split("/"))
            elif is_last:
                way.check(name)
                return name
            else:
                way.enter(name, make)
        return "."

    def _inside(self, text: str) -> str:
        """Make the text of an absolute link relative to this directory."""
        try:
            return PurePosixPath(text).relative_to(self.path).as_posix()
        except ValueError:
            raise RefusedError("leads out of the directory") from None


class _Way:
    """The directories that a walk has gone through, open."""

    def __init__(self, root: int, is_protected: Guard | None) -> None:
        self._root = root
        self._is_protected = is_protected
        self._folders: list[int] = []
        self._names: list[str] = []

    @property
    def folder(self) -> int:
        """The directory that the walk is in."""
        return self._folders[-1] if self._folders else self._root

    def enter(self, name: str, make: bool) -> None:
        """Go into a directory; a missing one may be made."""
        if len(self._folders) == MAX_DEPTH:
            raise RefusedError("is too far down")
        self.check(name)
        try:
            inner = os.open(name, _ENTER, dir_fd=self.folder)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.folder)
            inner = os.open(name, _ENTER, dir_fd=self.folder)
        self._folders.append(inner)
        self._names.append(name)
        # What was opened may be another than what was looked at.
        self._refuse_protected(self._names, os.fstat(inner))

    def check(self, name: str) -> None:
        """Refuse a name that may not be changed."""
        found = None
        if self._is_protected is not None:
            with suppress(FileNotFoundError):
                found = look_at(name, self.folder)
        self._refuse_protected([*self._names, name], found)

    def back(self) -> None:
        """Go back to the directory before; what it is in now does not count."""
        if not self._folders:
            raise RefusedError("leads out of the directory")
        os.close(self._folders.pop())
        self._names.pop()

    def restart(self) -> None:
        """Go back to the beginning."""
        while self._folders:
            self.back()

    def _refuse_protected(self, names: Iterable[str], found: os.stat_result | None) -> None:
        if self._is_protected is not None and self._is_protected(tuple(names), found):
            raise RefusedError("is protected and can't be changed")


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Read a file that must be a regular one by its own name: no link, no pipe.

    Args:
        path: The file; the directories above it may be links.
        limit: Bytes that it may have at most.

    Raises:
        RefusedError: It is something else, or larger.
        OSError: There is none, or it can't be read.
    """
    os.lstat(path)  # what is not there is told by one look, not by one at each directory above it
    with Directory(real_above(path).parent) as directory:
        return directory.read(path.name, limit, follow=False)


def take_file(path: Path, limit: int) -> bytes:
    """Read a file that another process has left here for this one, and remove it.

    What can't be read is removed, too, unless this process can read nothing just now: then it is
    there the next time.

    Args:
        path: The file, as for `read_file`.
        limit: Bytes that it may have at most.

    Raises:
        RefusedError: It is something else, or larger.
        OSError: There is none, or it can't be read, or not be removed.
    """
    try:
        data = read_file(path, limit)
    except OSError as exc:
        if exc.errno not in LACKING:
            path.unlink(missing_ok=True)
        raise
    path.unlink()
    return data


def real_above(path: Path) -> Path:
    """Follow the links above a name, and not the name itself."""
    # Not Path.resolve, which raises a RuntimeError for a loop.
    return Path(os.path.realpath(path.parent), path.name)


def _replaceable_mode(name: str, folder: int) -> int | None:
    """Return the permissions of the file that will be replaced; None when there is none."""
    try:
        found = look_at(name, folder)
    except FileNotFoundError:
        return None
    require_file(found)
    return stat.S_IMODE(found.st_mode) & 0o777


def _link_text(name: str, folder: int) -> str | None:
    """Return the text of a symlink; None for anything else, and for nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as exc:
        if exc.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
