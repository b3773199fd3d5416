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
from nb_agents.config.recipe_limits import Recursion, Retry
from nb_agents.config.recipe_stage import Approval, Stage
from nb_agents.config.recipe_step import Step
from nb_agents.config.recipe_values import Range
from nb_agents.errors import RecipeError
from nb_agents.recipes import expression
from nb_agents.recipes.addresses import join
from nb_agents.recipes.expression import as_text
from nb_agents.recipes.fields import Read, Wanted, wanted
from nb_agents.recipes.output import JSON_RIDER, value_of
from nb_agents.recipes.progress import Gate, Progress, Unit
from nb_agents.recipes.scope import Scope
from nb_agents.recipes.shell import render_command
from nb_agents.recipes.template import render, render_value
from nb_agents.recipes.work import (
    AgentWork,
    CommandWork,
    Completed,
    Denied,
    Failed,
    GateWork,
    LoadWork,
    Plan,
    Work,
)

__all__ = ["fatal", "plan"]


def plan(progress: Progress, busy: frozenset[str] = frozenset()) -> Plan:
    """Say what a recipe does next.

    Args:
        progress: How far it is; its recipe is loaded.
        busy: Addresses of the work that is under way.

    Returns:
        The plan. Once its events are folded in, planning again gives the same work and no events.
        The recipe completes or fails only when nothing is under way; a denied gate ends it at once.
    """
    walk = _Walk(progress, busy)
    ended = walk.ended()
    return Plan(tuple(walk.events), tuple(walk.work), ended)


def fatal(progress: Progress) -> tuple[str, ...]:
    """Give the addresses of the units whose failure ends the recipe.

    Args:
        progress: How far it is; its recipe is loaded.

    Returns:
        The addresses; also of those beside which others were still under way.
    """
    ended = _Walk(progress, frozenset(), waits=False).ended()
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


class _FailedError(Exception):
    def __init__(self, addresses: tuple[str, ...], error: str) -> None:
        super().__init__(error)
        self.addresses = addresses
        self.error = error


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
        waits: Whether a failure in a parallel loop waits for the other iterations.
    """

    def __init__(self, progress: Progress, busy: frozenset[str], *, waits: bool = True) -> None:
        self.events: list[ev.Event] = []
        self.work: list[Work] = []
        self._units = progress.units
        self._progress = progress
        self._busy = busy
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
        except _FailedError as exc:
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
        except _FailedError as exc:
            self._pass_on(address, exc)

    def _named_stage(self, frame: _Frame, scope: Scope, stage: Stage, address: str) -> _Flow:
        unit = self._units.get(address)
        if unit is None or unit.outcome == "failed":
            if not self._holds(stage.condition, scope, address, "condition"):
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
                timeout_s = self._number(ranges.APPROVAL_TIMEOUT, approval.timeout, scope, address)
                default = approval.default
                self.work.append(GateWork(address=address, timeout_s=timeout_s, default=default))
            return _Flow.BUSY
        if not gate.approved:
            raise _DeniedError(address, gate.message)
        scope.values["_approval_message"] = gate.message
        return _Flow.DONE

    def _ask(self, scope: Scope, stage: Stage, approval: Approval, address: str) -> Gate:
        conditions = stage.auto_approve_if
        if conditions and all(
            self._holds(condition, scope, address, "auto_approve_if") for condition in conditions
        ):
            self.events.append(ev.ApprovalGiven(step=address, approved=True, by="auto_approve_if"))
            return Gate(True)
        self.events.append(
            ev.ApprovalAsked(
                step=address,
                prompt=self._render(approval.prompt, scope, address),
                timeout_s=self._number(ranges.APPROVAL_TIMEOUT, approval.timeout, scope, address),
                default=approval.default,
            )
        )
        return Gate()

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
        except _FailedError as exc:
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
        elif self._holds(step.condition, scope, address, "condition"):
            return False
        else:
            why = f"its condition is false: {step.condition}"
        self._skip(address, why)
        return True

    def _absorb(self, step: Step, scope: Scope, address: str, exc: _FailedError) -> _Flow:
        """Do with a failure what the step's ``on_error`` says."""
        if step.on_error == "fail":
            self._pass_on(address, exc)
        self._give_nothing(step, scope, address, exc)
        scope.set(step.collect, None)
        scope.missing[step.id] = "failed"
        return _Flow.SKIP_REST if step.on_error == "skip_remaining" else _Flow.DONE

    def _give_nothing(self, step: Step, scope: Scope, address: str, exc: _FailedError) -> None:
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
        if unit is not None and unit.outcome:
            self._give_leaf(frame, scope, step, unit)
            return _Flow.DONE
        is_counted = step.type != "agent" or (unit is not None and unit.kind == "agent")
        if address in self._busy:
            self._not_met.discard(address)
            self._agent_steps += not is_counted
            return _Flow.BUSY
        work = self._work(frame, step, scope, address, unit or Unit("group"))
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
        limit = self._number(ranges.MAX_STEPS, frame.limits.max_total_steps, scope, address)
        if self._agent_steps >= limit:
            self._fail(address, f"The limit of {limit:g} agent steps is reached (max_total_steps).")
        if self._agent_steps + len(self._not_met) >= limit:
            return False
        self._agent_steps += 1
        return True

    def _work(self, frame: _Frame, step: Step, scope: Scope, address: str, unit: Unit) -> Work:
        most = self._number(ranges.ATTEMPTS, step.retry.max_attempts, scope, address)
        if unit.failures >= most:
            self._fail(address, unit.why)
        attempt = unit.failures + 1
        delay_s = self._delay_s(step.retry, unit.failures, scope, address)
        is_last = attempt >= most
        retry_s = None if is_last else self._delay_s(step.retry, attempt, scope, address)
        timeout_s = self._number(ranges.TIMEOUT, step.timeout, scope, address)
        if step.type == "agent":
            return AgentWork(
                address=address,
                step=step,
                prompt=self._prompt(frame, step, scope, address),
                attempt=attempt,
                attempts=int(most),
                delay_s=delay_s,
                retry_s=retry_s,
                timeout_s=timeout_s,
            )
        return CommandWork(
            address=address,
            command=self._command(step, scope, address),
            cwd=self._render(step.cwd, scope, address),
            env={k: self._render(v, scope, address) for k, v in step.env.items()},
            attempt=attempt,
            attempts=int(most),
            delay_s=delay_s,
            retry_s=retry_s,
            timeout_s=timeout_s,
            tolerates=step.on_error == "continue" and is_last,
        )

    def _prompt(self, frame: _Frame, step: Step, scope: Scope, address: str) -> str:
        mode = f"MODE: {step.mode}\n\n" if step.mode else ""
        result = frame.wanted(step)
        rider = JSON_RIDER if step.parse_json or result.is_json else ""
        return mode + self._render(step.prompt, scope, address) + rider + result.rider

    def _command(self, step: Step, scope: Scope, address: str) -> str:
        try:
            return render_command(step.command, scope.values)
        except RecipeError as exc:
            self._fail(address, str(exc))

    def _call(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        """Walk the recipe that a step calls."""
        self._begin(address, "recipe")
        recipe = self._progress.recipes.get(address)
        if recipe is None:
            self._check(address)
            if address not in self._busy:
                path = self._render(step.recipe, scope, address)
                beside = frame.recipe.path
                self.work.append(LoadWork(address=address, path=path, beside=beside))
            return _Flow.BUSY
        limits = step.recursion or frame.limits
        stack = (*frame.stack, recipe.name)
        most = self._number(ranges.MAX_DEPTH, limits.max_depth, scope, address)
        if len(stack) > most:
            said = " → ".join(stack)
            self._fail(address, f"Recipes call each other deeper than {most:g}: {said}.")
        given = self._value(step.context, scope, address)
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
        items = self._items(step, scope, address)
        if not items:
            scope.values["_skipped_steps"] = [*scope.values["_skipped_steps"], step.id]
        width = self._width(step, len(items), scope, address)
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

    def _items(self, step: Step, scope: Scope, address: str) -> list[Any]:
        items = self._value(step.foreach.strip(), scope, address)
        if isinstance(items, str):
            items = value_of(items)
        if not isinstance(items, list):
            kind = {dict: "a mapping", str: "text", type(None): "empty"}.get(type(items), "a value")
            self._fail(address, f"foreach needs a list, and {step.foreach} is {kind}.")
        most = self._number(ranges.ITERATIONS, step.max_iterations, scope, address)
        if len(items) > most:
            said = f"{step.foreach} has {len(items)} items, and max_iterations is {most:g}."
            self._fail(address, said)
        return items

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
        failures: dict[int, _FailedError] = {}
        open_, end, skips = 0, len(items), False
        for index in self._begun_first(address, len(items)):
            where = f"{address}[{index}]"
            # After a failure, or a stop of the rest, what is under way ends and nothing begins.
            if not self._has_begun(where) and (open_ >= width or index > end):
                break
            inner = scope.copy(**{step.as_: items[index], "_parallel_group_id": address})
            try:
                flow, results[index] = self._iteration(frame, inner, step, where)
            except _FailedError as exc:
                failures[index] = exc
                end = min(end, index)
                continue
            open_ += flow is _Flow.BUSY
            if flow is _Flow.SKIP_REST:
                end, skips = min(end, index), True
        if open_ and (self._waits or not failures):
            return _Flow.BUSY, results
        if failures:
            raise _all_of(failures, len(items))
        return _Flow.SKIP_REST if skips else _Flow.DONE, results

    def _has_begun(self, address: str) -> bool:
        return address in self._units or address in self._busy

    def _begun_first(self, address: str, count: int) -> list[int]:
        """Order iterations so that those are counted that are open before others begin."""
        return sorted(range(count), key=lambda i: not self._has_begun(f"{address}[{i}]"))

    def _width(self, step: Step, count: int, scope: Scope, address: str) -> float | None:
        """Give how many iterations may run at the same time; None for one after the other."""
        given = self._render(as_text(step.parallel), scope, address).strip().lower()
        if given in ("true", "false"):
            return count if given == "true" else None
        return self._number(ranges.PARALLEL, given, scope, address)

    def _iteration(
        self, frame: _Frame, scope: Scope, step: Step, address: str
    ) -> tuple[_Flow, Any]:
        """Walk one iteration: how it came out, and its value; a tolerated failure gives None."""
        scope.last = None
        try:
            flow = self._body(frame, scope, step, address)
        except _FailedError as exc:
            if step.on_error != "continue":
                self._pass_on(address, exc)
            self._give_nothing(step, scope, address, exc)
            flow = _Flow.DONE
        return flow, scope.last

    def _while(self, frame: _Frame, scope: Scope, step: Step, address: str) -> _Flow:
        most = self._number(ranges.WHILE_ITERATIONS, step.max_while_iterations, scope, address)
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
        return self._holds(step.while_condition, scope, address, "while_condition")

    def _is_broken(self, step: Step, scope: Scope, address: str) -> bool:
        """Update the context after an iteration; tell whether it was the last."""
        for name, text in step.update_context.items():
            scope.set(name, self._value(text, scope, address))
        return bool(step.break_when) and self._holds(step.break_when, scope, address, "break_when")

    # Values ----------------------------------------------------------------------------------

    def _holds(self, condition: str, scope: Scope, address: str, what: str) -> bool:
        try:
            return expression.evaluate(expression.parse(condition), scope.values)
        except RecipeError as exc:
            self._fail(address, f"{what}: {exc}")

    def _render(self, text: str, scope: Scope, address: str) -> str:
        try:
            return render(text, scope.values)
        except RecipeError as exc:
            self._fail(address, str(exc))

    def _value(self, value: Any, scope: Scope, address: str) -> Any:
        """Give a value of the recipe, filled in, with its type."""
        try:
            return render_value(value, scope.values)
        except RecipeError as exc:
            self._fail(address, str(exc))

    def _number(self, range_: Range, value: object, scope: Scope, address: str) -> float:
        """Give a number that the recipe may have as a template."""
        if not isinstance(value, str):
            assert isinstance(value, int | float)
            return value
        try:
            return range_.number(self._render(value, scope, address))
        except ValueError as exc:
            self._fail(address, f"{exc}.")

    def _delay_s(self, retry: Retry, failures: int, scope: Scope, address: str) -> float:
        """Give the seconds before the next attempt: none before the first."""
        if not failures:
            return 0.0
        first = self._number(ranges.DELAY, retry.initial_delay, scope, address)
        longest = self._number(ranges.DELAY, retry.max_delay, scope, address)
        doublings = min(failures - 1, 64) if retry.backoff == "exponential" else 0
        return min(first * 2.0**doublings, longest)

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
            raise _FailedError((address,), unit.why)

    def _fail(self, address: str, why: str) -> NoReturn:
        """Let a unit fail without any work: once told, it stays so until a resume."""
        raise _FailedError((address,), why)

    def _pass_on(self, address: str, exc: _FailedError) -> NoReturn:
        self._tell_failed(address, exc)
        raise exc

    def _tell_failed(self, address: str, exc: _FailedError) -> None:
        unit = self._units.get(address)
        if unit is None or unit.outcome != "failed":
            self.events.append(ev.StepFinished(step=address, outcome="failed", why=exc.error))


def _all_of(failures: Mapping[int, _FailedError], count: int) -> _FailedError:
    """Give the failure of a parallel loop, from those of its iterations."""
    each = [failures[index] for index in sorted(failures)]
    said = "; ".join(failure.error for failure in each)[:2000]
    addresses = tuple(address for failure in each for address in failure.addresses)
    return _FailedError(addresses, f"{len(each)} of {count} iterations failed: {said}")
