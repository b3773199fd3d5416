"""What a recipe does next: a pure function of the recipe and of what has happened.

The plan walks the recipe from its beginning. A unit that is over gives what it gave, one that is
not is what there is to do. The context that a step sees is thus always the same function of the
outcomes before it, in a run that was never stopped and in one that was resumed five times.

A walk must not depend on its own events: what it decides it decides again once they are folded in.

Source: the language is that of Amplifier's recipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from functools import cached_property, partial
from typing import Any, NoReturn

from nb_agents import events as ev
from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_limits import Recursion
from nb_agents.config.recipe_stage import Approval, Stage
from nb_agents.config.recipe_step import Step
from nb_agents.recipes import values
from nb_agents.recipes.addresses import is_within, join
from nb_agents.recipes.fields import Read, Wanted, wanted
from nb_agents.recipes.iterations import all_of, items_of, width_of
from nb_agents.recipes.leaves import work_of
from nb_agents.recipes.progress import Gate, Progress, Unit
from nb_agents.recipes.scope import Scope
from nb_agents.recipes.values import FailedError
from nb_agents.recipes.work import (
    Completed,
    Denied,
    Failed,
    GateWork,
    Limit,
    LoadWork,
    Plan,
    Work,
)
from nb_agents.tools.approval import ApprovalConfig

__all__ = ["fatal", "plan"]

_BY_ANYBODY = ApprovalConfig()


def plan(
    progress: Progress,
    busy: frozenset[str] = frozenset(),
    approval: ApprovalConfig = _BY_ANYBODY,
) -> Plan:
    """Say what a recipe does next.

    Args:
        progress: How far it is; its recipe is loaded.
        busy: Addresses of the work that is under way.
        approval: How long gates wait, and what comes then, that do not say it themselves.

    Returns:
        The plan. Once its events are folded in, planning again gives the same work and no events.
        The recipe completes or fails only when nothing is under way; a denied gate ends it at once.
    """
    walk = _Walk(progress, busy, approval)
    ended = walk.ended()
    return Plan(tuple(walk.events), tuple(walk.work), ended, tuple(walk.limits))


def fatal(progress: Progress) -> tuple[str, ...]:
    """Give the addresses of the units whose failure ends the recipe.

    Args:
        progress: How far it is; its recipe is loaded.

    Returns:
        The addresses; also of those beside which others were still under way.
    """
    ended = _Walk(progress, frozenset(), _BY_ANYBODY, waits=False).ended()
    return ended.addresses if isinstance(ended, Failed) else ()


def _inner(recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """Give the variables that every step of a recipe sees and that are nobody's output."""
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


class _Flow(Enum):
    """How the walk of a unit came out."""

    DONE = auto()
    BUSY = auto()
    SKIP_REST = auto()


class _DeniedError(Exception):
    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address
        self.message = message


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
        """Say what the recipe reads of a step's result."""
        return self._wanted.get(step.id, _UNREAD)


class _Walk:
    """One walk through a recipe.

    Args:
        progress: How far it is.
        busy: Addresses of the work that is under way.
        approval: What holds for gates that do not say it themselves.
        waits: Whether a failure in a parallel loop waits for the other iterations.
    """

    def __init__(
        self,
        progress: Progress,
        busy: frozenset[str],
        approval: ApprovalConfig,
        *,
        waits: bool = True,
    ) -> None:
        self.events: list[ev.Event] = []
        self.work: list[Work] = []
        self.limits: list[Limit] = []
        self._units = progress.units
        self._progress = progress
        self._busy = busy
        self._approval = approval
        self._waits = waits
        self._agent_steps = sum(1 for unit in self._units.values() if unit.kind == "agent")
        self._not_met = {address for address in busy if address not in self._units}

    def ended(self) -> Completed | Failed | Denied | None:
        """Walk; say how the recipe ended, or None."""
        root = self._progress.recipes[""]
        given = {**root.context, **self._progress.context}
        scope = Scope({**given, **_inner(root, self._progress)})
        try:
            flow = self._recipe(_Frame("", root, root.recursion, (root.name,)), scope)
        except FailedError as exc:
            return Failed(exc.addresses, exc.error)
        except _DeniedError as exc:
            return Denied(exc.address, exc.message)
        return None if flow is _Flow.BUSY else Completed(scope.set_by_steps)

    # Recipes and stages ----------------------------------------------------------------------

    def _recipe(self, frame: _Frame, scope: Scope) -> _Flow:
        for index, stage in enumerate(frame.recipe.stages):
            if self._stage(frame, scope, stage, index) is _Flow.BUSY:
                return _Flow.BUSY
        return _Flow.DONE

    def _stage(self, frame: _Frame, scope: Scope, stage: Stage, index: int) -> _Flow:
        if not stage.name:  # a recipe without stages
            return self._steps(frame, scope, stage.steps, frame.address)
        address = join(frame.address, stage.name)
        scope.values["stage"] = {"name": stage.name, "index": index}
        try:
            return self._named_stage(frame, scope, stage, address)
        except FailedError as exc:
            self._pass_on(address, exc)

    def _named_stage(self, frame: _Frame, scope: Scope, stage: Stage, address: str) -> _Flow:
        unit = self._units.get(address)
        if unit is None or unit.outcome == "failed":
            if not values.holds(stage.condition, scope, address, "condition"):
                self._skip(address, f"its condition is false: {stage.condition}")
                return _Flow.DONE
        elif unit.outcome == "skipped":
            return _Flow.DONE
        self._begin(address, "stage")
        # What `skip_remaining` skips is the rest of its stage.
        if self._steps(frame, scope, stage.steps, address) is _Flow.BUSY:
            return _Flow.BUSY
        if self._gate(scope, stage, address) is _Flow.BUSY:
            return _Flow.BUSY
        self._end(address)
        return _Flow.DONE

    def _gate(self, scope: Scope, stage: Stage, address: str) -> _Flow:
        approval = stage.gate
        if approval is None:
            return _Flow.DONE
        gate = self._progress.gates.get(address) or self._ask(scope, stage, approval, address)
        if gate.approved is None:
            if address not in self._busy:
                self.work.append(self._wait(scope, approval, address))
            return _Flow.BUSY
        if not gate.approved:
            raise _DeniedError(address, gate.message)
        scope.values["_approval_message"] = gate.message
        return _Flow.DONE

    def _ask(self, scope: Scope, stage: Stage, approval: Approval, address: str) -> Gate:
        conditions = stage.auto_approve_if
        if conditions and all(
            values.holds(condition, scope, address, "auto_approve_if") for condition in conditions
        ):
            self.events.append(ev.ApprovalGiven(step=address, approved=True, by="auto_approve_if"))
            return Gate(True)
        wait = self._wait(scope, approval, address)
        self.events.append(
            ev.ApprovalAsked(
                step=address,
                prompt=values.text(approval.prompt, scope, address),
                timeout_s=wait.timeout_s,
                default=wait.default,
            )
        )
        return Gate()

    def _wait(self, scope: Scope, approval: Approval, address: str) -> GateWork:
        """Say how long a gate waits, and what comes then: what it says itself comes first."""
        timeout_s = values.number(ranges.APPROVAL_TIMEOUT, approval.timeout, scope, address)
        default = approval.default
        if not timeout_s and self._approval.timeout:
            timeout_s = self._approval.timeout
            if "default" not in approval.model_fields_set:
                default = self._approval.default
        return GateWork(address=address, timeout_s=timeout_s, default=default)

    # Steps -----------------------------------------------------------------------------------

    def _steps(self, frame: _Frame, scope: Scope, steps: Sequence[Step], base: str) -> _Flow:
        """Walk steps one after the other."""
        for index, step in enumerate(steps):
            stage = scope.values["stage"]["name"]
            scope.values["step"] = {"id": step.id, "index": index, "stage": stage}
            flow = self._step(frame, scope, step, join(base, step.id))
            if flow is not _Flow.DONE:
                return flow
        return _Flow.DONE

    def _step(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        scope.missing.pop(step.id, None)  # of an earlier iteration
        try:
            if self._is_skipped(step, scope, address):
                scope.values["_skipped_steps"] = [*scope.values["_skipped_steps"], step.id]
                return _Flow.DONE
            if step.foreach:
                return self._foreach(frame, scope, step, address)
            if step.while_condition:
                return self._while(frame, scope, step, address)
            return self._body(frame, scope, step, address)
        except FailedError as exc:
            return self._absorb(step, scope, address, exc)

    def _is_skipped(self, step: Step, scope: Scope, address: str) -> bool:
        unit = self._units.get(address)
        lacks = next((name for name in step.depends_on if name in scope.missing), "")
        if lacks:
            why = f"it depends on {lacks!r}, which {scope.missing[lacks]}"
            scope.missing[step.id] = "was skipped"
        # A step that has begun keeps its answer, which its own outputs could change.
        elif unit is not None and unit.outcome != "failed":
            return unit.outcome == "skipped"
        elif values.holds(step.condition, scope, address, "condition"):
            return False
        else:
            why = f"its condition is false: {step.condition}"
        self._skip(address, why)
        return True

    def _absorb(self, step: Step, scope: Scope, address: str, exc: FailedError) -> _Flow:
        """Do with a failure what the step's ``on_error`` says."""
        if step.on_error == "fail":
            self._pass_on(address, exc)
        self._give_nothing(step, scope, address, exc)
        scope.set(step.collect, None)
        scope.missing[step.id] = "failed"
        return _Flow.SKIP_REST if step.on_error == "skip_remaining" else _Flow.DONE

    def _give_nothing(self, step: Step, scope: Scope, address: str, exc: FailedError) -> None:
        self._tell_failed(address, exc)
        scope.set(step.output_exit_code, None)
        self._give(scope, step, None)

    def _body(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        """Walk what a step does: once, or in one iteration of its loop."""
        if step.steps:
            self._begin(address, "iteration")
            flow = self._steps(frame, scope, step.steps, address)
            if flow is not _Flow.BUSY:
                self._end(address)
            return flow
        if step.type == "recipe":
            return self._call(frame, scope, step, address)
        return self._leaf(frame, scope, step, address)

    def _leaf(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        """Walk a step that an agent or a command does."""
        self._check(address)
        unit = self._units.get(address)
        if unit is not None and unit.is_done:
            self._give_leaf(frame, scope, step, unit)
            return _Flow.DONE
        is_counted = step.type != "agent" or (unit is not None and unit.kind == "agent")
        if address in self._busy:
            self._not_met.discard(address)
            self._agent_steps += not is_counted
            return _Flow.BUSY
        work = work_of(step, unit or Unit("group"), frame.wanted(step), scope, address)
        if is_counted or self._may_begin(frame, scope, address):
            self.work.append(work)
        return _Flow.BUSY

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
        """Tell whether one more agent step may begin, or fail.

        Work that is under way and that this walk has not met yet may be agent steps: while that
        matters, none begins.
        """
        limit = values.number(ranges.MAX_STEPS, frame.limits.max_total_steps, scope, address)
        if self._agent_steps >= limit:
            self._fail(address, f"The limit of {limit:g} agent steps is reached (max_total_steps).")
        if self._agent_steps + len(self._not_met) >= limit:
            return False
        self._agent_steps += 1
        return True

    def _call(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        """Walk a step that calls a recipe."""
        self._begin(address, "recipe")
        unit = self._units.get(address)
        # An attempt that failed is one whose time was over: nothing else fails a recipe itself.
        if unit is not None and unit.failures:
            return self._take_back(address, unit)
        if step.recipe_timeout is None:
            return self._called(frame, scope, step, address)
        timeout_s = values.number(ranges.TIMEOUT, step.recipe_timeout, scope, address)
        place = len(self.limits)
        flow = self._called(frame, scope, step, address)
        if flow is _Flow.BUSY:
            self.limits.insert(place, Limit(address, timeout_s))  # before those in it
        return flow

    def _take_back(self, address: str, unit: Unit) -> _Flow:
        """Fail a call whose time was over, and all that is open in it, once its work has ended."""
        failure = FailedError((address,), unit.why)
        for gate in self._open_gates:
            if is_within(gate, address):
                given = ev.ApprovalGiven(step=gate, approved=False, message=unit.why, by="timeout")
                self.events.append(given)
        if any(is_within(each, address) for each in self._busy):
            self._tell_failed(address, failure)
            return _Flow.BUSY
        for inner in self._open_units:
            if inner != address and is_within(inner, address):
                self._tell_failed(inner, failure)
        raise failure

    @cached_property
    def _open_units(self) -> list[str]:
        return [address for address, unit in self._units.items() if not unit.outcome]

    @cached_property
    def _open_gates(self) -> list[str]:
        gates = self._progress.gates.items()
        return [address for address, gate in gates if gate.approved is None]

    def _called(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        """Walk the recipe that a step calls."""
        recipe = self._progress.recipes.get(address)
        if recipe is None:
            self._check(address)
            if address not in self._busy:
                path = values.text(step.recipe, scope, address)
                beside = frame.recipe.path
                self.work.append(LoadWork(address=address, path=path, beside=beside))
            return _Flow.BUSY
        limits = step.recursion or frame.limits
        stack = (*frame.stack, recipe.name)
        most = values.number(ranges.MAX_DEPTH, limits.max_depth, scope, address)
        if len(stack) > most:
            said = " → ".join(stack)
            self._fail(address, f"Recipes call each other deeper than {most:g}: {said}.")
        given = values.value(step.context, scope, address)
        if missing := [name for name in recipe.required if name not in given]:
            self._fail(address, f"{recipe.name} needs {missing[0]!r} in its context.")
        inner = Scope({**recipe.context, **given, **_inner(recipe, self._progress)})
        called = _Frame(address, recipe, limits, stack, frame.wanted(step).reads)
        if self._recipe(called, inner) is _Flow.BUSY:
            return _Flow.BUSY
        self._end(address)
        self._give(scope, step, inner.set_by_steps)
        return _Flow.DONE

    # Loops -----------------------------------------------------------------------------------

    def _foreach(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        items = items_of(step, scope, address)
        if not items:
            scope.values["_skipped_steps"] = [*scope.values["_skipped_steps"], step.id]
        width = width_of(step, len(items), scope, address)
        self._begin(address, "foreach", total=len(items))
        walk = self._sequential if width is None else partial(self._parallel, width)
        return self._close(scope, step, address, *walk(frame, scope, step, address, items))

    def _close(
        self, scope: Scope, step: Step, address: str, flow: _Flow, results: list[Any]
    ) -> _Flow:
        """Give what a loop gave, when it is over."""
        if flow is not _Flow.BUSY:
            self._end(address)
            last = results[-1] if results else None
            scope.last = results if step.collect else last
            scope.set(step.collect, results)
            scope.set(step.output if results else None, last)
        return flow

    def _sequential(
        self, frame: _Frame, scope: Scope, step: Step, address: str, items: list[Any]
    ) -> tuple[_Flow, list[Any]]:
        results: list[Any] = []
        for index, item in enumerate(items):
            with scope.bound(**{step.as_: item}):
                flow, value = self._iteration(frame, scope, step, f"{address}[{index}]")
            results.append(value)
            if flow is not _Flow.DONE:
                return flow, results
        return _Flow.DONE, results

    def _parallel(
        self, width: float, frame: _Frame, scope: Scope, step: Step, address: str, items: list[Any]
    ) -> tuple[_Flow, list[Any]]:
        results: list[Any] = [None] * len(items)
        failures: dict[int, FailedError] = {}
        open_, end, skips = 0, len(items), False
        for index in self._begun_first(address, len(items)):
            where = f"{address}[{index}]"
            # After a failure, or a stop of the rest, what is under way ends and nothing begins.
            if not self._has_begun(where) and (open_ >= width or index > end):
                break
            inner = scope.copy(**{step.as_: items[index], "_parallel_group_id": address})
            try:
                flow, results[index] = self._iteration(frame, inner, step, where)
            except FailedError as exc:
                failures[index] = exc
                end = min(end, index)
                continue
            open_ += flow is _Flow.BUSY
            if flow is _Flow.SKIP_REST:
                end, skips = min(end, index), True
        if open_ and (self._waits or not failures):
            return _Flow.BUSY, results
        if failures:
            raise all_of(failures, len(items))
        return _Flow.SKIP_REST if skips else _Flow.DONE, results

    def _has_begun(self, address: str) -> bool:
        return address in self._units or address in self._busy

    def _begun_first(self, address: str, count: int) -> list[int]:
        """Order iterations so that those are counted that are open before others begin."""
        return sorted(range(count), key=lambda i: not self._has_begun(f"{address}[{i}]"))

    def _iteration(
        self, frame: _Frame, scope: Scope, step: Step, address: str
    ) -> tuple[_Flow, Any]:
        """Walk one iteration: how it came out, and its value; a tolerated failure gives None."""
        scope.last = None
        try:
            flow = self._body(frame, scope, step, address)
        except FailedError as exc:
            if step.on_error != "continue":
                self._pass_on(address, exc)
            self._give_nothing(step, scope, address, exc)
            flow = _Flow.DONE
        return flow, scope.last

    def _while(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        most = values.number(ranges.WHILE_ITERATIONS, step.max_while_iterations, scope, address)
        self._begin(address, "while")
        results: list[Any] = []
        flow = _Flow.DONE
        for index in range(int(most)):
            with scope.bound(_loop_index=index, _loop_iteration=index + 1):
                if not self._goes_on(step, scope, address, index):
                    break
                flow, value = self._iteration(frame, scope, step, f"{address}[{index}]")
                results.append(value)
                if flow is not _Flow.DONE or self._is_broken(step, scope, address):
                    break
        return self._close(scope, step, address, flow, results)

    def _goes_on(self, step: Step, scope: Scope, address: str, index: int) -> bool:
        if self._has_begun(f"{address}[{index}]"):
            return True
        return values.holds(step.while_condition, scope, address, "while_condition")

    def _is_broken(self, step: Step, scope: Scope, address: str) -> bool:
        """Update the context after an iteration; tell whether it was the last."""
        for name, text in step.update_context.items():
            scope.set(name, values.value(text, scope, address))
        return bool(step.break_when) and values.holds(step.break_when, scope, address, "break_when")

    # What is so by now -----------------------------------------------------------------------

    def _begin(self, address: str, kind: ev.StepKind, total: int | None = None) -> None:
        if address not in self._units:
            self.events.append(ev.StepStarted(step=address, unit=kind, total=total))

    def _end(self, address: str) -> None:
        unit = self._units.get(address)
        if unit is None or not unit.outcome:
            self.events.append(ev.StepFinished(step=address, outcome="ok"))

    def _skip(self, address: str, why: str) -> None:
        if address not in self._units:
            self.events.append(ev.StepFinished(step=address, outcome="skipped", why=why))

    def _check(self, address: str) -> None:
        """Raise when a unit has failed."""
        unit = self._units.get(address)
        if unit is not None and unit.outcome == "failed":
            raise FailedError((address,), unit.why)

    def _fail(self, address: str, why: str) -> NoReturn:
        """Let a unit fail without any work: once told, it stays so until a resume."""
        raise FailedError((address,), why)

    def _pass_on(self, address: str, exc: FailedError) -> NoReturn:
        self._tell_failed(address, exc)
        raise exc

    def _tell_failed(self, address: str, exc: FailedError) -> None:
        unit = self._units.get(address)
        if unit is None or unit.outcome != "failed":
            self.events.append(ev.StepFinished(step=address, outcome="failed", why=exc.error))
