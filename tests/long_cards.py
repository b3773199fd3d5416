"""Cards that are longer than a screen: a stopped recipe, a complete one, and a sweep."""

from __future__ import annotations

from typing import Any

from nb_agents import events as ev
from tests.kit.cards import card_bundle
from tests.kit.sweeps import RowResult, SweepView, sweep_bundle
from tests.presentation.recipe_views import asked, began, finished, over, recipe, wrote

__all__ = ["complete_recipe", "stopped_recipe", "sweep"]

WORDS = "It is **so**, by $x^2$.\n\n" + "A cold read is one page fault, and a warm one none. " * 12
ROWS = 20


def stopped_recipe() -> dict[str, Any]:
    """Return the card of a recipe with twelve interrupted and twelve finished steps."""
    cut = [each for n in range(12) for each in wrote(f"gather/cut{n}", WORDS)]
    done = [e for n in range(12) for e in (*wrote(f"d{n}", WORDS), finished(f"d{n}", WORDS))]
    gate = asked("gather", "Go on with it?")
    stop = ev.StopRequested(level="immediate", source="widget")
    view = recipe(*done, began("gather", "stage"), *cut, gate, stop, over("cancelled"))
    return card_bundle(view, "runs/s/turn_1")


def complete_recipe() -> dict[str, Any]:
    """The card of a recipe with thirty outputs."""
    outputs = {f"output_{n}": WORDS for n in range(30)}
    return card_bundle(recipe(over("completed", outputs=outputs)), "runs/s/turn_1")


def sweep() -> dict[str, Any]:
    """The card of a sweep with as many failures as it lists, and the rows of its table."""
    failures = tuple(RowResult(f"f{n}", "failed", error="refused " * 40) for n in range(50))
    view = SweepView(
        name="sweep_1",
        status="cancelled",
        total=90,
        completed=ROWS,
        failed=50,
        tokens=10_000,
        cost=0.5,
        elapsed_s=60.0,
        left_s=None,
        live=(),
        failures=failures,
        scores=(),
    )
    of_row = {"status": "completed", "answer": WORDS, "error": None, "tokens": 9, "cost": 0.1}
    table = [{"row": f"row_{n}", **of_row, "seconds": 1.0, "score": None} for n in range(ROWS)]
    return sweep_bundle(view, "Is it so?", "sweeps/sweep_1", table)
