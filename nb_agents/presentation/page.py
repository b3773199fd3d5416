"""Renders a session as one HTML page that any browser can show, without nb_agents or a network.

The page has no script, and its content security policy forbids scripts, forms and all requests.
Text of models and files is escaped, and known secrets are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nb_agents.launch.resume_plan import preview_of
from nb_agents.nouns import dollars, token_count
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.cards import card_bundle, card_template
from nb_agents.presentation.explanation import explain
from nb_agents.presentation.markdown import sanitize
from nb_agents.presentation.page_files import shown_files
from nb_agents.session.history import PastTurn, Session, past_events
from nb_agents.view.receipt import receipt
from nb_agents.view.timeline import fold_timeline

MAX_TURNS = 20
"""Maximum number of turns on a page. The latest ones are shown."""

CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""What a browser lets the page do: use its own styles and images, and nothing else."""


def session_page(session: Session, archive: str) -> str:
    """Return a session as an HTML page.

    Args:
        session: The session, with its turns.
        archive: The name of the zip file next to the page.
    """
    turns = session.turns[-MAX_TURNS:]
    earlier = [None, *session.turns][-len(turns) - 1 : -1] if turns else []
    page = card_template("page.html.j2").render(
        session=session.path.name,
        archive=archive,
        policy=CONTENT_POLICY,
        left_out=len(session.turns) - len(turns),
        turns=[_turn(each, before) for before, each in zip(earlier, turns, strict=True)],
    )
    masked: str = sanitize({"text/html": page})["text/html"]
    return masked


def _turn(turn: PastTurn, previous: PastTurn | None) -> dict[str, Any]:
    """Return the values of the template for a turn."""
    view, paths = turn.view, turn.paths
    events = past_events(paths)
    timeline, again = fold_timeline(events, is_live=turn.is_live), preview_of(view, paths)
    address = f"{paths.session}/{paths.number}"
    card = card_bundle(view, address, timeline, again, paths.path, TERMINAL)
    return {
        "number": paths.number,
        "card": card["text/html"],
        "why": str(explain(view, events, str(paths.path), TERMINAL, again)),
        "receipt": _receipt_rows(turn),
        "files": list(shown_files(turn, previous)),
    }


def _receipt_rows(turn: PastTurn) -> Sequence[tuple[str, ...]]:
    """Return the agent, outcome, answers, tokens and cost of each agent."""
    agents = receipt(turn.view, str(turn.paths.path)).agents
    return [
        (
            name,
            each.outcome,
            str(each.answers),
            token_count(each.tokens, each.is_estimated),
            "unknown" if each.cost is None else dollars(each.cost) or "–",
        )
        for name, each in agents.items()
    ]
