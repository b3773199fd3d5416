"""Copies of the user's files in a git repository of the session, for agents to change.

The user's own repository, where there is one, gets no branch and no worktree to prune, and none of
its hooks or filters is run; it is only asked which files are tracked or new. The session's
repository has no hooks, stores each file byte for byte, and is deleted with the session.

An agent's changes are read from outside: the ``.git`` in its worktree is for the agent's own use
and is never read here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple

from anyio import to_thread

from nb_agents.process.command import MAX_KEPT_BYTES, run_command
from nb_agents.process.environment import agent_env
from nb_agents.process.writable import (
    MAX_COPIED_BYTES,
    MAX_LOOKED_AT,
    NEVER_WRITTEN,
    WritablePath,
    entries,
)

GIT_S = 300.0
"""Time limit of a git command, in seconds."""
MAX_WHY_CHARS = 300

_RUNS_NOTHING = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.allow=never")
"""Settings that keep a repository's configuration from making git run programs."""
_BYTE_BY_BYTE = "* -text -ident -filter !diff !working-tree-encoding\n"
_COMPARE = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv")
_NEUTRAL_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LITERAL_PATHSPECS": "1",
} | {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "nb_agents"), ("EMAIL", "nb_agents@localhost"))
}


class GitFailed(Exception):
    """A git command failed; the message is the reason, without a full stop."""


def has_git() -> bool:
    """Return whether git is installed."""
    return shutil.which("git") is not None


class Drift(NamedTuple):
    """Which changes of an agent still apply to the user's files.

    Attributes:
        now: A commit of the files' current content.
        fitting: The names of files whose changes apply.
        conflicting: The names of files that were changed in the meantime, so that theirs do not.
    """

    now: str
    fitting: tuple[str, ...]
    conflicting: tuple[str, ...]


class Repository:
    """The session's bare repository, created when first needed.

    Its methods must not be called concurrently.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    async def snapshot(self, place: WritablePath) -> str:
        """Commit the files of a place; in a git work tree, those tracked or new and not ignored.

        Args:
            place: The place; its protected files are left out.

        Returns:
            The commit.

        Raises:
            GitFailed: The files are too many or too large, or git failed.
        """
        await self._make()
        root, names = _root(place), await _names_in(place)
        return await self._commit(root, names, "", f"What {place.path} held")

    async def add_worktree(self, folder: Path, branch: str, commit: str) -> None:
        """Check out a commit on a new branch.

        Args:
            folder: The worktree's directory; existing contents are removed.
            branch: The branch; an existing one of that name is replaced.
            commit: The commit.

        Raises:
            GitFailed: Git failed.
        """
        await to_thread.run_sync(_remove, folder)
        with suppress(GitFailed):  # there is none, or a killed process left it locked
            await self._git("worktree", "remove", "--force", "--force", str(folder))
        await self._git("worktree", "add", "--quiet", "-B", branch, str(folder), commit)

    async def commit_worktree(
        self, folder: Path, place: WritablePath, branch: str, base: str
    ) -> str:
        """Commit a worktree's files, except changes to protected ones.

        Args:
            folder: The worktree.
            place: The original of the worktree.
            branch: The worktree's branch, which is advanced.
            base: The commit that the worktree was created from.

        Returns:
            The commit: ``base`` when nothing changed.

        Raises:
            GitFailed: The base is gone, or git failed.
        """
        await self._make()
        known = await self._listed(folder, base)
        names = await to_thread.run_sync(_committable, folder, known, place)
        commit = await self._commit(folder, names, base, f"Changes to {place.path}")
        with suppress(GitFailed):  # informational; a killed process may have left it locked
            await self._git("update-ref", f"refs/heads/{branch}", commit)
        return commit

    async def write_patch(
        self, base: str, commit: str, file: Path, names: Sequence[str] = ()
    ) -> dict[str, str]:
        """Write the difference between two commits as a patch for ``git apply``.

        Args:
            base: The older commit.
            commit: The newer commit.
            file: The patch file; its directory is created.
            names: The files to include; empty means all.

        Returns:
            Git's status letter (A, D, M or T) of each changed file.

        Raises:
            GitFailed: Git failed.
        """
        file.parent.mkdir(exist_ok=True)
        form = ("-p", "--binary", "--full-index", f"--output={file}")
        await self._git(*_COMPARE, *form, base, commit, "--", *names)
        return await self._changed(base, commit, names)

    async def _changed(self, base: str, commit: str, names: Sequence[str] = ()) -> dict[str, str]:
        form = ("-z", "--name-status")
        found = (await self._git(*_COMPARE, *form, base, commit, "--", *names)).split("\0")
        return dict(zip(found[1::2], found[::2], strict=False))

    async def apply(self, patch: Path, place: WritablePath) -> str:
        """Apply a patch to the user's files, completely or not at all.

        Args:
            patch: The patch.
            place: The files.

        Returns:
            Git's reason when the patch does not apply; "" when it is applied, now or earlier.
        """
        root = _root(place)
        try:
            await self._git("apply", "--whitespace=nowarn", str(patch), tree=root)
        except GitFailed as why:
            try:  # a process that was killed before recording it may have applied the patch
                await self._git("apply", "--reverse", "--check", str(patch), tree=root)
            except GitFailed:
                return str(why)
        return ""

    async def drift(self, base: str, commit: str, place: WritablePath) -> Drift:
        """Return which files that a commit changes have been changed in the meantime.

        Args:
            base: The commit that the agent started from.
            commit: The agent's commit.
            place: The user's files.

        Raises:
            GitFailed: Git failed.
        """
        root, names = _root(place), await self._changed(base, commit)
        there = await to_thread.run_sync(_committable, root, names, place)
        now = await self._commit(root, there, base, f"What {place.path} holds now")
        moved, differing = await self._changed(base, now), await self._changed(now, commit)
        fitting: list[str] = []
        conflicting: list[str] = []
        for name in names:
            if name in there and name not in differing:
                continue
            if name in there and name not in moved:
                fitting.append(name)
            elif (fits := await self._fits(base, commit, name, root)) is not None:
                (fitting if fits else conflicting).append(name)
        return Drift(now, tuple(fitting), tuple(conflicting))

    async def _fits(self, base: str, commit: str, name: str, root: Path) -> bool | None:
        """Return whether one file's change applies; None when it is applied already."""
        with TemporaryDirectory(dir=self.path) as scratch:
            patch = Path(scratch, "patch")
            await self.write_patch(base, commit, patch, [name])
            for how, answer in (((), True), (("--reverse",), None)):
                with suppress(GitFailed):
                    await self._git("apply", "--check", *how, str(patch), tree=root)
                    return answer
        return False

    def command_to_apply(self, patch: Path, place: WritablePath, how: str) -> str:
        """Return the shell command with which the user can apply a patch.

        Args:
            patch: The patch.
            place: The user's files.
            how: An option of ``git apply``.
        """
        here = ("-C", str(_root(place)), f"--git-dir={self.path}", "--work-tree=.")
        return shlex.join(["git", *here, "apply", how, str(patch)])

    async def _make(self) -> None:
        if (self.path / "info" / "attributes").is_file():
            return
        await to_thread.run_sync(_remove, self.path)
        self.path.mkdir(parents=True)
        await self._git("init", "--bare", "--quiet", "--template=")
        (self.path / "info").mkdir(exist_ok=True)
        (self.path / "info" / "exclude").write_text("".join(f"{n}\n" for n in NEVER_WRITTEN))
        (self.path / "info" / "attributes").write_text(_BYTE_BY_BYTE)

    async def _listed(self, folder: Path, base: str) -> list[str]:
        with TemporaryDirectory(dir=self.path) as scratch:
            index = Path(scratch, "index")
            await self._git("read-tree", base, index=index)
            kinds = ("--cached", "--others", "--exclude-standard")
            return _split(await self._git("ls-files", "-z", *kinds, tree=folder, index=index))

    async def _commit(self, root: Path, names: Iterable[str], base: str, message: str) -> str:
        with TemporaryDirectory(dir=self.path) as scratch:
            index = Path(scratch, "index")
            if base:
                await self._git("read-tree", base, index=index)
            given = b"".join(os.fsencode(name) + b"\0" for name in names)
            take = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            await self._git(*take, tree=root, index=index, stdin=given)
            tree = (await self._git("write-tree", index=index)).strip()
        if base and tree == (await self._git("rev-parse", f"{base}^{{tree}}")).strip():
            return base
        parent = ("-p", base) if base else ()
        return (await self._git("commit-tree", "-m", message, *parent, tree)).strip()

    async def _git(
        self,
        *arguments: str,
        tree: Path | None = None,
        index: Path | None = None,
        stdin: bytes | None = None,
    ) -> str:
        env = _NEUTRAL_ENV | {"GIT_DIR": str(self.path)}
        env |= {"GIT_WORK_TREE": str(tree)} if tree else {}
        env |= {"GIT_INDEX_FILE": str(index)} if index else {}
        return await _git(arguments, tree or self.path, env, stdin)


async def _git(
    arguments: Sequence[str], cwd: Path, env: dict[str, str], stdin: bytes | None = None
) -> str:
    """Run git with settings that keep configuration files from making it run programs."""
    settings = [part for each in _RUNS_NOTHING for part in ("-c", each)]
    quiet = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    given = agent_env(quiet | env)
    argv = ["git", *settings, *arguments]
    try:
        done = await run_command(argv, cwd=cwd, env=given, stdin=stdin, timeout_s=GIT_S)
    except (OSError, ValueError) as exc:
        raise GitFailed(str(exc)) from None
    if done.exit_code != 0:
        why = re.sub("^(error|fatal): ", "", done.errors, flags=re.MULTILINE).strip()
        why = why or f"git {arguments[0]} took more than {GIT_S:g} s"
        raise GitFailed(" ".join(why.split())[:MAX_WHY_CHARS].rstrip("."))
    if len(done.output) >= MAX_KEPT_BYTES:
        raise GitFailed(f"git {arguments[0]} said more than {MAX_KEPT_BYTES} bytes")
    return done.output


async def _names_in(place: WritablePath) -> list[str]:
    """Return the files that a copy of a place includes, relative to its root."""
    root = _root(place)
    if root != place.path:
        return [place.path.name]
    kinds = ("--cached", "--others", "--exclude-standard")
    try:
        known: Iterable[str] | None = _split(await _git(("ls-files", "-z", *kinds), root, {}))
    except GitFailed:  # not a git work tree, or one owned by another user
        known = None
    return await to_thread.run_sync(_within_bounds, root, known, place)


def _within_bounds(root: Path, known: Iterable[str] | None, place: WritablePath) -> list[str]:
    names, size = [], 0
    for name in _committable(root, _walked(place) if known is None else known, place):
        try:
            size += (root / name).lstat().st_size
        except OSError:
            continue
        names.append(name)
        if len(names) > MAX_LOOKED_AT or size > MAX_COPIED_BYTES:
            raise GitFailed(f"it holds more than {MAX_LOOKED_AT} files or {MAX_COPIED_BYTES} bytes")
    return names


def _walked(place: WritablePath) -> Iterator[str]:
    for path, found, is_protected in entries(place):
        if not (is_protected or stat.S_ISDIR(found.st_mode)):
            yield path.relative_to(place.path).as_posix()


def _committable(root: Path, names: Iterable[str], place: WritablePath) -> list[str]:
    """Return the names that are unprotected files or links, or that no longer exist."""
    kept = (name for name in dict.fromkeys(names) if _is_of(place, name))
    return [name for name in kept if _is_file_or_gone(root, name)]


def _is_of(place: WritablePath, name: str) -> bool:
    """Return whether a copy of a place includes a file of that name and may change it."""
    if place.path.is_dir():
        return not place.is_protected(PurePosixPath(name).parts)
    return name == place.path.name


def _is_file_or_gone(root: Path, name: str) -> bool:
    path = root / name
    if not _is_real(path.parent, root):  # behind a link, which the index has in its place
        return False
    try:
        mode = path.lstat().st_mode
    except OSError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _is_real(folder: Path, root: Path) -> bool:
    while folder != root:
        if folder.is_symlink():
            return False
        folder = folder.parent
    return True


def _root(place: WritablePath) -> Path:
    return place.path if place.path.is_dir() else place.path.parent


def _split(listed: str) -> list[str]:
    return [name for name in listed.split("\0") if name]


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
