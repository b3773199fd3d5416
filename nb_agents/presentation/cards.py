"""The static card of a turn: HTML, Markdown, text and JSON of one view, readable with no kernel.

Everything that a model or a tool wrote is escaped by Jinja2, or rendered from
Markdown by `nb_agents.presentation.markdown`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from nb_agents.events import ContextChanged, FileInfo
from nb_agents.launch.resume_plan import Preview, preview_of
from nb_agents.presentation import recipe_card, text, timeline_picture
from nb_agents.presentation.answer_diffs import revisions
from nb_agents.presentation.asking import CELL, Door, how_to_answer, question
from nb_agents.presentation.markdown import as_html, harmless, marked
from nb_agents.presentation.renderer import shielded
from nb_agents.presentation.stylesheet import with_stylesheet
from nb_agents.presentation.workspace_images import WorkspaceImages
from nb_agents.session.history import PastTurn, past_events
from nb_agents.session.layout import session_root
from nb_agents.view.run_view import AgentView, RunView
from nb_agents.view.timeline import Timeline, fold_timeline

TURN_MIME = "application/vnd.nb-agents.turn+json"
MAX_SHOWN = 20_000
"""Characters of one answer on a card; the file has all of it."""
MAX_PLAIN = 400
"""Characters of one answer in a bundle's plain text, beside which there is the Markdown."""
MAX_BESIDE = 4000
"""Characters of an answer that stands beside others; its workspace and the journal have all."""
MAX_FILES = 50


def card_bundle(
    view: RunView,
    path: str,
    timeline: Timeline | None = None,
    again: Preview | None = None,
    directory: Path | None = None,
    door: Door = CELL,
) -> dict[str, Any]:
    """Return the card of a turn as a mime bundle.

    Args:
        view: The turn.
        path: Its directory, as shown to the person.
        timeline: Its timeline; None when it is not known.
        again: What a resume would do; None when it is not known, or there is nothing to resume.
        directory: Its directory on this machine; by default `path`.
        door: The user interface whose commands the card shows.

    Returns:
        A mime bundle: text/html, text/markdown, text/plain and `TURN_MIME`.
    """
    markdown = card_text(view, path, again, door)
    mark = next(mark for mark in map(chr, range(0xE000, 0xF900)) if mark not in markdown)
    html = _html(view, path, timeline or Timeline(), again, directory or Path(path), door)
    bundle = harmless(
        {
            "text/html": with_stylesheet(html),
            "text/markdown": card_text(view, path, again, door, mark=mark),
            "text/plain": card_text(view, path, again, door, MAX_PLAIN),
            TURN_MIME: _pointer(view, path, markdown),
        }
    )
    bundle["text/markdown"], bundle[TURN_MIME]["answers"] = _unmarked(bundle["text/markdown"], mark)
    return bundle


def _unmarked(marked: str, mark: str) -> tuple[str, list[list[int]]]:
    """Return Markdown without marks, and the lines of each answer: its first, and that after it.

    Lines, as Python and JavaScript count characters in two ways.
    """
    made, answers = "", []
    for nth, part in enumerate(marked.split(mark)):
        if nth % 2:
            first = made.count("\n")
            made += part.strip("\n")
            answers.append([first, made.count("\n") + 1])
        else:
            made += part
    return made, answers


def answers_of(bundle: Mapping[str, Any]) -> list[str]:
    """Return the answers on a card as Markdown, in its order.

    Args:
        bundle: As `card_bundle` made it.
    """
    lines = bundle["text/markdown"].split("\n")
    return ["\n".join(lines[first:after]) for first, after in bundle[TURN_MIME]["answers"]]


def turn_bundle(turn: PastTurn, shown: str) -> dict[str, Any]:
    """Return the card of a turn on disk.

    Args:
        turn: The turn.
        shown: Its directory, as shown to the person.
    """
    paths = turn.paths
    timeline = fold_timeline(past_events(paths), is_live=turn.is_live)
    return card_bundle(turn.view, shown, timeline, preview_of(turn.view, paths), paths.path)


def card_text(
    view: RunView,
    path: str,
    again: Preview | None = None,
    door: Door = CELL,
    limit: int = MAX_SHOWN,
    mark: str = "",
) -> str:
    """Return the card as Markdown that is readable as plain text.

    Args:
        view: As for `card_bundle`, and so are the others.
        path: The turn's directory.
        again: What a resume would do.
        door: The user interface.
        limit: Characters of one answer.
        mark: Stands before and after each answer that the HTML has, too, in the same order.
    """
    match view.state:
        case "complete" if view.recipe:
            body = [recipe_card.recipe_text(view, again, limit, mark)]
        case "stopped" | "failed" | "timed out" if view.recipe:
            body = _recipe_text(view, path, again, door, limit, mark)
        case "complete":
            body = [marked(_cut(view.answer, limit), mark), "", f"— {_how(view)}"]
        case "failed" if view.stop is None:
            errors = [f"- {a.id}: {a.error or 'no answer'}" for a in view.agents.values()]
            cells = [f"    {line}" for line in _resume(view, path, again, door)]
            body = ["**Failed: no agent gave an answer.**", *errors, "", *cells]
        case "stopped" | "failed" | "timed out":
            body = _incomplete_text(view, path, again, door, limit, mark)
        case _:
            body = _live_text(view, path, door)
    lines = [f"### {text.clip(view.task, 200)} [{view.state}]", "", *body]
    lines += ["", *(f"> {note}" for note in _notes(view, door))]
    lines += ["", " · ".join(filter(None, [_address(view), text.spent(view), path]))]
    return "\n".join(lines)


def _recipe_text(
    view: RunView, path: str, again: Preview | None, door: Door, limit: int, mark: str
) -> list[str]:
    cell = [f"    {line}" for line in _resume(view, path, again, door)]
    said = f"**{_incomplete(view)}** {_summary(view, door)}"
    lines = [said, "", recipe_card.recipe_text(view, again, limit, mark)]
    return [*lines, f"{_go_on(view, door)}:", "", *cell]


def _incomplete(view: RunView) -> str:
    return "Incomplete turn." if view.stop or view.status != "failed" else "Failed."


def _go_on(view: RunView, door: Door) -> str:
    return f"Go on {door.later if view.is_saved else door.once_saved}"


def _incomplete_text(
    view: RunView, path: str, again: Preview | None, door: Door, limit: int, mark: str
) -> list[str]:
    lines, of = [f"**Incomplete turn.** {_summary(view, door)}", ""], _files(view)
    for agent in _best_first(view):
        best = " · best answer so far" if agent.id == view.best_agent else ""
        lines.append(f"#### {agent.id}: {text.agent_state(agent)}{best}")
        words = marked(_cut(agent.answer or agent.returned, limit), mark)
        lines += [part for part in (words, _partial(agent, limit), agent.error) if part]
        files = [f"{f.path} {text.size(f.size)}" for f in of[agent.id]]
        lines += [f"Files: {', '.join(files)}"] if files else []
        lines.append("")
    again_, next_ = _resume(view, path, again, door), _continue(view, path, door)
    cells = [f"    {line}" for line in [*again_, next_]]
    return [*lines, f"{_go_on(view, door)}:", "", *cells]


def _best_first(view: RunView) -> list[AgentView]:
    return sorted(view.agents.values(), key=lambda agent: agent.id != view.best_agent)


def _live_text(view: RunView, path: str, door: Door) -> list[str]:
    """Return the state of a live run, for those who read it later."""
    agents = () if view.recipe else view.agents.values()
    lines = [f"#### {a.id}: {text.agent_state(a)}" for a in agents]
    session = view.session
    gates = view.gates.values()
    asked = [f"{question(g)} {how_to_answer(g, view, session, door)}" for g in gates]
    cell = [f"    {line}" for line in _resume(view, path, None, door)[-1:]]
    live = f"{_LIVE} `{door.line('show', [_address(view)])}` shows how it stands."
    again = [f"If its {door.writer} is gone, this goes on from here:", "", *cell] if cell else []
    return [live, *asked, *again, "", *lines]


_LIVE = "This run was live when this was written."


def _summary(view: RunView, door: Door) -> str:
    """Return the card's first sentences: who stopped it, when, what is kept, what it cost."""
    spent = text.spent(view)
    return f"{_ended(view, door)} {_kept(view, door)}" + (f" Spent {spent}." if spent else "")


def _ended(view: RunView, door: Door) -> str:
    where = recipe_card.where(view) if view.recipe else f", while {view.phase}"
    took = text.duration(view)
    after = f" after {took}" if took else ""
    if view.status == "failed" and view.stop is None:
        return f"It ended{after}."
    return f"{text.stopped_by(view, door.writer)}{after}{where}."


def _kept(view: RunView, door: Door) -> str:
    """Return what is kept, and where: only in memory when the disk refused it."""
    kept = [*_kept_work(view), text.count_any(view.file_count or 0, "file")]
    kept = [k for k in kept if k] or ["the task"]
    listed = kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} and {kept[-1]}"
    verb = "is" if len(kept) == 1 and not listed.endswith("s") else "are"
    if view.is_saved:
        return f"Nothing was lost: {listed} {verb} kept."
    return (
        f"Not everything is on disk, because writing failed: {listed} {verb} kept, in part "
        f"perhaps only as long as this {door.writer} lives. {door.retried}"
    )


def _kept_work(view: RunView) -> list[str]:
    if view.recipe:
        return recipe_card.kept(view)
    answers = sum(1 for a in view.agents.values() if a.answers)
    partials = sum(1 for a in view.agents.values() if a.unsubmitted)
    return [text.count_any(answers, "answer"), text.count_any(partials, "partial text")]


def _notes(view: RunView, door: Door) -> list[str]:
    """Return the notices, and the follow-up texts that came too late to be read."""
    late = view.unheard if view.ending else ()
    reader = "No step" if view.recipe else "No agent"
    unread = (
        f"{reader} had read this yet; the next turn has it: “{text.clip(each, 200)}”"
        for each in late
    )
    notices = (notice for notice in view.notices if notice.strip())
    retried = [door.retried] if view.status == "completed" and not view.is_saved else []
    changes = map(_changes, view.context_changes)
    return [*notices, *retried, *changes, *unread, *_ends(view)]


def _ends(view: RunView) -> Iterator[str]:
    """Yield what is known of the end of what worked elsewhere, of a turn that was stopped."""
    known = view.ends.values() if view.stop else ()
    if seen := [each.what for each in known if each.is_confirmed]:
        yield f"Confirmed to have ended: {text.clip(', '.join(seen), 400)}."
    for each in known:
        if not each.is_confirmed:
            yield f"Not confirmed to have ended: {each.what}. {each.how}"


def _changes(event: ContextChanged) -> str:
    """Return what an agent changed outside its workspace."""
    kinds = {"made": event.made, "changed": event.changed, "deleted": event.deleted}
    changes = (
        f"{what} {text.clip(', '.join(names), 300)}" for what, names in kinds.items() if names
    )
    return f"{text.count_any(event.count, 'file')} changed in context paths: {'; '.join(changes)}"


def _how(view: RunView) -> str:
    answers = text.count_any(sum(len(a.answers) for a in view.agents.values()), "answer")
    return " · ".join(filter(None, [answers, text.votes(view), f"presented by {view.winner}"]))


def _address(view: RunView) -> str:
    return f"{view.session}/{view.turn}"


def _continue(view: RunView, path: str, door: Door = CELL) -> str:
    return door.next_line(_words(view, path))


def _resume(view: RunView, path: str, again: Preview | None, door: Door = CELL) -> list[str]:
    """Return the lines that resume the turn: two, or none when it has no journal."""
    # A stranger's directory may be called "--trust".
    if not view.seq or view.session.startswith("-") or '"' in view.session:
        return []
    comment = f"; runs again: {text.clip(again.runs_again, 200)}" if again else ""
    if again and again.not_again:
        comment += f"; not run again: {text.clip(again.not_again, 200)}"
    if again and again.goes_on:
        comment += f"; {_promises(view, again)}"
    if again and again.would_run is not None:
        comment += "; not made by you: asks first"
    return [f"# same task, from here{comment}", door.line("resume", _words(view, path))]


def _promises(view: RunView, again: Preview) -> str:
    """Return which agents go on from what they had said, and which resume exactly."""
    exact = [agent for agent in view.agents if agent not in again.goes_on]
    said = f"from what they had said: {text.clip(', '.join(again.goes_on), 200)}"
    return f"{said}; exactly: {text.clip(', '.join(exact), 200)}" if exact else said


def _words(view: RunView, path: str) -> list[str]:
    """The session as a magic's words: its id, and its root when that is not where one looks."""
    root = Path(path).parent.parent
    is_turn = Path(path).name == f"turn_{view.turn}"
    if not is_turn or root.absolute() == session_root():
        return [view.session]
    return [view.session, "--session-root", str(root)]


_PLAIN = re.compile(r"[\w./\\:~-][\w ./\\:~+,@=-]*")
"""Words that IPython takes as they stand: nothing in them is a quote, ``$name`` or ``{name}``."""


def _buttons(view: RunView, path: str) -> dict[str, str]:
    """Return the arguments of the card's buttons, which add a cell to the notebook.

    Source: CommandLinker, https://jupyterlab.readthedocs.io/en/stable/user/commands.html
    """
    # While the journal lacks its end, a resume would go on from before.
    if not (view.is_saved and all(_PLAIN.fullmatch(word) for word in _words(view, path))):
        return {}
    cells = {"continue": (f"{_continue(view, path)}\n", "notebook:enter-edit-mode")}
    if line := _resume(view, path, None)[-1:]:
        cells["resume"] = (f"{_LOAD}\n{line[0]}", "notebook:run-cell")
    return {name: _add_cell(*cell) for name, cell in cells.items()}


def _add_cell(source: str, then: str) -> str:
    commands = ["notebook:insert-cell-below", "notebook:replace-selection", then]
    # One object for all of them: JupyterLab 4.6 looks for a list of arguments in the wrong place.
    return json.dumps({"commands": commands, "args": {"text": source}})


_LOAD = 'get_ipython().extension_manager.load_extension("nb_agents")'
"""As ``%load_ext nb_agents``, which says so when it was loaded before."""


def _cut(words: str, limit: int = MAX_SHOWN) -> str:
    return words if len(words) <= limit else words[:limit] + "\n\n[… the file has it all]"


def _partial(agent: AgentView, limit: int) -> str:
    return f"[partial text] {_cut(agent.unsubmitted, limit)} …" if agent.unsubmitted else ""


def _pointer(view: RunView, path: str, markdown: str) -> dict[str, Any]:
    """Return where the turn is, and a digest by which a reader knows whether the card shows it."""
    return {
        "session": view.session,
        "turn": view.turn,
        "task": text.clip(view.task, 200),
        "state": view.state,
        "path": path,
        "digest": sha256(markdown.encode(errors="surrogatepass")).hexdigest()[:16],
    }


def _html(
    view: RunView,
    path: str,
    timeline: Timeline,
    again: Preview | None,
    directory: Path,
    door: Door,
) -> str:
    template = card_template("card.html.j2")
    images = WorkspaceImages(view, directory)

    def workspace_of(agent: str) -> str:
        known = view.agents.get(agent)
        return (known and known.workspace) or agent or view.recipe

    def markdown(words: str, agent: str = "") -> Markup:
        return as_html(_cut(words), images.in_answer(workspace_of(agent)))

    def answer(words: str, agent: str = "") -> Markup:
        of = workspace_of(agent)
        shown = markdown(words, agent)
        return Markup('<div class="nb-answer" title="{}">{}</div>').format(of, shown)

    def value(it: recipe_card.Value) -> Markup:
        return markdown(it.text) if it.is_thinking or not it.text else answer(it.text)

    return template.render(
        view=view,
        path=path,
        state=view.state,
        incomplete=_incomplete(view),
        summary=_summary(view, door),
        card=recipe_card.recipe_card(view, again) if view.recipe else None,
        go_on=_go_on(view, door),
        live=_LIVE,
        heading=timeline_picture.heading(view),
        picture=timeline_picture.picture(timeline),
        revisions=revisions,
        limit=MAX_BESIDE,
        show_line=door.line("show", [_address(view)]),
        writer=door.writer,
        notices=_notes(view, door),
        resume_cell="\n".join(_resume(view, path, again, door)),
        resume_line="".join(_resume(view, path, None, door)[-1:]),
        buttons=_buttons(view, path) if door is CELL else {},
        continue_cell=_continue(view, path, door) + door.task_below,
        files=_files(view),
        agents=_best_first(view),
        markdown=markdown,
        answer=answer,
        value=value,
        took=recipe_card.took,
        plots=images.plots,
        text=text,
    )


def timeline_html(timeline: Timeline, *, is_recipe: bool) -> str:
    """Return the picture of a timeline alone, for a live panel; "" when there is nothing to draw.

    Args:
        timeline: Of a turn, so far.
        is_recipe: Whether its agents are steps of a recipe.
    """
    drawn = timeline_picture.picture(timeline)
    if drawn is None:
        return ""
    macros: Any = card_template("timeline.html.j2").module
    return with_stylesheet(macros.timeline(drawn, is_recipe, text))


def _files(view: RunView) -> dict[str, list[FileInfo]]:
    """Return the first files of each agent, or of a recipe, whose steps share a workspace."""
    of = {a.id: a.workspace or a.id for a in view.agents.values()}
    owners = {view.recipe: view.recipe} if view.recipe else of
    return {k: [f for f in view.files if f.agent == w][:MAX_FILES] for k, w in owners.items()}


def load_templates() -> None:
    """Compile the templates of cards, so that the first card does not wait for that."""
    for name in _environment().list_templates():
        card_template(name)


def card_template(name: str) -> Template:
    """Return a template of this package, which escapes its values."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("nb_agents.presentation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["no_math"] = lambda words: Markup(shielded(words))
    return made
