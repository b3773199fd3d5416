"""The card of a sweep or of a comparison, whichever a directory contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nb_agents.extensions.sweeps.comparison_card import comparison_bundle, comparison_text
from nb_agents.extensions.sweeps.comparison_file import read_comparison
from nb_agents.extensions.sweeps.sweep_card import sweep_bundle, sweep_text, sweep_title
from nb_agents.extensions.sweeps.sweep_fold import SweepView
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.text import shown_path

Table = Callable[[], Sequence[Mapping[str, Any]]]


def any_bundle(path: Path, view: SweepView, table: Table) -> dict[str, Any]:
    """Return the card of a sweep or comparison as a mime bundle.

    Args:
        path: The sweep's directory.
        view: The sweep's state.
        table: Returns the records of the rows.
    """
    title, shown = sweep_title(path), shown_path(path)
    if (found := read_comparison(path)) is not None:
        return comparison_bundle(view, found, title, shown)
    return sweep_bundle(view, title, shown, table() if view.is_over else [])


def any_text(path: Path, view: SweepView, table: Table) -> str:
    """Return the card of a sweep or comparison as text, for a terminal.

    The arguments are those of `any_bundle`.
    """
    title = sweep_title(path)
    if (found := read_comparison(path)) is not None:
        return comparison_text(view, found, title, str(path), TERMINAL)
    return sweep_text(view, title, str(path), table(), TERMINAL)
