"""A recipe that is stopped or killed after any event ends the same, and repeats nothing."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.errors import CancellationRequestedError
from nb_agents.events import Decide
from tests.kills.understudy import Kill, Understudy, understudy
from tests.kit.runs import CancellationStatus, Run, StopRequest, TurnWriter, preview
from tests.kit.sessions import load_session
from tests.model_server import wait_until
from tests.recipes.live import (
    all_events,
    begin,
    commands_alive,
    files_of,
    resume,
)
from tests.recipes.rich import assert_nothing_ran_twice, assert_truthful, write_rich
from tests.samples import IS_FULL, sample
from tests.team_kit import WAIT_S, events, finish
from tests.watching import turns_watched

LEVELS = {"graceful": CancellationStatus.REQUESTED, "immediate": CancellationStatus.IMMEDIATE}


@dataclass
class Stage:
    """Runs a recipe, and stops it after a certain event.

    Attributes:
        stop_after: The number of the event after which to stop a run, or 0.
        level: The level of the stop.
    """

    root: Path
    stop_after: int = 0
    level: CancellationStatus = CancellationStatus.REQUESTED

    def begin(self) -> Run:
        """Run the recipe until it ends or is stopped."""
        _stages[str(self.root)] = self
        return finish(begin(write_rich(self.root)))

    def heed(self, turn: TurnWriter, event: ev.Event | None = None) -> None:
        """Stop the run if this is the event, and approve its gates."""
        if (event.seq if event else turn.view.seq) == self.stop_after and not turn.view.is_over:
            turn.take(StopRequest(self.level, "api", "at an event"))
        if isinstance(event, ev.ApprovalAsked):
            asyncio.get_running_loop().call_soon(turn.take, Decide(True, "fine", "me"))


_stages: dict[str, Stage] = {}


@pytest.fixture(scope="module", autouse=True)
def _watched() -> Iterator[None]:
    """Let stages receive all events of their runs as they are written."""

    def hear(turn: TurnWriter, event: ev.Event | None) -> None:
        if stage := _stages.get(str(turn._spec.paths.path.parents[2])):
            stage.heed(turn, event)

    with turns_watched(hear):
        yield
    _stages.clear()


@dataclass(frozen=True)
class Whole:
    """The result of the recipe without a stop."""

    outputs: Any
    files: Any
    events: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    run = Stage(tmp_path_factory.mktemp("whole")).begin()
    told = all_events(run.path.parent)
    assert_nothing_ran_twice(told)
    assert run.status == "completed"
    # The two rounds of a parallel loop may stream one event more or less.
    return Whole(run.result, files_of(run), len(told))


def assert_same(run: Run, whole: Whole) -> None:
    """Check that a recipe ended as it does without a stop, and repeated nothing."""
    assert run.status == "completed", run.view.notices
    assert run.result == whole.outputs
    assert list(run.result) == list(whole.outputs)
    assert files_of(run) == whole.files
    assert_nothing_ran_twice(all_events(run.path.parent))


def stop_and_resume(root: Path, after: int, level: str, whole: Whole) -> None:
    """Stop a run after an event, and resume it. Every third resume is stopped too."""
    stage = Stage(root, after, LEVELS[level])
    run = stage.begin()
    again = 4 + after % 13 if after % 3 == 0 else 0
    while run.status != "completed":
        assert_stopped(run, root)
        old, told = all_events(run.path.parent), preview("s", session_root=root / "sessions")
        stage.stop_after, again = again, 0
        run = finish(resume(run))
        if run.status == "completed":
            assert_truthful(told, old, events(run))
    assert_same(run, whole)


def assert_stopped(run: Run, root: Path) -> None:
    """Check that a run was stopped and that nothing of it continues."""
    assert run.status == "cancelled"
    assert commands_alive(root) == []
    stops = events(run, ev.StopRequested)
    asked, hard = stops[0].seq, next((e.seq for e in stops if e.level == "immediate"), None)
    assert [e for e in events(run, ev.StepStarted, ev.ApprovalAsked) if e.seq > asked] == []
    # A graceful stop lets the running step finish, with all its calls.
    in_hand = {e.step for e in events(run, ev.StepStarted) if e.seq <= asked}
    later = [e for e in events(run, ev.ModelStarted, ev.ToolStarted) if e.seq > asked]
    assert {e.agent for e in later} <= in_hand
    assert [e for e in later if hard is not None and e.seq > hard] == []
    with pytest.raises(CancellationRequestedError):
        run.wait(0)


@pytest.mark.parametrize("level", LEVELS)
def test_stop_after_any_event_does_not_change_the_result(
    whole: Whole, tmp_path: Path, level: str
) -> None:
    def one(after: int) -> None:
        stop_and_resume(tmp_path / str(after), after, level, whole)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, sample(range(1, whole.events - 1), 8)))


# Killed ------------------------------------------------------------------------------------------


def play_killed(forks: Understudy, recipe: Path, after: int, whole: Whole) -> None:
    """Kill a run, and maybe its resume, after an event. Then resume it and compare."""
    sessions = recipe.parent / "sessions"
    told = None
    for each in (after, 3 + after % 11 if after % 2 else 0, 0):
        old = all_events(sessions / "s")
        told = preview("s", session_root=sessions) if old else None
        if forks.play("tests.recipes.rich:play_rich", recipe, kill=Kill(each)):
            break
        # Its commands notice that it is dead, and end.
        wait_until(lambda: not commands_alive(recipe.parent), WAIT_S, "the commands' end")
    assert told is not None
    run = load_session(sessions / "s").turns[-1]
    assert_truthful(told, old, all_events(sessions / "s")[len(old) :])
    assert (run.view.status, run.view.outputs) == ("completed", whole.outputs)
    assert files_of(run.paths) == whole.files
    assert_nothing_ran_twice(all_events(sessions / "s"))


@pytest.mark.timeout(3600 if IS_FULL else 300)
def test_recipe_killed_after_any_event_ends_as_if_it_had_not_been_killed(
    whole: Whole, tmp_path: Path
) -> None:
    with understudy() as forks:
        for after in sample(range(1, whole.events - 1), 4):
            play_killed(forks, write_rich(tmp_path / str(after)), after, whole)
