"""What one more step costs a planner: the same however many are over.

That it plans the same as `plan` does from the beginning is asserted at each turn of each play.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.recipes.plan import Planner
from nb_agents.recipes.progress import Progress, fold
from nb_agents.recipes.tasks import Completed, Plan, Work
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
    """The units, which counts how often it is looked into."""

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
    """Plays a recipe with a planner, and counts what each plan looked at."""

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
        """Play to the end: the last plan."""
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
def test_a_plan_looks_at_as_many_units_at_the_end_as_at_the_beginning(
    body: str, steps: int
) -> None:
    drive = Drive(body)

    assert isinstance(drive.run().ended, Completed)

    assert drive.done == steps
    # The first plan of a parallel loop looks once which iterations have begun.
    assert max(drive.looks[-20:]) <= max(drive.looks[1:20])
    assert max(drive.looks[1:]) < 60


def test_what_has_ended_stays_ended() -> None:
    drive = Drive("steps:\n- {id: a, type: bash, command: do, output: x}\n")
    end = drive.run()

    assert drive._planner.plan(drive.progress) == replace(end, events=())
