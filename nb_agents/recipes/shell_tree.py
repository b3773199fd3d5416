"""A bash command as a tree, and its words as far as they can be read there.

The tree is by tree-sitter's grammar of bash. That fails at Jinja's ``{%``, the name of a command to
bash: it is shown another of the same length.
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
_FILLING = {
    *("simple_expansion", "expansion", "arithmetic_expansion", "brace_expression"),
    *("command_substitution", "process_substitution"),
}
"""Kinds of nodes in whose place bash puts something."""
COMPARES = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge)\s")
"""How ``[[`` compares numbers."""
_BRACES = re.compile(r"\{[^{}\s]*(,|\.\.)")
_QUOTES = re.compile(
    r"(?P<is_ansi>\$)?'(?P<raw>[^']*)'|\$?\"(?P<string>(?:[^\"\\]|\\.)*)\"|\\(?P<escaped>.)|[*?\[]",
    re.DOTALL,
)


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Word(NamedTuple):
    """A word of a command without its quotes, as far as it can be read there.

    Attributes:
        node: Where it stands.
        text: All of it; None where bash, a program or a value fills something in.
        head: What it begins with.
        tail: What it ends with.
    """

    node: Node
    text: str | None
    head: str = ""
    tail: str = ""


class Tree:
    """A parsed command.

    Args:
        command: Its text.
        slots: The bytes where values stand, in order.

    Attributes:
        nodes: All named nodes, in order.
        error_line: Where it can't be read, from 1; None when it can.
        bytes: The command.
    """

    def __init__(self, command: bytes, slots: Sequence[range] = ()) -> None:
        self.bytes = command
        self._slots = slots
        self._starts = [slot.start for slot in slots]
        self._root = _parser().parse(command).root_node
        if self._root.has_error:
            self._root = _parser().parse(_JINJA.sub(b": ", command)).root_node
        self.nodes = list(nodes(self._root))
        faults = (node for node in self.nodes if node.is_error or node.is_missing)
        lines = (node.start_point.row + 1 for node in faults)
        self.error_line = next(lines, 1) if self._root.has_error else None

    def leaf(self, at: range) -> Node:
        """Return the smallest node around some bytes."""
        leaf = self._root.descendant_for_byte_range(at.start, at.stop)
        assert leaf is not None
        return leaf

    def slots_in(self, node: Node) -> Sequence[range]:
        """Return the values that stand in a node."""
        first = bisect.bisect_left(self._starts, node.start_byte)
        return self._slots[first : bisect.bisect_left(self._starts, node.end_byte)]

    # Words ------------------------------------------------------------------------------------

    def words(self, command: Node) -> list[Word]:
        """Return a command's words in order, its name first."""
        kinds = ("name", "argument")
        found = [each for kind in kinds for each in command.children_by_field_name(kind)]
        return [self.word(node) for node in found if not self._is_descriptor(node)]

    def parts(self, test: Node) -> list[Word]:
        """Return a test's words and operators in order: the grammar groups them its own way."""
        found: list[Word] = []
        for child in test.children:
            is_group = re.match("binary|unary|parenthesized", child.type)
            found += self.parts(child) if is_group else [self.word(child)]
        return found

    def _is_descriptor(self, node: Node) -> bool:
        """Return whether a word is the ``0`` of ``0<file``."""
        is_before = self.bytes[node.end_byte : node.end_byte + 1] in (b"<", b">")
        return is_before and bool(re.fullmatch(r"\d+|\{\w+\}", source(node)))

    def word(self, node: Node) -> Word:
        """Return a word as far as it can be read."""
        holes = [range(n.start_byte, n.end_byte) for n in nodes(node) if n.type in _FILLING]
        written = self.around_holes(node, [*holes, *self.slots_in(node)], b"\0")
        if node.type == "concatenation" and _BRACES.search(written):
            written = f"\0{written}"
        read = written if written == "[" else _QUOTES.sub(_unquoted, written)
        head, *more = read.split("\0")
        return Word(node, None if more else head, head, [head, *more][-1])

    def around_holes(self, node: Node, holes: Iterable[range], mark: bytes) -> str:
        """Return a node's text with a mark in the place of each hole."""
        text, at = b"", node.start_byte
        for hole in sorted(holes, key=lambda hole: hole.start):
            if hole.start >= at:
                text += self.bytes[at : hole.start] + mark
                at = hole.stop
        return (text + self.bytes[at : node.end_byte]).decode(errors="surrogateescape")


def _unquoted(found: re.Match[str]) -> str:
    """Return what bash makes of a quoted part of a word, and NUL where that isn't known."""
    if found["raw"] is not None:
        return found["raw"] if found["is_ansi"] is None or "\\" not in found["raw"] else "\0"
    if found["string"] is not None:
        return re.sub(r'\\([$`"\\])|\\\n', r"\1", found["string"])
    return "\0" if found["escaped"] is None else found["escaped"].replace("\n", "")


def around(node: Node | None) -> Iterator[Node]:
    """Yield a node and all that it is in, from the inside."""
    while node is not None:
        yield node
        node = node.parent


def source(node: Node | None) -> str:
    """Return a node's text."""
    return ((node.text if node else None) or b"").decode(errors="surrogateescape")


def nodes(root: Node) -> Iterator[Node]:
    """Yield a node and all that is in it, in order."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.named_children)


def is_arithmetic(node: Node) -> bool:
    """Return whether bash works out what stands in a node, as a number or a subscript."""
    opening = node.children[0].type if node.children else ""
    return (
        node.type in ("arithmetic_expansion", "c_style_for_statement", "subscript", "array")
        or opening == "(("
        or (opening == "[[" and bool(COMPARES.search(source(node))))
    )


def quoted_tag(redirect: Node) -> Node | None:
    """Return a here-document's tag if it is quoted, so that nothing in its text is expanded."""
    tags = (child for child in redirect.children if child.type == "heredoc_start")
    return next((tag for tag in tags if re.search(r"[\\'\"]", source(tag))), None)
