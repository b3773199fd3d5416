r"""Values in bash commands: what somebody else wrote becomes data there, never a command.

A value's text stands in one place only, before the command: ``nb_value_0=$'…'; ``. Where the
recipe has ``{{x}}`` stands ``"${nb_value_0}"``, with the quotes that the place needs, and bash
doesn't read as code what an expansion gives. An empty value without quotes is no argument.

A value never becomes syntax of the recipe's own command, nor an option of a program that it names;
what the script or the programs in it do with data that they were given or that it had them write is
theirs. Whose word a value is decides what it may be:

- What the recipe's author or who starts it gave is trusted as the command itself is. It is quoted
  where the place is a text, and a part of the command elsewhere, as for the name of a program.
- What models, commands, files and the rows of a sweep gave, and what is made of it, may be anything
  where bash's grammar (tree-sitter's) has a text. A number must stand where bash calculates, and
  nothing that begins with ``-`` where an option could (`nb_agents.recipes.shell_places`).
- In a command that also runs text as code (`nb_agents.recipes.shell_evaluators`), or that the
  grammar can't read, such a value must be of harmless characters, and none stands in a shell's
  code, ``${…}``, ``$'…'`` or backticks. Others go into the step's `env`.

``{{x | raw}}`` inserts any value as it is, as a part of the command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from subprocess import run
from typing import Any, NamedTuple

from tree_sitter import Node

from nb_agents.errors import RecipeError
from nb_agents.recipes.shell_places import Rule, Script
from nb_agents.recipes.shell_tree import Tree, around, quoted_tag, source
from nb_agents.recipes.template import Insertion, fill, shapes

_PREFIX = "nb_value_"
_WORD = ("word", "concatenation")
_LISTS_WORDS = ("command", "command_name", "array", "for_statement")

Pieces = Sequence[str | Insertion]


def render_command(
    command: str, context: Mapping[str, Any], trusted: Collection[str] = frozenset()
) -> str:
    """Fill a bash command in, so that no value of somebody else can become a command.

    Args:
        command: The template.
        context: Values by name.
        trusted: The names of those that the recipe's author or who started it gave.

    Returns:
        The script for ``bash -c``. Its lines have the numbers that the filled-in template's have,
        but where a trusted value that is a part of the command has lines of its own.

    Raises:
        RecipeError: A variable is not defined, or holds what can't stand where it stands.
    """
    pieces: Pieces = [
        piece.text if isinstance(piece, Insertion) and piece.is_raw else piece
        for piece in fill(command, context)
    ]
    whole = _Command(pieces, trusted)
    while (fewer := whole.reduced()) != pieces:  # the command is another one then
        whole = _Command(pieces := fewer, trusted)
    return whole.rendered()


class Misplaced(NamedTuple):
    """A value in a command at a place where not any text is data.

    Attributes:
        line: Its line in the command, from 1.
        path: The variable.
        what: What is wrong, in a sentence.
        is_fault: Whether no such value can stand there; else one of harmless characters can.
    """

    line: int
    path: str
    what: str
    is_fault: bool


def misplaced(
    command: str, is_set: Callable[[str], bool], trusted: Collection[str]
) -> list[Misplaced]:
    """Find the values of a command that may be refused, before they are there.

    Args:
        command: The template.
        is_set: Tells whether something sets a variable.
        trusted: The names of those that are the author's or the starter's.

    Returns:
        One for each value and line, the worst.
    """
    found: dict[tuple[int, str], Misplaced] = {}
    for pieces in shapes(command, is_set):
        values = [piece for piece in pieces if isinstance(piece, Insertion)]
        if not values or any(value.is_raw for value in values):
            continue  # what is raw can't be read before
        whole = _Command(pieces, trusted)
        if why := whole.fault():
            return [Misplaced(whole.error_line or 1, "", f"It is no bash: {why}.", is_fault=True)]
        for value, rule in (each for each in whole.rules() if each[1].is_restrictive):
            is_fault = rule.allowed is None and not whole.error_line
            new = Misplaced(value.line, value.path, rule.refusal(value.path), is_fault)
            found[new[:2]] = max(found.get(new[:2], new), new, key=lambda each: each.is_fault)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a value goes; the variable's name stands there while bash's grammar is read."""

    value: Insertion
    name: str
    at: range
    is_trusted: bool


class _Command:
    """A command, in bytes because tree-sitter counts them."""

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
        """Return what bash says of a command that the grammar can't read; "" when it can."""
        if not self.error_line:
            return ""
        said = run(["bash", "-n"], input=self._source, capture_output=True, check=False)
        return said.stderr.decode(errors="replace").strip().partition("\n")[0]

    def rendered(self) -> str:
        """Return the script, or raise what is wrong with it."""
        for value, rule in self.rules():
            if not rule.allows(value.text):
                raise RecipeError(f"Line {value.line}: {rule.refusal(value.path)}")
        if self.error_line:  # all are harmless in any quotes
            return "".join(p.text if isinstance(p, Insertion) else p for p in self._pieces)
        edits: dict[tuple[int, int], str] = {}
        for slot in self._slots:
            outer = list(around(self._tree.leaf(slot.at)))
            edits |= _without_quotes(outer)
            edits[slot.at.start, slot.at.stop] = _reference(outer) % slot.name
        script, at = "", 0
        for (start, end), text in sorted(edits.items()):
            script += self._text(at, start) + text
            at = end
        values = {slot.name: slot.value for slot in self._slots}
        head = "".join(f"{name}={_quoted(value)}; " for name, value in values.items())
        return head + script + self._text(at, len(self._source))

    def reduced(self) -> Pieces:
        """Return the pieces without empty values that are words, or parts of one, without quotes.

        A trusted value that is no text in the command is a part of it.
        """
        slots, found = iter(self._slots), list[str | Insertion]()
        for piece in self._pieces:
            if isinstance(piece, Insertion):
                slot = next(slots)
                if not piece.text and self._is_word(slot):
                    continue
                is_part = slot.is_trusted and not (self.error_line or self._script.is_text(slot.at))
                piece = piece.text if is_part else piece
            found.append(piece)
        return found

    def _is_word(self, slot: _Slot) -> bool:
        outer = around(self._tree.leaf(slot.at))
        holder = next(node.type for node in outer if node.type not in _WORD)
        return holder in _LISTS_WORDS

    def rules(self) -> list[tuple[Insertion, Rule]]:
        """Return what each value must be like that may not be any text."""
        is_read = not self.error_line
        fenced = [slot for slot in self._slots if not (slot.is_trusted and is_read)]
        return [(slot.value, rule) for slot in fenced for rule in self._script.rules(slot.at)]

    def _text(self, start: int, end: int) -> str:
        return self._source[start:end].decode("utf-8", "surrogatepass")


def _names(pieces: Pieces) -> dict[str, str]:
    """Return a bash variable for each path, under names that the command does not use."""
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


def _reference(outer: Sequence[Node]) -> str:
    """Return how to write the variable, ``%s`` being its name, so that it is one word or part."""
    for node in outer:
        match node.type:
            case "string" | "heredoc_body" | "comment" | "variable_name":
                return "${%s}"
            case "raw_string":
                return "'\"${%s}\"'"
            case "command_substitution" | "process_substitution":
                break
    return '"${%s}"'


def _without_quotes(outer: Sequence[Node]) -> dict[tuple[int, int], str]:
    """Make the here-document around a place expand its variables, its own text unchanged.

    With a quoted tag nothing in it is expanded. A value inserted as text could hold a line that
    ends it, and then go on as commands.
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
