"""Connects sweeps to the rest of nb_agents; see `nb_agents.turns.groups.GroupKind`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from nb_agents.extensions.sweeps.manifest import (
    has_died,
    is_live_sweep,
    limits_of,
    over_budget,
    spent_of,
)
from nb_agents.extensions.sweeps.sweep_file import is_sweep, sweep_paths
from nb_agents.extensions.sweeps.sweep_fold import fold_notes
from nb_agents.extensions.sweeps.sweep_handle import SweepHandle
from nb_agents.extensions.sweeps.sweep_prune import prune_sweeps
from nb_agents.session.prune import Pruning
from nb_agents.turns.groups import Group, GroupFacts, OpenRuns

REFUSED = "Its sweep is not continued: {reason}. Run the cell or command of the sweep again."
"""Why rows are not resumed without their sweep."""

OLD_FILE = "an earlier version of nb_agents started it and did not record its max_cost"


class SweepKind:
    """The kind of group that sweeps are."""

    noun = "sweep"
    heads = ("sweep", "status", "complete", "failed", "tokens", "cost", "task")
    handle_type = "nb_agents.extensions.sweeps.sweep:Sweep"
    view_type = "nb_agents.extensions.sweeps.sweep_fold:SweepView"
    feed = "nb_agents.extensions.sweeps.sweep_feed:SweepFeed"
    cells = "nb_agents.extensions.sweeps.sweep_cells:SWEEP_CELLS"
    starts = ("--over", "--times")

    def facts_types(self) -> tuple[type, ...]:
        """Return the classes of a sweep's list entry, for JSON schemas."""
        from nb_agents.extensions.sweeps.sweep_facts import RowCounts, SweepFacts

        return SweepFacts, RowCounts

    def is_group(self, path: Path) -> bool:
        """Return whether a directory contains a sweep."""
        return is_sweep(path)

    def is_live(self, path: Path) -> bool:
        """Return whether a process runs the sweep in a directory."""
        return is_live_sweep(path)

    def is_handle(self, work: object) -> TypeGuard[SweepHandle]:
        """Return whether an object is the handle of a sweep."""
        return isinstance(work, SweepHandle)

    def paths(self, root: Path) -> list[Path]:
        """Return the directories of the sweeps in a session root, sorted by name."""
        return sweep_paths(root)

    def handle_at(self, path: Path) -> SweepHandle:
        """Return a handle that reads the sweep in a directory."""
        from nb_agents.extensions.sweeps.sweep_reader import SweepReader

        return SweepReader(path)

    def facts_at(self, path: Path, where: str = "") -> GroupFacts:
        """Return the list entry of the sweep in a directory, without its live rows."""
        from nb_agents.extensions.sweeps.sweep_facts import sweep_facts_at

        return sweep_facts_at(path, where)

    def facts_of(self, group: Group) -> GroupFacts:
        """Return a sweep's current list entry."""
        from nb_agents.extensions.sweeps.sweep_facts import sweep_facts
        from nb_agents.extensions.sweeps.sweep_reader import sweep_on_disk

        assert self.is_handle(group)
        return sweep_facts(group.view, sweep_on_disk(group.path).changed_at, group.path)

    def row(self, facts: GroupFacts) -> tuple[str, ...]:
        """Return a sweep's cells for the columns of `heads`."""
        from nb_agents.extensions.sweeps.sweep_facts import SweepFacts, sweep_cells

        assert isinstance(facts, SweepFacts)
        return sweep_cells(facts)

    def report(self, group: Group) -> str:
        """Return the card of a sweep as text, for a terminal."""
        from nb_agents.extensions.sweeps.any_card import any_text

        assert self.is_handle(group)
        return any_text(group.path, group.view, group.table)

    def results(self, group: Group) -> Mapping[str, Any]:
        """Return a sweep's status and the records of its rows, for JSON."""
        assert self.is_handle(group)
        return {"sweep": str(group.path), "status": group.status, "rows": group.table()}

    def open_runs(self, path: Path) -> OpenRuns:
        """Return the rows of a sweep that have begun and have no recorded end."""
        limits, fold = limits_of(path), fold_notes(path)
        rows = tuple(path / row for row in sorted(fold.at_work))
        max_cost = fold.steering.max_cost
        if not rows or (max_cost is None and not limits.has_budget):
            return OpenRuns(rows, fold.steering.limit or limits.rows)
        spent = spent_of(path, fold)
        reason = over_budget(spent, max_cost) if max_cost is not None else OLD_FILE
        if reason or spent is None or max_cost is None:
            return OpenRuns(rows, refusal=REFUSED.format(reason=reason))
        # One at a time, so that what is left is exact.
        return OpenRuns(rows, 1, left=max_cost - spent)

    def prune(self, root: Path, pruning: Pruning) -> None:
        """Remove the old rows of the sweeps in a session root."""
        prune_sweeps(root, pruning)

    def death_notice(self, path: Path) -> str:
        """Return a sentence about a sweep whose process died, or "" for any other sweep."""
        fold = fold_notes(path)
        if is_live_sweep(path) or not has_died(path, fold):
            return ""
        done = fold.completed + len(fold.failures)
        return (
            f"Sweep {path.name}: its kernel died with {done} of {fold.total} rows complete. "
            "Run the cell again to continue; finished rows are not repeated."
        )

    def live_notice(self, path: Path, name: str) -> str:
        """Return a sentence that says how to show and stop a sweep in another process."""
        return (
            f"Sweep {name} is running in another process, with {fold_notes(path).completed} rows "
            f"complete: "
            f"`%agents sweeps` shows it, `%agents stop {name}` stops it."
        )


SWEEPS = SweepKind()
"""The registered kind of group."""
