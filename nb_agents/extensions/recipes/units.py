"""Addresses, variables, numbers and loop items of a recipe's units.

If a template can't be filled in, the unit that contains it fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nb_agents import events as ev
from nb_agents.config import expression
from nb_agents.config.expression import as_text
from nb_agents.config.template import reads, render, render_value
from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes import recipe_values as ranges
from nb_agents.extensions.recipes.diagram import step_target
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_step import Step
from nb_agents.extensions.recipes.recipe_values import Range, StepRetry
from nb_agents.view.step_values import value_of

MAX_PLANNED = 200
"""Maximum number of a recipe's units that are listed before they start. A panel shows fewer."""

_KINDS: Mapping[type, str] = {dict: "a mapping", str: "text", type(None): "empty"}


def join(base: str, name: str) -> str:
    """Return the address of a unit inside another one. "" is the recipe itself.

    Example:
        >>> join("checks", "review"), join("", "a/b")
        ('checks/review', 'a∕b')
    """
    name = name.replace("/", "∕").replace("[", "❲")
    return f"{base}/{name}" if base else name


def is_within(address: str, holder: str) -> bool:
    """Return whether a unit is `holder` or inside it, at any depth.

    Example:
        >>> is_within("sub/a[2]/b", "sub"), is_within("sub[0]", "sub"), is_within("sub2", "sub")
        (True, True, False)
    """
    return address == holder or address.startswith((f"{holder}/", f"{holder}["))


def last_part(address: str) -> str:
    """Return the step's name from an address.

    Example:
        >>> last_part("checks/review[2]")
        'review'
    """
    return address.rpartition("/")[2].partition("[")[0]


def recipe_of(recipes: Iterable[str], address: str) -> str:
    """Return the address of the recipe that contains a unit, or "" for the run's own.

    Args:
        recipes: The addresses of the steps that call recipes.
        address: The address of the unit. A recipe that the unit itself calls does not count.
    """
    holders = [each for each in recipes if each != address and is_within(address, each)]
    return max(holders, key=len, default="")


def planned(recipe: Recipe, base: str = "") -> tuple[ev.PlannedUnit, ...]:
    """Return a recipe's stages and steps, in order, before they start.

    Args:
        base: Address of the step that calls the recipe, or "".

    Returns:
        At most `MAX_PLANNED` units, without the contents of loops and called recipes.
    """
    return tuple(_units(recipe, base))[:MAX_PLANNED]


def _units(recipe: Recipe, base: str) -> Iterator[ev.PlannedUnit]:
    for stage in recipe.stages:
        if not stage.name:  # a recipe without stages
            yield from _steps(stage.steps, base)
            continue
        address = join(base, stage.name)
        yield ev.PlannedUnit(address, "stage", "needs approval at its end" * bool(stage.gate))
        yield from _steps(stage.steps, address)


def _steps(steps: Sequence[Step], base: str) -> Iterator[ev.PlannedUnit]:
    for step in steps:
        yield ev.PlannedUnit(join(base, step.id), _kind(step), step_target(step))


def _kind(step: Step) -> ev.StepKind:
    if step.foreach:
        return "foreach"
    return "while" if step.while_condition else step.kind


@dataclass
class Scope:
    """The variables of a list of steps.

    Attributes:
        values: All variables.
        set_by_steps: The variables that steps have set, ordered by when they were last set.
        hidden: Names that loops currently use for their items.
        stage: The name of the stage, or "".
        last: The result of the last step.
        trusted: Names of the values from the recipe's author or the user, and of values derived
            only from them.
    """

    values: dict[str, Any]
    set_by_steps: dict[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    stage: str = ""
    last: Any = None
    trusted: frozenset[str] = frozenset()

    def trusts(self, template: Any) -> bool:
        """Return whether a value in the recipe reads only trusted variables."""
        return reads(template) & self.values.keys() <= self.trusted

    def set(self, name: str | None, value: Any, *, is_trusted: bool = False) -> None:
        """Set a step's output variable. Does nothing if the step has none."""
        if name:
            self.values[name] = value
            self.trusted = self.trusted - {name} | ({name} if is_trusted else set())
            self.set_by_steps.pop(name, None)
            self.set_by_steps[name] = value

    def copy(self, is_trusted: bool = False, /, **more: Any) -> Scope:
        """Return a copy of the scope with additional variables.

        Changes to the copy do not affect the original.
        """
        values, hidden = {**self.values, **more}, self.hidden | more.keys()
        trusted = self.trusted | more.keys() if is_trusted else self.trusted - more.keys()
        return Scope(values, {}, hidden, self.stage, trusted=trusted)

    @contextmanager
    def bound(self, is_trusted: bool = False, /, **values: Any) -> Iterator[None]:
        """Set variables during a block, and restore the previous values afterwards."""
        outer, trusted = self.hidden, self.trusted & values.keys()
        hidden = {name: self.values[name] for name in values if name in self.values}
        self.values |= values
        self.hidden = outer | values.keys()
        self.trusted = self.trusted | values.keys() if is_trusted else self.trusted - values.keys()
        try:
            yield
        finally:
            for name in values:
                self.values.pop(name, None)
            self.values |= hidden
            self.hidden = outer
            self.trusted = self.trusted - values.keys() | trusted


class FailedError(Exception):
    """Raised when units of a recipe fail.

    Attributes:
        addresses: The addresses of the failed units. The units around them fail as well, unless the
        recipe tolerates it.
        error: The error message.
    """

    def __init__(self, addresses: tuple[str, ...], error: str) -> None:
        super().__init__(error)
        self.addresses = addresses
        self.error = error


class FaultyError(FailedError):
    """Raised when units fail because of an error in the recipe.

    Attributes:
        key: The key of the step with the error, or "".
    """

    def __init__(self, addresses: tuple[str, ...], error: str, key: str = "") -> None:
        super().__init__(addresses, error)
        self.key = key


def holds(condition: str, scope: Scope, address: str, key: str) -> bool:
    """Evaluate the condition of a unit.

    Args:
        condition: The expression.
        scope: The variables of the unit.
        address: The address of the unit.
        key: The key of the condition, for the error message.

    Raises:
        FaultyError: The condition can't be evaluated.
    """
    try:
        return expression.evaluate(expression.parse(condition), scope.values)
    except RecipeError as exc:
        raise FaultyError((address,), f"{key}: {exc}") from exc


def text(template: str, scope: Scope, address: str) -> str:
    """Fill in a string template; see `value`."""
    try:
        return render(template, scope.values)
    except RecipeError as exc:
        raise FaultyError((address,), str(exc)) from exc


def value(template: Any, scope: Scope, address: str) -> Any:
    """Fill in the templates of a value. A value that is only ``{{name}}`` keeps its type.

    Args:
        template: The value in the recipe.
        scope: The variables of the unit.
        address: The address of the unit.

    Raises:
        FaultyError: A template can't be filled in.
    """
    try:
        return render_value(template, scope.values)
    except RecipeError as exc:
        raise FaultyError((address,), str(exc)) from exc


def number(range_: Range, template: object, scope: Scope, address: str) -> float:
    """Return a numeric value from a recipe, rendering it first if it is a template.

    Args:
        range_: The allowed range.
        template: The value in the recipe. A literal number was validated when the file was loaded.
        scope: The variables of the unit.
        address: The address of the unit.

    Raises:
        FaultyError: The template does not evaluate to an allowed number.
    """
    if not isinstance(template, str):
        assert isinstance(template, int | float)
        return template
    filled_in = text(template, scope, address)
    try:
        return range_.number(filled_in)
    except ValueError as exc:
        raise FaultyError((address,), f"{exc}.") from exc


def delay_s(retry: StepRetry, failures: int, scope: Scope, address: str) -> float:
    """Return the seconds to wait before the next attempt, or 0 before the first.

    Args:
        retry: The step's retry settings.
        failures: The number of failed attempts.
        scope: The variables of the step.
        address: The address of the step.

    Raises:
        FaultyError: A template does not evaluate to a number of seconds.
    """
    if not failures:
        return 0.0
    first = number(ranges.DELAY, retry.initial_delay, scope, address)
    longest = number(ranges.DELAY, retry.max_delay, scope, address)
    doublings = min(failures - 1, 64) if retry.backoff == "exponential" else 0
    return min(first * 2.0**doublings, longest)


def items_of(step: Step, scope: Scope, address: str) -> list[Any]:
    """Return the items of a foreach loop.

    Args:
        step: The loop.
        scope: The variables of the step.
        address: The address of the step.

    Raises:
        FaultyError: The value is not a list, or is too long.
    """
    items = value(step.foreach.strip(), scope, address)
    if isinstance(items, str):
        items = value_of(items)
    if not isinstance(items, list):
        kind = _KINDS.get(type(items), "a value")
        hint = " A step with `parse_json: true` returns one." if isinstance(items, str) else ""
        raise FaultyError((address,), f"foreach needs a list, but {step.foreach} is {kind}.{hint}")
    limit = number(ranges.ITERATIONS, step.max_iterations, scope, address)
    if len(items) > limit:
        error = f"{step.foreach} has {len(items)} items, but max_iterations is {limit}."
        raise FaultyError((address,), error)
    return items


def concurrency(step: Step, count: int, scope: Scope, address: str) -> float | None:
    """Return the maximum number of parallel iterations, or None to run them in sequence.

    Args:
        step: The loop.
        count: The number of iterations.
        scope: The variables of the step.
        address: The address of the step.

    Raises:
        FaultyError: ``parallel`` is neither a boolean nor an allowed number.
    """
    parallel = text(as_text(step.parallel), scope, address).strip().lower()
    if parallel in ("true", "false"):
        return count if parallel == "true" else None
    return number(ranges.PARALLEL, parallel, scope, address)


def combined_failure(failures: Mapping[int, FailedError], count: int) -> FailedError:
    """Combine the failures of a parallel loop into one.

    Args:
        failures: The failures of its iterations, by index.
        count: The number of iterations.
    """
    ordered = [failures[index] for index in sorted(failures)]
    errors = "; ".join(failure.error for failure in ordered)[:2000]
    addresses = tuple(address for failure in ordered for address in failure.addresses)
    return FailedError(addresses, f"{len(ordered)} of {count} iterations failed: {errors}")
