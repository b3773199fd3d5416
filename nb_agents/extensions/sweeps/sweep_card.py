"""Computes the state of a sweep's panel, and its card, from the view and the time. Pure.

The number of listed rows is limited. Further rows are only counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nb_agents.extensions.sweeps.row_titles import RowTitle, row_title
from nb_agents.extensions.sweeps.steering import pausable
from nb_agents.extensions.sweeps.sweep_file import ESTIMATE, SWEEP_FILE
from nb_agents.nouns import amount_in_dollars, count, price, token_count
from nb_agents.presentation import text
from nb_agents.presentation.asking import CELL, EntryPoint
from nb_agents.presentation.cards import card_template, cell_to_run
from nb_agents.presentation.markdown import as_html, sanitize
from nb_agents.presentation.panel_state import panel_state
from nb_agents.presentation.panel_types import (
    OpenRow,
    RowCount,
    RowState,
    RowStop,
    StopButton,
    SweepRow,
    SweepState,
    SweepSteering,
    Tone,
)
from nb_agents.presentation.rows import MAX_SAYS, activity, name_of, numbers, says, silence
from nb_agents.presentation.stylesheet import with_stylesheet
from nb_agents.session.views import read_json
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import AgentView, RunView

if TYPE_CHECKING:
    from nb_agents.extensions.sweeps.sweep_fold import EndedRow, LiveRow, SweepView

SWEEP_MIME = "application/vnd.nb-agents.sweep+json"
MAX_LIVE = 60
"""Maximum number of live rows to list."""
MAX_FAILURES = 50
"""Maximum number of failed rows to list."""
MAX_WHY = 400
"""Maximum length of the reason for a failure, in characters."""
MAX_NAME = 60
"""Maximum length of a row's title, in characters."""
MAX_VALUES = 120
"""Maximum length of a row's other values below its title, in characters."""
MAX_VALUE_COLUMNS = 3
"""Maximum number of the source's columns in the card's table."""
MAX_VALUE = 80
"""Maximum length of a value in the card's table, in characters."""
MAX_NOTICES = 5
"""Maximum number of lines about the cost."""
MAX_TABLE = 20
"""Maximum number of rows in the card's table.

The same as the manifest's `FIRST_ROWS`, which is not imported here.
"""
MAX_ANSWER = 200
"""Maximum length of an answer in the table, in characters."""

_ONLY_COLUMN = re.compile(r"\s*\{\{\s*([\w.]+)\s*\}\}\s*")
_TONES: dict[str, Tone] = {
    "complete": "ok",
    "failed": "err",
    "timed out": "ing",
    "stopped": "cut",
    "running": "run",
}
_ROW_STATES: dict[str, RowState] = {
    "complete": "complete",
    "failed": "failed",
    "timed out": "timed out",
}
_RETRY = "--retry-failed or retry_failed=True runs failed rows again."
_OWN_COLUMNS = {"row", "status", "answer", "error", "tokens", "cost", "seconds", "score", "session"}

STOPPING_ROWS = "Stopping… (after the calls in flight)"


@dataclass(frozen=True)
class OpenedRow:
    """The row that is open in a sweep's panel.

    Attributes:
        name: The name of the row.
        run: The id of its run.
        view: The current view of its turn.
        card: The card as HTML if the run is over, or "".
        answers: The answers on the card, as Markdown.
    """

    name: str
    run: str
    view: RunView
    card: str = ""
    answers: tuple[str, ...] = ()


def sweep_state(
    view: SweepView,
    title: str,
    path: str,
    now: float,
    opened: OpenedRow | None = None,
    notices: Sequence[str] = (),
) -> SweepState:
    """Return the state of a sweep's panel, as plain data for the widget.

    Args:
        title: The title of the sweep; see `sweep_title`.
        path: The sweep's directory, as shown to the user.
        now: The current time, in Unix seconds.
        opened: The open row.
        notices: Lines for the user; see `sweep_notices`.
    """
    ended_count = view.completed + view.failed
    # Rows that are waiting for the user come first.
    live = sorted(view.live, key=lambda row: not row.view.gates)
    rows = [_row(row, view, opened, now) for row in live[:MAX_LIVE]]
    rows += [_ended_row(row, view, opened) for row in view.recent]
    return {
        "sweep": view.name,
        "task": text.clip(title, 300),
        "status": view.state,
        "chip": sweep_chip(view),
        "round": f"{ended_count} of {count(view.total, 'row')}",
        "fraction": round(ended_count / view.total, 4) if view.total else 0.0,
        "bar": "Rows complete",
        "in_flight": _score(view),
        "elapsed": _time(view),
        "cost": spent(view),
        "counts": row_counts(view),
        "failures": [
            {"row": _title(each.row, view)[0], "why": text.clip(each.error, MAX_WHY)}
            for each in view.failures[:MAX_FAILURES]
        ],
        "more_failures": _more(
            view.failed - min(len(view.failures), MAX_FAILURES), "without an answer"
        ),
        "rows": rows,
        "more_rows": _more_rows(view),
        "open": _open(opened, view, now),
        "button": _button(view),
        "hold": _pause_action(view),
        "steering": _steering(view),
        "notices": [*notices],
        "footer": [view.name, path],
        "card": "",
    }


def sweep_title(path: Path) -> str:
    """Return a sweep's task or, if it has none, its recipe's file name or its own name.

    A task that is only a column, such as "{{question}}", is shown as "Each question".
    """
    about = read_json(path / SWEEP_FILE)
    task, recipe = str(about.get("task") or ""), str(about.get("recipe") or "")
    if column := _ONLY_COLUMN.fullmatch(task):
        return f"Each {column[1]}"
    return task or (Path(recipe).name if "/" in recipe else path.name)


def sweep_notices(path: Path) -> tuple[str, ...]:
    """Return the lines about a sweep's cost, as estimated before it started."""
    lines = read_json(path / SWEEP_FILE).get(ESTIMATE)
    return tuple(map(str, lines[:MAX_NOTICES])) if isinstance(lines, list) else ()


def sweep_chip(view: SweepView) -> str:
    """Return the text of a sweep's status chip."""
    if view.status == "stopping":
        return text.STOPPING_NOW if _is_cut(view) else STOPPING_ROWS
    return "paused" if view.status == "paused" else view.state


def counts(view: SweepView) -> list[tuple[str, Tone | Literal[""]]]:
    """Return the number of rows in each state as text, with tones. Zeros are left out."""
    return [(each["text"], each["tone"]) for each in row_counts(view)]


def row_counts(view: SweepView) -> list[RowCount]:
    """Return the number of rows in each state. Zeros are left out."""
    # A failed row that is running again is counted twice, which can make `stopped` negative.
    failed = view.failed - view.failed_late
    ended_count = view.completed + failed + view.timed_out
    stopped = view.total - ended_count - view.to_go - len(view.live)
    waits = "waits" if view.waiting == 1 else "wait"
    chips: list[tuple[int, str, Tone | Literal[""], RowState | Literal[""]]] = [
        (failed, "failed", "err", "failed"),
        (view.timed_out, "timed out", "ing", "timed out"),
        (view.waiting, f"{waits} for you", "ing", "waiting"),
        (len(view.live) - view.waiting, "at work", "run", "running"),
        (view.completed, "complete", "ok", "complete"),
        (stopped, "stopped", "cut", "stopped"),
        (view.to_go, "not started" if view.is_over else "to go", "", ""),
    ]
    return [
        {"text": f"{number:,} {words}", "tone": tone, "state": state}
        for number, words, tone, state in chips
        if number > 0
    ]


def spent(view: SweepView) -> str:
    """Return the tokens and cost so far as text, or "" if no tokens have been used."""
    return numbers(view.tokens, view.cost)


def score_of(view: SweepView) -> str:
    """Return the mean of the scores and its interval as text, or "" if there are none."""
    if view.score is None:
        return ""
    mean, interval = view.score[0], view.score_interval
    if interval is None:
        return f"{mean:.3g}"
    return f"{mean:.3g} (95 % interval: {interval[0]:.3g} to {interval[1]:.3g})"


def _score(view: SweepView) -> str:
    score = score_of(view)
    return f"score {score} ({len(view.scores)})" if score else ""


def _time(view: SweepView) -> str:
    used = text.seconds(view.elapsed_s)
    if view.left_s is None or view.status != "running":
        return used
    return f"{used} · about {text.seconds(view.left_s)} to go"


def _more(number: int, kind: str) -> str:
    return f"{number} more {kind}" if number > 0 else ""


def _more_rows(view: SweepView) -> str:
    ended_count = view.completed + view.failed + view.timed_out - view.failed_late
    listed_count = sum(
        each.result.status != "cancelled" or each.result.timed_out for each in view.recent
    )
    more = (_more(len(view.live) - MAX_LIVE, "at work"), _more(ended_count - listed_count, "ended"))
    return " · ".join(filter(None, more))


def _title(row: str, view: SweepView) -> RowTitle:
    """Return how a row is called, shortened for a list."""
    title, rest = row_title(row, view.values.get(row, {}))
    return RowTitle(text.clip(title, MAX_NAME), text.clip(rest, MAX_VALUES))


def _ended_row(ended: EndedRow, sweep: SweepView, opened: OpenedRow | None) -> SweepRow:
    """Return a row that has ended, with the start of its answer, or why it has none."""
    result = ended.result
    name, values = _title(result.row, sweep)
    score = result.score if result.score is not None and math.isfinite(result.score) else None
    used = [numbers(result.tokens, result.cost), "" if score is None else f"score {score:.3g}"]
    says = result.error or text.without_markdown(str(result.answer or ""), MAX_SAYS)
    run = f"{result.row}/{ended.turn}" if ended.turn else ""
    return {
        "id": result.row,
        "name": name,
        "run": run,
        "model": values,
        "title": text.clip(result.row, 300),
        "chip": result.state,
        "tone": _TONES.get(result.state, "cut"),
        "says": text.clip(says, MAX_SAYS),
        "writing": False,
        "numbers": " · ".join(filter(None, used)),
        "stop": None,
        "opens": bool(run),
        "current": opened is not None and opened.name == result.row,
        "state": _ROW_STATES.get(result.state, "stopped"),
        "tokens": result.tokens,
        "score": score,
        "again": result.status != "completed" and sweep.status in ("running", "paused"),
    }


def _row(row: LiveRow, sweep: SweepView, opened: OpenedRow | None, now: float) -> SweepRow:
    view, agent = row.view, _speaker(row.view)
    name, values = _title(row.name, sweep)
    chip, tone = _doing(view, agent, now)
    gate = next(iter(view.gates.values()), None)
    used = numbers(view.tokens, total_cost(view), view.is_estimated)
    return {
        "id": row.name,
        "name": name,
        "run": row.run,
        "model": values if row.name in sweep.values else text.clip(view.task, MAX_NAME),
        "title": text.clip(f"{row.name}: {view.task}", 300),
        "chip": chip,
        "tone": tone,
        "says": text.clip(gate.prompt, MAX_SAYS) if gate else says(agent) if agent else "",
        "writing": not gate and agent is not None and agent.in_flight and agent.phase == "writing",
        "numbers": " · ".join(filter(None, (used, _interim(row.name, sweep)))),
        "stop": _stop(view),
        "current": opened is not None and opened.name == row.name,
        "state": "waiting" if view.gates else "running",
        "tokens": view.tokens,
        "score": None,
    }


def _interim(row: str, sweep: SweepView) -> str:
    """Return the score of what a running row had written so far, as text, or ""."""
    interim = sweep.interim.get(row)
    if interim is None:
        return ""
    return "no score so far" if interim.score is None else f"score so far {interim.score:.3g}"


def _steering(view: SweepView) -> SweepSteering | None:
    if view.status not in ("running", "paused"):
        return None
    limit, max_cost, timeout, paused = view.steering
    limits = (
        f"{count(limit, 'row')} at a time",
        "" if max_cost is None else f"{amount_in_dollars(max_cost)} in total",
        "" if timeout is None else f"{text.seconds(timeout)} for each row",
    )
    names = dict.fromkeys((*paused, *pausable(view.models)))
    return {
        "says": " · ".join(filter(None, limits)),
        "limit": limit,
        "max_cost": max_cost,
        "timeout": timeout,
        "models": [{"name": name, "is_paused": name in paused} for name in names],
        "can_score": view.has_score,
        "failed": view.failed,
    }


def _speaker(view: RunView) -> AgentView | None:
    """Return the agent to show on a row: one that is writing, or else the last active agent."""
    agents = list(view.agents.values())
    writing = (a for a in agents if a.in_flight and a.phase == "writing")
    busy = (a for a in reversed(agents) if a.outcome is None)
    return next(writing, None) or next(busy, None) or (agents[-1] if agents else None)


def _doing(view: RunView, agent: AgentView | None, now: float) -> tuple[str, Tone]:
    """Return the text and tone of a row's status chip."""
    chip = text.chip(view)
    if view.stop:
        return "stopping now" if view.stop.level == "immediate" else "stopping", "ing"
    if view.gates:
        return chip, "ing"
    if chip != "running" or agent is None:
        return chip, "run"
    silent = silence(agent, now)
    who = f"{name_of(view.current_step or agent.id)}: " if len(view.agents) > 1 else ""
    return f"{who}{silent or activity(agent, view)}", "ing" if silent else "run"


def _stop(view: RunView) -> RowStop | None:
    if view.is_over or (view.stop and view.stop.level == "immediate"):
        return None
    return {"now": view.stop is not None}


def _open(opened: OpenedRow | None, view: SweepView, now: float) -> OpenRow | None:
    if opened is None:
        return None
    state = panel_state(opened.view, opened.run, now)
    state["card"], state["answers"] = opened.card, list(opened.answers)
    return {"row": opened.name, "title": _title(opened.name, view)[0], "state": state}


def _is_cut(view: SweepView) -> bool:
    """Return whether every live row is already stopping immediately."""
    return all(_stop(row.view) is None for row in view.live)


def _button(view: SweepView) -> StopButton | None:
    if view.is_over or (view.status == "stopping" and _is_cut(view)):
        return None
    if view.status == "stopping":
        title = "Interrupt the calls in flight now. Text received so far is saved as partial text."
        return {"label": "Stop now", "now": True, "title": title}
    title = "Start no more rows, and stop live rows after their calls. Everything is saved."
    return {"label": "Stop", "now": False, "title": title}


def _pause_action(view: SweepView) -> Literal["pause", "unpause", ""]:
    """Return the action of the second button: "pause", "unpause", or "" for no button."""
    if view.status == "running":
        return "pause"
    return "unpause" if view.status == "paused" else ""


def sweep_bundle(
    view: SweepView, title: str, path: str, table: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the card of a sweep as a mime bundle.

    Args:
        title: The title of the sweep; see `sweep_title`.
        path: The sweep's directory, as shown to the user.
        table: Records of the rows, as returned by `Sweep.table`, or of the first rows. Empty while
            the sweep is live.

    Returns:
        A mime bundle: text/html, text/plain and `SWEEP_MIME`.
    """
    card = _card(view, title, path, table)
    html = card_template("sweep.html.j2", __package__).render(card=card, text=text, as_html=as_html)
    return sanitize(
        {
            "text/html": with_stylesheet(html),
            "text/plain": _text(card),
            SWEEP_MIME: _data(view, card, path),
        }
    )


def sweep_text(
    view: SweepView,
    title: str,
    path: str,
    table: Sequence[Mapping[str, Any]],
    entry_point: EntryPoint,
) -> str:
    """Return the card of a sweep as text, with the commands of an interface.

    The other arguments are the same as for `sweep_bundle`.
    """
    return _text(_card(view, title, path, table, entry_point))


def _data(view: SweepView, card: _Card, path: str) -> dict[str, Any]:
    answers = [line.markdown for line in card.lines if line.markdown]
    return {**sweep_data(view, card.title, card.state, path), "answers": answers}


def sweep_data(view: SweepView, title: str, state: str, path: str) -> dict[str, Any]:
    """Return a sweep's state as JSON data, for its card.

    Args:
        view: The state.
        title: The task, as the card shows it.
        state: The state, as the card shows it.
        path: The sweep's directory, as shown to the user.
    """
    return {
        "sweep": view.name,
        "task": title,
        "state": state,
        "rows": view.total,
        "done": view.completed,
        "failed": view.failed,
        "tokens": view.tokens,
        "cost": view.cost,
        "path": path,
    }


@dataclass(frozen=True)
class _Line:
    """A row in the card's table, with its answer on one line and as Markdown, if it has one.

    Its values are those of the card's columns: the first one is the row's title.
    """

    name: str
    values: Sequence[str]
    status: str
    tone: str
    answer: str
    markdown: str
    score: str
    tokens: str
    cost: str


@dataclass(frozen=True)
class _Card:
    """The text on a card."""

    title: str
    state: str
    summary: str
    counts: Sequence[tuple[str, str]]
    score: str
    failures: Sequence[tuple[str, str, str]]
    more_failures: int
    retry: str
    columns: Sequence[str]
    lines: Sequence[_Line]
    more_lines: int
    continuation: str
    buttons: Sequence[tuple[str, str, str]]
    footer: Sequence[str]


def _card(
    view: SweepView,
    title: str,
    path: str,
    table: Sequence[Mapping[str, Any]],
    entry_point: EntryPoint = CELL,
) -> _Card:
    failures = [
        (f.state, _title(f.row, view)[0], text.clip(f.error, MAX_WHY)) for f in view.failures
    ]
    columns = _columns(view, table[:MAX_TABLE])
    lines = [_line(record, view, columns) for record in table[:MAX_TABLE]]
    return _Card(
        text.clip(title, 200),
        view.state,
        _summary(view),
        counts(view),
        score_of(view),
        failures[:MAX_FAILURES],
        view.failed - len(failures[:MAX_FAILURES]),
        _RETRY if view.is_over and view.failed else "",
        columns or ["row"],
        lines,
        view.total - len(lines) if lines else 0,
        _continuation(view, entry_point),
        _buttons(view) if entry_point is CELL else (),
        [*filter(None, [view.name, text.seconds(view.elapsed_s), spent(view), path])],
    )


def _summary(view: SweepView) -> str:
    complete = f"{view.completed} of {count(view.total, 'row')} are complete."
    if not view.is_over:
        return f"This sweep was live when this was written: {complete}"
    if view.status == "completed":
        return ""
    why = f" ({text.clip(view.reason, 200)})" if view.reason else ""
    return f"Stopped after {text.seconds(view.elapsed_s)}{why}. {complete} Nothing was lost."


def _continuation(view: SweepView, entry_point: EntryPoint) -> str:
    """Return how to run the missing rows of a sweep, or "" if none are missing."""
    missing = view.total - view.completed - view.failed
    if not missing:
        return ""
    rows = "the missing row" if missing == 1 else f"the {missing} missing rows"
    again = f"{entry_point.again} to continue with {rows}. Finished rows are not repeated."
    if view.is_over:
        return again
    return f"If its {entry_point.writer} has ended: {again[0].lower()}{again[1:]}"


def _buttons(view: SweepView) -> list[tuple[str, str, str]]:
    """Return the card's buttons: their labels, titles and arguments. They add a cell and run it."""
    if not view.is_over:
        return []
    line, buttons = f"%agents resume {view.name}", list[tuple[str, str, str]]()
    if view.total > view.completed + view.failed:
        title = "Run the missing rows with a new cell. Finished rows are not repeated."
        buttons.append(("Resume", title, cell_to_run(line)))
    if view.failed:
        title = "Run the failed and missing rows with a new cell."
        buttons.append(("Retry failed", title, cell_to_run(f"{line} --retry-failed")))
    return buttons


def _columns(view: SweepView, table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first columns of the source, or none if the rows' values are not known."""
    rows = [view.values.get(str(record["row"]), {}) for record in table]
    names = dict.fromkeys(name for values in rows for name in values)
    return list(names)[:MAX_VALUE_COLUMNS] if all(rows) else []


def _line(record: Mapping[str, Any], view: SweepView, columns: Sequence[str]) -> _Line:
    row = str(record["row"])
    values = view.values.get(row, {})
    title, rest = _title(row, view)
    status = "not started" if record["status"] == "waiting" else record["status"]
    score = record["score"]
    return _Line(
        f"{title} ({rest})" if rest else title,
        [text.clip(values.get(name, ""), MAX_VALUE) for name in columns] or [title],
        status,
        _TONES.get(status, "cut"),
        text.clip(_answer(record), MAX_ANSWER),
        _markdown(record),
        "" if score is None else f"{score:.3g}",
        token_count(record["tokens"]) if record["tokens"] else "",
        price(record["tokens"], record["cost"]),
    )


def _answer(record: Mapping[str, Any]) -> str:
    """Return a row's answer, or a recipe's outputs.

    Outputs are the keys between status and error. The error of a complete row concerns its score.
    Other errors are shown above the table.
    """
    if record["status"] == "complete" and record["error"]:
        return str(record["error"])
    if record.get("answer") is not None:
        return str(record["answer"])
    names = list(record)
    outputs = names[names.index("status") + 1 : names.index("error")]
    return " · ".join(f"{name}: {record[name]}" for name in outputs if name not in _OWN_COLUMNS)


def _markdown(record: Mapping[str, Any]) -> str:
    """Return a team's answer as Markdown, or "" if the row has no answer."""
    if record["status"] == "completed" and record["error"] or record.get("answer") is None:
        return ""
    return text.cut(str(record["answer"]).strip(), MAX_ANSWER)


def _text(card: _Card) -> str:
    lines = [f"{card.title} [{card.state}]", "", *filter(None, [card.summary])]
    lines.append(" · ".join([words for words, _ in card.counts]))
    lines += [f"Score: {card.score}"] if card.score else []
    lines += [f"{state.upper()} {row}: {why}" for state, row, why in card.failures]
    lines += [f"… and {card.more_failures} more without an answer"] if card.more_failures else []
    lines += [card.retry] if card.retry else []
    lines += [""] if card.lines else []
    lines += [" · ".join(filter(None, [f"{x.name}: {x.status}", x.answer])) for x in card.lines]
    lines += [f"… and {card.more_lines} more rows"] if card.more_lines else []
    lines += ["", card.continuation] if card.continuation else []
    return "\n".join([*lines, "", " · ".join(card.footer)])
