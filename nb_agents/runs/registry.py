"""Stopping the runs and groups of runs of this process, for all user interfaces."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

from nb_agents.cancel import StopResult, StopSource
from nb_agents.errors import UserError
from nb_agents.loop import at_shutdown, interrupt_tries
from nb_agents.runs.live_runs import SHUTDOWN, begun_runs, live_runs, stop_runs
from nb_agents.runs.run import Run


class Group(Protocol):
    """A group of runs that is stopped as a whole, such as a sweep."""

    path: Path
    """The group's directory, which contains those of its runs."""
    began_at: float
    """When the group started, in Unix seconds."""

    @property
    def name(self) -> str:
        """The group's name, unique in its session root."""
        ...

    def stop(self, now: bool, *, reason: str, source: StopSource) -> StopResult:
        """Stop the group; must not block."""
        ...

    def press(self) -> None:
        """Handle an interrupt; must not block."""
        ...


_groups: dict[Path, Group] = {}


def groups() -> tuple[Group, ...]:
    """Return the live groups of this process, oldest first."""
    return tuple(_groups.values())


def find_group(name: str = "", root: str | os.PathLike[str] | None = None) -> Group | None:
    """Return a live group of this process; None if there is none.

    Args:
        name: The group's name; "" means the one that started last, unless a single run started
            later.
        root: A session root that limits the search.

    Raises:
        UserError: There are several groups of that name.
    """
    here = [each for each in groups() if root is None or _is_same(each.path.parent, root)]
    if name:
        named = [each for each in here if each.name == name]
        if len(named) > 1:
            places = ", ".join(str(each.path.parent) for each in named)
            raise UserError(f"{name!r} names several sweeps, in {places}. Add --session-root DIR.")
        return named[0] if named else None
    latest = max(here, key=lambda group: group.began_at, default=None)
    if latest is None:
        return None
    later = (run for run in begun_runs() if run.began_at > latest.began_at and not run.is_over)
    return latest if all(map(_is_in_group, later)) else None


def group_at(path: Path) -> Group | None:
    """Return the live group of this process in a directory; None if there is none."""
    return next((each for each in groups() if _is_same(each.path, path)), None)


def _is_same(path: Path, other: str | os.PathLike[str]) -> bool:
    return path == other or os.path.realpath(path) == os.path.realpath(other)


def press(but: Collection[Group | Run] = ()) -> bool:
    """Pass an interrupt to live runs and groups; return whether there are any.

    Does not block, for signal handlers. A run in a group gets the interrupt from the group only, as
    a second one would stop it immediately.

    Args:
        but: Those that don't get it.
    """
    pressed = [each for each in _stopped_alone() if each not in but]
    for each in pressed:
        each.press()
    return bool(pressed)


def interrupts_press_new() -> AbstractContextManager[None]:
    """Make an interrupt within the block one of the runs and groups that it has begun, if any."""
    return interrupt_tries(partial(press, but=_stopped_alone()))


def _stopped_alone() -> list[Group | Run]:
    return [*groups(), *(run for run in live_runs() if not _is_in_group(run))]


def _is_in_group(run: Run) -> bool:
    return any(group.path in run.path.parents for group in groups())


def join(group: Group) -> Callable[[], None]:
    """Register a group that has started; return a function that unregisters it."""
    _groups[group.path] = group

    def leave() -> None:
        if _groups.get(group.path) is group:
            del _groups[group.path]

    return leave


def stop_all() -> None:
    """Stop all groups and runs immediately, as the process is ending, as `stop_runs` does."""
    _stop_groups()
    stop_runs()


def _stop_groups() -> None:
    for group in groups():
        group.stop(True, reason=SHUTDOWN, source="parent")


at_shutdown(_stop_groups)
