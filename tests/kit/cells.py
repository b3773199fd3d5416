"""Magics and panels in a notebook."""

from nb_agents.jupyter import formatters, kernel, panel, verbs
from nb_agents.jupyter.completion import completions
from nb_agents.jupyter.formatters import _receipt as receipt
from nb_agents.jupyter.formatters import _view as view
from nb_agents.jupyter.ipython import actions_of, parse_line, parse_message
from nb_agents.jupyter.kernel import DRAWN_REQUEST, handle_page_request, on_page_message
from nb_agents.jupyter.magic import AgentsMagics
from nb_agents.jupyter.verbs import VERBS

__all__ = [
    "AgentsMagics",
    "DRAWN_REQUEST",
    "VERBS",
    "actions_of",
    "completions",
    "formatters",
    "handle_page_request",
    "kernel",
    "on_page_message",
    "panel",
    "parse_line",
    "parse_message",
    "receipt",
    "verbs",
    "view",
]
