r"""Values in bash commands: what a model wrote becomes data there, never a command.

A value's text stands in one place only, before the command: ``nb_value_0=$'…'; ``. Where the
recipe has ``{{x}}`` stands ``"${nb_value_0}"``, with the quotes that the place needs, and bash
doesn't read as code what an expansion gives. Escaping each value where it stands would have to be
right about every place; this has to be right only about the places where bash does look again at
what an expansion gave: arithmetic, subscripts, ``eval`` and its kin, the name of a program. There
a value must be a number, or is refused. Bash's own grammar (tree-sitter's) tells the places apart;
a command that it can't read is refused.

What this can't do:

- A program may take its input as code: ``python3 -c "…{{x}}…"``, ``python3 <<'EOF'``, ``awk``,
  ``sed``, ``jq``. To bash these are texts, and the program gets exactly the value. Give such a
  program the value in the step's ``env``, and let it read that variable.
- A value may begin with ``-``, which a program may take for an option. Write ``--`` before it.
- A value isn't followed through a program (``$(echo {{x}})``), a function's argument, or a second
  variable.

``{{x | raw}}`` inserts the text as it is, as a part of the command: for text that the recipe's
author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from nb_agents.errors import RecipeError
from nb_agents.recipes import shell_rules
from nb_agents.recipes.shell_rules import Rule
from nb_agents.recipes.template import Insertion, fill

__all__ = ["render_command"]

_PREFIX = "nb_value_"
_JINJA = re.compile(rb"(?<!\S)\{%(?=\s)")


def render_command(command: str, context: Mapping[str, Any]) -> str:
    """Fill a bash command in, so that no value can become a command.

    Args:
        command: The template.
        context: Values by name.

    Returns:
        The script for ``bash -c``. Its lines have the numbers that the filled-in template's have.

    Raises:
        RecipeError: A variable is not defined, or stands where bash would run its value.
    """
    pieces = [
        piece.text if isinstance(piece, Insertion) and piece.is_raw else piece
        for piece in fill(command, context)
    ]
    if not any(isinstance(piece, Insertion) for piece in pieces):
        return "".join(map(str, pieces))
    return _Script(pieces).rendered()


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a value goes; the variable's name stands there while bash's grammar is read."""

    value: Insertion
    name: str
    start: int
    end: int


class _Script:
    """A command, in bytes because tree-sitter counts them."""

    def __init__(self, pieces: list[str | Insertion]) -> None:
        names = _names(pieces)
        self._slots: list[_Slot] = []
        self._source = b""
        for piece in pieces:
            start = len(self._source)
            if isinstance(piece, Insertion):
                name = names[piece.path]
                self._slots.append(_Slot(piece, name, start, start + len(name)))
                piece = name
            self._source += piece.encode("utf-8", "surrogatepass")
        self._root = _parsed(self._source)

    def rendered(self) -> str:
        self._check_grammar()
        edits: dict[tuple[int, int], str] = {}
        for slot in self._slots:
            edits |= self._edits(slot)
        script, at = "", 0
        for (start, end), text in sorted(edits.items()):
            script += self._text(at, start) + text
            at = end
        values = {slot.name: slot.value for slot in self._slots}
        head = "".join(f"{name}={_quoted(value)}; " for name, value in values.items())
        return head + script + self._text(at, len(self._source))

    def _text(self, start: int, end: int) -> str:
        return self._source[start:end].decode("utf-8", "surrogatepass")

    def _check_grammar(self) -> None:
        if not self._root.has_error:
            return
        line = _first_error(self._root).start_point.row + 1
        names = ", ".join(dict.fromkeys(f"{{{{{slot.value.path}}}}}" for slot in self._slots))
        raise RecipeError(
            f"Line {line} of the command can't be read as bash, so {names} can't be inserted "
            f"safely. Give the value in the step's env, or write {{{{name | raw}}}} to insert it "
            f"as a part of the command."
        )

    def _edits(self, slot: _Slot) -> dict[tuple[int, int], str]:
        leaf = self._root.descendant_for_byte_range(slot.start, slot.end)
        assert leaf is not None
        for rule in self._rules(slot, leaf):
            if not (rule.allowed and rule.allowed.fullmatch(slot.value.text)):
                raise _refused(slot.value, rule)
        edits = _without_quotes(leaf, self._source)
        return edits | {(slot.start, slot.end): _reference(leaf) % slot.name}

    def _rules(self, slot: _Slot, leaf: Node) -> Iterator[Rule]:
        place = shell_rules.Place(leaf, slot.start, slot.end, self._names)
        yield from shell_rules.rules(place)
        for name in shell_rules.assigned(leaf):
            yield from self._evaluated.get(name, [])

    @cached_property
    def _names(self) -> frozenset[bytes]:
        return frozenset(slot.name.encode() for slot in self._slots)

    @cached_property
    def _evaluated(self) -> dict[bytes, list[Rule]]:
        return shell_rules.evaluated(self._root)


@lru_cache(maxsize=1)
def _language() -> Language:
    return Language(tree_sitter_bash.language())


def _parsed(source: bytes) -> Node:
    """Parse a command. To bash Jinja's ``{%`` is a word like any, to the grammar it isn't."""
    parser = Parser(_language())
    root = parser.parse(source).root_node
    return parser.parse(_JINJA.sub(b"xx", source)).root_node if root.has_error else root


def _names(pieces: list[str | Insertion]) -> dict[str, str]:
    """Name the bash variables: one for each path, and none that the command knows."""
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    prefix = _PREFIX
    while prefix in text:
        prefix += "_"
    paths = dict.fromkeys(piece.path for piece in pieces if isinstance(piece, Insertion))
    return {path: f"{prefix}{number}" for number, path in enumerate(paths)}


def _quoted(value: Insertion) -> str:
    """Write a value as one bash word, in ASCII and on one line whatever the locale is."""
    try:
        data = value.text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise RecipeError(
            f"Line {value.line}: the value of {{{{{value.path}}}}} holds a character that no "
            f"program can be given (NUL, or half of a surrogate pair). Remove it before."
        )
    return "$'" + re.sub(rb"[^ -&(-\[\]-~]", lambda m: b"\\%03o" % m[0][0], data).decode() + "'"


def _reference(leaf: Node) -> str:
    """Give how to write the variable, with ``%s`` for its name, so that it is one word or part."""
    for node in shell_rules.upward(leaf):
        match node.type:
            case "string" | "heredoc_body" | "comment" | "variable_name":
                return "${%s}"
            case "raw_string":
                return "'\"${%s}\"'"
            case "ansi_c_string":
                return "'\"${%s}\"$'"
            case "expansion" | "command_substitution" | "process_substitution":
                break
    return '"${%s}"'


def _without_quotes(leaf: Node, source: bytes) -> dict[tuple[int, int], str]:
    """Make the here-document around a place expand its variables, its own text unchanged.

    With a quoted tag nothing in it is expanded. A value inserted as text could hold a line that
    ends it, and then go on as commands.
    """
    body = next((n for n in shell_rules.upward(leaf) if n.type == "heredoc_body"), None)
    if body is None or body.parent is None:
        return {}
    tag = next(child for child in body.parent.children if child.type == "heredoc_start")
    if not shell_rules.is_quoted(tag):
        return {}
    edits = {(tag.start_byte, tag.end_byte): shell_rules.bare(tag).decode()}
    for match in re.finditer(rb"[\\$`]", source[body.start_byte : body.end_byte]):
        at = body.start_byte + match.start()
        edits[at, at + 1] = "\\" + match[0].decode()
    return edits


def _first_error(root: Node) -> Node:
    node = root
    while not (node.is_error or node.is_missing):
        node = next(child for child in node.children if child.has_error)
    return node


def _refused(value: Insertion, rule: Rule) -> RecipeError:
    must = f"where only {rule.what} can stand safely" if rule.allowed else "and bash would run it"
    return RecipeError(
        f"Line {value.line}: {{{{{value.path}}}}} stands {rule.where}, {must}. Give the value in "
        f"the step's env, or write {{{{{value.path} | raw}}}} to insert it as a part of the "
        f"command."
    )
