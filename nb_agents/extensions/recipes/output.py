"""Parses the results of steps, and finds which of their fields a recipe reads later.

The value of a step's result is text, or the JSON in that text. Every value can be written as JSON
again, because it has no infinite numbers, no lone surrogates and limited nesting.

A recipe asks an agent in prose, and then reads ``{{review.score}}`` or loops over
``{{review.files}}``. An agent that has to guess these names often breaks the recipe, so the prompt
lists them with an example. The example's values make conditions true and end loops, so a model that
repeats the example runs every part of the recipe. Reads occur in templates, conditions, loop lists,
and values that are passed on under another name: loop items, `collect`, `update_context` and
results of sub-recipes. How a sub-recipe uses its context is unknown until it is loaded.

Source: Amplifier's recipes parse output that is JSON as a whole; ``parse_json`` also finds JSON in
a fence, or the first object or array in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from nb_agents.config.expression import Comparison, parse
from nb_agents.config.template import texts_in, variables
from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_step import Stage, Step
from nb_agents.view.step_values import MISSING, json_in, value_of

Path = tuple[str, ...]
"""A variable name and its keys. `_ITEM` stands for each item of a list."""

_ITEM = "[]"
_UNKNOWN = "…"
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_OFFSETS = {"<": -1, ">": 1}
"""Offsets that turn a literal into a number that satisfies a strict comparison."""

_SPECIAL_KEYS = ("condition", "foreach", "while_condition", "break_when", "update_context", "steps")
"""Keys of a step that need more than a scan for templates."""

_TEXT_KEYS = tuple(key for key in Step.model_fields if key not in _SPECIAL_KEYS)
_ONLY_VARIABLE = re.compile(r"\{\{\s*(\w+(?:\.\w+)*)\s*\}\}")

JSON_PROMPT_SUFFIX = """

End with the result as JSON: either your whole message or one ```json block. It is parsed. Quote
strings and names with double quotes, and leave out comments and trailing commas."""
"""Appended to the prompt of a step with ``parse_json``."""


@dataclass(frozen=True, slots=True)
class Read:
    """A use of a value in a recipe.

    Attributes:
        path: The path inside the value, or () for the whole value.
        asks: The comparison with it in a condition, or None.
    """

    path: Path
    asks: Comparison | None = None


@dataclass(frozen=True, slots=True)
class ResultUse:
    """How a recipe uses the result of one step.

    Attributes:
        reads: The uses, in the order of the recipe.
    """

    reads: tuple[Read, ...] = ()

    @property
    def is_json(self) -> bool:
        """Whether the recipe reads fields or items of the result, so plain text is not enough."""
        return any(read.path for read in self.reads)

    @property
    def example(self) -> Any:
        """A small example value with everything that the recipe reads."""
        return _example(self.reads)

    @property
    def rider(self) -> str:
        """Text for the end of the step's prompt: the expected fields and comparisons."""
        if not self.is_json:
            literals = " or ".join(_alternatives(self.reads))
            return f"\n\nLater steps compare your whole result with {literals}." if literals else ""
        comparisons = "; ".join(_described_comparisons(self.reads))
        compared_text = f"\n\nThey compare {comparisons}." if comparisons else ""
        return (
            "\n\nLater steps read these fields of your result; the values here are examples:\n\n"
            f"```json\n{json.dumps(self.example, ensure_ascii=False)}\n```{compared_text}"
        )


def usage_of_results(
    recipe: Recipe, reads_by_caller: Sequence[Read] = ()
) -> Mapping[str, ResultUse]:
    """Return how a recipe uses the results of its steps.

    Args:
        reads_by_caller: What the calling recipe reads from the recipe's outputs.

    Returns:
        The uses by step id. Steps whose results are not read are left out.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, steps: ["
        >>> text += "{id: a, agent: x, prompt: p, output: out}, "
        >>> text += "{id: b, type: bash, command: 'echo {{out.title}}', foreach: '{{out.files}}'}]}"
        >>> usage_of_results(Recipe.from_text(text, "hi.yaml"))["a"].example
        {'files': ['…'], 'title': '…'}
    """
    return _requested_uses(_RecipeKey(recipe), tuple(reads_by_caller))


def names_read(recipe: Recipe) -> set[str]:
    """Return the names of all variables that a recipe reads, including results of its steps."""
    limits = (recipe.recursion, recipe.rate_limiting, recipe.orchestrator)
    reads = [*_ReadsFinder().recipe(recipe), *_texts(limits, {})]
    return {read.path[0] for read in reads}


def names_read_by(step: Step) -> set[str]:
    """Return the names of the variables that a step and its nested steps read."""
    return {read.path[0] for read in _ReadsFinder().step(step)}


def missing_fields(step: Step, values: Mapping[str, Any]) -> set[str]:
    """Return the variables that lack a field or an item that a step reads.

    Args:
        step: The step. Its nested steps count too.
        values: Values by name. Variables that are not in it are ignored.
    """
    paths = [read.path for read in _ReadsFinder().step(step)]
    return {name for name, *keys in paths if name in values and not _has_path(values[name], keys)}


def _has_path(value: Any, keys: Sequence[str]) -> bool:
    if not keys:
        return True
    key, *rest = keys
    if key == _ITEM:
        return isinstance(value, list) and all(_has_path(each, rest) for each in value)
    return isinstance(value, Mapping) and key in value and _has_path(value[key], rest)


class _RecipeKey:
    """A cache key for a recipe, compared by identity."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RecipeKey) and self.recipe is other.recipe

    def __hash__(self) -> int:
        return id(self.recipe)


@lru_cache(maxsize=256)
def _requested_uses(key: _RecipeKey, reads_by_caller: tuple[Read, ...]) -> Mapping[str, ResultUse]:
    recipe = key.recipe
    reads = [*_ReadsFinder().recipe(recipe), *reads_by_caller]
    usage = {
        step.id: ResultUse(tuple(_nested_reads(reads, names)))
        for stage in recipe.stages
        for step, names in _results(stage.steps)
    }
    return {step: each for step, each in usage.items() if each.reads}

    # Results of steps ----------------------------------------------------------------------------


def _results(
    steps: Sequence[Step], loop: Sequence[Path] = ()
) -> Iterator[tuple[Step, Sequence[Path]]]:
    """Yield each step with the paths of its result.

    The result of a loop is that of its last step.
    """
    for number, step in enumerate(steps, 1):
        names: list[Path] = [(step.output,)] if step.output else []
        names += [(step.collect, _ITEM)] if step.collect else []
        names += loop if number == len(steps) else ()
        if step.steps:
            yield from _results(step.steps, names)
        else:
            yield step, names


def _nested_reads(reads: Sequence[Read], names: Sequence[Path]) -> Iterator[Read]:
    for read in reads:
        for name in names:
            if read.path[: len(name)] == name:
                yield Read(read.path[len(name) :], read.asks)


# Reads ---------------------------------------------------------------------------------------


class _ReadsFinder:
    """Finds the values that a recipe reads."""

    def __init__(self) -> None:
        self._aliases: dict[str, list[Path]] = {}
        """The variables that `update_context` copies, by the name of the copy."""

    def recipe(self, recipe: Recipe) -> Iterator[Read]:
        reads = [read for stage in recipe.stages for read in self._stage(stage)]
        for read in reads:
            yield read
            yield from self._aliased(read, set())

    def step(self, step: Step) -> Iterator[Read]:
        return self._step(step, {})

    def _aliased(self, read: Read, visited: set[str]) -> Iterator[Read]:
        """Translate the reads of a copied variable to reads of the original one."""
        name, *keys = read.path
        if name not in visited:
            visited.add(name)
            for path in self._aliases.get(name, ()):
                further = Read((*path, *keys), read.asks)
                yield further
                yield from self._aliased(further, visited)

    def _stage(self, stage: Stage) -> Iterator[Read]:
        yield from _condition(stage.condition, {})
        for step in stage.steps:
            yield from self._step(step, {})
        for text in (stage.approval.prompt, stage.approval_message):
            yield from _texts(text, {})
        for condition in stage.auto_approve_if:
            yield from _condition(condition, {})

    def _step(self, step: Step, items: Mapping[str, Path]) -> Iterator[Read]:
        yield from _condition(step.condition, items)
        for each in _texts(step.foreach, items):
            item = (*each.path, _ITEM)
            yield Read(item)
            items = {**items, step.as_: item}
        for read in _condition(step.while_condition, items):
            # Inverted, because a result like the example should end the loop.
            ends = read.asks and replace(read.asks, is_wanted=not read.asks.is_wanted)
            yield replace(read, asks=ends)
        yield from _condition(step.break_when, items)
        for key in _TEXT_KEYS:
            yield from _texts(getattr(step, key), items)
        for each_step in step.steps:
            yield from self._step(each_step, items)
        yield from self._updates(step, items)

    def _updates(self, step: Step, items: Mapping[str, Path]) -> Iterator[Read]:
        for name, value in step.update_context.items():
            yield from _texts(value, items)
            if isinstance(value, str) and (alone := _ONLY_VARIABLE.fullmatch(value)):
                self._aliases.setdefault(name, []).append(_path(alone[1], items))


def _path(dotted: str, items: Mapping[str, Path]) -> Path:
    name, *keys = dotted.split(".")
    return (*items.get(name, (name,)), *keys)


def _condition(text: str, items: Mapping[str, Path]) -> Iterator[Read]:
    with suppress(RecipeError):  # reported when the condition is evaluated
        condition = parse(text)
        for asks in condition.comparisons:
            yield Read(_path(asks.path, items), asks)
        for dotted in condition.variables:
            yield Read(_path(dotted, items))


def _texts(value: object, items: Mapping[str, Path]) -> Iterator[Read]:
    for text in texts_in(value):
        if "{{" in text:
            with suppress(RecipeError):
                yield from [Read(_path(dotted, items)) for dotted in variables(text)]


# The example ---------------------------------------------------------------------------------


def _example(reads: Sequence[Read]) -> Any:
    """Return an example value with all fields and items that are read."""
    keys = dict.fromkeys(read.path[0] for read in reads if read.path)
    inner = {key: _example(list(_nested_reads(reads, [(key,)]))) for key in keys}
    if _ITEM in inner:
        return [inner[_ITEM]]
    if inner:
        return inner
    values = [_satisfying_value(asks) for asks in _comparisons(reads)]
    return next((value for value in values if value is not None), _UNKNOWN)


def _comparisons(reads: Sequence[Read]) -> list[Comparison]:
    return [read.asks for read in reads if read.asks]


def _satisfying_value(asks: Comparison) -> Any:
    """Return a value for which a comparison has the wanted result, or None if most values do."""
    if not asks.sign:
        return asks.is_wanted
    sign = asks.sign if asks.is_wanted else _OPPOSITE.get(asks.sign, "!=")
    if sign == "!=":
        return None
    value = _as_json(asks.literal)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value + _OFFSETS.get(sign, 0) if is_number else value


def _as_json(literal: str) -> Any:
    """Return the number or boolean that a literal represents, or the literal itself."""
    value = value_of(literal, parse_json=True)
    return value if isinstance(value, bool | int | float) else literal


def _described_comparisons(reads: Sequence[Read]) -> Iterator[str]:
    """Yield a sentence part for each field that the recipe compares with literals."""
    literals_by_field: dict[str, dict[str, None]] = {}
    for read in reads:
        if read.path and read.asks and read.asks.literal:
            literals_by_field.setdefault(".".join(read.path), {})[
                _literal_as_json(read.asks.literal)
            ] = None
    for name, literals in literals_by_field.items():
        yield f"`{name.replace('.[]', '[]')}` with {' or '.join(literals)}"


def _alternatives(reads: Sequence[Read]) -> list[str]:
    """Return the literals that conditions compare the whole value to, satisfying ones first."""
    comparisons = [a for a in _comparisons(reads) if a.sign != "contains" and a.literal]
    wanted_first = sorted(comparisons, key=lambda asks: _satisfying_value(asks) is None)
    if not comparisons or _satisfying_value(wanted_first[0]) is None:
        return []
    return list(dict.fromkeys(_literal_as_json(asks.literal) for asks in wanted_first))


def _literal_as_json(literal: str) -> str:
    return json.dumps(_as_json(literal), ensure_ascii=False)


@dataclass(frozen=True)
class Output:
    """The result of a step.

    Attributes:
        text: The text that its agent or command wrote.
        is_of_command: Whether it is a command's output, which keeps its whitespace except for one
            final newline.
    """

    text: str = ""
    is_of_command: bool = False

    @cached_property
    def value(self) -> Any:
        """The value. Do not modify it."""
        return self._value(False)

    @cached_property
    def found(self) -> Any:
        """The value. JSON that is inside other text is parsed as well. Do not modify it."""
        return self._value(True)

    def _value(self, parse_json: bool) -> Any:
        parsed = json_in(self.text.strip(), parse_json)
        if parsed is not MISSING:
            return parsed
        return self.text.removesuffix("\n") if self.is_of_command else self.text.strip()


def final_text(outputs: Mapping[str, Any]) -> str:
    """Return a recipe's result as text: its ``final_output`` or, if missing, its last output.

    Args:
        outputs: Values by name, in the order in which they were set. Values that are not text
            become JSON.
    """
    if not outputs:
        return ""
    value = outputs.get("final_output", list(outputs.values())[-1])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
