"""The cost of one more step for a planner does not depend on the number of finished steps.

Each turn of each play asserts that it plans the same as `plan` does from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nb_agents import events as ev
from tests.kit.recipes import Completed, Plan, Planner, Progress, Work, fold
from tests.recipes.play import recipe

COUNT = 200
SEQUENCE = "steps:\n" + "".join(
    f"- {{id: s{n}, type: bash, command: do, output: o{n % 5}}}\n" for n in range(COUNT)
)
TWO_STEPS = """
  collect: all
  steps:
  - {id: a, type: bash, command: do, output: x}
  - {id: b, agent: w, prompt: 'look at {{x}}'}
"""
FOREACH = "steps:\n- id: l\n  foreach: '{{items}}'\n  max_iterations: 500" + TWO_STEPS
PARALLEL = (
    "steps:\n- id: l\n  foreach: '{{items}}'\n  max_iterations: 500\n  parallel: 4" + TWO_STEPS
)
WHILE = f"steps:\n- id: l\n  while_condition: 'true'\n  max_while_iterations: {COUNT}" + TWO_STEPS
LIMIT = "recursion: {max_total_steps: 1000}\n"


@dataclass(frozen=True)
class Counting(Mapping[str, Any]):
    """The units, counting how often they are accessed."""

    units: Mapping[str, Any]
    looks: list[str] = field(default_factory=list)

    def __getitem__(self, address: str) -> Any:
        self.looks.append(address)
        return self.units[address]

    def __iter__(self) -> Iterator[str]:
        self.looks.extend(self.units)
        return iter(self.units)

    def __len__(self) -> int:
        return len(self.units)


class Drive:
    """Plays a recipe with a planner, and counts the accesses of each plan."""

    def __init__(self, body: str) -> None:
        started = ev.TurnStarted(
            session="s", turn=1, task="r", agents=(), timeout_s=0, recipe="r",
            context={"items": list(range(COUNT))},
        )  # fmt: skip
        loaded = ev.RecipeLoaded(step="", path="/r.yaml", text=recipe(LIMIT + body))
        self.progress: Progress = fold([started, loaded])
        self.busy: dict[str, Work] = {}
        self.looks: list[int] = []
        self.done = 0
        self._planner = Planner()

    def run(self) -> Plan:
        """Play until the end and return the last plan."""
        while True:
            units = Counting(self.progress.units)
            now = self._planner.plan(replace(self.progress, units=units), self.busy.keys())
            self.looks.append(len(units.looks))
            self.progress = fold(now.events, self.progress)
            if now.ended is not None:
                return now
            self.busy |= {work.address: work for work in now.work}
            address = next(iter(self.busy))
            del self.busy[address]
            over = ev.StepFinished(step=address, outcome="ok", output="x")
            self.progress = fold([ev.StepStarted(step=address, unit="agent"), over], self.progress)
            self.done += 1


@pytest.mark.parametrize(
    ("body", "steps"),
    [(SEQUENCE, COUNT), (FOREACH, 2 * COUNT), (PARALLEL, 2 * COUNT), (WHILE, 2 * COUNT)],
)
def test_number_of_accessed_units_stays_the_same(body: str, steps: int) -> None:
    drive = Drive(body)

    assert isinstance(drive.run().ended, Completed)

    assert drive.done == steps
    # The first plan of a parallel loop checks once which iterations have begun.
    assert max(drive.looks[-20:]) <= max(drive.looks[1:20])
    assert max(drive.looks[1:]) < 60


def test_ended_recipe_stays_ended() -> None:
    drive = Drive("steps:\n- {id: a, type: bash, command: do, output: x}\n")
    end = drive.run()

    assert drive._planner.plan(drive.progress) == replace(end, events=())
