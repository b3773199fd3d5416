"""What a command runs as code: of its arguments and its input, behind any program before it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Iterator, Sequence

from tree_sitter import Node

from nb_agents.recipes import shell_programs as programs
from nb_agents.recipes import shell_programs as rules
from nb_agents.recipes.python_texts import find_texts
from nb_agents.recipes.shell_flow import Feed, Flow, Word, source
from nb_agents.recipes.shell_programs import SHELL, UNKNOWN, Program, Rule, Sink, nowhere

__all__ = ["Command", "Read"]

Read = Callable[[str, Feed | None], bool]
"""Tells whether values may get into what a shell's script runs, given its text and its input."""

_UNARY = re.compile(r"-[abcdefghknoprstuwxzGLNOS]|!")
_BINARY = re.compile(r"={1,2}|!=|[<>]|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef)")
_SETS = re.compile(rf"=|\b(?:{'|'.join(programs.SETTING)})\b")
_DEFAULT = re.compile(r"\"?\$\{(\w+):?-([\w./+-]+)\}\"?")
_DEVICE = re.compile(r"-$|/dev/|/proc/")
_REST = re.compile(r"-.*|[dv].|p..|[cu](?P<code>x)|(?P<operand>x)|(?P<option>y)|.")


class Command:
    """Finds what a simple command runs.

    Args:
        node: The command.
        flow: Where values get to.
        read: Reads the script that a shell is given.
    """

    def __init__(self, node: Node, flow: Flow, read: Read) -> None:
        self._node = node
        self._flow = flow
        self._read = read

    def sinks(self) -> Iterator[Sink]:
        """Yield what it runs."""
        if words := self._flow.words(self._node):
            yield from self._program(words)

    # Sinks --------------------------------------------------------------------------------------

    def _sink(self, at: Sequence[Node], rule: Rule, is_open: bool) -> Sink:
        spans = tuple(range(node.start_byte, node.end_byte) for node in at)
        return Sink(spans, rule, is_open, self._node.start_point.row + 1)

    def _open(self, rule: Rule) -> Sink:
        return self._sink((), rule, is_open=True)

    def _word(self, word: Word, rule: Rule) -> Sink:
        at = (word.node,) if word.node else (self._flow.feed(self._node) or Feed(())).nodes
        return self._sink(at, rule, self._flow.carries_word(word))

    def _words(self, words: Sequence[Word], rule: Rule) -> Iterator[Sink]:
        yield from (self._word(word, rule) for word in words if word.text is None)

    # Programs -----------------------------------------------------------------------------------

    def _program(self, words: Sequence[Word]) -> Iterator[Sink]:
        program, *arguments = words
        default = _DEFAULT.fullmatch(source(program.node))
        if default and not self._flow.names_tainted(default[1]):  # from outside, and as it says
            program = Word(program.node, (default[2],))
        name = program.tail.rpartition("/")[2]
        if program.text is None:
            where = "for the name of a program"
            yield self._word(program, rules.path(where) if _has_own(program) else nowhere(where))
        elif "/" in program.text and self._flow.is_written(program):
            yield self._open(rules.path("in a program that the command writes"))
        if program.text is None and "/" not in program.tail:
            yield from self._any_program(arguments)
        else:
            yield from self._named(name, arguments)

    def _any_program(self, arguments: Sequence[Word]) -> Iterator[Sink]:
        """Yield what a program may run of which it isn't known which one it is."""
        has_code = any(UNKNOWN.code.fullmatch(word.text or "") for word in arguments)
        where = "in an argument of some program"
        yield from self._words(arguments, rules.path(where, is_fault=has_code))
        yield from self._input("some program", SHELL, is_fault=False)
        if self._flow.tainted or any(map(self._flow.is_written, arguments)):
            yield self._open(rules.path("by some program, which sees variables and files"))

    def _named(self, name: str, arguments: Sequence[Word]) -> Iterator[Sink]:
        if name in programs.REDEFINING:
            yield self._open(rules.path(f"by {name}"))
        if name in (".", "source"):
            yield from self._file(arguments[0], name, SHELL) if arguments else ()
        elif name in ("test", "["):
            yield from self.test(arguments)
        elif name == "printf":
            yield from self._printf(arguments)
        elif name == "trap":
            yield from self._trap([word for word in arguments if word.text != "--"][:1])
        elif name in programs.BUILTINS:
            yield from self._builtin(name, arguments)
        elif name not in programs.PLAIN:
            yield from self._arguments(name, arguments, programs.program(name))

    def _builtin(self, name: str, arguments: Sequence[Word]) -> Iterator[Sink]:
        rule = rules.path(f"in an argument of {name}", is_fault=True)
        yield from self._words(arguments, rule)
        for text in (word.text for word in arguments):
            is_named = name == "let" and self._flow.names_tainted(text or "")
            is_evaluated = re.match(r"-\w*[inC]", text or "") and name not in ("read", "wait")
            if is_named or is_evaluated or (name != "wait" and not _is_safe_name(text)):
                yield self._open(rule)

    def _trap(self, code: Sequence[Word]) -> Iterator[Sink]:
        for word in code:
            yield from self._code(word, "trap", SHELL)
            if _SETS.search(word.text or ""):  # a variable that is followed outside of it only
                yield self._open(rules.code("trap", is_shell=True))

    def _printf(self, arguments: Sequence[Word]) -> Iterator[Sink]:
        first = arguments[:1]
        if first and first[0].head.startswith("-v"):
            name = rules.path("for the name of a variable", is_fault=True)
            yield from self._words(arguments[:2], name)
            if not all(_is_safe_name(word.text) for word in arguments[:2]):
                yield self._open(name)
        elif first and not first[0].head:
            yield from self._words(first, rules.option("printf", is_known=True))

    def test(self, operands: Sequence[Word]) -> Iterator[Sink]:
        """Yield what ``test`` may take for an operator, or for a name with a subscript.

        Args:
            operands: What stands behind ``test`` or ``[``.
        """
        texts = [None, *(word.text for word in operands), None]
        rule = rules.path("in a test that may take it for an operator")
        for word, before, after in zip(operands, texts, texts[2:], strict=False):
            is_behind = _UNARY.fullmatch(before or "") or _BINARY.fullmatch(before or "")
            is_operand = is_behind or _BINARY.fullmatch(after or "") or len(operands) == 1
            is_split = word.node is not None and word.node.type != "string"
            if before in ("-v", "-R") and "[" in (word.text or ""):
                yield self._open(rule)
            elif word.text is None and (
                not is_operand or (is_split and self._flow.carries_word(word))
            ):
                yield self._word(word, rule)

    # Arguments ----------------------------------------------------------------------------------

    def _arguments(self, name: str, words: Sequence[Word], how: Program) -> Iterator[Sink]:
        if not how.is_known and name in self._flow.functions:
            return  # what it does with them stands in the command
        if how.operand == "all":
            yield from self._all(name, words, how)
            if self._flow.tainted:
                yield self._open(rules.path(f"by {name}, which sees variables"))
        elif how.operand == "command":
            yield from self._started(name, words, how)
        else:
            yield from self._operands(name, words, how)
        for at, word in enumerate(() if how.is_known else words):
            if word.text and programs.is_interpreter(word.text.rpartition("/")[2]):
                yield from self._program(words[at:])

    def _all(self, name: str, words: Sequence[Word], how: Program) -> Iterator[Sink]:
        """Yield what a program runs of which each argument may be code."""
        is_fault = how.operand != "command" or "c" in _kinds(words, how)
        yield from self._words(words, rules.path(f"in an argument of {name}", is_fault=is_fault))
        if how.reads:
            yield from self._input(name, how, is_fault=how.operand == "all")

    def _started(self, name: str, words: Sequence[Word], how: Program) -> Iterator[Sink]:
        """Yield what a program runs that starts another."""
        if name == "command" and words and words[0].text in ("-v", "-V"):
            return
        if name == "xargs":
            words = _from_input(words)
        if not how.does(words[0].text if words else None):
            yield from self._arguments(name, words, UNKNOWN)
        elif found := how.grammar.match(_kinds(words, how)):
            at = found.start("command")
            before = [word for word in words[:at] if not _is_harmless_variable(word)]
            yield from self._words(before, rules.path(f"in an argument of {name}"))
            yield from self._program(words[at:])
        else:
            yield from self._all(name, words, how)
            yield from self._arguments(name, words, UNKNOWN)

    def _operands(self, name: str, words: Sequence[Word], how: Program) -> Iterator[Sink]:
        """Yield what a program runs that takes code or a file of it, or nothing but data."""
        if name == "find":
            words = yield from self._executed(words)
        kinds = _kinds(words, how)
        found = how.grammar.match(kinds)
        part = found.lastgroup if found else None
        first = words[found.start(part)] if found and part else None
        if found is None or (part == "action" and first and not how.does(first.text)):
            return (yield from self._all(name, words, how))
        if how.operand == "file" and (
            first is None or (how.stops and _is_interactive(words[: found.end()]))
        ):
            yield from self._input(name, how)
        is_clear = True
        if first is not None and part == "file":
            is_clear = yield from self._file(first, name, how)
        elif first is not None and part == "code":
            is_clear = yield from self._code(first, name, how)
        rest = words[found.end() :]
        if not is_clear:
            yield from self._all(name, rest, how)
        elif part != "file" and not how.stops:
            yield from self._rest(name, rest, kinds[found.end() :], how)

    def _rest(self, name: str, words: Sequence[Word], kinds: str, how: Program) -> Iterator[Sink]:
        """Yield what a program may take for an option or for the value of one."""
        rule = rules.code(name, is_shell=not how.is_known, is_fault=how.is_known)
        for found in _REST.finditer(kinds):
            if found.lastgroup is None:
                continue
            word = words[found.start(found.lastgroup)]
            if found.lastgroup != "operand":
                yield self._word(word, rule)
            elif not word.head:
                sink = self._word(word, rules.option(name, is_known=how.is_known))
                yield sink._replace(is_open=sink.is_open and how.is_known)

    def _executed(self, words: Sequence[Word]) -> Generator[Sink, None, Sequence[Word]]:
        """Yield what ``find`` runs; return its other arguments."""
        others: list[Word] = []
        rest = iter(words)
        for word in rest:
            if not re.fullmatch(r"-(?:exec|ok)(?:dir)?", word.text or ""):
                others.append(word)
                continue
            started: list[Word] = []
            for each in rest:
                if each.text == ";" or (each.text == "+" and started and started[-1].is_filled):
                    break
                started.append(each.filled("{}", "./"))
            if started:
                yield from self._program(started)
        return others

    # Code ---------------------------------------------------------------------------------------

    def _code(self, word: Word, name: str, how: Program) -> Generator[Sink, None, bool]:
        """Yield what code runs that is given as an argument; return whether it can be read."""
        rule = rules.code(name, is_shell=how.is_shell)
        if sink := self._in_texts(word.node, how, rule):
            yield sink
            return True
        if word.text is None:
            rule = rule if _has_own(word) else nowhere(f"for the code of {name}")
            yield self._word(word, rule)._replace(is_open=True)
        elif self._is_risky(word.text, how):
            yield self._open(rule)
        else:
            return True
        return False

    def _file(self, word: Word, name: str, how: Program) -> Generator[Sink, None, bool]:
        """Yield what is run of a file; return whether it is the one that the word names."""
        rule = rules.path(f"for the file that {name} runs", is_fault=_is_substitution(word))
        if word.text is not None and _DEVICE.match(word.text):
            yield from self._input(name, how)
            if word.text not in ("-", "/dev/stdin"):
                yield self._open(rule)
        elif self._flow.is_written(word):
            yield self._word(word, rule)._replace(is_open=True)
        elif word.text is None:
            yield self._word(word, rule)
            return "/" in word.tail or (word.node is not None and self._flow.has_value(word.node))
        return True

    def _input(self, name: str, how: Program, *, is_fault: bool = True) -> Iterator[Sink]:
        """Yield what is run of what a command reads."""
        feed = self._flow.feed(self._node)
        rule = rules.code(name, is_shell=how.is_shell, is_fault=is_fault)
        only = feed.nodes[0] if feed and len(feed.nodes) == 1 else None
        if sink := self._in_texts(only, how, rule):
            yield sink
        elif feed is not None and (feed.text is None or self._is_risky(feed.text, how)):
            yield self._sink(feed.nodes, rule, is_open=True)

    def _in_texts(self, node: Node | None, how: Program, rule: Rule) -> Sink | None:
        """Return code in which values stand in texts only, and which doesn't run those."""
        if node is None or how.texts is None or (given := self._flow.given(node)) is None:
            return None
        if how.texts.search(given.text.decode("latin-1")):
            return None
        start = given.at.start
        places = sorted([*given.slots, *given.variables], key=lambda place: place.start)
        code = bytearray(given.text)
        for place in places:
            code[place.start - start : place.stop - start] = b"_" * len(place)
        found = find_texts(code, [_moved(place, -start) for place in places])
        if not found:
            return None
        if given.variables:  # which are filled in without escapes
            return self._sink((node,), rules.path(rule.where), is_open=True)
        texts = {_moved(slot, start): mark and _moved(mark, start) for slot, mark in found.items()}
        return self._open(rule)._replace(is_open=False, texts=texts)

    def _is_risky(self, code: str, how: Program) -> bool:
        """Return whether code that can be read runs what it is given."""
        if not how.is_shell:
            return bool(how.evaluates.search(code))
        feed = self._flow.feed(self._node)
        return self._read(code, feed and Feed((), feed.text))


def _moved(at: range, by: int) -> range:
    return range(at.start + by, at.stop + by)


def _kinds(words: Sequence[Word], how: Program) -> str:
    return "".join(how.kind(word.head, is_whole=word.text is not None) for word in words)


def _from_input(words: Sequence[Word]) -> list[Word]:
    """Return the words of ``xargs`` as it runs them, with what it reads in its place."""
    marks = ["{}"]
    for word, after in itertools.pairwise([*words, Word(None, ())]):
        text = word.text or ""
        marks += [after.text or ""] if text == "-I" else re.findall(r"(?<=^-I).+", text)
    for mark in filter(None, marks):
        words = [w if w.head.startswith("-I") else w.filled(mark, "") for w in words]
    return [*words, Word(None, (None,))]


def _is_substitution(word: Word) -> bool:
    return word.node is not None and word.node.type == "process_substitution"


def _has_own(word: Word) -> bool:
    """Return whether a word has text of its own beside what is filled in."""
    return any(re.search(r"\w", piece or "") for piece in word.pieces)


def _is_interactive(words: Sequence[Word]) -> bool:
    """Return whether a shell or Python runs what it reads besides (``-s``, ``-i``)."""
    return any(re.fullmatch(r"-[a-zA-Z]*[is][a-zA-Z]*", word.head) for word in words)


def _is_safe_name(text: str | None) -> bool:
    """Return whether nothing is run when a variable of that name is set."""
    return text is not None and "[" not in text and not programs.SPECIAL.fullmatch(text)


def _is_harmless_variable(word: Word) -> bool:
    name, is_set, _ = word.head.partition("=")
    return bool(is_set) and not programs.SPECIAL.fullmatch(name)
