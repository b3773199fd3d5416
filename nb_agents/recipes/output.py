"""What a step gave, as a value, and which fields of it the rest of a recipe reads.

A value is text, or the JSON that is in it. Whoever wrote the text, it can be written as JSON again:
no infinite numbers, no halves of characters, no endless nesting.

A recipe asks its agent in prose and then reads ``{{review.score}}`` or goes through
``{{review.files}}``. An agent that is told these names gives them; one that must guess ends the
recipe. The values of the example make conditions true and end loops, so whoever repeats it sees the
whole recipe once. Read are templates, conditions, lists of loops, and values that go on under
another name: loop items, `collect`, `update_context`, results of sub-recipes. What a sub-recipe
reads of the context that it is given is not known before it is loaded.

Source: Amplifier's recipes parse output that is JSON as a whole; ``parse_json`` also finds JSON in
a fence, or the first object or array in the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_step import Stage, Step
from nb_agents.errors import RecipeError
from nb_agents.recipes.expression import Comparison, parse
from nb_agents.recipes.template import texts_in, variables
from nb_agents.unicode import well_formed

Path = tuple[str, ...]
"""A variable and its keys; `_ITEM` for each item of a list."""

_ITEM = "[]"
_UNKNOWN = "…"
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_BEYOND = {"<": -1, ">": 1}
"""Added to a number, it is on that side of it."""

_SPECIAL = ("condition", "foreach", "while_condition", "break_when", "update_context", "steps")
"""Keys of a step that are more than texts with templates."""

_PLAIN = tuple(key for key in Step.model_fields if key not in _SPECIAL)
_ALONE = re.compile(r"\{\{\s*(\w+(?:\.\w+)*)\s*\}\}")

JSON_RIDER = """

End with the result as JSON, as a whole or in one ```json block: it is parsed. Quote strings and
names with double quotes, and leave out comments and trailing commas."""
"""Put after the prompt of a step with ``parse_json``."""

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"[\[{]")
_MISSING = object()
_DEPTH = 100
_EFFORT = 20_000_000
"""Characters that may be read in vain, about, before the search for an object or array gives up."""


@dataclass(frozen=True, slots=True)
class Read:
    """A place where a recipe reads a value.

    Attributes:
        path: Where in the value; () for the value as a whole.
        asks: What a condition asks about it there, or None.
    """

    path: Path
    asks: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a recipe reads of one step's result.

    Attributes:
        reads: In the recipe's order.
    """

    reads: tuple[Read, ...] = ()

    @property
    def is_json(self) -> bool:
        """Whether the result is of no use as plain text."""
        return any(read.path for read in self.reads)

    @property
    def example(self) -> Any:
        """A small value with all that is read."""
        return _example(self.reads)

    @property
    def rider(self) -> str:
        """What to put after the step's prompt: the fields, and what they are compared with."""
        if not self.is_json:
            words = " or ".join(_alternatives(self.reads))
            return f"\n\nLater steps compare your whole result with {words}." if words else ""
        compared = "; ".join(_compared(self.reads))
        compared_text = f"\n\nThey compare {compared}." if compared else ""
        return (
            "\n\nLater steps read these fields of your result; the values here are examples:\n\n"
            f"```json\n{json.dumps(self.example, ensure_ascii=False)}\n```{compared_text}"
        )


def wanted(recipe: Recipe, given: Sequence[Read] = ()) -> Mapping[str, Wanted]:
    """Return what a recipe reads of its steps' results.

    Args:
        recipe: The recipe.
        given: What its caller reads of its outputs; empty for one that nobody calls.

    Returns:
        By the id of the step; what calls a recipe is among them. Steps of which nothing is read
        are left out.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, steps: ["
        >>> text += "{id: a, agent: x, prompt: p, output: out}, "
        >>> text += "{id: b, type: bash, command: 'echo {{out.title}}', foreach: '{{out.files}}'}]}"
        >>> wanted(Recipe.from_text(text, "hi.yaml"))["a"].example
        {'files': ['…'], 'title': '…'}
    """
    return _wanted(_Same(recipe), tuple(given))


def names_read(recipe: Recipe) -> set[str]:
    """Return the variables that a recipe reads anywhere, its steps' results among them."""
    limits = (recipe.recursion, recipe.rate_limiting, recipe.orchestrator)
    reads = [*_ReadsFinder().recipe(recipe), *_texts(limits, {})]
    return {read.path[0] for read in reads}


def names_read_by(step: Step) -> set[str]:
    """Return the variables that a step and everything below it read."""
    return {read.path[0] for read in _ReadsFinder().step(step)}


def unusable(step: Step, values: Mapping[str, Any]) -> set[str]:
    """Return the variables that lack a field, or the items, that a step reads of them.

    Args:
        step: The step, with everything below it.
        values: Values by name.
    """
    paths = [read.path for read in _ReadsFinder().step(step)]
    return {name for name, *keys in paths if name in values and not _has(values[name], keys)}


def _has(value: Any, keys: Sequence[str]) -> bool:
    if not keys:
        return True
    key, *rest = keys
    if key == _ITEM:
        return isinstance(value, list) and all(_has(each, rest) for each in value)
    return isinstance(value, Mapping) and key in value and _has(value[key], rest)


class _Same:
    """A recipe as a key. It is frozen; two that are equal may as well be two."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.recipe is other.recipe

    def __hash__(self) -> int:
        return id(self.recipe)


@lru_cache(maxsize=256)
def _wanted(key: _Same, given: tuple[Read, ...]) -> Mapping[str, Wanted]:
    recipe = key.recipe
    reads = [*_ReadsFinder().recipe(recipe), *given]
    found = {
        step.id: Wanted(tuple(_below(reads, names)))
        for stage in recipe.stages
        for step, names in _results(stage.steps)
    }
    return {step: each for step, each in found.items() if each.reads}


# Who gives what ------------------------------------------------------------------------------


def _results(
    steps: Sequence[Step], loop: Sequence[Path] = ()
) -> Iterator[tuple[Step, Sequence[Path]]]:
    """Yield each step with the paths of its result; a loop's result is its last step's."""
    for number, step in enumerate(steps, 1):
        names: list[Path] = [(step.output,)] if step.output else []
        names += [(step.collect, _ITEM)] if step.collect else []
        names += loop if number == len(steps) else ()
        if step.steps:
            yield from _results(step.steps, names)
        else:
            yield step, names


def _below(reads: Sequence[Read], names: Sequence[Path]) -> Iterator[Read]:
    for read in reads:
        for name in names:
            if read.path[: len(name)] == name:
                yield Read(read.path[len(name) :], read.asks)


# What is read --------------------------------------------------------------------------------


class _ReadsFinder:
    """Finds what a recipe reads."""

    def __init__(self) -> None:
        self._carried: dict[str, list[Path]] = {}
        """What `update_context` puts into a variable."""

    def recipe(self, recipe: Recipe) -> Iterator[Read]:
        reads = [read for stage in recipe.stages for read in self._stage(stage)]
        for read in reads:
            yield read
            yield from self._behind(read, set())

    def step(self, step: Step) -> Iterator[Read]:
        return self._step(step, {})

    def _behind(self, read: Read, seen: set[str]) -> Iterator[Read]:
        """Yield the reads that a read of a carried variable stands for."""
        name, *keys = read.path
        if name not in seen:
            seen.add(name)
            for path in self._carried.get(name, ()):
                further = Read((*path, *keys), read.asks)
                yield further
                yield from self._behind(further, seen)

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
            # Whoever repeats the example is through with the loop.
            ends = read.asks and replace(read.asks, is_wanted=not read.asks.is_wanted)
            yield replace(read, asks=ends)
        yield from _condition(step.break_when, items)
        for key in _PLAIN:
            yield from _texts(getattr(step, key), items)
        for each_step in step.steps:
            yield from self._step(each_step, items)
        yield from self._updates(step, items)

    def _updates(self, step: Step, items: Mapping[str, Path]) -> Iterator[Read]:
        for name, value in step.update_context.items():
            yield from _texts(value, items)
            if isinstance(value, str) and (alone := _ALONE.fullmatch(value)):
                self._carried.setdefault(name, []).append(_path(alone[1], items))


def _path(dotted: str, items: Mapping[str, Path]) -> Path:
    name, *keys = dotted.split(".")
    return (*items.get(name, (name,)), *keys)


def _condition(text: str, items: Mapping[str, Path]) -> Iterator[Read]:
    with suppress(RecipeError):  # told of when the condition is evaluated
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
    """Return a value that supports all these reads; a list where any read takes it for one."""
    keys = dict.fromkeys(read.path[0] for read in reads if read.path)
    inner = {key: _example(list(_below(reads, [(key,)]))) for key in keys}
    if _ITEM in inner:
        return [inner[_ITEM]]
    if inner:
        return inner
    answers = [_answer(asks) for asks in _asked(reads)]
    return next((answer for answer in answers if answer is not None), _UNKNOWN)


def _asked(reads: Sequence[Read]) -> list[Comparison]:
    return [read.asks for read in reads if read.asks]


def _answer(asks: Comparison) -> Any:
    """Return a value that makes a comparison come out as wanted; None when almost any does."""
    if not asks.sign:
        return asks.is_wanted
    sign = asks.sign if asks.is_wanted else _OPPOSITE.get(asks.sign, "!=")
    if sign == "!=":
        return None
    value = _as_json(asks.literal)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value + _BEYOND.get(sign, 0) if is_number else value


def _as_json(literal: str) -> Any:
    """Read a literal as the JSON that equals it: a number, a truth value, else text."""
    value = value_of(literal, parse_json=True)
    return value if isinstance(value, bool | int | float) else literal


def _compared(reads: Sequence[Read]) -> Iterator[str]:
    """Yield what each field is compared with, but for the value as a whole."""
    found: dict[str, dict[str, None]] = {}
    for read in reads:
        if read.path and read.asks and read.asks.literal:
            found.setdefault(".".join(read.path), {})[_shown(read.asks.literal)] = None
    for name, literals in found.items():
        yield f"`{name.replace('.[]', '[]')}` with {' or '.join(literals)}"


def _alternatives(reads: Sequence[Read]) -> list[str]:
    """Return what a whole value is compared with, the recipe's preference first."""
    asked = [a for a in _asked(reads) if a.sign != "contains" and a.literal]
    wanted_first = sorted(asked, key=lambda asks: _answer(asks) is None)
    if not asked or _answer(wanted_first[0]) is None:
        return []
    return list(dict.fromkeys(_shown(asks.literal) for asks in wanted_first))


def _shown(literal: str) -> str:
    return json.dumps(_as_json(literal), ensure_ascii=False)


@dataclass(frozen=True)
class Output:
    """What a step gave.

    Attributes:
        text: As its agent or its command wrote it.
        is_of_command: Whether a command did: where it is no JSON, it loses its last newline alone.
    """

    text: str = ""
    is_of_command: bool = False

    @cached_property
    def value(self) -> Any:
        """Its value, not to be changed."""
        return self._value(False)

    @cached_property
    def found(self) -> Any:
        """Its value when JSON is looked for within the text, too; not to be changed."""
        return self._value(True)

    def _value(self, parse_json: bool) -> Any:
        found = _json_in(self.text.strip(), parse_json)
        if found is not _MISSING:
            return found
        return self.text.removesuffix("\n") if self.is_of_command else self.text.strip()


def value_of(text: str, parse_json: bool = False) -> Any:
    """Return the value of a step's output.

    Args:
        text: What its agent or its command wrote.
        parse_json: Whether to look for JSON within it, too.

    Returns:
        The JSON's value, or the text without blank ends. A number that would be written in
        another way (``1.10``) stays text.

    Example:
        >>> value_of('{"ok": true}'), value_of(" done ")
        ({'ok': True}, 'done')
        >>> value_of("Here: [1, 2] it is.", parse_json=True)
        [1, 2]
    """
    text = text.strip()
    found = _json_in(text, parse_json)
    return text if found is _MISSING else found


def _json_in(text: str, is_sought: bool) -> Any:
    """Return the JSON that a text is, or that is sought within it, or `_MISSING`."""
    whole = _loads(text)
    if whole is not _MISSING or not is_sought:
        return whole
    fenced = map(_loads, reversed(_FENCE.findall(text)))
    found = next((each for each in fenced if each is not _MISSING), _MISSING)
    return _first_in(text) if found is _MISSING else found


def final_text(outputs: Mapping[str, Any]) -> str:
    """Return a recipe's result as text: its ``final_output``, else its last output.

    Args:
        outputs: By name, in the order in which they were set.

    Returns:
        Text; JSON for what is none.
    """
    if not outputs:
        return ""
    value = outputs.get("final_output", list(outputs.values())[-1])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def _loads(text: str) -> Any:
    text = text.strip()
    try:
        value = _plain(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return _MISSING
    if isinstance(value, int | float) and json.dumps(value) != text:
        return _MISSING
    return value


def _first_in(text: str) -> Any:
    """Return the first non-empty object or array in a text, or `_MISSING`."""
    at, effort = 0, _EFFORT
    while effort > 0 and (opening := _OPENING.search(text, at)):
        start = opening.start()
        try:
            value, at = _DECODER.raw_decode(text, start)
            if value:
                return _plain(value)
        except json.JSONDecodeError as exc:
            at = start + 1
            read = (len(text) if exc.msg.startswith("Unterminated") else exc.pos) - start
            effort -= read + exc.pos // 16  # the error has counted the lines up to its place
        except (ValueError, RecursionError):
            at = max(at, start + 1)
            effort -= _EFFORT // 1000
    return _MISSING


def _plain(value: Any, room: int = _DEPTH) -> Any:
    """Return a value with well-formed texts; refuse one that is nested too deeply."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict | list) and not room:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {_plain(key): _plain(each, room - 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, room - 1) for each in value]
    return value
