"""Renders a session as one HTML page that any browser can show, without nb_agents or a network.

The page has no script, and its content security policy forbids scripts, forms and all requests.
Text of models and files is escaped, and known secrets are masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from nb_agents.disk.directory import Directory
from nb_agents.launch.resume_plan import preview_of
from nb_agents.nouns import dollars
from nb_agents.presentation import text
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.cards import card_bundle, card_template
from nb_agents.presentation.explanation import explain
from nb_agents.presentation.markdown import sanitize
from nb_agents.session.history import PastTurn, Session, past_events
from nb_agents.unicode import without_controls
from nb_agents.view.receipt import receipt
from nb_agents.view.timeline import fold_timeline

MAX_TURNS = 20
"""Maximum number of turns on a page. The latest ones are shown."""
MAX_FILE_CHARS = 20_000
"""Maximum length of a file's shown text, in characters. A longer file is cut."""
MAX_FILE_BYTES = 1_000_000
"""A larger file is listed without its text."""
MAX_TEXT_CHARS = 150_000
"""Maximum length of the text of all files of a turn, in characters."""

CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""What a browser lets the page do: use its own styles and images, and nothing else."""


class ShownFile(NamedTuple):
    """A file of a workspace.

    Attributes:
        name: The agent and the path.
        size: The size as text.
        text: The beginning of its text, or "" for a file that is not text.
        is_cut: Whether text is missing.
    """

    name: str
    size: str
    text: str
    is_cut: bool


def session_page(session: Session) -> str:
    """Return a session as an HTML page.

    Args:
        session: The session, with its turns.
    """
    turns = session.turns[-MAX_TURNS:]
    page = card_template("page.html.j2").render(
        session=session.path.name,
        policy=CONTENT_POLICY,
        left_out=len(session.turns) - len(turns),
        turns=[_turn(each) for each in turns],
    )
    masked: str = sanitize({"text/html": page})["text/html"]
    return masked


def _turn(turn: PastTurn) -> dict[str, Any]:
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
        "files": list(_files(turn)),
    }


def _receipt_rows(turn: PastTurn) -> Sequence[tuple[str, ...]]:
    """Return the agent, outcome, answers, tokens and cost of each agent."""
    agents = receipt(turn.view, str(turn.paths.path)).agents
    return [
        (
            name,
            each.outcome,
            str(each.answers),
            text.tokens(each.tokens, each.is_estimated),
            "unknown" if each.cost is None else dollars(each.cost) or "–",
        )
        for name, each in agents.items()
    ]


def _files(turn: PastTurn) -> Iterator[ShownFile]:
    """Yield the files of the workspaces, with their text as far as the page has room."""
    room = MAX_TEXT_CHARS
    for file in turn.view.files:
        content = _text_of(turn, file.agent, file.path) if room and file.size else ""
        shown = content[: min(room, MAX_FILE_CHARS)]
        room -= len(shown)
        name = without_controls(f"{file.agent}: {file.path}")
        yield ShownFile(name, text.size(file.size), shown, len(shown) < len(content))


def _text_of(turn: PastTurn, agent: str, path: str) -> str:
    """Return the text of a file, or "" if it is not text, too large or unreadable."""
    with (
        suppress(OSError, ValueError),
        Directory.at(turn.paths.path / "workspaces" / agent) as folder,
    ):
        return without_controls(folder.read(path, MAX_FILE_BYTES).decode())
    return ""
