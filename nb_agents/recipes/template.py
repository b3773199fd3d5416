r"""Templates of recipes: ``{{name}}``, ``{{name.key}}``, ``{{#if name}}…{{else}}…{{/if}}``.

A value is inserted as text and never looked at again, so that a ``{{…}}`` which a model wrote
stays what it is. Braces around anything else are a variable if it is the name of one, such as a
table's column ``{{Company name}}``; if not, they stay as they are: recipes hold JSON, Jinja and
GitHub expressions. So does ``{{ name }}`` when nothing has set it: Amplifier reads only what has no
blanks, and prompts quote the templates of others. ``\{{name}}`` gives the braces themselves.

In ``{{#if name}}`` a name that nothing has set is empty, as one that a skipped step would set.

``{{name | raw}}`` matters in a bash command only (see `nb_agents.recipes.shell_values`).

Source: https://github.com/microsoft/amplifier-bundle-recipes, whose ``{{name}}`` this extends by
``{{ name }}``, names that are no identifiers, ``{{#if}}`` with any condition, ``{{else}}``,
``\{{`` and ``| raw``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nb_agents.config.spec import Spec
from nb_agents.errors import RecipeError
from nb_agents.recipes import expression
from nb_agents.recipes.expression import Expression, as_text, lookup

_TAG = re.compile(
    r"""(?P<escape>\\?)(?:
      \{\{\#if\s+(?P<condition>.+?)\s*\}\}
    | (?P<else>\{\{else\}\})
    | (?P<end>\{\{/if\}\})
    | (?:\{\{|(?<!\$)\{\{\s+)               # `${{ x }}` is GitHub's
      (?: (?P<path>\w+(?:\.\w+)*) (?:\s*\|\s*(?P<raw>raw))?
        | (?P<other>[^{}\s\#/][^{}\n]*?)
      )\s*\}\}
    )""",
    re.VERBOSE,
)
_LIKE_A_NAME = re.compile(r"[^\W\d][\w .-]*")


@dataclass(frozen=True, slots=True)
class Insertion:
    """A value at its place in a text.

    Attributes:
        path: The variable.
        text: Its value.
        line: Line of the template, from 1.
        is_raw: Whether the author asked for ``| raw``.
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
    instead: str  # of failing, when it is not set


@dataclass(frozen=True, slots=True)
class _If:
    condition: Expression
    then: tuple[_Node, ...]
    otherwise: tuple[_Node, ...]


_Node = str | _Variable | _If


def render(text: str, context: Mapping[str, Any]) -> str:
    """Fill a template in.

    Args:
        text: The template.
        context: Values by name.

    Returns:
        The text.

    Raises:
        RecipeError: A variable is not defined, or a block is not closed.
    """
    pieces = fill(text, context)
    return "".join(p.text if isinstance(p, Insertion) else p for p in pieces)


def render_value(value: Any, context: Mapping[str, Any]) -> Any:
    """Fill in all templates of a YAML value.

    Args:
        value: A text, a list or mapping of such, or anything else.
        context: Values by name.

    Returns:
        The value; a text that is one ``{{name}}`` and nothing else becomes that variable's value
        with its type.

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
    """List the variables of a template.

    Args:
        text: The template.

    Returns:
        Their paths (``a.b``), in order, each once; those of conditions and of both branches too.
        What is in braces counts, whatever it is: it is a variable if there is one of that name.

    Raises:
        RecipeError: A block is not closed, or its condition can't be parsed.
    """
    return tuple(dict.fromkeys(_paths(_parse(text))))


def reads(value: Any) -> set[str]:
    """Return the names of the variables that the templates of a YAML value read, if there are such.

    Args:
        value: A text, a list or mapping of such, or anything else.

    Raises:
        RecipeError: A block is not closed, or its condition can't be parsed.
    """
    paths = [path for text in texts_in(value) for path in variables(text)]
    return {*paths, *(path.partition(".")[0] for path in paths)}  # a name may have dots itself


def texts_in(value: object) -> Iterator[str]:
    """Yield a value of a recipe if it is a text, else the texts within it."""
    if isinstance(value, str):
        yield value
    if isinstance(value, Spec):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        value = tuple(value.values())
    for each in value if isinstance(value, list | tuple) else ():
        yield from texts_in(each)


def fill(text: str, context: Mapping[str, Any]) -> list[str | Insertion]:
    """Fill a template in, and keep apart what is the template's and what are values.

    Args:
        text: The template.
        context: Values by name.

    Returns:
        The pieces in order, with the blocks decided.

    Raises:
        RecipeError: A variable is not defined, or a block is not closed.
    """
    return list(_fill(_parse(text), context))


def shapes(text: str, is_set: Callable[[str], bool]) -> list[list[str | Insertion]]:
    """Split a template before its values are known.

    Args:
        text: The template.
        is_set: Tells whether something sets a variable; ``{{ name }}`` of others stays as it is.

    Returns:
        The pieces with empty values: once with the first branch of each block, and, if it has
        blocks, once with the second.

    Raises:
        RecipeError: A block is not closed, or its condition can't be parsed.
    """
    nodes = _parse(text)
    takes = (True, False) if any(isinstance(node, _If) for node in nodes) else (True,)
    return [list(_shape(nodes, is_set, first)) for first in takes]


def looks_like_a_name(name: str) -> bool:
    """Return whether a text in braces can be meant as a variable's name, and hardly as another's.

    Example:
        >>> looks_like_a_name("Company name"), looks_like_a_name("x | upper")
        (True, False)
    """
    return _LIKE_A_NAME.fullmatch(name) is not None


def _shape(
    nodes: tuple[_Node, ...], is_set: Callable[[str], bool], first: bool
) -> Iterator[str | Insertion]:
    for node in nodes:
        if isinstance(node, _If):
            yield from _shape(node.then if first else node.otherwise, is_set, first)
        elif isinstance(node, str):
            yield node
        elif node.instead and not is_set(node.path):
            yield node.instead
        else:
            yield Insertion(node.path, "", node.line, node.is_raw)


def _fill(nodes: tuple[_Node, ...], context: Mapping[str, Any]) -> Iterator[str | Insertion]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, _Variable):
            yield _inserted(node, context)
        else:
            unset = (n for n in node.condition.variables if "." not in n and n not in context)
            holds = expression.evaluate(node.condition, {**context, **dict.fromkeys(unset)})
            yield from _fill(node.then if holds else node.otherwise, context)


def _inserted(node: _Variable, context: Mapping[str, Any]) -> str | Insertion:
    try:
        value = as_text(lookup(context, node.path))
    except RecipeError:
        if node.instead:
            return node.instead
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
    """An ``{{#if}}`` that is being read, or the whole text."""

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
            self._take(match, self._text.count("\n", 0, match.start()) + 1)
            at = match.end()
        self._add(self._text[at:])
        if len(self._open) > 1:
            raise RecipeError(f"Line {self._open[-1].line}: {{{{#if}}}} has no {{{{/if}}}}.")
        return tuple(self._open[0].branches[0])

    def _add(self, node: _Node) -> None:
        if node != "":
            self._open[-1].branches[-1].append(node)

    def _take(self, tag: re.Match[str], line: int) -> None:
        if tag["escape"]:
            is_ours = not tag["other"] or looks_like_a_name(tag["other"])
            self._add(tag[0][1:] if is_ours else tag[0])
        elif tag["other"]:
            self._add(_Variable(tag["other"], line, False, tag[0]))
        elif tag["path"]:
            has_blanks = tag[0] != f"{{{{{tag['path']}}}}}"
            instead = tag[0] if has_blanks and not tag["raw"] else ""
            self._add(_Variable(tag["path"], line, bool(tag["raw"]), instead))
        elif tag["condition"]:
            self._open.append(_Block(expression.parse(tag["condition"]), line))
        else:
            self._turn(tag, line)

    def _turn(self, tag: re.Match[str], line: int) -> None:
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
