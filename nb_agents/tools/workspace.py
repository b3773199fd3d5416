"""File tools for an agent's workspace, and the detection of changes outside of it.

An agent can write to its workspace and, by absolute paths, to writable context paths. It can also
read the workspaces of other agents as ``peers/<name>/…``, and context paths by absolute paths.
Links that an agent's processes create in the meantime are not followed (see `nb_agents.disk`). A
file is replaced atomically by renaming a temporary file, so an immediate stop leaves either the old
or the new file. Disk access runs in worker threads, so a slow disk doesn't block other agents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from anyio import to_thread

from nb_agents.disk.directory import Directory, Guard, resolve_parent
from nb_agents.disk.entry import RefusedError, can_be_path, printable_name
from nb_agents.disk.private import make_folder
from nb_agents.process.writable import MAX_SCANNED_FILES, WritablePath, entries
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, current_call, declare

FileStates = Mapping[str, tuple[int, int, int]]
"""The inode, size and modification time of each file, by its absolute path."""

MAX_WRITE_CHARS = 5_000_000
MAX_READ_CHARS = 50_000
MAX_READ_BYTES = 20_000_000
MAX_LISTED = 500
_BINARY_PROBE_BYTES = 8000
"""A file is binary if its first bytes, up to this number, contain a NUL.

Source: git's buffer_is_binary.
"""
PEERS = "peers"

FILE_TOOLS = declare(
    BuiltInTool("list_files", "read_file", "path"),
    BuiltInTool("read_file", "read_file", "path"),
    BuiltInTool("write_file", "write_file", "path"),
    BuiltInTool("edit_file", "write_file", "path"),
    BuiltInTool("delete_file", "write_file", "path", is_asked=True),
)
"""Names of the file tools."""


class Changes(NamedTuple):
    """Sorted absolute paths of files that changed between two states.

    Attributes:
        made: New files.
        changed: Files whose inode, size or modification time differs.
        deleted: Deleted files.
    """

    made: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]


def file_states(locations: Sequence[WritablePath]) -> FileStates:
    """Return the state of up to `MAX_SCANNED_FILES` files below some paths.

    Links are not followed. For a protected directory, only its existence is recorded.
    """
    all_entries = (each for location in locations for each in entries(location))
    state = {}
    for path, status, is_protected in islice(all_entries, MAX_SCANNED_FILES):
        if stat.S_ISDIR(status.st_mode):
            if is_protected:
                state[str(path)] = (status.st_ino, 0, 0)
        else:
            state[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return state


def compare_states(before: FileStates, after: FileStates) -> Changes:
    """Return the differences between two states from `file_states`."""
    both = before.keys() & after.keys()
    return Changes(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(name for name in both if before[name] != after[name])),
        tuple(sorted(before.keys() - after.keys())),
    )


class Workspace:
    """The files that an agent may read and write.

    Args:
        root: The agent's directory, which is created if it is missing.
        peers: The workspaces of other agents, by the names that this agent uses. They are
            read-only.
        context: Absolute paths of files and directories that may be read.
        writable: Files and directories that may also be written to. A context path inside one of
            them stays read-only.
        project: The root with its protected paths, if it is the user's project directory.
    """

    def __init__(
        self,
        root: Path,
        peers: Mapping[str, Path] | None = None,
        context: Sequence[Path] = (),
        writable: Sequence[WritablePath] = (),
        project: WritablePath | None = None,
    ) -> None:
        self._root = root
        self._project = project
        self._peer_paths = dict(peers or {})
        self._context = tuple(context)
        self._writable = tuple(writable)

    def tools(self) -> list[Tool]:
        """Return the file tools for this workspace."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in FILE_TOOLS]

    async def list_files(self, path: str = ".") -> str:
        """List the files of a directory with their sizes in bytes.

        Args:
            path: A directory in your workspace, ``peers`` for the list of other agents,
                ``peers/<name>`` for an agent's workspace, or a context path.
        """
        return await to_thread.run_sync(self._list, path)

    async def read_file(self, path: str, offset: int = 0) -> str:
        """Read a text file.

        Args:
            path: A file in your workspace, ``peers/<name>/<file>`` for a file of another agent, or
                a file below a context path.
            offset: The character to start at, to read the rest of a long file.
        """
        data = await to_thread.run_sync(self._read, path)
        if b"\0" in data[:_BINARY_PROBE_BYTES]:
            raise ToolError(f"{path!r} is a binary file of {len(data)} bytes")
        text = data.decode("utf-8", errors="replace")
        part = text[max(offset, 0) : max(offset, 0) + MAX_READ_CHARS]
        end = max(offset, 0) + len(part)
        return part + (f"\n[truncated; continue with offset={end}]" if end < len(text) else "")

    async def write_file(self, path: str, content: str) -> str:
        """Write a text file. An existing file is replaced.

        Args:
            path: A path relative to your workspace, or an absolute path below a writable context
                path.
            content: The complete new text of the file.
        """
        data = _encoded(content)
        await to_thread.run_sync(self._write, path, data)
        return f"Wrote {path} ({len(data)} bytes)."

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a passage in a text file.

        Args:
            path: A path relative to your workspace, or an absolute path below a writable context
                path.
            old: The exact current text of the passage. It must occur exactly once in the file.
            new: The text to replace it with.
        """
        await to_thread.run_sync(self._edit, path, old, new)
        return f"Edited {path}."

    async def delete_file(self, path: str) -> str:
        """Delete a file.

        Args:
            path: A path relative to your workspace, or an absolute path below a writable context
                path.
        """
        await to_thread.run_sync(self._delete, path)
        return f"Deleted {path}."

    async def keep(self, path: str, data: bytes) -> None:
        """Write a binary file to the workspace.

        Args:
            path: The path relative to the workspace.
            data: The content.

        Raises:
            ToolError: The file can't be written.
        """
        await to_thread.run_sync(self._write, path, data)

    # In a worker thread -------------------------------------------------------------------------

    def _list(self, path: str) -> str:
        _check_path(path)
        if PurePosixPath(path).parts == (PEERS,):
            return "\n".join(f"{PEERS}/{name}/" for name in self._peers) or "(no other agents)"
        missing = f"{path!r} is not a directory"
        with self._open_parent(path, missing=missing) as (directory, inner, follow):
            if directory.kind(inner, follow=follow) == "folder":
                return _listing(directory, inner)
            with directory.open(inner, follow=follow) as file:
                return f"{path}  {os.fstat(file.fileno()).st_size}"

    def _read(self, path: str) -> bytes:
        with self._open_parent(path) as (directory, inner, follow):
            return directory.read(inner, MAX_READ_BYTES, follow=follow)

    def _write(self, path: str, data: bytes) -> None:
        with self._open_parent(path, writing=True, missing=None) as (directory, inner, _):
            directory.replace(inner, data)

    def _edit(self, path: str, old: str, new: str) -> None:
        with self._open_parent(path, writing=True) as (directory, inner, _):
            try:
                text = directory.read(inner, MAX_READ_BYTES, follow=False).decode("utf-8")
            except UnicodeDecodeError:
                # Decoding with replacement characters would lose the invalid bytes.
                raise ToolError(f"{path!r} is not UTF-8 text and can't be edited") from None
            if current_call().is_repeated and new in text and not _is_unedited(text, old, new):
                return
            if not old or text.count(old) != 1:
                raise ToolError(
                    f"`old` occurs {text.count(old) if old else 0} times in the file. It must "
                    "occur exactly once. Read the file and copy a longer passage from it"
                )
            directory.replace(inner, _encoded(text.replace(old, new)))

    def _delete(self, path: str) -> None:
        try:
            with self._open_parent(path, writing=True) as (directory, inner, _):
                directory.remove(inner)
        except _MissingError:
            if not current_call().is_repeated:
                raise

    @contextmanager
    def _open_parent(
        self, path: str, *, writing: bool = False, missing: str | None = ""
    ) -> Iterator[tuple[Directory, str, bool]]:
        """Open the directory that contains the path of a model.

        Args:
            path: The path from the model.
            writing: Whether the file will be changed.
            missing: The error message for a missing file; None means the system's message.

        Yields:
            The directory, the path within it, and whether to follow a link at the path's end.

        Raises:
            ToolError: The path is not permitted, or the block raised an OSError.
        """
        _check_path(path)
        is_absolute = os.path.isabs(path)
        try:
            root, inner = (self._below_any if is_absolute else self._below_own)(path, writing)
            with root.opened(inner) as (directory, name):
                # Links in an absolute path have been resolved, so a link that is found now was
                # created since.
                yield directory, name, not (is_absolute or writing)
        except RefusedError as exc:
            raise ToolError(f"{path!r} {exc.strerror}") from None
        except OSError as exc:
            is_missing = isinstance(exc, FileNotFoundError | NotADirectoryError | IsADirectoryError)
            if is_missing and missing is not None:
                raise _MissingError(missing or f"there is no file {path!r}") from None
            verb = "written" if writing else "read"
            raise ToolError(f"{path!r} can't be {verb}: {exc.strerror}") from exc

    def _below_own(self, path: str, writing: bool) -> tuple[_Root, str]:
        """Return the root for a relative path, and the path relative to that root."""
        pure = PurePosixPath(path.replace("\\", "/"))
        if pure.is_absolute():
            raise ToolError(f"{path!r} is not a relative path")
        if ".." in pure.parts or (writing and not pure.parts):
            raise ToolError(f"{path!r} is not a path inside your workspace")
        if pure.parts[:1] == (PEERS,) and self._peers:
            if writing:
                raise ToolError("other agents' files can only be read")
            if pure.parts[1:2] and pure.parts[1] in self._peers:
                return self._peers[pure.parts[1]], "/".join(pure.parts[2:]) or "."
        return self._own_root, pure.as_posix()

    def _below_any(self, path: str, writing: bool) -> tuple[_Root, str]:
        """Return the innermost root that contains an absolute path, and the path relative to it."""
        above, last = os.path.split(path)
        # A write changes the entry itself, not the target of a link.
        real = Path(os.path.realpath(above), last) if writing else Path(os.path.realpath(path))
        fits = [
            root for root in (self._own_root, *self._other_roots) if real.is_relative_to(root.path)
        ]
        if not fits or last in ("", ".", "..") and writing:
            raise ToolError(f"{path!r} is not below your workspace or a context path")
        root = max(fits, key=lambda root: len(root.path.parts))
        if writing and not root.is_writable:
            raise ToolError(f"{path!r} can only be read")
        return root, real.relative_to(root.path).as_posix()

    @cached_property
    def _own_root(self) -> _Root:
        make_folder(self._root)
        guard = self._guard(self._project) if self._project else None
        return _Root(resolve_parent(self._root), guard, is_writable=True)

    @cached_property
    def _peers(self) -> dict[str, _Root]:
        return {name: _Root(resolve_parent(p)) for name, p in self._peer_paths.items()}

    @cached_property
    def _other_roots(self) -> list[_Root]:
        return [
            *(
                _Root(w.path, self._guard(w), is_writable=True, may_be_file=True)
                for w in self._writable
            ),
            *(
                _Root(Path(os.path.realpath(path)), may_be_file=True)
                for path in self._context
                # The agent may have replaced a directory below a writable path with a link. So a
                # context path there is opened only through the writable path.
                if not any(path.is_relative_to(w.path) for w in self._writable)
            ),
        ]

    def _guard(self, writable: WritablePath) -> Guard:
        """Return a guard that also protects the context paths within a writable path."""
        inner = [
            path.relative_to(writable.path).parts
            for path in self._context
            if path != writable.path and path.is_relative_to(writable.path)
        ]

        def is_protected(names: tuple[str, ...], status: os.stat_result | None) -> bool:
            is_inner = any(names[: len(parts)] == parts for parts in inner)
            return is_inner or writable.is_protected(names, status)

        return is_protected


@dataclass(frozen=True)
class _Root:
    """A directory or file that an agent may access.

    Attributes:
        path: The path with links resolved.
        guard: Protects paths below it.
        is_writable: Whether the agent may write there.
        may_be_file: Whether the path may be a single file.
    """

    path: Path
    guard: Guard | None = None
    is_writable: bool = False
    may_be_file: bool = False

    @contextmanager
    def opened(self, inner: str) -> Iterator[tuple[Directory, str]]:
        """Open the root and yield it with the path below it. For a file, open its directory."""
        try:
            directory = Directory.real(self.path, self.guard)
        except (FileNotFoundError, NotADirectoryError):
            if inner != "." or not self.may_be_file:
                raise
            directory, inner = Directory.real(self.path.parent, self.guard), self.path.name
        with directory:
            yield directory, inner


class _MissingError(ToolError):
    """Raised if a file does not exist."""


def _listing(directory: Directory, path: str) -> str:
    lines: list[str] = []
    with closing(directory.walk(path)) as entries:
        for entry in entries:
            if entry.kind in ("folder", "link"):
                continue
            if len(lines) == MAX_LISTED:
                lines.append("(more files are not listed)")
                break
            is_file = entry.kind == "file"
            lines.append(
                f"{printable_name(entry.path)}  {entry.stat.st_size}" if is_file else entry.about
            )
    return "\n".join(lines) or "(no files)"


def _encoded(content: str) -> bytes:
    if len(content) > MAX_WRITE_CHARS:
        raise ToolError(
            f"the content has {len(content)} characters; the limit is {MAX_WRITE_CHARS}"
        )
    return content.encode("utf-8", "replace")


def _is_unedited(text: str, old: str, new: str) -> bool:
    """Return whether ``old`` occurs outside ``new``, so that the edit has not happened yet."""
    within = text.count(new) * new.count(old) if new else 0
    return text.count(old) > within


def _check_path(path: str) -> None:
    """Raise if a path is invalid because of a NUL or a lone surrogate."""
    if not can_be_path(path):
        raise ToolError(f"{path!r} is not a valid path")
