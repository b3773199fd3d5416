"""Groups of runs that are started, shown and stopped as a whole, such as a sweep.

An extension registers a `GroupKind` for each kind of group. All other code asks this module, and
does not know which kinds there are. A group is a directory of a session root that contains the
sessions of its runs, so the directory identifies it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nb_agents.cancel import StopResult, StopSource
from nb_agents.errors import UserError
from nb_agents.plugins import ExtensionPoint
from nb_agents.session.prune import Pruning


@dataclass(frozen=True)
class GroupFacts:
    """The list entry of a group. Attributes that `TurnFacts` also has mean the same there.

    Attributes:
        turn: Always None, which distinguishes a group from a turn in JSON.
        updated_at: When a run last started or ended, in Unix seconds; None before the first.
    """

    session: str
    turn: None
    task: str
    status: str
    state: str
    says: str
    is_live: bool
    where: str
    updated_at: float | None
    tokens: int
    cost: float | None
    path: str

    @property
    def progress(self) -> str:
        """How much of the group is complete, as text."""
        return self.says


class OpenRuns(NamedTuple):
    """The unfinished runs of a group that no process runs.

    Attributes:
        sessions: The sessions of the runs.
        limit: The maximum number of runs at the same time.
        refusal: Why they can't be resumed without the group, or "".
        left: US dollars that are left of the budget of all runs together. None without a budget.
    """

    sessions: tuple[Path, ...] = ()
    limit: int = 1
    refusal: str = ""
    left: float | None = None


class GroupView(Protocol):
    """The state of a group at one moment."""

    @property
    def state(self) -> str:
        """The state, such as "running" or "complete"."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the group has ended."""
        ...


class Group(Protocol):
    """The handle of a group that this process or another one runs, or that has ended."""

    @property
    def path(self) -> Path:
        """The group's directory, which contains the sessions of its runs."""
        ...

    @property
    def name(self) -> str:
        """The group's name, unique in its session root."""
        ...

    @property
    def view(self) -> GroupView:
        """The group's current state."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no process runs the group."""
        ...

    def wait(self) -> GroupView:
        """Block until the group ends. An interrupt stops the group but not the wait."""
        ...

    def stop(self, now: bool, *, reason: str, source: StopSource) -> StopResult:
        """Stop the group; must not block."""
        ...

    def hold(self, is_paused: bool) -> bool:
        """Pause or unpause the group. Return whether it is running."""
        ...

    def resume(self, retry_failed: bool) -> Group:
        """Continue the group in this process: unpause it, or run what is missing.

        Args:
            retry_failed: Whether failed runs of a group that has ended run again, too.

        Raises:
            UserError: It has ended, and this process did not start it.
        """
        ...

    def press(self) -> None:
        """Handle an interrupt; must not block."""
        ...


class GroupKind(Protocol):
    """A kind of group. Its methods import what they need, so that registering it is cheap.

    A reference is "module:name", and names an object that only a higher layer can use.

    Attributes:
        noun: What a group of this kind is called, such as "sweep". Also its key in JSON.
        heads: The column titles of a list of groups.
        handle_type: Reference to the class of the handles.
        view_type: Reference to the class of their views.
        feed: Reference to a class of the server's feeds; see `nb_agents.server.feeds.GroupFeed`.
        cells: Reference to a `nb_agents.jupyter.panel.GroupCells`.
        starts: The flags that start such a group.
    """

    noun: str
    heads: tuple[str, ...]
    handle_type: str
    view_type: str
    feed: str
    cells: str
    starts: tuple[str, ...]

    def facts_types(self) -> tuple[type, ...]:
        """Return the classes of a group's list entry for JSON schemas, the group's own first."""
        ...

    def is_group(self, path: Path) -> bool:
        """Return whether a directory contains a group of this kind."""
        ...

    def is_live(self, path: Path) -> bool:
        """Return whether a process runs the group in a directory."""
        ...

    def is_handle(self, work: object) -> bool:
        """Return whether an object is a handle of a group of this kind."""
        ...

    def paths(self, root: Path) -> list[Path]:
        """Return the directories of the groups in a session root, sorted by name."""
        ...

    def handle_at(self, path: Path) -> Group:
        """Return a handle that reads the group in a directory."""
        ...

    def facts_at(self, path: Path, where: str = "") -> GroupFacts:
        """Return the list entry of the group in a directory, without asking its runs."""
        ...

    def facts_of(self, group: Group) -> GroupFacts:
        """Return a group's current list entry."""
        ...

    def row(self, facts: GroupFacts) -> tuple[str, ...]:
        """Return a group's cells for the columns of `heads`."""
        ...

    def report(self, group: Group) -> str:
        """Return the card of a group as text, for a terminal."""
        ...

    def results(self, group: Group) -> Mapping[str, Any]:
        """Return the results of a group, for JSON."""
        ...

    def open_runs(self, path: Path) -> OpenRuns:
        """Return the runs in a directory that have begun and have no recorded end.

        Raises:
            SessionUnreadableError: A file of the group can't be read.
        """
        ...

    def prune(self, root: Path, pruning: Pruning) -> None:
        """Remove the old sessions in the groups of a session root."""
        ...

    def death_notice(self, path: Path) -> str:
        """Return a sentence about a group whose process died; "" for any other group.

        Raises:
            SessionUnreadableError: A file of the group can't be read.
        """
        ...

    def live_notice(self, path: Path, name: str) -> str:
        """Return a sentence about a group that another process runs, and how to stop it.

        Args:
            path: The group's directory.
            name: The group's name or path, as a command needs it.
        """
        ...


KINDS: ExtensionPoint[GroupKind] = ExtensionPoint("groups")
"""The registered kinds, by their nouns."""


def kinds() -> tuple[GroupKind, ...]:
    """Return the registered kinds of groups."""
    return tuple(KINDS.all().values())


def kind_at(path: Path) -> GroupKind | None:
    """Return the kind of the group in a directory, or None if it contains no group."""
    return next((kind for kind in kinds() if kind.is_group(path)), None)


def kind_of(group: Group) -> GroupKind:
    """Return the kind of a group."""
    return next(kind for kind in kinds() if kind.is_handle(group))


def kind_that_starts(flag: str) -> GroupKind:
    """Return the kind of group that a flag starts.

    Raises:
        UserError: No registered kind has the flag.
    """
    for kind in kinds():
        if flag in kind.starts:
            return kind
    raise UserError(
        f"{flag} is not available, because its package in nb_agents.extensions is missing. Install "
        "nb_agents again."
    )


def is_group(path: Path) -> bool:
    """Return whether a directory contains a group."""
    return kind_at(path) is not None


def is_live_group(path: Path) -> bool:
    """Return whether a directory contains a group that a process runs."""
    kind = kind_at(path)
    return kind is not None and kind.is_live(path)


def group_of_turn(turn: Path) -> Path | None:
    """Return the directory of the group that a turn belongs to, or None."""
    path = Path(os.path.realpath(turn.parents[1]))
    return path if is_group(path) else None


def groups_in(root: Path) -> list[tuple[GroupKind, Path]]:
    """Return the groups in a session root: their kinds and directories."""
    return [(kind, path) for kind in kinds() for path in kind.paths(root)]


def facts_at(path: Path, where: str = "") -> GroupFacts:
    """Return the list entry of the group in a directory.

    Args:
        path: The group's directory.
        where: The other process in which the group runs, if there is one.
    """
    kind = kind_at(path)
    assert kind is not None, path
    return kind.facts_at(path, where)
