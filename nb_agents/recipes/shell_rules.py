"""Where bash looks again at what an expansion gave: the places where a value could become code.

Each rule says what a value must be like in its place. Everything not named here is safe, because
bash splits, globs or compares an expansion there, and quotes stop even that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tree_sitter import Node

__all__ = ["Place", "Rule", "assigned", "bare", "evaluated", "is_quoted", "rules", "upward"]


class Rule(NamedTuple):
    """What a value must be like in a place.

    Attributes:
        where: The place, in words.
        allowed: What the value must match; None when no value is safe.
        what: The allowed values, in words.
    """

    where: str
    allowed: re.Pattern[str] | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a command.

    Attributes:
        leaf: The smallest node around it.
        start: Its first byte.
        end: The byte after it.
        values: Words that stand for values.
    """

    leaf: Node
    start: int
    end: int
    values: frozenset[bytes]


class _Step(NamedTuple):
    """One step from a place to the root of the command.

    Attributes:
        place: Where it began.
        child: Where it comes from.
        parent: Where it goes.
        is_direct: False beyond a substitution: what is seen there is a program's output.
    """

    place: Place
    child: Node
    parent: Node
    is_direct: bool


_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]*")
_NO_OPTION = re.compile(r"(?![-+]).*", re.DOTALL)

_SHELLS = {b"ash", b"bash", b"dash", b"ksh", b"sh", b"zsh"}
_SOURCES = {b".", b"source"}
_TELLING = {b"command", b"echo", b"printf", b"type", b"which"}
_LAUNCHERS = {
    *(b"builtin", b"command", b"doas", b"env", b"exec", b"nice", b"nohup"),
    *(b"setsid", b"stdbuf", b"sudo", b"time", b"timeout", b"xargs"),
}
# They run their arguments, or take them for names, in whose subscripts bash runs commands.
_EVALUATORS = {
    *(b"alias", b"compgen", b"complete", b"coproc", b"eval", b"getopts", b"let", b"mapfile"),
    *(b"parallel", b"read", b"readarray", b"ssh", b"su", b"trap", b"unset", b"wait", b"watch"),
}
_EVALUATED_VARIABLES = {b"BASH_ENV", b"ENV", b"PROMPT_COMMAND", b"PS0", b"PS1", b"PS4"}
_SUBSTITUTIONS = {"command_substitution", "process_substitution"}
_OPERATORS = {"binary_expression", "unary_expression", "parenthesized_expression", "test_command"}
_NAMING = {
    *("simple_expansion", "expansion", "variable_assignment", "for_statement"),
    *("declaration_command", "unset_command"),
}
_TEXTS = {"word", "regex", "extglob_pattern", "number"}
_READABLE = _TEXTS | {
    *("string", "string_content", "raw_string", "ansi_c_string", "comment", "variable_name"),
    *("heredoc_body", "heredoc_content"),
}
_TEST = "test_command"
_ARITHMETIC_TEST = rb"-(?:eq|ne|lt|le|gt|ge)"


def _number_in(where: str) -> Rule:
    return Rule(where, _NUMBER, "a number")


def upward(node: Node | None) -> Iterator[Node]:
    """Give a node and all that it is in, from the inside."""
    while node is not None:
        yield node
        node = node.parent


def bare(word: Node) -> bytes:
    """Give a word without its quotes."""
    return re.sub(rb"[\\'\"]", b"", _source(word))


def is_quoted(tag: Node) -> bool:
    """Tell whether a here-document's tag is quoted, so that its text is not expanded."""
    return bare(tag) != _source(tag)


def rules(place: Place) -> Iterator[Rule]:
    """Give what a value must be like in a place; nothing when any value is safe."""
    yield from _leaf_rules(place)
    yield from _walk(place, _TEXT_RULES)
    yield from _walk(place, _RULES)


def assigned(leaf: Node) -> Iterator[bytes]:
    """Give the names of the bash variables that a value in this place ends up in."""
    for child, parent in _pairs(leaf):
        if parent.type in _SUBSTITUTIONS:
            return
        if parent.type in ("variable_assignment", "for_statement") and child.type != "do_group":
            yield _variable(parent)


def evaluated(root: Node) -> dict[bytes, list[Rule]]:
    """Find the command's own variables that bash looks at again, and what they must be like."""
    found: dict[bytes, list[Rule]] = {}
    for leaf in _leaves(root):
        if leaf.type not in ("variable_name", "word") or leaf.parent is None:
            continue
        place = Place(leaf, leaf.start_byte, leaf.end_byte, frozenset([_source(leaf)]))
        name = _source(leaf).decode(errors="replace")
        is_read = _source(leaf.parent).startswith(b"$") or leaf.parent.type == "subscript"
        for rule in [*_walk(place, _RULES), *_indirect_rules(leaf)]:
            # Arithmetic takes a bare name for a variable; `read name` and the like set it.
            if is_read or rule.allowed is _NUMBER:
                where = f"in ${name}, which is used {rule.where}"
                found.setdefault(_source(leaf), []).append(rule._replace(where=where))
    return found


def _source(node: Node | None) -> bytes:
    return (node.text if node else None) or b""


def _pairs(leaf: Node) -> Iterator[tuple[Node, Node]]:
    for child in upward(leaf):
        if child.parent is not None:
            yield child, child.parent


def _leaves(node: Node) -> Iterator[Node]:
    if not node.named_children:
        yield node
    for child in node.named_children:
        yield from _leaves(child)


def _walk(place: Place, table: _Table) -> Iterator[Rule]:
    is_direct = True
    for child, parent in _pairs(place.leaf):
        if parent.type in table:
            yield from table[parent.type](_Step(place, child, parent, is_direct))
        is_direct = is_direct and parent.type not in _SUBSTITUTIONS


def _leaf_rules(place: Place) -> Iterator[Rule]:
    leaf, parent = place.leaf, place.leaf.parent
    before = _source(leaf)[: place.start - leaf.start_byte]
    if leaf.type not in _READABLE or parent is None:
        yield Rule("where bash has no text")
    elif leaf.type == "variable_name" and (
        parent.type in _NAMING or leaf == parent.child_by_field_name("name")
    ):
        yield Rule("for the name of a variable")
    elif parent.type == "function_definition":
        yield Rule("for the name of a function")
    elif leaf.type in _TEXTS and re.search(rb"`|(?<!\\)['\"]", before):
        yield Rule("behind a quote of which it isn't clear what it does")
    elif leaf.type != "raw_string" and before.endswith(b"\\"):
        yield Rule("behind a backslash")


def _indirect_rules(leaf: Node) -> Iterator[Rule]:
    """Rule ``${!name}``, where the value is a name with a subscript."""
    if leaf.parent is not None and _source(leaf.parent).startswith(b"${!"):
        yield Rule("for the name of a variable")


def _arithmetic(step: _Step) -> Iterator[Rule]:
    if step.is_direct:
        yield _number_in("in arithmetic")


def _compound(step: _Step) -> Iterator[Rule]:
    if _source(step.parent).startswith(b"(("):
        yield from _arithmetic(step)


def _c_style_for(step: _Step) -> Iterator[Rule]:
    if step.child != step.parent.child_by_field_name("body"):
        yield from _arithmetic(step)


def _subscript(step: _Step) -> Iterator[Rule]:
    name = step.parent.child_by_field_name("name")
    if step.is_direct and step.child != name and not _is_associative(_source(name), step.child):
        yield _number_in("in a subscript")


def _is_associative(array: bytes, node: Node) -> bool:
    """Tell whether ``declare -A`` makes an array one whose subscripts are not evaluated."""
    script = _source(list(upward(node))[-1])
    return bool(re.search(rb"\s-\w*A\w*\s(?:[^\n;]*\s)?" + array + rb"\b", b" " + script))


def _array_item(step: _Step) -> Iterator[Rule]:
    """Rule ``[x]=`` in an array, which the grammar reads as glued words."""
    around = step.parent.parent
    before = _source(step.parent)[: step.place.start - step.parent.start_byte]
    if around is not None and around.type == "array" and re.match(rb"\[[^\]]*$", before):
        yield _number_in("in a subscript")


def _operand(step: _Step) -> Iterator[Rule]:
    """Rule an operand of a test by its neighbours: the grammar groups operators its own way."""
    test = next(node for node in upward(step.parent) if node.type not in _OPERATORS - {_TEST})
    if not step.is_direct or step.child.type in _OPERATORS or test.type != _TEST:
        return
    text, start = _source(test), test.start_byte
    before, after = text[: step.child.start_byte - start], text[step.child.end_byte - start :]
    if re.search(rb"\s-[vR]\s+$", before):
        yield Rule("for the name of a variable")
    follows = re.search(_ARITHMETIC_TEST + rb"\s+$", before)
    if text.startswith(b"[[") and (follows or re.match(rb"\s+" + _ARITHMETIC_TEST, after)):
        yield _number_in("in a comparison of numbers")


def _assignment(step: _Step) -> Iterator[Rule]:
    if step.is_direct and _variable(step.parent) in _EVALUATED_VARIABLES:
        yield Rule("in a variable that bash runs")


def _declaration(step: _Step) -> Iterator[Rule]:
    if not step.is_direct:
        return
    options = [bare(child) for child in step.parent.children if child.type == "word"]
    before = _source(step.child)[: step.place.start - step.child.start_byte]
    if not re.match(rb"[\"']?\w+\+?=", before):
        yield Rule("for the name of a variable")
    if any(re.match(rb"-\w*[in]", option) for option in options):
        yield _number_in("in a variable that bash evaluates")


def _unset(step: _Step) -> Iterator[Rule]:
    yield Rule("for the name of a variable")


def _expansion(step: _Step) -> Iterator[Rule]:
    for node in upward(step.parent):
        if node.type in _SUBSTITUTIONS or node.type == "string":
            return
        if node.type == "heredoc_body":
            yield Rule("in ${…} in a here-document")


def _heredoc(step: _Step) -> Iterator[Rule]:
    if step.child.type != "heredoc_body":
        return
    tag = next(child for child in step.parent.children if child.type == "heredoc_start")
    if any(node.type in _SUBSTITUTIONS and _source(node)[:1] == b"`" for node in upward(tag)):
        yield Rule("in a here-document in backticks")
    if is_quoted(tag) and not re.fullmatch(rb"[\w.-]+", bare(tag)):
        yield Rule("in a here-document with an unusual tag")
    if not is_quoted(tag) and re.search(rb"(?<!\\)`", _source(step.child)):
        yield Rule("in a here-document that has backticks")


def _fed(step: _Step) -> Iterator[Rule]:
    """Rule what a shell reads as its commands: by a pipe, a here-document, a redirection."""
    others = [child for child in step.parent.children if child != step.child]
    if step.parent.type == "pipeline":
        others = [child for child in others if child.start_byte > step.child.start_byte]
    if step.parent.type == "heredoc_redirect" and step.child.type != "heredoc_body":
        return
    if any(_reads_commands(node) for node in others):
        yield Rule("in what a shell reads as its commands")


def _reads_commands(node: Node) -> bool:
    if node.type == "command" and (words := [_basename(word) for word in _words(node)]):
        program = _program(words)
        name, options = words[program], words[program + 1 :]
        if name == b"ssh" or (name in _SHELLS and _is_interactive(options)):
            return True
        if name not in _TELLING and options and options[-1] in _SHELLS:
            return True
        if name in _SOURCES and options == [b"stdin"]:
            return True
    return any(_reads_commands(child) for child in node.named_children)


def _is_interactive(options: list[bytes]) -> bool:
    """Tell whether a shell with these arguments takes its commands from its input."""
    if b"-s" in options:
        return True
    return all(o[:1] == b"-" and not re.fullmatch(rb"-\w*c", o) for o in options)


def _command(step: _Step) -> Iterator[Rule]:
    nodes = _words(step.parent)
    if step.child not in nodes:
        if step.child.type == "herestring_redirect" and _reads_commands(step.parent):
            yield Rule("in what a shell reads as its commands")
        return
    words = [_basename(node) for node in nodes]
    at, program = nodes.index(step.child), _program(words)
    if at == program and (not step.is_direct or _is_value(step)):
        yield Rule("for the name of a program")
    elif words[at - 1] in (b"-exec", b"-execdir", b"-ok") and _is_value(step):
        yield Rule("for the name of a program")
    elif at > program:
        yield from _argument(step, words, at, program)
    else:
        yield from _no_option(step)


def _argument(step: _Step, words: list[bytes], at: int, program: int) -> Iterator[Rule]:
    name, before = words[program], words[at - 1]
    if name in _EVALUATORS:
        yield Rule(f"in an argument of {name.decode()}")
    if name in _SHELLS | _SOURCES and step.child.type == "process_substitution":
        yield Rule("in what a shell reads as its commands")
    if (name == b"printf" and before == b"-v") or (name == b"test" and before in (b"-v", b"-R")):
        yield Rule("for the name of a variable")
    for shell in [i for i, word in enumerate(words[:at]) if word in _SHELLS]:
        yield from _shell_argument(step, words[shell + 1 : at])
    is_first = at == program + 1
    if is_first and (name == b"printf" or (name == b"test" and len(words) == program + 3)):
        yield from _no_option(step)


def _shell_argument(step: _Step, before: list[bytes]) -> Iterator[Rule]:
    operands = [word for word in before if word[:1] not in (b"-", b"+")]
    if operands:
        return
    if any(re.fullmatch(rb"-\w*c\w*", word) for word in before):
        yield Rule("in a shell's -c")
    yield from _no_option(step)


def _no_option(step: _Step) -> Iterator[Rule]:
    begin = _source(step.child).lstrip(b"\"'${")
    if step.is_direct and begin.startswith(tuple(step.place.values)):
        where = "in an argument that the program may take for an option"
        yield Rule(where, _NO_OPTION, "what doesn't begin with - or +")


def _is_value(step: _Step) -> bool:
    """Tell whether a word is made of nothing but values."""
    text = _source(step.child)
    for value in sorted(step.place.values, key=len, reverse=True):
        text = text.replace(value, b"")
    return not text.strip(b"\"'${}[@*]")


def _words(command: Node) -> list[Node]:
    name = command.child_by_field_name("name")
    return ([name] if name else []) + command.children_by_field_name("argument")


def _basename(word: Node) -> bytes:
    return bare(word).rpartition(b"/")[2] if b"=" not in _source(word) else bare(word)


def _program(words: list[bytes]) -> int:
    """Find the program that a command runs, behind ``sudo``, ``env A=1`` or ``timeout 5``."""
    if words[:2] == [b"command", b"-v"]:
        return 0
    for at, word in enumerate(words):
        is_launched = at > 0 and re.match(rb"-|\w+=|[0-9]", word)
        if word not in _LAUNCHERS and not is_launched:
            return at
    return 0


def _variable(node: Node) -> bytes:
    """Give the name that an assignment or a loop sets."""
    name = node.child_by_field_name("name") or node.child_by_field_name("variable")
    if name is not None and name.type == "subscript":
        name = name.child_by_field_name("name")
    return _source(name)


_Table = dict[str, Callable[[_Step], Iterator[Rule]]]

_TEXT_RULES: _Table = {"expansion": _expansion, "heredoc_redirect": _heredoc}
"""By the kind of node that a place is in: where no way of quoting is right."""

_RULES: _Table = {
    "arithmetic_expansion": _arithmetic,
    "binary_expression": _operand,
    "c_style_for_statement": _c_style_for,
    "command": _command,
    "compound_statement": _compound,
    "concatenation": _array_item,
    "declaration_command": _declaration,
    "heredoc_redirect": _fed,
    "parenthesized_expression": _operand,
    "pipeline": _fed,
    "redirected_statement": _fed,
    "subscript": _subscript,
    "test_command": _operand,
    "unary_expression": _operand,
    "unset_command": _unset,
    "variable_assignment": _assignment,
}
"""By the kind of node that a place is in: where bash looks again at what an expansion gave."""
