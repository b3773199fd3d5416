"""Every user interface shows a state with the same name, such as complete or timed out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from nb_agents import events as ev
from nb_agents.errors import CancellationRequestedError, RunCancelled
from tests.kit.cards import CELL, TERMINAL, Status, panel_state, text, turn_bundle
from tests.kit.runs import failure_of, handle_of
from tests.kit.sessions import TurnPaths, load_session, load_turn, read_json
from tests.kit.sweeps import (
    Note,
    RowBegan,
    RowResult,
    SweepBegan,
    SweepChanged,
    SweepFold,
    result_of_turn,
    row_record,
    sweep_bundle,
    sweep_state,
)
from tests.kit.verbs import Caller, diff, run_facts, session_facts, sessions, status_of_work
from tests.kit.views import RunState, fold
from tests.session.turns import CANCELLED, COMPLETED, STOP, answer, started, turn_paths, write_turn

REPO = Path(__file__).parents[2]
LATE = ev.StopRequested(level="requested", source="timeout", reason="time limit of 3 s reached")
FAILED = ev.TurnEnded(status="failed", phase="coordinating")
CUT = replace(LATE, level="immediate", reason="the grace time is over")
BY_PROGRAM = replace(STOP, source="notebook")

ENDS: dict[str, tuple[list[ev.Event], RunState]] = {
    "with its answer": ([COMPLETED], "complete"),
    "by a person": ([STOP, CANCELLED], "stopped"),
    "by papermill's time limit": ([BY_PROGRAM, CANCELLED], "stopped"),
    "by a budget": ([replace(STOP, source="budget"), CANCELLED], "stopped"),
    "by a kill": ([], "stopped"),
    "by a kill while it stopped": ([STOP], "stopped"),
    "without an answer": ([FAILED], "failed"),
    "by its time limit": ([LATE, CANCELLED], "timed out"),
    "by its time limit's grace": ([LATE, CUT, CANCELLED], "timed out"),
    "by a time limit that counts as a failure": ([LATE, FAILED], "timed out"),
}
WORDS = ("complete", "stopped", "failed", "timed out")


def shown(paths: TurnPaths) -> Iterator[tuple[str, object]]:
    """Yield each user interface that shows a turn's state, with the shown name."""
    turn, root = load_turn(paths), paths.path.parents[1]
    view, run = turn.view, handle_of(paths)
    yield "Run.state", run.state
    yield "repr of a run", repr(run).rstrip(">").rpartition(": ")[2]
    yield "repr of a view", repr(view).partition(": ")[2].partition(",")[0]
    yield "RunView.state", view.state
    panel = panel_state(view, "r1", 2e9)
    yield "the panel's colour", panel["status"]
    yield "the panel's chip", panel["chip"]
    bundle = turn_bundle(turn, "p")
    yield "the card's heading", re.search(r"\[([^]]*)\]\n", bundle["text/plain"])[1]  # type: ignore[index]
    html = bundle["text/html"].partition("border-radius:99px")[2]
    yield "the card's chip", re.search(r">\S ([^<]*)<", html)[1]  # type: ignore[index]
    pointer = next(data for mime, data in bundle.items() if mime.endswith("+json"))
    yield "the card's data", pointer["state"]
    yield "Receipt.status", run.receipt.status
    yield "repr of a receipt", re.sub(r"<Receipt ([a-z ]*?)( by .*|:.*)", r"\1", repr(run.receipt))
    yield "metadata.json", read_json(paths.metadata)["receipt"]["status"]
    yield "JSON of show", run_facts(run).status
    yield "JSON of a verb", status_of_work(run)["status"]
    yield "the list of sessions", text.session_row(load_session(paths.path.parent))[2]
    yield "progress", run.progress.message if view.is_over else view.state
    for caller in (Caller("magic", CELL), Caller("cli", TERMINAL)):
        listed = sessions(root, caller)
        yield f"sessions by {caller.source}", listed.rows[0][listed.heads.index("last turn")]
        rows = diff(root, caller, first="session_1/1", second="session_1/1").rows
        yield f"diff by {caller.source}", dict((row[0], row[1]) for row in rows)["state"]
    yield from by_http(paths)
    result = result_of_turn("row", view, paths.path)
    yield "RowResult.state", result.state
    yield "a sweep's table", row_record("row", result.state, result, paths.path)["status"]
    yield from in_sweep(result)


def by_http(paths: TurnPaths) -> Iterator[tuple[str, object]]:
    told = run_facts(handle_of(paths))
    yield "GET of a run: status", told.status
    yield "GET of a run: state", told.state
    yield "GET of a run: says", told.says
    (turn,) = session_facts(paths.path.parent).turns
    yield "GET of the sessions, the sidebar", turn.state


def in_sweep(result: RowResult) -> Iterator[tuple[str, object]]:
    """Yield the state shown by a sweep of one row, live and read from the row's line."""
    notes: list[Note] = [
        SweepBegan(1.0, 1, ("row",), (), False),
        RowBegan("row", 1),
        result,
        SweepChanged(2.0, "cancelled"),
    ]
    fold = SweepFold()
    for note in notes:
        fold.apply(note)
    view = fold.view("s", (), 3.0)
    (counted,) = sweep_state(view, "t", "p", 3.0)["counts"]
    yield "counts of a sweep's panel", counted["text"].partition(" ")[2]
    record = row_record("row", result.state, result, Path("p"))
    card = sweep_bundle(view, "t", "p", [record])
    line = next(x for x in card["text/plain"].splitlines() if x.startswith("row: "))
    yield "a row of a sweep's card", line.removeprefix("row: ").partition(" · ")[0]
    cell = re.search(r">\S (complete|stopped|failed|timed out)</td>", card["text/html"])
    yield "a row of a sweep's card in HTML", cell and cell[1]
    if result.status == "failed":
        loud = next(x for x in card["text/plain"].splitlines() if ": " in x and " row" in x)
        yield "why a row has no answer", loud.partition(" row")[0].lower()


@pytest.mark.parametrize(("events", "word"), ENDS.values(), ids=ENDS)
def test_every_entry_point_shows_the_same_state(
    tmp_path: Path, events: list[ev.Event], word: str
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", "An answer."), *events)
    load_turn(paths)  # of one that was killed, it writes the files
    assert {where: said for where, said in shown(paths) if said != word} == {}


@pytest.mark.parametrize(("events", "word"), ENDS.values(), ids=ENDS)
def test_sentences_about_an_end_name_no_other_state(
    tmp_path: Path, events: list[ev.Event], word: str
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", "An answer."), *events)
    turn = load_turn(paths)
    view, receipt = turn.view, handle_of(paths).receipt
    said = [turn_bundle(turn, "p")["text/plain"].partition("\n\n")[2].partition(".")[0]]
    said += load_session(paths.path.parent).restored()[1:2]
    if word != "complete":
        failed = view.status == "failed"
        errors: list[Exception] = [failure_of("r1", view, paths.path)] if failed else []
        if not failed:
            errors = [RunCancelled("r1", {}, receipt, paths.path)]
            errors += [CancellationRequestedError("s", receipt=receipt, path=paths.path)]
        said += [str(each).partition(". ")[0] for each in errors]
    others = "|".join(each for each in WORDS if each != word)
    assert [each for each in said if re.search(rf"\b({others})\b", each.lower())] == []
    if word == "timed out":
        assert all("timed out" in each.lower() for each in said[1:])


def test_stop_by_a_notebook_runner_is_not_attributed_to_the_user(
    tmp_path: Path,
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", "An answer."), BY_PROGRAM, CANCELLED)
    card = turn_bundle(load_turn(paths), "p")["text/plain"]
    assert "Stopped by the program that ran the notebook (its time limit, or an interrupt)" in card
    assert "topped by you" not in card


def test_sweep_line_of_an_earlier_version_has_its_state() -> None:
    from tests.kit.sweeps import note_type

    lines: Mapping[str, str] = {"completed": "complete", "failed": "failed", "cancelled": "stopped"}
    for status, word in lines.items():
        line = f'{{"row": "a", "status": "{status}", "answer": null, "error": "", "tokens": 3}}'
        note = note_type().validate_json(line)
        assert isinstance(note, RowResult) and note.state == word


def test_page_has_the_same_states_as_python() -> None:
    assert set(get_args(RunState)) == set(get_args(Status)) == {*WORDS, "running", "stopping"}
    page = (REPO / "js/src/panel-types.ts").read_text()
    declared = re.search(r"export type Status =([^;]*);", page)
    assert declared is not None
    assert set(re.findall(r'"([^"]*)"', declared[1])) == set(get_args(RunState))


# Words in the source ------------------------------------------------------------------------

SYNONYMS = re.compile(
    r"[\W\d_]*(done|finished|completed|succeeded|success|cancell?ed|aborted|interrupted|terminated|"
    r"killed|timeout|timed-out|timed_out|out of time|crashed|errored|ended)[\W\d_]*",
    re.IGNORECASE,
)
SHOWING = ("presentation", "cli", "verbs", "jupyter", "server")
OPTIONS = {REPO / "nb_agents/verbs/parameters.py"}
NOT_SHOWN = {
    ("timeline_picture.py", "timeout"),  # a kind of entry, which has a word of its own
    ("team_agent.py", "completed"),  # the Agent Client Protocol's
    ("team_agent.py", "cancelled"),  # also
}


def shown_words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that are only such a name, except in comparisons."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        hidden: list[ast.AST] = []
        match node:
            case ast.Compare() | ast.MatchValue() | ast.MatchClass():
                hidden = [node]
            case ast.Subscript():
                hidden = [node.slice]
            case ast.Dict():
                hidden = [key for key in node.keys if key is not None]
            case ast.Call(func=ast.Attribute(attr="get" | "pop")):
                hidden = list(node.args[:1])
            case ast.Call(func=ast.Name(id="run_parameters")):  # names of options
                hidden = list(node.args)
        skipped |= {id(each) for part in hidden for each in ast.walk(part)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped and SYNONYMS.fullmatch(node.value):  # type: ignore[attr-defined]
            yield node.lineno, node.value  # type: ignore[attr-defined]


def test_source_contains_no_other_name_of_a_state() -> None:
    found: list[Any] = []
    for folder in SHOWING:
        for path in sorted(set((REPO / "nb_agents" / folder).glob("*.py")) - OPTIONS):
            words = shown_words(ast.parse(path.read_text("utf-8")))
            found += [
                (f"{folder}/{path.name}:{line}", word)
                for line, word in words
                if (path.name, word) not in NOT_SHOWN
            ]
    assert found == []


def test_search_for_state_names_finds_them() -> None:
    source = 'def chip(view):\n    if view.status == "completed":\n        return "done"\n'
    assert list(shown_words(ast.parse(source))) == [(3, "done")]
    assert list(shown_words(ast.parse('f"{n} finished"'))) == [(1, " finished")]
    assert list(shown_words(ast.parse('{"completed": "complete"}'))) == []


def test_panel_waits_only_if_all_agents_of_a_running_turn_wait() -> None:
    fields: Any = {
        "waits_for": "quota",
        "retry_at": 4e9,
        "retry_in_s": 9.0,
        "error": "Out of quota.",
    }
    events: list[ev.Event] = [started()]
    events += [ev.ModelStarted(agent=agent, call=1) for agent in ("ada", "ben")]
    waits = []
    for agent in ("ada", "ben"):
        events.append(ev.ModelFailed(agent=agent, call=1, **fields))
        waits.append("waits" in panel_state(fold(events), "r1", 0.0))
    assert waits == [False, True]
    stopping = fold([*events, ev.StopRequested(level="requested", source="user", reason="")])
    assert "waits" not in panel_state(stopping, "r1", 0.0)


@pytest.mark.parametrize("phase", ["thinking", "writing", "tool"])
def test_graceful_stop_names_the_agent_it_waits_for(phase: Any) -> None:
    view = fold([started(), STOP])
    known = next(iter(view.agents.values()))
    view = replace(view, agents={known.id: replace(known, phase=phase)})
    assert f"waiting for {known.id}" in text.waits_for(view)
    view = replace(view, agents={known.id: replace(known, phase="stopped")})
    assert "waiting for its files to be written" in text.waits_for(view)
