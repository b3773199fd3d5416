"""A bash command as a tree, by tree-sitter's grammar of bash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

__all__ = ["Tree", "is_input", "is_quoted", "nodes", "source", "target"]

_JINJA = re.compile(rb"(?<!\S)\{%(?=\s)")


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Tree:
    """A parsed command.

    Args:
        command: Its text. Jinja's ``{%`` is a command to bash, to the grammar it isn't.

    Attributes:
        root: The node of all.
        nodes: All named nodes, in order.
    """

    def __init__(self, command: bytes) -> None:
        self.root = _parser().parse(command).root_node
        if self.root.has_error:
            self.root = _parser().parse(_JINJA.sub(b": ", command)).root_node
        self.nodes = list(nodes(self.root))
        # A node finds its parent by a search from the root.
        self._parents = {child.id: node for node in self.nodes for child in node.named_children}

    @property
    def error_line(self) -> int | None:
        """Where it can't be read, from 1; None when it can."""
        if not self.root.has_error:
            return None
        node = self.root
        while not (node.is_error or node.is_missing):
            node = next(child for child in node.children if child.has_error)
        return node.start_point.row + 1

    def leaf(self, at: range) -> Node:
        """Return the smallest node around some bytes."""
        leaf = self.root.descendant_for_byte_range(at.start, at.stop)
        assert leaf is not None
        return leaf

    def parent(self, node: Node) -> Node | None:
        """Return the node that a node is in."""
        return self._parents.get(node.id)

    def above(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Yield the steps to the root, as where each comes from and where it goes."""
        while (parent := self.parent(node)) is not None:
            yield node, parent
            node = parent

    def around(self, node: Node) -> Iterator[Node]:
        """Yield a node and all that it is in, from the inside."""
        yield node
        yield from (parent for _, parent in self.above(node))

    def strays(self, command: Node) -> list[Node]:
        """Return the words of a command that the grammar takes for targets of redirections."""
        redirects = command.children_by_field_name("redirect")
        parent = self.parent(command)
        if parent is not None and parent.type == "redirected_statement":
            redirects = [*redirects, *parent.children_by_field_name("redirect")]
        found: list[Node] = []
        for redirect in redirects:
            found += redirect.children_by_field_name("argument")
            for each in [redirect, *redirect.children_by_field_name("redirect")]:
                found += each.children_by_field_name("destination")[1:]
        return found


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


def is_quoted(redirect: Node) -> bool:
    """Return whether a here-document's tag is quoted, so that nothing in its text is expanded."""
    tags = [child for child in redirect.children if child.type == "heredoc_start"]
    return any(re.search(r"[\\'\"]", source(tag)) for tag in tags)


def is_input(redirect: Node) -> bool:
    """Return whether a redirection gives a command something to read."""
    if redirect.type == "file_redirect":
        return bool(re.match(r"(\d+|\{\w+\})?<", source(redirect)))
    return redirect.type in ("heredoc_redirect", "herestring_redirect")


def target(redirect: Node) -> Node:
    """Return where a redirection's text or file stands."""
    bodies = [child for child in redirect.named_children if child.type == "heredoc_body"]
    return (bodies or redirect.children_by_field_name("destination") or redirect.named_children)[0]
