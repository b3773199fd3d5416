"""Plans what a recipe does next: a pure function of the recipe and its progress.

The planner walks the recipe from the start. Units that have ended supply their results, and the
others become the work to do. The variables that a step sees are therefore always the same function
of the earlier results, whether or not the run was stopped and resumed.

A walk must be deterministic: replaying it after its own events have been folded in gives the same
result. A `Planner` therefore never has to start over. Its walk is a generator that pauses when
there is work to do and resumes from there, so planning a step takes constant time however many came
before.

Source: Amplifier's recipes define the language.
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
from nb_agents.config.template import FENCED
from nb_agents.extensions.recipes import recipe_values as ranges
from nb_agents.extensions.recipes import units
from nb_agents.extensions.recipes.check import step_path, with_location
from nb_agents.extensions.recipes.output import Read, ResultUse, usage_of_results
from nb_agents.extensions.recipes.progress import GateState, Progress, Unit
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_step import Approval, Stage, Step
from nb_agents.extensions.recipes.recipe_values import Recursion
from nb_agents.extensions.recipes.tasks import (
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
from nb_agents.extensions.recipes.units import (
    FailedError,
    FaultyError,
    Scope,
    combined_failure,
    concurrency,
    is_within,
    items_of,
    join,
)
from nb_agents.tools.policy import ApprovalConfig

_DEFAULT_APPROVAL = ApprovalConfig()

_T = TypeVar("_T")
_Wait = tuple[str, Unit] | None
"""The started step for which a walk is waiting, as it was when the walk paused.

None if the walk waits for several, or for anything other than an agent or command step.
"""
_Walk = Generator[_Wait, None, _T]
"""A walk. It pauses while there is work to do or running, and returns the result of the unit."""


def plan(
    progress: Progress,
    busy: Set[str] = frozenset(),
    approval: ApprovalConfig = _DEFAULT_APPROVAL,
) -> Plan:
    """Return the next work of a recipe.

    Args:
        progress: The progress so far. Its recipe is loaded.
        busy: Addresses of the work that is running.
        approval: Timeout and default decision for gates that do not set them.

    Returns:
        The plan. After its events are folded in, planning again returns the same work and no
        events. A recipe completes or fails only if nothing is running, but a denied gate ends it
        immediately.
    """
    return Planner(approval).plan(progress, busy)


def fatal(progress: Progress) -> tuple[str, ...]:
    """Return the addresses of the units whose failure ends the recipe.

    A failure in a parallel loop counts even if other iterations were still running.
    """
    ending = Planner(waits=False).plan(progress).ended
    return ending.addresses if isinstance(ending, Failed) else ()


def _builtin_variables(recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """Return the built-in variables of a recipe, which no step sets."""
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


_NO_USE = ResultUse()

_BUILTIN_NAMES = frozenset({"recipe", "session", "stage", "step", "_skipped_steps"})
"""Built-in variables that depend only on the recipe and on how the run was started."""


class _Flow(Enum):
    """How the walk of a unit ended."""

    DONE = auto()
    SKIP_REST = auto()


class _DeniedError(Exception):
    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.message)
        self.denied = denied


@dataclass(frozen=True)
class _Frame:
    """A recipe that is running: the run's own, or one that a step calls.

    Attributes:
        address: The address of the step that calls it, or "".
        limits: The limits on call depth and on the number of agent steps.
        stack: The names of the calling recipes, outermost first, ending with its own.
        read: How its caller uses its outputs.
    """

    address: str
    recipe: Recipe
    limits: Recursion
    stack: tuple[str, ...]
    read: tuple[Read, ...] = ()

    @cached_property
    def _requested_uses(self) -> Mapping[str, ResultUse]:
        return usage_of_results(self.recipe, self.read)

    def usage(self, step: Step) -> ResultUse:
        """Return how the recipe uses the result of a step."""
        return self._requested_uses.get(step.id, _NO_USE)


def _with_location(failure: FailedError, frame: _Frame, step: Step) -> FailedError:
    return with_location(failure, frame.recipe, step_path(frame.recipe, step.id))


@dataclass
class _Parallel:
    """A parallel loop that is running.

    Attributes:
        results: The results of the iterations, by index.
        end: Index after which no iteration starts, because that iteration failed or ended the loop.
        failures: The failures of iterations, by index.
        skips: Whether an iteration skipped the remaining ones.
        walks: The walks of running iterations, by index.
        waits: What each walk is waiting for, by index.
    """

    results: list[Any]
    end: int
    failures: dict[int, FailedError] = field(default_factory=dict)
    skips: bool = False
    walks: dict[int, _Walk[tuple[_Flow, Any]]] = field(default_factory=dict)
    waits: dict[int, _Wait] = field(default_factory=dict)

    def advance(self, index: int) -> None:
        """Walk one iteration of the loop until it ends or has to wait for work."""
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
    """Plans one recipe repeatedly, each time continuing from the previous plan.

    Args:
        approval: Timeout and default decision for gates that do not set them.
        waits: Whether a failed parallel loop waits for its other iterations.
    """

    def __init__(self, approval: ApprovalConfig = _DEFAULT_APPROVAL, *, waits: bool = True) -> None:
        self._approval = approval
        self._waits = waits
        self._walk = self._run()
        self._outcome: Completed | Failed | Denied | None = None

    def plan(self, progress: Progress, busy: Set[str] = frozenset()) -> Plan:
        """Return the next work of the recipe, like the function `plan`.

        Args:
            progress: The progress of the previous call, with the events of its plan and all later
                events folded in.
            busy: Addresses of the work that is running.
        """
        self._events: list[ev.Event] = []
        self._work: list[Work] = []
        self._limits: list[Limit] = []
        self._progress = progress
        self._units = progress.units
        self._busy = busy
        self._agent_steps = progress.agent_steps
        self._visited: set[str] = set()
        if self._outcome is None:
            self._outcome = self._advance()
        # An ended recipe has no timeouts, because a denied gate stops the work that is still
        # running.
        limits = () if self._outcome else tuple(self._limits)
        return Plan(tuple(self._events), tuple(self._work), self._outcome, limits)

    def _advance(self) -> Completed | Failed | Denied | None:
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
        """Walk the whole recipe and return its outputs."""
        root = self._progress.recipes[""]
        initial = {**root.context, **self._progress.context}
        inner = _builtin_variables(root, self._progress)
        trusted = frozenset(initial) - {*self._progress.context.get(FENCED, ())} | _BUILTIN_NAMES
        scope = Scope({**initial, **inner}, trusted=trusted)
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
            self._pass_on(address, with_location(exc, frame.recipe, path))

    def _named_stage(self, frame: _Frame, scope: Scope, stage: Stage, address: str) -> _Walk[None]:
        unit = self._units.get(address)
        if unit is None or unit.outcome == "failed":
            if not units.holds(stage.condition, scope, address, "condition"):
                self._skip(address, f"its condition is false: {stage.condition}")
                return
        elif unit.outcome == "skipped":
            return
        self._emit_start(address, "stage")
        # `skip_remaining` only skips the rest of the stage, so the result does not matter here.
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
        """Return a gate's timeout and default decision, preferring the gate's own values."""
        timeout_s = units.number(ranges.APPROVAL_TIMEOUT, approval.timeout, scope, address)
        default = approval.default
        if not timeout_s and self._approval.timeout:
            timeout_s = self._approval.timeout
            if "default" not in approval.model_fields_set:
                default = self._approval.default
        return GateWork(address=address, timeout_s=timeout_s, default=default)

    # Steps -----------------------------------------------------------------------------------

    def _steps(self, frame: _Frame, scope: Scope, steps: Sequence[Step], base: str) -> _Walk[_Flow]:
        """Walk steps in order."""
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
            return self._handle_failure(step, scope, address, _with_location(exc, frame, step))

    def _is_skipped(self, step: Step, scope: Scope, address: str) -> bool:
        unit = self._units.get(address)
        # The condition is not evaluated again once a step has started, because its outputs could
        # change the result.
        if unit is not None and unit.outcome != "failed":
            return unit.outcome == "skipped"
        if units.holds(step.condition, scope, address, "condition"):
            return False
        self._skip(address, f"its condition is false: {step.condition}")
        return True

    def _handle_failure(self, step: Step, scope: Scope, address: str, exc: FailedError) -> _Flow:
        """Handle a failure according to the step's ``on_error``."""
        if step.on_error == "fail":
            self._pass_on(address, exc)
        self._set_no_output(step, scope, address, exc)
        scope.set(step.collect, None)
        return _Flow.SKIP_REST if step.on_error == "skip_remaining" else _Flow.DONE

    def _set_no_output(self, step: Step, scope: Scope, address: str, exc: FailedError) -> None:
        self._emit_failed(address, exc)
        scope.set(step.output_exit_code, None)
        self._set_output(scope, step, None)

    def _body(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        """Walk the body of a step, or one iteration of its loop."""
        if step.steps:
            self._emit_start(address, "iteration")
            flow = yield from self._steps(frame, scope, step.steps, address)
            self._end(address)
            return flow
        if step.type == "recipe":
            yield from self._call(frame, scope, step, address)
        else:
            yield from self._leaf(frame, scope, step, address)
        return _Flow.DONE

    def _leaf(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[None]:
        """Walk a step that an agent or a command runs."""
        while True:
            self._check(address)
            unit = self._units.get(address)
            if unit is not None and unit.is_done:
                break
            is_counted = step.type != "agent" or (unit is not None and unit.kind == "agent")
            self._open_leaf(frame, scope, step, address, unit, is_counted)
            yield (address, unit) if unit is not None and is_counted else None
        self._set_leaf_output(frame, scope, step, unit)

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
            self._visited.add(address)
            self._agent_steps += not is_counted
            return
        work = step_task(step, unit or Unit("group"), frame.usage(step), scope, address)
        if is_counted or self._may_start(frame, scope, address):
            self._work.append(work)

    def _set_leaf_output(self, frame: _Frame, scope: Scope, step: Step, unit: Unit) -> None:
        if unit.exit_code is not None:
            scope.set(step.output_exit_code, str(unit.exit_code))
        # A command may print more than the JSON. An agent's text has no fields that could be read.
        searches = step.parse_json or step.type == "bash" or frame.usage(step).is_json
        self._set_output(scope, step, unit.output.found if searches else unit.output.value)

    def _set_output(self, scope: Scope, step: Step, value: Any) -> None:
        scope.last = value
        scope.set(step.output, value)

    def _may_start(self, frame: _Frame, scope: Scope, address: str) -> bool:
        """Return whether one more agent step may start. Fails the step at the limit.

        Running work that this walk has not visited yet may consist of agent steps. While they
        could reach the limit, no further step starts.
        """
        limit = units.number(ranges.MAX_STEPS, frame.limits.max_total_steps, scope, address)
        room = limit - self._agent_steps
        if room <= 0:
            why = f"The limit of {limit:g} agent steps is reached (max_total_steps)."
            self._fail(address, why)
        if len(self._busy) >= room:
            unvisited = self._busy - self._visited
            if sum(each not in self._units for each in unvisited) >= room:
                return False
        self._agent_steps += 1
        return True

    def _check_room(
        self, frame: _Frame, scope: Scope, step: Step, address: str, count: int
    ) -> None:
        """Fail a parallel loop before it starts if it would exceed the limit of agent steps."""
        iterations = (f"{address}[{index}]" for index in range(count))
        if step.kind != "agent" or any(
            each in self._units or each in self._busy for each in iterations
        ):
            return
        limit = units.number(ranges.MAX_STEPS, frame.limits.max_total_steps, scope, address)
        if self._agent_steps + count > limit:
            total = f"{self._agent_steps} agent steps and {count} in parallel"
            self._fail(address, f"{total} exceed the limit of {limit:g} (max_total_steps).")

    def _call(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[None]:
        """Walk a step that calls a recipe, until the recipe ends or times out."""
        self._emit_start(address, "recipe")
        walk = self._run_call(frame, scope, step, address)
        while True:
            unit = self._units.get(address)
            # Only a timeout makes an attempt at a call fail.
            if unit is not None and unit.failures:
                yield from self._end_timed_out(address, unit)
            limits = self._limit(step, scope, address)
            index = len(self._limits)
            try:
                next(walk)
            except StopIteration:
                return
            self._limits[index:index] = limits  # before the limits of the recipes inside
            yield None

    def _limit(self, step: Step, scope: Scope, address: str) -> Sequence[Limit]:
        if step.recipe_timeout is None:
            return ()
        return [Limit(address, units.number(ranges.TIMEOUT, step.recipe_timeout, scope, address))]

    def _end_timed_out(self, address: str, unit: Unit) -> _Walk[NoReturn]:
        """Fail a call that timed out, and the open units inside it, after its work has ended."""
        failure = FailedError((address,), unit.why)
        for gate, state in self._progress.gates.items():
            if state.approved is None and is_within(gate, address):
                denied = ev.ApprovalGiven(step=gate, approved=False, message=unit.why, by="timeout")
                self._events.append(denied)
        while any(is_within(busy, address) for busy in self._busy):
            self._emit_failed(address, failure)
            yield None
        for inner, open_unit in self._units.items():
            if not open_unit.outcome and inner != address and is_within(inner, address):
                self._emit_failed(inner, failure)
        raise failure

    def _run_call(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[None]:
        """Walk the recipe that a step calls."""
        while address not in self._progress.recipes:
            self._check(address)
            if address not in self._busy:
                path = units.text(step.recipe, scope, address)
                caller_path = frame.recipe.path
                self._work.append(LoadWork(address=address, path=path, caller_path=caller_path))
            yield None
        recipe = self._progress.recipes[address]
        limits = step.recursion or frame.limits
        stack = (*frame.stack, recipe.name)
        max_depth = units.number(ranges.MAX_DEPTH, limits.max_depth, scope, address)
        if len(stack) > max_depth:
            repeated = next((i for i, name in enumerate(stack) if name in stack[:i]), len(stack))
            chain = " → ".join(stack[: repeated + 1])
            why = f"Recipe calls are nested deeper than {max_depth:g}: {chain}."
            self._fail(address, why, "recipe")
        passed = units.value(step.context, scope, address)
        if missing := [name for name in recipe.required if name not in passed]:
            self._fail(address, f"{recipe.name} requires {missing[0]!r} in its context.", "recipe")
        fenced = {name for name, each in step.context.items() if not scope.trusts(each)}
        values = {**recipe.context, **passed, **_builtin_variables(recipe, self._progress)}
        trusted = frozenset(values) - fenced - {"_approval_message"} | _BUILTIN_NAMES
        inner = Scope(values, trusted=trusted)
        called_frame = _Frame(address, recipe, limits, stack, frame.usage(step).reads)
        yield from self._recipe(called_frame, inner)
        self._end(address)
        own = {name: value for name, value in recipe.context.items() if name not in passed}
        self._set_output(scope, step, {**own, **inner.set_by_steps})

    # Loops -----------------------------------------------------------------------------------

    def _foreach(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        items = items_of(step, scope, address)
        if not items:
            scope.values["_skipped_steps"] = [*scope.values["_skipped_steps"], step.id]
        width = concurrency(step, len(items), scope, address)
        if width is not None:
            self._check_room(frame, scope, step, address, len(items))
        self._emit_start(address, "foreach", total=len(items))
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
            iteration = f"{address}[{index}]"
            return (
                iteration in self._units
                or iteration in self._busy
                or iteration in self._progress.retried
            )

        loop = _Parallel([None] * len(items), len(items))
        unstarted = []  # in reverse order
        for index in reversed(range(len(items))):
            begin(index) if has_begun(index) else unstarted.append(index)
        while True:
            # Running iterations first, so that their agent steps are counted before more start.
            for index in sorted(loop.walks):
                if not self._is_still_waiting(loop.waits.get(index)):
                    loop.advance(index)
            # After a failure or a skip, running iterations finish and no others start.
            while unstarted and len(loop.walks) < width and unstarted[-1] <= loop.end:
                begin(unstarted[-1])
                loop.advance(unstarted.pop())
            if not loop.walks or (loop.failures and not self._waits):
                break
            yield None
            for index in sorted(loop.walks, reverse=True):
                if loop.waits[index] is None and not has_begun(
                    index
                ):  # its first work could not start yet
                    del loop.walks[index]
                    unstarted.append(index)
        if loop.failures:
            raise combined_failure(loop.failures, len(items))
        return _Flow.SKIP_REST if loop.skips else _Flow.DONE, loop.results

    def _is_still_waiting(self, wait: _Wait) -> bool:
        """Return whether the work that a walk waits for is still running."""
        return wait is not None and self._units.get(wait[0]) is wait[1] and wait[0] in self._busy

    def _iteration(
        self, frame: _Frame, scope: Scope, step: Step, address: str
    ) -> _Walk[tuple[_Flow, Any]]:
        """Walk one iteration of a loop.

        Returns how it ended and its value, which is None for a tolerated failure.
        """
        scope.last = None
        try:
            flow = yield from self._body(frame, scope, step, address)
        except FailedError as exc:
            exc = _with_location(exc, frame, step)
            if step.on_error != "continue":
                self._pass_on(address, exc)
            self._set_no_output(step, scope, address, exc)
            flow = _Flow.DONE
        return flow, scope.last

    def _while(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Walk[_Flow]:
        limit = units.number(ranges.WHILE_ITERATIONS, step.max_while_iterations, scope, address)
        self._emit_start(address, "while")
        results: list[Any] = []
        flow = _Flow.DONE
        for index in range(int(limit)):
            with scope.bound(True, _loop_index=index, _loop_iteration=index + 1):
                if not self._should_repeat(step, scope, address, index):
                    break
                flow, value = yield from self._iteration(frame, scope, step, f"{address}[{index}]")
                results.append(value)
                if flow is not _Flow.DONE or self._is_broken(step, scope, address):
                    break
        else:
            self._warn_at_limit(step, scope, address, int(limit))
        return self._close(scope, step, address, flow, results)

    def _warn_at_limit(self, step: Step, scope: Scope, address: str, limit: int) -> None:
        """Warn about a loop that ended only because of its limit."""
        unit = self._units.get(address)
        is_counted = "{{" not in step.while_condition and not step.break_when
        if is_counted or (unit is not None and unit.outcome):
            return
        with suppress(FailedError), scope.bound(_loop_index=limit, _loop_iteration=limit + 1):
            if units.holds(step.while_condition, scope, address, "while_condition"):
                why = f"ended at its limit of {limit} repetitions (max_while_iterations)"
                self._events.append(ev.Noticed(text=f"The loop {address} {why}."))

    def _should_repeat(self, step: Step, scope: Scope, address: str, index: int) -> bool:
        iteration = f"{address}[{index}]"
        if iteration in self._units or iteration in self._busy:
            return True
        return units.holds(step.while_condition, scope, address, "while_condition")

    def _is_broken(self, step: Step, scope: Scope, address: str) -> bool:
        """Update the context after an iteration and return whether the loop ends."""
        for name, text in step.update_context.items():
            value = units.value(text, scope, address)
            scope.set(name, value, is_trusted=scope.trusts(text))
        return bool(step.break_when) and units.holds(step.break_when, scope, address, "break_when")

    # Events ----------------------------------------------------------------------------------

    def _emit_start(self, address: str, kind: ev.StepKind, total: int | None = None) -> None:
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
        """Raise an error if a unit has failed."""
        unit = self._units.get(address)
        if unit is not None and unit.outcome == "failed":
            raise FailedError((address,), unit.why)

    def _fail(self, address: str, why: str, key: str = "") -> NoReturn:
        """Fail a unit that did no work. It remains failed until a resume."""
        raise FaultyError((address,), why, key)

    def _pass_on(self, address: str, exc: FailedError) -> NoReturn:
        self._emit_failed(address, exc)
        raise exc

    def _emit_failed(self, address: str, exc: FailedError) -> None:
        unit = self._units.get(address)
        if unit is None or unit.outcome != "failed":
            self._events.append(ev.StepFinished(step=address, outcome="failed", why=exc.error))
