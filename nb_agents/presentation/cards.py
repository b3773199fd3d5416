"""Renders the static card of a turn as HTML, Markdown, text and JSON. It needs no kernel.

Text from models and tools is escaped by Jinja2, or rendered from Markdown by
`nb_agents.presentation.markdown`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from nb_agents.errors import error_message
from nb_agents.events import ContextChanged, FileInfo
from nb_agents.launch.resume_plan import Preview, preview_of
from nb_agents.launch.run import Run
from nb_agents.nouns import count
from nb_agents.plugins import ExtensionPoint
from nb_agents.presentation import steps_card, text, timeline_picture
from nb_agents.presentation.answer_diffs import revisions
from nb_agents.presentation.asking import (
    CELL,
    EntryPoint,
    advice_on_length,
    how_to_answer,
    question,
)
from nb_agents.presentation.late_views import with_late_events
from nb_agents.presentation.markdown import as_html, marked, sanitize
from nb_agents.presentation.panel_parts import panel_parts
from nb_agents.presentation.renderer import hide_from_mathjax
from nb_agents.presentation.stylesheet import with_stylesheet
from nb_agents.presentation.work_display import display_of
from nb_agents.presentation.workspace_images import WorkspaceImages
from nb_agents.session.history import PastTurn, past_events
from nb_agents.session.layout import session_root
from nb_agents.view.run_view import AgentView, RunView
from nb_agents.view.timeline import Timeline, fold_timeline

TURN_MIME = "application/vnd.nb-agents.turn+json"
MAX_SHOWN = 20_000
"""Maximum length of an answer on a card, in characters. The turn's file has the whole answer."""
MAX_PLAIN = 400
"""Maximum length of an answer in the plain text of a bundle, in characters.

The bundle also has Markdown.
"""
MAX_BESIDE = 4000
"""Maximum length of an answer shown next to others, in characters. The journal has all of it."""
MAX_FILES = 50

CARD_PARTS = ExtensionPoint[Callable[[RunView], str]]("cards")
"""The functions of extensions that return a part of a card as Markdown, or "" for none."""
_logger = logging.getLogger(__name__)


def card_of_run(run: Run) -> dict[str, Any]:
    """Return the card of a run as a mime bundle."""
    path = text.shown_path(run.path)
    return card_bundle(run.view, path, run.timeline, run.preview, run.path)


def card_bundle(
    view: RunView,
    path: str,
    timeline: Timeline | None = None,
    again: Preview | None = None,
    directory: Path | None = None,
    entry_point: EntryPoint = CELL,
) -> dict[str, Any]:
    """Return the card of a turn as a mime bundle.

    Args:
        view: The view of the turn.
        path: The turn's directory, as shown to the user.
        timeline: The turn's timeline, if known.
        again: The preview of a resume, or None if it is unknown or there is nothing to resume.
        directory: The turn's directory on this machine. Defaults to `path`.
        entry_point: The syntax of the commands on the card.

    Returns:
        A mime bundle: text/html, text/markdown, text/plain and `TURN_MIME`.
    """
    view = with_late_events(view, directory or Path(path))
    markdown = card_text(view, path, again, entry_point)
    mark = next(mark for mark in map(chr, range(0xE000, 0xF900)) if mark not in markdown)
    html = _html(view, path, timeline or Timeline(), again, directory or Path(path), entry_point)
    bundle = sanitize(
        {
            "text/html": with_stylesheet(html),
            "text/markdown": card_text(view, path, again, entry_point, mark=mark),
            "text/plain": card_text(view, path, again, entry_point, MAX_PLAIN),
            TURN_MIME: _pointer(view, path, markdown),
        }
    )
    bundle["text/markdown"], bundle[TURN_MIME]["answers"] = _unmarked(bundle["text/markdown"], mark)
    return bundle


def _unmarked(marked: str, mark: str) -> tuple[str, list[list[int]]]:
    """Remove the separator characters around answers from Markdown.

    Returns the Markdown and, for each answer, the half-open range of its lines. Positions are line
    numbers, because Python and JavaScript count characters differently.
    """
    joined, answers = "", []
    for index, part in enumerate(marked.split(mark)):
        if index % 2:
            first = joined.count("\n")
            joined += part.strip("\n")
            answers.append([first, joined.count("\n") + 1])
        else:
            joined += part
    return joined, answers


def answers_of(bundle: Mapping[str, Any]) -> list[str]:
    """Return the answers on a card created by `card_bundle`, as Markdown and in order."""
    lines = bundle["text/markdown"].split("\n")
    return ["\n".join(lines[first:after]) for first, after in bundle[TURN_MIME]["answers"]]


def turn_bundle(turn: PastTurn, directory: str) -> dict[str, Any]:
    """Return the card of a turn on disk.

    Args:
        directory: The turn's directory, as shown to the user.
    """
    paths = turn.paths
    timeline = fold_timeline(past_events(paths), is_live=turn.is_live)
    return card_bundle(turn.view, directory, timeline, preview_of(turn.view, paths), paths.path)


def card_text(
    view: RunView,
    path: str,
    again: Preview | None = None,
    entry_point: EntryPoint = CELL,
    limit: int = MAX_SHOWN,
    mark: str = "",
) -> str:
    """Return a card as Markdown that is readable as plain text.

    Args:
        view: The view of the turn.
        path: The turn's directory, as shown to the user.
        again: The preview of a resume, or None if it is unknown or there is nothing to resume.
        entry_point: The syntax of the commands on the card.
        limit: Maximum length of an answer, in characters.
        mark: A separator to insert before and after each answer that the HTML also contains.
    """
    match view.state:
        case "complete" if view.has_steps:
            body = [steps_card.steps_text(view, again, limit, mark)]
        case "stopped" | "failed" | "timed out" if view.has_steps:
            body = _incomplete_steps_text(view, path, again, entry_point, limit, mark)
        case "complete":
            body = [marked(_cut(view.answer, limit), mark), "", f"— {_resume_advice(view)}"]
        case "failed" if view.stop is None:
            errors = [f"- {a.id}: {a.error or 'no answer'}" for a in view.agents.values()]
            cells = [f"    {line}" for line in _resume(view, path, again, entry_point)]
            body = ["**Failed: no agent gave an answer.**", *errors, "", *cells]
        case "stopped" | "failed" | "timed out":
            body = _incomplete_text(view, path, again, entry_point, limit, mark)
        case _:
            body = _live_text(view, path, entry_point)
    lines = [f"### {text.clip(view.task, 200)} [{view.state}]", "", *body]
    lines += [line for part in _parts(view) for line in ("", part)]
    lines += ["", *(f"> {note}" for note in notes(view, entry_point))]
    lines += ["", " · ".join(filter(None, [_address(view), text.spent(view), path]))]
    return "\n".join(lines)


def _parts(view: RunView) -> list[str]:
    """Return the parts of the card that extensions add, as Markdown."""
    parts = (_part(name, make, view) for name, make in CARD_PARTS.all().items())
    return [_cut(part) for part in parts if part.strip()]


def _part(name: str, make: Callable[[RunView], str], view: RunView) -> str:
    try:
        return make(view)
    except Exception as exc:  # an extension may raise anything
        _logger.warning("Card part %r failed. %s", name, error_message(exc, named=True))
        return ""


def _incomplete_steps_text(
    view: RunView, path: str, again: Preview | None, entry_point: EntryPoint, limit: int, mark: str
) -> list[str]:
    cell = [f"    {line}" for line in _resume(view, path, again, entry_point)]
    summary = f"**{_incomplete(view)}** {_summary(view, entry_point)}"
    lines = [summary, "", steps_card.steps_text(view, again, limit, mark)]
    return [
        *lines,
        f"{display_of(view).next_action} {_when_possible(view, entry_point)}:",
        "",
        *cell,
    ]


def _incomplete(view: RunView) -> str:
    return "Incomplete turn." if view.stop or view.status != "failed" else "Failed."


def _next_line(view: RunView, entry_point: EntryPoint) -> str:
    return f"{display_of(view).next_action} {_when_possible(view, entry_point)}:"


def _when_possible(view: RunView, entry_point: EntryPoint) -> str:
    return entry_point.later if view.is_saved else entry_point.once_saved


def _incomplete_text(
    view: RunView, path: str, again: Preview | None, entry_point: EntryPoint, limit: int, mark: str
) -> list[str]:
    lines, of = [f"**Incomplete turn.** {_summary(view, entry_point)}", ""], _files(view)
    for agent in _by_importance(view):
        best = " · best answer so far" if agent.id == view.best_agent else ""
        lines.append(f"#### {agent.id}: {text.agent_state(agent)}{best}")
        words = marked(_cut(agent.answer or agent.returned, limit), mark)
        lines += [part for part in (words, _partial(agent, limit), agent.error) if part]
        files = [f"{f.path} {text.size(f.size)}" for f in of[agent.id]]
        lines += [f"Files: {', '.join(files)}"] if files else []
        lines.append("")
    again_, next_ = _resume(view, path, again, entry_point), _continue(view, path, entry_point)
    cells = [f"    {line}" for line in [*again_, next_]]
    return [
        *lines,
        f"{display_of(view).next_action} {_when_possible(view, entry_point)}:",
        "",
        *cells,
    ]


def _by_importance(view: RunView) -> list[AgentView]:
    """Return the agents that failed, then the one with the best answer, then all others."""
    return sorted(
        view.agents.values(), key=lambda agent: (not agent.error, agent.id != view.best_agent)
    )


def _live_text(view: RunView, path: str, entry_point: EntryPoint) -> list[str]:
    """Return the state of a live run, with the commands that show and resume it later."""
    lines = [f"#### {agent}: {state}" for agent, state in display_of(view).states(view)]
    session = view.session
    gates = view.gates.values()
    questions = [f"{question(g)} {how_to_answer(g, view, session, entry_point)}" for g in gates]
    cell = [f"    {line}" for line in _resume(view, path, None, entry_point)[-1:]]
    live = f"{_LIVE} `{entry_point.line('show', [_address(view)])}` shows its current state."
    again = [f"If its {entry_point.writer} has ended, this resumes it:", "", *cell] if cell else []
    return [live, *questions, *again, "", *lines]


_LIVE = "This run was live when this was written."


def _summary(view: RunView, entry_point: EntryPoint) -> str:
    """Return the card's first sentences: who stopped the turn and when, saved work, and cost."""
    spent = text.spent(view)
    sentences = [
        _end_text(view, entry_point),
        _failed_agents(view),
        _saved(view, entry_point),
        f"Spent {spent}." if spent else "",
    ]
    return " ".join(filter(None, sentences))


def _failed_agents(view: RunView) -> str:
    """Return a sentence with the names of failed agents, or "". A recipe's steps have their own."""
    failed = [] if view.has_steps else [agent.id for agent in view.agents.values() if agent.error]
    if not failed:
        return ""
    return f"{count(len(failed), 'agent')} failed: {text.clip(', '.join(failed), 200)}."


def _end_text(view: RunView, entry_point: EntryPoint) -> str:
    where = display_of(view).ended_at(view)
    took = text.duration(view)
    after = f" after {took}" if took else ""
    if view.status == "failed" and view.stop is None:
        return f"It ended{after}."
    return f"{text.stopped_by(view, entry_point.writer)}{after}{where}."


def _saved(view: RunView, entry_point: EntryPoint) -> str:
    """Return a sentence about the saved work, or about work that could not be saved."""
    counts = [*display_of(view).work_counts(view), text.count_any(view.file_count or 0, "file")]
    counts = [each for each in counts if each] or ["the task"]
    summary = counts[0] if len(counts) == 1 else f"{', '.join(counts[:-1])} and {counts[-1]}"
    verb = "was" if len(counts) == 1 and not summary.endswith("s") else "were"
    if view.is_saved:
        return f"Nothing was lost: {summary} {verb} saved."
    return (
        f"Not everything is on disk, because writing failed. Parts of {summary} may exist only in "
        f"the memory of this {entry_point.writer}. {entry_point.retried}"
    )


def notes(view: RunView, entry_point: EntryPoint) -> list[str]:
    """Return the notices of a turn, advice, and the user messages that no agent has read.

    Args:
        view: The view of the turn.
        entry_point: The syntax of the commands in the advice.
    """
    late = view.unheard if view.ending else ()
    reader = display_of(view).reader
    unread = (
        f"No {reader} has read this message yet. The next turn includes it: "
        f"“{text.clip(each, 200)}”"
        for each in late
    )
    notices = (notice for notice in view.notices if notice.strip())
    retried = [entry_point.retried] if view.status == "completed" and not view.is_saved else []
    changes = map(_changes, view.context_changes)
    advice = filter(None, [advice_on_length(_address(view), view.too_long, entry_point)])
    asked = _budget_questions(view)
    return [*notices, *asked, *retried, *advice, *changes, *unread, *_ends(view)]


def _budget_questions(view: RunView) -> Iterator[str]:
    """Yield the question to raise the budget that was open when the turn ended."""
    for gate in view.gates.values() if view.ending else ():
        if gate.about == "budget":
            yield (
                f"{question(gate)} A resume with the higher limit that is shown here raises the "
                "budget. A resume without it asks again."
            )


def _ends(view: RunView) -> Iterator[str]:
    """Yield whether the processes and servers of a stopped turn are confirmed to have ended."""
    ends = view.ends.values() if view.stop else ()
    if confirmed := [each.what for each in ends if each.is_confirmed]:
        yield f"Confirmed to have ended: {text.clip(', '.join(confirmed), 400)}."
    for each in ends:
        if not each.is_confirmed:
            yield f"Not confirmed to have ended: {each.what}. {each.how}"


def _changes(event: ContextChanged) -> str:
    """Return a sentence about the files that agents changed in context paths."""
    kinds = {"made": event.made, "changed": event.changed, "deleted": event.deleted}
    changes = (
        f"{kind} {text.clip(', '.join(names), 300)}" for kind, names in kinds.items() if names
    )
    return f"{text.count_any(event.count, 'file')} changed in context paths: {'; '.join(changes)}"


def _resume_advice(view: RunView) -> str:
    answers = text.count_any(sum(len(a.answers) for a in view.agents.values()), "answer")
    return " · ".join(filter(None, [answers, text.votes(view), f"presented by {view.winner}"]))


def _address(view: RunView) -> str:
    return f"{view.session}/{view.turn}"


def next_commands(
    view: RunView, path: str, again: Preview | None, entry_point: EntryPoint
) -> list[str]:
    """Return the lines that resume an incomplete turn, then the command that continues it.

    Args:
        view: The view of a turn that has ended.
        path: The turn's directory, as shown to the user.
        again: The preview of a resume, or None if it is unknown or there is nothing to resume.
        entry_point: The syntax of the commands.
    """
    resume = [] if view.ending == "complete" else _resume(view, path, again, entry_point)
    return [*resume, _continue(view, path, entry_point)]


def _continue(view: RunView, path: str, entry_point: EntryPoint = CELL) -> str:
    return entry_point.next_line(_words(view, path))


def _resume(
    view: RunView, path: str, again: Preview | None, entry_point: EntryPoint = CELL
) -> list[str]:
    """Return a comment and the command that resumes the turn. Empty if it has no journal."""
    # The directory of another user's session may have a name like "--trust".
    if not view.seq or view.session.startswith("-") or '"' in view.session:
        return []
    if view.too_long:  # the same request would be refused again
        return []
    comment = f"; runs again: {text.clip(again.runs_again, 200)}" if again else ""
    if again and again.not_again:
        comment += f"; not run again: {text.clip(again.not_again, 200)}"
    if again and again.goes_on:
        comment += f"; {_promises(view, again)}"
    if again and again.would_run is not None:
        comment += "; created by another user or machine: asks first"
    words = [*_words(view, path), *_higher_budget(view)]
    return [f"# same task, from here{comment}", entry_point.line("resume", words)]


def _higher_budget(view: RunView) -> Iterator[str]:
    """Yield the options that raise a used-up budget, without which a resume would be refused."""
    cost, tokens = view.raised_limits
    if cost is not None:
        yield from ("--max-cost", f"{cost:.10g}")
    if tokens is not None:
        yield from ("--max-tokens", str(tokens))


def _promises(view: RunView, again: Preview) -> str:
    """Return which agents continue from their transcript, and which resume exactly."""
    exact = [agent for agent in view.agents if agent not in again.goes_on]
    inexact = f"from their transcript: {text.clip(', '.join(again.goes_on), 200)}"
    return f"{inexact}; exactly: {text.clip(', '.join(exact), 200)}" if exact else inexact


def _words(view: RunView, path: str) -> list[str]:
    """Return the arguments that identify the session: its id, and its root if necessary."""
    root = Path(path).parent.parent
    is_turn = Path(path).name == f"turn_{view.turn}"
    if not is_turn or root.absolute() == session_root():
        return [view.session]
    return [view.session, "--session-root", str(root)]


_PLAIN = re.compile(r"[\w./\\:~-][\w ./\\:~+,@=-]*")
"""Matches arguments that IPython does not expand: without quotes, ``$name`` and ``{name}``."""


def _buttons(view: RunView, path: str) -> dict[str, str]:
    """Return the arguments of the card's buttons, which add a cell to the notebook.

    Source: CommandLinker, https://jupyterlab.readthedocs.io/en/stable/user/commands.html
    """
    # While the end of the journal is not saved, a resume would start from an earlier state.
    if not (view.is_saved and all(_PLAIN.fullmatch(word) for word in _words(view, path))):
        return {}
    cells = {"continue": (f"{_continue(view, path)}\n", "notebook:enter-edit-mode")}
    if line := _resume(view, path, None)[-1:]:
        return {"continue": add_cell(*cells["continue"]), "resume": cell_to_run(line[0])}
    return {name: add_cell(*cell) for name, cell in cells.items()}


def cell_to_run(line: str) -> str:
    """Return the arguments of a button that adds a cell with a line magic, and runs it."""
    return add_cell(f"{_LOAD}\n{line}", "notebook:run-cell")


def add_cell(source: str, then: str) -> str:
    """Return the arguments of a button that adds a cell.

    Args:
        source: The cell's source.
        then: The JupyterLab command to run in the new cell.
    """
    commands = ["notebook:insert-cell-below", "notebook:replace-selection", then]
    # One object for all commands, because JupyterLab 4.6 does not find a list of arguments.
    return json.dumps({"commands": commands, "args": {"text": source}})


_LOAD = 'get_ipython().extension_manager.load_extension("nb_agents")'
"""Like ``%load_ext nb_agents``, but prints nothing if the extension is already loaded."""


def _cut(words: str, limit: int = MAX_SHOWN) -> str:
    return (
        words
        if len(words) <= limit
        else words[:limit] + "\n\n[… truncated; the file has all of it]"
    )


def _partial(agent: AgentView, limit: int) -> str:
    return f"[partial text] {_cut(agent.unsubmitted, limit)} …" if agent.unsubmitted else ""


def _pointer(view: RunView, path: str, markdown: str) -> dict[str, Any]:
    """Return the turn's location, and a digest that shows whether a card is up to date."""
    parts = panel_parts(view)
    return {
        "session": view.session,
        "turn": view.turn,
        "task": text.clip(view.task, 200),
        "state": view.state,
        "path": path,
        "digest": sha256(markdown.encode(errors="surrogatepass")).hexdigest()[:16],
        **({"parts": parts} if parts else {}),
    }


def _html(
    view: RunView,
    path: str,
    timeline: Timeline,
    again: Preview | None,
    directory: Path,
    entry_point: EntryPoint,
) -> str:
    template = card_template("card.html.j2")
    images = WorkspaceImages(view, directory)

    def workspace_of(agent: str) -> str:
        agent_view = view.agents.get(agent)
        return (agent_view and agent_view.workspace) or agent or view.recipe

    def markdown(words: str, agent: str = "") -> Markup:
        return as_html(_cut(words), images.in_answer(workspace_of(agent)))

    def answer(words: str, agent: str = "") -> Markup:
        workspace = workspace_of(agent)
        answer_html = markdown(words, agent)
        return Markup('<div class="nb-answer" title="{}">{}</div>').format(workspace, answer_html)

    def value(item: steps_card.Value) -> Markup:
        return markdown(item.text) if item.is_thinking or not item.text else answer(item.text)

    return template.render(
        view=view,
        path=path,
        state=view.state,
        incomplete=_incomplete(view),
        summary=_summary(view, entry_point),
        card=steps_card.steps_card(view, again) if view.has_steps else None,
        next_action=display_of(view).next_action,
        when_possible=_when_possible(view, entry_point),
        live=_LIVE,
        heading=timeline_picture.heading(view),
        picture=timeline_picture.picture(timeline),
        revisions=revisions,
        limit=MAX_BESIDE,
        show_line=entry_point.line("show", [_address(view)]),
        writer=entry_point.writer,
        parts=[as_html(part, lambda source: "") for part in _parts(view)],
        notices=notes(view, entry_point),
        resume_cell="\n".join(_resume(view, path, again, entry_point)),
        resume_line="".join(_resume(view, path, None, entry_point)[-1:]),
        buttons=_buttons(view, path) if entry_point is CELL else {},
        continue_cell=_continue(view, path, entry_point) + entry_point.task_below,
        files=_files(view),
        agents=_by_importance(view),
        markdown=markdown,
        answer=answer,
        value=value,
        took=steps_card.duration_text,
        plots=images.plots,
        text=text,
    )


def timeline_html(timeline: Timeline, *, has_steps: bool) -> str:
    """Return the picture of a timeline for a live panel, or "" if there is nothing to draw.

    Args:
        timeline: The timeline of a turn.
        has_steps: Whether the agents of the turn work in steps.
    """
    svg = timeline_picture.picture(timeline)
    if svg is None:
        return ""
    macros: Any = card_template("timeline.html.j2").module
    return with_stylesheet(macros.timeline(svg, has_steps, text))


def _files(view: RunView) -> dict[str, list[FileInfo]]:
    """Return up to `MAX_FILES` files per agent. A recipe's steps share one workspace."""
    of = {a.id: a.workspace or a.id for a in view.agents.values()}
    owners = {view.recipe: view.recipe} if view.has_steps else of
    return {k: [f for f in view.files if f.agent == w][:MAX_FILES] for k, w in owners.items()}


def load_templates() -> None:
    """Compile the templates of cards, which makes the first card faster."""
    for name in _environment(__package__).list_templates():
        card_template(name)


def card_template(name: str, package: str = __package__) -> Template:
    """Return a template, whose values are escaped.

    Args:
        name: The file's name.
        package: The package with the template, which can import those of this package.
    """
    return _environment(package).get_template(name)


@cache
def _environment(package: str) -> Environment:
    packages = dict.fromkeys((package, __package__))
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breaks"] = lambda path: escape(path).replace("/", Markup("/<wbr>"))
    environment.filters["no_math"] = lambda words: Markup(hide_from_mathjax(words))
    return environment
