"""Recorded groups of runs, and how a replay starts them again.

The recording has the turns of the runs. A `GroupRecorder`, which an extension adds for a kind of
group, adds what the group needs besides them, and starts its runs with a function of the replay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nb_agents.config.spec import Spec
from nb_agents.launch.run import Run
from nb_agents.options import RunOptions
from nb_agents.plugins import ExtensionPoint
from nb_agents.turns.groups import Group


@dataclass(frozen=True)
class GroupRecord:
    """A recorded group, without the turns of its runs.

    Attributes:
        noun: The kind of group, such as "sweep".
        name: The group's name.
        facts: What its kind needs to start it again, as JSON.
        runs: The names of the sessions of its runs, in order.
    """

    noun: str
    name: str
    facts: Mapping[str, Any]
    runs: tuple[str, ...]


@dataclass(frozen=True)
class GroupReplay:
    """The arguments with which a recorded group starts again.

    Attributes:
        record: The recorded group.
        begin: Starts the replay of a run, given the path of its session and the arguments of
            `nb_agents.start` that differ from the recorded ones.
        error: Returns how a run has differed from the recording, as an error to raise, or None.
        source: The rows to compare with the recorded ones, or None for the recorded ones.
        task: The task to compare with the recorded one, with placeholders, or "".
        recipe: The recipe to compare with the recorded one, or None.
        options: The options of the runs.
    """

    record: GroupRecord
    begin: Callable[[Path, Mapping[str, Any]], Run]
    error: Callable[[], Exception | None]
    source: Any = None
    task: str = ""
    recipe: str | os.PathLike[str] | Spec | None = None
    options: RunOptions = field(default_factory=RunOptions)


class GroupRecorder(Protocol):
    """Records and replays the groups of a kind."""

    def record(self, path: Path) -> GroupRecord:
        """Return the group in a directory, for a recording.

        Raises:
            UserError: It can't be read.
        """
        ...

    def replay(self, arguments: GroupReplay) -> Group:
        """Start a recorded group again.

        Raises:
            UserError: The recorded facts are invalid, or the arguments don't fit them.
        """
        ...


RECORDERS: ExtensionPoint[GroupRecorder] = ExtensionPoint("group_recorders")
"""The registered recorders, by the nouns of the kinds of groups."""
