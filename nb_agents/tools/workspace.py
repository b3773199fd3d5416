"""File tools over one agent's workspace, and what changed outside of it.

Writing is confined to the workspace, and to what an agent may write besides, by absolute names.
Reading also covers read-only places: other agents' workspaces as ``peers/<name>/…`` and context
paths by their absolute names. Links that an agent's processes swap in are not followed: see
`nb_agents.disk`. A file is replaced atomically (temp → rename), so that an immediate stop leaves
either the old file or the new. Disk access happens in worker threads, so that a slow disk doesn't
block other agents.
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
from nb_agents.disk.entry import RefusedError, printable_name
from nb_agents.process.writable import MAX_LOOKED_AT, WritablePath, entries
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, current_call, declare

Looks = Mapping[str, tuple[int, int, int]]
"""Each file's inode, size and time of change, by its absolute name."""

MAX_WRITE_CHARS = 5_000_000
MAX_READ_CHARS = 50_000
MAX_READ_BYTES = 20_000_000
MAX_LISTED = 500
_BINARY_PROBE_BYTES = 8000
"""A NUL so early says binary. Source: git's buffer_is_binary."""
PEERS = "peers"

FILE_TOOLS = declare(
    BuiltInTool("list_files", "read_file", "path"),
    BuiltInTool("read_file", "read_file", "path"),
    BuiltInTool("write_file", "write_file", "path"),
    BuiltInTool("edit_file", "write_file", "path"),
    BuiltInTool("delete_file", "write_file", "path", is_asked=True),
)
"""The tools of an agent's workspace."""


class Changes(NamedTuple):
    """Absolute names of files, sorted.

    Attributes:
        made: New files.
        changed: Files with other content, by size and time.
        deleted: Deleted files.
    """

    made: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]


def look(places: Sequence[WritablePath]) -> Looks:
    """Record the state of some places, at most `MAX_LOOKED_AT` files; follows no link.

    Of protected paths only their existence is recorded.

    Args:
        places: The places.
    """
    seen = (each for place in places for each in entries(place))
    found = {}
    for path, it, is_protected in islice(seen, MAX_LOOKED_AT):
        if stat.S_ISDIR(it.st_mode):
            if is_protected:
                found[str(path)] = (it.st_ino, 0, 0)
        else:
            found[str(path)] = (it.st_ino, it.st_size, it.st_mtime_ns)
    return found


def compare(before: Looks, after: Looks) -> Changes:
    """Return what changed between two states.

    Args:
        before: The first.
        after: The second.
    """
    both = before.keys() & after.keys()
    return Changes(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(name for name in both if before[name] != after[name])),
        tuple(sorted(before.keys() - after.keys())),
    )


class Workspace:
    """The files that an agent may see and change.

    Args:
        root: Its own directory; made if it is missing.
        peers: Other agents' workspaces by the name that they have here, read-only.
        context: Files and directories that may be read, absolute.
        writable: Files and directories that may be written, too. A context path within one of them
            is read-only.
        project: The root with its protected paths, when it is the user's own directory.
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
        self._given_peers = dict(peers or {})
        self._context = tuple(context)
        self._writable = tuple(writable)

    def tools(self) -> list[Tool]:
        """The tools over this workspace."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in FILE_TOOLS]

    async def list_files(self, path: str = ".") -> str:
        """List files with their sizes in bytes.

        Args:
            path: A directory of your workspace, ``peers`` or ``peers/<name>`` for another agent's
                workspace, or a context path.
        """
        return await to_thread.run_sync(self._list, path)

    async def read_file(self, path: str, offset: int = 0) -> str:
        """Read a text file.

        Args:
            path: A file of your workspace, ``peers/<name>/<file>`` for another agent's, or a file
                below a context path.
            offset: Character to start from, for files too long to be read at once.
        """
        data = await to_thread.run_sync(self._read, path)
        if b"\0" in data[:_BINARY_PROBE_BYTES]:
            raise ToolError(f"{path!r} is a binary file of {len(data)} bytes")
        text = data.decode("utf-8", errors="replace")
        part = text[max(offset, 0) : max(offset, 0) + MAX_READ_CHARS]
        end = max(offset, 0) + len(part)
        return part + (f"\n[cut; go on with offset={end}]" if end < len(text) else "")

    async def write_file(self, path: str, content: str) -> str:
        """Write a text file into your workspace, replacing one of that name.

        Args:
            path: Relative to your workspace; or below a context path that you may write.
            content: The whole text.
        """
        data = _encoded(content)
        await to_thread.run_sync(self._write, path, data)
        return f"Wrote {path} ({len(data)} bytes)."

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one passage of a file in your workspace.

        Args:
            path: Relative to your workspace; or below a context path that you may write.
            old: The passage as it stands; it must occur exactly once.
            new: What to put there.
        """
        await to_thread.run_sync(self._edit, path, old, new)
        return f"Edited {path}."

    async def delete_file(self, path: str) -> str:
        """Delete a file of your workspace.

        Args:
            path: Relative to your workspace; or below a context path that you may write.
        """
        await to_thread.run_sync(self._delete, path)
        return f"Deleted {path}."

    async def keep(self, path: str, data: bytes) -> None:
        """Write a file of any kind into the workspace.

        Args:
            path: Relative to it.
            data: What it holds.

        Raises:
            ToolError: It can't be written.
        """
        await to_thread.run_sync(self._write, path, data)

    # In a worker thread -------------------------------------------------------------------------

    def _list(self, path: str) -> str:
        _refuse_unnameable(path)
        if PurePosixPath(path).parts == (PEERS,):
            return "\n".join(f"{PEERS}/{name}/" for name in self._peers) or "(no other agents)"
        missing = f"{path!r} is not a directory"
        with self._opened(path, missing=missing) as (directory, inner, follow):
            if directory.kind(inner, follow=follow) == "folder":
                return _listing(directory, inner)
            with directory.open(inner, follow=follow) as file:
                return f"{path}  {os.fstat(file.fileno()).st_size}"

    def _read(self, path: str) -> bytes:
        with self._opened(path) as (directory, inner, follow):
            return directory.read(inner, MAX_READ_BYTES, follow=follow)

    def _write(self, path: str, data: bytes) -> None:
        with self._opened(path, writing=True, missing=None) as (directory, inner, _):
            directory.replace(inner, data)

    def _edit(self, path: str, old: str, new: str) -> None:
        with self._opened(path, writing=True) as (directory, inner, _):
            try:
                text = directory.read(inner, MAX_READ_BYTES, follow=False).decode("utf-8")
            except UnicodeDecodeError:
                # Read with replacement and written back, its other bytes would be lost.
                raise ToolError(f"{path!r} is not UTF-8 text and can't be edited") from None
            if current_call().is_repeated and new in text and not _left_to_replace(text, old, new):
                return
            if not old or text.count(old) != 1:
                raise ToolError(f"`old` occurs {text.count(old) if old else 0} times, not once")
            directory.replace(inner, _encoded(text.replace(old, new)))

    def _delete(self, path: str) -> None:
        try:
            with self._opened(path, writing=True) as (directory, inner, _):
                directory.remove(inner)
        except _MissingError:
            if not current_call().is_repeated:
                raise

    @contextmanager
    def _opened(
        self, path: str, *, writing: bool = False, missing: str | None = ""
    ) -> Iterator[tuple[Directory, str, bool]]:
        """Open the directory that a model's path lies in.

        Args:
            path: As the model wrote it.
            writing: Whether what it names will be changed.
            missing: The error for a missing file; None means the system's message.

        Yields:
            The directory, the path within, and whether its last name may be a link.

        Raises:
            ToolError: The agent may not go there, or the block could not do what it wanted.
        """
        _refuse_unnameable(path)
        is_absolute = os.path.isabs(path)
        try:
            root, inner = (self._below_any if is_absolute else self._below_own)(path, writing)
            with root.opened(inner) as (directory, name):
                # An absolute path is a real one here: a link in it came meanwhile.
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
        """Find the root of a relative path, and the path below it."""
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
        return self._own, pure.as_posix()

    def _below_any(self, path: str, writing: bool) -> tuple[_Root, str]:
        """Find the innermost root that an absolute path leads into, and the path below it."""
        above, last = os.path.split(path)
        # What is changed is the name itself, never what it leads to.
        real = Path(os.path.realpath(above), last) if writing else Path(os.path.realpath(path))
        fits = [root for root in (self._own, *self._given) if real.is_relative_to(root.path)]
        if not fits or last in ("", ".", "..") and writing:
            raise ToolError(f"{path!r} is not below your workspace or a context path")
        root = max(fits, key=lambda root: len(root.path.parts))
        if writing and not root.is_writable:
            raise ToolError(f"{path!r} can only be read")
        return root, real.relative_to(root.path).as_posix()

    @cached_property
    def _own(self) -> _Root:
        self._root.mkdir(parents=True, exist_ok=True)
        guard = self._guard(self._project) if self._project else None
        return _Root(resolve_parent(self._root), guard, is_writable=True)

    @cached_property
    def _peers(self) -> dict[str, _Root]:
        return {name: _Root(resolve_parent(p)) for name, p in self._given_peers.items()}

    @cached_property
    def _given(self) -> list[_Root]:
        return [
            *(
                _Root(w.path, self._guard(w), is_writable=True, may_be_file=True)
                for w in self._writable
            ),
            *(
                _Root(Path(os.path.realpath(path)), may_be_file=True)
                for path in self._context
                # In a place that the agent may change, the name alone could lead anywhere by now:
                # what is there is found by its way from that place.
                if not any(path.is_relative_to(w.path) for w in self._writable)
            ),
        ]

    def _guard(self, writable: WritablePath) -> Guard:
        """Protect the context paths within a writable one, too."""
        inner = [
            path.relative_to(writable.path).parts
            for path in self._context
            if path != writable.path and path.is_relative_to(writable.path)
        ]

        def is_protected(names: tuple[str, ...], found: os.stat_result | None) -> bool:
            is_inner = any(names[: len(parts)] == parts for parts in inner)
            return is_inner or writable.is_protected(names, found)

        return is_protected


@dataclass(frozen=True)
class _Root:
    """A place that paths may lead into.

    Attributes:
        path: Real.
        guard: The protected paths below it.
        is_writable: Whether anything may.
        may_be_file: Whether it may be a single file.
    """

    path: Path
    guard: Guard | None = None
    is_writable: bool = False
    may_be_file: bool = False

    @contextmanager
    def opened(self, inner: str) -> Iterator[tuple[Directory, str]]:
        """Open the directory that a path below the root is in, and name it from there."""
        try:
            directory = Directory.real(self.path, self.guard)
        except (FileNotFoundError, NotADirectoryError):
            if inner != "." or not self.may_be_file:
                raise
            directory, inner = Directory.real(self.path.parent, self.guard), self.path.name
        with directory:
            yield directory, inner


class _MissingError(ToolError):
    """There is no such file."""


def _listing(directory: Directory, path: str) -> str:
    lines: list[str] = []
    with closing(directory.walk(path)) as entries:
        for entry in entries:
            if entry.kind in ("folder", "link"):
                continue
            if len(lines) == MAX_LISTED:
                lines.append("(more not listed)")
                break
            is_file = entry.kind == "file"
            lines.append(
                f"{printable_name(entry.path)}  {entry.stat.st_size}" if is_file else entry.about
            )
    return "\n".join(lines) or "(no files)"


def _encoded(content: str) -> bytes:
    if len(content) > MAX_WRITE_CHARS:
        raise ToolError(f"{len(content)} characters are too many; at most {MAX_WRITE_CHARS}")
    return content.encode("utf-8", "replace")


def _left_to_replace(text: str, old: str, new: str) -> bool:
    """Return whether ``old`` occurs outside ``new``, so that the edit has not happened yet."""
    within = text.count(new) * new.count(old) if new else 0
    return text.count(old) > within


def _refuse_unnameable(path: str) -> None:
    """Raise for an impossible path: one with a NUL or a lone surrogate."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ToolError(f"{path!r} is not a path") from None
    if "\0" in path:
        raise ToolError(f"{path!r} is not a path")
