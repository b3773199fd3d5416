r"""Values in bash commands: what a model wrote becomes data there, never a command.

A value's text stands in one place only, before the command: ``nb_value_0=$'…'; ``. Where the
recipe has ``{{x}}`` stands ``"${nb_value_0}"``, with the quotes that the place needs, and bash
doesn't read as code what an expansion gives. An empty value without quotes is no argument.

Bash looks again at some texts, and programs run some of theirs. So a value may be anything only
where it is known to stay data: in the arguments of a command that doesn't run them, in what is
assigned, in a here-document or a redirection, in ``for``, ``case`` and ``[[ == ]]``. Everywhere
else its characters must be harmless, in arithmetic those of a number; so they must be in all of a
command that runs text to which a value could get by way of a variable, a file or a pipe. Bash's
grammar (tree-sitter's) tells the places apart; a command that it can't read takes no values. In
Python code that a command gives as it stands, a value may be anything too where it stands in a text
or a comment: there it is written with Python's escapes (`nb_agents.recipes.python_texts`).

What this can't do:

- A program or script that isn't known here may run its arguments: ``./run.sh {{x}}`` is data for
  bash, and for ``run.sh`` what it makes of it. So may code in other languages, and what reads
  variables of the step's ``env``.
- A file that the command writes and then runs is followed by its name alone, and not when a
  program writes it that isn't known to.
- A value may name a file that isn't meant, with ``/`` or ``..`` in it.

``{{x | raw}}`` inserts the text as it is, as a part of the command: for text that the recipe's
author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tree_sitter import Node

from nb_agents.errors import RecipeError
from nb_agents.recipes.expression import as_text, lookup
from nb_agents.recipes.python_texts import NOT_RAW, escaped
from nb_agents.recipes.shell_flow import Tree, is_quoted, source
from nb_agents.recipes.shell_places import Script
from nb_agents.recipes.shell_programs import Rule, nowhere
from nb_agents.recipes.template import Insertion, fill, shapes

__all__ = ["Misplaced", "misplaced", "render_command"]

_PREFIX = "nb_value_"
_WORD = ("word", "concatenation")
_LISTS_WORDS = ("command", "command_name", "array", "for_statement")


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
    return _without_empty(pieces).rendered()


def _without_empty(pieces: list[str | Insertion]) -> _Command:
    """Return a command without the empty values that are whole words: they are no arguments.

    What is behind one then takes its place, so the command is read anew.
    """
    whole = _Command(pieces)
    absent = whole.absent()
    if not absent:
        return whole
    return _Command([piece for piece in pieces if not any(piece is each for each in absent)])


class Misplaced(NamedTuple):
    """A value in a command at a place where not any text is data.

    Attributes:
        line: Its line in the command, from 1.
        path: The variable.
        what: What is wrong, in a sentence.
        is_fault: Whether it doesn't belong there; else it is refused when it isn't harmless.
    """

    line: int
    path: str
    what: str
    is_fault: bool


def misplaced(
    command: str, is_set: Callable[[str], bool], known: Mapping[str, Any]
) -> list[Misplaced]:
    """Find the values of a command that may be refused, before they are there.

    Args:
        command: The template.
        is_set: Tells whether something sets a variable.
        known: The values that are known, by name.

    Returns:
        One for each value and line, the worst.
    """
    found: dict[tuple[int, str], Misplaced] = {}
    for pieces in shapes(command, is_set):
        values = [piece for piece in pieces if isinstance(piece, Insertion)]
        if not values or any(value.is_raw for value in values):
            continue  # what is raw can't be read before
        for value, rule in _Command(pieces).rules():
            at, before = (value.line, value.path), found.get((value.line, value.path))
            is_worse = before is None or (rule.is_fault and not before.is_fault)
            if is_worse and not rule.is_silent and not _is_known_as(value.path, rule, known):
                found[at] = Misplaced(*at, rule.refusal(value.path), rule.is_fault)
    return list(found.values())


def _is_known_as(path: str, rule: Rule, known: Mapping[str, Any]) -> bool:
    try:
        text = as_text(lookup(known, path))
    except RecipeError:
        return False
    return rule.allows(text)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a value goes; the variable's name stands there while bash's grammar is read."""

    value: Insertion
    name: str
    at: range


class _Command:
    """A command, in bytes because tree-sitter counts them."""

    def __init__(self, pieces: list[str | Insertion]) -> None:
        names = _names(pieces)
        self._slots: list[_Slot] = []
        self._source = b""
        for piece in pieces:
            start = len(self._source)
            if isinstance(piece, Insertion):
                name = names[piece.path]
                self._slots.append(_Slot(piece, name, range(start, start + len(name))))
                piece = name
            self._source += piece.encode("utf-8", "surrogatepass")
        self._tree = Tree(self._source)
        self._script = Script(self._tree, [slot.at for slot in self._slots])

    def rendered(self) -> str:
        """Return the script, or raise what is wrong with it."""
        for value, rule in self.rules():
            if not rule.allows(value.text):
                raise RecipeError(f"Line {value.line}: {rule.refusal(value.path)}")
        texts = self._script.texts
        edits = {(mark.start, mark.stop): NOT_RAW for mark in texts.values() if mark}
        values: dict[str, Insertion] = {}
        for slot in self._slots:
            name, value = slot.name, slot.value
            if slot.at in texts:
                name, value = f"{name}_text", replace(value, text=escaped(value.text))
            values[name] = value
            around = list(self._tree.around(self._tree.leaf(slot.at)))
            edits |= _without_quotes(around)
            edits[slot.at.start, slot.at.stop] = _reference(around) % name
        script, at = "", 0
        for (start, end), text in sorted(edits.items()):
            script += self._text(at, start) + text
            at = end
        head = "".join(f"{name}={_quoted(value)}; " for name, value in values.items())
        return head + script + self._text(at, len(self._source))

    def absent(self) -> list[Insertion]:
        """Return the empty values that stand as words, or as parts of one, without quotes."""
        empty = [slot for slot in self._slots if not slot.value.text]
        return [slot.value for slot in empty if self._is_word(slot)]

    def _is_word(self, slot: _Slot) -> bool:
        around = self._tree.around(self._tree.leaf(slot.at))
        holder = next(node.type for node in around if node.type not in _WORD)
        return holder in _LISTS_WORDS

    def rules(self) -> Iterator[tuple[Insertion, Rule]]:
        """Yield what each value must be like."""
        if self._tree.error_line:
            where = f"in a command whose line {self._tree.error_line} can't be read as bash"
            yield from ((slot.value, nowhere(where)) for slot in self._slots)
            return
        for slot in self._slots:
            yield from ((slot.value, rule) for rule in self._script.rules(slot.at))

    def _text(self, start: int, end: int) -> str:
        return self._source[start:end].decode("utf-8", "surrogatepass")


def _names(pieces: list[str | Insertion]) -> dict[str, str]:
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


def _reference(around: Sequence[Node]) -> str:
    """Return how to write the variable, ``%s`` being its name, so that it is one word or part."""
    for node in around:
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


def _without_quotes(around: Sequence[Node]) -> dict[tuple[int, int], str]:
    """Make the here-document around a place expand its variables, its own text unchanged.

    With a quoted tag nothing in it is expanded. A value inserted as text could hold a line that
    ends it, and then go on as commands.
    """
    kinds = [node.type for node in around]
    if "heredoc_body" not in kinds:
        return {}
    body, redirect = around[kinds.index("heredoc_body") :][:2]
    if not is_quoted(redirect):
        return {}
    tag = next(child for child in redirect.children if child.type == "heredoc_start")
    edits = {(tag.start_byte, tag.end_byte): re.sub(r"[\\'\"]", "", source(tag))}
    for match in re.finditer(rb"[\\$`]", body.text or b""):
        at = body.start_byte + match.start()
        edits[at, at + 1] = "\\" + match[0].decode()
    return edits
