"""Parses a bash command into a tree and its words.

Uses tree-sitter's bash grammar. The grammar rejects Jinja's ``{%``, which bash would read as a
command name, so it is replaced with a name of the same length before parsing.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_JINJA = re.compile(rb"(?<!\S)\{%(?=\s)")
_EXPANSIONS = {
    *("simple_expansion", "expansion", "arithmetic_expansion", "brace_expression"),
    *("command_substitution", "process_substitution"),
}
"""Kinds of nodes that bash replaces with other text."""
COMPARES = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge)\s")
"""The numeric comparison operators of ``[[``."""
_BRACES = re.compile(r"\{[^{}\s]*(,|\.\.)")
_QUOTES = re.compile(
    r"(?P<is_ansi>\$)?'(?P<raw>[^']*)'|\$?\"(?P<string>(?:[^\"\\]|\\.)*)\"|\\(?P<escaped>.)|[*?\[]",
    re.DOTALL,
)


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Word(NamedTuple):
    """A word of a command, without quotes.

    Attributes:
        node: The node of the word.
        text: The whole word, or None if part of it is only known when the command runs.
        head: The known text at its start.
        tail: The known text at its end.
    """

    node: Node
    text: str | None
    head: str = ""
    tail: str = ""


class Tree:
    """A parsed command.

    Args:
        command: The command's text.
        slots: The byte ranges of inserted values, in order.

    Attributes:
        nodes: All named nodes, in order.
        error_line: The line of the first syntax error, starting at 1, or None if there is none.
        bytes: The command's text in UTF-8.
    """

    def __init__(self, command: bytes, slots: Sequence[range] = ()) -> None:
        self.bytes = command
        self._slots = slots
        self._starts = [slot.start for slot in slots]
        self._root = _parser().parse(command).root_node
        if self._root.has_error:
            self._root = _parser().parse(_JINJA.sub(b": ", command)).root_node
        self.nodes = list(nodes(self._root))
        errors = (node for node in self.nodes if node.is_error or node.is_missing)
        lines = (node.start_point.row + 1 for node in errors)
        self.error_line = next(lines, 1) if self._root.has_error else None

    def leaf(self, at: range) -> Node:
        """Return the smallest node that contains a range of bytes."""
        leaf = self._root.descendant_for_byte_range(at.start, at.stop)
        assert leaf is not None
        return leaf

    def slots_in(self, node: Node) -> Sequence[range]:
        """Return the inserted values in a node."""
        first = bisect.bisect_left(self._starts, node.start_byte)
        return self._slots[first : bisect.bisect_left(self._starts, node.end_byte)]

    # Words ------------------------------------------------------------------------------------

    def words(self, command: Node) -> list[Word]:
        """Return a command's words in order, starting with its name."""
        kinds = ("name", "argument")
        fields = [each for kind in kinds for each in command.children_by_field_name(kind)]
        return [self.word(node) for node in fields if not self._is_descriptor(node)]

    def parts(self, test: Node) -> list[Word]:
        """Return the words and operators of a test in order, without the grammar's grouping."""
        words: list[Word] = []
        for child in test.children:
            is_group = re.match("binary|unary|parenthesized", child.type)
            words += self.parts(child) if is_group else [self.word(child)]
        return words

    def _is_descriptor(self, node: Node) -> bool:
        """Return whether a node is a file descriptor, such as the ``0`` of ``0<file``."""
        is_before = self.bytes[node.end_byte : node.end_byte + 1] in (b"<", b">")
        return is_before and bool(re.fullmatch(r"\d+|\{\w+\}", source(node)))

    def word(self, node: Node) -> Word:
        """Return a word without its quotes."""
        holes = [range(n.start_byte, n.end_byte) for n in nodes(node) if n.type in _EXPANSIONS]
        written = self.around_holes(node, [*holes, *self.slots_in(node)], b"\0")
        if node.type == "concatenation" and _BRACES.search(written):
            written = f"\0{written}"
        unquoted = written if written == "[" else _QUOTES.sub(_unquoted, written)
        head, *more = unquoted.split("\0")
        return Word(node, None if more else head, head, [head, *more][-1])

    def around_holes(self, node: Node, holes: Iterable[range], mark: bytes) -> str:
        """Return a node's text, with each hole (a range of bytes) replaced with a mark."""
        text, at = b"", node.start_byte
        for hole in sorted(holes, key=lambda hole: hole.start):
            if hole.start >= at:
                text += self.bytes[at : hole.start] + mark
                at = hole.stop
        return (text + self.bytes[at : node.end_byte]).decode(errors="surrogateescape")


def _unquoted(match: re.Match[str]) -> str:
    """Return the unquoted text of a part of a word, or NUL if it is not known."""
    if match["raw"] is not None:
        return match["raw"] if match["is_ansi"] is None or "\\" not in match["raw"] else "\0"
    if match["string"] is not None:
        return re.sub(r'\\([$`"\\])|\\\n', r"\1", match["string"])
    return "\0" if match["escaped"] is None else match["escaped"].replace("\n", "")


def ancestors(node: Node | None) -> Iterator[Node]:
    """Yield a node and its ancestors."""
    while node is not None:
        yield node
        node = node.parent


def source(node: Node | None) -> str:
    """Return the text of a node."""
    return ((node.text if node else None) or b"").decode(errors="surrogateescape")


def nodes(root: Node) -> Iterator[Node]:
    """Yield a node and its named descendants, in order."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.named_children)


def is_arithmetic(node: Node) -> bool:
    """Return whether bash evaluates a node as arithmetic or as an array subscript."""
    opening = node.children[0].type if node.children else ""
    return (
        node.type in ("arithmetic_expansion", "c_style_for_statement", "subscript", "array")
        or opening == "(("
        or (opening == "[[" and bool(COMPARES.search(source(node))))
    )


def quoted_tag(redirect: Node) -> Node | None:
    """Return the quoted tag of a here-document, or None. A quoted tag prevents expansion."""
    tags = (child for child in redirect.children if child.type == "heredoc_start")
    return next((tag for tag in tags if re.search(r"[\\'\"]", source(tag))), None)
