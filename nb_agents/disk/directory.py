"""Reading and writing beneath a directory that an attacker may change at the same time.

A path is never checked first and opened later: each name is opened relative to the directory before
it, never as a link. A symlink is resolved by its text, name by name, only while it stays inside, so
nothing outside the directory is opened, whatever is swapped in the meantime. Only regular files are
opened, without blocking; pipes, sockets and devices are refused.

A hard link counts as a regular file: a sandbox cannot make one to the outside (that is another
mount), these functions make none, and a replaced file gets a new inode.

This is the lookup of Linux's ``openat2(RESOLVE_BENEATH)``, in calls that every POSIX system has.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from nb_agents.disk.entry import (
    OUT_OF_RESOURCES,
    TEMP,
    DirEntry,
    Kind,
    RefusedError,
    kind_of,
    open_file,
    require_file,
    scan,
    stat_at,
)

MAX_DEPTH = 100
"""Levels of nested directories that are walked; each takes a file descriptor."""
_MAX_LINKS = 40
"""Symlinks followed in one path. Source: Linux's MAXSYMLINKS, path_resolution(7)."""

# O_PATH: passing through a directory needs no permission to list it.
_ENTER = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for a directory that is gone or was replaced by something else."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

Make = Callable[[str, int], None]
"""Make something of a name in an open directory."""

Guard = Callable[[tuple[str, ...], os.stat_result | None], bool]
"""Return whether a path beneath a directory is protected, by its names or by the file there now."""


class Directory:
    """An open directory whose methods reach nothing outside it; made by `at` or `real`.

    Paths are relative, with forward slashes; ``..`` returns to the directory walked before.
    """

    def __init__(self, fd: int, path: Path, is_protected: Guard | None = None) -> None:
        self._fd = fd
        self.path = path
        self._is_protected = is_protected

    @classmethod
    def at(cls, path: Path) -> Directory:
        """Open a directory; its parents may be links, the directory itself may not.

        Raises:
            OSError: The path is not a directory, or can't be opened.
        """
        return cls(os.open(path, _ENTER), path)

    @classmethod
    def real(cls, path: Path, is_protected: Guard | None = None) -> Directory:
        """Open a directory by its real path.

        Args:
            path: Absolute; no component is followed as a link.
            is_protected: Which paths may not be changed; by default all may.

        Raises:
            OSError: The path is not a directory, or can't be opened.
        """
        return cls(_open_real(path), path, is_protected)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def kind(self, path: str, *, follow: bool = True) -> Kind:
        """Return the kind of file at a path; arguments and errors are those of `open`."""
        with self._parent_of(path, follow=follow) as (folder, name):
            return kind_of(stat_at(name, folder).st_mode)

    def open(self, path: str, *, follow: bool = True) -> BinaryIO:
        """Open a file for reading.

        Args:
            path: The file.
            follow: Whether the last component may be a link that leads inside.

        Raises:
            RefusedError: The path leads out, or not to a regular file.
            OSError: The file is missing or can't be read.
        """
        with self._parent_of(path, follow=follow) as (folder, name):
            return open_file(name, folder)

    def read(self, path: str, limit: int | None = None, *, follow: bool = True) -> bytes:
        """Read a whole file; arguments and errors are those of `open`.

        Args:
            path: The file.
            limit: Maximum size in bytes; a larger file is refused.
            follow: As for `open`.
        """
        with self.open(path, follow=follow) as file:
            return _read(file, limit)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file atomically (temp → rename), creating missing directories.

        Args:
            path: The file; its permissions are kept.
            data: The new content.

        Raises:
            RefusedError: The path leads out, is protected, or is a link.
            OSError: The write failed; the old file is unchanged.
        """
        with self._parent_of(path, follow=False, make=True, changes=True) as (folder, name):
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

    def put(self, path: str, make: Make | None, there: os.stat_result | None) -> None:
        """Put something in the place of what is there, at one stroke unless one is a directory.

        Then a kill between the two leaves neither, and what was made under `temp_of` its name. That
        of an earlier try is replaced.

        Args:
            path: Missing directories above it are created.
            make: Makes it, given a name and the directory's descriptor; None for nothing.
            there: The status of what is replaced, an empty directory too; None for nothing.

        Raises:
            RefusedError: The path leads out or is protected, or something else is there by now.
            OSError: It can't be made; nothing has changed.
        """
        is_made = make is not None
        with self._parent_of(path, follow=False, make=is_made, changes=True) as (folder, name):
            temp = temp_of(name)
            _discard(temp, folder)
            try:
                if make is not None:
                    make(temp, folder)
                _require_same(there, name, folder)
                if there is not None and (not is_made or _is_kept_apart(temp, there, folder)):
                    (os.rmdir if stat.S_ISDIR(there.st_mode) else os.unlink)(name, dir_fd=folder)
                if is_made:
                    os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _discard(temp, folder)
                raise

    def create(self, path: str) -> BinaryIO:
        """Create a file and open it for writing, creating missing directories.

        Raises:
            RefusedError: The path leads out or is protected.
            OSError: The name is taken, or the file can't be created.
        """
        with self._parent_of(path, follow=False, make=True, changes=True) as (folder, name):
            return open(os.open(name, _NEW, 0o666, dir_fd=folder), "wb")

    def inner(self, path: str) -> Directory:
        """Open a directory beneath this one, creating missing ones; errors are those of `make`."""
        with self._parent_of(f"{path}/.", make=True, changes=True) as (folder, name):
            inner = os.open(name, _ENTER, dir_fd=folder)
        return Directory(inner, self.path / path, self._is_protected)

    def new_descriptor(self, name: str) -> int:
        """Create a file in this directory itself and open it for writing; errors as of `create`."""
        if self._is_protected is not None:
            _Lookup(self._fd, self._is_protected).check(name)
        return os.open(name, _NEW, 0o666, dir_fd=self._fd)

    def make(self, path: str, mode: int | None = None) -> None:
        """Create a directory and its missing parents.

        Args:
            path: The directory, which may be there.
            mode: Its permissions; None leaves them as they are.

        Raises:
            RefusedError: The path leads out or is protected.
            OSError: A component is not a directory, or can't be created.
        """
        with self._parent_of(f"{path}/.", make=True, changes=True) as (folder, name):
            if mode is not None:
                os.chmod(name, mode, dir_fd=folder)

    def link(self, path: str, text: str) -> None:
        """Create a symlink; its text may lead outside, as no method here follows it there.

        Raises:
            RefusedError: The path leads out or is protected.
            OSError: The name is taken, or the link can't be created.
        """
        with self._parent_of(path, follow=False, changes=True) as (folder, name):
            os.symlink(text, name, dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove a regular file.

        Raises:
            RefusedError: The path leads out, is protected, or is not a regular file.
            OSError: The file is missing or can't be removed.
        """
        with self._parent_of(path, follow=False, changes=True) as (folder, name):
            require_file(stat_at(name, folder))
            os.unlink(name, dir_fd=folder)

    def entries(self, path: str = ".") -> list[DirEntry]:
        """List one directory: its files, sorted, then its subdirectories; errors as in `walk`."""
        with self._parent_of(f"{path}/.") as (folder, name):
            scanned = scan(name, folder, "")
        try:
            return list(scanned.entries)
        finally:
            os.close(scanned.folder)

    def walk(self, path: str = ".", leaving_out: Container[str] = ()) -> Generator[DirEntry]:
        """Walk a directory tree, without following links.

        Args:
            path: The directory to start from.
            leaving_out: The paths of entries that are neither yielded nor entered.

        Yields:
            For each directory its files, sorted, then each subdirectory followed by its contents.
            Entries that are deleted during the walk are skipped.

        Raises:
            RefusedError: The path leads out.
            OSError: The path is not a directory, or can't be listed.
        """
        with self._parent_of(f"{path}/.") as (folder, name):
            stack = [scan(name, folder, "")]
        try:
            while stack:
                entry = next(stack[-1].entries, None)
                if entry is None:
                    os.close(stack.pop().folder)
                elif entry.path in leaving_out:
                    continue
                elif entry.kind != "folder":
                    yield entry
                elif len(stack) > MAX_DEPTH:
                    yield replace(entry, kind="deep")
                else:
                    try:
                        stack.append(scan(entry.name, stack[-1].folder, f"{entry.path}/"))
                    except PermissionError:
                        entry = replace(entry, kind="closed")
                    except OSError as exc:
                        if exc.errno not in _VANISHED:
                            raise
                        continue
                    yield entry
        finally:
            for each in stack:
                os.close(each.folder)

    @contextmanager
    def _parent_of(
        self, path: str, *, follow: bool = True, make: bool = False, changes: bool = False
    ) -> Iterator[tuple[int, str]]:
        """Open the parent directory of a path; yield its descriptor and the last name."""
        lookup = _Lookup(self._fd, self._is_protected if changes else None)
        try:
            name = self._walk(lookup, path, follow, make)
            yield lookup.folder, name
        finally:
            lookup.restart()

    def _walk(self, lookup: _Lookup, path: str, follow: bool, make: bool) -> str:
        # A path that ends in "/." means the directory itself, which a link may stand for.
        todo, links = [*reversed(path.split("/"))], 0
        while todo:
            name = todo.pop()
            is_last = not todo
            if name in ("", "."):
                continue
            if name == "..":
                lookup.back()
                continue
            text = None if is_last and not follow else _link_text(name, lookup.folder)
            if text is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise RefusedError("leads through too many links")
                if text.startswith("/"):
                    text = self._inside(text)
                    lookup.restart()
                todo += reversed(text.split("/"))
            elif is_last:
                lookup.check(name)
                return name
            else:
                lookup.enter(name, make)
        return "."

    def _inside(self, text: str) -> str:
        """Return the text of an absolute link relative to this directory."""
        try:
            return PurePosixPath(text).relative_to(resolve_parent(self.path)).as_posix()
        except ValueError:
            raise RefusedError("leads out of the directory") from None


class _Lookup:
    """The open directories from the root down to where a path lookup has got."""

    def __init__(self, root: int, is_protected: Guard | None) -> None:
        self._root = root
        self._is_protected = is_protected
        self._folders: list[int] = []
        self._names: list[str] = []

    @property
    def folder(self) -> int:
        """The current directory's descriptor."""
        return self._folders[-1] if self._folders else self._root

    def enter(self, name: str, make: bool) -> None:
        """Enter a directory, creating it if ``make`` is set and it is missing."""
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
        # The directory may have been swapped between the check and the open.
        self._refuse_protected(self._names, os.fstat(inner))

    def check(self, name: str) -> None:
        """Raise `RefusedError` when a name here is protected."""
        found = None
        if self._is_protected is not None:
            with suppress(FileNotFoundError):
                found = stat_at(name, self.folder)
        self._refuse_protected([*self._names, name], found)

    def back(self) -> None:
        """Return to the directory entered before, wherever the current one has been moved."""
        if not self._folders:
            raise RefusedError("leads out of the directory")
        os.close(self._folders.pop())
        self._names.pop()

    def restart(self) -> None:
        """Return to the root."""
        while self._folders:
            self.back()

    def _refuse_protected(self, names: Iterable[str], found: os.stat_result | None) -> None:
        if self._is_protected is not None and self._is_protected(tuple(names), found):
            raise RefusedError("is protected and can't be changed")


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file; a link or pipe in its place is refused.

    Args:
        path: The file; its parent directories may be links.
        limit: Maximum size in bytes.

    Raises:
        RefusedError: The file is larger, or not a regular file.
        OSError: The file is missing or can't be read.
    """
    with open_file(path) as file:
        return _read(file, limit)


def consume_file(path: Path, limit: int) -> bytes:
    """Read a file that another process left for this one, and remove it.

    A file that can't be read is removed as well, unless this process is out of file descriptors or
    memory: then it stays for the next attempt.

    Args:
        path: The file, as for `read_file`.
        limit: Maximum size in bytes.

    Raises:
        RefusedError: The file is larger, or not a regular file.
        OSError: The file is missing, or can't be read or removed.
    """
    try:
        data = read_file(path, limit)
    except OSError as exc:
        if exc.errno not in OUT_OF_RESOURCES:
            path.unlink(missing_ok=True)
        raise
    path.unlink()
    return data


def _read(file: BinaryIO, limit: int | None) -> bytes:
    if limit is None:
        return file.read()
    if os.fstat(file.fileno()).st_size <= limit and len(data := file.read(limit + 1)) <= limit:
        return data
    raise RefusedError(f"is larger than {limit} bytes")


def _open_real(path: Path) -> int:
    """Open a directory by the real path, of which no component may be a link."""
    fd = os.open(path.anchor, _ENTER)
    for name in path.parts[1:]:
        above = fd
        try:
            fd = os.open(name, _ENTER, dir_fd=above)
        finally:
            os.close(above)
    return fd


def resolve_parent(path: Path) -> Path:
    """Resolve the links in a path's parents, and leave its last component as it is."""
    # Not Path.resolve, which raises a RuntimeError for a loop.
    return Path(os.path.realpath(path.parent), path.name)


def temp_of(name: str) -> str:
    """Return the name under which `Directory.put` makes what is to have a name."""
    return f".{blake2b(os.fsencode(name), digest_size=8).hexdigest()}{TEMP}"


def _discard(temp: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        is_folder = stat.S_ISDIR(stat_at(temp, folder).st_mode)
        (os.rmdir if is_folder else os.unlink)(temp, dir_fd=folder)


def _is_kept_apart(temp: str, there: os.stat_result, folder: int) -> bool:
    """Return whether one of two is a directory, so that no rename replaces it."""
    return stat.S_ISDIR(there.st_mode) or stat.S_ISDIR(stat_at(temp, folder).st_mode)


def _require_same(there: os.stat_result | None, name: str, folder: int) -> None:
    """Raise `RefusedError` unless a name has the status that it had."""
    try:
        found = stat_at(name, folder)
    except FileNotFoundError:
        found = None
    looks = [it and (it.st_ino, it.st_mode, it.st_size, it.st_mtime_ns) for it in (there, found)]
    if looks[0] != looks[1]:
        raise RefusedError("is changed at this moment")


def _replaceable_mode(name: str, folder: int) -> int | None:
    """Return the permissions of the file to be replaced; None when there is none."""
    try:
        found = stat_at(name, folder)
    except FileNotFoundError:
        return None
    require_file(found)
    return stat.S_IMODE(found.st_mode) & 0o777


def _link_text(name: str, folder: int) -> str | None:
    """Return the text of a symlink; None for a missing file or any other kind."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as exc:
        if exc.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
