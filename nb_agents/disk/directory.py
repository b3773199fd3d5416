"""Reads and writes files in a directory that an attacker may change at the same time.

Paths are not checked first and opened later, because they could change in between. Each component
is opened relative to its parent directory, and never as a link. The target of a symlink is resolved
in the same way, component by component, as long as it stays inside. So nothing outside the
directory is opened, even if somebody swaps files in the meantime. Only regular files are opened,
without blocking. Pipes, sockets and devices are refused.

A hard link is treated as a regular file. That is safe: a sandbox can't create a hard link to a file
outside, because that is on another mount. These functions don't create hard links, and a replaced
file gets a new inode.

Paths are resolved like by Linux's ``openat2(RESOLVE_BENEATH)``, but with portable POSIX calls.
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
    printable_name,
    require_file,
    scan,
    stat_at,
)
from nb_agents.disk.private import FILE_MODE, FOLDER_MODE, make_folder

MAX_DEPTH = 100
"""Maximum depth of a walk. Each level needs a file descriptor."""
_MAX_LINKS = 40
"""Maximum number of symlinks in one path. Source: Linux's MAXSYMLINKS, path_resolution(7)."""

# O_PATH, because traversing a directory does not require permission to list it.
_ENTER = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for a directory that was deleted or replaced."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

Make = Callable[[str, int], None]
"""Creates a file with a name in an open directory, given by its descriptor."""

Guard = Callable[[tuple[str, ...], os.stat_result | None], bool]
"""Returns whether a path is protected, given its components and the status of the existing file."""


class Directory:
    """An open directory. Its methods never access anything outside it.

    Create it with `at`, `made` or `real`. Paths are relative, with forward slashes. ``..`` returns
    to the directory from which the path came.
    """

    def __init__(
        self,
        fd: int,
        path: Path,
        is_protected: Guard | None = None,
        *,
        follows_links: bool = True,
        is_private: bool = False,
    ) -> None:
        self._fd = fd
        self.path = path
        self._is_protected = is_protected
        self._follows_links = follows_links
        self._is_private = is_private
        self._file_mode = FILE_MODE if is_private else 0o666

    @classmethod
    def at(cls, path: Path, *, follows_links: bool = True) -> Directory:
        """Open a directory. Its parents may be links, but not the directory itself.

        Args:
            path: The directory.
            follows_links: Whether to follow links in it that stay inside.

        Raises:
            OSError: The path is not a directory, or can't be opened.
        """
        return cls(os.open(path, _ENTER), path, follows_links=follows_links)

    @classmethod
    def made(cls, path: Path) -> Directory:
        """Create a private directory and its missing parents, and open it as `at` does.

        Files and directories created in it are private as well: only their owner can use them.

        Raises:
            OSError: The path is not a directory, or can't be created or opened.
        """
        make_folder(path)
        return cls(os.open(path, _ENTER), path, is_private=True)

    @classmethod
    def real(
        cls,
        path: Path,
        is_protected: Guard | None = None,
        *,
        follows_links: bool = True,
        is_private: bool = False,
    ) -> Directory:
        """Open a directory by its real path.

        Args:
            path: The absolute path. No component may be a link.
            is_protected: Returns whether a path must not be changed. By default, all paths may be.
            follows_links: Whether to follow links in it that stay inside.
            is_private: Whether created and written files are accessible only to their owner.

        Raises:
            OSError: The path is not a directory, or can't be opened.
        """
        return cls(
            _open_real(path),
            path,
            is_protected,
            follows_links=follows_links,
            is_private=is_private,
        )

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def kind(self, path: str, *, follow: bool = True) -> Kind:
        """Return the kind of file at a path. Arguments and errors are the same as in `open`."""
        with self._parent_of(path, follow=follow) as (folder, name):
            return kind_of(stat_at(name, folder).st_mode)

    def status(self, path: str) -> os.stat_result:
        """Return the status of a path, without following a link.

        Raises the same errors as `open`.
        """
        with self._parent_of(path, follow=False) as (folder, name):
            return stat_at(name, folder)

    def target(self, path: str) -> str:
        """Return the target of the symlink at a path. Raises the same errors as `open`."""
        with self._parent_of(path, follow=False) as (folder, name):
            return os.readlink(name, dir_fd=folder)

    def open(self, path: str, *, follow: bool = True) -> BinaryIO:
        """Open a file for reading.

        Args:
            path: The file.
            follow: Whether the last component may be a link that stays inside.

        Raises:
            RefusedError: The path is outside this directory, or is not a regular file.
            OSError: The file is missing or can't be read.
        """
        with self._parent_of(path, follow=follow) as (folder, name):
            return open_file(name, folder)

    def read(self, path: str, limit: int | None = None, *, follow: bool = True) -> bytes:
        """Read a whole file. Raises the same errors as `open`.

        Args:
            path: The file.
            limit: Maximum size in bytes. A larger file is refused.
            follow: As for `open`.
        """
        with self.open(path, follow=follow) as file:
            return _read(file, limit)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file atomically by renaming a temporary one. Missing directories are created.

        Args:
            path: The file. It keeps its permissions, except in a private directory.
            data: The new content.

        Raises:
            RefusedError: The path is outside this directory, is protected, or is a link.
            OSError: The write failed. The old file is unchanged.
        """
        with self._parent_of(path, follow=False, make=True, changes=True) as (folder, name):
            mode = _replaceable_mode(name, folder)
            temp = f".{secrets.token_hex(4)}{TEMP}"
            try:
                with open(os.open(temp, _NEW, self._file_mode, dir_fd=folder), "wb") as file:
                    file.write(data)
                    if mode is not None and not self._is_private:
                        os.fchmod(file.fileno(), mode)
                os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=folder)
                raise

    def put(self, path: str, make: Make | None, there: os.stat_result | None) -> None:
        """Replace or remove a file, link or empty directory if it has not changed.

        This is atomic, unless the old or new entry is a directory. In that case, a kill between
        the two steps leaves only the new entry, under its temporary name, `temp_of`. The next
        attempt replaces it.

        Args:
            path: The path. Missing parent directories are created.
            make: Creates the new entry, given a name and the directory's descriptor. None means to
                remove the old one.
            there: The `os.stat_result` of the old entry, or None if the path must not exist.

        Raises:
            RefusedError: The path is outside this directory or protected, or the entry has changed.
            OSError: The new entry can't be created. Nothing has changed.
        """
        is_new = make is not None
        with self._parent_of(path, follow=False, make=is_new, changes=True) as (folder, name):
            temp = temp_of(name)
            _discard(temp, folder)
            try:
                if make is not None:
                    make(temp, folder)
                _require_same(there, name, folder)
                if there is not None and (not is_new or _is_any_folder(temp, there, folder)):
                    (os.rmdir if stat.S_ISDIR(there.st_mode) else os.unlink)(name, dir_fd=folder)
                if is_new:
                    os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _discard(temp, folder)
                raise

    def create(self, path: str) -> BinaryIO:
        """Create a file and missing parent directories, and open it for writing.

        Raises:
            RefusedError: The path is outside this directory, or is protected.
            OSError: The name is taken, or the file can't be created.
        """
        with self._parent_of(path, follow=False, make=True, changes=True) as (folder, name):
            return open(os.open(name, _NEW, self._file_mode, dir_fd=folder), "wb")

    def inner(self, path: str) -> Directory:
        """Open a directory in this one, and create missing ones.

        Raises the same errors as `make`.
        """
        with self._parent_of(f"{path}/.", make=True, changes=True) as (folder, name):
            inner = os.open(name, _ENTER, dir_fd=folder)
        return Directory(
            inner,
            self.path / path,
            self._is_protected,
            follows_links=self._follows_links,
            is_private=self._is_private,
        )

    def new_descriptor(self, name: str) -> int:
        """Create a file directly in this directory, and return its descriptor for writing.

        Raises:
            RefusedError: The file is protected.
            OSError: The name is taken, or the file can't be created.
        """
        if self._is_protected is not None:
            _Lookup(self._fd, self._is_protected).check(name)
        return os.open(name, _NEW, self._file_mode, dir_fd=self._fd)

    def make(self, path: str, mode: int | None = None) -> None:
        """Create a directory and its missing parents.

        Args:
            path: The directory. It may already exist.
            mode: Its permissions. None does not change them.

        Raises:
            RefusedError: The path is outside this directory, or is protected.
            OSError: A component is not a directory, or can't be created.
        """
        with self._parent_of(f"{path}/.", make=True, changes=True) as (folder, name):
            if mode is not None:
                os.chmod(name, mode, dir_fd=folder)

    def link(self, path: str, text: str) -> None:
        """Create a symlink. Its target may be outside, because no method here follows it there.

        Raises:
            RefusedError: The path is outside this directory, or is protected.
            OSError: The name is taken, or the link can't be created.
        """
        with self._parent_of(path, follow=False, changes=True) as (folder, name):
            os.symlink(text, name, dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove a regular file.

        Raises:
            RefusedError: The path is outside this directory, is protected, or is not a regular
                file.
            OSError: The file is missing or can't be removed.
        """
        with self._parent_of(path, follow=False, changes=True) as (folder, name):
            require_file(stat_at(name, folder))
            os.unlink(name, dir_fd=folder)

    def entries(self, path: str = ".") -> list[DirEntry]:
        """List a directory: sorted files, then subdirectories. Raises the same errors as `walk`."""
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
            For each directory, its sorted files, then each subdirectory followed by its contents.
            Entries that are deleted during the walk are skipped.

        Raises:
            RefusedError: The path is outside this directory.
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
        """Open the parent directory of a path.

        Yields its descriptor and the path's last component.
        """
        mode = FOLDER_MODE if self._is_private else 0o777
        lookup = _Lookup(self._fd, self._is_protected if changes else None, mode)
        try:
            name = self._walk(lookup, path, follow, make)
            yield lookup.folder, name
        finally:
            lookup.restart()

    def _walk(self, lookup: _Lookup, path: str, follow: bool, make: bool) -> str:
        # A path that ends in "/." refers to the directory itself, and its last component may be a
        # link.
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
                if not self._follows_links:
                    raise RefusedError(f"goes through a symlink ({printable_name(name)})")
                links += 1
                if links > _MAX_LINKS:
                    raise RefusedError("goes through too many symlinks")
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
        """Return the target of an absolute link, relative to this directory."""
        try:
            return PurePosixPath(text).relative_to(resolve_parent(self.path)).as_posix()
        except ValueError:
            raise RefusedError("is outside the directory") from None


class _Lookup:
    """The open directories from the root to the current directory of a path lookup."""

    def __init__(self, root: int, is_protected: Guard | None, mode: int = 0o777) -> None:
        self._root = root
        self._is_protected = is_protected
        self._mode = mode
        self._folders: list[int] = []
        self._names: list[str] = []

    @property
    def folder(self) -> int:
        """The current directory's descriptor."""
        return self._folders[-1] if self._folders else self._root

    def enter(self, name: str, make: bool) -> None:
        """Enter a directory, creating it if ``make`` is set and it is missing."""
        if len(self._folders) == MAX_DEPTH:
            raise RefusedError("is nested too deeply")
        self.check(name)
        try:
            inner = os.open(name, _ENTER, dir_fd=self.folder)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, self._mode, dir_fd=self.folder)
            inner = os.open(name, _ENTER, dir_fd=self.folder)
        self._folders.append(inner)
        self._names.append(name)
        # The directory may have been swapped between the check and the open.
        self._refuse_protected(self._names, os.fstat(inner))

    def check(self, name: str) -> None:
        """Raise `RefusedError` if a name in the current directory is protected."""
        status = None
        if self._is_protected is not None:
            with suppress(FileNotFoundError):
                status = stat_at(name, self.folder)
        self._refuse_protected([*self._names, name], status)

    def back(self) -> None:
        """Return to the previous directory, even if the current one was moved."""
        if not self._folders:
            raise RefusedError("is outside the directory")
        os.close(self._folders.pop())
        self._names.pop()

    def restart(self) -> None:
        """Return to the root of the lookup."""
        while self._folders:
            self.back()

    def _refuse_protected(self, names: Iterable[str], status: os.stat_result | None) -> None:
        if self._is_protected is not None and self._is_protected(tuple(names), status):
            raise RefusedError("is protected and can't be changed")


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file. Links and pipes are refused.

    Args:
        path: The file. Its parent directories may be links.
        limit: Maximum size in bytes. None means no limit.

    Raises:
        RefusedError: The file is larger, or not a regular file.
        OSError: The file is missing or can't be read.
    """
    with open_file(path) as file:
        return _read(file, limit)


def consume_file(path: Path, limit: int) -> bytes:
    """Read and remove a file that another process wrote for this one.

    An unreadable file is removed as well, unless this process is out of file descriptors or memory.
    In that case, it stays for the next attempt.

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
    """Open a directory by its absolute path. No component may be a link."""
    fd = os.open(path.anchor, _ENTER)
    for name in path.parts[1:]:
        above = fd
        try:
            fd = os.open(name, _ENTER, dir_fd=above)
        finally:
            os.close(above)
    return fd


def resolve_parent(path: Path) -> Path:
    """Resolve the links in a path's parents, but not in its last component."""
    # Path.resolve would raise a RuntimeError for a loop of links.
    return Path(os.path.realpath(path.parent), path.name)


def temp_of(name: str) -> str:
    """Return the temporary name that `Directory.put` uses for a name."""
    return f".{blake2b(os.fsencode(name), digest_size=8).hexdigest()}{TEMP}"


def _discard(temp: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        is_folder = stat.S_ISDIR(stat_at(temp, folder).st_mode)
        (os.rmdir if is_folder else os.unlink)(temp, dir_fd=folder)


def _is_any_folder(temp: str, there: os.stat_result, folder: int) -> bool:
    """Return whether the old or new entry is a directory, which a rename can't replace."""
    return stat.S_ISDIR(there.st_mode) or stat.S_ISDIR(stat_at(temp, folder).st_mode)


def _require_same(there: os.stat_result | None, name: str, folder: int) -> None:
    """Raise `RefusedError` if the entry with a name has changed."""
    try:
        status = stat_at(name, folder)
    except FileNotFoundError:
        status = None
    states = [
        stat_result
        and (stat_result.st_ino, stat_result.st_mode, stat_result.st_size, stat_result.st_mtime_ns)
        for stat_result in (there, status)
    ]
    if states[0] != states[1]:
        raise RefusedError("is being changed by another process")


def _replaceable_mode(name: str, folder: int) -> int | None:
    """Return the permissions of the file to be replaced, or None if it does not exist."""
    try:
        status = stat_at(name, folder)
    except FileNotFoundError:
        return None
    require_file(status)
    return stat.S_IMODE(status.st_mode) & 0o777


def _link_text(name: str, folder: int) -> str | None:
    """Return the target of a symlink, or None for anything else and for a missing file."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as exc:
        if exc.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise
