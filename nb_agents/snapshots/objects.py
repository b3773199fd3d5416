"""Stores blobs and trees by the digests of their contents."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from nb_agents.disk.directory import read_file
from nb_agents.disk.entry import TEMP, RefusedError, open_file
from nb_agents.disk.private import make_folder, open_private
from nb_agents.session.copying import end_sparse, write_sparse
from nb_agents.session.layout import SNAPSHOTS
from nb_agents.snapshots.quota import NoSpaceError, SnapshotSpace
from nb_agents.snapshots.tree import (
    OBJECT_ID,
    DamagedError,
    TreeEntry,
    digest_of,
    new_digest,
    unquoted,
)

LIMIT_BYTES = 100_000_000
"""Maximum size of a file in bytes. Larger files are not stored."""


PIECE = 1_000_000

_MAX_TREE_BYTES = 1 << 29
"""Maximum size of a tree in bytes. The same as for a journal."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class ObjectStore:
    """Stores the blobs and trees of a session. Methods block.

    Args:
        session: The session's directory.
        limit: Maximum size of a file in bytes. Larger files are not stored.
        path: Path of the store in the session's directory.
        space: Counts the bytes of all snapshots in the session. By default, a new counter with the
            default limit.

    Attributes:
        is_closed: Whether writes are refused.
    """

    def __init__(
        self,
        session: Path,
        limit: int = LIMIT_BYTES,
        path: str | PurePosixPath = SNAPSHOTS,
        space: SnapshotSpace | None = None,
    ) -> None:
        self.path = session / path
        self.is_closed = False
        self._root = session / SNAPSHOTS
        self.space = SnapshotSpace(self._root) if space is None else space
        self._limit = limit
        self._created_folders: set[str] = set()

    def read_tree(self, tree: str) -> dict[str, TreeEntry]:
        """Return the entries of a tree.

        Raises:
            OSError: The tree, or one that it builds on, is missing or damaged.
        """
        changes = list[dict[str, Any]]()
        while tree:
            if not OBJECT_ID.fullmatch(tree) or len(changes) > 10_000:
                raise RefusedError("is not a tree of files")
            tree_path = self.path / "trees" / tree
            try:
                data = read_file(tree_path, _MAX_TREE_BYTES)
            except FileNotFoundError:
                raise RefusedError(f"the session has no {self.name_of(tree_path)}") from None
            if digest_of(data) != tree:
                raise DamagedError(self.name_of(tree_path))
            try:
                content = json.loads(data)
                changes.append(content)
                tree = content["parent"]
            except (ValueError, KeyError, TypeError):
                raise DamagedError(self.name_of(tree_path)) from None
        entries: dict[str, TreeEntry] = {}
        for content in reversed(changes):
            for path in content["gone"]:
                entries.pop(unquoted(path), None)
            entries.update(
                {unquoted(path): TreeEntry(*each) for path, each in content["set"].items()}
            )
        return entries

    def read_blob(self, entry: TreeEntry) -> bytes:
        """Return the stored content of a file.

        Raises:
            DamagedError: The content was changed after it was stored.
            OSError: The content is missing or can't be read.
        """
        blob = self.blob_path(entry)
        data = read_file(Path(blob))
        if digest_of(data) != entry.value:
            raise DamagedError(self.name_of(blob))
        return data

    def verify_blob(self, entry: TreeEntry | None) -> None:
        """Check that a file's content is stored and undamaged, without loading all of it.

        Raises:
            DamagedError: The content was changed after it was stored.
            OSError: The content is missing or can't be read.
        """
        if entry is None or entry.kind != "f":
            return
        blob, digest = self.blob_path(entry), new_digest()
        with open_file(blob) as file:
            while data := file.read(PIECE):
                digest.update(data)
        if digest.hexdigest() != entry.value:
            raise DamagedError(self.name_of(blob))

    def fetch(self, entry: TreeEntry | None, store: ObjectStore) -> None:
        """Copy a file's content from another store."""
        if entry is None or entry.kind != "f" or os.path.exists(path := self.blob_path(entry)):
            return
        self._folder(Path(path).parent)
        try:
            os.link(store.blob_path(entry), path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            self.write_object(Path(path), store.read_blob(entry), "required")

    def write_large_blob(
        self, file: int, data: bytes, size: int, *, writes: bool
    ) -> tuple[str, int]:
        """Return a large file's digest and size, and store its content if ``writes`` is set.

        Args:
            file: The file's descriptor.
            data: The part that has already been read.
            size: The file's size when it was opened.
            writes: As for `entry`.

        Raises:
            NoSpaceError: There is no space for the content, and it is not already stored.
        """
        is_reserved = writes and self.space.reserve(size)
        if not is_reserved:
            name, read = self._copy_blob(file, data, None)
            if writes and not os.path.exists(self.path_of(name)):
                raise no_space(size)
            return name, read
        temp, is_new = self._folder(self.path / "files") / f".{secrets.token_hex(8)}{TEMP}", False
        try:
            with open_private(temp, "xb", buffering=0) as out:
                name, read = self._copy_blob(file, data, out.fileno())
                end_sparse(out.fileno())
            path = self._folder(self.path_of(name).parent) / name[2:]
            is_new = not os.path.exists(path)
            os.replace(temp, path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        finally:
            if not is_new:
                self.space.reserve(-size)
        if is_new:
            self.space.reserve(read - size, "required")
        return name, read

    def _copy_blob(self, file: int, data: bytes, out: int | None) -> tuple[str, int]:
        """Read a file up to the limit, and copy it unless ``out`` is None.

        Returns:
            The digest, and the number of bytes read.
        """
        digest, size = new_digest(), 0
        while data and size <= self._limit:
            digest.update(data)
            if out is not None:
                write_sparse(out, data)
            size += len(data)
            data = os.read(file, PIECE)
        return digest.hexdigest(), size

    def write_object(
        self, path: Path, data: bytes, kind: Literal["file", "tree", "required"] = "file"
    ) -> None:
        """Write a blob or a tree, unless it exists.

        Args:
            path: Its path.
            data: Its content.
            kind: Decides which part of the space it may use; see `SnapshotSpace.reserve`.

        Raises:
            NoSpaceError: There is no space for it.
        """
        if os.path.exists(path):
            return
        if not self.space.reserve(len(data), kind):
            raise no_space(len(data))
        temp = self._folder(path.parent) / f".{secrets.token_hex(8)}{TEMP}"
        try:
            with open_private(temp, "xb") as file:
                file.write(data)
            os.replace(temp, path)
        except BaseException:
            self.space.reserve(-len(data))
            with suppress(OSError):
                temp.unlink()
            raise

    def _folder(self, path: Path) -> Path:
        if self.is_closed:
            raise RefusedError("is closed")
        if str(path) not in self._created_folders:
            make_folder(path)
            self._created_folders.add(str(path))
        return path

    def path_of(self, name: str) -> Path:
        """Return the path of a blob."""
        return self.path / "files" / name[:2] / name[2:]

    def blob_path(self, entry: TreeEntry) -> str:
        """Return the path of a file's content.

        Raises:
            RefusedError: The entry is not a stored file.
        """
        if not OBJECT_ID.fullmatch(entry.value):
            raise RefusedError("is not a stored file")
        return f"{self.path}/files/{entry.value[:2]}/{entry.value[2:]}"

    def name_of(self, path: str | Path) -> str:
        """Return a stored object's path, relative to the session's directory."""
        return os.path.relpath(path, self._root.parent)


def no_space(size: int) -> NoSpaceError:
    """Return the error for an object for which there is no space."""
    return NoSpaceError(f"no space left for {size:,} bytes in the session's snapshots")
