"""Restores a workspace from a tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import RefusedError, printable_name
from nb_agents.disk.private import make_folder
from nb_agents.session.copying import copy_bytes
from nb_agents.snapshots.objects import READ, ObjectStore
from nb_agents.snapshots.tree import DamagedError, TreeEntry, check_paths, link_text, new_digest

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

_PART = 250
"""Number of files that a thread restores per batch."""

_WRITERS = 2


def checkout(
    store: ObjectStore, tree: str, target: Path, now: Path | None = None
) -> tuple[str, ...]:
    """Restore a workspace from a tree.

    Args:
        store: The store of the tree.
        tree: The tree's id.
        target: The directory to create.
        now: The current workspace. Files that were too large to store are copied from it if
            they have not changed since.

    Returns:
        Descriptions of the files that were not restored.

    Raises:
        RefusedError: The tree or one of its files is missing or damaged.
        OSError: A write failed.
    """
    entries = store.read_tree(tree)
    check_paths(entries)
    lacking: list[str] = []
    make_folder(target, exist_ok=False)
    root = os.fspath(target)
    folders = [path for path, each in entries.items() if each.kind == "d"]
    for path in sorted(folders):
        os.mkdir(f"{root}/{path}", 0o700)
    _checkout_files(
        store, root, [(path, each) for path, each in entries.items() if each.kind == "f"]
    )
    for path, each in entries.items():
        if each.kind == "x" and not (now and _take_large(now, target, path, each)):
            lacking.append(f"{printable_name(path)} ({each.value})")
    # After all files, so that no file is written through a link.
    for path, each in entries.items():
        if each.kind == "l":
            os.symlink(link_text(each), f"{root}/{path}")
    for path in sorted(folders, reverse=True):
        os.chmod(f"{root}/{path}", entries[path].mode & 0o777)
    return tuple(lacking)


def _checkout_files(store: ObjectStore, root: str, files: Sequence[tuple[str, TreeEntry]]) -> None:
    """Restore files in several threads. Most of the time is spent in the file system."""

    def write_files(part: Sequence[tuple[str, TreeEntry]]) -> None:
        for path, entry in part:
            _checkout_file(store, f"{root}/{path}", entry)

    parts = [files[start : start + _PART] for start in range(0, len(files), _PART)]
    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(write_files, parts):
            pass


def _checkout_file(store: ObjectStore, target: str, entry: TreeEntry) -> None:
    blob = store.blob_path(entry)
    try:
        source = os.open(blob, READ)
    except FileNotFoundError:
        raise RefusedError(f"the session has no {store.name_of(blob)}") from None
    try:
        file = os.open(target, _NEW, 0o600)
        try:
            digest = new_digest()
            if missing_bytes := copy_bytes(source, file, entry.size, digest.update):
                how = f"is incomplete: {missing_bytes} of its {entry.size} bytes are missing"
                raise DamagedError(store.name_of(blob), how)
            if digest.hexdigest() != entry.value:
                raise DamagedError(store.name_of(blob))
            os.fchmod(file, entry.mode & 0o777)
            os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
        except BaseException:
            os.unlink(target)
            raise
        finally:
            os.close(file)
    finally:
        os.close(source)


def _take_large(now: Path, target: Path, path: str, entry: TreeEntry) -> bool:
    """Copy a file that was not stored from the current workspace, if it is unchanged.

    Args:
        now: The current workspace. Links in it are not followed.
        target: The workspace being restored.
        path: The file's path in both.
        entry: The file's entry in the tree.

    Returns:
        Whether the file was copied.
    """
    try:
        with Directory.at(now, follows_links=False) as opened:
            file = opened.open(path, follow=False)
    except OSError:
        return False
    with file:
        status = os.fstat(file.fileno())
        is_same = (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns)
        if not is_same or not entry.mtime_ns:
            return False
        new = os.open(target / path, _NEW, 0o600)
        try:
            copy_bytes(file.fileno(), new, status.st_size)
            os.fchmod(new, stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(new)
    return True
