"""The static card of a turn: HTML, Markdown, text and JSON of one view, readable with no kernel.

Inline styles only, because a notebook's sanitiser drops style sheets and classes of notebooks that
are not trusted. Everything that a model or a tool wrote is escaped by Jinja2, or rendered from
Markdown with raw HTML and images off (an image is a request to somebody's server).
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markupsafe import Markup

from nb_agents.jupyter import text
from nb_agents.jupyter.ipython import display
from nb_agents.session.history import PastTurn
from nb_agents.view import AgentView, RunView

__all__ = ["TURN_MIME", "card_bundle", "card_text", "show_turn"]

TURN_MIME = "application/vnd.nb-agents.turn+json"
MAX_SHOWN = 20_000
"""Characters of one answer on a card; the file has all of it."""
MAX_FILES = 50


def card_bundle(view: RunView, path: str) -> dict[str, Any]:
    """Make a card.

    Args:
        view: The turn.
        path: Its directory, as shown to the person.

    Returns:
        A mime bundle: text/html, text/markdown, text/plain and `TURN_MIME`.
    """
    return {
        "text/html": _html(view, path),
        "text/markdown": card_text(view, path),
        "text/plain": card_text(view, path),
        TURN_MIME: _data(view, path),
    }


def show_turn(turn: PastTurn) -> None:
    """Display the card of a turn on disk, and what of it could not be read."""
    display(card_bundle(turn.view, str(turn.paths.path)), raw=True)
    for warning in turn.warnings:
        display({"text/plain": f"Not read: {warning}"}, raw=True)


def card_text(view: RunView, path: str) -> str:
    """Make the card as Markdown that reads well as plain text too."""
    match text.state(view):
        case "complete":
            body = [view.answer, "", f"— {_how(view)}"]
        case "failed" if view.stop is None:
            errors = [f"- {a.id}: {a.error or 'no answer'}" for a in view.agents.values()]
            cells = [f"    {line}" for line in _resume(view)]
            body = ["**Failed: no agent gave an answer.**", *errors, "", *cells]
        case "stopped" | "failed":
            body = _incomplete_text(view)
        case _:
            body = [f"A run is live. `%agents show {_address(view)}` shows it again."]
    lines = [f"### {text.clip(view.task, 200)} [{text.state(view)}]", "", *body]
    lines += ["", *(f"> {notice}" for notice in view.notices if notice.strip())]
    lines += ["", f"{_address(view)} · {text.spent(view)} · {path}"]
    return "\n".join(lines)


def _incomplete_text(view: RunView) -> list[str]:
    lines = [f"**Incomplete turn.** {_summary(view)}", ""]
    for agent in view.agents.values():
        best = " · best answer so far" if agent.id == view.best_agent else ""
        lines.append(f"#### {agent.id}: {text.agent_state(agent, view)}{best}")
        lines += [part for part in (_cut(agent.answer), _partial(agent), agent.error) if part]
        files = [f"{f.path} {text.size(f.size)}" for f in view.files if f.agent == agent.id]
        lines += [f"Files: {', '.join(files[:MAX_FILES])}"] if files else []
        lines.append("")
    cells = [f"    {line}" for line in [*_resume(view), _continue(view)]]
    return [*lines, "Go on in any later cell, also after a restart:", "", *cells]


def _summary(view: RunView) -> str:
    """The card's first sentences: who stopped it, when, what is kept, what it cost."""
    answers = sum(1 for a in view.agents.values() if a.answers)
    partials = sum(1 for a in view.agents.values() if a.partial.strip())
    kept = [
        _count(answers, "answer"),
        _count(partials, "partial text"),
        _count(len(view.files), "file"),
    ]
    kept = [k for k in kept if k] or ["the task"]
    listed = kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} and {kept[-1]}"
    verb = "is" if len(kept) == 1 and not listed.endswith("s") else "are"
    return (
        f"{text.stopped_by(view)} after {text.duration(view)}, while {view.phase}. "
        f"Nothing was lost: {listed} {verb} kept. Spent {text.spent(view)}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def _how(view: RunView) -> str:
    answers = sum(len(a.answers) for a in view.agents.values())
    return " · ".join(
        part
        for part in (_count(answers, "answer"), text.votes(view), f"presented by {view.winner}")
        if part
    )


def _address(view: RunView) -> str:
    return f"{view.session}/{view.turn}"


def _continue(view: RunView) -> str:
    return f"%%agents --continue --session {view.session}"


def _resume(view: RunView) -> list[str]:
    """The cell that resumes the turn: two lines, or none when it has no journal."""
    if not view.seq:
        return []
    again = f"# same task, from here; runs again: {_runs_again(view)}"
    return [again, f"%agents resume {view.session}"]


def _runs_again(view: RunView) -> str:
    # When all have failed, a resume is another try of each; beside others, the failed stay out.
    is_failure = text.state(view) == "failed"
    asked = [
        a.id
        for a in view.agents.values()
        if a.was_cut or a.in_flight or (is_failure and a.outcome == "failed")
    ]
    calls = f"{_count(len(asked), 'model call')} ({', '.join(asked)})" if asked else ""
    unfinished = ("running", "cut", "cancelled")
    tools = [f"{t.tool} ({t.agent})" for t in view.tools if t.outcome in unfinished]
    return text.clip(", ".join([calls] * bool(asked) + tools), 200) or "nothing"


def _cut(words: str) -> str:
    return words if len(words) <= MAX_SHOWN else words[:MAX_SHOWN] + "\n\n[… the file has it all]"


def _partial(agent: AgentView) -> str:
    return f"[partial text] {_cut(agent.partial)} …" if agent.partial.strip() else ""


def _data(view: RunView, path: str) -> dict[str, Any]:
    return {
        "session": view.session,
        "turn": view.turn,
        "task": view.task,
        "state": text.state(view),
        "phase": view.phase,
        "winner": view.winner,
        "answer": _cut(view.answer),
        "agents": [
            {
                "id": a.id,
                "model": a.model,
                "answer": _cut(a.answer),
                "vote": a.vote.target if a.vote else None,
                "partial": _cut(a.partial),
                "tokens": a.tokens,
                "cost": a.cost,
                "error": a.error,
            }
            for a in view.agents.values()
        ],
        "files": [asdict(f) for f in view.files[:MAX_FILES]],
        "path": path,
    }


def _html(view: RunView, path: str) -> str:
    template = _environment().get_template("card.html.j2")
    return template.render(
        view=view,
        path=path,
        state=text.state(view),
        summary=_summary(view),
        how=_how(view) if view.winner else "",
        address=_address(view),
        notices=[notice for notice in view.notices if notice.strip()],
        resume_cell="\n".join(_resume(view)),
        continue_cell=f"{_continue(view)}\nWhat should the agents do now?",
        files={a: [f for f in view.files if f.agent == a][:MAX_FILES] for a in view.agents},
        markdown=lambda words: Markup(_markdown().render(_cut(words))),
        text=text,
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("nb_agents.jupyter"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _markdown() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    made.core.ruler.push("margins", _set_margins)
    return made


_MARGINS = {
    "paragraph_open": "6px 0",
    "bullet_list_open": "6px 0",
    "ordered_list_open": "6px 0",
    "table_open": "8px 0",
    "heading_open": "10px 0 4px",
}


def _set_margins(state: StateCore) -> None:
    """Set blocks as close as the rest of the card; a page's own margins are made for documents."""
    for token in state.tokens:
        if margin := _MARGINS.get(token.type):
            token.attrSet("style", f"margin:{margin}")
