"""Conditions of recipes: ``{{severity}} == 'high' or {{score}} > 0.8``.

The language is Amplifier's: ``or`` binds less than ``and``, ``and`` less than ``not``, ``not``
less than a comparison; numbers are compared as numbers where both sides are numbers, else texts.
Ours beyond it:

- lists and mappings are false when empty, and compare as the JSON that a template shows;
- None is false and equals ``none``, ``null`` and ``''``. A step that failed under
  ``on_error: continue`` leaves None, and a later condition may ask for it. Only an order
  (``<``) of None, a list or a mapping fails;
- ``contains`` looks for an item in a list, or for a text in any other value as it is shown; an
  empty text is in nothing, so that no gate opens because a value is missing;
- ``'text' in name`` is ``name contains 'text'``, ``not in`` its opposite, as other runners have it;
- ``name is defined`` and ``name is not defined`` ask whether anything has set it;
- a variable may stand in quotes, as in ``'{{x}}' == 'y'``;
- a bare name alone or left of an operator is a variable, where Amplifier reads a constant;
- the side of an ``and`` or ``or`` that can't matter is not evaluated.

A condition is parsed before any value is known: no value, whatever a model wrote into it, can
change what the condition asks.

Source: https://github.com/microsoft/amplifier-bundle-recipes (its expression evaluator).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

from nb_agents.errors import RecipeError
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
_FOREIGN = {
    "[": "a field is written {{name.key}}",
    "(": "there are no functions, and numbers are compared as numbers without one",
}
_NAMES_SHOWN = 12
_LEAVES = {"variable", "name", "string", "word"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a condition asks about one variable.

    Attributes:
        path: The variable (``a.b``).
        sign: As ``==``; "" asks whether the variable itself is true.
        literal: What it is compared with; "" without a sign.
        is_wanted: Whether the condition would have it so: not under a ``not``.
    """

    path: str
    sign: str
    literal: str
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed condition.

    Attributes:
        text: As the recipe has it.
        variables: Paths that it asks for (``a.b``), in order, each once.
        comparisons: What it asks about each variable by itself, or beside a literal, in order.
    """

    text: str
    variables: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    _tree: Tree[Token] | None = field(repr=False, compare=False)


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Parse a condition.

    Args:
        text: The condition; an empty one holds always, as in Amplifier.

    Returns:
        What `evaluate` takes.

    Raises:
        RecipeError: The text is no condition; tells the column and what was expected.
    """
    if not text.strip():
        return Expression(text, (), (), None)
    from lark.exceptions import UnexpectedInput

    fault: RecipeError | None = None
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as exc:
        fault = _unexpected(text, exc)
    if fault is not None:  # not from within: Dask pickles an error with what it came from
        raise fault
    leaves = sorted(
        tree.find_pred(lambda node: node.data in _LEAVES),
        key=lambda leaf: _token(leaf).start_pos or 0,
    )
    for leaf in leaves:
        if leaf.data == "string" and "{{" in _token(leaf):
            raise _fault(
                text, _token(leaf).start_pos or 0, "a variable inside other text is not filled in"
            )
    asked = [*tree.find_data("defined"), *tree.find_data("undefined")]
    tested = {id(leaf) for test in asked for leaf in test.children}
    for test in asked:
        if not _path(cast("Tree[Token]", test.children[0])):
            at = _token(cast("Tree[Token]", test.children[0])).start_pos or 0
            raise _fault(text, at, "only a variable can be defined")
    paths = [path for leaf in leaves if id(leaf) not in tested and (path := _path(leaf))]
    return Expression(text, tuple(dict.fromkeys(paths)), tuple(_comparisons(tree, True)), tree)


def evaluate(expression: Expression, context: Mapping[str, Any]) -> bool:
    """Evaluate a condition.

    Args:
        expression: The condition.
        context: Values by name. They are data: none is read as part of the condition.

    Returns:
        Whether it holds.

    Raises:
        RecipeError: A variable is not defined, or two values have no order.
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
        path: ``name`` or ``name.key.key``; or a name that has dots itself.

    Raises:
        RecipeError: There is none; names what there is, and the nearest.
    """
    if path in context and path.partition(".")[0] not in context:
        return context[path]
    value: Any = context
    done: list[str] = []
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise _undefined(path, ".".join(done), value, part)
        value = value[part]
        done.append(part)
    return value


def as_text(value: Any) -> str:
    """Return a value as a template shows it.

    Args:
        value: Anything that a context holds.

    Returns:
        JSON of a list or mapping, ``true`` or ``false``, nothing for None, else its ``str``.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _undefined(path: str, inside: str, value: Any, part: str) -> RecipeError:
    if not isinstance(value, Mapping):
        kind = {str: "text", list: "a list", type(None): "empty"}.get(type(value), "a plain value")
        return RecipeError(f"{{{{{path}}}}} is not defined: {inside!r} is {kind}, without keys.")
    names = [str(name) for name in value]
    near = nearest(part, names)
    begin = f"{inside}." if inside else ""
    hint = f" Did you mean {{{{{begin}{near}}}}}?" if near else ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    shown = ", ".join(begin + name for name in names[:_NAMES_SHOWN]) or "nothing"
    return RecipeError(f"{{{{{path}}}}} is not defined.{hint} Available: {shown}{more}.")


@cache
def _parser() -> Lark:
    """Return the parser, made when a condition is first read: most teams have none."""
    from lark import Lark

    # The basic lexer: a contextual one would read `{{a}} orb` as `{{a}} or b`.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", start="either")


def _token(leaf: Tree[Token]) -> Token:
    return cast("Token", leaf.children[0])


def _path(leaf: Tree[Token]) -> str:
    """Return the path of a variable, "" for any other leaf."""
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
        return _are_same(left, right) is (sign == "==")
    if sign == "contains":
        return _contains(left, right)
    for side in (left, right):
        if side is None or isinstance(side, dict | list | tuple):
            kind = "empty" if side is None else "a list or mapping"
            raise RecipeError(f"`{sign}` needs numbers or texts, and one side is {kind}.")
    one, other = _number(left), _number(right)
    if one is None or other is None:
        return _ORDERS[sign](as_text(left), as_text(right))
    return _ORDERS[sign](one, other)


def _contains(left: Any, right: Any) -> bool:
    if isinstance(left, list | tuple):
        return any(_are_same(item, right) for item in left)
    sought = as_text(right)
    return bool(sought) and sought in as_text(left)


def _are_same(left: Any, right: Any) -> bool:
    sides = (left, right)
    if any(side is None for side in sides):
        return all(side is None or _says_none(side) for side in sides)
    if any(isinstance(side, bool) for side in sides):
        # Python's own spelling counts too: `== True`.
        return as_text(left).lower() == as_text(right).lower()
    if all(isinstance(side, dict | list | tuple) for side in sides):
        return bool(left == right)
    numbers = _number(left), _number(right)
    return numbers[0] == numbers[1] if None not in numbers else as_text(left) == as_text(right)


def _says_none(side: Any) -> bool:
    return isinstance(side, str) and side.lower() in _NONE_TEXTS


def _number(value: Any) -> Decimal | None:
    """Read a number, exactly: two ids of 19 digits are not the same because floats are short."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _unexpected(text: str, exc: UnexpectedInput) -> RecipeError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    at = exc.pos_in_stream or 0
    if hint := re.search(r"\w([\[(])$", text[: at + 1]):
        return _fault(text, at, _FOREIGN[hint[1]])
    if isinstance(exc, UnexpectedCharacters):
        opened = text[at] in "'\""
        return _fault(
            text, at, "a quote is not closed" if opened else f"{text[at]!r} means nothing here"
        )
    assert isinstance(exc, UnexpectedToken)
    found = "the end" if exc.token.type == "$END" else f"`{exc.token}`"
    names = [_EXPECTED[name] for name in _EXPECTED if name in exc.accepts]
    if exc.accepts & _VALUES:
        names = ["a value"]
    at = len(text) if exc.token.type == "$END" else exc.token.start_pos
    return _fault(text, at or 0, f"expected {' or '.join(names)}, found {found}")


def _fault(text: str, at: int, what: str) -> RecipeError:
    return RecipeError(
        f"Condition `{text}`, column {at + 1}: {what}. Write it like {{{{name}}}} == 'text'."
    )
