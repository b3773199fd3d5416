"""The text computed from the stored journals: projections and cards of turns, cards of sweeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from tests.golden.stored import root, stored_sweeps, stored_turns, sweep_at, turn_at
from tests.golden.text import plain, to_text
from tests.kit.agents import PLACED_CALLS, REPLAY, VOTING, Past, replay, voting
from tests.kit.cards import (
    MAX_PLAIN,
    TERMINAL,
    card_bundle,
    card_text,
    panel_state,
    read_transcript,
    turn_bundle,
)
from tests.kit.recipes import PROGRESS, Progress
from tests.kit.replays import script_of
from tests.kit.runs import failure_of, log_lines, preview_of, progress_of, result_of, trace_events
from tests.kit.sessions import (
    PastTurn,
    TurnPaths,
    load_session,
    past_events,
    read_journal,
)
from tests.kit.sweeps import (
    ROWS,
    SWEEP_FILE,
    LiveRow,
    SweepReader,
    sweep_bundle,
    sweep_state,
    sweep_text,
    sweep_title,
)
from tests.kit.views import RunView, checkpoints_of, fold, fold_timeline

__all__ = ["FOLD_SECTIONS", "cards", "projections", "same_everywhere"]

SHOWN_ROOT = ".nb_agents/sessions"
"""Where a reader of the cards would have the sessions."""

FOLD_SECTIONS = {
    "view": "view",
    "spans": "timeline",
    "transcript": "transcript of ...",
    "replay": "replay",
    "voting": "voting",
    "placed_calls": "placed calls",
    "progress": "progress",
    "recording": "steps of a replay",
}
"""The section that shows the state of each registered fold, by the fold's name."""

_MOMENTS = (ev.StopRequested, ev.ApprovalAsked, ev.Paused, ev.PresentationStarted)
"""After the first event of each of these kinds, a live panel and card are made."""

_IN_NAME = ("gen_ai.operation.name", "gen_ai.conversation.id")
"""Attributes that follow from a span's name and from the session."""

_MAX_LOG = 120
"""Characters of a line of the log; a digest has the rest."""

_FILES = ("metadata.json", "partial_answers.json", "answer.txt", "../SESSION_SUMMARY.txt")
_PICTURE = re.compile(r"<svg role=img.*?</svg>(?=</div>)", re.DOTALL)
_SHEET = re.compile(r"<style>(.*?)</style>\n?", re.DOTALL)


@contextmanager
def same_everywhere() -> Iterator[None]:
    """Have the same time zone, and no settings of the user, within the block."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("NB_AGENTS_")]:
        del os.environ[name]
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        time.tzset()


def _sections(parts: Mapping[str, str]) -> str:
    return "\n".join(f"=== {title}\n{text.rstrip()}\n" for title, text in parts.items())


def _lines(values: Sequence[object]) -> str:
    return "\n".join(map(str, values))


def _json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False)


def _digest(text: str) -> str:
    return f"digest {sha256(text.encode()).hexdigest()[:32]}"


@cache
def _turn(name: str) -> PastTurn:
    paths = turn_at(name)
    return next(turn for turn in load_session(paths.path.parent).turns if turn.paths == paths)


def _shown(paths: TurnPaths) -> str:
    return f"{SHOWN_ROOT}/{paths.session}/{paths.path.name}"


# Projections ---------------------------------------------------------------------------------


def projections() -> Mapping[str, Callable[[], str]]:
    """Return what makes each file of ``projections/``, by its name."""
    return {f"{name}.txt": partial(_projected, name) for name in stored_turns()}


def _projected(name: str) -> str:
    turn = _turn(name)
    paths, view, own = turn.paths, turn.view, read_journal(turn.paths.journal)
    events = past_events(paths)
    known = {
        "view": to_text(plain(view)),
        "status": to_text(_status(view)),
        "timeline": to_text(plain(fold_timeline(events))),
        "points": _lines([f"{each}: {_json(list(each))}" for each in checkpoints_of(own.events)]),
        "log": _log(own.events),
        **{f"transcript of {who}": _transcript(paths, who) for who in (*view.agents, *view.steps)},
        "spans": _spans(own.events),
        **_resumed_states(view, events),
        **{name: _file(paths.path / name) for name in _FILES},
        "preview": str(preview_of(view, paths)),
    }
    return _sections(known).replace(str(root()), SHOWN_ROOT)


def _resumed_states(view: RunView, events: Sequence[ev.Event]) -> dict[str, str]:
    """Return the states from which a resume continues, and a digest of the state after each event.

    The calls of all agents' functions are folded as if one agent had made them.
    """
    order = () if view.recipe else tuple(view.agents)
    team = voting.begin(order)
    folds = {
        "replay": _states(REPLAY, Past(team), events, replay(order, events)),
        "voting": _states(VOTING, team, events),
        "placed calls": _states(PLACED_CALLS, {}, events),
        "steps of a replay": _replay_steps(events),
    }
    if view.recipe:
        folds["progress"] = _states(PROGRESS, Progress(), events)
    return folds


def _replay_steps(events: Sequence[ev.Event]) -> str:
    script = script_of(events)
    return _lines([script.unsupported] if script.unsupported else [*map(str, script.order)])


def _states(fold: ev.Fold[Any], first: Any, events: Sequence[ev.Event], shown: Any = None) -> str:
    """Return the last state, or ``shown``, and the events that change the state."""
    state, lines = first, list[str]()
    for event in events:
        after = fold.apply(state, event)
        if after is not state:
            lines.append(f"{event.seq} {event.kind}: {_digest(repr(plain(after)))[:15]}")
        state = after
    return "\n".join([to_text(plain(state if shown is None else shown)), *lines])


def _log(events: Sequence[ev.Event]) -> str:
    lines = log_lines(events)
    return _lines([*(line[:_MAX_LOG] for line in lines), _digest(_lines(lines))])


def _status(view: RunView) -> dict[str, Any]:
    progress = progress_of(view, view.last_at)
    failed = failure_of("r1", view, Path(SHOWN_ROOT)) if view.status == "failed" else ""
    return {
        "state": view.state,
        "result": result_of(view),
        "failed": str(failed),
        "progress": plain(progress),
    }


def _transcript(paths: TurnPaths, who: str) -> str:
    return _lines([_json(list(piece.values())) for piece in read_transcript(paths, who)["pieces"]])


def _spans(events: Sequence[ev.Event]) -> str:
    """Return a line for each span: what it has that others have not, and a digest of all."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_events(events, provider)
    provider.shutdown()
    spans: list[Any] = sorted(
        exporter.get_finished_spans(), key=lambda each: (each.start_time, each.name)
    )
    places = {each.context.span_id: number for number, each in enumerate(spans)}
    lines = [f"{n} {_span(each, events[0].at, places)}" for n, each in enumerate(spans)]
    return _lines([*lines, _digest(repr(list(map(_whole, spans))))])


def _whole(span: Any) -> list[Any]:
    linked = [(each.context.trace_id, each.context.span_id) for each in span.links]
    parent = span.parent.span_id if span.parent else 0
    ids = [span.context.trace_id, span.context.span_id, parent]
    return [*ids, span.start_time, span.end_time, dict(span.attributes), linked]


def _span(span: Any, began_at: float, places: Mapping[int, int]) -> str:
    inside = f" in {places[span.parent.span_id]}" if span.parent else ""
    start, end = (round(ns / 1e9 - began_at, 3) + 0.0 for ns in (span.start_time, span.end_time))
    known = {k: v for k, v in span.attributes.items() if k not in _IN_NAME}
    if span.status.status_code.name != "UNSET":
        known["status"] = f"{span.status.status_code.name} {span.status.description}"
    if span.links:
        known["links"] = len(span.links)
    return f"{span.kind.name} {span.name}{inside}, {start} to {end} s: {_json(known)}"


def _file(path: Path) -> str:
    text = path.read_text("utf-8") if path.exists() else "(none)"
    return to_text(json.loads(text)) if path.suffix == ".json" and path.exists() else text


# Cards ---------------------------------------------------------------------------------------


def cards() -> Mapping[str, Callable[[], str]]:
    """Return what makes each file of ``cards/``, by its name."""
    turns = {f"{name}.txt": partial(_turn_cards, name) for name in stored_turns()}
    sweeps = {f"{name}.txt": partial(_sweep_cards, name) for name in stored_sweeps()}
    return {"styles.css": _styles, **turns, **sweeps}


def _styles() -> str:
    """Return the style rules of all cards."""
    bundles = [*map(_card, stored_turns()), *map(_sweep_card, stored_sweeps())]
    sheets = [sheet for bundle in bundles for sheet in _SHEET.findall(bundle["text/html"])]
    return "".join(f"{rule}\n" for rule in sorted({*chain.from_iterable(map(_rules, sheets))}))


def _rules(sheet: str) -> list[str]:
    return re.sub(r"(?<=[;}])(?=--nb-|\.|@)", "\n", sheet).splitlines()


@cache
def _card(name: str) -> dict[str, Any]:
    turn = _turn(name)
    return turn_bundle(turn, _shown(turn.paths))


def _turn_cards(name: str) -> str:
    turn = _turn(name)
    paths, view, shown = turn.paths, turn.view, _shown(turn.paths)
    again = preview_of(view, paths)
    parts = _bundle("card", _card(name))
    parts["card in a terminal"] = card_text(view, shown, again, TERMINAL, MAX_PLAIN)
    parts["panel"] = to_text(panel_state(view, "r1", view.last_at + 1))
    for event, live in _moments(read_journal(paths.journal).events):
        when = f"after {event.seq} {event.kind}"
        parts[f"panel {when}"] = to_text(panel_state(live, "r1", live.last_at + 1))
        parts |= _bundle(f"card {when}", card_bundle(live, shown))
    return _sections(parts).replace(str(root()), SHOWN_ROOT)


def _moments(events: Sequence[ev.Event]) -> Iterator[tuple[ev.Event, RunView]]:
    first: dict[type[ev.Event], int] = {}
    for number, event in enumerate(events, 1):
        if isinstance(event, _MOMENTS) and type(event) not in first:
            first[type(event)] = number
            yield event, fold(events[:number])


def _bundle(title: str, bundle: Mapping[str, Any]) -> dict[str, str]:
    """Return a card: its words, its HTML without styles and picture, and a digest of all of it."""
    words = bundle.get("text/markdown", bundle["text/plain"])
    html = _PICTURE.sub("(picture)", _SHEET.sub("", bundle["text/html"]))
    digest = _digest(json.dumps(bundle, sort_keys=True))
    return {title: words, f"{title}: HTML": re.sub(r"(?<=>)(?=<)", "\n", html) + f"\n{digest}"}


# Sweeps --------------------------------------------------------------------------------------


@cache
def _sweep_card(name: str) -> dict[str, Any]:
    path = sweep_at(name)
    reader = SweepReader(path)
    return sweep_bundle(reader.view, sweep_title(path), f"{SHOWN_ROOT}/{path.name}", reader.table())


def _sweep_cards(name: str) -> str:
    path = sweep_at(name)
    reader, shown, title = SweepReader(path), f"{SHOWN_ROOT}/{path.name}", sweep_title(path)
    view = reader.view
    parts = {"view": to_text(plain(view)), **_bundle("card", _sweep_card(name))}
    parts["card in a terminal"] = sweep_text(view, title, shown, reader.table(), TERMINAL)
    parts["panel"] = to_text(sweep_state(view, title, shown, 0.0))
    live, rows = _begun(path)
    at_work = live.view_of(rows, True, now=1_800_000_100.0)
    parts["panel of a live one"] = to_text(sweep_state(at_work, title, shown, 1_800_000_100.0))
    parts |= _bundle("card of a live one", sweep_bundle(at_work, title, shown, []))
    return _sections(parts).replace(str(root()), SHOWN_ROOT)


def _begun(path: Path) -> tuple[SweepReader, list[LiveRow]]:
    """Return the sweep as it was when its second row had just begun."""
    copy = root() / ".begun" / path.name
    copy.mkdir(parents=True, exist_ok=True)
    shutil.copy(path / SWEEP_FILE, copy)
    lines = (path / ROWS).read_text("utf-8").splitlines(keepends=True)
    begun = [number for number, line in enumerate(lines, 1) if '"row_began"' in line]
    (copy / ROWS).write_text("".join(lines[: begun[1]]), "utf-8")
    reader = SweepReader(copy)
    reader.read()
    row = json.loads(lines[begun[1] - 1])["row"]
    events = read_journal(path / row / "turn_1" / "events.jsonl").events
    return reader, [LiveRow(row, "r1", fold(events[: len(events) // 2]))]
