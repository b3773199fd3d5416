"""The entries of a tree, and how trees and blobs are named by digests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from nb_agents.disk.entry import RefusedError, printable_name

OBJECT_ID = re.compile("[0-9a-f]{40}")

_UNENCODABLE = re.compile("[\udc80-\udcff%]")


class DamagedError(RefusedError):
    """Raised when the content of a tree or stored file does not match its digest."""

    def __init__(
        self, name: str, how: str = "is damaged: it was changed after it was saved"
    ) -> None:
        super().__init__(f"{name} {how}")


class TreeEntry(NamedTuple):
    """An entry of a tree: the state of one path.

    Attributes:
        kind: "f" for a file, "d" for a directory, "l" for a link, "x" if it is not stored.
        mode: The permissions.
        value: The digest of a file's content, a link's target, or the reason why it is not stored.
        size: The size of a file, in bytes.
        mtime_ns: The modification time of a file, in Unix nanoseconds.
    """

    kind: str
    mode: int
    value: str = ""
    size: int = 0
    mtime_ns: int = 0


Tree = Mapping[str, TreeEntry]


def new_digest() -> blake2b:
    """Return a hash object for the digest of a blob or tree."""
    return blake2b(digest_size=20)


def digest_of(data: bytes) -> str:
    """Return the digest by which a blob or tree is named."""
    return blake2b(data, digest_size=20).hexdigest()


def link_text(entry: TreeEntry) -> str:
    """Return the target of a stored link."""
    return unquoted(entry.value)


def not_stored(tree: Tree) -> tuple[str, ...]:
    """Return descriptions of the files in a tree that have no blob."""
    lost = ((path, each) for path, each in tree.items() if each.kind == "x")
    return tuple(f"{printable_name(path)} ({each.value})" for path, each in lost)


def with_parents(paths: Iterable[str]) -> list[str] | None:
    """Return paths and their parent directories, parents first.

    Returns:
        None if a path is absolute, or contains an empty component, ``.`` or ``..``.
    """
    paths_and_parents: dict[str, None] = {}
    for path in paths:
        names = path.split("/")
        if path.startswith("/") or any(name in ("", ".", "..") for name in names):
            return None
        for count in range(1, len(names) + 1):
            paths_and_parents["/".join(names[:count])] = None
    return sorted(paths_and_parents)


def check_paths(entries: Tree) -> None:
    """Raise `RefusedError` for a tree with paths outside the workspace, created by an attacker."""
    for path in entries:
        above, _, name = path.rpartition("/")
        if (
            name in ("", ".", "..")
            or "\0" in path
            or (above and entries.get(above, _NONE).kind != "d")
        ):
            raise RefusedError(f"contains {printable_name(path)!r}, which is not a workspace path")


_NONE = TreeEntry("", 0)


def quoted(name: str) -> str:
    """Return a path as text that JSON can contain; see `unquoted`."""
    return _UNENCODABLE.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", name)


def unquoted(text: str) -> str:
    """Return the path that `quoted` has encoded."""

    def decoded(match: re.Match[str]) -> str:
        byte = int(match[1], 16)
        return chr(0xDC00 | byte) if byte >= 0x80 else chr(byte)

    return re.sub("%([0-9A-F]{2})", decoded, text)
