"""Manages copies of user files for agents to change, in a git repository of the session.

The user's own repository, if there is one, is only used to list the tracked and new files. No
branches or worktrees are added to it, and its hooks and filters are not run. The session's
repository has no hooks, stores each file byte for byte, and is deleted with the session.

The agents' changes are read through the session's repository. The ``.git`` in a worktree is only
for the agent. It is never read here, because the agent can change it.
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

from nb_agents.disk.private import make_folder, write_private
from nb_agents.process.command import MAX_CAPTURED_BYTES, run_command
from nb_agents.process.environment import agent_env
from nb_agents.process.writable import (
    MAX_COPIED_BYTES,
    MAX_SCANNED_FILES,
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
    """Raised when a git command fails. The message is the reason, without a full stop."""


def has_git() -> bool:
    """Return whether git is installed."""
    return shutil.which("git") is not None


class FileDrift(NamedTuple):
    """The comparison of an agent's changes with the current user files.

    Attributes:
        now: A commit of the current content.
        fitting: Names of the files to which the agent's changes still apply.
        conflicting: Names of files to which they no longer apply, because the files have changed.
    """

    now: str
    fitting: tuple[str, ...]
    conflicting: tuple[str, ...]


class Repository:
    """The session's bare repository, which is created at first use.

    Do not call its methods concurrently.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = False

    async def snapshot(self, location: WritablePath) -> str:
        """Commit the current files of a writable path, and return the commit.

        Protected files are left out, and so are files that the user's git ignores.

        Raises:
            GitFailed: There are too many files, they are too large, or git failed.
        """
        await self._make()
        root, names = _root(location), await _names_in(location)
        return await self._commit(root, names, "", f"Content of {location.path}")

    async def add_worktree(self, folder: Path, branch: str, commit: str) -> None:
        """Check out a commit on a new branch.

        Args:
            folder: The worktree's directory; existing contents are removed.
            branch: The branch; an existing branch with that name is replaced.

        Raises:
            GitFailed: Git failed.
        """
        await to_thread.run_sync(_remove, folder)
        with suppress(GitFailed):  # it does not exist, or a killed process left it locked
            await self._git("worktree", "remove", "--force", "--force", str(folder))
        await self._git("worktree", "add", "--quiet", "-B", branch, str(folder), commit)

    async def commit_worktree(
        self, folder: Path, location: WritablePath, branch: str, base: str
    ) -> str:
        """Commit a worktree's files, except changes to protected ones.

        Args:
            folder: The worktree's directory.
            location: The user's path that the worktree is a copy of.
            branch: The worktree's branch, which is moved to the new commit.
            base: The commit that the worktree was created from.

        Returns:
            The new commit, or ``base`` if there are no changes.

        Raises:
            GitFailed: The base does not exist, or git failed.
        """
        await self._make()
        base_files = await self._list_files(folder, base)
        names = await to_thread.run_sync(_committable, folder, base_files, location)
        commit = await self._commit(folder, names, base, f"Changes to {location.path}")
        with suppress(GitFailed):  # only informational; a killed process may have left a lock
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
            names: The files to include. Empty means all.

        Returns:
            Git's status letter (A, D, M or T) for the name of each changed file.

        Raises:
            GitFailed: Git failed.
        """
        make_folder(file.parent)
        form = ("-p", "--binary", "--full-index", f"--output={file}")
        await self._git(*_COMPARE, *form, base, commit, "--", *names)
        return await self._changed(base, commit, names)

    async def _changed(self, base: str, commit: str, names: Sequence[str] = ()) -> dict[str, str]:
        form = ("-z", "--name-status")
        fields = (await self._git(*_COMPARE, *form, base, commit, "--", *names)).split("\0")
        return dict(zip(fields[1::2], fields[::2], strict=False))

    async def apply(self, patch: Path, location: WritablePath) -> str:
        """Apply a patch to user files, completely or not at all.

        Args:
            patch: The patch file.
            location: The path to change.

        Returns:
            Git's error if the patch does not apply, or "" if it was applied now or earlier.
        """
        root = _root(location)
        try:
            await self._git("apply", "--whitespace=nowarn", str(patch), tree=root)
        except GitFailed as why:
            try:  # a process may have applied the patch and been killed before recording it
                await self._git("apply", "--reverse", "--check", str(patch), tree=root)
            except GitFailed:
                return str(why)
        return ""

    async def drift(self, base: str, commit: str, location: WritablePath) -> FileDrift:
        """Compare an agent's commit with the current user files.

        Args:
            base: The commit that the agent started from.
            commit: The agent's commit.
            location: The path of the user files.

        Raises:
            GitFailed: Git failed.
        """
        root, names = _root(location), await self._changed(base, commit)
        existing = await to_thread.run_sync(_committable, root, names, location)
        now = await self._commit(root, existing, base, f"Current content of {location.path}")
        moved, differing = await self._changed(base, now), await self._changed(now, commit)
        fitting: list[str] = []
        conflicting: list[str] = []
        for name in names:
            if name in existing and name not in differing:
                continue
            if name in existing and name not in moved:
                fitting.append(name)
            elif (fits := await self._fits(base, commit, name, root)) is not None:
                (fitting if fits else conflicting).append(name)
        return FileDrift(now, tuple(fitting), tuple(conflicting))

    async def _fits(self, base: str, commit: str, name: str, root: Path) -> bool | None:
        """Return whether the change to a file can be applied, or None if it is already applied."""
        with TemporaryDirectory(dir=self.path) as scratch:
            patch = Path(scratch, "patch")
            await self.write_patch(base, commit, patch, [name])
            for how, answer in (((), True), (("--reverse",), None)):
                with suppress(GitFailed):
                    await self._git("apply", "--check", *how, str(patch), tree=root)
                    return answer
        return False

    def command_to_apply(self, patch: Path, location: WritablePath, how: str) -> str:
        """Return the shell command with which the user can apply a patch.

        Args:
            patch: The patch file.
            location: The path to change.
            how: An option of ``git apply``.
        """
        git_options = ("-C", str(_root(location)), f"--git-dir={self.path}", "--work-tree=.")
        return shlex.join(["git", *git_options, "apply", how, str(patch)])

    async def _make(self) -> None:
        if self._is_made:
            return
        attributes = self.path / "info" / "attributes"
        if not attributes.is_file():
            await to_thread.run_sync(_remove, self.path)
            make_folder(self.path)
        # The configuration is always rewritten, because the one in a copied session could run
        # programs.
        (self.path / "config").unlink(missing_ok=True)
        await self._git("init", "--bare", "--quiet", "--template=")
        make_folder(attributes.parent)
        write_private(attributes.parent / "exclude", "".join(f"{n}\n" for n in NEVER_WRITTEN))
        write_private(attributes, _BYTE_BY_BYTE)
        self._is_made = True

    async def _list_files(self, folder: Path, base: str) -> list[str]:
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
            name_bytes = b"".join(os.fsencode(name) + b"\0" for name in names)
            update = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            await self._git(*update, tree=root, index=index, stdin=name_bytes)
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
    """Run git with settings that prevent configuration files from making it run programs."""
    settings = [part for each in _RUNS_NOTHING for part in ("-c", each)]
    quiet = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    full_env = agent_env(quiet | env)
    argv = ["git", *settings, *arguments]
    try:
        done = await run_command(argv, cwd=cwd, env=full_env, stdin=stdin, timeout_s=GIT_S)
    except (OSError, ValueError) as exc:
        raise GitFailed(str(exc)) from None
    if done.exit_code != 0:
        why = re.sub("^(error|fatal): ", "", done.errors, flags=re.MULTILINE).strip()
        why = why or f"git {arguments[0]} took more than {GIT_S:g} s"
        raise GitFailed(" ".join(why.split())[:MAX_WHY_CHARS].rstrip("."))
    if len(done.output) >= MAX_CAPTURED_BYTES:
        raise GitFailed(f"git {arguments[0]} wrote more than {MAX_CAPTURED_BYTES} bytes")
    return done.output


async def _names_in(location: WritablePath) -> list[str]:
    """Return the names of the files to copy from a writable path, relative to its root."""
    root = _root(location)
    if root != location.path:
        return [location.path.name]
    kinds = ("--cached", "--others", "--exclude-standard")
    try:
        listing: Iterable[str] | None = _split(await _git(("ls-files", "-z", *kinds), root, {}))
    except GitFailed:  # not a git work tree, or one owned by another user
        listing = None
    return await to_thread.run_sync(_within_bounds, root, listing, location)


def _within_bounds(root: Path, listing: Iterable[str] | None, location: WritablePath) -> list[str]:
    names, size = [], 0
    for name in _committable(root, _walk_names(location) if listing is None else listing, location):
        try:
            size += (root / name).lstat().st_size
        except OSError:
            continue
        names.append(name)
        if len(names) > MAX_SCANNED_FILES or size > MAX_COPIED_BYTES:
            raise GitFailed(
                f"it has more than {MAX_SCANNED_FILES} files or {MAX_COPIED_BYTES} bytes"
            )
    return names


def _walk_names(location: WritablePath) -> Iterator[str]:
    for path, status, is_protected in entries(location):
        if not (is_protected or stat.S_ISDIR(status.st_mode)):
            yield path.relative_to(location.path).as_posix()


def _committable(root: Path, names: Iterable[str], location: WritablePath) -> list[str]:
    """Return the names of unprotected files and links, including those that no longer exist."""
    changeable = (name for name in dict.fromkeys(names) if _may_change(location, name))
    return [name for name in changeable if _is_file_or_missing(root, name)]


def _may_change(location: WritablePath, name: str) -> bool:
    """Return whether a name belongs to a writable path and is not protected."""
    if location.path.is_dir():
        return not location.is_protected(PurePosixPath(name).parts)
    return name == location.path.name


def _is_file_or_missing(root: Path, name: str) -> bool:
    path = root / name
    if not _is_real(path.parent, root):  # a parent is a link; the index contains that link instead
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


def _root(location: WritablePath) -> Path:
    return location.path if location.path.is_dir() else location.path.parent


def _split(listing: str) -> list[str]:
    return [name for name in listing.split("\0") if name]


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
