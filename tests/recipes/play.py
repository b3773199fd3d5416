"""Plays a recipe through its plan, without models, commands or real time.

Each plan is computed in three ways, which must agree: from the beginning, by a planner that is
asked once per turn, like the executor's, and by one that is asked at every opportunity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nb_agents import events as ev
from tests.kit.recipes import (
    AgentWork,
    CommandWork,
    Completed,
    Denied,
    Failed,
    GateWork,
    Limit,
    LoadWork,
    Plan,
    Planner,
    Progress,
    Work,
    apply,
    fold_turns,
    is_within,
    plan,
)

__all__ = [
    "LATE",
    "Approve",
    "Deny",
    "Fail",
    "Give",
    "Order",
    "Play",
    "first",
    "last",
    "late",
    "recipe",
]

HEAD = "name: r\ndescription: d\nversion: 1.0.0\n"
FOLDER = Path("/recipes")


@dataclass(frozen=True)
class Give:
    """A step ends with this output."""

    text: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class Fail:
    """An attempt fails; an early failure happens before the step begins, as without a model."""

    error: str = "broken"
    early: bool = False


@dataclass(frozen=True)
class Approve:
    """A gate is approved."""

    message: str = ""


@dataclass(frozen=True)
class Deny:
    """A gate is denied."""

    message: str = ""


Outcome = Give | Fail | Approve | Deny
Outcomes = Mapping[str, str | Outcome | Sequence[str | Outcome]]
"""By address: what happens, or what happens at each try, the last for ever."""

Order = Callable[[Sequence[str]], str]
"""Chooses whose next event comes, from the addresses of the work under way."""


LATE = "It took too long."

Lateness = Callable[[Progress, Sequence[Limit]], str]
"""Chooses, from the limits of called recipes, the address of the one whose time is over, or ""."""


def late(when: Mapping[str, str]) -> Lateness:
    """Let called recipes, given by address, time out as soon as a unit has begun."""

    def chosen(progress: Progress, limits: Sequence[Limit]) -> str:
        over = [limit.address for limit in limits if when.get(limit.address) in progress.units]
        return over[0] if over else ""

    return chosen


def _in_time(progress: Progress, limits: Sequence[Limit]) -> str:
    return ""


def recipe(body: str, name: str = "r") -> str:
    """Return the text of a recipe with these `steps:` or `stages:`."""
    return HEAD.replace("name: r", f"name: {name}") + body


def first(addresses: Sequence[str]) -> str:
    """Choose the work that was planned first."""
    return addresses[0]


def last(addresses: Sequence[str]) -> str:
    """Choose the work that was planned last."""
    return addresses[-1]


_Planned = TypeVar("_Planned", Work, Limit)


def _in_order(planned: Sequence[_Planned]) -> list[_Planned]:
    return sorted(planned, key=lambda each: each.address)


class Play:
    """A recipe that is played with given outcomes.

    Args:
        text: The recipe.
        outcomes: Outcomes by address. By default, a step's output is its address in angle brackets,
            and a gate is approved.
        recipes: Texts of the recipes that steps call, by path as in the step.
        context: The initial values.
        order: Chooses the work with the next event.
        journal: Events of earlier turns.
        late: Returns which called recipes have timed out.

    Attributes:
        journal: All events.
        asked: The prompts, commands and gate texts, in order, as (address, text).
        done: The work, in order.
        limits: Time limits of called recipes, in the order in which they began.
        ended: How the recipe ended, or None.
    """

    def __init__(
        self,
        text: str,
        outcomes: Outcomes | None = None,
        recipes: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        order: Order = first,
        journal: Sequence[ev.Event] = (),
        late: Lateness = _in_time,
    ) -> None:
        self.text = text
        self.outcomes = {} if outcomes is None else outcomes
        self.recipes = recipes or {}
        self.context = dict(context or {})
        self.order = order
        self.journal = list(journal)
        self.asked: list[tuple[str, str]] = []
        self.done: list[Work] = []
        self.limits: list[Limit] = []
        self.late = late
        self.ended: Completed | Failed | Denied | None = None
        self._tries: dict[str, int] = {}
        self._left: int | None = None
        self._progress = fold_turns(self.journal)
        self._under_way: dict[str, list[ev.Event]] = {}
        self._over: list[str] = []

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The recipe's outputs. It must have completed."""
        assert isinstance(self.ended, Completed), self.ended
        return self.ended.outputs

    @property
    def addresses(self) -> list[str]:
        """The addresses of the work, in order."""
        return [address for address, _ in self.asked]

    @property
    def progress(self) -> Progress:
        """The fold of all events."""
        return self._progress

    def run(self, cut: int | None = None) -> Play:
        """Play until the recipe ends.

        Args:
            cut: Number of events after which everything stops, as in a power failure. None means
                never.

        Returns:
            This play.
        """
        self._left = cut
        for event in self._events():
            if self._left == 0:
                break
            self.journal.append(event)
            if self._left is not None:
                self._left -= 1
        return self

    def resume(self, outcomes: Outcomes | None = None) -> Play:
        """Return a play that resumes this one in another turn."""
        return Play(
            self.text,
            self.outcomes if outcomes is None else outcomes,
            self.recipes,
            self.context,
            self.order,
            self.journal,
        )

    def _events(self) -> Iterator[ev.Event]:
        yield from self._take(*self._opening())
        once, often = Planner(), Planner()
        while True:
            now = self._plan(once, often)
            yield from self._take(*now.events)
            again = self._plan(often)
            assert again.events == (), again.events
            # An iteration that starts again after a resume changes its position once it has begun.
            assert _in_order(again.work) == _in_order(now.work)
            assert _in_order(again.limits) == _in_order(now.limits)
            assert again.ended == now.ended
            self.limits += [limit for limit in now.limits if limit not in self.limits]
            for work in now.work:
                assert work.address not in self._under_way
                assert not any(is_within(work.address, each) for each in self._over)
                self._note(work)
                self._under_way[work.address] = list(self._doing(work))
            self.ended = now.ended
            if now.ended is not None:
                assert isinstance(now.ended, Denied) or not self._under_way, self._under_way
                return
            assert self._under_way, "nothing is under way, and nothing is to be done"
            if now.limits and (address := self.late(self._progress, now.limits)):
                yield from self._end_time(address)
            else:
                yield from self._go_on(self.order(list(self._under_way)))

    def _plan(self, *planners: Planner) -> Plan:
        busy = frozenset(self._under_way)
        now = plan(self._progress, busy)
        for planner in planners:
            assert planner.plan(self._progress, busy) == now
        return now

    def _go_on(self, address: str) -> Iterator[ev.Event]:
        left = self._under_way[address]
        if left:
            yield from self._take(left.pop(0))
        if not left:
            del self._under_way[address]

    def _end_time(self, recipe: str) -> Iterator[ev.Event]:
        """Let a called recipe time out: its running work ends without an event."""
        self._over.append(recipe)
        yield from self._take(ev.StepFailed(step=recipe, attempt=1, error=LATE))
        for address in self._under_way:
            if is_within(address, recipe):
                self._under_way[address] = []

    def _take(self, *events: ev.Event) -> Iterator[ev.Event]:
        for event in events:
            yield event
            self._progress = apply(self._progress, event)

    def _opening(self) -> tuple[ev.Event, ev.Event]:
        turn = 1 + sum(isinstance(event, ev.TurnStarted) for event in self.journal)
        started = ev.TurnStarted(
            session="s",
            turn=turn,
            task="r",
            agents=(),
            timeout_s=0,
            resumes=turn - 1,
            recipe="r",
            context=self.context,
        )
        path = str(FOLDER / "main.yaml")
        return started, ev.RecipeLoaded(step="", path=path, text=self.text)

    def _note(self, work: Work) -> None:
        self.done.append(work)
        match work:
            case AgentWork(prompt=text) | CommandWork(command=text):
                self.asked.append((work.address, text))
            case GateWork():
                prompts = [e for e in self.journal if isinstance(e, ev.ApprovalAsked)]
                self.asked.append((work.address, prompts[-1].prompt))

    def _outcome(self, address: str) -> Outcome | None:
        given = self.outcomes.get(address)
        if isinstance(given, Sequence) and not isinstance(given, str):
            tries = self._tries[address] = self._tries.get(address, 0) + 1
            given = given[min(tries, len(given)) - 1]
        return Give(given) if isinstance(given, str) else given

    def _doing(self, work: Work) -> Iterator[ev.Event]:
        address, outcome = work.address, self._outcome(work.address)
        match work:
            case GateWork():
                given = outcome if isinstance(outcome, Approve | Deny) else Approve()
                yield ev.ApprovalGiven(
                    step=address, approved=isinstance(given, Approve), message=given.message
                )
            case LoadWork(path=path):
                yield self._loaded(address, path)
            case AgentWork() | CommandWork():
                given = outcome if isinstance(outcome, Give | Fail) else Give(f"<{address}>")
                yield from self._step(work, given)

    def _loaded(self, address: str, path: str) -> ev.Event:
        if path not in self.recipes:
            return ev.StepFinished(step=address, outcome="failed", why=f"no file {path}")
        return ev.RecipeLoaded(step=address, path=str(FOLDER / path), text=self.recipes[path])

    def _step(self, work: AgentWork | CommandWork, outcome: Give | Fail) -> Iterator[ev.Event]:
        address, attempt = work.address, work.attempt
        is_agent = isinstance(work, AgentWork)
        if not (isinstance(outcome, Fail) and outcome.early):
            unit: ev.StepKind = "agent" if is_agent else "bash"
            yield ev.StepStarted(step=address, unit=unit, attempt=attempt)
        if isinstance(outcome, Fail):
            yield ev.StepFailed(step=address, attempt=attempt, error=outcome.error)
            return
        code = None if is_agent else outcome.exit_code or 0
        if code and isinstance(work, CommandWork) and not work.tolerates:
            yield ev.StepFailed(step=address, attempt=attempt, error=f"exit code {code}")
            return
        if is_agent:
            yield ev.AnswerGiven(agent=address, answer=outcome.text)
        yield ev.StepFinished(step=address, outcome="ok", output=outcome.text, exit_code=code)
