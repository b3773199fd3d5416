"""File tools over one agent's workspace.

Writing is confined to the workspace: relative paths only, no ``..``, no way out by a symlink.
Reading goes also to read-only places: other agents' workspaces as ``peers/<name>/…`` and context
paths by their absolute names. A file is replaced as a whole (temp → rename), so that an immediate
stop leaves either the old file or the new. The disk is touched in worker threads: a slow one can't
hold up other agents.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from anyio import to_thread

from nb_agents.tools.base import Tool, ToolError, is_repeated

__all__ = ["Workspace", "list_files"]

MAX_WRITE_CHARS = 5_000_000
MAX_READ_CHARS = 50_000
MAX_READ_BYTES = 20_000_000
MAX_LISTED = 500
_BINARY_PROBE_BYTES = 8000
"""A NUL so early says binary. Source: git's buffer_is_binary."""
PEERS = "peers"
_TEMP = ".nb_agents.tmp"


def list_files(root: Path, limit: int | None = None) -> list[tuple[str, int]]:
    """List the files below a directory, without following symlinks.

    Args:
        root: The directory; one that does not exist has no files.
        limit: Stop after so many; None means all.

    Returns:
        (relative path with forward slashes, size in bytes), sorted within each directory.
    """
    found: list[tuple[str, int]] = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if name.endswith(_TEMP) or path.is_symlink():
                continue
            try:
                size = path.stat().st_size
            except OSError:  # deleted since the directory was read
                continue
            found.append((path.relative_to(root).as_posix(), size))
            if limit is not None and len(found) >= limit:
                return found
    return found


class Workspace:
    """The files that an agent may see and change.

    Args:
        root: Its own directory; made if it is missing.
        peers: Other agents' workspaces by the name that they have here, read-only.
        context: Files and directories that may be read, absolute.
    """

    def __init__(
        self,
        root: Path,
        peers: Mapping[str, Path] | None = None,
        context: Sequence[Path] = (),
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root.resolve()
        self._peers = {name: path.resolve() for name, path in (peers or {}).items()}
        self._context = [path.resolve() for path in context]

    def tools(self) -> list[Tool]:
        """The tools over this workspace."""
        functions = (
            self.list_files,
            self.read_file,
            self.write_file,
            self.edit_file,
            self.delete_file,
        )
        return [Tool(function) for function in functions]

    async def list_files(self, path: str = ".") -> str:
        """List files with their sizes in bytes.

        Args:
            path: A directory of your workspace, ``peers`` or ``peers/<name>`` for another agent's
                workspace, or a context path.
        """
        if PurePosixPath(path).parts == (PEERS,):
            return "\n".join(f"{PEERS}/{name}/" for name in self._peers) or "(no other agents)"
        root = self._readable(path)
        if root.is_file():
            return f"{path}  {root.stat().st_size}"
        if not root.is_dir():
            raise ToolError(f"{path!r} is not a directory")
        files = await to_thread.run_sync(list_files, root, MAX_LISTED)
        more = "\n(more not listed)" if len(files) == MAX_LISTED else ""
        return "\n".join(f"{name}  {size}" for name, size in files) + more or "(no files)"

    async def read_file(self, path: str, offset: int = 0) -> str:
        """Read a text file.

        Args:
            path: A file of your workspace, ``peers/<name>/<file>`` for another agent's, or a file
                below a context path.
            offset: Character to start from, for files too long to be read at once.
        """
        target = self._readable(path)
        if not target.is_file():
            raise ToolError(f"there is no file {path!r}")
        data = await to_thread.run_sync(_read, target, path)
        if b"\0" in data[:_BINARY_PROBE_BYTES]:
            raise ToolError(f"{path!r} is a binary file of {len(data)} bytes")
        text = data.decode("utf-8", errors="replace")
        part = text[max(offset, 0) : max(offset, 0) + MAX_READ_CHARS]
        end = max(offset, 0) + len(part)
        return part + (f"\n[cut; go on with offset={end}]" if end < len(text) else "")

    async def write_file(self, path: str, content: str) -> str:
        """Write a text file into your workspace, replacing one of that name.

        Args:
            path: Relative to your workspace.
            content: The whole text.
        """
        if len(content) > MAX_WRITE_CHARS:
            raise ToolError(f"{len(content)} characters are too many; at most {MAX_WRITE_CHARS}")
        target = self._writable(path)
        await to_thread.run_sync(_replace, target, content)
        return f"Wrote {path} ({target.stat().st_size} bytes)."

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one passage of a file in your workspace.

        Args:
            path: Relative to your workspace.
            old: The passage as it stands; it must occur exactly once.
            new: What to put there.
        """
        target = self._writable(path)
        if not target.is_file():
            raise ToolError(f"there is no file {path!r}")
        try:
            text = (await to_thread.run_sync(_read, target, path)).decode("utf-8")
        except UnicodeDecodeError:
            # Read with replacement and written back, its other bytes would be lost.
            raise ToolError(f"{path!r} is not UTF-8 text and can't be edited") from None
        if is_repeated() and new in text and not _left_to_replace(text, old, new):
            return f"Edited {path}."
        if not old or text.count(old) != 1:
            raise ToolError(f"`old` occurs {text.count(old) if old else 0} times, not once")
        text = text.replace(old, new)
        if len(text) > MAX_WRITE_CHARS:
            raise ToolError(f"{len(text)} characters are too many; at most {MAX_WRITE_CHARS}")
        await to_thread.run_sync(_replace, target, text)
        return f"Edited {path}."

    async def delete_file(self, path: str) -> str:
        """Delete a file of your workspace.

        Args:
            path: Relative to your workspace.
        """
        target = self._writable(path)
        if is_repeated() and not target.exists():
            return f"Deleted {path}."
        if not target.is_file():
            raise ToolError(f"there is no file {path!r}")
        target.unlink()
        return f"Deleted {path}."

    def _writable(self, path: str) -> Path:
        parts = self._relative_parts(path)
        if parts[:1] == (PEERS,) and self._peers:
            raise ToolError("other agents' files can only be read")
        # The parent is resolved and the last name is not followed: a symlink can't lead out, and
        # replacing or deleting one touches the link alone.
        parent = _resolve(self._root.joinpath(*parts[:-1]), path)
        if not parent.is_relative_to(self._root):
            raise ToolError(f"{path!r} leads out of your workspace")
        target = parent / parts[-1]
        if target.is_symlink():
            raise ToolError(f"{path!r} is a symlink; choose another name")
        return target

    def _readable(self, path: str) -> Path:
        _refuse_unnameable(path)
        if os.path.isabs(path):
            target = _resolve(Path(path), path)
            if any(target.is_relative_to(root) for root in [*self._context, self._root]):
                return target
            raise ToolError(f"{path!r} is not below your workspace or a context path")
        parts = () if path in ("", ".", "./") else self._relative_parts(path)
        if parts[:1] == (PEERS,) and len(parts) > 1 and parts[1] in self._peers:
            root, parts = self._peers[parts[1]], parts[2:]
        else:
            root = self._root
        target = _resolve(root.joinpath(*parts), path)
        if not target.is_relative_to(root):
            raise ToolError(f"{path!r} leads out of the workspace")
        return target

    def _relative_parts(self, path: str) -> tuple[str, ...]:
        _refuse_unnameable(path)
        pure = PurePosixPath(path.replace("\\", "/"))
        if pure.is_absolute() or Path(path).is_absolute():
            raise ToolError(f"{path!r} is not a relative path")
        if not pure.parts or ".." in pure.parts:
            raise ToolError(f"{path!r} is not a path inside your workspace")
        return pure.parts


def _left_to_replace(text: str, old: str, new: str) -> bool:
    """Whether ``old`` occurs elsewhere than in ``new``: then the edit has not happened."""
    within = text.count(new) * new.count(old) if new else 0
    return text.count(old) > within


def _refuse_unnameable(path: str) -> None:
    """Refuse what no file can be named: a NUL, or half a surrogate pair."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ToolError(f"{path!r} is not a path") from None
    if "\0" in path:
        raise ToolError(f"{path!r} is not a path")


def _resolve(target: Path, path: str) -> Path:
    try:
        return target.resolve()
    except (OSError, RuntimeError):  # RuntimeError: pathlib's word for a loop of symlinks
        raise ToolError(f"{path!r} leads nowhere") from None


def _read(target: Path, path: str) -> bytes:
    if target.stat().st_size > MAX_READ_BYTES:
        raise ToolError(f"{path!r} is larger than {MAX_READ_BYTES} bytes")
    return target.read_bytes()


def _replace(target: Path, content: str) -> None:
    temp = target.with_name(f".{target.name}{_TEMP}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temp.unlink(missing_ok=True)
        # "x" makes a file of its own: a symlink of that name would lead out of the workspace.
        with open(temp, "xb") as file:
            file.write(content.encode("utf-8", "replace"))
        os.replace(temp, target)
    except OSError as exc:
        with suppress(OSError):  # the name may be what was refused
            temp.unlink(missing_ok=True)
        raise ToolError(f"the file can't be written: {exc.strerror}") from exc
