"""The verb that lists sweeps."""

from __future__ import annotations

from pathlib import Path

from nb_agents.extensions.sweeps.sweep_kind import SWEEPS
from nb_agents.verbs.outcome import Table
from nb_agents.verbs.verb import Caller, Verb


def sweeps(root: Path, caller: Caller) -> Table:
    """List the sweeps on disk."""
    facts = [SWEEPS.facts_at(path) for path in SWEEPS.paths(root)]
    rows = [SWEEPS.row(each) for each in facts]
    return Table(SWEEPS.heads, rows, facts, empty="There are no sweeps.")


LIST_SWEEPS = Verb("sweeps", sweeps, "root")
