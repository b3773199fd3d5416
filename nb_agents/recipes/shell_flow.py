"""A bash command as a tree, and where values get to in it: words, variables, files and inputs.

The tree is by tree-sitter's grammar of bash. What can't be followed counts as reached: the output
of programs, what ``read`` reads, the parameters of functions. Variables that the command doesn't
set are the author's, as the step's ``env`` is.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from nb_agents.recipes import shell_programs as programs

__all__ = [
    "Feed",
    "Flow",
    "Given",
    "Tree",
    "Word",
    "is_input",
    "is_quoted",
    "nodes",
    "source",
    "target",
]

_JINJA = re.compile(rb"(?<!\S)\{%(?=\s)")

_CARRYING = re.compile(
    r"BASH_\w+|COPROC|DIRSTACK|MAPFILE|OLDPWD|OPTARG|PWD|REPLY|_|[0-9]+|[@*]|!.*"
)
_EXPANDED = re.compile(r"\$\{?(\w+|[@*]|!\w+(?!\w*(?:[@*]|\[[@*]\])\}))")
_EXPANSIONS = {"simple_expansion", "expansion"}
_DYNAMIC = _EXPANSIONS | {
    *("arithmetic_expansion", "brace_expression", "command_substitution", "process_substitution"),
}
_BRACES = re.compile(r"\{[^{}\s]*(,|\.\.)")
_UNQUOTED = re.compile(r"\\(?P<escaped>.)|(?P<glob>[*?\[])|(?P<text>[^\\*?\[]+)", re.DOTALL)
_BODY = "heredoc_body"
_VARIABLE = re.compile(rb"\$(?:\w+|\{\w+\})")
_STATEMENTS = {"command", "redirected_statement", "pipeline"}
_DEVICE = re.compile(r"-$|/dev/|/proc/")


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


class Word(NamedTuple):
    """A word of a command, as far as it can be read there.

    Attributes:
        node: Where it stands; None for the words that ``xargs`` adds.
        pieces: Its text without quotes; None where bash or a value fills in.
        is_filled: Whether another program puts something in.
    """

    node: Node | None
    pieces: tuple[str | None, ...]
    is_filled: bool = False

    def filled(self, mark: str, begin: str) -> Word:
        """Return the word as it is for a program that puts text that begins so for a mark."""
        if self.text is None or mark not in self.text:
            return self
        head = self.text.partition(mark)[0] or begin
        return Word(self.node, (head, None) if head else (None,), is_filled=True)

    @property
    def text(self) -> str | None:
        """All of it, or None when something fills in."""
        return None if None in self.pieces else "".join(map(str, self.pieces))

    @property
    def head(self) -> str:
        """What it begins with."""
        return (self.pieces[0] if self.pieces else "") or ""

    @property
    def tail(self) -> str:
        """What it ends with."""
        return (self.pieces[-1] if self.pieces else "") or ""


class Feed(NamedTuple):
    """What a command reads.

    Attributes:
        nodes: Where it comes from.
        text: What it is, or None when that can't be read.
    """

    nodes: tuple[Node, ...]
    text: str | None = None


class Given(NamedTuple):
    """A text as a program gets it.

    Attributes:
        at: Its bytes.
        text: What stands there.
        slots: The bytes where values stand.
        variables: The bytes where bash puts in those of variables.
    """

    at: range
    text: bytes
    slots: list[range]
    variables: list[range]


class Flow:
    """What values get to in a command.

    Args:
        tree: The command.
        slots: The bytes of it where values stand.
        tainted: Variables that hold values from the start.
        inherited: What it reads when nothing in it says so; None for nothing.

    Attributes:
        tree: The command.
        tainted: Variables that may hold a value.
        functions: Names of its functions.
    """

    def __init__(
        self,
        tree: Tree,
        slots: Sequence[range],
        tainted: frozenset[str] = frozenset(),
        inherited: Feed | None = None,
    ) -> None:
        self.tree = tree
        self.tainted = tainted
        self._text = tree.root.text or b""
        self._slots = sorted(slot.start for slot in slots)
        self._sizes = {slot.start: len(slot) for slot in slots}
        self._inherited = inherited
        self._known_words: dict[int, list[Word]] = {}
        functions = (node for node in tree.nodes if node.type == "function_definition")
        self.functions = {source(node.child_by_field_name("name")) for node in functions}
        self._follow_variables()
        self._written = {_last(word) for word in self._files()}
        self._partly_written = {each for each in self._written if not each[1]}
        for node in self.tree.nodes:  # `exec < file` changes what all that follows reads
            if node.type == "command" and [w.text for w in self.words(node)] == ["exec"]:
                self._inherited = self.feed(node)

    def has_value(self, node: Node) -> bool:
        """Return whether a value stands in a node's text."""
        at = bisect.bisect_left(self._slots, node.start_byte)
        return at < len(self._slots) and self._slots[at] < node.end_byte

    def carries(self, node: Node, *, also_its_own: bool = False) -> bool:
        """Return whether a value may get into a node's text by way of something else.

        Args:
            node: The node.
            also_its_own: Whether values that stand in it count too.
        """
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each.type == "process_substitution" or self._is_tainted(each):
                return True
            if each.type == "command_substitution" and not self.is_constant(each):
                return True
            if each.type in ("command_substitution", "arithmetic_expansion"):
                continue  # what comes of it is a number
            inner = each.named_children
            if also_its_own and self.has_value(each) and not any(map(self.has_value, inner)):
                return True
            waiting += inner
        return False

    def carries_word(self, word: Word) -> bool:
        """Return whether a value may get into a word by way of something else, as a file's name."""
        node = word.node
        if node is None or word.is_filled or self.carries(node):
            return True
        is_plain = node.type in ("word", "concatenation") and not self.has_value(node)
        return is_plain and bool(re.search(r"[*?\[]", source(node)))

    def names_tainted(self, text: str) -> bool:
        """Return whether a text has the name of a variable that may hold a value."""
        return any(name in self.tainted for name in re.findall(r"[A-Za-z_]\w*", text))

    def is_constant(self, substitution: Node) -> bool:
        """Return whether what a substitution's last program prints can't hold a value."""
        node = substitution
        while node.type in ("command_substitution", "pipeline", "redirected_statement"):
            last = 0 if node.type == "redirected_statement" else -1
            if not node.named_children:
                return False
            node = node.named_children[last]
        if node.type != "command":
            return False
        name, *arguments = self.words(node)
        is_constant = name.text in programs.CONSTANT and name.text not in self.functions
        return is_constant and all(argument.text is not None for argument in arguments)

    def _is_tainted(self, node: Node) -> bool:
        found = _EXPANDED.match(source(node)) if node.type in _EXPANSIONS else None
        return bool(found and (found[1] in self.tainted or _CARRYING.fullmatch(found[1])))

    def _follow_variables(self) -> None:
        assignments: list[tuple[str, list[Node]]] = []
        for node in self.tree.nodes:
            if node.type == "variable_assignment":
                name = re.split(r"\W", source(node), maxsplit=1)[0]
                assignments.append((name, node.children_by_field_name("value")))
            elif node.type == "for_statement":
                values = node.children_by_field_name("value")
                name = source(node.child_by_field_name("variable"))
                assignments.append((name, values))
                is_glob = any(map(self.carries_word, map(self.word, values)))
                if not values or is_glob or node.children[0].type == "select":
                    self.tainted |= {name}
            elif node.type == "expansion" and (set_ := re.match(r"\$\{(\w+):?=", source(node))):
                self.tainted |= {set_[1]}
            elif node.type == "command" and any(
                w.text in programs.SETTING for w in self.words(node)
            ):
                self.tainted |= {re.split(r"\W", w.head, maxsplit=1)[0] for w in self.words(node)}
        while more := {
            name
            for name, values in assignments
            if name not in self.tainted and any(map(self._gives, values))
        }:
            self.tainted |= more

    def _gives(self, value: Node) -> bool:
        """Return whether a value may be in what is assigned, or by its name in arithmetic."""
        return self.carries(value, also_its_own=True) or self.names_tainted(source(value))

    def given(self, node: Node) -> Given | None:
        """Return a text as a program gets it, or None where bash does more than fill it in."""
        redirect = self.tree.parent(node) if node.type == _BODY else None
        if redirect is None and node.type not in ("string", "raw_string"):
            return None
        if redirect is not None and source(redirect).startswith("<<-"):
            return None  # without the tabs that its lines begin with
        at = range(node.start_byte + (redirect is None), node.end_byte - (redirect is None))
        text = self._text[at.start - self.tree.root.start_byte :][: len(at)]
        slots = [range(slot, slot + self._sizes[slot]) for slot in self._slots if slot in at]
        if node.type == "raw_string" or (redirect is not None and is_quoted(redirect)):
            return Given(at, text, slots, [])
        filled = [each for each in node.named_children if _VARIABLE.fullmatch(each.text or b"")]
        if re.search(rb"[\\`]", text) or text.count(b"$") != len(filled):
            return None
        return Given(at, text, slots, [range(c.start_byte, c.end_byte) for c in filled])

    # Words ------------------------------------------------------------------------------------

    def words(self, command: Node) -> list[Word]:
        """Return a command's words in order, its name first.

        The grammar takes those behind a redirection for more targets of it.
        """
        if command.id not in self._known_words:
            found = command.children_by_field_name("name")
            found = [
                *found,
                *command.children_by_field_name("argument"),
                *self.tree.strays(command),
            ]
            words = sorted(found, key=lambda node: node.start_byte)
            self._known_words[command.id] = [
                self.word(node) for node in words if not self._is_descriptor(node)
            ]
        return self._known_words[command.id]

    def _is_descriptor(self, node: Node) -> bool:
        """Return whether a word is the ``0`` of ``0<file``."""
        end = node.end_byte - self.tree.root.start_byte
        return self._text[end : end + 1] in (b"<", b">") and bool(
            re.fullmatch(r"\d+|\{\w+\}", source(node))
        )

    def word(self, node: Node) -> Word:
        """Return a word as far as it can be read."""
        pieces: list[str | None] = []
        for piece in self._pieces(node):
            if piece is not None and pieces and pieces[-1] is not None:
                pieces[-1] += piece
            else:
                pieces.append(piece)
        return Word(node, tuple(pieces))

    def _pieces(self, node: Node) -> Iterator[str | None]:
        kind, text = node.type, source(node)
        if kind in _DYNAMIC or (kind == "concatenation" and _BRACES.search(text)):
            yield None
        elif kind in ("concatenation", "command_name"):
            for child in node.children:
                yield from self._pieces(child)
        elif kind == "string":
            for piece in self._cut(node):
                yield piece and re.sub(r'\\([$`"\\])|\\\n', r"\1", piece)
        elif kind == "raw_string" or (kind == "ansi_c_string" and "\\" not in text):
            yield from self._cut(node)
        elif kind == "ansi_c_string":
            yield None
        else:
            for piece in self._cut(node, quotes=False):
                for each in _UNQUOTED.finditer(piece or ""):
                    is_glob = each["glob"] and text != "["
                    yield None if is_glob else (each["escaped"] or each[0]).replace("\n", "")
                if piece is None:
                    yield None

    def _cut(self, node: Node, quotes: bool = True) -> Iterator[str | None]:
        """Yield a node's text, without its quotes, and None for what fills in."""
        data, start, at = node.text or b"", node.start_byte, 0
        if quotes:
            at = re.search(rb"['\"]", data).end()  # type: ignore[union-attr]
            data = data[:-1]
        holes = [range(c.start_byte, c.end_byte) for c in node.named_children if c.type in _DYNAMIC]
        first = bisect.bisect_left(self._slots, start)
        last = bisect.bisect_left(self._slots, node.end_byte)
        holes += [range(slot, slot + self._sizes[slot]) for slot in self._slots[first:last]]
        for hole in sorted(holes, key=lambda hole: hole.start):
            if hole.start - start >= at:
                yield data[at : hole.start - start].decode(errors="surrogateescape")
                yield None
                at = hole.stop - start
        yield data[at:].decode(errors="surrogateescape")

    # Files and inputs -------------------------------------------------------------------------

    def is_written(self, path: Word) -> bool:
        """Return whether the command may write a file of a name.

        Args:
            path: The word that names it; only its last part counts.
        """
        name, is_whole = _last(path)
        if (name, True) in self._written:
            return True
        others = self._written if not is_whole else self._partly_written
        return any(name.endswith(other) or other.endswith(name) for other, _ in others)

    def _files(self) -> Iterator[Word]:
        for node in self.tree.nodes:
            if node.type == "file_redirect" and re.match(r"\d*&?>", source(node)):
                words = map(self.word, node.children_by_field_name("destination")[:1])
                yield from (word for word in words if not word.head.startswith("/dev/"))
            elif node.type == "command":
                name, *arguments = self.words(node)
                yield from arguments if name.text in programs.WRITING else ()

    def feed(self, command: Node) -> Feed | None:
        """Return what a command reads, or None when nothing is given to it."""
        if inputs := [r for r in command.children_by_field_name("redirect") if is_input(r)]:
            return self._read(inputs)
        for child, parent in self.tree.above(command):
            if parent.type == "pipeline":
                before = [c for c in parent.named_children if c.end_byte <= child.start_byte]
                if before:
                    outer = self.feed(parent)  # what the first of them reads
                    return Feed((*before, *(outer.nodes if outer else ())))
            elif parent.type == "heredoc_redirect" and child.type == "pipeline":
                return Feed(self._piped_in(child))
            elif parent.type == "redirected_statement":
                if inputs := [r for r in parent.named_children if is_input(r)]:
                    return self._read(inputs)
            elif parent.type == "process_substitution" and parent.children[0].type == ">(":
                return Feed(
                    tuple(node for _, node in self.tree.above(parent) if node.type in _STATEMENTS)
                )
            elif parent.type == "function_definition":
                return Feed(())
        return self._inherited

    def _piped_in(self, pipeline: Node) -> tuple[Node, ...]:
        """Return what is piped into a pipeline in the first line of a here-document."""
        (redirect, statement) = (*itertools.islice(self.tree.around(pipeline), 1, 3), None)[:2]
        if redirect is None or statement is None or redirect.type != "heredoc_redirect":
            return ()
        return (statement.named_children[0], target(redirect))

    def _read(self, redirects: list[Node]) -> Feed:
        texts = tuple(target(each) for each in redirects)
        text, word = texts[-1], self.word(texts[-1])
        if redirects[-1].type == "file_redirect":
            is_own = word.text is None or _DEVICE.match(word.text) or self.is_written(word)
            return Feed(texts, None if is_own else "")  # that of a file is the author's
        if self.has_value(text) or any(node.type in _DYNAMIC for node in nodes(text)):
            return Feed(texts)
        if text.type == _BODY:
            is_plain = is_quoted(redirects[-1]) or "\\" not in source(text)
            return Feed(texts, source(text) if is_plain else None)
        return Feed(texts, word.text)


def _last(path: Word) -> tuple[str, bool]:
    """Return the end of a path's last part, and whether that is all of it."""
    is_whole = path.text is not None or "/" in path.tail
    return path.tail.rpartition("/")[2], is_whole
