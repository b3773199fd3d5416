"""Data about a sweep, with the same fields in every user interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nb_agents.extensions.sweeps.sweep_card import sweep_title
from nb_agents.extensions.sweeps.sweep_fold import SweepView
from nb_agents.extensions.sweeps.sweep_reader import sweep_on_disk
from nb_agents.nouns import dollars, token_count
from nb_agents.presentation import text
from nb_agents.turns.groups import GroupFacts
from nb_agents.verbs.facts import MAX_TASK


@dataclass(frozen=True)
class RowCounts:
    """The numbers of a sweep's rows, by state."""

    total: int
    done: int
    failed: int


@dataclass(frozen=True)
class SweepFacts(GroupFacts):
    """The list entry of a sweep. Attributes that `TurnFacts` also has mean the same there.

    Attributes:
        turn: Always None, which distinguishes a sweep from a turn in JSON.
        updated_at: When a row last started or ended, in Unix seconds. None before the first row.
    """

    rows: RowCounts

    @property
    def progress(self) -> str:
        """The number of complete rows, and of all rows."""
        return f"{self.rows.done} of {self.rows.total}"


def sweep_facts(
    view: SweepView, changed_at: float | None, path: Path, where: str = ""
) -> SweepFacts:
    """Return a sweep's entry in a listing.

    Args:
        changed_at: Time of the last change, in Unix seconds.
        path: The sweep's directory.
        where: The other process in which the sweep runs, if there is one.
    """
    return SweepFacts(
        session=path.name,
        turn=None,
        task=text.clip(sweep_title(path), MAX_TASK),
        status="awaiting" if view.waiting else view.state,
        state=view.state,
        says=_status_text(view),
        is_live=not view.is_over,
        where=where,
        updated_at=changed_at,
        tokens=view.tokens,
        cost=view.cost,
        path=str(path),
        rows=RowCounts(view.total, view.completed, view.failed),
    )


def _status_text(view: SweepView) -> str:
    parts = [f"{view.completed + view.failed} of {view.total} rows"]
    parts += [f"{view.failed} failed"] if view.failed else []
    waits = "waits" if view.waiting == 1 else "wait"
    parts += [f"{view.waiting} {waits} for you"] if view.waiting else []
    return " · ".join(parts)


def sweep_facts_at(path: Path, where: str = "") -> SweepFacts:
    """Return the entry of the sweep in a directory, read from its files without live rows."""
    return sweep_facts(*sweep_on_disk(path), path, where)


def sweep_cells(sweep: SweepFacts) -> tuple[str, ...]:
    """Return the cells of a sweep in a list of sweeps."""
    spent, task = dollars(sweep.cost), text.clip(sweep.task, 60)
    used, failed = token_count(sweep.tokens), str(sweep.rows.failed)
    return (sweep.session, sweep.state, sweep.progress, failed, used, spent, task)
