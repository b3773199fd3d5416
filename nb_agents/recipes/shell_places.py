"""The places of a bash command, and what a value must be like in each.

This is an allow-list. Any value may stand where the grammar has a text (`_TEXTS`) in something
that passes texts on (`_PLACES`), unless it is run there, or the command has something that runs
texts to which a value could get from anywhere.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from tree_sitter import Node

from nb_agents.recipes import shell_programs as rules
from nb_agents.recipes.shell_commands import Command
from nb_agents.recipes.shell_flow import Feed, Flow, Tree, is_quoted, nodes, source, target
from nb_agents.recipes.shell_programs import SPECIAL, Rule, Sink

__all__ = ["Script"]

_BARE = {"word", "regex", "extglob_pattern", "number"}
_TEXTS = _BARE | {
    *("string", "string_content", "raw_string", "ansi_c_string", "comment", "variable_name"),
    *("heredoc_body", "heredoc_content"),
}
_BLOCKS = {
    *("program", "list", "pipeline", "subshell", "compound_statement", "negated_command"),
    *("if_statement", "elif_clause", "else_clause", "while_statement", "do_group"),
    *("redirected_statement", "command_substitution", "process_substitution"),
}
_ARITHMETIC = {
    *("arithmetic_expansion", "binary_expression", "c_style_for_statement", "ternary_expression"),
    *("parenthesized_expression", "postfix_expression", "unary_expression"),
}
_PLACES = (
    _TEXTS
    | _BLOCKS
    | _ARITHMETIC
    | {
        *("array", "case_item", "case_statement", "command", "command_name", "concatenation"),
        *("declaration_command", "expansion", "file_redirect", "for_statement"),
        *("function_definition", "heredoc_redirect", "herestring_redirect", "subscript"),
        *("test_command", "unset_command", "variable_assignment", "variable_assignments"),
    }
)
_INERT = _PLACES | {
    *("brace_expression", "file_descriptor", "heredoc_end", "heredoc_start", "simple_expansion"),
    *("special_variable_name", "test_operator", "translated_string"),
}
_NAMED = {
    *("simple_expansion", "expansion", "variable_assignment", "for_statement"),
    *("declaration_command", "unset_command"),
}
_EXPANDED = ("expansion", "heredoc_body")
_NAME = "for the name of a variable"
_OPERATORS = {"binary_expression", "unary_expression", "parenthesized_expression"}
_EXPANSION = re.compile(
    r"\$\{(?:#[\w@*]+(?:\[.*\])?|!\w+(?:[@*]|\[[@*]\])"
    r"|(?:\w+|[-@*#?$!])(?:\[[^\]]*\])?(?:(?::?[-=+?]|[#%^,/]).*|@[QULuEaAKk])?)\}",
    re.DOTALL,
)
_ARRAYS = re.compile(r"(?:declare|local|readonly|typeset|read)\b.*\s-\w*[aA]|mapfile|readarray")
_LENGTH = re.compile(r"\$\{#[^}]*\}")
_SLICE = re.compile(r"\$\{[\w@*]+(?:\[[^\]]*\])?:", re.DOTALL)


class Script:
    """A bash script with values in it.

    Args:
        tree: The script.
        slots: The bytes where values stand.
        tainted: Variables that hold values from the start.
        inherited: What it reads.
    """

    def __init__(
        self,
        tree: Tree,
        slots: Sequence[range],
        tainted: frozenset[str] = frozenset(),
        inherited: Feed | None = None,
    ) -> None:
        self._flow = Flow(tree, slots, tainted, inherited)
        self._arrays = set(itertools.chain.from_iterable(map(self._array_names, tree.nodes)))
        self._sinks = [sink for node in tree.nodes for sink in self._at(node)]

    @property
    def is_open(self) -> bool:
        """Whether values may get into what it runs, by way of variables and the like."""
        return any(sink.is_open for sink in self._sinks)

    @property
    def texts(self) -> Mapping[range, range | None]:
        """The values that stand in texts of Python code, as `Sink.texts` has them."""
        return {slot: mark for sink in self._sinks for slot, mark in sink.texts.items()}

    def rules(self, slot: range) -> Iterator[Rule]:
        """Yield what a value must be like; nothing when any value is data there.

        Args:
            slot: The bytes where it stands.
        """
        tree = self._flow.tree
        around = list(tree.around(tree.leaf(slot)))
        yield from _text_rules(around, slot)
        for child, parent in itertools.pairwise(around):
            if parent.type not in _PLACES:
                yield rules.nowhere(f"in a place that isn't known ({parent.type})")
            elif parent.type == "heredoc_redirect" and child.type == "heredoc_body":
                yield from _heredoc(around, parent)
        others = []
        for sink in self._sinks:
            if span := next((each for each in sink.spans if slot.start in each), None):
                yield from self._run_rules(around, span, sink.rule)
            elif sink.is_open:
                others.append(rules.reached(sink))
        yield from dict.fromkeys(others)

    def _run_rules(self, around: list[Node], span: range, rule: Rule) -> Iterator[Rule]:
        within = [node for node in around if node.start_byte >= span.start]
        outputs = [node for node in within if node.type == "command_substitution"]
        if not any(map(self._flow.is_constant, outputs)):
            yield rules.printed(rule) if outputs else rule

    # What is run --------------------------------------------------------------------------------

    def _at(self, node: Node) -> Iterator[Sink]:
        """Yield what is run in a node that isn't in another in it."""
        if find := _FINDERS.get(node.type):
            yield from find(self, node)
        elif node.type not in _INERT:
            yield self._sink(node, rules.path("in what isn't known to be safe"), is_open=True)

    def _sink(self, node: Node, rule: Rule, *, is_open: bool | None = None) -> Sink:
        is_open = self._flow.carries(node) if is_open is None else is_open
        span = range(node.start_byte, node.end_byte)
        return Sink((span,), rule, is_open, node.start_point.row + 1)

    def _command(self, node: Node) -> Iterator[Sink]:
        yield from Command(node, self._flow, self._read).sinks()

    def _read(self, code: str, feed: Feed | None) -> bool:
        tree = Tree(code.encode(errors="surrogateescape"))
        return bool(tree.error_line) or Script(tree, (), self._flow.tainted, feed).is_open

    def _arithmetic(
        self, node: Node, where: str = "in arithmetic", name: str = ""
    ) -> Iterator[Sink]:
        """Yield what bash works out, where the name of a variable stands for what is in it."""
        text = _LENGTH.sub("", source(node).removeprefix(name))
        inner = [each for each in nodes(node) if each.type == "command_substitution"]
        for each in inner:
            text = text.replace(source(each), "")
        is_open = (
            self._flow.names_tainted(text)
            or not all(map(self._flow.is_constant, inner))
            or bool(re.search(r"\$\{?[0-9@*]", text))
        )
        yield self._sink(node, rules.number(where), is_open=is_open)

    def _double_parentheses(self, node: Node) -> Iterator[Sink]:
        if node.children and node.children[0].type == "((":
            yield from self._arithmetic(node)

    def _c_style_for(self, node: Node) -> Iterator[Sink]:
        body = node.child_by_field_name("body")
        for child in node.named_children:
            yield from () if child == body else self._arithmetic(child)

    def _subscript(self, node: Node) -> Iterator[Sink]:
        for index in node.named_children[1:]:
            if source(index) not in ("@", "*"):
                yield from self._arithmetic(index, "in a subscript")

    def _array(self, node: Node) -> Iterator[Sink]:
        """Yield the subscripts of ``([x]=y)``, which the grammar reads as words of any kind."""
        start = node.start_byte
        found = re.finditer(rb"\[.*?\]\+?=", node.text or b"", re.DOTALL)
        if spans := tuple(range(start + each.start(), start + each.end()) for each in found):
            (sink,) = self._arithmetic(node, "in a subscript")
            yield sink._replace(spans=spans)

    def _expansion(self, node: Node) -> Iterator[Sink]:
        text = source(node)
        set_ = re.match(r"\$\{(\w+):?=", text)
        if set_ and SPECIAL.fullmatch(set_[1]):
            yield self._sink(node, rules.path(f"in {set_[1]}, from which something is run"))
        if _EXPANSION.fullmatch(text):
            return
        if slice_ := _SLICE.match(text):
            yield from self._arithmetic(node, "in a slice", slice_[0])
        else:
            yield self._sink(node, rules.path("in an expansion that bash runs"))

    def _assignment(self, node: Node) -> Iterator[Sink]:
        """Yield what is assigned to a variable from which something is run."""
        loop = node.child_by_field_name("variable")
        name = source(loop) if loop else re.split(r"\W", source(node), maxsplit=1)[0]
        if not SPECIAL.fullmatch(name):
            return
        rule = rules.path(f"in {name}, from which something is run")
        for value in node.children_by_field_name("value"):
            is_open = self._flow.is_written(self._flow.word(value)) or None
            yield self._sink(value, rule, is_open=is_open)

    def _array_names(self, node: Node) -> list[str]:
        """Return what a node may make an array of."""
        text = source(node)
        if node.type in ("command", "declaration_command") and _ARRAYS.match(text):
            return re.findall(r"\w+", text)
        is_array = node.type == "variable_assignment" and re.match(r"\w+(?:\[|\+?=\()", text)
        return re.findall(r"^\w+", text) if is_array else []

    def _declaration(self, node: Node) -> Iterator[Sink]:
        """Yield the names, and what bash reads as ``(…)`` for an array or as an expression."""
        for child in node.named_children:
            word = self._flow.word(child)
            if child.type == "variable_assignment":
                value = child.child_by_field_name("value")
                is_array = word.head.partition("=")[0].rstrip("+") in self._arrays
                if value is not None and value.type != "array" and is_array:
                    yield self._sink(value, rules.path("in what may be read as an array's items"))
            elif word.text is None:
                yield self._sink(child, rules.path(_NAME, is_fault=True), is_open=True)
            elif word.head.startswith("-") and re.search("[in]", word.head):
                where = "in a variable that bash evaluates"
                yield self._sink(node, rules.number(where), is_open=True)

    def _unset(self, node: Node) -> Iterator[Sink]:
        for child in node.named_children:
            if "[" in source(child) or self._flow.word(child).text is None:
                yield self._sink(child, rules.path(_NAME, is_fault=True), is_open=True)

    def _test(self, node: Node) -> Iterator[Sink]:
        tokens = [token for child in node.children[1:-1] for token in _tokens(child)]
        if node.children[0].type == "[":
            words = [self._flow.word(token) for token in tokens]
            yield from Command(node, self._flow, self._read).test(words)
            return
        for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
            if source(token) in ("-v", "-R") and after is not None:
                yield self._sink(
                    after, rules.path(_NAME, is_fault=True), is_open="[" in source(after) or None
                )
            elif re.fullmatch(r"-(?:eq|ne|lt|le|gt|ge)", source(token)):
                for operand in filter(None, (before, after)):
                    yield from self._arithmetic(operand, "in a comparison of numbers")

    def _redirected(self, node: Node) -> Iterator[Sink]:
        """Yield what of a builtin's arguments the grammar takes for a redirection's targets."""
        body = node.child_by_field_name("body")
        if body is not None and body.type != "command":
            for word in self._flow.tree.strays(body):
                if self._flow.word(word).text is None:
                    yield self._sink(word, rules.path("behind a redirection", is_fault=True))


_FINDERS: dict[str, Callable[[Script, Node], Iterator[Sink]]] = {
    "arithmetic_expansion": Script._arithmetic,
    "array": Script._array,
    "c_style_for_statement": Script._c_style_for,
    "command": Script._command,
    "compound_statement": Script._double_parentheses,
    "declaration_command": Script._declaration,
    "expansion": Script._expansion,
    "for_statement": Script._assignment,
    "redirected_statement": Script._redirected,
    "subscript": Script._subscript,
    "test_command": Script._test,
    "unset_command": Script._unset,
    "variable_assignment": Script._assignment,
}


def _tokens(node: Node) -> Iterator[Node]:
    """Yield a test's words and operators in order: the grammar groups them its own way."""
    if node.type not in _OPERATORS:
        yield node
        return
    for child in node.children:
        yield from _tokens(child)


def _text_rules(around: list[Node], slot: range) -> Iterator[Rule]:
    """Rule where no way of quoting a value is known to be right."""
    leaf, parent = (*around, None)[:2]
    assert leaf is not None
    before = source(leaf).encode(errors="surrogateescape")[: slot.start - leaf.start_byte]
    if leaf.type not in _TEXTS or parent is None:
        yield rules.nowhere("where bash has no text")
    elif leaf.type == "variable_name" and (
        parent.type in _NAMED or leaf == parent.child_by_field_name("name")
    ):
        yield rules.nowhere(_NAME)
    elif parent.type == "function_definition":
        yield rules.nowhere("for the name of a function")
    elif leaf.type in _BARE and re.search(rb"`|(?<!\\)['\"]", before):
        yield rules.nowhere("behind a quote of which it isn't clear what it does")
    elif leaf.type != "raw_string" and before.endswith(b"\\"):
        yield rules.nowhere("behind a backslash")
    quotes = ("command_substitution", "process_substitution", "string")
    kinds = [node.type for node in around[1:] if node.type in (*quotes, *_EXPANDED)]
    if kinds[:2] == list(_EXPANDED):
        yield rules.nowhere("in ${…} in a here-document")


def _heredoc(around: list[Node], redirect: Node) -> Iterator[Rule]:
    tag = next(source(each) for each in redirect.children if each.type == "heredoc_start")
    outer = around[around.index(redirect) :]
    if any(n.type == "command_substitution" and n.children[0].type == "`" for n in outer):
        yield rules.nowhere("in a here-document in backticks")
    elif is_quoted(redirect) and not re.fullmatch(r"[\w.-]+", re.sub(r"[\\'\"]", "", tag)):
        yield rules.nowhere("in a here-document with an unusual tag")
    elif not is_quoted(redirect) and re.search(r"(?<!\\)`", source(target(redirect))):
        yield rules.nowhere("in a here-document that has backticks")
