"""The Jupyter server extension."""

from nb_agents.routes import ROUTES
from nb_agents.server import places, session_handlers
from nb_agents.server.feeds import Feeds, TurnFeed
from nb_agents.server.handler import handler_function, handlers
from nb_agents.server.openapi import Resume, document
from nb_agents.server.places import NameResolver, resume_turn
from nb_agents.server.run_handlers import _ask as ask
from nb_agents.server.session_handlers import MAX_LISTED
from nb_agents.server.streams import panels

__all__ = [
    "Feeds",
    "MAX_LISTED",
    "NameResolver",
    "ROUTES",
    "Resume",
    "TurnFeed",
    "ask",
    "document",
    "handler_function",
    "handlers",
    "panels",
    "places",
    "resume_turn",
    "session_handlers",
]
