from __future__ import annotations

from nb_agents import events as ev
from nb_agents.turns.status import progress_of
from tests.kit.views import RunView, fold

STARTED = 1_000.0


def recipe(*happened: ev.Event, unit: ev.StepKind = "bash") -> RunView:
    outline = (ev.PlannedUnit(address="one", unit=unit), ev.PlannedUnit(address="two", unit="bash"))
    return fold(
        [
            ev.TurnStarted(
                session="s", turn=1, task="t", agents=(), timeout_s=9, recipe="r", at=STARTED
            ),
            ev.RecipeLoaded(step="", path="", text="", outline=outline),
            *happened,
        ]
    )


def test_elapsed_time_stops_at_the_end() -> None:
    view = recipe()
    assert progress_of(view, STARTED + 5).elapsed_s == 5
    over = fold([ev.TurnEnded(status="completed", phase="coordinating", at=STARTED + 3)], view)
    assert progress_of(over, STARTED + 5).elapsed_s == 3


def test_steps_that_have_not_started_count() -> None:
    begun = ev.StepStarted(step="one", unit="bash")
    over = ev.StepFinished(step="one", outcome="ok")
    seen = progress_of(recipe(begun, over), STARTED)
    assert (seen.current, seen.total) == (1, 2)


def test_total_is_unknown_while_a_loop_may_have_more_steps() -> None:
    seen = progress_of(recipe(unit="foreach"), STARTED)
    assert (seen.current, seen.total) == (0, 0)


def test_message_names_the_step_gate_or_pause() -> None:
    begun = ev.StepStarted(step="one", unit="bash")
    assert progress_of(recipe(begun), STARTED).message == "one"
    gate = ev.ApprovalAsked(step="two", prompt="?", timeout_s=0, default="deny")
    message = progress_of(recipe(begun, gate), STARTED).message
    assert message == "waiting for the user: the gate of two"
    assert progress_of(recipe(begun, gate, ev.Paused()), STARTED).message == "paused"
