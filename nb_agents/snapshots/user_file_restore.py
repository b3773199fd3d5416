"""Restores user files to a checkpoint, as long as only agents have changed them since.

Each file is handled separately. A file that nobody has touched since the agents' last change gets
its earlier content back. Any other file stays unchanged, and the agents' changes to it are saved as
a reverse patch, or as a copy of the earlier content if the file is not text. Before a file is
replaced, its content is stored in the session's snapshots, so that a later rewind can restore it.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nb_agents.disk.directory import Directory, temp_of
from nb_agents.disk.entry import RefusedError, printable_name
from nb_agents.disk.private import make_folder, write_private
from nb_agents.process.writable import WritablePath
from nb_agents.snapshots.diff import MAX_BYTES
from nb_agents.snapshots.tree import DamagedError, TreeEntry, link_text
from nb_agents.snapshots.user_files import (
    UserFileChange,
    UserFileHistory,
    UserFiles,
    is_same,
    root_of,
)

CHANGES = "changes"
"""Directory for patches, in the new turn's directory."""

_MAX_NAME = 80
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_OUTSIDE = "is outside the paths that this team may write to"
_REFUSING = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
    | {errno.EISDIR, errno.ELOOP, errno.ENOENT}
)
"""Errors that concern a single path. Others, such as a full disk, end the whole rewind."""


class RefusedFile(NamedTuple):
    """A file that a rewind does not restore.

    Attributes:
        name: Its absolute path, printable.
        reason: The reason, as a predicate whose subject is the file.
        saved_as: The name of the patch or copy in `CHANGES`, or "" if there is none.
        changes: The changes that are not reverted, latest first.
    """

    name: str
    reason: str
    saved_as: str
    changes: tuple[UserFileChange, ...]


class RestorePlan(NamedTuple):
    """The effect of a rewind on user files.

    Attributes:
        changes: The changes to make. ``before`` is the current entry, ``after`` the restored one.
        already_restored: The same for files that already have their earlier content.
        refusals: Files that stay unchanged.
    """

    changes: tuple[UserFileChange, ...] = ()
    already_restored: tuple[UserFileChange, ...] = ()
    refusals: tuple[RefusedFile, ...] = ()


class _Chain(NamedTuple):
    """All recorded changes to one path, in order."""

    changes: tuple[UserFileChange, ...]

    @property
    def whole(self) -> UserFileChange:
        """All changes merged into one, from the checkpoint to the agents' last change."""
        return self.changes[0]._replace(after=self.changes[-1].after)

    @property
    def is_whole(self) -> bool:
        """Whether nobody else changed the path between the agents' changes."""
        pairs = zip(self.changes, self.changes[1:], strict=False)
        return all(is_same(one.after, other.before) for one, other in pairs)

    @property
    def segments(self) -> tuple[UserFileChange, ...]:
        """The changes, latest first, with consecutive changes merged."""
        segments: list[UserFileChange] = []
        for change in self.changes:
            if segments and is_same(segments[-1].after, change.before):
                segments[-1] = segments[-1]._replace(after=change.after)
            else:
                segments.append(change)
        return tuple(reversed(segments))


def plan_restore(
    history: UserFileHistory, own: UserFiles, locations: Sequence[WritablePath]
) -> RestorePlan:
    """Plan how a rewind restores user files, without writing anything.

    Args:
        history: The changes after the checkpoint.
        own: The session's stored user files.
        locations: The locations in which files may be restored.

    Raises:
        DamagedError: A stored file was changed after it was saved.
    """
    chains: dict[str, list[UserFileChange]] = {}
    for change in history.changes:
        chains.setdefault(change.name, []).append(change)
    back: list[UserFileChange] = []
    there: list[UserFileChange] = []
    refused: list[tuple[_Chain, str]] = []
    removed: set[str] = set()
    links = {name for name, each in chains.items() if _kind(each[-1].after) == "l"}
    for name in sorted(chains, reverse=True):  # the contents of a directory come before it
        chain = _Chain(tuple(chains[name]))
        whole, now = chain.whole, _current_entry(own, chain.whole, links)
        if is_same(now, whole.before):
            there.append(whole._replace(before=whole.after, after=whole.before))
        elif why := _refusal_reason(chain, now, _location_of(name, locations), removed):
            refused.append((chain, why))
        else:
            own.verify_blob(whole.before)
            back.append(whole._replace(before=whole.after, after=whole.before))
            if whole.before is None:
                removed.add(name)
    refused.reverse()
    unrestored = [_refusal(n, chain, why, own) for n, (chain, why) in enumerate(refused, 1)]
    for path, why in history.not_saved.items():
        text = f"has changes of tool calls that were not saved: {why}"
        unrestored.append(RefusedFile(printable_name(path), text, "", ()))
    return RestorePlan(tuple(sorted(back, key=_order)), tuple(there), tuple(unrestored))


def restore_files(
    plan: RestorePlan,
    own: UserFiles,
    locations: Sequence[WritablePath],
    done: list[UserFileChange],
) -> tuple[RefusedFile, ...]:
    """Restore files as planned.

    Args:
        own: The session's stored user files.
        locations: The locations in which files may be restored.
        done: A list to which each change is appended before it is made, so that `undo_restore` can
            revert it.

    Returns:
        All files that stay unchanged, including those in the plan.

    Raises:
        OSError: A write failed for a reason that concerns all files, such as a full disk.
    """
    refused = [*plan.refusals]
    for change in plan.changes:
        done.append(change)
        try:
            _restore(change, own, _location_of(change.name, locations))
        except OSError as exc:
            if exc.errno not in _REFUSING:
                raise
            done.pop()
            reverse = change._replace(before=change.after, after=change.before)
            why = exc.strerror or "can't be written"
            why = why if isinstance(exc, RefusedError) else f"can't be written ({why})"
            refused.append(_refusal(len(refused) + 1, _Chain((reverse,)), why, own))
    return tuple(refused)


def undo_restore(
    done: Sequence[UserFileChange], own: UserFiles, locations: Sequence[WritablePath]
) -> None:
    """Revert the changes made by `restore_files`, except in files that have changed since."""
    back = [each._replace(before=each.after, after=each.before) for each in done]
    for change in sorted(back, key=_order):
        with suppress(OSError):
            _restore(change, own, _location_of(change.name, locations))


def write_patches(refused: Sequence[RefusedFile], own: UserFiles, turn: Path) -> tuple[str, ...]:
    """Write a reverse patch, or a copy of the earlier content, for each file not restored.

    Args:
        refused: The files that stay unchanged.
        own: The session's stored user files.
        turn: The new turn's directory.

    Returns:
        A line for each file, with the path of its patch or copy.
    """
    for each in refused:
        if each.saved_as:
            folder = turn / CHANGES
            make_folder(folder)
            write_private(folder / each.saved_as, _patch(each, own))
    return tuple(refusal_lines(refused, str(turn)))


def refusal_lines(refused: Sequence[RefusedFile], turn: str) -> Iterator[str]:
    """Yield a line for each file that is not restored, with the reason and its patch or copy.

    Args:
        refused: The files.
        turn: The new turn's directory.
    """
    for each in refused:
        path = f"{turn}/{CHANGES}/{each.saved_as}"
        if each.saved_as.endswith(".patch"):
            advice = f"to revert the agents' changes, apply the patch {path}"
            yield f"{each.name} {each.reason}; {advice}"
        elif each.saved_as:
            yield f"{each.name} {each.reason}; its earlier content is in {path}"
        else:
            yield f"{each.name} {each.reason}."


def _refusal_reason(
    chain: _Chain, now: TreeEntry | None, location: WritablePath | None, removed: set[str]
) -> str:
    """Return why a path can't be restored, or ""."""
    whole = chain.whole
    then, left = whole.before, whole.after
    if location is None:
        return _OUTSIDE
    if doubt := next((change.doubt for change in chain.changes if change.doubt), ""):
        return doubt
    if not chain.is_whole:
        return "was changed by someone else between the agents' changes"
    if now is not None and now.kind == "x":
        return f"is not as agents left it ({now.value})"
    for entry in (then, left):
        if entry is not None and entry.kind == "x":
            return f"was not saved ({entry.value})"
    if is_same(now, left):
        if now is not None and now.kind == "d" and _kind(then) != "d":
            return "" if _children(whole.name) <= removed else "contains files that stay"
        return ""
    if _is_between(whole, now):
        return ""
    if now is None:
        return "was deleted or renamed since"
    kinds = {"d": "a directory", "l": "a link", "f": "a file"}
    if left is None or now.kind != left.kind:
        return f"was replaced by {kinds[now.kind]} since" if left else "was created again since"
    return "was changed since"


def _children(folder: str) -> set[str]:
    try:
        return {f"{folder}/{name}" for name in os.listdir(folder)}
    except PermissionError:
        return {folder}


def _kind(entry: TreeEntry | None) -> str:
    return "" if entry is None else entry.kind


def _current_entry(
    own: UserFiles, change: UserFileChange, links: Container[str] = (), *, writes: bool = False
) -> TreeEntry | None:
    """Return the current entry of a path, or None if it is below a link that agents created."""
    above = change.root
    for name in change.path.split("/")[:-1]:
        above = f"{above}/{name}"
        if os.path.islink(above):
            if above in links:
                return None
            return TreeEntry("x", 0, "its directory is a link now")
    return own.store.entry(Path(change.root), change.path, writes=writes)


def _location_of(name: str, locations: Sequence[WritablePath]) -> WritablePath | None:
    """Return the location that permits writing a file, or None if there is none."""
    for location in locations:
        root = root_of(location)
        if not Path(name).is_relative_to(root) or ".." in name.split("/"):
            continue
        names = Path(name).relative_to(root).parts
        is_inside = root == location.path or names == (location.path.name,)
        if names and is_inside and not location.is_protected(names):
            return location
    return None


def _order(change: UserFileChange) -> tuple[int, int, str]:
    """Sort key: removals (innermost first), then directories (outermost first), then files."""
    depth = change.name.count("/")
    if change.after is None:
        return (0, -depth, change.name)
    return (1 if change.after.kind == "d" else 2, depth, change.name)


def _restore(change: UserFileChange, own: UserFiles, location: WritablePath | None) -> None:
    """Restore a path if it still has the expected entry. That entry is stored first."""
    if location is None:
        raise RefusedError(_OUTSIDE)
    there = _status(change.name)
    now, left, then = _current_entry(own, change, writes=True), change.before, change.after
    if is_same(now, then):
        return
    if not (is_same(now, left) or _is_between(change, now)):
        raise RefusedError("was changed since")
    root = root_of(location)
    path = os.path.relpath(change.name, root)
    with Directory.real(root, location.is_protected) as directory:
        if then is not None and now is not None and then.kind == now.kind == "d":
            directory.make(path, then.mode)
        else:
            directory.put(path, then and partial(_create, own, then), there)


def _create(own: UserFiles, entry: TreeEntry, name: str, folder: int) -> None:
    """Create a stored file, link or directory, under a name in an open directory."""
    if entry.kind == "l":
        os.symlink(link_text(entry), name, dir_fd=folder)
        return
    if entry.kind == "d":
        os.mkdir(name, 0o700, dir_fd=folder)
    else:
        with open(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(own.read_blob(entry))
    os.chmod(name, entry.mode, dir_fd=folder)


def _is_between(change: UserFileChange, now: TreeEntry | None) -> bool:
    """Return whether an earlier attempt was killed while it replaced a directory."""
    is_cut = now is None and "d" in (_kind(change.before), _kind(change.after))
    above, name = os.path.split(change.name)
    return is_cut and os.path.lexists(f"{above}/{temp_of(name)}")


def _status(name: str) -> os.stat_result | None:
    try:
        return os.lstat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refusal(number: int, chain: _Chain, why: str, own: UserFiles) -> RefusedFile:
    whole = chain.whole
    name = re.sub(r"[^\w.-]", "_", os.path.basename(whole.path))[-_MAX_NAME:]
    file_name = f"{number}_{name}"
    texts = [_texts(each, own) for each in chain.segments]
    if None not in texts:
        file_name = (
            f"{file_name}.patch" if any(each[0] != each[1] for each in texts if each) else ""
        )
    elif _kind(whole.before) != "f":
        file_name = ""
    return RefusedFile(printable_name(whole.name), why, file_name, chain.segments)


def _patch(refused: RefusedFile, own: UserFiles) -> bytes:
    """Return the reverse patch, or the file's content at the checkpoint."""
    first, then = refused.changes[0], refused.changes[-1].before
    if not refused.saved_as.endswith(".patch"):
        assert then is not None
        return own.read_blob(then)
    path, lines = first.path, [f"patch -d {shlex.quote(first.root)} -p1 <THIS\n"]
    for change in refused.changes:
        texts = _texts(change, own)
        assert texts is not None
        old = _header(f"a/{path}") if change.after else os.devnull
        new = _header(f"b/{path}") if change.before else os.devnull
        for line in difflib.unified_diff(*texts, old, new):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def _header(path: str) -> str:
    """Return a path for the header of a patch: quoted, or with a trailing tab if it has spaces."""
    quoted = re.sub(r'[\x00-\x1f\x7f"\\]', lambda match: f"\\{ord(match[0]):03o}", path)
    if quoted != path:
        return f'"{quoted}"'
    return f"{path}\t" if " " in path else path


def _texts(change: UserFileChange, own: UserFiles) -> tuple[list[str], list[str]] | None:
    """Return a file's lines after and before a change, or None unless both are text."""
    texts: list[list[str]] = []
    for entry in (change.after, change.before):
        if entry is not None and (entry.kind != "f" or entry.size > MAX_BYTES):
            return None
        try:
            data = own.read_blob(entry) if entry else b""
        except DamagedError:
            raise
        except OSError:  # it is no longer stored
            return None
        if b"\0" in data:
            return None
        lines = re.findall(b"[^\n]*\n|[^\n]+", data)
        texts.append([line.decode("utf-8", "surrogateescape") for line in lines])
    return texts[0], texts[1]
