"""Unicode, control characters and JSON."""

from nb_agents.nouns import price, token_count
from nb_agents.unicode import TOO_DEEP, json_text, well_formed, without_controls

__all__ = [
    "TOO_DEEP",
    "price",
    "json_text",
    "token_count",
    "well_formed",
    "without_controls",
]
