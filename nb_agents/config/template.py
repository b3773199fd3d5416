r"""Templates of recipes: ``{{name}}``, ``{{name.key}}``, ``{{#if name}}…{{else}}…{{/if}}``.

An inserted value is never parsed, so a ``{{…}}`` that a model wrote is not changed. Braces around
other text are a variable if one has that name, such as a table's column ``{{Company name}}``.
Otherwise they stay unchanged, because recipes contain JSON, Jinja and GitHub expressions. A ``{{
name }}`` that nothing has set also stays unchanged: Amplifier only accepts names without spaces,
and prompts quote other templates. ``\{{name}}`` gives literal braces.

In ``{{#if name}}``, an unset name is empty, because a skipped step may be what sets it.

``{{name | raw}}`` only matters in a bash command (see `nb_agents.extensions.recipes.shell_values`).

Source: https://github.com/microsoft/amplifier-bundle-recipes. Extensions of its ``{{name}}``:
``{{ name }}``, names that are not identifiers, ``{{#if}}`` with any condition, ``{{else}}``,
``\{{`` and ``| raw``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nb_agents.config import expression
from nb_agents.config.expression import Expression, as_text, lookup
from nb_agents.config.spec import Spec
from nb_agents.errors import RecipeError

FENCED = "_fenced"
"""Key of a start value that lists the untrusted ones, such as those of a table's row."""

_TAG = re.compile(
    r"""(?P<escape>\\?)(?:
      \{\{\#if\s+(?P<condition>.+?)\s*\}\}
    | (?P<else>\{\{else\}\})
    | (?P<end>\{\{/if\}\})
    | (?:\{\{|(?<!\$)\{\{\s+)               # `${{ x }}` is GitHub's syntax
      (?: (?P<path>\w+(?:\.\w+)*) (?:\s*\|\s*(?P<raw>raw))?
        | (?P<other>[^{}\s\#/][^{}\n]*?)
      )\s*\}\}
    )""",
    re.VERBOSE,
)
_NAME_PATTERN = re.compile(r"[^\W\d][\w .-]*")


@dataclass(frozen=True, slots=True)
class Insertion:
    """A value that is inserted into a template.

    Attributes:
        path: The variable.
        text: The value.
        line: The line of the template, starting at 1.
        is_raw: Whether the template has ``| raw``.
    """

    path: str
    text: str
    line: int
    is_raw: bool


@dataclass(frozen=True, slots=True)
class _Variable:
    path: str
    line: int
    is_raw: bool
    fallback: str  # replaces an unset variable; "" makes that an error


@dataclass(frozen=True, slots=True)
class _If:
    condition: Expression
    then: tuple[_Node, ...]
    otherwise: tuple[_Node, ...]


_Node = str | _Variable | _If


def render(text: str, context: Mapping[str, Any]) -> str:
    """Fill in a template.

    Args:
        text: The template.
        context: Values by name.

    Raises:
        RecipeError: A variable is not defined, or a block is not closed.
    """
    pieces = fill(text, context)
    return "".join(p.text if isinstance(p, Insertion) else p for p in pieces)


def render_value(value: Any, context: Mapping[str, Any]) -> Any:
    """Fill in all templates of a YAML value.

    Args:
        value: A string, a list or mapping of strings, or anything else.
        context: Values by name.

    Returns:
        The value. A string that is only ``{{name}}`` becomes that variable's value and keeps its
            type.

    Raises:
        RecipeError: A variable is not defined, or a block is not closed.
    """
    if isinstance(value, Mapping):
        return {key: render_value(each, context) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [render_value(each, context) for each in value]
    if not isinstance(value, str):
        return value
    match _parse(value):
        case (_Variable(path=path),):
            return lookup(context, path)
    return render(value, context)


def variables(text: str) -> tuple[str, ...]:
    """Return the variables of a template.

    Args:
        text: The template.

    Returns:
        Their paths (``a.b``), in order and without duplicates, including those in conditions and in
        both branches. Any text in braces is included, because it may be a variable's name.

    Raises:
        RecipeError: A block is not closed, or its condition is invalid.
    """
    return tuple(dict.fromkeys(_paths(_parse(text))))


def reads(value: Any) -> set[str]:
    """Return the names of the variables that the templates in a YAML value may read.

    Args:
        value: A string, a list or mapping of strings, or anything else.

    Raises:
        RecipeError: A block is not closed, or its condition is invalid.
    """
    paths = [path for text in texts_in(value) for path in variables(text)]
    return {*paths, *(path.partition(".")[0] for path in paths)}  # a name can contain dots


def texts_in(value: object) -> Iterator[str]:
    """Yield all strings in a recipe value, at any depth."""
    if isinstance(value, str):
        yield value
    if isinstance(value, Spec):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        value = tuple(value.values())
    for each in value if isinstance(value, list | tuple) else ():
        yield from texts_in(each)


def fill(text: str, context: Mapping[str, Any]) -> list[str | Insertion]:
    """Fill in a template, keeping its own text separate from the values.

    Args:
        text: The template.
        context: Values by name.

    Returns:
        The parts in order. Each block is replaced with the branch that its condition selects.

    Raises:
        RecipeError: A variable is not defined, or a block is not closed.
    """
    return list(_fill(_parse(text), context))


def shapes(text: str, is_set: Callable[[str], bool]) -> list[list[str | Insertion]]:
    """Split a template before its values are known.

    Args:
        text: The template.
        is_set: Returns whether something sets a variable. ``{{ name }}`` of others is plain text.

    Returns:
        The parts with empty values: a list with the first branch of each block and, if there are
        blocks, a list with the second branches.

    Raises:
        RecipeError: A block is not closed, or its condition is invalid.
    """
    nodes = _parse(text)
    branches = (True, False) if any(isinstance(node, _If) for node in nodes) else (True,)
    return [list(_shape(nodes, is_set, first)) for first in branches]


def looks_like_a_name(name: str) -> bool:
    """Return whether text in braces looks like a variable's name rather than other syntax.

    Example:
        >>> looks_like_a_name("Company name"), looks_like_a_name("x | upper")
        (True, False)
    """
    return _NAME_PATTERN.fullmatch(name) is not None


def _shape(
    nodes: tuple[_Node, ...], is_set: Callable[[str], bool], first: bool
) -> Iterator[str | Insertion]:
    for node in nodes:
        if isinstance(node, _If):
            yield from _shape(node.then if first else node.otherwise, is_set, first)
        elif isinstance(node, str):
            yield node
        elif node.fallback and not is_set(node.path):
            yield node.fallback
        else:
            yield Insertion(node.path, "", node.line, node.is_raw)


def _fill(nodes: tuple[_Node, ...], context: Mapping[str, Any]) -> Iterator[str | Insertion]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, _Variable):
            yield _insertion(node, context)
        else:
            unset = (n for n in node.condition.variables if "." not in n and n not in context)
            holds = expression.evaluate(node.condition, {**context, **dict.fromkeys(unset)})
            yield from _fill(node.then if holds else node.otherwise, context)


def _insertion(node: _Variable, context: Mapping[str, Any]) -> str | Insertion:
    try:
        value = as_text(lookup(context, node.path))
    except RecipeError:
        if node.fallback:
            return node.fallback
        raise
    return Insertion(node.path, value, node.line, node.is_raw)


def _paths(nodes: tuple[_Node, ...]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, _Variable):
            yield node.path
        elif isinstance(node, _If):
            yield from node.condition.variables
            yield from _paths(node.then)
            yield from _paths(node.otherwise)


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[_Node, ...]:
    return _Parser(text).parse()


class _Block:
    """An ``{{#if}}`` that is being parsed, or the whole template."""

    def __init__(self, condition: Expression | None, line: int) -> None:
        self.condition = condition
        self.line = line
        self.branches: list[list[_Node]] = [[]]

    def close(self) -> _If:
        assert self.condition is not None
        then, *otherwise = map(tuple, self.branches)
        return _If(self.condition, then, otherwise[0] if otherwise else ())


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._open = [_Block(None, 1)]

    def parse(self) -> tuple[_Node, ...]:
        at = 0
        for match in _TAG.finditer(self._text):
            self._add(self._text[at : match.start()])
            self._add_tag(match, self._text.count("\n", 0, match.start()) + 1)
            at = match.end()
        self._add(self._text[at:])
        if len(self._open) > 1:
            raise RecipeError(f"Line {self._open[-1].line}: {{{{#if}}}} has no {{{{/if}}}}.")
        return tuple(self._open[0].branches[0])

    def _add(self, node: _Node) -> None:
        if node != "":
            self._open[-1].branches[-1].append(node)

    def _add_tag(self, tag: re.Match[str], line: int) -> None:
        if tag["escape"]:
            is_variable = not tag["other"] or looks_like_a_name(tag["other"])
            self._add(tag[0][1:] if is_variable else tag[0])
        elif tag["other"]:
            self._add(_Variable(tag["other"], line, False, tag[0]))
        elif tag["path"]:
            has_blanks = tag[0] != f"{{{{{tag['path']}}}}}"
            fallback = tag[0] if has_blanks and not tag["raw"] else ""
            self._add(_Variable(tag["path"], line, bool(tag["raw"]), fallback))
        elif tag["condition"]:
            self._open.append(_Block(expression.parse(tag["condition"]), line))
        else:
            self._else_or_end(tag, line)

    def _else_or_end(self, tag: re.Match[str], line: int) -> None:
        block = self._open[-1]
        if block.condition is None:
            raise RecipeError(f"Line {line}: {tag[0]} without {{{{#if …}}}} before it.")
        if tag["end"]:
            self._open.pop()
            self._add(block.close())
        elif len(block.branches) > 1:
            raise RecipeError(f"Line {line}: a second {{{{else}}}} in one {{{{#if}}}}.")
        else:
            block.branches.append([])
