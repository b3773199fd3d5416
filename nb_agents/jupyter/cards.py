"""The static card of a turn: HTML, Markdown, text and JSON of one view, readable with no kernel.

Inline styles only, because a notebook's sanitiser drops style sheets and classes of notebooks that
are not trusted. Everything that a model or a tool wrote is escaped by Jinja2, or rendered from
Markdown with raw HTML and images off (an image is a request to somebody's server).
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markupsafe import Markup

from nb_agents.events import FileInfo
from nb_agents.jupyter import recipe_card, text, what_happened
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.plots import plots_of
from nb_agents.session.history import PastTurn, past_events
from nb_agents.session.layout import session_root
from nb_agents.timeline import Timeline, fold_timeline
from nb_agents.view import AgentView, RunView

__all__ = ["TURN_MIME", "card_bundle", "card_text", "show_turn"]

TURN_MIME = "application/vnd.nb-agents.turn+json"
MAX_SHOWN = 20_000
"""Characters of one answer on a card; the file has all of it."""
MAX_FILES = 50


def card_bundle(view: RunView, path: str, timeline: Timeline | None = None) -> dict[str, Any]:
    """Make a card.

    Args:
        view: The turn.
        path: Its directory, as shown to the person.
        timeline: What happened when, or None when that is not known.

    Returns:
        A mime bundle: text/html, text/markdown, text/plain and `TURN_MIME`.
    """
    return {
        "text/html": _html(view, path, timeline or Timeline()),
        "text/markdown": card_text(view, path),
        "text/plain": card_text(view, path),
        TURN_MIME: _data(view, path),
    }


def show_turn(turn: PastTurn) -> None:
    """Display the card of a turn on disk, and what of it could not be read."""
    timeline = fold_timeline(past_events(turn.paths), is_live=turn.is_live)
    display(card_bundle(turn.view, str(turn.paths.path), timeline), raw=True)
    for warning in turn.warnings:
        display({"text/plain": f"Not read: {warning}"}, raw=True)


def card_text(view: RunView, path: str) -> str:
    """Make the card as Markdown that reads well as plain text too."""
    match text.state(view):
        case "complete" if view.recipe:
            body = [recipe_card.recipe_text(view)]
        case "stopped" | "failed" if view.recipe:
            body = _recipe_text(view, path)
        case "complete":
            body = [view.answer, "", f"— {_how(view)}"]
        case "failed" if view.stop is None:
            errors = [f"- {a.id}: {a.error or 'no answer'}" for a in view.agents.values()]
            cells = [f"    {line}" for line in _resume(view, path)]
            body = ["**Failed: no agent gave an answer.**", *errors, "", *cells]
        case "stopped" | "failed":
            body = _incomplete_text(view, path)
        case _:
            body = [f"A run is live. `%agents show {_address(view)}` shows it again."]
    lines = [f"### {text.clip(view.task, 200)} [{text.state(view)}]", "", *body]
    lines += ["", *(f"> {note}" for note in _notes(view))]
    lines += ["", f"{_address(view)} · {text.spent(view)} · {path}"]
    return "\n".join(lines)


def _recipe_text(view: RunView, path: str) -> list[str]:
    cell = [f"    {line}" for line in _resume(view, path)]
    told = [f"**{_incomplete(view)}** {_summary(view)}", "", recipe_card.recipe_text(view)]
    return [*told, f"{_go_on(view)}:", "", *cell]


def _incomplete(view: RunView) -> str:
    return "Incomplete turn." if view.stop or view.status != "failed" else "Failed."


def _go_on(view: RunView) -> str:
    if not view.is_saved:
        return "Go on in any later cell, once `run.save()` has brought it to the disk"
    return "Go on in any later cell, also after a restart"


def _incomplete_text(view: RunView, path: str) -> list[str]:
    lines, of = [f"**Incomplete turn.** {_summary(view)}", ""], _files(view)
    for agent in view.agents.values():
        best = " · best answer so far" if agent.id == view.best_agent else ""
        lines.append(f"#### {agent.id}: {text.agent_state(agent, view)}{best}")
        words = _cut(agent.answer or agent.returned)
        lines += [part for part in (words, _partial(agent), agent.error) if part]
        files = [f"{f.path} {text.size(f.size)}" for f in of[agent.id]]
        lines += [f"Files: {', '.join(files)}"] if files else []
        lines.append("")
    cells = [f"    {line}" for line in [*_resume(view, path), _continue(view, path)]]
    return [*lines, f"{_go_on(view)}:", "", *cells]


def _summary(view: RunView) -> str:
    """The card's first sentences: who stopped it, when, what is kept, what it cost."""
    return f"{_ended(view)} {_kept(view)} Spent {text.spent(view)}."


def _ended(view: RunView) -> str:
    where = recipe_card.where(view) if view.recipe else f", while {view.phase}"
    if view.status == "failed" and view.stop is None:
        return f"It ended after {text.duration(view)}."
    return f"{text.stopped_by(view)} after {text.duration(view)}{where}."


def _kept(view: RunView) -> str:
    """Say what is kept, and where: when the disk refused, it is in memory alone."""
    kept = [*_kept_work(view), _count(view.file_count or 0, "file")]
    kept = [k for k in kept if k] or ["the task"]
    listed = kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} and {kept[-1]}"
    verb = "is" if len(kept) == 1 and not listed.endswith("s") else "are"
    if view.is_saved:
        return f"Nothing was lost: {listed} {verb} kept."
    return (
        f"Not all of it is on the disk, which refused: {listed} {verb} kept, in part perhaps only "
        "as long as this kernel lives. `run.save()` tries again."
    )


def _kept_work(view: RunView) -> list[str]:
    if view.recipe:
        return recipe_card.kept(view)
    answers = sum(1 for a in view.agents.values() if a.answers)
    partials = sum(1 for a in view.agents.values() if a.partial.strip())
    return [_count(answers, "answer"), _count(partials, "partial text")]


def _notes(view: RunView) -> list[str]:
    """The notices, and the follow-up texts that came too late to be read."""
    late = view.unheard if view.is_over else ()
    reader = "No step" if view.recipe else "No agent"
    unread = (
        f"{reader} had read this yet; the next turn has it: “{text.clip(each, 200)}”"
        for each in late
    )
    return [*(notice for notice in view.notices if notice.strip()), *unread]


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


def _continue(view: RunView, path: str) -> str:
    return f"%%agents --continue --session {_line(_words(view, path))}"


def _resume(view: RunView, path: str) -> list[str]:
    """The cell that resumes the turn: two lines, or none when it has no journal."""
    if not view.seq:
        return []
    again = f"# same task, from here; runs again: {_runs_again(view)}"
    return [again, f"%agents resume {_line(_words(view, path))}"]


def _words(view: RunView, path: str) -> list[str]:
    """The session as a magic's words: its id, and its root when that is not where one looks."""
    root = Path(path).parent.parent
    is_turn = Path(path).name == f"turn_{view.turn}"
    if not is_turn or root.absolute() == session_root():
        return [view.session]
    return [view.session, "--session-root", str(root)]


def _line(words: list[str]) -> str:
    return " ".join(f'"{word}"' if " " in word else word for word in words)


_PLAIN = re.compile(r"[\w./\\:~-][\w ./\\:~+,@=-]*")
"""Words that IPython takes as they stand: nothing in them is a quote, ``$name`` or ``{name}``."""


@dataclass(frozen=True)
class _Button:
    """A button that runs a command of JupyterLab: no kernel of ours need be there.

    Source: CommandLinker, https://jupyterlab.readthedocs.io/en/stable/user/commands.html
    """

    command: str
    args: str


def _resume_button(view: RunView, path: str) -> _Button | None:
    """The button that does what the cell on the card does; None when there is no such cell."""
    # While the journal lacks its end, a resume would go on from before.
    if (
        not view.seq
        or not view.is_saved
        or not all(_PLAIN.fullmatch(word) for word in _words(view, path))
    ):
        return None
    commands = ["notebook:insert-cell-below", "notebook:replace-selection", "notebook:run-cell"]
    # One object for all of them: JupyterLab 4.6 looks for a list of arguments in the wrong place.
    args = {"commands": commands, "args": {"text": f"{_LOAD}\n{_resume(view, path)[-1]}"}}
    return _Button("apputils:run-all-enabled", json.dumps(args))


_LOAD = 'get_ipython().extension_manager.load_extension("nb_agents")'
"""As ``%load_ext nb_agents``, which says so when it was loaded before."""


def _runs_again(view: RunView) -> str:
    if view.recipe:
        return recipe_card.runs_again(view)
    # When none is left, a resume is another try of each; beside others, who failed or was stopped
    # alone stays out. One that was called is called again by its caller's tool call, if by any.
    is_failure = text.state(view) == "failed"
    team = {a.id: a for a in view.agents.values() if not a.caller}
    is_retry = not any(a.answers or not (a.stop or a.outcome == "failed") for a in team.values())
    back = {a.id: a for a in team.values() if is_retry or not a.stop}
    asked = [
        a.id
        for a in back.values()
        if a.was_cut or a.in_flight or (is_failure and a.outcome == "failed")
    ]
    calls = f"{_count(len(asked), 'model call')} ({', '.join(asked)})" if asked else ""
    unfinished = ("running", "cut", "cancelled")
    tools = [
        f"{t.tool} ({t.agent})" for t in view.tools if t.outcome in unfinished and t.agent in back
    ]
    return text.clip(", ".join([calls] * bool(asked) + tools), 200) or "nothing"


def _cut(words: str) -> str:
    return words if len(words) <= MAX_SHOWN else words[:MAX_SHOWN] + "\n\n[… the file has it all]"


def _partial(agent: AgentView) -> str:
    return f"[partial text] {_cut(agent.partial)} …" if agent.partial.strip() else ""


def _data(view: RunView, path: str) -> dict[str, Any]:
    told = recipe_card.recipe_data(view) if view.recipe else _team_data(view)
    return {
        "session": view.session,
        "turn": view.turn,
        "task": view.task,
        "state": text.state(view),
        **told,
        "files": [asdict(f) for f in view.files[:MAX_FILES]],
        "path": path,
    }


def _team_data(view: RunView) -> dict[str, Any]:
    return {
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
    }


def _html(view: RunView, path: str, timeline: Timeline) -> str:
    template = _environment().get_template("card.html.j2")
    return template.render(
        view=view,
        path=path,
        state=text.state(view),
        incomplete=_incomplete(view),
        summary=_summary(view),
        card=recipe_card.recipe_card(view) if view.recipe else None,
        go_on=_go_on(view),
        heading=what_happened.heading(view),
        picture=what_happened.picture(timeline),
        revisions=what_happened.revisions,
        # An incomplete turn's answers are above, whole.
        limit=MAX_SHOWN if text.state(view) == "complete" else MAX_SHOWN // 5,
        address=_address(view),
        notices=_notes(view),
        resume_cell="\n".join(_resume(view, path)),
        resume_button=_resume_button(view, path),
        continue_cell=f"{_continue(view, path)}\nWhat should the agents do now?",
        files=_files(view),
        markdown=lambda words: Markup(_markdown().render(_cut(words))),
        took=recipe_card.took,
        plots=plots_of(view, path) if view.is_over else (),
        text=text,
    )


def _files(view: RunView) -> dict[str, list[FileInfo]]:
    """Give the first files of each agent, or those of a recipe, whose steps share a workspace."""
    of = {a.id: a.workspace or a.id for a in view.agents.values()}
    owners = {view.recipe: view.recipe} if view.recipe else of
    return {k: [f for f in view.files if f.agent == w][:MAX_FILES] for k, w in owners.items()}


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
    made.core.ruler.push("blocks", _set_blocks)
    return made


_MARGINS = {
    "paragraph_open": "6px 0",
    "bullet_list_open": "6px 0",
    "ordered_list_open": "6px 0",
    "table_open": "8px 0",
    "heading_open": "10px 0 4px",
}


def _set_blocks(state: StateCore) -> None:
    """Set blocks as close as the rest of the card, and in the direction of their words.

    A page's own margins are made for documents, and its direction is that of its menus.
    """
    for token in state.tokens:
        if margin := _MARGINS.get(token.type):
            token.attrSet("style", f"margin:{margin};text-align:start")
            token.attrSet("dir", "auto")
