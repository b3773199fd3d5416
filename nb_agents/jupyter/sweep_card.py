"""The static card of a sweep, readable with no kernel; styles as in `nb_agents.jupyter.cards`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nb_agents.jupyter import text
from nb_agents.jupyter.cards import card_template
from nb_agents.jupyter.markdown import harmless
from nb_agents.jupyter.sweep_state import (
    MAX_FAILURES,
    MAX_WHY,
    count,
    counts,
    score_of,
    spent,
    standing,
)

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep_view import SweepView

__all__ = ["MAX_TABLE", "SWEEP_MIME", "sweep_bundle"]

SWEEP_MIME = "application/vnd.nb-agents.sweep+json"
MAX_TABLE = 20
"""Rows in the card's table; as `FIRST_ROWS` of the manifest, which is not loaded for this."""
MAX_ANSWER = 200
"""Characters of an answer in it."""

_STATUS = {
    "completed": ("done", "ok"),
    "failed": ("failed", "err"),
    "cancelled": ("stopped", "cut"),
}
_RETRY = "What failed is tried again with --retry-failed, or retry_failed=True."
_OWN = {"row", "status", "answer", "error", "tokens", "cost", "seconds", "score", "session"}


def sweep_bundle(
    view: SweepView, title: str, path: str, table: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the card of a sweep as a mime bundle.

    Args:
        view: The sweep.
        title: What it asks, or its name.
        path: Its directory, as shown to the person.
        table: Records of the rows, as `Sweep.table` gives them, or of the first; none while live.

    Returns:
        A mime bundle: text/html, text/plain and `SWEEP_MIME`.
    """
    card = _card(view, title, path, table)
    html = card_template("sweep.html.j2").render(card=card, text=text)
    return harmless(
        {"text/html": html, "text/plain": _text(card), SWEEP_MIME: _data(view, card, path)}
    )


def _data(view: SweepView, card: _Card, path: str) -> dict[str, Any]:
    return {
        "sweep": view.name,
        "task": card.title,
        "state": card.state,
        "rows": view.total,
        "done": view.completed,
        "failed": view.failed,
        "tokens": view.tokens,
        "cost": view.cost,
        "path": path,
    }


@dataclass(frozen=True)
class _Line:
    """A row in the card's table."""

    name: str
    status: str
    tone: str
    answer: str
    score: str
    tokens: str
    cost: str


@dataclass(frozen=True)
class _Card:
    """What is on the card, in words."""

    title: str
    state: str
    summary: str
    counts: Sequence[tuple[str, str]]
    score: str
    failures: Sequence[tuple[str, str]]
    more_failures: int
    retry: str
    lines: Sequence[_Line]
    more_lines: int
    go_on: str
    footer: Sequence[str]


def _card(view: SweepView, title: str, path: str, table: Sequence[Mapping[str, Any]]) -> _Card:
    failures = [(text.clip(f.row, 60), text.clip(f.error, MAX_WHY)) for f in view.failures]
    lines = [_line(record) for record in table[:MAX_TABLE]]
    return _Card(
        text.clip(title, 200),
        standing(view),
        _summary(view),
        counts(view),
        score_of(view),
        failures[:MAX_FAILURES],
        view.failed - len(failures[:MAX_FAILURES]),
        _RETRY if view.is_over and view.failed else "",
        lines,
        view.total - len(lines) if lines else 0,
        _go_on(view),
        [*filter(None, [view.name, text.seconds(view.elapsed_s), spent(view), path])],
    )


def _summary(view: SweepView) -> str:
    done = f"{view.completed} of {count(view.total)} are done."
    if not view.is_over:
        return f"This sweep was live when this was written: {done}"
    if view.status == "completed":
        return ""
    why = f" ({text.clip(view.reason, 200)})" if view.reason else ""
    return f"Stopped after {text.seconds(view.elapsed_s)}{why}. {done} Nothing was lost."


def _go_on(view: SweepView) -> str:
    """Return what running the cell again does; "" when nothing is left to do."""
    missing = view.total - view.completed - view.failed
    if not missing:
        return ""
    them = "the missing row" if missing == 1 else f"the {missing} missing rows"
    again = f"Run the cell again: it goes on with {them}, and pays for nothing twice."
    return again if view.is_over else f"If its kernel is gone: {again[0].lower()}{again[1:]}"


def _line(record: Mapping[str, Any]) -> _Line:
    status, tone = _STATUS.get(record["status"], ("not begun", "cut"))
    score = record["score"]
    return _Line(
        text.clip(str(record["row"]), 60),
        status,
        tone,
        text.clip(_answer(record), MAX_ANSWER),
        "" if score is None else f"{score:.3g}",
        text.tokens(record["tokens"]) if record["tokens"] else "",
        text.cost(record["cost"]) if record["tokens"] else "",
    )


def _answer(record: Mapping[str, Any]) -> str:
    """Return the answer, or a recipe's outputs by name, which stand between status and error.

    Why it failed is told above; of a row that is done, the error is its score's.
    """
    if record["status"] == "completed" and record["error"]:
        return str(record["error"])
    if record.get("answer") is not None:
        return str(record["answer"])
    names = list(record)
    outputs = names[names.index("status") + 1 : names.index("error")]
    return " · ".join(f"{name}: {record[name]}" for name in outputs if name not in _OWN)


def _text(card: _Card) -> str:
    lines = [f"{card.title} [{card.state}]", "", *filter(None, [card.summary])]
    lines.append(" · ".join([words for words, _ in card.counts]))
    lines += [f"Score: {card.score}"] if card.score else []
    lines += [f"FAILED {row}: {why}" for row, why in card.failures]
    lines += [f"… and {card.more_failures} more failed"] if card.more_failures else []
    lines += [card.retry] if card.retry else []
    lines += [""] if card.lines else []
    lines += [" · ".join(filter(None, [f"{x.name}: {x.status}", x.answer])) for x in card.lines]
    lines += [f"… and {card.more_lines} more rows"] if card.more_lines else []
    lines += ["", card.go_on] if card.go_on else []
    return "\n".join([*lines, "", " · ".join(card.footer)])
