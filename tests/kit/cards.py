"""Cards, panels and transcripts."""

from nb_agents.presentation import cards, text
from nb_agents.presentation.arguments import complete_path, recipe_context
from nb_agents.presentation.asking import CELL, TERMINAL
from nb_agents.presentation.cards import (
    MAX_PLAIN,
    TURN_MIME,
    answers_of,
    card_bundle,
    card_of_run,
    card_text,
    turn_bundle,
)
from nb_agents.presentation.markdown import as_html, sanitize
from nb_agents.presentation.panel_state import panel_state
from nb_agents.presentation.panel_types import Status
from nb_agents.presentation.rows import MAX_ITERATIONS, agent_row, units
from nb_agents.presentation.steps_card import steps_text
from nb_agents.presentation.text import session_row
from nb_agents.presentation.transcript import TRANSCRIPT, pieces, read_transcript
from nb_agents.presentation.work_display import MAX_UNITS, display_of

__all__ = [
    "CELL",
    "MAX_ITERATIONS",
    "MAX_PLAIN",
    "MAX_UNITS",
    "Status",
    "TERMINAL",
    "TRANSCRIPT",
    "TURN_MIME",
    "agent_row",
    "answers_of",
    "as_html",
    "card_bundle",
    "card_of_run",
    "card_text",
    "cards",
    "complete_path",
    "display_of",
    "panel_state",
    "pieces",
    "read_transcript",
    "recipe_context",
    "steps_text",
    "sanitize",
    "session_row",
    "text",
    "turn_bundle",
    "units",
]
