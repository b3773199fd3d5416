"""The places of a bash command, and what a value of somebody else must be like in each.

Any text may stand where the grammar has a text (`_TEXTS`) in something that passes texts on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tree_sitter import Node

from nb_agents.recipes import shell_programs as programs
from nb_agents.recipes.shell_evaluators import Evaluators
from nb_agents.recipes.shell_tree import Tree, Word, around, is_arithmetic, quoted_tag, source

_BARE = {"word", "regex", "extglob_pattern", "number"}
_TEXTS = _BARE | {
    *("string", "string_content", "raw_string", "comment", "variable_name"),
    *("heredoc_body", "heredoc_content"),
}
_NO_PLACES = {
    *("brace_expression", "simple_expansion", "expansion", "ansi_c_string", "heredoc_start"),
    "ERROR",
}
_NAMES = {
    *(("word", "function_definition"), ("variable_name", "variable_assignment")),
    *(("variable_name", "for_statement"), ("variable_name", "declaration_command")),
    *(("variable_name", "unset_command"), ("variable_name", "subscript")),
}
_QUOTED = ("string", "raw_string")
_UNCLEAR = re.compile(rb"\\$"), re.compile(rb"`|(?<!\\)['\"]|\\$")
_OUTPUTS = ("command_substitution", "process_substitution")
_OPENS = re.compile(rb"(?:^|[;&|(){}\n`!]|\b(?:then|do|else|elif|if|while|until)\s)\s*$")


class Rule(NamedTuple):
    """What a value must be like in a place.

    Attributes:
        where: The place, in words.
        allowed: What the value must match; None when none can stand there.
        what: The allowed values, in words.
        remedy: What to do first, before all that helps everywhere.
        whose: Whose values it is for, in words.
    """

    where: str
    allowed: re.Pattern[str] | None = None
    what: str = ""
    remedy: str = ""
    whose: str = ", which a step or a row gave,"

    def allows(self, text: str) -> bool:
        """Return whether a value can stand there."""
        return self.allowed is not None and bool(self.allowed.fullmatch(text))

    @property
    def is_restrictive(self) -> bool:
        """Whether ordinary texts can't stand there, so that it is told before any is known."""
        return self.allowed in (None, _WORD, HARMLESS)

    def refusal(self, path: str) -> str:
        """Return why a value can't stand there, in a sentence, and what to do.

        Args:
            path: The variable.
        """
        name, variable = f"{{{{{path}}}}}", re.sub(r"\W", "_", path).upper()
        only = (
            f"only {self.what}" if self.allowed else "no such value" if self.whose else "no value"
        )
        return (
            f"{name}{self.whose} stands {self.where}: {only} can stand there. "
            f'{self.remedy}Give it in the step\'s env, as in `env: {{{variable}: "{name}"}}`, and '
            f'write "${variable}", or write {{{{{path} | raw}}}} to insert it as a part of the '
            "command."
        )


_DIGITS = r"[-+]?[0-9]*\.?[0-9]*"
_NUMBER = re.compile(_DIGITS)
_PLAIN_NUMBER = re.compile(r"[0-9]*\.?[0-9]*")
_WORD = re.compile(rf"{_DIGITS}|[A-Za-z0-9_.][A-Za-z0-9_.-]*")
HARMLESS = re.compile(rf"{_DIGITS}|[A-Za-z0-9_./:,@][A-Za-z0-9_./:,@+-]*")
"""Characters that mean nothing to a shell."""
_CHARACTERS = "letters, digits and _./:,@+-"


class Script:
    """A command with values in it.

    Args:
        tree: The command.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._evaluators = Evaluators(tree)
        self._commands = [tree.words(node) for node in tree.nodes if node.type == "command"]

    def is_text(self, slot: range) -> bool:
        """Return whether a value is a text where it stands, as far as the grammar goes."""
        leaf = self._tree.leaf(slot)
        is_program = leaf.type == "word" and "program" in (kind for _, kind in self._places(slot))
        return not is_program and next(_no_text(self._tree, slot), None) is None

    def rules(self, slot: range) -> Iterator[Rule]:
        """Yield what a value must be like that somebody else gave; nothing for any."""
        if line := self._tree.error_line:
            where = f"in a command whose line {line} can't be read here"
            is_name = _OPENS.search(self._tree.bytes[: slot.start])
            yield Rule(where, None if is_name else HARMLESS, _CHARACTERS, whose="")
            return
        yield from _no_text(self._tree, slot)
        outer = list(around(self._tree.leaf(slot)))
        # What a program prints in its place is no longer the value.
        direct = list(itertools.takewhile(lambda node: node.type not in _OUTPUTS, outer))
        if any(map(is_arithmetic, direct)):
            yield Rule("in arithmetic", _NUMBER, "a number", "See that it is one. ")
        for node, kind in self._places(slot):
            if kind == "program":
                allowed = HARMLESS if "/" in self._tree.word(node).tail else None
                yield Rule("for the name of a program", allowed, _CHARACTERS)
            else:
                yield Rule(_NAME) if kind == "variable" else self._code(slot, node, kind)
        if self._evaluators.what:
            where = f"in a command that also runs text as code: {self._evaluators.what}"
            yield Rule(where, HARMLESS, _CHARACTERS)
        for words in self._commands:
            yield from self._argument(words, direct)

    def _places(self, slot: range) -> list[tuple[Node, str]]:
        """Return what is run or named and has a value in it, with its kind."""
        return [each for each in self._evaluators.places if slot in self._tree.slots_in(each[0])]

    def _code(self, slot: range, node: Node, kind: str) -> Rule:
        """Return the rule of a place in code: a word may be a part of Python's or a filter's."""
        where = f"in what {'is run' if kind == 'code' else f'{kind} runs'} as code"
        before = self._tree.bytes[node.start_byte : slot.start]
        before = re.sub(rb"^\d*<.*\n?", b"", before)  # the first line is no here-document's
        after = self._tree.bytes[slot.stop : node.end_byte - (node.type in _QUOTED)]
        if kind == "code" or not before.strip(b"\"' \n"):
            return Rule(where)
        is_part = _DELIMITED[0].search(before) and _DELIMITED[1].match(after)
        return Rule(where, _WORD, "letters, digits and _.-") if is_part else _number(where)

    def _argument(self, words: Sequence[Word], direct: Sequence[Node]) -> Iterator[Rule]:
        """Yield the rule of an argument that a program may take for an option."""
        at = next((n for n, word in enumerate(words) if word.node in direct), 0)
        if not at:
            return
        word, before = words[at], [each.text or "" for each in words[:at]]
        name, is_text = before[0].rpartition("/")[2], programs.takes_text
        if word.head.startswith("-") and "=" not in word.head:
            if not is_text([*before, word.head]):
                remedy = "Write it as a word of its own, or behind `=`. "
                yield _number("in the name of an option", remedy)
        elif name == "tar" and at == 1 and not word.head:
            yield _number("in the name of an option")
        elif not (word.head or "--" in before or is_text(before) or (name == "printf" and at > 1)):
            if name == "echo":
                remedy = "Write printf with a format before it. "
                yield Rule(_AS_OPTION, _NO_ECHO_OPTION, "what is no option of echo", remedy)
            else:
                remedy = "Write -- or ./ before it. "
                signs = ("- or +", _NO_SIGN) if name == "set" else ("-", _NO_OPTION)
                yield Rule(_AS_OPTION, signs[1], f"what doesn't begin with {signs[0]}", remedy)


def _number(where: str, remedy: str = "See that it is one. ") -> Rule:
    return Rule(where, _PLAIN_NUMBER, "a number", remedy)


_NAME = "for the name of a variable or function"
_AS_OPTION = "where a program may take it for an option"
_NO_OPTION = re.compile(r"(?!-).*", re.DOTALL)
_NO_SIGN = re.compile(r"(?![-+]).*", re.DOTALL)
_NO_ECHO_OPTION = re.compile(r"(?!-[neE]+$).*", re.DOTALL)
_DELIMITED = re.compile(rb"['\"(\[/|#%@:_= ^]$"), re.compile(rb"['\")\]/|#%@:_,. $]")


def _no_text(tree: Tree, slot: range) -> Iterator[Rule]:
    """Yield a rule where no way of quoting a value is known to be right."""
    outer = list(around(tree.leaf(slot)))
    leaf, parent = (*outer, None)[:2]
    assert leaf is not None
    before = source(leaf).encode(errors="surrogateescape")[: slot.start - leaf.start_byte]
    if leaf.type not in _TEXTS or parent is None:
        yield Rule("where bash has no text")
    elif (leaf.type, parent.type) in _NAMES:
        yield Rule(_NAME)
    elif leaf.type != "raw_string" and _UNCLEAR[leaf.type in _BARE].search(before):
        yield Rule("behind a quote or backslash of which it isn't clear what it does")
    for holder in outer:
        if holder.type in _NO_PLACES or (holder.children and holder.children[0].type == "`"):
            yield Rule("in ${…}, {…}, $'…' or backticks")
        elif holder.type == "heredoc_body" and holder.parent:
            tag = quoted_tag(holder.parent)
            if tag and not re.fullmatch(r"\\?['\"]?[\w.-]+['\"]?", source(tag)):
                yield Rule("in a here-document with an unusual tag")
            elif not tag and re.search(r"(?<!\\)`", source(holder)):
                yield Rule("in a here-document that has backticks")
