"""What a recipe does next: a pure function of the recipe and of what has happened.

The plan walks the recipe from its beginning. A unit that is over gives what it gave, one that is
not is what there is to do. The context that a step sees is thus always the same function of the
outcomes before it, in a run that was never stopped and in one that was resumed five times.

A walk must not depend on its own events: what it decides it decides again once they are folded in.
So a `Planner` need not start over each time: its walk stands still, as a generator, where there is
something to do, and goes on from there. One more step costs the same after ten and after ten
thousand.

Source: the language is that of Amplifier's recipes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar

from nb_agents import events as ev
from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_step import Approval, Stage, Step
from nb_agents.config.recipe_values import FENCED, Recursion
from nb_agents.recipes import units
from nb_agents.recipes.check import path_of, with_place
from nb_agents.recipes.output import Read, Wanted, wanted
from nb_agents.recipes.progress import GateState, Progress, Unit
from nb_agents.recipes.tasks import (
    Completed,
    Denied,
    Failed,
    GateWork,
    Limit,
    LoadWork,
    Plan,
    Work,
    step_task,
)
from nb_agents.recipes.units import (
    FailedError,
    FaultyError,
    Scope,
    all_of,
    concurrency,
    is_within,
    items_of,
    join,
)
from nb_agents.tools.policy import ApprovalConfig

_BY_ANYBODY = ApprovalConfig()

_T = TypeVar("_T")
_Wait = tuple[str, Unit] | None
"""What a walk waits for: an agent's or a command's step that has begun, as it was; None for more
than that, or for another thing."""
_Walk = Generator[_Wait, None, _T]
"""Stands still where something is to be done or under way; gives how it came out."""


def plan(
    progress: Progress,
    busy: Set[str] = frozenset(),
    approval: ApprovalConfig = _BY_ANYBODY,
) -> Plan:
    """Return what a recipe does next.

    Args:
        progress: How far it is; its recipe is loaded.
        busy: Addresses of the work that is under way.
        approval: How long gates wait, and what comes then, that do not say it themselves.

    Returns:
        The plan. Once its events are folded in, planning again gives the same work and no events.
        The recipe completes or fails only when nothing is under way; a denied gate ends it at once.
    """
    return Planner(approval).plan(progress, busy)


def fatal(progress: Progress) -> tuple[str, ...]:
    """Return the addresses of the units whose failure ends the recipe.

    Args:
        progress: How far it is; its recipe is loaded.

    Returns:
        The addresses; also of those beside which others were still under way.
    """
    ended = Planner(waits=False).plan(progress).ended
    return ended.addresses if isinstance(ended, Failed) else ()


def _inner(recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """Return the variables that every step of a recipe sees and that no step sets."""
    started = datetime.fromtimestamp(progress.started, UTC).isoformat(timespec="seconds")
    return {
        "recipe": {
            "name": recipe.name,
            "version": recipe.version,
            "description": recipe.description,
        },
        "session": {
            "id": progress.session,
            "started": started,
            "project": progress.context.get("_project", ""),
        },
        "stage": {"name": "", "index": 0},
        "_approval_message": "",
        "_skipped_steps": [],
    }


_UNREAD = Wanted()

_OURS = frozenset({"recipe", "session", "stage", "step", "_skipped_steps"})
"""What the run itself sets, of what its recipe and who started it say."""


class _Flow(Enum):
    """How the walk of a unit came out."""

    DONE = auto()
    SKIP_REST = auto()


class _DeniedError(Exception):
    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.message)
        self.denied = denied


@dataclass(frozen=True)
class _Frame:
    """A recipe at work: the run's own, or one that a step calls.

    Attributes:
        address: Of the step that calls it, or "".
        recipe: The recipe.
        limits: How deep recipes may call each other, and how many agent steps there may be.
        stack: Names of the recipes that called each other, this one last.
        read: What its caller reads of its outputs.
    """

    address: str
    recipe: Recipe
    limits: Recursion
    stack: tuple[str, ...]
    read: tuple[Read, ...] = ()

    @cached_property
    def _wanted(self) -> Mapping[str, Wanted]:
        return wanted(self.recipe, self.read)

    def wanted(self, step: Step) -> Wanted:
        """Return what the recipe reads of a step's result."""
        return self._wanted.get(step.id, _UNREAD)


def _placed(failure: FailedError, frame: _Frame, step: Step) -> FailedError:
    return with_place(failure, frame.recipe, path_of(frame.recipe, step.id))


@dataclass
class _Parallel:
    """A parallel loop under way.

    Attributes:
        results: What each iteration gave.
        end: None behind this one begins any more: one failed, or stopped the rest.
        failures: Of iterations, by index.
        skips: Whether one stopped the rest.
        walks: Those that are open, by index.
        waits: For what they wait.
    """

    results: list[Any]
    end: int
    failures: dict[int, FailedError] = field(default_factory=dict)
    skips: bool = False
    walks: dict[int, _Walk[tuple[_Flow, Any]]] = field(default_factory=dict)
    waits: dict[int, _Wait] = field(default_factory=dict)

    def go_on(self, index: int) -> None:
        """Walk one of the open iterations on."""
        try:
            self.waits[index] = next(self.walks[index])
            return
        except StopIteration as over:
            flow, self.results[index] = over.value
            if flow is _Flow.SKIP_REST:
                self.end, self.skips = min(self.end, index), True
        except FailedError as exc:
            self.failures[index] = exc
            self.end = min(self.end, index)
        del self.walks[index]


class Planner:
    """Plans one recipe again and again while it goes on, each time from where it has come to.

    Args:
        approval: What holds for gates that do not say it themselves.
        waits: Whether a failure in a parallel loop waits for the other iterations.
    """

    def __init__(self, approval: ApprovalConfig = _BY_ANYBODY, *, waits: bool = True) -> None:
        self._approval = approval
        self._waits = waits
        self._walk = self._run()
        self._ended: Completed | Failed | Denied | None = None

    def plan(self, progress: Progress, busy: Set[str] = frozenset()) -> Plan:
        """Return what the recipe does next; the same as the function `plan`.

        Args:
            progress: How far it is: the last one that was given, with the events of its plan and
                others that have happened since folded in.
            busy: Addresses of the work that is under way.
        """
        self._events: list[ev.Event] = []
        self._work: list[Work] = []
        self._limits: list[Limit] = []
        self._progress = progress
        self._units = progress.units
        self._busy = busy
        self._agent_steps = progress.agent_steps
        self._met: set[str] = set()
        if self._ended is None:
            self._ended = self._go_on()
        # What has ended has no clocks: a denied gate stops what is under way beside it.
        limits = () if self._ended else tuple(self._limits)
        return Plan(tuple(self._events), tuple(self._work), self._ended, limits)

    def _go_on(self) -> Completed | Failed | Denied | None:
        try:
            next(self._walk)
        except StopIteration as over:
            return Completed(over.value)
        except FailedError as exc:
            return Failed(exc.addresses, exc.error)
        except _DeniedError as exc:
            return exc.denied
        return None

    def _run(self) -> _Walk[Mapping[str, Any]]:
        """Walk the whole recipe: its outputs."""
        root = self._progress.recipes[""]
        given = {**root.context, **self._progress.context}
        inner = _inner(root, self._progress)
        trusted = frozenset(given) - {*self._progress.context.get(FENCED, ())} | _OURS
        scope = Scope({**given, **inner}, trusted=trusted)
        yield from self._recipe(_Frame("", root, root.recursion, (root.name,)), scope)
        return scope.set_by_steps

    # Recipes and stages ----------------------------------------------------------------------

    def _recipe(self, frame: _Frame, scope: Scope) -> _Walk[None]:
        for index, stage in enumerate(frame.recipe.stages):
            yield from self._stage(frame, scope, stage, index)

    def _stage(self, frame: _Frame, scope: Scope, stage: Stage, index: int) -> _Walk[None]:
        if not stage.name:  # a recipe without stages
            yield from self._steps(frame, scope, stage.steps, frame.address)
            return
        address = join(frame.address, stage.name)
        scope.stage = stage.name
        scope.values["stage"] = {"name": stage.name, "index": index}
        try:
            yield from self._named_stage(frame, scope, stage, address)
        except FailedError as exc:
            path = frame.recipe.placed_stages[index].path
            self._pass_on(address, with_place(exc, frame.recipe, path))

    def _named_stage(self, frame: _Frame, scope: Scope, stage: Stage, address: str) -> _Walk[None]:
        unit = self._units.get(address)
        if unit is None or unit.outcome == "failed":
            if not units.holds(stage.condition, scope, address, "condition"):
                self._skip(address, f"its condition is false: {stage.condition}")
                return
        elif unit.outcome == "skipped":
            return
        self._begin(address, "stage")
        # What `skip_remaining` skips is the rest of its stage.
        yield from self._steps(frame, scope, stage.steps, address)
        yield from self._gate(scope, stage, address)
        self._end(address)

    def _gate(self, scope: Scope, stage: Stage, address: str) -> _Walk[None]:
        approval = stage.gate
        if approval is None:
            return
        gate = self._progress.gates.get(address) or self._ask(scope, stage, approval, address)
        while gate.approved is None:
            if address not in self._busy:
                self._work.append(self._wait(scope, approval, address))
            yield None
            gate = self._progress.gates[address]
        if not gate.approved:
            raise _DeniedError(Denied(address, gate.message, gate.by))
        scope.values["_approval_message"] = gate.message

    def _ask(self, scope: Scope, stage: Stage, approval: Approval, address: str) -> GateState:
        conditions = stage.auto_approve_if
        if conditions and all(
            units.holds(condition, scope, address, "auto_approve_if") for condition in conditions
        ):
            self._events.append(ev.ApprovalGiven(step=address, approved=True, by="auto_approve_if"))
            return GateState(True)
        wait = self._wait(scope, approval, address)
        self._events.append(
            ev.ApprovalAsked(
                step=address,
                prompt=units.text(approval.prompt, scope, address),
                timeout_s=wait.timeout_s,
                default=wait.default,
            )
        )
        return GateState()

    def _wait(self, scope: Scope, approval: Approval, address: str) -> GateWork:
        """Return how long a gate waits, and what happens then; the gate's own values come first."""
        timeout_s = units.number(ranges.APPROVAL_TIMEOUT, approval.timeout, scope, address)
        default = approval.default
        if not timeout_s and self._approval.timeout:
            timeout_s = self._approval.timeout
            if "default" not in approval.model_fields_set:
                default = self._approval.default
        return GateWork(address=address, timeout_s=timeout_s, default=default)

    # Steps -----------------------------------------------------------------------------------

    def _steps(self, frame: _Frame, scope: Scope, steps: Sequence[Step], base: str) -> _Walk[_Flow]:
        """Walk steps one after the other."""
        for index, step in enumerate(steps):
            if "step" not in scope.hidden:
                scope.values["step"] = {"id": step.id, "index": index, "stage": scope.stage}
            flow = yield from self._step(frame, scope, step, join(base, step.id))
            if flow is not _Flow.DONE:
                return flow
        return _Flow.DONE

    def _step(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        try:
            if self._is_skipped(step, scope, address):
                scope.values["_skipped_steps"] = [*scope.values["_skipped_steps"], step.id]
                return _Flow.DONE
            if step.foreach:
                return (yield from self._foreach(frame, scope, step, address))
            if step.while_condition:
                return (yield from self._while(frame, scope, step, address))
            return (yield from self._body(frame, scope, step, address))
        except FailedError as exc:
            return self._absorb(step, scope, address, _placed(exc, frame, step))

    def _is_skipped(self, step: Step, scope: Scope, address: str) -> bool:
        unit = self._units.get(address)
        # A step that has begun keeps its answer, which its own outputs could change.
        if unit is not None and unit.outcome != "failed":
            return unit.outcome == "skipped"
        if units.holds(step.condition, scope, address, "condition"):
            return False
        self._skip(address, f"its condition is false: {step.condition}")
        return True

    def _absorb(self, step: Step, scope: Scope, address: str, exc: FailedError) -> _Flow:
        """Handle a failure as the step's ``on_error`` says."""
        if step.on_error == "fail":
            self._pass_on(address, exc)
        self._give_nothing(step, scope, address, exc)
        scope.set(step.collect, None)
        return _Flow.SKIP_REST if step.on_error == "skip_remaining" else _Flow.DONE

    def _give_nothing(self, step: Step, scope: Scope, address: str, exc: FailedError) -> None:
        self._tell_failed(address, exc)
        scope.set(step.output_exit_code, None)
        self._give(scope, step, None)

    def _body(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        """Walk what a step does: once, or in one iteration of its loop."""
        if step.steps:
            self._begin(address, "iteration")
            flow = yield from self._steps(frame, scope, step.steps, address)
            self._end(address)
            return flow
        if step.type == "recipe":
            yield from self._call(frame, scope, step, address)
        else:
            yield from self._leaf(frame, scope, step, address)
        return _Flow.DONE

    def _leaf(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[None]:
        """Walk a step that an agent or a command does."""
        while True:
            self._check(address)
            unit = self._units.get(address)
            if unit is not None and unit.is_done:
                break
            is_counted = step.type != "agent" or (unit is not None and unit.kind == "agent")
            self._open_leaf(frame, scope, step, address, unit, is_counted)
            yield (address, unit) if unit is not None and is_counted else None
        self._give_leaf(frame, scope, step, unit)

    def _open_leaf(
        self,
        frame: _Frame,
        scope: Scope,
        step: Step,
        address: str,
        unit: Unit | None,
        is_counted: bool,
    ) -> None:
        if address in self._busy:
            self._met.add(address)
            self._agent_steps += not is_counted
            return
        work = step_task(step, unit or Unit("group"), frame.wanted(step), scope, address)
        if is_counted or self._may_begin(frame, scope, address):
            self._work.append(work)

    def _give_leaf(self, frame: _Frame, scope: Scope, step: Step, unit: Unit) -> None:
        if unit.exit_code is not None:
            scope.set(step.output_exit_code, str(unit.exit_code))
        # Commands that print JSON can't be told to print nothing else; texts have no fields.
        searches = step.parse_json or step.type == "bash" or frame.wanted(step).is_json
        self._give(scope, step, unit.output.found if searches else unit.output.value)

    def _give(self, scope: Scope, step: Step, value: Any) -> None:
        scope.last = value
        scope.set(step.output, value)

    def _may_begin(self, frame: _Frame, scope: Scope, address: str) -> bool:
        """Return whether one more agent step may begin; raises at the limit.

        Work that is under way and that this walk has not met yet may be agent steps: while that
        matters, none begins.
        """
        limit = units.number(ranges.MAX_STEPS, frame.limits.max_total_steps, scope, address)
        room = limit - self._agent_steps
        if room <= 0:
            self._fail(address, f"The limit of {limit:g} agent steps is reached (max_total_steps).")
        if len(self._busy) >= room:
            not_met = self._busy - self._met
            if sum(each not in self._units for each in not_met) >= room:
                return False
        self._agent_steps += 1
        return True

    def _check_room(
        self, frame: _Frame, scope: Scope, step: Step, address: str, count: int
    ) -> None:
        """Fail a parallel loop over an agent's step that would go beyond the limit, unpaid for."""
        iterations = (f"{address}[{index}]" for index in range(count))
        if step.kind != "agent" or any(
            each in self._units or each in self._busy for each in iterations
        ):
            return
        limit = units.number(ranges.MAX_STEPS, frame.limits.max_total_steps, scope, address)
        if self._agent_steps + count > limit:
            said = f"{self._agent_steps} agent steps and {count} in parallel"
            self._fail(address, f"{said} are more than the limit of {limit:g} (max_total_steps).")

    def _call(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[None]:
        """Walk a step that calls a recipe, until its end or the end of its time."""
        self._begin(address, "recipe")
        walk = self._called(frame, scope, step, address)
        while True:
            unit = self._units.get(address)
            # An attempt that failed is one whose time was over: nothing else fails a recipe itself.
            if unit is not None and unit.failures:
                yield from self._take_back(address, unit)
            limits = self._limit(step, scope, address)
            place = len(self._limits)
            try:
                next(walk)
            except StopIteration:
                return
            self._limits[place:place] = limits  # before those in it
            yield None

    def _limit(self, step: Step, scope: Scope, address: str) -> Sequence[Limit]:
        if step.recipe_timeout is None:
            return ()
        return [Limit(address, units.number(ranges.TIMEOUT, step.recipe_timeout, scope, address))]

    def _take_back(self, address: str, unit: Unit) -> _Walk[NoReturn]:
        """Fail a call whose time was over, and all that is open in it, once its work has ended."""
        failure = FailedError((address,), unit.why)
        for gate, each in self._progress.gates.items():
            if each.approved is None and is_within(gate, address):
                given = ev.ApprovalGiven(step=gate, approved=False, message=unit.why, by="timeout")
                self._events.append(given)
        while any(is_within(each, address) for each in self._busy):
            self._tell_failed(address, failure)
            yield None
        for inner, held in self._units.items():
            if not held.outcome and inner != address and is_within(inner, address):
                self._tell_failed(inner, failure)
        raise failure

    def _called(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[None]:
        """Walk the recipe that a step calls."""
        while address not in self._progress.recipes:
            self._check(address)
            if address not in self._busy:
                path = units.text(step.recipe, scope, address)
                beside = frame.recipe.path
                self._work.append(LoadWork(address=address, path=path, beside=beside))
            yield None
        recipe = self._progress.recipes[address]
        limits = step.recursion or frame.limits
        stack = (*frame.stack, recipe.name)
        most = units.number(ranges.MAX_DEPTH, limits.max_depth, scope, address)
        if len(stack) > most:
            again = next((i for i, name in enumerate(stack) if name in stack[:i]), len(stack))
            said = " → ".join(stack[: again + 1])
            self._fail(address, f"Recipes call each other deeper than {most:g}: {said}.", "recipe")
        given = units.value(step.context, scope, address)
        if missing := [name for name in recipe.required if name not in given]:
            self._fail(address, f"{recipe.name} needs {missing[0]!r} in its context.", "recipe")
        fenced = {name for name, each in step.context.items() if not scope.trusts(each)}
        values = {**recipe.context, **given, **_inner(recipe, self._progress)}
        trusted = frozenset(values) - fenced - {"_approval_message"} | _OURS
        inner = Scope(values, trusted=trusted)
        called = _Frame(address, recipe, limits, stack, frame.wanted(step).reads)
        yield from self._recipe(called, inner)
        self._end(address)
        own = {name: value for name, value in recipe.context.items() if name not in given}
        self._give(scope, step, {**own, **inner.set_by_steps})

    # Loops -----------------------------------------------------------------------------------

    def _foreach(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        items = items_of(step, scope, address)
        if not items:
            scope.values["_skipped_steps"] = [*scope.values["_skipped_steps"], step.id]
        width = concurrency(step, len(items), scope, address)
        if width is not None:
            self._check_room(frame, scope, step, address, len(items))
        self._begin(address, "foreach", total=len(items))
        walk = self._sequential if width is None else partial(self._parallel, width)
        return self._close(
            scope, step, address, *(yield from walk(frame, scope, step, address, items))
        )

    def _close(
        self, scope: Scope, step: Step, address: str, flow: _Flow, results: list[Any]
    ) -> _Flow:
        """Record and return the result of a loop."""
        self._end(address)
        last = results[-1] if results else None
        scope.last = results if step.collect else last
        scope.set(step.collect, results)
        scope.set(step.output if results else None, last)
        return flow

    def _sequential(
        self, frame: _Frame, scope: Scope, step: Step, address: str, items: list[Any]
    ) -> _Walk[tuple[_Flow, list[Any]]]:
        results: list[Any] = []
        for index, item in enumerate(items):
            with scope.bound(scope.trusts(step.foreach), **{step.as_: item}):
                flow, value = yield from self._iteration(frame, scope, step, f"{address}[{index}]")
                results.append(value)
                if flow is not _Flow.DONE or self._is_broken(step, scope, address):
                    return flow, results
        return _Flow.DONE, results

    def _parallel(
        self, width: float, frame: _Frame, scope: Scope, step: Step, address: str, items: list[Any]
    ) -> _Walk[tuple[_Flow, list[Any]]]:
        def begin(index: int) -> None:
            values = {step.as_: items[index], "_parallel_group_id": address}
            inner = scope.copy(scope.trusts(step.foreach), **values)
            loop.walks[index] = self._iteration(frame, inner, step, f"{address}[{index}]")

        def has_begun(index: int) -> bool:
            where = f"{address}[{index}]"
            return where in self._units or where in self._busy or where in self._progress.retried

        loop = _Parallel([None] * len(items), len(items))
        left = []  # those that have not begun, the next one last
        for index in reversed(range(len(items))):
            begin(index) if has_begun(index) else left.append(index)
        while True:
            # Those are counted that are open before others begin.
            for index in sorted(loop.walks):
                if not self._still_waits(loop.waits.get(index)):
                    loop.go_on(index)
            # After a failure, or a stop of the rest, what is under way ends and nothing begins.
            while left and len(loop.walks) < width and left[-1] <= loop.end:
                begin(left[-1])
                loop.go_on(left.pop())
            if not loop.walks or (loop.failures and not self._waits):
                break
            yield None
            for index in sorted(loop.walks, reverse=True):
                if loop.waits[index] is None and not has_begun(
                    index
                ):  # what it would have begun with had to wait
                    del loop.walks[index]
                    left.append(index)
        if loop.failures:
            raise all_of(loop.failures, len(items))
        return _Flow.SKIP_REST if loop.skips else _Flow.DONE, loop.results

    def _still_waits(self, wait: _Wait) -> bool:
        """Return whether planning again would stop at the same place."""
        return wait is not None and self._units.get(wait[0]) is wait[1] and wait[0] in self._busy

    def _iteration(
        self, frame: _Frame, scope: Scope, step: Step, address: str
    ) -> _Walk[tuple[_Flow, Any]]:
        """Walk one iteration: how it came out, and its value; a tolerated failure gives None."""
        scope.last = None
        try:
            flow = yield from self._body(frame, scope, step, address)
        except FailedError as exc:
            exc = _placed(exc, frame, step)
            if step.on_error != "continue":
                self._pass_on(address, exc)
            self._give_nothing(step, scope, address, exc)
            flow = _Flow.DONE
        return flow, scope.last

    def _while(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        most = units.number(ranges.WHILE_ITERATIONS, step.max_while_iterations, scope, address)
        self._begin(address, "while")
        results: list[Any] = []
        flow = _Flow.DONE
        for index in range(int(most)):
            with scope.bound(True, _loop_index=index, _loop_iteration=index + 1):
                if not self._goes_on(step, scope, address, index):
                    break
                flow, value = yield from self._iteration(frame, scope, step, f"{address}[{index}]")
                results.append(value)
                if flow is not _Flow.DONE or self._is_broken(step, scope, address):
                    break
        else:
            self._tell_limit(step, scope, address, int(most))
        return self._close(scope, step, address, flow, results)

    def _tell_limit(self, step: Step, scope: Scope, address: str, most: int) -> None:
        """Warn of a loop that its limit ended, and not what it says itself."""
        unit = self._units.get(address)
        is_counted = "{{" not in step.while_condition and not step.break_when
        if is_counted or (unit is not None and unit.outcome):
            return
        with suppress(FailedError), scope.bound(_loop_index=most, _loop_iteration=most + 1):
            if units.holds(step.while_condition, scope, address, "while_condition"):
                why = f"ended at its limit of {most} repetitions (max_while_iterations)"
                self._events.append(ev.Noticed(text=f"The loop {address} {why}."))

    def _goes_on(self, step: Step, scope: Scope, address: str, index: int) -> bool:
        where = f"{address}[{index}]"
        if where in self._units or where in self._busy:
            return True
        return units.holds(step.while_condition, scope, address, "while_condition")

    def _is_broken(self, step: Step, scope: Scope, address: str) -> bool:
        """Update the context after an iteration; tell whether it was the last."""
        for name, text in step.update_context.items():
            given = units.value(text, scope, address)
            scope.set(name, given, is_trusted=scope.trusts(text))
        return bool(step.break_when) and units.holds(step.break_when, scope, address, "break_when")

    # What is so by now -----------------------------------------------------------------------

    def _begin(self, address: str, kind: ev.StepKind, total: int | None = None) -> None:
        if address not in self._units:
            self._events.append(ev.StepStarted(step=address, unit=kind, total=total))

    def _end(self, address: str) -> None:
        unit = self._units.get(address)
        if unit is None or not unit.outcome:
            self._events.append(ev.StepFinished(step=address, outcome="ok"))

    def _skip(self, address: str, why: str) -> None:
        if address not in self._units:
            self._events.append(ev.StepFinished(step=address, outcome="skipped", why=why))

    def _check(self, address: str) -> None:
        """Raise when a unit has failed."""
        unit = self._units.get(address)
        if unit is not None and unit.outcome == "failed":
            raise FailedError((address,), unit.why)

    def _fail(self, address: str, why: str, key: str = "") -> NoReturn:
        """Let a unit fail without any work: it stays failed until a resume."""
        raise FaultyError((address,), why, key)

    def _pass_on(self, address: str, exc: FailedError) -> NoReturn:
        self._tell_failed(address, exc)
        raise exc

    def _tell_failed(self, address: str, exc: FailedError) -> None:
        unit = self._units.get(address)
        if unit is None or unit.outcome != "failed":
            self._events.append(ev.StepFinished(step=address, outcome="failed", why=exc.error))
