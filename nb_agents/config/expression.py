"""Conditions of recipes: ``{{severity}} == 'high' or {{score}} > 0.8``.

The language is Amplifier's: ``not`` binds tighter than ``and``, and ``and`` tighter than ``or``;
comparisons bind tightest. Two numbers are compared as numbers, anything else as text. Extensions:

- empty lists and mappings are false. Lists and mappings compare as the JSON that a template shows;
- None is false and equals ``none``, ``null`` and ``''``. A step that failed under
  ``on_error: continue`` has the value None, which later conditions can test. Only order
  comparisons (``<``) with None, a list or a mapping fail;
- ``contains`` tests for an item of a list, or for a substring of any other value as it is shown.
  The empty string is contained in nothing, so a missing value never opens a gate;
- ``'text' in name`` means ``name contains 'text'``, and ``not in`` is its opposite;
- ``name is defined`` and ``name is not defined`` test whether a variable is set;
- a variable can be quoted, as in ``'{{x}}' == 'y'``;
- a bare name alone or on the left of an operator is a variable. Amplifier reads it as a constant;
- ``and`` and ``or`` do not evaluate the right side when the left side decides.

A condition is parsed before any value is inserted, so no value, such as a model's text, can change
its meaning.

Source: https://github.com/microsoft/amplifier-bundle-recipes (its expression evaluator).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

from nb_agents.errors import RecipeError
from nb_agents.json_text import is_missing, json_text
from nb_agents.nouns import nearest

if TYPE_CHECKING:
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput

_GRAMMAR = r"""
?either: both ("or" both)*
?both: negation ("and" negation)*
?negation: "not" negation -> negation | comparison
?comparison: left ((COMPARISON | CONTAINS) right)?
    | left "in" left -> within
    | left "not" "in" left -> without
    | left "is" "defined" -> defined
    | left "is" "not" "defined" -> undefined
?left: value | (NAME | IN | IS | DEFINED) -> name
?right: value | (NAME | HYPHENED | IN | IS | DEFINED) -> word
?value: VARIABLE -> variable | STRING -> string | NUMBER -> word | "(" either ")"
COMPARISON: "==" | "!=" | "<=" | ">=" | "<" | ">"
CONTAINS: "contains"
IN: "in"
IS: "is"
DEFINED: "defined"
_FILLED: /\{\{\s*\w+(\.\w+)*\s*\}\}/
VARIABLE.1: _FILLED | "'" _FILLED "'" | "\"" _FILLED "\""
STRING: /'(\\.|[^'\\])*'|"(\\.|[^"\\])*"/s
NUMBER.1: /-?\d+(\.\d+)?(?![\w.])/
HYPHENED.2: /[\w.]+(-[\w.]+)+/
NAME: /\w+(\.\w+)*/
%ignore /\s+/
"""

_VALUES = {"VARIABLE", "STRING", "NUMBER", "NAME", "LPAR"}
_EXPECTED = {
    "AND": "`and`",
    "OR": "`or`",
    "COMPARISON": "a comparison",
    "RPAR": "`)`",
    "$END": "the end",
}
_CONSTANTS = {"true", "false", "none", "null", "True", "False", "None"}
_FALSE_TEXTS = {"", "0", "false", "False", "none", "None"}
_NONE_TEXTS = {"", "none", "null"}
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_FOREIGN_HINTS = {
    "[": "write a field as {{name.key}}",
    "(": "functions are not supported; numbers are compared as numbers without one",
}
_NAMES_SHOWN = 12
_LEAVES = {"variable", "name", "string", "word"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A test of one variable in a condition.

    Attributes:
        path: The variable (``a.b``).
        sign: The operator, such as ``==``, or "" to test whether the variable is true.
        literal: The value to compare with, or "" without an operator.
        is_wanted: Whether the condition needs this test to be true. False under a ``not``.
    """

    path: str
    sign: str
    literal: str
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed condition.

    Attributes:
        text: The condition as written.
        variables: The paths of its variables (``a.b``), in order, without duplicates.
        comparisons: Its tests of a variable alone or against a literal, in order.
    """

    text: str
    variables: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    _tree: Tree[Token] | None = field(repr=False, compare=False)


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Parse a condition.

    Args:
        text: The condition. An empty one is always true, as in Amplifier.

    Raises:
        RecipeError: The text is not a valid condition. The message contains the column and what was
            expected.
    """
    if not text.strip():
        return Expression(text, (), (), None)
    from lark.exceptions import UnexpectedInput

    fault: RecipeError | None = None
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as exc:
        fault = _syntax_error(text, exc)
    if fault is not None:  # outside the except block: Dask pickles an error with its context
        raise fault
    leaves = sorted(
        tree.find_pred(lambda node: node.data in _LEAVES),
        key=lambda leaf: _token(leaf).start_pos or 0,
    )
    for leaf in leaves:
        if leaf.data == "string" and "{{" in _token(leaf):
            raise _fault(
                text, _token(leaf).start_pos or 0, "variables inside other text are not supported"
            )
    tests = [*tree.find_data("defined"), *tree.find_data("undefined")]
    tested = {id(leaf) for test in tests for leaf in test.children}
    for test in tests:
        if not _path(cast("Tree[Token]", test.children[0])):
            at = _token(cast("Tree[Token]", test.children[0])).start_pos or 0
            raise _fault(text, at, "only a variable can be tested with `is defined`")
    paths = [path for leaf in leaves if id(leaf) not in tested and (path := _path(leaf))]
    return Expression(text, tuple(dict.fromkeys(paths)), tuple(_comparisons(tree, True)), tree)


def evaluate(expression: Expression, context: Mapping[str, Any]) -> bool:
    """Return whether a condition is true.

    Args:
        expression: The condition.
        context: Values by name. They are data and are never parsed as part of the condition.

    Raises:
        RecipeError: A variable is not defined, or two values can't be ordered.
    """
    if expression._tree is None:
        return True
    try:
        return _is_true(_value(expression._tree, context))
    except RecipeError as exc:
        raise RecipeError(f"Condition `{expression.text}`: {exc}") from None


def lookup(context: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path.

    Args:
        context: Values by name.
        path: ``name`` or ``name.key.key``, or a name that contains dots.

    Raises:
        RecipeError: There is no such value. The message lists the available names and the nearest
            one.
    """
    if path in context and path.partition(".")[0] not in context:
        return context[path]
    value: Any = context
    parents: list[str] = []
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise _undefined(path, ".".join(parents), value, part)
        value = value[part]
        parents.append(part)
    return value


def as_text(value: Any) -> str:
    """Return a value as a template shows it.

    Returns:
        JSON for a list or mapping, ``true`` or ``false`` for a bool, "" for None or NaN, and
        ``str(value)`` for anything else.
    """
    if is_missing(value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json_text(value)
    return str(value)


def _undefined(path: str, inside: str, value: Any, part: str) -> RecipeError:
    if not isinstance(value, Mapping):
        kind = {str: "text", list: "a list", type(None): "empty"}.get(type(value), "a plain value")
        return RecipeError(f"{{{{{path}}}}} is not defined: {inside!r} is {kind} and has no keys.")
    names = [str(name) for name in value]
    near = nearest(part, names)
    begin = f"{inside}." if inside else ""
    hint = f" Did you mean {{{{{begin}{near}}}}}?" if near else ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    listed_names = ", ".join(begin + name for name in names[:_NAMES_SHOWN]) or "nothing"
    return RecipeError(f"{{{{{path}}}}} is not defined.{hint} Available: {listed_names}{more}.")


@cache
def _parser() -> Lark:
    """Return the parser. It is created on first use, because most teams have no conditions."""
    from lark import Lark

    # Not the contextual lexer: it would read `{{a}} orb` as `{{a}} or b`.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", start="either")


def _token(leaf: Tree[Token]) -> Token:
    return cast("Token", leaf.children[0])


def _path(leaf: Tree[Token]) -> str:
    """Return the path of a variable, or "" for any other leaf."""
    if leaf.data == "variable":
        return _token(leaf).strip("'\"{} \t\r\n")
    if leaf.data == "name" and _token(leaf) not in _CONSTANTS:
        return str(_token(leaf))
    return ""


def _comparisons(node: Tree[Token] | Token, is_wanted: bool) -> Iterator[Comparison]:
    node = cast("Tree[Token]", node)
    if node.data == "comparison":
        left, sign, right = cast("list[Tree[Token]]", node.children)
        yield from _comparison(left, str(sign), right, is_wanted)
    elif node.data in ("either", "both", "negation"):
        for child in node.children:
            yield from _comparisons(child, is_wanted is (node.data != "negation"))
    elif node.data in ("within", "without"):
        item, holder = cast("list[Tree[Token]]", node.children)
        yield from _comparison(holder, "contains", item, is_wanted is (node.data == "within"))
    elif path := _path(node):
        yield Comparison(path, "", "", is_wanted)


def _comparison(
    left: Tree[Token], sign: str, right: Tree[Token], is_wanted: bool
) -> Iterator[Comparison]:
    if {left.data, right.data} <= _LEAVES:
        if (path := _path(left)) and not _path(right):
            yield Comparison(path, sign, _literal(right), is_wanted)
        elif (path := _path(right)) and not _path(left) and sign != "contains":
            yield Comparison(path, _MIRRORED.get(sign, sign), _literal(left), is_wanted)


def _literal(leaf: Tree[Token]) -> str:
    text = str(_token(leaf))
    return re.sub(r"\\([\\'\"])", r"\1", text[1:-1]) if leaf.data == "string" else text


def _value(node: Tree[Token] | Token, context: Mapping[str, Any]) -> Any:
    node = cast("Tree[Token]", node)
    if node.data == "either":
        return any(_is_true(_value(child, context)) for child in node.children)
    if node.data == "both":
        return all(_is_true(_value(child, context)) for child in node.children)
    if node.data == "negation":
        return not _is_true(_value(node.children[0], context))
    if node.data == "comparison":
        left, sign, right = node.children
        return _compare(_value(left, context), str(sign), _value(right, context))
    if node.data in ("within", "without"):
        item, holder = (_value(child, context) for child in node.children)
        return _contains(holder, item) is (node.data == "within")
    if node.data in ("defined", "undefined"):
        return _is_set(_path(cast("Tree[Token]", node.children[0])), context) is (
            node.data == "defined"
        )
    if path := _path(node):
        return lookup(context, path)
    return _literal(node)


def _is_set(path: str, context: Mapping[str, Any]) -> bool:
    try:
        lookup(context, path)
    except RecipeError:
        return False
    return True


def _is_true(value: Any) -> bool:
    return value not in _FALSE_TEXTS if isinstance(value, str) else bool(value)


def _compare(left: Any, sign: str, right: Any) -> bool:
    if sign in ("==", "!="):
        return _are_equal(left, right) is (sign == "==")
    if sign == "contains":
        return _contains(left, right)
    for side in (left, right):
        if side is None or isinstance(side, dict | list | tuple):
            kind = "empty" if side is None else "a list or mapping"
            raise RecipeError(f"`{sign}` needs numbers or text, but one side is {kind}.")
    one, other = _number(left), _number(right)
    if one is None or other is None:
        return _ORDERS[sign](as_text(left), as_text(right))
    return _ORDERS[sign](one, other)


def _contains(left: Any, right: Any) -> bool:
    if isinstance(left, list | tuple):
        return any(_are_equal(item, right) for item in left)
    text = as_text(right)
    return bool(text) and text in as_text(left)


def _are_equal(left: Any, right: Any) -> bool:
    sides = (left, right)
    if any(side is None for side in sides):
        return all(side is None or _is_none_text(side) for side in sides)
    if any(isinstance(side, bool) for side in sides):
        # Python's spelling is also valid: `== True`.
        return as_text(left).lower() == as_text(right).lower()
    if all(isinstance(side, dict | list | tuple) for side in sides):
        return bool(left == right)
    numbers = _number(left), _number(right)
    return numbers[0] == numbers[1] if None not in numbers else as_text(left) == as_text(right)


def _is_none_text(side: Any) -> bool:
    return isinstance(side, str) and side.lower() in _NONE_TEXTS


def _number(value: Any) -> Decimal | None:
    """Return an exact number, or None. As floats, two different 19-digit ids could be equal."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _syntax_error(text: str, exc: UnexpectedInput) -> RecipeError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    at = exc.pos_in_stream or 0
    if unsupported := re.search(r"\w([\[(])$", text[: at + 1]):
        return _fault(text, at, _FOREIGN_HINTS[unsupported[1]])
    if isinstance(exc, UnexpectedCharacters):
        is_quote = text[at] in "'\""
        return _fault(
            text, at, "a quote is not closed" if is_quote else f"unexpected character {text[at]!r}"
        )
    assert isinstance(exc, UnexpectedToken)
    actual = "the end" if exc.token.type == "$END" else f"`{exc.token}`"
    names = [_EXPECTED[name] for name in _EXPECTED if name in exc.accepts]
    if exc.accepts & _VALUES:
        names = ["a value"]
    at = len(text) if exc.token.type == "$END" else exc.token.start_pos
    return _fault(text, at or 0, f"expected {' or '.join(names)}, found {actual}")


def _fault(text: str, at: int, message: str) -> RecipeError:
    return RecipeError(
        f"Condition `{text}`, column {at + 1}: {message}. Example: {{{{name}}}} == 'text'."
    )
