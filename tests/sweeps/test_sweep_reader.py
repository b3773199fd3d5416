"""Readers get the same state from a sweep's files as the process that runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.sweep_reader import SweepReader
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import registry
from tests.kit.sweeps import (
    FIRST_ROWS,
    MAX_TABLE,
    PROCESS_DIED,
    ROWS,
    Sweep,
    SweepView,
    is_live_sweep,
)
from tests.model_server import wait_until
from tests.team_kit import WAIT_S

TASK = "Answer: {{q}}"


@pytest.fixture
def options(tmp_path: Path) -> Iterator[RunOptions]:
    yield RunOptions(session_root=tmp_path)
    for group in registry.groups():
        group.stop(True, reason="the test is over", source="parent")


@pytest.fixture
def gate() -> Gate:
    return Gate()


def begin(options: RunOptions, gate: Gate | None = None, rows: int = 4, **more: Any) -> Sweep:
    """Start a sweep. With a gate, its rows wait after two words."""
    answer = Answer("So.") if gate is None else replace(Answer("So."), text="two words ", gate=gate)
    source = more.pop("source", [{"q": f"what is {number}?"} for number in range(rows)])
    model = more.pop("model", None) or ScriptedModel(answer)
    how = {"limit": 2, "name": "asked", "options": options, **more}
    return nb_agents.map(source, TASK, scripted_team(a=model), **how)


def read(path: Path, reader: SweepReader | None = None) -> SweepView:
    """Return the state of a sweep according to its files, with the clocks at zero."""
    reader = reader or SweepReader(path)
    reader.read()
    return timeless(reader.view_of((), is_live_sweep(path), 0.0))


def timeless(view: SweepView) -> SweepView:
    """Leave out the times and the order of failures."""
    failures = tuple(sorted(view.failures, key=lambda failure: failure.row))
    still = replace(view, live=(), elapsed_s=0.0, left_s=None, tokens=0, cost=0.0)
    return replace(still, failures=failures)


def test_live_sweep_is_read_as_in_its_process(options: RunOptions, gate: Gate) -> None:
    sweep = begin(options, gate)
    gate.wait_reached(2)
    reader = SweepReader(sweep.path)

    def is_as_shown() -> bool:
        return read(sweep.path, reader) == timeless(sweep.view)

    wait_until(lambda: is_as_shown() and len(reader.turns) == 2)  # recorded after they start
    assert {name: str(turn.path) for name, turn in reader.turns.items()} == {
        name: str(run.path) for name, run in sweep.runs.items()
    }
    sweep.pause()
    wait_until(lambda: sweep.status == "paused" and is_as_shown())
    sweep.resume()
    wait_until(lambda: sweep.status == "running" and is_as_shown())
    sweep.stop(reason="seen enough")
    wait_until(lambda: sweep.status == "stopping" and is_as_shown())
    assert read(sweep.path, reader).reason == "seen enough"
    gate.open()
    ended = sweep.wait(WAIT_S)
    assert read(sweep.path, reader) == timeless(ended)
    assert (ended.status, reader.turns, reader.is_over) == ("cancelled", {}, True)


def test_continued_sweep_is_read_as_in_its_process(options: RunOptions) -> None:
    flaky = ScriptedModel(Turn(error=ValueError("no key")))
    reader = SweepReader(Path(str(options.session_root), "asked"))
    first = begin(options, model=flaky, rows=3).wait(WAIT_S)
    assert read(reader_path(options), reader) == timeless(first)
    assert first.failed == 3
    for more in ({"rows": 5}, {"rows": 5, "retry_failed": True}):
        view = begin(options, score=lambda task, answer: 0.5, **more).wait(WAIT_S)
        assert read(reader_path(options), reader) == timeless(view)
        assert read(reader_path(options)) == timeless(view)
    assert (view.completed, len(view.scores)) == (5, 5)


def reader_path(options: RunOptions) -> Path:
    return Path(str(options.session_root), "asked")


def test_rows_of_another_source_do_not_count(options: RunOptions) -> None:
    begin(options).wait(WAIT_S)
    view = begin(options, source=[{"q": "and now?"}]).wait(WAIT_S)
    assert read(reader_path(options)) == timeless(view)
    assert (view.total, view.completed) == (1, 1)


def test_records_of_the_first_rows_match_those_of_the_process(options: RunOptions) -> None:
    sweep = begin(options, rows=MAX_TABLE + 5, limit=8)
    sweep.wait(WAIT_S)
    reader = SweepReader(sweep.path)
    reader.read()
    known = [{k: v for k, v in record.items() if k != "q"} for record in sweep.table()]
    assert reader.table() == known[:MAX_TABLE]
    assert MAX_TABLE == FIRST_ROWS


def test_sweep_with_a_dead_process_has_ended_and_lists_running_rows(
    options: RunOptions,
) -> None:
    sweep = begin(options)
    sweep.wait(WAIT_S)
    rows = sweep.path / ROWS
    first = sweep.rows[0].name
    lines = [line for line in rows.read_text().splitlines() if "sweep_changed" not in line]
    left = [line for line in lines if f'"{first}", "status"' not in line]
    rows.write_text("\n".join(left) + "\n")  # as after a kill
    reader = SweepReader(sweep.path)
    view = read(sweep.path, reader)
    assert (view.status, view.reason, view.is_over) == ("cancelled", PROCESS_DIED, True)
    statuses = [record["status"] for record in reader.table()]
    assert statuses == ["stopped", "complete", "complete", "complete"]
    assert reader.view_of((), False, 0.0).elapsed_s > 0


def test_files_of_an_earlier_version_are_read(options: RunOptions) -> None:
    sweep = begin(options)
    sweep.wait(WAIT_S)
    rows = sweep.path / ROWS
    rows.write_text("".join(x + "\n" for x in rows.read_text().splitlines() if "kind" not in x))
    reader = SweepReader(sweep.path)
    view = read(sweep.path, reader)
    assert (view.status, view.total, view.completed) == ("completed", 4, 4)
    assert len(reader.table()) == 4


def test_remaining_time_uses_ended_rows_without_pauses(
    tmp_path: Path,
) -> None:
    began = {"kind": "sweep_began", "at": 100, "rows": 4, "first": [], "others": []}
    notes: list[dict[str, Any]] = [
        {**began, "retry_failed": False},
        {"kind": "sweep_changed", "at": 110, "status": "paused"},
        {"kind": "sweep_changed", "at": 150, "status": "running"},
        {"row": "a", "status": "completed"},
    ]
    (tmp_path / ROWS).write_text("".join(json.dumps(note) + "\n" for note in notes))
    reader = SweepReader(tmp_path)
    reader.read()
    view = reader.view_of((), True, 160.0)
    assert (view.elapsed_s, view.left_s) == (60.0, 20.0 * 3)
    with (tmp_path / ROWS).open("a") as file:
        file.write(json.dumps({"kind": "sweep_changed", "at": 170, "status": "paused"}) + "\n")
    reader.read()
    assert reader.view_of((), True, 500.0).left_s == 30.0 * 3


def test_reader_is_the_handle_of_a_sweep_in_another_process(
    options: RunOptions, gate: Gate
) -> None:
    sweep = begin(options, gate)
    gate.wait_reached(2)
    reader = SweepReader(sweep.path)
    views: list[SweepView] = []
    end = reader.subscribe(views.append)
    wait_until(lambda: len(reader.runs) == 2)
    assert {row.name for row in reader.view.live} == set(sweep.runs)
    assert all(row.view.agents for row in reader.view.live)
    assert reader.hold(True)
    wait_until(lambda: sweep.status == reader.status == "paused")
    assert reader.hold(False)
    wait_until(lambda: sweep.status == reader.status == "running")
    with pytest.raises(UserError, match="no running row 'none'"):
        reader.stop(row="none")
    assert reader.stop(reason="seen enough").status == "asked"
    wait_until(lambda: sweep.status == "stopping")
    gate.open()
    ended = reader.wait(WAIT_S)
    assert timeless(ended) == timeless(sweep.wait(WAIT_S))
    assert (views[0].status, views[-1].status) == ("running", "cancelled")
    assert repr(reader) == repr(sweep)
    assert reader.stop().status == "finished"
    assert not reader.hold(True)
    end()


@pytest.mark.parametrize(
    "row", ["../elsewhere", "link", ".", "..", "", "a/b", "\0", "x" * 300, "/etc"]
)
def test_note_that_leads_outside_the_sweep_is_ignored(tmp_path: Path, row: str) -> None:
    (tmp_path / "elsewhere" / "turn_1").mkdir(parents=True)
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "link").symlink_to(tmp_path / "elsewhere")
    line = json.dumps({"kind": "row_began", "row": row, "turn": 1})
    (tmp_path / "asked" / ROWS).write_text(line + "\n")
    reader = SweepReader(tmp_path / "asked")
    assert reader.read()
    assert reader.turns == {}


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "7",
        '{"kind": "else"}',
        '{"kind": [1]}',
        '{"kind": "row_began", "row": "a", "turn": -1}',
        '{"kind": "sweep_changed", "at": Infinity, "status": "running"}',
        '{"kind": "sweep_began", "at": 1, "rows": -1, "first": [], "others": []}',
        '{"kind": "sweep_changed", "at": 1, "status": "mine"}',
    ],
)
def test_invalid_line_is_skipped(tmp_path: Path, line: str) -> None:
    end = {"row": "b", "status": "completed"}
    (tmp_path / ROWS).write_text(f"{line}\n{json.dumps(end)}\n")
    assert read(tmp_path).completed == 1
