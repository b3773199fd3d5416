"""The units of a recipe: where they are, which are known before, what they see, what loops go over.

What can't be filled in with the variables that a unit sees is the failure of that unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nb_agents import events as ev
from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_step import Step
from nb_agents.config.recipe_values import Range, StepRetry
from nb_agents.errors import RecipeError
from nb_agents.recipes import expression
from nb_agents.recipes.diagram import does
from nb_agents.recipes.expression import as_text
from nb_agents.recipes.output import value_of
from nb_agents.recipes.template import reads, render, render_value

MAX_PLANNED = 200
"""Units of one recipe that are announced before they begin: more than a panel shows."""

_KINDS: Mapping[type, str] = {dict: "a mapping", str: "text", type(None): "empty"}


def join(base: str, name: str) -> str:
    """Return the address of a unit within another; "" is the recipe itself.

    Example:
        >>> join("checks", "review"), join("", "a/b")
        ('checks/review', 'a∕b')
    """
    name = name.replace("/", "∕").replace("[", "❲")
    return f"{base}/{name}" if base else name


def is_within(address: str, holder: str) -> bool:
    """Return whether a unit is another one or lies inside it, at any depth.

    Example:
        >>> is_within("sub/a[2]/b", "sub"), is_within("sub[0]", "sub"), is_within("sub2", "sub")
        (True, True, False)
    """
    return address == holder or address.startswith((f"{holder}/", f"{holder}["))


def last_part(address: str) -> str:
    """Return the part of an address that names the step.

    Example:
        >>> last_part("checks/review[2]")
        'review'
    """
    return address.rpartition("/")[2].partition("[")[0]


def recipe_of(recipes: Iterable[str], address: str) -> str:
    """Return the address of the recipe that a unit's step stands in: "" for the run's own.

    Args:
        recipes: The addresses of the steps that call recipes.
        address: The unit's; the recipe that it calls itself is not the one.
    """
    holders = [each for each in recipes if each != address and is_within(address, each)]
    return max(holders, key=len, default="")


def planned(recipe: Recipe, base: str = "") -> tuple[ev.PlannedUnit, ...]:
    """List a recipe's stages and steps, in order, as they are known before they begin.

    Args:
        recipe: The recipe.
        base: Address of the step that calls it, or "".

    Returns:
        The first `MAX_PLANNED`. What is inside of a loop or of a recipe that a step calls is not
        known yet.
    """
    return tuple(_units(recipe, base))[:MAX_PLANNED]


def _units(recipe: Recipe, base: str) -> Iterator[ev.PlannedUnit]:
    for stage in recipe.stages:
        if not stage.name:  # a recipe without stages
            yield from _steps(stage.steps, base)
            continue
        address = join(base, stage.name)
        yield ev.PlannedUnit(address, "stage", "a person must approve its end" * bool(stage.gate))
        yield from _steps(stage.steps, address)


def _steps(steps: Sequence[Step], base: str) -> Iterator[ev.PlannedUnit]:
    for step in steps:
        yield ev.PlannedUnit(join(base, step.id), _kind(step), does(step))


def _kind(step: Step) -> ev.StepKind:
    if step.foreach:
        return "foreach"
    return "while" if step.while_condition else step.kind


@dataclass
class Scope:
    """What the steps of one list see.

    Attributes:
        values: The context variables.
        set_by_steps: Those that steps have set, in the order in which they did so last.
        hidden: The names that loops have taken for a while.
        stage: The name of the stage, or "".
        last: What the last step gave.
        trusted: The names of the values that the recipe's author or who started it gave, and of
            those made of nothing else.
    """

    values: dict[str, Any]
    set_by_steps: dict[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    stage: str = ""
    last: Any = None
    trusted: frozenset[str] = frozenset()

    def trusts(self, given: Any) -> bool:
        """Return whether a value of the recipe is filled in with trusted values alone."""
        return reads(given) & self.values.keys() <= self.trusted

    def set(self, name: str | None, value: Any, *, is_trusted: bool = False) -> None:
        """Set a variable, as a step's output, if the step names one."""
        if name:
            self.values[name] = value
            self.trusted = self.trusted - {name} | ({name} if is_trusted else set())
            self.set_by_steps.pop(name, None)
            self.set_by_steps[name] = value

    def copy(self, is_trusted: bool = False, /, **more: Any) -> Scope:
        """Return a scope with the same variables, whose changes stay in it."""
        values, hidden = {**self.values, **more}, self.hidden | more.keys()
        trusted = self.trusted | more.keys() if is_trusted else self.trusted - more.keys()
        return Scope(values, {}, hidden, self.stage, trusted=trusted)

    @contextmanager
    def bound(self, is_trusted: bool = False, /, **values: Any) -> Iterator[None]:
        """Set variables within a block; a nested loop gives the outer one its own back."""
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
    """Units of a recipe failed.

    Attributes:
        addresses: Theirs; a unit that holds them fails with them unless it says otherwise.
        error: Why.
    """

    def __init__(self, addresses: tuple[str, ...], error: str) -> None:
        super().__init__(error)
        self.addresses = addresses
        self.error = error


class FaultyError(FailedError):
    """Units failed because the recipe says what can't be.

    Attributes:
        key: The key of the step that says it, or "".
    """

    def __init__(self, addresses: tuple[str, ...], error: str, key: str = "") -> None:
        super().__init__(addresses, error)
        self.key = key


def holds(condition: str, scope: Scope, address: str, what: str) -> bool:
    """Evaluate a condition of a unit.

    Args:
        condition: An expression.
        scope: What the step sees.
        address: The unit's.
        what: The condition's key, for the error.

    Raises:
        FaultyError: It can't be computed.
    """
    try:
        return expression.evaluate(expression.parse(condition), scope.values)
    except RecipeError as exc:
        raise FaultyError((address,), f"{what}: {exc}") from exc


def text(template: str, scope: Scope, address: str) -> str:
    """Fill in a text; see `value`."""
    try:
        return render(template, scope.values)
    except RecipeError as exc:
        raise FaultyError((address,), str(exc)) from exc


def value(given: Any, scope: Scope, address: str) -> Any:
    """Fill in a value of the recipe; one ``{{name}}`` alone keeps its type.

    Args:
        given: As the recipe has it.
        scope: What the step sees.
        address: The unit's.

    Raises:
        FaultyError: It can't be filled in.
    """
    try:
        return render_value(given, scope.values)
    except RecipeError as exc:
        raise FaultyError((address,), str(exc)) from exc


def number(range_: Range, given: object, scope: Scope, address: str) -> float:
    """Return a number that the recipe may have as a template.

    Args:
        range_: The numbers that the key takes.
        given: As the recipe has it: one that is no template was checked when it was read.
        scope: What the step sees.
        address: The unit's.

    Raises:
        FaultyError: The template gives no such number.
    """
    if not isinstance(given, str):
        assert isinstance(given, int | float)
        return given
    filled_in = text(given, scope, address)
    try:
        return range_.number(filled_in)
    except ValueError as exc:
        raise FaultyError((address,), f"{exc}.") from exc


def delay_s(retry: StepRetry, failures: int, scope: Scope, address: str) -> float:
    """Return the seconds before the next attempt: none before the first.

    Args:
        retry: How often a step is tried.
        failures: How many attempts have failed.
        scope: What the step sees.
        address: The step's.

    Raises:
        FaultyError: A template gives no number of seconds.
    """
    if not failures:
        return 0.0
    first = number(ranges.DELAY, retry.initial_delay, scope, address)
    longest = number(ranges.DELAY, retry.max_delay, scope, address)
    doublings = min(failures - 1, 64) if retry.backoff == "exponential" else 0
    return min(first * 2.0**doublings, longest)


def items_of(step: Step, scope: Scope, address: str) -> list[Any]:
    """Return the items of a foreach.

    Args:
        step: The loop.
        scope: What it sees.
        address: Where it is.

    Raises:
        FaultyError: It has no list, or one that is too long.
    """
    items = value(step.foreach.strip(), scope, address)
    if isinstance(items, str):
        items = value_of(items)
    if not isinstance(items, list):
        kind = _KINDS.get(type(items), "a value")
        hint = " A step with `parse_json: true` gives one." if isinstance(items, str) else ""
        raise FaultyError((address,), f"foreach needs a list, and {step.foreach} is {kind}.{hint}")
    most = number(ranges.ITERATIONS, step.max_iterations, scope, address)
    if len(items) > most:
        said = f"{step.foreach} has {len(items)} items, and max_iterations is {most}."
        raise FaultyError((address,), said)
    return items


def concurrency(step: Step, count: int, scope: Scope, address: str) -> float | None:
    """Return how many iterations may run at the same time; None runs them in sequence.

    Args:
        step: The loop.
        count: How many there are.
        scope: What it sees.
        address: Where it is.

    Raises:
        FaultyError: Its ``parallel`` is no such number.
    """
    given = text(as_text(step.parallel), scope, address).strip().lower()
    if given in ("true", "false"):
        return count if given == "true" else None
    return number(ranges.PARALLEL, given, scope, address)


def all_of(failures: Mapping[int, FailedError], count: int) -> FailedError:
    """Return the failure of a parallel loop.

    Args:
        failures: Those of its iterations, by index.
        count: How many iterations there are.
    """
    each = [failures[index] for index in sorted(failures)]
    said = "; ".join(failure.error for failure in each)[:2000]
    addresses = tuple(address for failure in each for address in failure.addresses)
    return FailedError(addresses, f"{len(each)} of {count} iterations failed: {said}")
