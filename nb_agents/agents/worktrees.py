"""Git worktrees: agents change copies of the user's files, and the winner's copy is merged.

    <session>/worktrees.git                          the repository, out of the agents' reach
    task_1/workspaces/<agent>/worktrees/<name>/      an agent's copy, on a branch of its own

A copy holds the files as they were when the task began, uncommitted changes included. It is part of
the agent's workspace: the others see it below ``peers/``, a stop keeps it, a resume continues in
it. After the final answer, its agent's changes become a patch, which is applied as a whole or not
at all: changes that the user made in the meantime are never replaced, unless the team's file says
so (``drift_conflict_policy``).

Source: MassGen's ``write_mode``, which gives each agent a worktree and applies the presenter's.
There, changes to the same file conflict; here, changes to the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from anyio import CancelScope, Lock

from nb_agents import events as ev
from nb_agents.agents.capabilities import Capability
from nb_agents.agents.replay import MAX_NAMED
from nb_agents.config.orchestrator import DriftConflictPolicy
from nb_agents.process.git import Drift, GitFailed, Repository, has_git
from nb_agents.process.writable import WritablePath
from nb_agents.session.layout import WORKTREES, TurnPaths
from nb_agents.tools.base import Tool
from nb_agents.tools.run_tools import KeepFiles


def repository_of(paths: TurnPaths) -> Path:
    """Return the directory of a session's repository, which need not exist."""
    return paths.path.parent / "worktrees.git"


LEFT_OUT = (
    "What {agent} changed of {path} is merged but for files whose same lines have been changed "
    "there meanwhile: {names}. These are left as they are there, and kept in {folder}. This merges "
    "what fits of them, and puts the rest into .rej files: {merge}"
)
REPLACED = (
    "What {agent} changed of {path} is merged, and replaces files whose same lines have been "
    "changed there meanwhile: {names}. This brings them back as they were: {undo}"
)

_GUIDE = """You have copies of files of the person who gave the task, as git worktrees in your
workspace, to change as the task asks for:
{copies}
Change these copies, and not what they are copies of: who gives the final answer has its own merged
back. Those of the others are below `peers/`, at the same place."""


class _Change(NamedTuple):
    """An agent's changes in its copy of a place."""

    agent: str
    place: WritablePath
    based: ev.WorktreeBased
    commit: str
    patch: Path


class Worktrees(Capability):
    """The worktrees of a team.

    Args:
        places: The originals, with their protected paths.
        paths: The turn's files.
        emit: Called with each event.
        past: The worktrees of the turn that this one resumes.
        policy: How conflicts with the user's own changes are resolved.
        keep: Keeps what a merge changes; None keeps nothing.
    """

    def __init__(
        self,
        places: Sequence[WritablePath],
        paths: TurnPaths,
        emit: Callable[[ev.Event], None],
        past: Iterable[ev.WorktreeBased] = (),
        policy: DriftConflictPolicy = "fail",
        keep: KeepFiles | None = None,
    ) -> None:
        self._found: dict[str, list[ev.WorktreeBased]] = {}
        self._places = dict(_named(places)) if places and has_git() else {}
        self._paths = paths
        self._emit = emit
        self._policy = policy
        self._keep = keep
        self._known = {(each.agent, each.path): each for each in past}
        self._snapshots: dict[str, str] = {}
        self._failed: set[str] = set()
        self._repository = Repository(repository_of(paths))
        self._lock = Lock()  # its commands would lock one another out

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Create an agent's worktrees where they are missing; they need no tools of their own."""
        for name, place in self._places.items():
            async with self._lock:
                known = self._known.get((agent, str(place.path)))
                if known and (self._workspace(agent) / known.place).is_dir():
                    self._found.setdefault(agent, []).append(known)
                elif name not in self._failed:
                    await self._make(agent, name, place)
        return ()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return which copies an agent may change."""
        found = self._found.get(agent, ())
        copies = "\n".join(f"- `{each.place}`: of {each.path}" for each in found)
        return _GUIDE.format(copies=copies) if copies else ""

    async def _make(self, agent: str, name: str, place: WritablePath) -> None:
        folder = f"{WORKTREES}/{name}"
        try:
            base = await self._snapshot(name, place)
            branch = self._branch(agent, name)
            await self._repository.add_worktree(self._workspace(agent) / folder, branch, base)
        except (GitFailed, OSError) as why:
            self._failed.add(name)
            text = f"{place.path} can only be read, as no copy of it could be made: {why}."
            self._emit(ev.Noticed(text=text))
            return
        self._tell_base(agent, str(place.path), folder, base)

    async def _snapshot(self, name: str, place: WritablePath) -> str:
        if name not in self._snapshots:
            # Protected paths may be changed in a copy, but are not merged.
            whole = WritablePath(place.path, [self._paths.root.resolve()])
            self._snapshots[name] = await self._repository.snapshot(whole)
            self._emit(
                ev.Noticed(
                    text=f"Agents change copies of {place.path} (git worktrees in their "
                    "workspaces); what the one has changed whose answer is final is merged."
                )
            )
        return self._snapshots[name]

    def _tell_base(self, agent: str, path: str, place: str, base: str) -> None:
        based = ev.WorktreeBased(agent=agent, path=path, place=place, base=base)
        others = (each for each in self._found.get(agent, ()) if each.path != path)
        self._found[agent] = [*others, based]
        self._emit(based)

    async def at_end(self, winner: str) -> None:
        """Merge an agent's changes into the user's files, and emit notices about it.

        Changes that can't be merged stay in the copy and in a patch; a notice says how to merge
        them.

        Args:
            winner: The agent that gave the final answer.
        """
        for based in tuple(self._found.get(winner, ())):
            name = Path(based.place).name
            try:
                await self._merge(winner, name, self._places[name], based)
            except (GitFailed, OSError) as why:
                self._tell_kept(winner, based, f"git could not compare them ({why})", "")

    async def _merge(
        self, agent: str, name: str, place: WritablePath, based: ev.WorktreeBased
    ) -> None:
        git, folder = self._repository, self._workspace(agent) / based.place
        branch = self._branch(agent, name)
        commit = await git.commit_worktree(folder, place, branch, based.base)
        if commit == based.base:
            return
        patch = self._paths.path / "changes" / f"{agent}-{name}.patch"
        change = _Change(agent, place, based, commit, patch)
        letters = await git.write_patch(based.base, commit, patch)
        root = place.path if place.path.is_dir() else place.path.parent
        names = [str(root / name) for name in letters]
        kept = self._keep(root, agent, names, [place]) if self._keep else nullcontext()
        with CancelScope(shield=True):  # a stop comes before it or after it
            async with kept:
                if why := await git.apply(patch, place):
                    letters = await self._merge_apart(change, letters, why)
        if letters:
            self._emit(_changed(agent, place, letters))
            self._tell_base(agent, based.path, based.place, commit)

    async def _merge_apart(
        self, change: _Change, letters: dict[str, str], why: str
    ) -> dict[str, str]:
        """Merge file by file after a conflict, if the team's file says so.

        Args:
            change: The changes to merge.
            letters: Git's status letter of each changed name.
            why: Why the patch can't be applied as a whole.

        Returns:
            The merged files.

        Raises:
            GitFailed: Another process is changing the files, or git refused.
        """
        git, place, patch = self._repository, change.place, change.patch
        if self._policy == "fail":
            merge = git.command_to_apply(patch, place, "--reject")
            remedy = f" This merges what fits, and puts the rest into .rej files: {merge}"
            self._tell_kept(change.agent, change.based, why, remedy)
            return {}
        drift = await git.drift(change.based.base, change.commit, place)
        if drift.fitting:
            aside = patch.with_suffix(".merged.patch")
            await git.write_patch(change.based.base, change.commit, aside, drift.fitting)
            if why := await git.apply(aside, place):
                raise GitFailed(why)
        merged = {n: letter for n, letter in letters.items() if n not in drift.conflicting}
        return merged | (await self._decide(change, drift) if drift.conflicting else {})

    async def _decide(self, change: _Change, drift: Drift) -> dict[str, str]:
        """Replace the conflicting files, or leave them out, and emit a notice that names them."""
        git, agent, place = self._repository, change.agent, change.place
        names = drift.conflicting
        apart = change.patch.with_suffix(".conflicts.patch")
        if self._policy == "prefer_presenter":
            letters = await git.write_patch(drift.now, change.commit, apart, names)
            if not await git.apply(apart, place):
                undo = git.command_to_apply(apart, place, "--reverse")
                text = REPLACED.format(
                    agent=agent, path=place.path, names=_named_few(names), undo=undo
                )
                self._emit(ev.Noticed(text=text))
                return letters
        await git.write_patch(change.based.base, change.commit, apart, names)
        merge = git.command_to_apply(apart, place, "--reject")
        folder = self._paths.workspaces / agent / change.based.place
        text = LEFT_OUT.format(
            agent=agent, path=place.path, names=_named_few(names), folder=folder, merge=merge
        )
        self._emit(ev.Noticed(text=text))
        return {}

    def _tell_kept(self, agent: str, based: ev.WorktreeBased, why: str, remedy: str) -> None:
        folder = self._paths.workspaces / agent / based.place
        self._emit(
            ev.Noticed(
                text=f"What {agent} changed of {based.path} is not merged, as {why}: nothing is "
                f"changed there, and it is kept in {folder}.{remedy}"
            )
        )

    def _workspace(self, agent: str) -> Path:
        return self._paths.live_workspaces / agent

    def _branch(self, agent: str, name: str) -> str:
        task = (self._paths.task or self._paths.path).name
        return "/".join(re.sub(r"[^\w-]", "_", part) for part in (task, agent, name))


def _named(places: Sequence[WritablePath]) -> Iterable[tuple[str, WritablePath]]:
    """Yield each place with the name of its copy."""
    names: set[str] = set()
    for place in places:
        name, number = place.path.name or "root", 1
        while name in names:
            number += 1
            name = f"{place.path.name}_{number}"
        names.add(name)
        yield name, place


def _named_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(repr, names[:MAX_NAMED])) + more


def _changed(agent: str, place: WritablePath, letters: dict[str, str]) -> ev.ContextChanged:
    root = place.path if place.path.is_dir() else place.path.parent
    kinds: dict[str, list[str]] = {"A": [], "D": [], "M": []}
    for name, letter in sorted(letters.items()):
        kinds.get(letter, kinds["M"]).append(str(root / name))
    made, deleted, changed = (tuple(names[:MAX_NAMED]) for names in kinds.values())
    return ev.ContextChanged(
        agent=agent, made=made, changed=changed, deleted=deleted, count=len(letters)
    )
