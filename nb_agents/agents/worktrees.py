"""The copies of a person's files that agents change, and how one of them is merged.

    <session>/worktrees.git                          the repository, out of the agents' reach
    task_1/workspaces/<agent>/worktrees/<name>/      an agent's copy, on a branch of its own

A copy holds what the files held when the task began, uncommitted changes included. It is part of
the agent's workspace: the others see it below ``peers/``, a stop keeps it, a resume goes on in it.
When the final answer is there, what its agent changed becomes a patch, which is applied whole or
not at all: what the person has changed meanwhile is never replaced.

Source: MassGen's ``write_mode``, which gives each agent a worktree and applies the presenter's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from anyio import CancelScope, Lock

from nb_agents import events as ev
from nb_agents.agents.replay import MAX_NAMED
from nb_agents.process.git import GitFailed, Repository, has_git
from nb_agents.process.writable import WritablePath
from nb_agents.session.layout import WORKTREES, TurnPaths

__all__ = ["Worktrees", "repository_of"]


def repository_of(paths: TurnPaths) -> Path:
    """Give the directory of a session's repository; it need not exist."""
    return paths.path.parent / "worktrees.git"


class Worktrees:
    """The worktrees of a team.

    Args:
        places: What they are copies of, with what of it may not be changed.
        paths: The turn's files.
        emit: Takes what happens.
        past: Those of the turn that this one resumes.

    Attributes:
        found: For each agent id, those that it has.
    """

    def __init__(
        self,
        places: Sequence[WritablePath],
        paths: TurnPaths,
        emit: Callable[[ev.Event], None],
        past: Iterable[ev.WorktreeBased] = (),
    ) -> None:
        self.found: dict[str, list[ev.WorktreeBased]] = {}
        self._places = dict(_named(places)) if places and has_git() else {}
        self._paths = paths
        self._emit = emit
        self._known = {(each.agent, each.path): each for each in past}
        self._snapshots: dict[str, str] = {}
        self._failed: set[str] = set()
        self._repository = Repository(repository_of(paths))
        self._lock = Lock()  # its commands would lock one another out

    async def open(self, agent: str) -> None:
        """Give an agent its worktrees, or those that it had.

        Args:
            agent: Its id.
        """
        for name, place in self._places.items():
            async with self._lock:
                known = self._known.get((agent, str(place.path)))
                if known and (self._workspace(agent) / known.place).is_dir():
                    self.found.setdefault(agent, []).append(known)
                elif name not in self._failed:
                    await self._make(agent, name, place)

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
            # What is protected may be read and tried in a copy: it is not merged.
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
        others = (each for each in self.found.get(agent, ()) if each.path != path)
        self.found[agent] = [*others, based]
        self._emit(based)

    async def merge(self, agent: str) -> None:
        """Change the person's files as an agent has changed its copies, and tell.

        What can't be merged is left in the copy and in a patch, and told with how to merge it.

        Args:
            agent: Whose answer is final.
        """
        for based in tuple(self.found.get(agent, ())):
            name = Path(based.place).name
            try:
                await self._merge(agent, name, self._places[name], based)
            except (GitFailed, OSError) as why:
                self._tell_kept(agent, based, f"git could not compare them ({why})", "")

    async def _merge(
        self, agent: str, name: str, place: WritablePath, based: ev.WorktreeBased
    ) -> None:
        git, folder = self._repository, self._workspace(agent) / based.place
        branch = self._branch(agent, name)
        commit = await git.commit_worktree(folder, place, branch, based.base)
        if commit == based.base:
            return
        patch = self._paths.path / "changes" / f"{agent}-{name}.patch"
        letters = await git.write_patch(based.base, commit, patch)
        with CancelScope(shield=True):  # a stop comes before it or after it
            why = await git.apply(patch, place)
        if not why:
            self._emit(_changed(agent, place, letters))
            self._tell_base(agent, based.path, based.place, commit)
            return
        merge = shlex.join(git.command_to_merge(patch, place))
        remedy = f" This merges what fits, and puts the rest into .rej files: {merge}"
        self._tell_kept(agent, based, why, remedy)

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
    """Name each place as its copy is called."""
    names: set[str] = set()
    for place in places:
        name, number = place.path.name or "root", 1
        while name in names:
            number += 1
            name = f"{place.path.name}_{number}"
        names.add(name)
        yield name, place


def _changed(agent: str, place: WritablePath, letters: dict[str, str]) -> ev.ContextChanged:
    root = place.path if place.path.is_dir() else place.path.parent
    kinds: dict[str, list[str]] = {"A": [], "D": [], "M": []}
    for name, letter in sorted(letters.items()):
        kinds.get(letter, kinds["M"]).append(str(root / name))
    made, deleted, changed = (tuple(names[:MAX_NAMED]) for names in kinds.values())
    return ev.ContextChanged(
        agent=agent, made=made, changed=changed, deleted=deleted, count=len(letters)
    )
