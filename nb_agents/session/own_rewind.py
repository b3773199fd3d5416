"""Going back to what the person's own files held, as far as only agents have changed them since.

Each file is decided on by itself. What agents left, and nobody has touched since, becomes what it
was. Anything else stays as it is, byte for byte, and a patch takes back what agents changed; of a
file that is no text there is a copy instead. What is replaced is in the session's kept files first,
so that a later rewind finds it there.
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
from nb_agents.process.writable import WritablePath
from nb_agents.session.file_changes import MAX_BYTES
from nb_agents.session.own_files import OwnChange, OwnFiles, OwnHistory, is_same, root_of
from nb_agents.session.snapshots import KeptPath, link_text

CHANGES = "changes"
"""Where the patches are, in the directory of the new turn."""

_MAX_NAME = 80
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_NO_PLACE = "is in no place that this team may write"
_REFUSING = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
    | {errno.EISDIR, errno.ELOOP, errno.ENOENT}
)
"""Errors of one path; others, such as a full disk, concern all."""


class RefusedFile(NamedTuple):
    """A file that stays as it is.

    Attributes:
        name: Its absolute name, printable.
        why: Why, as the rest of a sentence whose subject is the file.
        kept: The name of the patch or copy in `CHANGES`; "" where there is none to write.
        changes: What is not taken back, latest first.
    """

    name: str
    why: str
    kept: str
    changes: tuple[OwnChange, ...]


class OwnPlan(NamedTuple):
    """What becomes of the person's own files.

    Attributes:
        back: What each becomes that is put back, from what is there now.
        there: The same of those that are as they were already.
        refused: Those that stay as they are.
    """

    back: tuple[OwnChange, ...] = ()
    there: tuple[OwnChange, ...] = ()
    refused: tuple[RefusedFile, ...] = ()


class _Chain(NamedTuple):
    """The changes of one path, in order."""

    changes: tuple[OwnChange, ...]

    @property
    def whole(self) -> OwnChange:
        """What they come to: from what the path held at the point to what agents left."""
        return self.changes[0]._replace(after=self.changes[-1].after)

    @property
    def is_whole(self) -> bool:
        """Whether nobody else changed it between."""
        pairs = zip(self.changes, self.changes[1:], strict=False)
        return all(is_same(one.after, other.before) for one, other in pairs)

    @property
    def segments(self) -> tuple[OwnChange, ...]:
        """Changes that follow one another as one, latest first."""
        found: list[OwnChange] = []
        for change in self.changes:
            if found and is_same(found[-1].after, change.before):
                found[-1] = found[-1]._replace(after=change.after)
            else:
                found.append(change)
        return tuple(reversed(found))


def plan_of(history: OwnHistory, own: OwnFiles, places: Sequence[WritablePath]) -> OwnPlan:
    """Return what becomes of the person's own files; nothing is written.

    Args:
        history: What was changed of them behind the point.
        own: The session's kept files.
        places: Where files may be put back.
    """
    chains: dict[str, list[OwnChange]] = {}
    for change in history.changes:
        chains.setdefault(change.name, []).append(change)
    back: list[OwnChange] = []
    there: list[OwnChange] = []
    refused: list[tuple[_Chain, str]] = []
    gone: set[str] = set()
    links = {name for name, each in chains.items() if _kind(each[-1].after) == "l"}
    for name in sorted(chains, reverse=True):  # what is in a directory comes before it
        chain = _Chain(tuple(chains[name]))
        whole, now = chain.whole, _now(own, chain.whole, links)
        if is_same(now, whole.before):
            there.append(whole._replace(before=whole.after, after=whole.before))
        elif why := _why_not(chain, now, _place_of(name, places), gone):
            refused.append((chain, why))
        else:
            back.append(whole._replace(before=whole.after, after=whole.before))
            if whole.before is None:
                gone.add(name)
    refused.reverse()
    stay = [_refused(n, chain, why, own) for n, (chain, why) in enumerate(refused, 1)]
    for place, why in history.unkept.items():
        text = f"holds what calls changed that was not kept: {why}"
        stay.append(RefusedFile(printable_name(place), text, "", ()))
    return OwnPlan(tuple(sorted(back, key=_order)), tuple(there), tuple(stay))


def put_back(
    plan: OwnPlan,
    own: OwnFiles,
    places: Sequence[WritablePath],
    done: list[OwnChange],
) -> tuple[RefusedFile, ...]:
    """Put files back as planned.

    Args:
        plan: The plan.
        own: The session's kept files.
        places: Where files may be put back.
        done: Each change is added before it is made.

    Returns:
        All files that stay as they are.

    Raises:
        OSError: A write failed as any other would, as on a full disk; `done` says how far it came.
    """
    refused = [*plan.refused]
    for change in plan.back:
        done.append(change)
        try:
            _move(change, own, _place_of(change.name, places))
        except OSError as exc:
            if exc.errno not in _REFUSING:
                raise
            done.pop()
            was = change._replace(before=change.after, after=change.before)
            why = exc.strerror or "can't be written"
            why = why if isinstance(exc, RefusedError) else f"can't be written ({why})"
            refused.append(_refused(len(refused) + 1, _Chain((was,)), why, own))
    return tuple(refused)


def undo_moves(done: Sequence[OwnChange], own: OwnFiles, places: Sequence[WritablePath]) -> None:
    """Take back what `put_back` has done, as far as nobody has changed it since."""
    back = [each._replace(before=each.after, after=each.before) for each in done]
    for change in sorted(back, key=_order):
        with suppress(OSError):
            _move(change, own, _place_of(change.name, places))


def write_patches(refused: Sequence[RefusedFile], own: OwnFiles, turn: Path) -> tuple[str, ...]:
    """Write what takes back the changes of files that stay as they are.

    Args:
        refused: Those files.
        own: The session's kept files.
        turn: The new turn's directory.

    Returns:
        A line for each, which names its patch.
    """
    for each in refused:
        if each.kept:
            folder = turn / CHANGES
            folder.mkdir(exist_ok=True)
            (folder / each.kept).write_bytes(_patch(each, own))
    return tuple(lines_of(refused, str(turn)))


def lines_of(refused: Sequence[RefusedFile], turn: str) -> Iterator[str]:
    """Yield a line for each file that stays as it is.

    Args:
        refused: Those files.
        turn: The directory of the new turn.
    """
    for each in refused:
        kept = f"{turn}/{CHANGES}/{each.kept}"
        if each.kept.endswith(".patch"):
            yield f"{each.name} {each.why}; a patch takes back what agents changed: {kept}"
        elif each.kept:
            yield f"{each.name} {each.why}; what it held then is in {kept}"
        else:
            yield f"{each.name} {each.why}."


def _why_not(
    chain: _Chain, now: KeptPath | None, place: WritablePath | None, gone: set[str]
) -> str:
    """Return why a path can't be put back, or ""."""
    whole = chain.whole
    then, left = whole.before, whole.after
    if place is None:
        return _NO_PLACE
    if doubt := next((change.doubt for change in chain.changes if change.doubt), ""):
        return doubt
    if not chain.is_whole:
        return "was changed by others than these agents in between"
    if now is not None and now.kind == "x":
        return f"is not as agents left it ({now.value})"
    for entry in (then, left):
        if entry is not None and entry.kind == "x":
            return f"was not kept ({entry.value})"
    if is_same(now, left):
        if now is not None and now.kind == "d" and _kind(then) != "d":
            return "" if _inner(whole.name) <= gone else "holds files that stay"
        return ""
    if _is_between(whole, now):
        return ""
    if now is None:
        return "was deleted or renamed since"
    kinds = {"d": "a directory", "l": "a link", "f": "a file"}
    if left is None or now.kind != left.kind:
        return f"was replaced by {kinds[now.kind]} since" if left else "was made anew since"
    return "was changed since"


def _inner(folder: str) -> set[str]:
    try:
        return {f"{folder}/{name}" for name in os.listdir(folder)}
    except PermissionError:
        return {folder}


def _kind(entry: KeptPath | None) -> str:
    return "" if entry is None else entry.kind


def _now(
    own: OwnFiles, change: OwnChange, links: Container[str] = (), *, writes: bool = False
) -> KeptPath | None:
    """Return what is at a path now; there is nothing behind links that agents left."""
    above = change.place
    for name in change.path.split("/")[:-1]:
        above = f"{above}/{name}"
        if os.path.islink(above):
            if above in links:
                return None
            return KeptPath("x", 0, "a link leads there now")
    return own.store.entry(Path(change.place), change.path, writes=writes)


def _place_of(name: str, places: Sequence[WritablePath]) -> WritablePath | None:
    """Return the place in which a file may be written, if there is one."""
    for place in places:
        root = root_of(place)
        if not Path(name).is_relative_to(root) or ".." in name.split("/"):
            continue
        names = Path(name).relative_to(root).parts
        is_inside = root == place.path or names == (place.path.name,)
        if names and is_inside and not place.is_protected(names):
            return place
    return None


def _order(change: OwnChange) -> tuple[int, int, str]:
    """Sort removals first, innermost first; then directories, outermost first; then files."""
    depth = change.name.count("/")
    if change.after is None:
        return (0, -depth, change.name)
    return (1 if change.after.kind == "d" else 2, depth, change.name)


def _move(change: OwnChange, own: OwnFiles, place: WritablePath | None) -> None:
    """Put a path back, if it is what it is to be replaced as; what is replaced is kept first."""
    if place is None:
        raise RefusedError(_NO_PLACE)
    there = _status(change.name)
    now, left, then = _now(own, change, writes=True), change.before, change.after
    if is_same(now, then):
        return
    if not (is_same(now, left) or _is_between(change, now)):
        raise RefusedError("was changed since")
    root = root_of(place)
    path = os.path.relpath(change.name, root)
    with Directory.real(root, place.is_protected) as directory:
        if then is not None and now is not None and then.kind == now.kind == "d":
            directory.make(path, then.mode)
        else:
            directory.put(path, then and partial(_make, own, then), there)


def _make(own: OwnFiles, entry: KeptPath, name: str, folder: int) -> None:
    """Make what was kept of a path, under a name in an open directory."""
    if entry.kind == "l":
        os.symlink(link_text(entry), name, dir_fd=folder)
        return
    if entry.kind == "d":
        os.mkdir(name, 0o700, dir_fd=folder)
    else:
        with open(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(own.read(entry))
    os.chmod(name, entry.mode, dir_fd=folder)


def _is_between(change: OwnChange, now: KeptPath | None) -> bool:
    """Return whether a kill has cut an earlier try, between a directory and another kind."""
    is_cut = now is None and "d" in (_kind(change.before), _kind(change.after))
    above, name = os.path.split(change.name)
    return is_cut and os.path.lexists(f"{above}/{temp_of(name)}")


def _status(name: str) -> os.stat_result | None:
    try:
        return os.lstat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refused(number: int, chain: _Chain, why: str, own: OwnFiles) -> RefusedFile:
    whole = chain.whole
    name = re.sub(r"[^\w.-]", "_", os.path.basename(whole.path))[-_MAX_NAME:]
    kept = f"{number}_{name}"
    texts = [_texts(each, own) for each in chain.segments]
    if None not in texts:
        kept = f"{kept}.patch" if any(each[0] != each[1] for each in texts if each) else ""
    elif _kind(whole.before) != "f":
        kept = ""
    return RefusedFile(printable_name(whole.name), why, kept, chain.segments)


def _patch(refused: RefusedFile, own: OwnFiles) -> bytes:
    """Return the patch, or what the file held at the point."""
    first, then = refused.changes[0], refused.changes[-1].before
    if not refused.kept.endswith(".patch"):
        assert then is not None
        return own.read(then)
    path, lines = first.path, [f"patch -d {shlex.quote(first.place)} -p1 <THIS\n"]
    for change in refused.changes:
        texts = _texts(change, own)
        assert texts is not None
        old = _header(f"a/{path}") if change.after else os.devnull
        new = _header(f"b/{path}") if change.before else os.devnull
        for line in difflib.unified_diff(*texts, old, new):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def _header(path: str) -> str:
    """Return a path as `patch` reads it: in quotes, or up to a tab where it has spaces."""
    quoted = re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\{ord(found[0]):03o}", path)
    if quoted != path:
        return f'"{quoted}"'
    return f"{path}\t" if " " in path else path


def _texts(change: OwnChange, own: OwnFiles) -> tuple[list[str], list[str]] | None:
    """Return the lines after and before a change; None where there are no such lines."""
    found: list[list[str]] = []
    for entry in (change.after, change.before):
        if entry is not None and (entry.kind != "f" or entry.size > MAX_BYTES):
            return None
        try:
            data = own.read(entry) if entry else b""
        except OSError:  # it is not kept any more
            return None
        if b"\0" in data:
            return None
        lines = re.findall(b"[^\n]*\n|[^\n]+", data)
        found.append([line.decode("utf-8", "surrogateescape") for line in lines])
    return found[0], found[1]
