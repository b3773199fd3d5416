"""Turns without a journal show only what their files contain."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nb_agents import events as ev
from tests.kit.sessions import TurnPaths, load_session, load_turn
from tests.session.turns import (
    ADA,
    CANCELLED,
    COMPLETED,
    STOP,
    answer,
    started,
    turn_paths,
    write_journal,
    write_turn,
    writing,
)

TIMEOUT = ev.StopRequested(level="requested", source="timeout")
FAILED = ev.TurnEnded(status="failed", phase="coordinating")
ENDINGS: dict[str, tuple[ev.Event, ...]] = {
    "complete": (COMPLETED,),
    "stopped": (STOP, CANCELLED),
    "timed out": (TIMEOUT, CANCELLED),
    "failed": (FAILED,),
    "killed": (),
    "killed, while it stopped": (STOP,),
    "stopped by its budget": (ev.StopRequested(level="requested", source="budget"), CANCELLED),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_turn_with_a_lost_journal_has_its_recorded_end(tmp_path: Path, ending: str) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), answer("ada", ADA), *ENDINGS[ending])
    before = load_turn(paths)
    paths.journal.unlink()
    after = load_turn(paths)
    assert before.view.ending == ending.partition(",")[0].partition(" by")[0]
    assert (after.state, after.view.ending) == (before.state, before.view.ending)
    assert after.view.last_at == before.view.last_at
    assert after.view.started_at == pytest.approx(before.view.started_at, abs=0.01)


def test_partial_text_in_the_answer_file_is_not_an_answer(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), *writing("ben", "half a thought"), STOP, CANCELLED)
    paths.journal.unlink()
    paths.partial_answers.write_text('{"ben": {"par')
    ben = load_turn(paths).view.agents["ben"]
    assert (ben.answers, ben.unsubmitted) == ((), "half a thought")


def massgen(root: Path, **changes: Any) -> TurnPaths:
    paths = TurnPaths(root / "session_1" / "turn_1")
    paths.path.mkdir(parents=True)
    data = {"turn": 1, "status": "incomplete", "phase": "coordinating", "task": "Why?"}
    paths.metadata.write_text(json.dumps({**data, **changes}))
    return paths


def test_turn_of_another_program_shows_only_recorded_times(tmp_path: Path) -> None:
    view = load_turn(massgen(tmp_path, timestamp="2025-12-05T12:00:00.5")).view
    assert (view.started_at, view.ending, view.stop) == (0.0, "cancelled", None)
    assert (
        "Turn 1 was stopped while coordinating: Why?"
        in load_session(tmp_path / "session_1").restored()
    )


@pytest.mark.parametrize("took", [-1, 1e308, float("nan"), float("inf"), "4", None, [], 10**400])
@pytest.mark.parametrize(
    "timestamp", ["soon", None, 7, "9999-12-31T23:59:59", "0001-01-01", "2025"]
)
def test_impossible_times_are_ignored(tmp_path: Path, took: object, timestamp: object) -> None:
    paths = massgen(tmp_path, duration_seconds=took, timestamp=timestamp)
    view = load_turn(paths).view
    assert view.started_at == 0.0
    assert 0 <= view.last_at < 2.6e11


def test_directory_with_an_impossible_time_is_read(tmp_path: Path) -> None:
    paths = massgen(tmp_path)
    os.utime(paths.path, (0, 253_402_300_800_000))
    assert 0 <= load_turn(paths).view.last_at < 2.6e11


SHAPES = [
    3,
    "x",
    [],
    {"source": 3},
    {"source": [], "reason": {}},
    {"source": "widget\x1b[2J"},
    None,
]


@pytest.mark.parametrize("receipt", SHAPES, ids=repr)
@pytest.mark.parametrize("reason", [3, [], {}, "timeout", "cancelled", "kernel died", "x" * 9_999])
def test_metadata_of_any_shape_is_read(tmp_path: Path, receipt: object, reason: object) -> None:
    turn = load_turn(massgen(tmp_path, receipt=receipt, reason=reason, said={"a": 1}))
    assert turn.view.task == "Why?"
    assert turn.state in ("stopped", "timed out")
