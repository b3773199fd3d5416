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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from operator import attrgetter, methodcaller
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import TEMP, RefusedError, printable_name
from nb_agents.session.copying import copy_bytes

SNAPSHOTS = "snapshots"
HELD = PurePosixPath(SNAPSHOTS, "held")
"""Where what the person's own files hold is while a turn works, in its session."""
LIMIT_BYTES = 100_000_000
"""Size over which a file is not kept."""

_FULL_AFTER = 32
"""Trees that may build on one another before one is written whole."""
_MAX_DEPTH = 100
_RACY_NS = 20_000_000
"""Age below which a file's time can't tell that it stays the same: clocks of file systems tick."""
_PIECE = 1_000_000
_PART = 250
"""Files that one thread writes before it looks for more."""
_WRITERS = 2
LeavesOut = Callable[[str, Collection[str]], Collection[str]]
"""Given a directory's prefix and the names there, returns those that are not kept."""

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


class _Look(NamedTuple):
    """The status of a path: while it stays the same, so does what a file holds."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


_Looks = dict[str, tuple[int, int, int, int, int]]
"""The looks of a directory's entries by name; plain tuples, as millions of them are compared."""
_RACY: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
"""In the place of one that is too young to tell."""


@dataclass
class Index:
    """What is known of a workspace, so that only what changed is read.

    Attributes:
        tree: What it held when it was kept last.
        looks: By directory (its path and "/", or ""), the status that each entry had then.
        copied: Files that were laid as `tree` says and of which only its times are known.
        id: The tree's id, or "" before the first.
        depth: How many trees it builds on.
    """

    tree: dict[str, KeptPath] = field(default_factory=dict)
    looks: dict[str, _Looks] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()
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
        place: Where they are in it.

    Attributes:
        is_closed: Whether nothing more may be kept.
    """

    def __init__(
        self, session: Path, limit: int = LIMIT_BYTES, place: str | PurePosixPath = SNAPSHOTS
    ) -> None:
        self.path = session / place
        self.is_closed = False
        self._root = session / SNAPSHOTS
        self._limit = limit
        self._made: set[str] = set()

    def index(self, tree: str) -> Index:
        """Return the index of a workspace that holds what a tree says, as after a copy."""
        found = self.tree(tree)
        return Index(found, {}, frozenset(found), tree, _FULL_AFTER)

    def keep(
        self,
        workspace: Path,
        index: Index,
        only: Iterable[str] | None = None,
        leaves_out: LeavesOut | None = None,
    ) -> Kept:
        """Keep a workspace as it is.

        Args:
            workspace: The directory.
            index: What is known of it; it is not changed.
            only: The paths that may have changed; None means any.
            leaves_out: What of it is left out, with all that is below; by default nothing.

        Raises:
            OSError: It can't be read, or a write failed.
        """
        paths = None if only is None else with_parents(only)
        if paths is None:
            return self._keep_all(workspace, index, leaves_out)
        now = Index(dict(index.tree), dict(index.looks), index.copied.difference(paths), index.id)
        for path in paths:
            above, slash, name = path.rpartition("/")
            if name in now.looks.get(folder := above + slash, ()):  # learned by the next walk
                now.looks[folder] = {**now.looks[folder], name: _RACY}
            now.tree.pop(path, None)
            if (entry := self.entry(workspace, path)) is not None:
                now.tree[path] = entry
        return self._kept(index, now, paths)

    def entry(self, root: Path, path: str, *, writes: bool = True) -> KeptPath | None:
        """Return what is at a path below a directory, or None, and keep a file that is there.

        Args:
            root: The directory.
            path: The path; it is not followed as a link.
            writes: Whether to keep it.
        """
        try:
            found = os.lstat(root / path)
            if stat.S_ISREG(found.st_mode):
                with Directory.at(root) as opened, opened.open(path, follow=False) as file:
                    return self._file(file.fileno(), writes=writes)
            return self._other(_Look._make(_look(found)), partial(os.readlink, root / path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (RefusedError, PermissionError) as exc:
            return KeptPath("x", 0, exc.strerror or "")

    def look(self, workspace: Path) -> dict[str, KeptPath]:
        """Return what a workspace holds now, without keeping it; links are not followed."""
        found: dict[str, KeptPath] = {}
        for each in _walk(workspace):
            if each.why_closed:
                found[each.prefix[:-1]] = KeptPath("x", 0, each.why_closed)
            for name, look in each.looks.items():
                if not name.endswith(TEMP):
                    read = self._read(name, each.folder, _Look._make(look), writes=False)
                    found[each.prefix + name] = read
        return found

    def _keep_all(self, workspace: Path, index: Index, leaves_out: LeavesOut | None) -> Kept:
        now, names = Index(dict(index.tree), {}, frozenset(), index.id), dict[str, None]()
        oldest_racy = time.time_ns() - _RACY_NS
        for each in _walk(workspace, leaves_out):
            before = index.looks.get(each.prefix, {})
            if each.looks == before:  # compared as a whole: most directories are as they were
                now.looks[each.prefix] = before
            else:
                self._keep_folder(each, index, now, names, oldest_racy)
            if each.why_closed:
                names[each.prefix[:-1]] = None
                now.tree[each.prefix[:-1]] = KeptPath("x", 0, each.why_closed)
        for prefix in index.looks.keys() - now.looks.keys():
            _forget(index.looks[prefix], prefix, now, names)
        if index.copied:  # no walk has seen what is gone of them
            there = {prefix + name for prefix, looks in now.looks.items() for name in looks}
            _forget(index.tree.keys() - there, "", now, names)
        return self._kept(index, now, names)

    def _keep_folder(
        self, each: _Folder, index: Index, now: Index, names: dict[str, None], oldest: int
    ) -> None:
        """Read what is new or different in a directory, and mark what is too young to tell."""
        before, looks = index.looks.get(each.prefix, {}), dict(each.looks)
        for name, found in each.looks.items():
            path = each.prefix + name
            if found == before.get(name) or name.endswith(TEMP):
                continue
            look, known = _Look._make(found), index.tree.get(path)
            if known is None or path not in index.copied or not _is_copy(known, look):
                now.tree[path] = self._read(name, each.folder, look)
                names[path] = None
            if max(look.mtime_ns, look.ctime_ns) >= oldest:
                looks[name] = _RACY
        now.looks[each.prefix] = looks
        _forget(before.keys() - looks.keys(), each.prefix, now, names)

    def _read(self, name: str, folder: int, found: _Look, *, writes: bool = True) -> KeptPath:
        if not stat.S_ISREG(found.mode):
            return self._other(found, partial(os.readlink, name, dir_fd=folder))
        if found.size > self._limit:
            return _too_large(found)
        try:
            file = os.open(name, _READ, dir_fd=folder)
        except OSError as exc:
            return KeptPath("x", 0, f"can't be read: {exc.strerror}", found.size)
        try:
            return self._file(file, writes=writes)
        finally:
            os.close(file)

    def _other(self, found: _Look, target: Callable[[], str]) -> KeptPath:
        mode = stat.S_IMODE(found.mode) & 0o777
        if stat.S_ISDIR(found.mode):
            return KeptPath("d", mode)
        if stat.S_ISLNK(found.mode):
            return KeptPath("l", mode, _quoted(target()))
        return KeptPath("x", mode, _SKIPPED.get(stat.S_IFMT(found.mode), "a device"))

    def _file(self, file: int, *, writes: bool = True) -> KeptPath:
        """Return the entry of an open file, and keep the file if ``writes`` is set."""
        found = _Look._make(_look(os.fstat(file)))
        if not stat.S_ISREG(found.mode):
            return self._other(found, lambda: "")
        if found.size > self._limit:
            return _too_large(found)
        mode, mtime = stat.S_IMODE(found.mode) & 0o777, found.mtime_ns
        data = os.read(file, _PIECE + 1)
        if len(data) <= _PIECE and len(data) >= found.size:
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

    def _kept(self, index: Index, now: Index, names: Iterable[str]) -> Kept:
        """Write the tree of what is known now, where these paths may differ from before."""
        old, tree = index.tree, now.tree
        put = {name: tree[name] for name in names if name in tree and old.get(name) != tree[name]}
        gone = [name for name in names if name in old and name not in tree]
        if index.id and not put and not gone:
            return Kept(replace(now, id=index.id, depth=index.depth), (), ())
        is_full = not index.id or index.depth >= _FULL_AFTER
        content = {
            "parent": "" if is_full else index.id,
            "set": {_quoted(path): [*each] for path, each in (tree if is_full else put).items()},
            "gone": [] if is_full else [*map(_quoted, gone)],
        }
        data = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
        name = blake2b(data, digest_size=20).hexdigest()
        self._write(self.path / "trees" / name, data)
        now = replace(now, id=name, depth=0 if is_full else index.depth + 1)
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
        if self.is_closed:
            raise RefusedError("is closed")
        if str(path) not in self._made:
            if not self._made:  # readable for all, a file of the person's may not be so here
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(parents=True, exist_ok=True)
            self._made.add(str(path))
        return path

    def write(self, tree: Tree) -> str:
        """Write a tree, and return its id."""
        return self._kept(Index(), Index(dict(tree)), tree).known.id

    def take(self, entry: KeptPath | None, store: SnapshotStore) -> None:
        """Keep what another store keeps of a file."""
        if entry is None or entry.kind != "f" or os.path.exists(place := self._blob(entry)):
            return
        self._folder(Path(place).parent)
        try:
            os.link(store._blob(entry), place)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            self._write(Path(place), store.read(entry))

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
            except FileNotFoundError:
                name = self._name_of(f"{self.path}/trees/{tree}")
                raise RefusedError(f"the session lacks {name}") from None
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
        return Path(self._blob(entry)).read_bytes()

    def _blob(self, entry: KeptPath) -> str:
        if not _ID.fullmatch(entry.value):
            raise RefusedError("is no kept file")
        return f"{self.path}/files/{entry.value[:2]}/{entry.value[2:]}"

    def _name_of(self, path: str) -> str:
        """Return the name of a part of the store in the session's directory."""
        return os.path.relpath(path, self._root.parent)

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
            RefusedError: The tree or a file of it is missing or damaged.
            OSError: A write failed.
        """
        entries = self.tree(tree)
        _check(entries)
        lacking: list[str] = []
        target.mkdir()
        root = os.fspath(target)
        folders = [path for path, each in entries.items() if each.kind == "d"]
        for path in sorted(folders):
            os.mkdir(f"{root}/{path}", 0o700)
        self._lay_files(root, [(path, each) for path, each in entries.items() if each.kind == "f"])
        for path, each in entries.items():
            if each.kind == "x" and not (now and _take_large(now / path, target / path, each)):
                lacking.append(f"{printable_name(path)} ({each.value})")
        # After all files, so that none is written through one.
        for path, each in entries.items():
            if each.kind == "l":
                os.symlink(link_text(each), f"{root}/{path}")
        for path in sorted(folders, reverse=True):
            os.chmod(f"{root}/{path}", entries[path].mode & 0o777)
        return tuple(lacking)

    def _lay_files(self, root: str, files: Sequence[tuple[str, KeptPath]]) -> None:
        """Write files, some at a time: nearly all that takes time is the file system's work."""

        def lay(part: Sequence[tuple[str, KeptPath]]) -> None:
            for path, entry in part:
                self._lay_file(f"{root}/{path}", entry)

        parts = [files[start : start + _PART] for start in range(0, len(files), _PART)]
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(lay, parts):
                pass

    def _lay_file(self, place: str, entry: KeptPath) -> None:
        blob = self._blob(entry)
        try:
            kept = os.open(blob, _READ)
        except FileNotFoundError:
            raise RefusedError(f"the session lacks {self._name_of(blob)}") from None
        try:
            file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                if left := copy_bytes(kept, file, entry.size):
                    name = self._name_of(blob)
                    raise RefusedError(f"{name} is cut short, by {left} of its {entry.size} bytes")
                os.fchmod(file, entry.mode & 0o777)
                os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
            finally:
                os.close(file)
        finally:
            os.close(kept)


class _Folder(NamedTuple):
    """A directory that a walk came to.

    Attributes:
        folder: Its descriptor, until the walk goes on; -1 where it could not be opened.
        prefix: Its path and "/", or "".
        looks: The status of each entry.
        why_closed: Why its entries are not known, or "".
    """

    folder: int
    prefix: str
    looks: _Looks
    why_closed: str = ""


_look = attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
_status = methodcaller("stat", follow_symlinks=False)


def _walk(root: Path, leaves_out: LeavesOut | None = None) -> Iterator[_Folder]:
    """Yield a directory and those below it, no link followed, each after the one that it is in.

    Those on the way to a directory are open meanwhile, and no others, as one may hold thousands.
    """
    yield from _walk_in(_Folder(os.open(root, _LIST), "", {}), leaves_out)


def _walk_in(opened: _Folder, leaves_out: LeavesOut | None) -> Iterator[_Folder]:
    try:
        looks = _looks(opened.folder)
        if leaves_out is not None:
            for left_out in leaves_out(opened.prefix, looks.keys()):
                del looks[left_out]
        yield opened._replace(looks=looks)
        inner = [name for name, look in looks.items() if stat.S_ISDIR(look[0])]
        for name in inner:
            found = None if name.endswith(TEMP) else _opened(name, opened)
            if found is not None and found.folder < 0:
                yield found
            elif found is not None:
                yield from _walk_in(found, leaves_out)
    finally:
        os.close(opened.folder)


def link_text(entry: KeptPath) -> str:
    """Return where a kept link leads."""
    return _unquoted(entry.value)


def measure(root: Path, leaves_out: LeavesOut) -> tuple[int, int]:
    """Return how many paths are below a directory, and the bytes of its files."""
    looks = [look for each in _walk(root, leaves_out) for look in each.looks.values()]
    return len(looks), sum(look[1] for look in looks if stat.S_ISREG(look[0]))


def _looks(folder: int) -> _Looks:
    """Return the status of each entry of an open directory, without a step in Python for each."""
    with os.scandir(folder) as scanned:
        entries = [*scanned]
    try:
        found = [*map(_look, map(_status, entries))]
        return dict(zip([entry.name for entry in entries], found, strict=True))
    except FileNotFoundError:  # one is gone since; the rest are there
        looks: _Looks = {}
        for entry in entries:
            with suppress(FileNotFoundError):
                looks[entry.name] = _look(_status(entry))
        return looks


def _opened(name: str, above: _Folder) -> _Folder | None:
    """Open a directory in an open one; None where it is none any more."""
    prefix = f"{above.prefix}{name}/"
    if prefix.count("/") > _MAX_DEPTH:
        return _Folder(-1, prefix, {}, "a directory too far down")
    try:
        return _Folder(os.open(name, _LIST, dir_fd=above.folder), prefix, {})
    except PermissionError:
        return _Folder(-1, prefix, {}, "a directory that can't be read")
    except (FileNotFoundError, NotADirectoryError):
        return None  # replaced meanwhile: whoever did that writes, and is looked after then


def _forget(gone: Iterable[str], prefix: str, now: Index, names: dict[str, None]) -> None:
    """Drop paths that are no longer there from a tree."""
    for name in gone:
        if now.tree.pop(prefix + name, None) is not None:
            names[prefix + name] = None


def _is_copy(known: KeptPath, look: _Look) -> bool:
    """Return whether a path of which only the times were known is as it was."""
    here = stat.S_IMODE(look.mode) & 0o777, look.size, look.mtime_ns
    return stat.S_ISREG(look.mode) and known[:2] + known[3:] == ("f", *here)


def _too_large(found: _Look) -> KeptPath:
    mode = stat.S_IMODE(found.mode) & 0o777
    why = f"too large: {found.size / 1e6:.0f} MB"
    return KeptPath("x", mode, why, found.size, found.mtime_ns)


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


def with_parents(paths: Iterable[str]) -> list[str] | None:
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
