"""Lists the live runs and groups of all processes."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from nb_agents.launch.finding import runs
from nb_agents.launch.run import Run
from nb_agents.presentation import text
from nb_agents.session.layout import session_root
from nb_agents.turns import registry
from nb_agents.turns.groups import group_of_turn, is_live_group


def live_work(
    root: str | os.PathLike[str] | None = None,
) -> tuple[list[Run], dict[Path, str]]:
    """Return the runs of this process and live runs of others. Runs of a live group are not listed.

    Args:
        root: A session root that limits the list. By default, all roots.

    Returns:
        The runs that are not in a live group, and the directories of live groups with the process
        of each ("here" for this process).
    """
    alone, inside, groups = list[Run](), defaultdict[Path, list[Run]](list), dict[Path, str]()
    root_path = None if root is None else session_root(root).resolve()
    for run in runs(root):
        path = group_of_turn(run.path)
        if path is None:
            alone.append(run)
        elif not run.is_over:
            inside[path].append(run)
    for path, live_runs in inside.items():
        if is_live_group(path):
            groups[path] = live_runs[0].where
        else:  # check the runs again, because a group ends after its runs
            alone += [run for run in live_runs if not run.is_over]
    started = [each.path.resolve() for each in registry.groups()]
    locations = {path: "here" for path in started if root_path is None or path.parent == root_path}
    return alone, groups | locations


def location_of(run: Run) -> str:
    """Describe where a run is: its process, and its session root if that is not the current one."""
    where, root = run.where or "here", run.path.parents[1]
    return where if root == session_root() else f"{where}, in {text.shown_path(root)}"
