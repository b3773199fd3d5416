"""Data of extensions that a page gets with a run's panel and card. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from nb_agents.errors import error_message
from nb_agents.plugins import ExtensionPoint
from nb_agents.view.run_view import RunView

PanelPart = Callable[[RunView], Mapping[str, object]]
"""Returns an extension's data for the page as JSON values, or {} for none.

It is sent with each state of the panel, so it must be small.
"""

_PANEL_PARTS = ExtensionPoint[PanelPart]("panel_parts")
_logger = logging.getLogger(__name__)


def panel_parts(view: RunView) -> dict[str, object]:
    """Return the data of extensions by name. Extensions without data are left out."""
    if not view.extension_state:
        return {}
    parts = ((name, _part(name, make, view)) for name, make in _PANEL_PARTS.all().items())
    return {name: dict(part) for name, part in parts if part}


def _part(name: str, make: PanelPart, view: RunView) -> Mapping[str, object]:
    try:
        return make(view)
    except Exception as exc:  # an extension may raise anything
        _logger.warning("Panel part %r failed. %s", name, error_message(exc, named=True))
        return {}
