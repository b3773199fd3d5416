"""Finds the group that a user refers to, in this process or in others."""

from __future__ import annotations

import os
from pathlib import Path

from nb_agents.launch.finding import default_runs_elsewhere, live_runs_in
from nb_agents.session.layout import session_root
from nb_agents.turns.groups import Group, group_of_turn, kind_at
from nb_agents.turns.registry import find_group as find_started_group
from nb_agents.turns.registry import group_at


def open_group(path: Path) -> Group | None:
    """Return the handle of the group in a directory, live or not, or None if there is no group."""
    if (started := group_at(path)) is not None:
        return started
    kind = kind_at(path)
    return None if kind is None else kind.handle_at(path)


def find_group(name: str, root: str | os.PathLike[str] | None = None) -> Group | None:
    """Return the group that the user refers to, or None if there is none.

    Args:
        name: The group's name. "" means this process's most recent group, or else the only group
            that other processes run for the current notebook or directory.
        root: A session root that limits the search. By default, this process's groups are searched
            first, then the root of the current directory.

    Raises:
        UserError: This process runs several groups with that name.
    """
    if (started := find_started_group(name, root)) is not None:
        return started
    if name:
        return open_group(session_root(root) / name)
    if live_runs_in(root):
        return None
    paths = {group_of_turn(run.path) for run in default_runs_elsewhere(root)}
    path = paths.pop() if len(paths) == 1 else None
    return None if path is None else open_group(path)
