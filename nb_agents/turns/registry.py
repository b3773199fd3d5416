"""Stops the runs and groups of runs in this process, for all user interfaces."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

from nb_agents.errors import UserError
from nb_agents.loop import at_shutdown, intercept_interrupts
from nb_agents.turns.groups import Group, kind_of
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.live_runs import SHUTDOWN, live_runs, started_runs, stop_runs


class StartedGroup(Group, Protocol):
    """The handle of a group that this process runs."""

    @property
    def began_at(self) -> float:
        """When the group started, in Unix seconds."""
        ...


_groups: dict[Path, StartedGroup] = {}


def groups() -> tuple[StartedGroup, ...]:
    """Return the live groups of this process, oldest first."""
    return tuple(_groups.values())


def find_group(name: str = "", root: str | os.PathLike[str] | None = None) -> StartedGroup | None:
    """Return a live group of this process, or None if there is none.

    Args:
        name: The group's name. "" means the most recent group, unless a live run outside any group
            started later.
        root: A session root that limits the search.

    Raises:
        UserError: There are several groups with that name.
    """
    groups_in_root = [each for each in groups() if root is None or _is_same(each.path.parent, root)]
    if name:
        named = [each for each in groups_in_root if each.name == name]
        if len(named) > 1:
            roots = ", ".join(str(each.path.parent) for each in named)
            nouns = f"{kind_of(named[0]).noun}s"
            raise UserError(
                f"{name!r} matches several {nouns}, in {roots}. Add --session-root DIR."
            )
        return named[0] if named else None
    latest = max(groups_in_root, key=lambda group: group.began_at, default=None)
    if latest is None:
        return None
    later = (run for run in started_runs() if run.began_at > latest.began_at and not run.is_over)
    return latest if all(map(_is_in_group, later)) else None


def group_at(path: Path) -> StartedGroup | None:
    """Return the live group of this process in a directory, or None if there is none."""
    return next((each for each in groups() if _is_same(each.path, path)), None)


def _is_same(path: Path, other: str | os.PathLike[str]) -> bool:
    return path == other or os.path.realpath(path) == os.path.realpath(other)


def press(but: Collection[Group | RunHandle] = ()) -> bool:
    """Pass an interrupt to live runs and groups. Returns whether there are any.

    Does not block, so signal handlers can call it. Runs in a group are interrupted only by the
    group, because a second interrupt would stop them immediately.

    Args:
        but: Runs and groups to exclude.
    """
    targets = [each for each in _groups_and_single_runs() if each not in but]
    for each in targets:
        each.press()
    return bool(targets)


def interrupts_stop_new_runs() -> AbstractContextManager[None]:
    """Make interrupts within the block stop the runs and groups that were started in it.

    If there are none, the previous handler is called.
    """
    return intercept_interrupts(partial(press, but=_groups_and_single_runs()))


def _groups_and_single_runs() -> list[Group | RunHandle]:
    return [*groups(), *(run for run in live_runs() if not _is_in_group(run))]


def _is_in_group(run: RunHandle) -> bool:
    return any(group.path in run.path.parents for group in groups())


def join(group: StartedGroup) -> Callable[[], None]:
    """Register a group that has started. Returns a function that unregisters it."""
    _groups[group.path] = group

    def leave() -> None:
        if _groups.get(group.path) is group:
            del _groups[group.path]

    return leave


def stop_all() -> None:
    """Stop all groups and runs immediately, because the process is ending; see `stop_runs`."""
    _stop_groups()
    stop_runs()


def _stop_groups() -> None:
    for group in groups():
        group.stop(True, reason=SHUTDOWN, source="parent")


at_shutdown(_stop_groups)
