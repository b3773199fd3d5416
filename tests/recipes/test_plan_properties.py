"""Properties that must hold for any recipe, order of completion and interruption."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nb_agents import events as ev
from tests.kit.recipes import Denied, Failed, Limit, Progress
from tests.recipes.play import Approve, Deny, Fail, Give, Outcome, Play
from tests.samples import some_or_all

NAMES = [f"o{i}" for i in range(6)]
LEAVES = ("agent", "bash")


@dataclass(frozen=True)
class Told(Mapping[str, Outcome]):
    """Outcomes that depend only on the address.

    Attributes:
        seed: Selects one set of outcomes.
        failing: Percentage of steps that fail.
        denying: Percentage of gates that are denied.
    """

    seed: int
    failing: int = 0
    denying: int = 0

    def __getitem__(self, address: str) -> Outcome:
        chance = zlib.crc32(f"{self.seed} {address}".encode()) % 100
        if address.rpartition("/")[2].startswith("stage"):
            return Deny("no") if chance < self.denying else Approve(f"yes {address}")
        if chance < self.failing:
            return Fail(f"{address} broke", early=chance % 2 == 0)
        return Give(json.dumps({"by": address}) if chance % 3 == 0 else f"<{address}>")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Maker:
    """Creates random recipes. Hypothesis only draws the seed: drawing each key takes too long.

    Args:
        random: The source of randomness.
        widths: The values of `parallel` to use.
    """

    def __init__(self, random: Random, widths: Sequence[Any]) -> None:
        self._random = random
        self._widths = widths
        self._ids = count()

    def document(self, name: str, lists: int, depth: int, callee: str = "") -> str:
        """Return a recipe with this many stages, or without stages for a single list of steps."""
        data: dict[str, Any] = {
            "name": name,
            "description": "d",
            "version": "1.0.0",
            "recursion": {"max_total_steps": 1000},
            "context": {n: "" for n in NAMES} | {"none": [], "two": [1, 2], "three": [1, 2, 3]},
        }
        data["context"]["item"] = "nothing"
        if lists == 1:
            return json.dumps(data | {"steps": self._steps(depth, callee)})
        return json.dumps(data | {"stages": [self._stage(n, depth, callee) for n in range(lists)]})

    def _stage(self, number: int, depth: int, callee: str) -> dict[str, Any]:
        stage = {"name": f"stage{number}", "steps": self._steps(depth, callee)}
        prompt = "go on with {{o0}}, after {{_approval_message}}?"
        gate = {"approval": {"required": True, "prompt": prompt}}
        return stage | self._random.choice([{}, gate])

    def _steps(self, depth: int, callee: str) -> list[Any]:
        return [self._step(depth, callee) for _ in range(self._random.randint(1, 2 + (depth > 1)))]

    def _step(self, depth: int, callee: str) -> dict[str, Any]:
        choice = self._random.choice
        step = {
            "id": f"s{next(self._ids)}",
            "output": choice([None, *NAMES]),
            "on_error": choice(["fail", "fail", "continue", "skip_remaining"]),
            "condition": choice(["", "", "", "{{o0}} == ''", "not {{o1}}", "{{o2}}"]),
            "retry": choice([{}, {"max_attempts": 2}]),
        }
        if depth and choice([True, False]):
            step |= choice([self._foreach, self._while])()
        if ("foreach" in step or "while_condition" in step) and choice([True, False]):
            return step | {"steps": self._steps(depth - 1, callee)}
        return step | self._simple(callee)

    def _simple(self, callee: str) -> dict[str, Any]:
        choice = self._random.choice
        says = choice(["{{o0}} {{o1}}", "{{o2}} {{o3}}", "{{item}}", "{{_skipped_steps}}"])
        simple: list[dict[str, Any]] = [
            {"agent": "x", "prompt": says},
            {"agent": "x", "prompt": says, "parse_json": True},
            {"type": "bash", "command": "do"},
        ]
        if callee:
            given = choice([{}, {"o0": "{{item}}", "o4": "{{o1}}"}])
            called = {"type": "recipe", "recipe": callee, "context": given}
            simple.append(called | choice([{}, {"timeout": 5}]))
        return choice(simple)

    def _foreach(self) -> dict[str, Any]:
        choice = self._random.choice
        return {
            "foreach": choice(["{{none}}", "{{two}}", "{{three}}"]),
            "collect": choice([None, *NAMES]),
            "parallel": choice(self._widths),
        }

    def _while(self) -> dict[str, Any]:
        choice = self._random.choice
        return {
            "while_condition": choice(["true", "{{o3}} == ''", "{{o4}} != 'x'"]),
            "max_while_iterations": choice([1, 2, 3]),
            "break_when": choice(["", "{{o5}}"]),
            "update_context": choice([{}, {"o5": "{{o3}}", "o4": "x"}]),
        }


def _lateness(random: Random, late: int) -> Callable[[Progress, Sequence[Limit]], str]:
    def chosen(progress: Progress, limits: Sequence[Limit]) -> str:
        return random.choice(limits).address if random.randrange(100) < late else ""

    return chosen


def plays(
    *, failing: int = 0, denying: int = 0, late: int = 0, width: bool = False
) -> st.SearchStrategy[Play]:
    """Draw a recipe, a recipe that it calls, and the outcomes.

    Args:
        failing: Percentage of steps that fail.
        denying: Percentage of gates that are denied.
        late: Percentage of events after which a called recipe times out.
        width: Whether loops may limit their concurrent iterations. Then the order decides which
            iterations have begun when one fails.
    """

    def made(seed: int) -> Play:
        random = Random(seed)
        maker = _Maker(random, [False, True, 2] if width else [False, True])
        sub = maker.document("sub", random.randint(1, 2), depth=1)
        text = maker.document("r", random.randint(1, 3), depth=2, callee="sub.yaml")
        return Play(
            text,
            Told(seed, failing, denying),
            {"sub.yaml": sub},
            order=random.choice,
            late=_lateness(random, late),
        )

    return st.builds(made, st.integers(0, 2**32))


def again(play: Play, seed: int) -> Play:
    """Return the same play in another order."""
    return Play(play.text, play.outcomes, play.recipes, order=Random(seed).choice)


def finished(play: Play) -> set[str]:
    """Return the finished steps and gates."""
    units = play.progress.units
    leaves = {a for a, u in units.items() if u.kind in LEAVES and u.outcome == "ok"}
    return leaves | {a for a, gate in play.progress.gates.items() if gate.approved}


def asked_once(play: Play) -> dict[str, str]:
    """Return the prompt of each step. All attempts have the same prompt."""
    assert len(set(play.asked)) == len(dict(play.asked))
    return dict(play.asked)


common = settings(
    max_examples=some_or_all(8, 50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
seeds = st.integers(0, 1000)


@common
@given(plays(failing=10, denying=10, late=10, width=True))
def test_every_recipe_ends_and_planning_again_changes_nothing(play: Play) -> None:
    assert play.run().ended is not None  # the play itself plans twice per turn


@common
@given(plays(failing=10), seeds)
def test_result_does_not_depend_on_the_order_of_completion(play: Play, seed: int) -> None:
    other = again(play, seed).run()

    assert play.run().ended == other.ended
    assert asked_once(play) == asked_once(other)


@common
@given(plays(width=True), seeds)
def test_result_does_not_depend_on_the_concurrency(play: Play, seed: int) -> None:
    other = again(play, seed).run()

    assert play.run().ended == other.ended
    assert asked_once(play) == asked_once(other)


@common
@given(plays(failing=10), st.data())
def test_interrupted_recipe_ends_the_same_after_a_resume(play: Play, data: Any) -> None:
    whole = again(play, 0).run()
    play.run(cut=data.draw(st.integers(0, len(whole.journal))))
    done = finished(play)

    second = play.resume().run(cut=data.draw(st.integers(0, len(whole.journal))))
    assert not done & set(second.addresses)

    done = finished(second)
    third = second.resume().run()
    assert not done & set(third.addresses)
    assert third.ended == whole.ended


@common
@given(plays(failing=15, late=15, width=True))
def test_failed_work_is_retried_and_finished_work_is_not(play: Play) -> None:
    play.run()
    assume(isinstance(play.ended, Failed))
    assert isinstance(play.ended, Failed)
    done = finished(play)

    well = play.resume(Told(0)).run()

    new = well.journal[len(play.journal) :]
    assert not done & set(well.addresses)
    assert set(play.ended.addresses) <= {e.step for e in new if isinstance(e, ev.StepStarted)}
    assert well.outputs is not None


@common
@given(plays(late=20, width=True), st.data())
def test_timeout_of_a_called_recipe_loses_nothing(play: Play, data: Any) -> None:
    play.run(cut=data.draw(st.integers(0, 60)))
    done = finished(play)

    next_ = play.resume().run()

    assert not done & set(next_.addresses)
    assert next_.outputs is not None
    assert "" not in {unit.outcome for unit in next_.progress.units.values()}


@common
@given(plays(denying=60), st.booleans())
def test_denied_gate_asks_again(play: Play, is_denied_again: bool) -> None:
    play.run()
    assume(isinstance(play.ended, Denied))
    assert isinstance(play.ended, Denied)
    done = finished(play)

    next_ = play.resume(Told(0, denying=100 * is_denied_again)).run()

    assert not done & set(next_.addresses)
    assert play.ended.address in next_.addresses
    assert isinstance(next_.ended, Denied) == is_denied_again


@common
@given(plays(failing=10, late=10, width=True))
def test_each_unit_begins_and_ends_once(play: Play) -> None:
    began: dict[str, int] = {}
    ended: dict[str, int] = {}
    for event in play.run().journal:
        if isinstance(event, ev.StepStarted) and event.unit not in LEAVES:
            began[event.step] = began.get(event.step, 0) + 1
        elif isinstance(event, ev.StepFinished):
            ended[event.step] = ended.get(event.step, 0) + 1

    assert set(began.values()) <= {1}
    assert set(ended.values()) <= {1}
    assert {a for a, unit in play.progress.units.items() if not unit.outcome} == set()
