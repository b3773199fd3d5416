"""The card and the panel of a run in notebooks."""

from __future__ import annotations

from nb_agents.plugins import Extension

EXTENSION = Extension(
    name="notebook",
    displays={"run": "nb_agents.presentation.cards:card_of_run"},
    panels={"run": "nb_agents.jupyter.panel:panel_of"},
)
