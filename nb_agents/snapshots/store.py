"""Takes snapshots of workspaces: the contents of all files whenever a command or edit starts.

    <session>/snapshots/
      files/ab/cdef…        a blob: the content of a file, by its digest
      trees/<digest>        a tree: all of a workspace, or the changes to another tree

A tree lists every file, link and directory in a workspace with its permissions, including files
that git ignores. Links are not followed. Pipes, sockets and devices are listed as not stored. So
are files above the size limit, and files that would exceed the limit of the whole session.

The journal refers to trees, and trees refer to files and other trees, by the digests of their
contents. Digests are checked on every read, so the authenticated journal covers everything that a
rewind restores.

Files are written under a temporary name and renamed, so a kill leaves no partial ones. Git is not
used: it drops empty directories, skips ignored files, stops at nested repositories, and runs
filters and hooks.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import TEMP, RefusedError
from nb_agents.snapshots.checkout import checkout
from nb_agents.snapshots.index import (
    RACY,
    RACY_NS,
    Index,
    Snapshot,
    is_copy,
    is_folder,
    remove_below,
    remove_paths,
)
from nb_agents.snapshots.objects import PIECE, READ, ObjectStore
from nb_agents.snapshots.quota import NoSpaceError
from nb_agents.snapshots.tree import Tree, TreeEntry, digest_of, not_stored, quoted, with_parents
from nb_agents.snapshots.working_tree import ExcludedNames, Folder, Status, read_status, walk
from nb_agents.unicode import json_text

_FULL_AFTER = 32
"""Maximum number of trees that build on one another. The next tree is written in full."""

_SKIPPED = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class SnapshotStore(ObjectStore):
    """Stores and restores the snapshots of a session. Methods block."""

    def read_index(self, tree: str) -> Index:
        """Return the index of a workspace that was just restored from a tree."""
        tree_entries = self.read_tree(tree)
        return Index(tree_entries, {}, frozenset(tree_entries), tree, _FULL_AFTER)

    def snapshot(
        self,
        workspace: Path,
        index: Index,
        only: Iterable[str] | None = None,
        leaves_out: ExcludedNames | None = None,
    ) -> Snapshot:
        """Store a snapshot of a workspace.

        Args:
            workspace: The directory.
            index: The index of the previous snapshot, which is not modified.
            only: The paths that may have changed. None means any.
            leaves_out: Selects entries to leave out, with everything in them. By default, none.

        Raises:
            NoSpaceError: There is no space for the tree. A file without space is only listed.
            OSError: The workspace can't be read, or a write failed.
        """
        paths = None if only is None else with_parents(only)
        if paths is None:
            return self._snapshot_all(workspace, index, leaves_out)
        return self._snapshot_paths(workspace, index, paths, leaves_out)

    def _snapshot_paths(
        self, workspace: Path, index: Index, paths: list[str], leaves_out: ExcludedNames | None
    ) -> Snapshot:
        now = Index(
            dict(index.entries),
            dict(index.statuses),
            index.checked_out.difference(paths),
            index.tree_id,
        )
        names = dict.fromkeys(paths)
        for path in paths:
            old, entry = now.entries.pop(path, None), self.entry(workspace, path)
            if entry is not None:
                now.entries[path] = entry
                if entry.kind == "l":  # what changed is the link's target, which has another path
                    return self._snapshot_all(workspace, index, leaves_out)
            if is_folder(old) and not is_folder(entry):
                remove_below(f"{path}/", now, names)
            # So that the next walk reads the path again, or notices that it is missing.
            above, slash, name = path.rpartition("/")
            folder = above + slash
            now.statuses[folder] = {**now.statuses.get(folder, {}), name: RACY}
        return self._write_tree(index, now, names)

    def entry(self, root: Path, path: str, *, writes: bool = True) -> TreeEntry | None:
        """Return the entry for a path, and store its content if it is a file.

        Args:
            root: The directory.
            path: The path relative to it. No component may be a link.
            writes: Whether to store the content.

        Returns:
            The entry, or None if the path does not exist.
        """
        try:
            with Directory.at(root, follows_links=False) as opened:
                status = opened.status(path)
                if not stat.S_ISREG(status.st_mode):
                    return self._other_entry(
                        Status._make(read_status(status)), partial(opened.target, path)
                    )
                with opened.open(path, follow=False) as file:
                    return self._blob_entry(file.fileno(), writes=writes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (RefusedError, PermissionError) as exc:
            return TreeEntry("x", 0, exc.strerror or "")

    def scan(self, workspace: Path) -> dict[str, TreeEntry]:
        """Return the current entries of a workspace, without storing anything."""
        entries: dict[str, TreeEntry] = {}
        for each in walk(workspace):
            if each.unreadable:
                entries[each.prefix[:-1]] = TreeEntry("x", 0, each.unreadable)
            for name, look in each.statuses.items():
                if not name.endswith(TEMP):
                    read = self._read_entry(name, each.folder, Status._make(look), writes=False)
                    entries[each.prefix + name] = read
        return entries

    def _snapshot_all(
        self, workspace: Path, index: Index, leaves_out: ExcludedNames | None
    ) -> Snapshot:
        now, names = Index(dict(index.entries), {}, frozenset(), index.tree_id), dict[str, None]()
        oldest_racy = time.time_ns() - RACY_NS
        for each in walk(workspace, leaves_out):
            before = index.statuses.get(each.prefix, {})
            if each.statuses == before:  # one comparison, because most directories are unchanged
                now.statuses[each.prefix] = before
            else:
                self._update_folder(each, index, now, names, oldest_racy)
            if each.unreadable:
                names[each.prefix[:-1]] = None
                now.entries[each.prefix[:-1]] = TreeEntry("x", 0, each.unreadable)
        for prefix in index.statuses.keys() - now.statuses.keys():
            remove_paths(index.statuses[prefix], prefix, now, names)
        if index.checked_out:  # these files have no status in the index that would now be missing
            existing = {prefix + name for prefix, looks in now.statuses.items() for name in looks}
            remove_paths(index.entries.keys() - existing, "", now, names)
        return self._write_tree(index, now, names)

    def _update_folder(
        self, each: Folder, index: Index, now: Index, names: dict[str, None], oldest: int
    ) -> None:
        """Read the new and changed entries of a directory, and mark very recent ones as racy."""
        before, looks = index.statuses.get(each.prefix, {}), dict(each.statuses)
        for name, status_fields in each.statuses.items():
            path = each.prefix + name
            if status_fields == before.get(name) or name.endswith(TEMP):
                continue
            look, entry = Status._make(status_fields), index.entries.get(path)
            if entry is None or path not in index.checked_out or not is_copy(entry, look):
                now.entries[path] = self._read_entry(name, each.folder, look)
                names[path] = None
            if max(look.mtime_ns, look.ctime_ns) >= oldest:
                looks[name] = RACY
        now.statuses[each.prefix] = looks
        remove_paths(before.keys() - looks.keys(), each.prefix, now, names)

    def _read_entry(
        self, name: str, folder: int, status: Status, *, writes: bool = True
    ) -> TreeEntry:
        if not stat.S_ISREG(status.mode):
            return self._other_entry(status, partial(os.readlink, name, dir_fd=folder))
        if status.size > self._limit:
            return _too_large(status)
        try:
            file = os.open(name, READ, dir_fd=folder)
        except OSError as exc:
            return TreeEntry("x", 0, f"can't be read: {exc.strerror}", status.size)
        try:
            return self._blob_entry(file, writes=writes)
        finally:
            os.close(file)

    def _other_entry(self, status: Status, target: Callable[[], str]) -> TreeEntry:
        mode = stat.S_IMODE(status.mode) & 0o777
        if stat.S_ISDIR(status.mode):
            return TreeEntry("d", mode)
        if stat.S_ISLNK(status.mode):
            return TreeEntry("l", mode, quoted(target()))
        return TreeEntry("x", mode, _SKIPPED.get(stat.S_IFMT(status.mode), "a device"))

    def _blob_entry(self, file: int, *, writes: bool = True) -> TreeEntry:
        """Return the entry of an open file, and store its content if ``writes`` is set."""
        status = Status._make(read_status(os.fstat(file)))
        if not stat.S_ISREG(status.mode):
            return self._other_entry(status, lambda: "")
        if status.size > self._limit:
            return _too_large(status)
        mode, mtime = stat.S_IMODE(status.mode) & 0o777, status.mtime_ns
        data = os.read(file, PIECE + 1)
        try:
            if len(data) <= PIECE and len(data) >= status.size:
                name, size = digest_of(data), len(data)
                if writes:
                    self.write_object(self.path_of(name), data)
            else:
                name, size = self.write_large_blob(file, data, status.size, writes=writes)
        except NoSpaceError as exc:
            return TreeEntry("x", mode, exc.strerror or "", status.size, mtime)
        return TreeEntry("f", mode, name, size, mtime)

    def _write_tree(
        self, index: Index, now: Index, names: Iterable[str], *, is_required: bool = False
    ) -> Snapshot:
        """Write a tree for the current state.

        ``names`` contains the paths that may have changed.
        """
        old, tree = index.entries, now.entries
        put = {name: tree[name] for name in names if name in tree and old.get(name) != tree[name]}
        deleted_names = [name for name in names if name in old and name not in tree]
        if index.tree_id and not put and not deleted_names:
            return Snapshot(replace(now, tree_id=index.tree_id, depth=index.depth), (), ())
        is_full = not index.tree_id or index.depth >= _FULL_AFTER
        content = {
            "parent": "" if is_full else index.tree_id,
            "set": {quoted(path): [*each] for path, each in (tree if is_full else put).items()},
            "gone": [] if is_full else [*map(quoted, deleted_names)],
        }
        data = json_text(content, separators=(",", ":"), sort_keys=True).encode()
        name = digest_of(data)
        self.write_object(self.path / "trees" / name, data, "required" if is_required else "tree")
        now = replace(now, tree_id=name, depth=0 if is_full else index.depth + 1)
        return Snapshot(now, tuple(sorted([*put, *deleted_names])), not_stored(put))

    def write_tree(self, tree: Tree) -> str:
        """Write a tree, even if there is no space left, and return its id."""
        return self._write_tree(
            Index(), Index(dict(tree)), tree, is_required=True
        ).new_index.tree_id

    def checkout(self, tree: str, target: Path, now: Path | None = None) -> tuple[str, ...]:
        """Restore a workspace from a tree; see `nb_agents.snapshots.checkout.checkout`."""
        return checkout(self, tree, target, now)


def _too_large(status: Status) -> TreeEntry:
    mode = stat.S_IMODE(status.mode) & 0o777
    why = f"too large: {status.size / 1e6:.0f} MB"
    return TreeEntry("x", mode, why, status.size, status.mtime_ns)
