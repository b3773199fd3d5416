"""Decides which values may be inserted at each position in a bash command.

Applies to values that were written by neither the recipe's author nor the user. At positions where
the grammar has text that bash does not interpret (`_TEXTS`), any value is allowed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tree_sitter import Node

from nb_agents.extensions.recipes import shell_programs as programs
from nb_agents.extensions.recipes.shell_allowlist import AllowList, script_of
from nb_agents.extensions.recipes.shell_tree import (
    Tree,
    Word,
    ancestors,
    is_arithmetic,
    quoted_tag,
    source,
)

_BARE = {"word", "regex", "extglob_pattern", "number"}
_TEXTS = _BARE | {
    *("string", "string_content", "raw_string", "comment", "variable_name"),
    *("heredoc_body", "heredoc_content"),
}
_UNSAFE_NODES = {
    *("brace_expression", "simple_expansion", "expansion", "ansi_c_string", "heredoc_start"),
    "ERROR",
}
_NAMES = {
    *(("word", "function_definition"), ("variable_name", "variable_assignment")),
    *(("variable_name", "for_statement"), ("variable_name", "declaration_command")),
    *(("variable_name", "unset_command"), ("variable_name", "subscript")),
}
_QUOTED = ("string", "raw_string")
_OPEN_QUOTING = re.compile(rb"\\$"), re.compile(rb"`|(?<!\\)['\"]|\\$")
_OUTPUTS = ("command_substitution", "process_substitution")
_COMMAND_START = re.compile(rb"(?:^|[;&|(){}\n`!]|\b(?:then|do|else|elif|if|while|until)\s)\s*$")


class Rule(NamedTuple):
    """The values that are allowed at a position in a command.

    Attributes:
        where: A description of the position.
        allowed: A pattern that the value must match, or None if no value is allowed.
        what: A description of the allowed values.
        remedy: Advice for this position, which precedes the general advice.
        whose: A description of the values to which the rule applies.
        is_restrictive: Whether the rule refuses ordinary text. A check reports it before values are
            known.
    """

    where: str
    allowed: re.Pattern[str] | None = None
    what: str = ""
    remedy: str = ""
    whose: str = ", which comes from a step or a row,"
    is_restrictive: bool = True

    def allows(self, text: str) -> bool:
        """Return whether the rule allows a value."""
        return self.allowed is not None and bool(self.allowed.fullmatch(text))

    def refusal(self, path: str) -> str:
        """Return an error message for a refused value, with advice.

        Args:
            path: The variable.
        """
        name, variable = f"{{{{{path}}}}}", re.sub(r"\W", "_", path).upper()
        allowed = (
            f"only {self.what}" if self.allowed else "no such value" if self.whose else "no value"
        )
        return (
            f"{name}{self.whose} is used {self.where}: {allowed} can be inserted there. "
            f'{self.remedy}Pass it in the step\'s env, as in `env: {{{variable}: "{name}"}}`, and '
            f'write "${variable}", or write {{{{{path} | raw}}}} to insert it as part of the '
            "command."
        )


_DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)?"
_PLAIN_NUMBER = re.compile(_DIGITS)
_NUMBER = re.compile(rf"[-+]?{_DIGITS}(?<![-+])")
HARMLESS = re.compile(rf"{_NUMBER.pattern}|[A-Za-z0-9_./:,@][A-Za-z0-9_./:,@+-]*")
"""Characters without a meaning to a shell."""
_CHARACTERS = "letters, digits and _./:,@+-"


class Script:
    """A command into which values are inserted.

    Args:
        tree: The parsed command.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._allowed = AllowList(tree)
        self._commands = [tree.words(node) for node in tree.nodes if node.type == "command"]
        self._programs = [word.node for words in self._commands for word in _programs(words)]

    def is_text(self, slot: range) -> bool:
        """Return whether a value is where bash's grammar allows arbitrary text."""
        is_program = self._tree.leaf(slot).type == "word" and self._is_program(slot)
        return not is_program and next(_rules_outside_text(self._tree, slot), None) is None

    def rules(self, slot: range) -> Iterator[Rule]:
        """Yield the rules for an untrusted value. No rules means that any value is allowed."""
        if line := self._tree.error_line:
            where = f"in a command with a syntax error or unsupported syntax in line {line}"
            is_name = _COMMAND_START.search(self._tree.bytes[: slot.start])
            yield Rule(where, None if is_name else HARMLESS, _CHARACTERS, whose="")
            return
        yield from _rules_outside_text(self._tree, slot)
        outer = list(ancestors(self._tree.leaf(slot)))
        if self._is_program(slot):
            yield Rule("as the name of a program")
        # The output of a command substitution is no longer the value itself.
        direct = list(itertools.takewhile(lambda node: node.type not in _OUTPUTS, outer))
        for words in self._commands:
            yield from self._argument(words, direct)
        if any(map(is_arithmetic, direct)):
            yield Rule("in arithmetic", _NUMBER, "a number", _CHECK_NUMBER, is_restrictive=False)
        if description := self._allowed.around(outer):
            yield Rule(f"where {description} may run it as code", _NUMBER, "a number")
        elif description := self._allowed.unlisted:
            yield Rule(f"in a command that also contains {description}", HARMLESS, _CHARACTERS)

    def _is_program(self, slot: range) -> bool:
        """Return whether a value is part of a program's name."""
        return any(slot in self._tree.slots_in(node) for node in self._programs)

    def _argument(self, words: Sequence[Word], direct: Sequence[Node]) -> Iterator[Rule]:
        """Yield the rule for an argument that a program might read as an option."""
        at = next((n for n, word in enumerate(words) if word.node in direct), 0)
        if not at:
            return
        word, before = words[at], [each.text or "" for each in words[:at]]
        name, is_text = programs.basename(before[0]), programs.takes_text
        if word.head.startswith("-") and "=" not in word.head:
            if not is_text([*before, word.head]):
                remedy = "Write it as a separate word, or after `=`. "
                yield _number("in the name of an option", remedy)
        elif name == "tar" and at == 1 and not word.head:
            yield _number("in the name of an option", _CHECK_NUMBER)
        elif not (word.head or "--" in before or is_text(before) or (name == "printf" and at > 1)):
            if name == "echo":
                remedy = "Use printf with a format instead. "
                description, allowed = "text other than echo's options", _NO_ECHO_OPTION
            else:
                remedy = "Write -- or ./ before it. "
                sign, allowed = ("- or +", _NO_SIGN) if name == "set" else ("-", _NO_OPTION)
                description = f"text that does not begin with {sign}"
            yield Rule(_AS_OPTION, allowed, description, remedy, is_restrictive=False)


def _programs(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the words that name the program of a command, and programs that it starts."""
    if words and (script := script_of(words)):
        yield script
    is_next = True
    name = programs.basename(words[0].text or "") if words else ""
    for word in words:
        if is_next and not (word is not words[0] and programs.BEFORE_PROGRAM.match(word.head)):
            yield word
            is_next = programs.basename(word.text or "") in programs.WRAPPERS
        is_next |= name not in programs.INERT and bool(programs.STARTING.fullmatch(word.text or ""))


def _number(where: str, remedy: str) -> Rule:
    return Rule(where, _PLAIN_NUMBER, "a number", remedy, is_restrictive=False)


_CHECK_NUMBER = "Check that it is a number. "
_NAME = "as the name of a variable or function"
_AS_OPTION = "where a program may read it as an option"
_NO_OPTION = re.compile(r"(?!-).*", re.DOTALL)
_NO_SIGN = re.compile(r"(?![-+]).*", re.DOTALL)
_NO_ECHO_OPTION = re.compile(r"(?!-[neE]+$).*", re.DOTALL)


def _rules_outside_text(tree: Tree, slot: range) -> Iterator[Rule]:
    """Yield a rule for a position where the value can't be quoted reliably."""
    outer = list(ancestors(tree.leaf(slot)))
    leaf, parent = (*outer, None)[:2]
    assert leaf is not None
    before = source(leaf).encode(errors="surrogateescape")[: slot.start - leaf.start_byte]
    if leaf.type not in _TEXTS or parent is None:
        yield Rule("where bash expects no text")
    elif (leaf.type, parent.type) in _NAMES:
        yield Rule(_NAME)
    elif leaf.type != "raw_string" and _OPEN_QUOTING[leaf.type in _BARE].search(before):
        yield Rule("after a quote or backslash with an unclear meaning")
    for holder in outer:
        if holder.type in _UNSAFE_NODES or (holder.children and holder.children[0].type == "`"):
            yield Rule("in ${…}, {…}, $'…' or backticks")
        elif holder.type == "heredoc_body" and holder.parent:
            tag = quoted_tag(holder.parent)
            if tag and not re.fullmatch(r"\\?['\"]?[\w.-]+['\"]?", source(tag)):
                yield Rule("in a here-document with an unusual tag")
            elif not tag and re.search(r"(?<!\\)`", source(holder)):
                yield Rule("in a here-document with backticks")
