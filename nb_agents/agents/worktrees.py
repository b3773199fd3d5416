"""Git worktrees: agents change copies of the user's files, and the winner's copy is merged.

    <session>/worktrees.git                          the repository, which agents can't access
    task_1/workspaces/<agent>/worktrees/<name>/      an agent's copy, on its own branch

A copy contains the files at the start of the task, including uncommitted changes. It is part of the
agent's workspace: other agents see it under ``peers/``, a stop preserves it, and a resume continues
in it. After the final answer, the changes of its agent become a patch, which is applied completely
or not at all. Changes that the user made in the meantime are never replaced, unless the team file
allows it (``drift_conflict_policy``).

Source: MassGen's ``write_mode``, which gives each agent a worktree and applies the presenter's. In
MassGen, changes to the same file conflict. Here, only changes to the same lines do.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from anyio import CancelScope, Lock, to_thread

from nb_agents import events as ev
from nb_agents.agents.capabilities import Capability
from nb_agents.agents.replay import MAX_NAMED
from nb_agents.config.orchestrator import DriftConflictPolicy
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import RefusedError
from nb_agents.process.git import FileDrift, GitFailed, Repository, has_git
from nb_agents.process.writable import WritablePath
from nb_agents.session.layout import WORKTREES, TurnPaths
from nb_agents.tools.base import Tool
from nb_agents.tools.run_tools import SnapshotFiles


def repository_of(paths: TurnPaths) -> Path:
    """Return the path of a session's repository, which may not exist yet."""
    return paths.path.parent / "worktrees.git"


LEFT_OUT = (
    "{agent}'s changes to {path} were merged, except for files with conflicting changes: {names}. "
    "These files were not changed; {agent}'s versions are in {folder}. To merge the parts without "
    "conflicts and write the rest into .rej files, run: {merge}"
)
REPLACED = (
    "{agent}'s changes to {path} were merged and replaced files with conflicting changes: {names}. "
    "To restore your versions, run: {undo}"
)

_GUIDE = """Your workspace contains copies of the user's files, as git worktrees:
{copies}
Make the changes that the task asks for in these copies. Never change the originals. The copies of
the agent that gives the final answer are merged into the originals. Find the other agents' copies
under `peers/` at the same path."""


class _Change(NamedTuple):
    """An agent's changes in its copy of a directory or file."""

    agent: str
    place: WritablePath
    based: ev.WorktreeBased
    commit: str
    patch: Path


class Worktrees(Capability):
    """The worktrees of a team.

    Args:
        locations: The original directories and files, with their protected paths.
        paths: The turn's files.
        emit: Called with each event.
        past: The worktrees of the turn that this turn resumes.
        policy: How to resolve conflicts with the user's changes.
        keep: Saves the files that a merge changes. None means that nothing is saved.
    """

    def __init__(
        self,
        locations: Sequence[WritablePath],
        paths: TurnPaths,
        emit: Callable[[ev.Event], None],
        past: Iterable[ev.WorktreeBased] = (),
        policy: DriftConflictPolicy = "fail",
        keep: SnapshotFiles | None = None,
    ) -> None:
        self._bases: dict[str, list[ev.WorktreeBased]] = {}
        self._user_folders = dict(_with_names(locations)) if locations and has_git() else {}
        self._paths = paths
        self._emit = emit
        self._policy = policy
        self._snapshot_files = keep
        self._past_bases = {(each.agent, each.path): each for each in past}
        self._snapshots: dict[str, str] = {}
        self._failed: set[str] = set()
        self._repository = Repository(repository_of(paths))
        self._lock = Lock()  # git commands in one repository would block each other

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Create an agent's missing worktrees. No additional tools are needed."""
        for name, location in self._user_folders.items():
            async with self._lock:
                await self._find_or_make(agent, name, location)
        return ()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return the prompt section on the agent's worktrees: their list and how to use them."""
        bases = self._bases.get(agent, ())
        copies = "\n".join(f"- `{each.place}`: copy of {each.path}" for each in bases)
        return _GUIDE.format(copies=copies) if copies else ""

    async def _find_or_make(self, agent: str, name: str, location: WritablePath) -> None:
        past = self._past_bases.get((agent, str(location.path)))
        try:
            where = past.place if past else f"{WORKTREES}/{name}"
            is_there = await to_thread.run_sync(self._has_copy, agent, where)
        except RefusedError as exc:
            text = f"{agent} can only read {location.path}, because its copy {exc.strerror}."
            self._emit(ev.Noticed(text=text))
            return
        if past and is_there:
            self._bases.setdefault(agent, []).append(past)
        elif name not in self._failed:
            await self._make(agent, name, location)

    def _has_copy(self, agent: str, user_path: str) -> bool:
        """Return whether a copy exists as a directory in its agent's workspace.

        Call this before git opens the copy by its path, and while no process of the agent runs,
        because the agent could replace it with a link.

        Raises:
            RefusedError: The path or one of its parents is a link.
        """
        with Directory.at(self._paths.live_workspaces, follows_links=False) as workspaces:
            try:
                return stat.S_ISDIR(workspaces.status(f"{agent}/{user_path}/.").st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    async def _make(self, agent: str, name: str, location: WritablePath) -> None:
        folder = f"{WORKTREES}/{name}"
        try:
            base = await self._snapshot(name, location)
            branch = self._branch(agent, name)
            await self._repository.add_worktree(self._workspace(agent) / folder, branch, base)
        except (GitFailed, OSError) as why:
            self._failed.add(name)
            text = f"Agents can only read {location.path}, because it could not be copied: {why}."
            self._emit(ev.Noticed(text=text))
            return
        self._set_base(agent, str(location.path), folder, base)

    async def _snapshot(self, name: str, location: WritablePath) -> str:
        if name not in self._snapshots:
            # Protected paths may be changed in a copy, but are not merged.
            whole = WritablePath(location.path, [self._paths.root.resolve()])
            self._snapshots[name] = await self._repository.snapshot(whole)
            self._emit(
                ev.Noticed(
                    text=f"Agents change copies of {location.path} (git worktrees in their "
                    "workspaces). The copy of the agent that gives the final answer is merged."
                )
            )
        return self._snapshots[name]

    def _set_base(self, agent: str, path: str, user_path: str, base: str) -> None:
        based = ev.WorktreeBased(agent=agent, path=path, place=user_path, base=base)
        others = (each for each in self._bases.get(agent, ()) if each.path != path)
        self._bases[agent] = [*others, based]
        self._emit(based)

    async def at_end(self, winner: str) -> None:
        """Merge the winner's changes into the user's files.

        Changes that can't be merged stay in the worktree and are written to a patch. A notice
        explains how to apply them.

        Args:
            winner: Id of the agent that gave the final answer.
        """
        for based in tuple(self._bases.get(winner, ())):
            name = Path(based.place).name
            try:
                await to_thread.run_sync(self._has_copy, winner, based.place)
                await self._merge(winner, name, self._user_folders[name], based)
            except RefusedError as exc:
                self._report_unmerged(winner, based, f"its copy {exc.strerror}", "")
            except (GitFailed, OSError) as why:
                self._report_unmerged(winner, based, f"git could not compare them ({why})", "")

    async def _merge(
        self, agent: str, name: str, location: WritablePath, based: ev.WorktreeBased
    ) -> None:
        git, folder = self._repository, self._workspace(agent) / based.place
        branch = self._branch(agent, name)
        commit = await git.commit_worktree(folder, location, branch, based.base)
        if commit == based.base:
            return
        patch = self._paths.path / "changes" / f"{agent}-{name}.patch"
        change = _Change(agent, location, based, commit, patch)
        letters = await git.write_patch(based.base, commit, patch)
        root = location.path if location.path.is_dir() else location.path.parent
        names = [str(root / name) for name in letters]
        saving = (
            self._snapshot_files(root, agent, names, [location])
            if self._snapshot_files
            else nullcontext()
        )
        with CancelScope(shield=True):  # a stop must not interrupt the merge
            async with saving:
                if why := await git.apply(patch, location):
                    letters = await self._merge_apart(change, letters, why)
        if letters:
            self._emit(_changed(agent, location, letters))
            self._set_base(agent, based.path, based.place, commit)

    async def _merge_apart(
        self, change: _Change, letters: dict[str, str], why: str
    ) -> dict[str, str]:
        """Merge file by file after a conflict, if the policy allows it.

        Args:
            change: The changes to merge.
            letters: Git's status letter of each changed name.
            why: Why the complete patch can't be applied.

        Returns:
            The status letters of the merged files, by name.

        Raises:
            GitFailed: Another process is changing the files, or git refused.
        """
        git, location, patch = self._repository, change.place, change.patch
        if self._policy == "fail":
            merge = git.command_to_apply(patch, location, "--reject")
            remedy = (
                " To merge the parts without conflicts and write the rest into .rej files, run: "
                f"{merge}"
            )
            self._report_unmerged(change.agent, change.based, why, remedy)
            return {}
        drift = await git.drift(change.based.base, change.commit, location)
        if drift.fitting:
            aside = patch.with_suffix(".merged.patch")
            await git.write_patch(change.based.base, change.commit, aside, drift.fitting)
            if why := await git.apply(aside, location):
                raise GitFailed(why)
        merged = {n: letter for n, letter in letters.items() if n not in drift.conflicting}
        return merged | (await self._decide(change, drift) if drift.conflicting else {})

    async def _decide(self, change: _Change, drift: FileDrift) -> dict[str, str]:
        """Replace the conflicting files or leave them out, and list them in a notice."""
        git, agent, location = self._repository, change.agent, change.place
        names = drift.conflicting
        apart = change.patch.with_suffix(".conflicts.patch")
        if self._policy == "prefer_presenter":
            letters = await git.write_patch(drift.now, change.commit, apart, names)
            if not await git.apply(apart, location):
                undo = git.command_to_apply(apart, location, "--reverse")
                text = REPLACED.format(
                    agent=agent, path=location.path, names=_list_names(names), undo=undo
                )
                self._emit(ev.Noticed(text=text))
                return letters
        await git.write_patch(change.based.base, change.commit, apart, names)
        merge = git.command_to_apply(apart, location, "--reject")
        folder = self._paths.workspaces / agent / change.based.place
        text = LEFT_OUT.format(
            agent=agent, path=location.path, names=_list_names(names), folder=folder, merge=merge
        )
        self._emit(ev.Noticed(text=text))
        return {}

    def _report_unmerged(self, agent: str, based: ev.WorktreeBased, why: str, remedy: str) -> None:
        folder = self._paths.workspaces / agent / based.place
        self._emit(
            ev.Noticed(
                text=f"{agent}'s changes to {based.path} were not merged, because {why}. The "
                f"original is unchanged, and the changes are in {folder}.{remedy}"
            )
        )

    def _workspace(self, agent: str) -> Path:
        return self._paths.live_workspaces / agent

    def _branch(self, agent: str, name: str) -> str:
        task = (self._paths.task or self._paths.path).name
        return "/".join(re.sub(r"[^\w-]", "_", part) for part in (task, agent, name))


def _with_names(locations: Sequence[WritablePath]) -> Iterable[tuple[str, WritablePath]]:
    """Yield each directory or file with a unique name for its copy."""
    names: set[str] = set()
    for location in locations:
        name, number = location.path.name or "root", 1
        while name in names:
            number += 1
            name = f"{location.path.name}_{number}"
        names.add(name)
        yield name, location


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(repr, names[:MAX_NAMED])) + more


def _changed(agent: str, location: WritablePath, letters: dict[str, str]) -> ev.ContextChanged:
    root = location.path if location.path.is_dir() else location.path.parent
    kinds: dict[str, list[str]] = {"A": [], "D": [], "M": []}
    for name, letter in sorted(letters.items()):
        kinds.get(letter, kinds["M"]).append(str(root / name))
    added, deleted, changed = (tuple(names[:MAX_NAMED]) for names in kinds.values())
    return ev.ContextChanged(
        agent=agent, made=added, changed=changed, deleted=deleted, count=len(letters)
    )
