"""How workspaces are kept: what each file held at the moments at which a writer began.

    <session>/snapshots/
      files/ab/cdef…        what a file held, by its digest
      trees/<digest>        what a workspace held: the changes to another tree, or all of it

A tree names each file, link and directory below a workspace with its permissions, whatever it is
called and whichever files git ignores. No link is followed. What is neither is skipped, and a file
over the limit is named as not kept.

Writing is aside and renamed, so that a kill leaves whole objects or none. Git is not used: it drops
empty directories, skips what is ignored, stops at nested repositories, and runs filters and hooks.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import TEMP, RefusedError, printable_name

SNAPSHOTS = "snapshots"
LIMIT_BYTES = 100_000_000
"""Size over which a file is not kept."""

_FULL_AFTER = 32
"""Trees that may build on one another before one is written whole."""
_MAX_DEPTH = 100
_RACY_NS = 20_000_000
"""Age below which a file's time can't tell that it stays the same: clocks of file systems tick."""
_PIECE = 1_000_000
_LIST = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_ID = re.compile("[0-9a-f]{40}")
_ODD = re.compile("[\udc80-\udcff%]")
_SKIPPED = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class KeptPath(NamedTuple):
    """What a tree says of a path.

    Attributes:
        kind: "f" a file, "d" a directory, "l" a link, "x" what is not kept.
        mode: Its permissions.
        value: Of a file the digest of what it holds, of a link its text, else why it is not kept.
        size: Bytes of a file.
        mtime_ns: When it was changed last, in nanoseconds.
    """

    kind: str
    mode: int
    value: str = ""
    size: int = 0
    mtime_ns: int = 0


Tree = Mapping[str, KeptPath]


_Look = tuple[int, int, int, int, int]
"""Mode, size, both times and inode of a file: while they stay the same, so does what it holds."""
_RACY: _Look = (0, 0, 0, 0, 0)
"""In the place of one that is too young to tell."""


@dataclass
class Index:
    """What is known of a workspace, so that only what changed is read.

    Attributes:
        tree: What it held when it was kept last.
        looks: For each file the status that it had then; None where only the times of `tree` are
            known.
        id: The tree's id, or "" before the first.
        depth: How many trees it builds on.
    """

    tree: dict[str, KeptPath] = field(default_factory=dict)
    looks: dict[str, _Look | None] = field(default_factory=dict)
    id: str = ""
    depth: int = 0


class Kept(NamedTuple):
    """A workspace that was kept.

    Attributes:
        known: What is known of it now.
        changed: Paths that are new, different or gone since it was kept before, sorted.
        not_kept: What of that the tree lacks, in words.
    """

    known: Index
    changed: tuple[str, ...]
    not_kept: tuple[str, ...]


class SnapshotStore:
    """The kept files of a session. Methods block.

    Args:
        session: The session's directory.
        limit: Bytes over which a file is not kept.
    """

    def __init__(self, session: Path, limit: int = LIMIT_BYTES) -> None:
        self.path = session / SNAPSHOTS
        self._limit = limit
        self._made: set[str] = set()

    def index(self, tree: str) -> Index:
        """Return the index of a workspace that holds what a tree says, as after a copy."""
        found = self.tree(tree)
        return Index(found, dict.fromkeys(found), tree, _FULL_AFTER)

    def keep(self, workspace: Path, index: Index, only: Iterable[str] | None = None) -> Kept:
        """Keep a workspace as it is.

        Args:
            workspace: The directory.
            index: What is known of it; it is not changed.
            only: The paths that may have changed; None means any.

        Raises:
            OSError: It can't be read, or a write failed.
        """
        paths = None if only is None else _with_parents(only)
        if paths is None or not index.id:
            return self._keep_all(workspace, index)
        tree, looks = dict(index.tree), dict(index.looks)
        with Directory.at(workspace) as root:
            for path in paths:
                self._look_at(workspace, root, path, tree, looks)
        return self._kept(index, tree, looks, paths)

    def _look_at(
        self,
        workspace: Path,
        root: Directory,
        path: str,
        tree: dict[str, KeptPath],
        looks: dict[str, _Look | None],
    ) -> None:
        tree.pop(path, None)
        looks.pop(path, None)
        try:
            found = os.lstat(workspace / path)
            if stat.S_ISREG(found.st_mode):
                with root.open(path, follow=False) as file:
                    tree[path] = self._file(file.fileno())
            else:
                tree[path] = self._other(found, lambda: os.readlink(workspace / path))
        except (FileNotFoundError, NotADirectoryError):
            return
        except RefusedError as exc:
            tree[path] = KeptPath("x", 0, exc.strerror or "")

    def look(self, workspace: Path) -> dict[str, KeptPath]:
        """Return what a workspace holds now, without keeping it; links are not followed."""
        found: dict[str, KeptPath] = {}
        for path, name, folder, status in _walk(workspace):
            found[path] = self._read(name, folder, status, writes=False)
        return found

    def _keep_all(self, workspace: Path, index: Index) -> Kept:
        old, before = index.tree, index.looks
        tree: dict[str, KeptPath] = {}
        looks: dict[str, _Look | None] = {}
        put: list[str] = []
        oldest_racy = time.time_ns() - _RACY_NS
        for path, name, folder, found in _walk(workspace):
            mtime, ctime = found.st_mtime_ns, found.st_ctime_ns
            look = (found.st_mode, found.st_size, mtime, ctime, found.st_ino)
            known = old.get(path)
            if known is None or not (
                before.get(path) == look or _is_copy(known, before, path, look)
            ):
                fresh = self._read(name, folder, found)
                if fresh != known:
                    put.append(path)
                known = fresh
            tree[path] = known
            looks[path] = look if mtime < oldest_racy and ctime < oldest_racy else _RACY
        gone = old.keys() - tree.keys() if len(old) != len(tree) or put else ()
        return self._kept(index, tree, looks, [*put, *gone])

    def _read(
        self, name: str, folder: int, found: os.stat_result, *, writes: bool = True
    ) -> KeptPath:
        if not stat.S_ISREG(found.st_mode):
            return self._other(found, lambda: os.readlink(name, dir_fd=folder))
        if found.st_size > self._limit:
            return _too_large(found)
        try:
            file = os.open(name, _READ, dir_fd=folder)
        except OSError as exc:
            return KeptPath("x", 0, f"can't be read: {exc.strerror}", found.st_size)
        try:
            return self._file(file, writes=writes)
        finally:
            os.close(file)

    def _other(self, found: os.stat_result, target: object) -> KeptPath:
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISDIR(found.st_mode):
            return KeptPath("d", mode)
        if stat.S_ISLNK(found.st_mode):
            return KeptPath("l", mode, _quoted(target()))  # type: ignore[operator]
        return KeptPath("x", mode, _SKIPPED.get(stat.S_IFMT(found.st_mode), "a device"))

    def _file(self, file: int, *, writes: bool = True) -> KeptPath:
        """Return the entry of an open file, and keep the file if ``writes`` is set."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return self._other(found, lambda: "")
        if found.st_size > self._limit:
            return _too_large(found)
        mode, mtime = stat.S_IMODE(found.st_mode) & 0o777, found.st_mtime_ns
        data = os.read(file, _PIECE + 1)
        if len(data) <= _PIECE and len(data) >= found.st_size:
            name = blake2b(data, digest_size=20).hexdigest()
            if writes:
                self._write(self.path / "files" / name[:2] / name[2:], data)
            return KeptPath("f", mode, name, len(data), mtime)
        return self._large(file, data, mode, mtime, writes=writes)

    def _large(self, file: int, data: bytes, mode: int, mtime: int, *, writes: bool) -> KeptPath:
        digest, size = blake2b(digest_size=20), 0
        folder = self._folder(self.path / "files") if writes else Path(os.devnull)
        temp = folder / f".{secrets.token_hex(8)}{TEMP}" if writes else folder
        try:
            with open(temp, "wb") as out:
                while data and size <= self._limit:
                    digest.update(data)
                    out.write(data)
                    size += len(data)
                    data = os.read(file, _PIECE)
            name = digest.hexdigest()
            if writes:
                os.replace(temp, self._folder(folder / name[:2]) / name[2:])
        except BaseException:
            if writes:
                temp.unlink(missing_ok=True)
            raise
        return KeptPath("f", mode, name, size, mtime)

    def _kept(
        self,
        index: Index,
        tree: dict[str, KeptPath],
        looks: dict[str, _Look | None],
        names: Iterable[str],
    ) -> Kept:
        old = index.tree
        put = {name: tree[name] for name in names if name in tree and old.get(name) != tree[name]}
        gone = [name for name in names if name in old and name not in tree]
        if index.id and not put and not gone:
            return Kept(Index(tree, looks, index.id, index.depth), (), ())
        is_full = not index.id or index.depth >= _FULL_AFTER
        content = {
            "parent": "" if is_full else index.id,
            "set": {_quoted(path): [*each] for path, each in (tree if is_full else put).items()},
            "gone": [] if is_full else [*map(_quoted, gone)],
        }
        data = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
        name = blake2b(data, digest_size=20).hexdigest()
        self._write(self.path / "trees" / name, data)
        now = Index(tree, looks, name, 0 if is_full else index.depth + 1)
        return Kept(now, tuple(sorted([*put, *gone])), _not_kept(put))

    def _write(self, place: Path, data: bytes) -> None:
        if os.path.exists(place):
            return
        temp = self._folder(place.parent) / f".{secrets.token_hex(8)}{TEMP}"
        try:
            with open(temp, "wb") as file:
                file.write(data)
            os.replace(temp, place)
        except BaseException:
            with suppress(OSError):
                temp.unlink()
            raise

    def _folder(self, path: Path) -> Path:
        if str(path) not in self._made:
            path.mkdir(parents=True, exist_ok=True)
            self._made.add(str(path))
        return path

    def tree(self, tree: str) -> dict[str, KeptPath]:
        """Return what a tree says.

        Raises:
            OSError: It is missing or damaged.
        """
        changes = list[dict[str, Any]]()
        while tree:
            if not _ID.fullmatch(tree) or len(changes) > 10_000:
                raise RefusedError("is no tree of files")
            try:
                content = json.loads((self.path / "trees" / tree).read_bytes())
                changes.append(content)
                tree = content["parent"]
            except (ValueError, KeyError, TypeError) as exc:
                raise RefusedError(f"is damaged ({type(exc).__name__})") from None
        found: dict[str, KeptPath] = {}
        for content in reversed(changes):
            for path in content["gone"]:
                found.pop(_unquoted(path), None)
            found.update(
                {_unquoted(path): KeptPath(*each) for path, each in content["set"].items()}
            )
        return found

    def read(self, entry: KeptPath) -> bytes:
        """Return what a kept file held."""
        return self._blob(entry).read_bytes()

    def _blob(self, entry: KeptPath) -> Path:
        if not _ID.fullmatch(entry.value):
            raise RefusedError("is no kept file")
        return self.path / "files" / entry.value[:2] / entry.value[2:]

    def lay(self, tree: str, target: Path, now: Path | None = None) -> tuple[str, ...]:
        """Write a workspace as a tree says.

        Args:
            tree: The tree.
            target: The directory, which is created.
            now: The workspace as it is now: a file that was too large to be kept and has not
                changed since is taken from there.

        Returns:
            What is not there as it was, in words.

        Raises:
            OSError: The tree or a file of it is missing, or a write failed.
        """
        entries = self.tree(tree)
        _check(entries)
        lacking: list[str] = []
        target.mkdir()
        root = os.fspath(target)
        folders = [path for path, each in entries.items() if each.kind == "d"]
        for path in sorted(folders):
            os.mkdir(f"{root}/{path}", 0o700)
        for path, each in entries.items():
            if each.kind == "f":
                self._lay_file(f"{root}/{path}", each)
            elif each.kind == "x" and not (now and _take_large(now / path, target / path, each)):
                lacking.append(f"{printable_name(path)} ({each.value})")
        # After all files, so that none is written through one.
        for path, each in entries.items():
            if each.kind == "l":
                os.symlink(_unquoted(each.value), f"{root}/{path}")
        for path in sorted(folders, reverse=True):
            os.chmod(f"{root}/{path}", entries[path].mode & 0o777)
        return tuple(lacking)

    def _lay_file(self, place: str, entry: KeptPath) -> None:
        with open(self._blob(entry), "rb", buffering=0) as kept:
            file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                while data := kept.read(_PIECE):
                    os.write(file, data)
                os.fchmod(file, entry.mode & 0o777)
                os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
            finally:
                os.close(file)


def _walk(root: Path) -> Iterator[tuple[str, str, int, os.stat_result]]:
    """Yield what is below a directory: its path, its name, the folder's descriptor, its status."""
    stack = [(os.open(root, _LIST), "")]
    try:
        while stack:
            folder, prefix = stack.pop()
            inner: list[tuple[int, str]] = []
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.endswith(TEMP):
                            continue
                        with suppress(FileNotFoundError):
                            found = entry.stat(follow_symlinks=False)
                            path = prefix + entry.name
                            yield path, entry.name, folder, found
                            if stat.S_ISDIR(found.st_mode) and path.count("/") < _MAX_DEPTH:
                                with suppress(PermissionError, NotADirectoryError):
                                    opened = os.open(entry.name, _LIST, dir_fd=folder)
                                    inner.append((opened, f"{path}/"))
            finally:
                os.close(folder)
                stack += inner
    finally:
        for folder, _ in stack:
            os.close(folder)


def _is_copy(known: KeptPath, before: Mapping[str, _Look | None], path: str, look: _Look) -> bool:
    """Return whether a file of which only the times were known is as it was."""
    if known.kind != "f" or path not in before or before[path] is not None:
        return False
    now = stat.S_IMODE(look[0]) & 0o777, look[1], look[2]
    return stat.S_ISREG(look[0]) and (known.mode, known.size, known.mtime_ns) == now


def _too_large(found: os.stat_result) -> KeptPath:
    mode = stat.S_IMODE(found.st_mode) & 0o777
    why = f"too large: {found.st_size / 1e6:.0f} MB"
    return KeptPath("x", mode, why, found.st_size, found.st_mtime_ns)


def _take_large(now: Path, target: Path, entry: KeptPath) -> bool:
    """Copy a file that was not kept, if it is as it was; return whether it is."""
    try:
        found = os.lstat(now)
    except OSError:
        return False
    is_same = (found.st_size, found.st_mtime_ns) == (entry.size, entry.mtime_ns)
    if not stat.S_ISREG(found.st_mode) or not is_same or not entry.mtime_ns:
        return False
    shutil.copy2(now, target, follow_symlinks=False)
    return True


def _not_kept(tree: Tree) -> tuple[str, ...]:
    lost = ((path, each) for path, each in tree.items() if each.kind == "x")
    return tuple(f"{printable_name(path)} ({each.value})" for path, each in lost)


def _with_parents(paths: Iterable[str]) -> list[str] | None:
    """Return paths and the directories above them, outermost first; None if one is unclear."""
    found: dict[str, None] = {}
    for path in paths:
        names = path.split("/")
        if path.startswith("/") or any(name in ("", ".", "..") for name in names):
            return None
        for count in range(1, len(names) + 1):
            found["/".join(names[:count])] = None
    return sorted(found)


def _check(entries: Tree) -> None:
    """Refuse a tree that would write elsewhere: a stranger may have made it."""
    for path in entries:
        above, _, name = path.rpartition("/")
        if (
            name in ("", ".", "..")
            or "\0" in path
            or (above and entries.get(above, _NONE).kind != "d")
        ):
            raise RefusedError(f"names {printable_name(path)!r}, which is no path of a workspace")


_NONE = KeptPath("", 0)


def _quoted(name: str) -> str:
    return _ODD.sub(lambda odd: f"%{ord(odd[0]) & 0xFF:02X}", name)


def _unquoted(text: str) -> str:
    def odd(found: re.Match[str]) -> str:
        byte = int(found[1], 16)
        return chr(0xDC00 | byte) if byte >= 0x80 else chr(byte)

    return re.sub("%([0-9A-F]{2})", odd, text)
