"""A panel, a card and a timeline can be created from any sequence of events."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.errors import UserError
from tests.kit.cards import card_bundle, panel_state
from tests.kit.runs import what_resumes
from tests.kit.views import fold, fold_timeline
from tests.strategies import EVENTS, STARTED

CHILD = ev.AgentCalled(
    agent="ada/critic#1", caller="ada", name="critic", model="m", workspace="w", input="?"
)
OUTLINE = (ev.PlannedUnit(address="ada", unit="agent"), ev.PlannedUnit(address="b", unit="foreach"))
RECIPE = [
    ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=0, recipe="r", at=1.0),
    ev.RecipeLoaded(step="", path="r.yaml", text="", outline=OUTLINE),
]
BEGINNINGS = st.sampled_from([[STARTED], RECIPE, [STARTED, CHILD], [*RECIPE, CHILD]])
ENDINGS = st.sampled_from(["completed", "cancelled", "failed", None])


@given(BEGINNINGS, st.lists(EVENTS, max_size=20), ENDINGS)
@example([STARTED, CHILD], [], "completed")
@example([STARTED, CHILD], [], "cancelled")
def test_any_sequence_of_events_can_be_shown(
    beginning: list[ev.Event], events: list[ev.Event], status: str | None
) -> None:
    events = [*beginning, *events]
    if status:
        events.append(ev.TurnEnded(status=status, phase="coordinating", at=9.0))  # type: ignore[arg-type]
    view = fold(events)
    try:
        does = what_resumes(events).preview
    except UserError:
        does = None
    bundle = card_bundle(view, "s/turn_1", fold_timeline(events), does)
    assert bundle["text/html"].strip()
    assert bundle["text/plain"].strip()
    json.dumps(panel_state(view, "r1", 10.0))
