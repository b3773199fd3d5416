"""The fold of a recipe's events to units and gates."""

from __future__ import annotations

from nb_agents import events as ev
from tests.kit.views import RunView, fold, receipt
from tests.presentation.recipe_views import OUTLINE, began, finished, over, recipe

FAILING = ev.Noticed(
    text="Saving failed: No space left on device. All is kept in memory.", is_saved=False
)
WORKS = ev.Noticed(text="Saving works again; everything is on disk.", is_saved=True)


def resumed(past: RunView) -> RunView:
    started = ev.TurnStarted(
        session="s", turn=2, task="t", agents=(), timeout_s=60, resumes=1, recipe="paper", at=2000.0
    )
    loaded = ev.RecipeLoaded(step="", path="", text="", outline=OUTLINE)
    return fold([started, loaded], past)


def test_units_that_have_not_started_are_pending_in_order() -> None:
    view = recipe(began("gather", "stage"), began("gather/draft", "agent"))
    assert [u.address for u in view.pending] == ["gather/each", "publish", "publish/send"]


def test_units_of_a_called_recipe_are_pending_once_it_is_loaded() -> None:
    sub = (ev.PlannedUnit("publish/send/a", "bash", "bash"),)
    loaded = ev.RecipeLoaded(step="publish/send", path="", text="", outline=sub)
    view = recipe(began("publish/send", "recipe"), loaded)
    assert [u.address for u in view.pending][-1] == "publish/send/a"


def test_resume_keeps_finished_and_outer_units_but_not_the_interrupted_step() -> None:
    past = recipe(
        began("gather", "stage"),
        began("gather/each", "foreach", total=9),
        finished("gather/draft", "x"),
        began("gather/each[0]", "bash"),
        ev.ApprovalGiven(step="gather", approved=True, by="ada"),
        ev.ApprovalGiven(step="publish", approved=False, by="ben"),
        over("cancelled", next=("gather/each[0]",)),
    )
    assert past.next == ("gather/each[0]",)
    view = resumed(past)
    assert list(view.steps) == ["gather", "gather/each", "gather/draft"]
    assert view.steps["gather/each"].total == 9
    assert [a.by for a in view.approvals] == ["ada"]
    assert view.next == ()
    assert view.outlines == {"": OUTLINE}


def test_failed_attempt_has_the_maximum_and_time_of_retries() -> None:
    failed = ev.StepFailed(step="a", attempt=1, error="x", attempts=3, retry_in_s=4.0, at=1010.0)
    step = recipe(began("a", "bash"), failed).steps["a"]
    assert (step.status, step.attempts, step.retry_at) == ("retrying", 3, 1014.0)
    again = recipe(began("a", "bash"), failed, began("a", "bash", attempt=2)).steps["a"]
    assert (again.status, again.attempt, again.attempts) == ("running", 2, 3)
    last = ev.StepFailed(step="a", attempt=3, error="x", attempts=3)
    assert recipe(began("a", "bash"), last).steps["a"].retry_at is None


def test_running_steps_are_cut_and_retrying_steps_stopped_at_the_end() -> None:
    failed = ev.StepFailed(step="b", attempt=1, error="x", attempts=3, retry_in_s=4.0)
    view = recipe(
        began("s", "stage"), began("a", "bash"), began("b", "bash"), failed, over("cancelled")
    )
    assert {k: s.status for k, s in view.steps.items()} == {"s": "cut", "a": "cut", "b": "stopped"}
    assert not any(s.is_over for s in view.steps.values())
    assert dict(receipt(view, "p").steps)["b"] == "stopped"


def test_turn_is_saved_unless_its_last_saving_failed() -> None:
    assert recipe().is_saved
    assert not recipe(FAILING).is_saved
    assert recipe(FAILING, WORKS).is_saved
    assert not recipe(FAILING, WORKS, FAILING, ev.Noticed(text="A hook failed.")).is_saved
