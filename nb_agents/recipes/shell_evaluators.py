"""What in a bash command runs text as code: ``eval``, ``sh -c``, arithmetic on names and their kin.

Nothing is followed. Where a command holds one, a value could reach it by a variable, a file or a
pipe; so it counts for all values of the command, whatever the code is. Arithmetic on numbers that
are written out, a script that the command names nowhere else, and a filter's or Python's code
without calls are none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tree_sitter import Node

from nb_agents.recipes import shell_programs as programs
from nb_agents.recipes.shell_tree import (
    COMPARES,
    Tree,
    Word,
    around,
    is_arithmetic,
    quoted_tag,
    source,
)

_EXPANSION = re.compile(r"\$\{#?(?:\w+|[@*#?$-])(?:(?::?[-+?]|[#%^,/]).*)?\}", re.DOTALL)
_ONE_WORD = re.compile(r'[^$`]*|"[^"]*"|\$[?#]')
_OWN = re.compile(r"(?!BASH_ENV|ENV|PROMPT|PS4)(?:[^$`]|\$\{?(?:HOME|PATH|PWD|USER)\b)*")
_DEVICE = re.compile(r"-$|/dev/|/proc/")
_CALLS = re.compile(
    r"\b(?:eval|exec\w*|system|popen|spawn\w*|get(?:status)?output|__import__"
    r"|import_module|create_subprocess_shell)\s*\(|(?<!\bre\.)\bcompile\s*\(|\b(?:pty|runpy)\b"
    r"|shell *= *True|[\[(]\s*['\"](?:/bin/)?\w*sh['\"]|['\"]-\w*[ceE]['\"]"
)
_RUNS = {
    **{"python": _CALLS, "jq": re.compile(r"(?!)")},
    "sed": re.compile(r"[^\w\s][gpiImM0-9]*e[gpiImM0-9]*\s*(?:[;}#\n]|$)|(?:^|[\s;{}/0-9$])e\b"),
    "awk": re.compile(r"\b(?:system|getline)\b|\|"),
}


class Evaluators:
    """What of a command is run.

    Args:
        tree: The command.

    Attributes:
        what: What runs text as code, in words; "" when nothing does.
        places: Where something is filled in that is run or named: ``program`` or ``variable`` for a
            name, the language of code that is read, or ``code``.
    """

    def __init__(self, tree: Tree) -> None:
        self.places: list[tuple[Node, str]] = []
        self._tree = tree
        self._node: Node | None = None
        self.what = [*self._found(), ""][0]

    def _found(self) -> Iterator[str]:
        for node in self._tree.nodes:
            look: Callable[[Node], str] | None = getattr(self, f"_in_{node.type}", None)
            what = look(node) if look else ""
            if not what and is_arithmetic(node) and self._is_active(node):
                what = "an array, or arithmetic on what a variable or a program gives"
            if what:
                yield f"{what} (line {node.start_point.row + 1})"

    def _is_active(self, node: Node) -> bool:
        """Return whether more than numbers may stand where bash works something out."""
        text = self._tree.around_holes(node, self._tree.slots_in(node), b"0").removeprefix("$")
        return node.type == "array" or bool(re.search(r"[A-Za-z_$`]", COMPARES.sub("", text)))

    # Bash ---------------------------------------------------------------------------------------

    def _in_expansion(self, node: Node) -> str:
        is_text = _EXPANSION.fullmatch(source(node))
        return "" if is_text else "an expansion such as ${!name} or ${name@P}"

    def _in_variable_assignment(self, node: Node) -> str:
        """Return the variable that is set, if something is run of what is in it."""
        text = re.sub(r"^(?:for|select)\s+", "", source(node))
        name = re.split(r"\W", text, maxsplit=1)[0]
        is_own = _OWN.fullmatch(text) and not self._tree.slots_in(node)
        return name if programs.SPECIAL.fullmatch(name) and not is_own else ""

    _in_for_statement = _in_variable_assignment

    def _in_declaration_command(self, node: Node) -> str:
        command = source(node.children[0])
        words = [each for each in node.named_children if each.type != "variable_assignment"]
        is_other = command not in programs.NAMING or (command == "unset" and "=" in source(node))
        return self._names(command, [*map(self._tree.word, words)]) or command * is_other

    _in_unset_command = _in_declaration_command

    def _in_test_command(self, node: Node) -> str:
        return self._test(self._tree.parts(node)[1:-1], is_split=node.children[0].type == "[")

    def _test(self, words: Sequence[Word], is_split: bool = True) -> str:
        """Return whether ``test`` may take a word for an operator or a name, or split it."""
        texts = [word.text for word in words]
        is_open = (None, None) in itertools.pairwise(texts)
        is_open |= not all(_ONE_WORD.fullmatch(source(word.node)) for word in words)
        is_named = "-v" in texts or "-R" in texts
        return "a test of something without quotes" * (is_named or (is_split and is_open))

    def _in_file_redirect(self, node: Node) -> str:
        words = node.children_by_field_name("destination")[1:]
        words += node.children_by_field_name("argument")
        self.places += [(word, "code") for word in words]
        return "words behind a redirection" * bool(words)

    _in_heredoc_redirect = _in_herestring_redirect = _in_file_redirect

    # Programs -----------------------------------------------------------------------------------

    def _in_command(self, node: Node) -> str:
        words, self._node = self._tree.words(node), node
        return self._program(words) if words else ""

    def _program(self, words: Sequence[Word]) -> str:
        """Return the evaluator that a program and its arguments are, or ""."""
        (program, *rest), name = words, _last(words[0].text or "")
        self._note([program], "program")
        if program.text is None and "SHELL" in source(program.node):
            name = "sh"
        if programs.interpreter(name) is not None:
            return self._interpreter(name, rest)
        if name in programs.ALWAYS:
            self._note([*rest, *self._inputs()], "code")
        if name in programs.ALWAYS or name in programs.RUNNERS:
            return name
        if name in ("[", "test"):
            return self._test(rest)
        if name == "printf" or name in programs.NAMING:
            return self._names(name, rest)
        if name in programs.FILTERS:
            return self._filter(re.sub(r"\w?(awk|sed)|\w*(jq)", r"\1\2", name), rest)
        if name in programs.PLAIN:
            return ""
        if program.text is None:
            return "a program that isn't written out"
        if name in programs.WRAPPERS:
            return self._wrapper(name, rest)
        is_file, what = "/" in program.text, self._other(name, rest)
        return f"{name} as a program" if is_file and not self._is_own_file(program) else what

    def _note(self, words: Iterable[Word], kind: str) -> None:
        self.places += [(w.node, kind) for w in words if w.text is None]

    def _is_own_file(self, word: Word) -> bool:
        """Return whether a file's name is written out, and nowhere else, where it could be made."""
        name = _last(word.tail)
        if not name or _DEVICE.match(word.text or "") or (word.text is None and name == word.tail):
            return False
        used = re.findall(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", source(self._tree.nodes[0]))
        return len(used) == 1

    def _interpreter(self, name: str, words: Sequence[Word]) -> str:
        """Return whether an interpreter runs more than a script's file, a module or inert code."""
        kind = programs.interpreter(name) or ""
        is_flag = programs.FLAGS[kind].fullmatch
        rest = [*itertools.dropwhile(lambda word: is_flag(word.text or "?"), words)]
        option = (rest[0].text or f"{rest[0].head}?") if rest else "-"
        if option[:1] not in ("-", "+"):
            self._note(rest[:1], "program")
            return name * (not self._is_own_file(rest[0]))
        if kind == "python" and option == "-m":
            module = rest[1].text if rest[1:] else None
            return f"{name} -m" * (not module or bool(programs.MODULES.match(module)))
        if kind == "python" and option == "-c":
            self._note(rest[1:2], kind)
            return f"{name} -c" * (not (rest[1:] and _is_inert(rest[1].text, kind)))
        inputs = self._inputs()
        self._note(inputs, kind if kind == "python" else "code")
        if kind != "python" or option != "-":
            self._note(rest, "code")
            return name
        nodes = [word.node for word in inputs if quoted_tag(word.node)]
        is_text = len(inputs) == len(nodes) == 1 and not self._tree.slots_in(nodes[0])
        return name * (not (is_text and _is_inert(source(nodes[0]), kind)))

    def _inputs(self) -> list[Word]:
        """Return what a command reads, as far as it is written there."""
        redirects = [each for node in [*around(self._node)][:2] for each in node.named_children]
        inputs = [each for each in redirects if re.match("here|file_redirect", each.type)]
        return [self._tree.word(each) for each in inputs if re.match(r"(?!\d*&?>)", source(each))]

    def _names(self, name: str, words: Sequence[Word]) -> str:
        """Return whether a builtin sets a variable that isn't written out or is a special one."""
        if name == "printf":
            if words and words[0].text is None and not words[0].head:
                return name
            words = words[:2] if words and words[0].head.startswith("-v") else ()
        self._note([word for word in words if "=" not in word.head], "variable")
        return name * any(map(_sets_unknown, words))

    def _filter(self, name: str, words: Sequence[Word]) -> str:
        """Return a filter that may run something, and note its code."""
        operands: list[Word] = []
        for at, word in enumerate(words):
            before = [name, *(each.head for each in words[:at])]
            is_data = programs.takes_text(before) or before[-1] in ("--indent", "-L")
            if not is_data and (word.text is None or not word.head.startswith("-")):
                operands.append(word)
        more = re.compile(r"-\w*f|--f" if name == "jq" else r"-\w*[ef]|--[ef]")
        is_more = any(more.match(word.head) for word in words)
        self._note(words if is_more else operands[:1], name)
        is_run = name != "jq" and not all(_is_inert(each.text, name) for each in operands[:1])
        files = [word.node for word in operands[1:] if word.text is None and not word.head]
        is_option = name == "sed" and not all(map(self._tree.slots_in, files))
        return name * (is_more or is_run or is_option)

    def _wrapper(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that a program starts, if it isn't plain to see that none is."""
        rest = [*itertools.dropwhile(_is_before, words)]
        before = [word.head for word in words[: len(words) - len(rest)]]
        is_code = any(re.match(r"-\w*S|-c$|--\w", each) for each in before)
        is_code |= any(programs.SPECIAL.fullmatch(each.partition("=")[0]) for each in before)
        is_lookup = name == "command" and before in (["-v"], ["-V"])
        program = rest[0].text if rest else None
        if is_lookup or not words or (program in programs.PLAIN and not is_code):
            return ""
        is_unclear = is_code or name == "xargs" or any(each[:1] == "-" for each in before)
        if program and not is_unclear:
            return self._program(rest)
        self._note(rest[:1], "program")
        self._note([*words, *self._inputs()], "code")
        return name

    def _other(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that a value makes of a program, or that may stand behind it."""
        texts, is_open, what = [word.text or "" for word in words], False, ""
        for at, word in enumerate(words):
            before = texts[at - 1] if at else ""
            option = word.head.partition("=")[0] if word.head.startswith("-") else ""
            is_started = bool(programs.STARTING.fullmatch(before))
            is_open = is_started or (is_open and before[:1] in ("-", ""))
            is_judged = programs.runs_code(_last(texts[at]).removeprefix("."))
            if is_judged or (is_open and not option):
                what = self._program(words[at:]) or what
            is_code = name == "git" and ("config" in texts or re.match("-u|-O", option or before))
            is_code = is_code or programs.CODE_OPTION.fullmatch(option or before)
            if is_code and self._tree.slots_in(word.node):
                what = f"{name} {option or before}"
        runs = {"git": r"alias\.|.*=!", "tar": "-I|--(?:checkpo|to-c|use-c)"}.get(name, "(?!)")
        return what or name * any(re.match(runs, text) for text in texts)


def _last(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _is_before(word: Word) -> bool:
    """Return whether a word is an option, a number or an assignment, before a program's name."""
    is_option = re.fullmatch(r"-.*|[\d.]+[smhd]?|\{\}", word.text or "?", re.DOTALL)
    return bool(is_option or re.match(r"\w+=", word.head))


def _is_inert(code: str | None, kind: str) -> bool:
    """Return whether code is written out, in a language that is read, and runs no other."""
    return code is not None and kind in _RUNS and not _RUNS[kind].search(code)


def _sets_unknown(word: Word) -> bool:
    """Return whether it isn't known which variable a word names, or more than that happens."""
    name, is_set, _ = word.head.partition("=")
    is_cut = word.text is None and not is_set
    is_called = re.match(r"-\w*[ainC]", name) or "[" in word.head
    return is_cut or bool(is_called or programs.SPECIAL.fullmatch(name.rstrip("+")))
