r"""Inserts values into bash commands as data, so that no value can become a command.

The text of a value is assigned to a variable before the command: ``nb_value_0=$'…'; ``. The command
contains ``"${nb_value_0}"`` instead of ``{{x}}``, with the quotes that the position needs, and bash
never parses the result of an expansion as code. An unquoted empty value does not become an
argument.

A value can neither change the syntax of the recipe's command nor become an option of a program in
it. What programs do with their data is up to them. The source of a value determines what is
allowed:

- Values from the recipe's author or from the user who starts it are trusted like the command. They
  are quoted where the grammar has text. Elsewhere, such as in a program's name, they become part of
  the command.
- Values from models, commands, files and the rows of a sweep, and values derived from them, can be
  any text where bash's grammar (tree-sitter's) has text. In arithmetic they must be numbers, and
  where an option could be they must not begin with ``-`` (see
  `nb_agents.extensions.recipes.shell_places`).
- That holds in commands that consist only of listed parts (see
  `nb_agents.extensions.recipes.shell_allowlist`). In other commands, such values must consist of
  harmless characters, and where a program that is not listed gets them, they must be numbers. They
  are never allowed as the name of a program or variable, or in ``${…}``, ``$'…'`` or backticks.
  Recipes pass other values in the step's `env`.

``{{x | raw}}`` inserts any value unchanged, as part of the command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from subprocess import run
from typing import Any, NamedTuple

from tree_sitter import Node

from nb_agents.config.template import Insertion, fill, shapes
from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes.shell_places import Rule, Script
from nb_agents.extensions.recipes.shell_tree import Tree, ancestors, quoted_tag, source

_PREFIX = "nb_value_"
_WORD = ("word", "concatenation")
_LISTS_WORDS = ("command", "command_name", "array", "for_statement")

Pieces = Sequence[str | Insertion]


def render_command(
    command: str, context: Mapping[str, Any], trusted: Collection[str] = frozenset()
) -> str:
    """Fill in a bash command, so that no untrusted value can become a command.

    Args:
        command: The template.
        context: Values by name.
        trusted: Names of the values that the recipe's author or the user supplied.

    Returns:
        The script for ``bash -c``. Its line numbers match the filled-in template, except after a
        trusted value with several lines that is part of the command.

    Raises:
        RecipeError: A variable is not defined, or its value is not allowed at its position.
    """
    pieces: Pieces = [
        piece.text if isinstance(piece, Insertion) and piece.is_raw else piece
        for piece in fill(command, context)
    ]
    parsed = _Command(pieces, trusted)
    while (
        reduced := parsed.reduced()
    ) != pieces:  # without them, the command would be parsed differently
        parsed = _Command(pieces := reduced, trusted)
    return parsed.rendered()


class Misplaced(NamedTuple):
    """A value at a position in a command where not every value is allowed.

    Attributes:
        line: The line in the command, starting at 1.
        path: The variable.
        what: The error message.
        is_fault: Whether no untrusted value is allowed, not even one with harmless characters.
    """

    line: int
    path: str
    what: str
    is_fault: bool


def misplaced(
    command: str, is_set: Callable[[str], bool], trusted: Collection[str]
) -> list[Misplaced]:
    """Find the values in a command that may be rejected, before the values are known.

    Args:
        command: The template.
        is_set: Returns whether something sets a variable.
        trusted: Names of the values that the recipe's author or the user supplies.

    Returns:
        The most severe finding for each value and line.
    """
    worst: dict[tuple[int, str], Misplaced] = {}
    for pieces in shapes(command, is_set):
        values = [piece for piece in pieces if isinstance(piece, Insertion)]
        if not values or any(value.is_raw for value in values):
            continue  # a raw value can be any code, so the command can't be parsed yet
        parsed = _Command(pieces, trusted)
        if why := parsed.fault():
            line = parsed.error_line or 1
            return [Misplaced(line, "", f"Invalid bash command: {why}.", is_fault=True)]
        for value, rule in (each for each in parsed.rules() if each[1].is_restrictive):
            is_fault = rule.allowed is None and not parsed.error_line
            candidate = Misplaced(value.line, value.path, rule.refusal(value.path), is_fault)
            worst[candidate[:2]] = max(
                worst.get(candidate[:2], candidate), candidate, key=lambda each: each.is_fault
            )
    return list(worst.values())


@dataclass(frozen=True, slots=True)
class _Slot:
    """The position of a value. The variable's name is inserted there to parse the command."""

    value: Insertion
    name: str
    at: range
    is_trusted: bool


class _Command:
    """A command with its values. Positions are in bytes, as in tree-sitter."""

    def __init__(self, pieces: Pieces, trusted: Collection[str]) -> None:
        names = _names(pieces)
        self._pieces = pieces
        self._slots: list[_Slot] = []
        self._source = b""
        for piece in pieces:
            start = len(self._source)
            if isinstance(piece, Insertion):
                name, is_trusted = names[piece.path], piece.path.partition(".")[0] in trusted
                at = range(start, start + len(name))
                self._slots.append(_Slot(piece, name, at, is_trusted))
                piece = name
            self._source += piece.encode("utf-8", "surrogatepass")
        self._tree = Tree(self._source, [slot.at for slot in self._slots])
        self._script = Script(self._tree)
        self.error_line = self._tree.error_line

    def fault(self) -> str:
        """Return bash's error for a command that the grammar can't parse, or ""."""
        if not self.error_line:
            return ""
        result = run(["bash", "-n"], input=self._source, capture_output=True, check=False)
        return result.stderr.decode(errors="replace").strip().partition("\n")[0]

    def rendered(self) -> str:
        """Return the script. Raises RecipeError if a value is not allowed at its position."""
        for value, rule in self.rules():
            if not rule.allows(value.text):
                raise RecipeError(f"Line {value.line}: {rule.refusal(value.path)}")
        if self.error_line:  # all values are harmless with any quoting
            return "".join(p.text if isinstance(p, Insertion) else p for p in self._pieces)
        edits: dict[tuple[int, int], str] = {}
        for slot in self._slots:
            outer = list(ancestors(self._tree.leaf(slot.at)))
            edits |= _unquote_tag(outer)
            edits[slot.at.start, slot.at.stop] = _reference(outer) % slot.name
        script, at = "", 0
        for (start, end), text in sorted(edits.items()):
            script += self._text(at, start) + text
            at = end
        values = {slot.name: slot.value for slot in self._slots}
        head = "".join(f"{name}={_quoted(value)}; " for name, value in values.items())
        return head + script + self._text(at, len(self._source))

    def reduced(self) -> Pieces:
        """Return the parts without unquoted empty values, and with trusted code merged in.

        A trusted value at a position where the grammar has no text becomes part of the command.
        """
        slots, pieces = iter(self._slots), list[str | Insertion]()
        for piece in self._pieces:
            if isinstance(piece, Insertion):
                slot = next(slots)
                if not piece.text and self._is_word(slot):
                    continue
                is_code = slot.is_trusted and not (self.error_line or self._script.is_text(slot.at))
                piece = piece.text if is_code else piece
            pieces.append(piece)
        return pieces

    def _is_word(self, slot: _Slot) -> bool:
        outer = ancestors(self._tree.leaf(slot.at))
        holder = next(node.type for node in outer if node.type not in _WORD)
        return holder in _LISTS_WORDS

    def rules(self) -> list[tuple[Insertion, Rule]]:
        """Return the rules for all values that can't be arbitrary text."""
        is_read = not self.error_line
        fenced = [slot for slot in self._slots if not (slot.is_trusted and is_read)]
        return [(slot.value, rule) for slot in fenced for rule in self._script.rules(slot.at)]

    def _text(self, start: int, end: int) -> str:
        return self._source[start:end].decode("utf-8", "surrogatepass")


def _names(pieces: Pieces) -> dict[str, str]:
    """Return an unused bash variable name for each path."""
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    prefix = _PREFIX
    while prefix in text:
        prefix += "_"
    paths = dict.fromkeys(piece.path for piece in pieces if isinstance(piece, Insertion))
    return {path: f"{prefix}{number}" for number, path in enumerate(paths)}


def _quoted(value: Insertion) -> str:
    """Return a value as one quoted bash word, in ASCII and on one line for any locale."""
    try:
        data = value.text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise RecipeError(
            f"Line {value.line}: the value of {{{{{value.path}}}}} contains a character that can't "
            f"be passed to a program (NUL, or a lone surrogate). Remove it first."
        )
    return "$'" + re.sub(rb"[^ -&(-\[\]-~]", lambda m: b"\\%03o" % m[0][0], data).decode() + "'"


def _reference(outer: Sequence[Node]) -> str:
    """Return how to reference the variable ``%s`` at a position, with the right quotes."""
    for node in outer:
        match node.type:
            case "string" | "heredoc_body" | "comment" | "variable_name":
                return "${%s}"
            case "raw_string":
                return "'\"${%s}\"'"
            case "command_substitution" | "process_substitution":
                break
    return '"${%s}"'


def _unquote_tag(outer: Sequence[Node]) -> dict[tuple[int, int], str]:
    """Return the edits that make a here-document expand variables but keep its other text literal.

    A quoted tag disables expansion. Inserting the value itself is not an option: it could contain a
    line that ends the here-document, followed by commands.
    """
    kinds = [node.type for node in outer]
    if "heredoc_body" not in kinds:
        return {}
    body, redirect = outer[kinds.index("heredoc_body") :][:2]
    if not (tag := quoted_tag(redirect)):
        return {}
    edits = {(tag.start_byte, tag.end_byte): re.sub(r"[\\'\"]", "", source(tag))}
    for match in re.finditer(rb"[\\$`]", body.text or b""):
        at = body.start_byte + match.start()
        edits[at, at + 1] = "\\" + match[0].decode()
    return edits
