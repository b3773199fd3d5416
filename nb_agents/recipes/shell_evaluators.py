"""What in a bash command runs text as code: ``eval``, ``sh -c``, arithmetic on names and their kin.

Nothing is followed. Where a command holds one, a value could reach it by a variable, a file or a
pipe; so it counts for all values of the command, whatever the code is. Arithmetic on numbers that
are written out, a script that the command names nowhere else, and a filter's code without calls are
none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tree_sitter import Node

from nb_agents.recipes import shell_programs as programs
from nb_agents.recipes.shell_tree import Tree, Word, around, is_quoted, source, worked_out

_EXPANSION = re.compile(
    r"\$\{(?:#[\w@*]+(?:\[.*\])?|!\w+(?:[@*]|\[[@*]\])"
    r"|(?:\w+|[-@*#?$!])(?:\[[^\]]*\])?(?:(?::?[-=+?]|[#%^,/]).*|@[QULuEaAKk]|:.*)?)\}",
    re.DOTALL,
)
_SET_BY_EXPANSION = re.compile(r"\$\{(\w+):?=")
_COUNT = (
    r"(?:\$(?:[?#$!]|\{#[^}]*\})"
    r"|\$\((?:date \+%s|(?:[^()]*\|\s*)?wc -[clmw](?:\s*<\s*[^\s()]+)?)\))"
)
_ONE_WORD = re.compile(rf'[^$`]*|"[^"]*"|{_COUNT}')
_SLICED = re.compile(r"^\$\{[\w@*]+(?:\[[^\]]*\])?:")
_OUTER = re.compile(r"(?:[^$`]|\$\{?(?:HOME|PATH|PWD|USER)\b)*")
_ARRAY = re.compile(r"\b(?:mapfile|readarray|read\b[^;\n]*\s-\w*a)\b")
_DEVICE = re.compile(r"-$|/dev/|/proc/")
_HEREDOC_MARKS = {"heredoc_start", "heredoc_end", "file_descriptor"}
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
            name, else the language of the code, "" for one that isn't read.
        functions: Names of the command's functions.
    """

    def __init__(self, tree: Tree) -> None:
        self.places: list[tuple[Node, str]] = []
        definitions = [node for node in tree.nodes if node.type == "function_definition"]
        self.functions = {source(node.child_by_field_name("name")) for node in definitions}
        self._files: list[str] = []
        self._tree = tree
        self._node: Node | None = None
        self.what = next(iter([*self._found(), *self._written()]), "")

    def _found(self) -> Iterator[str]:
        for node in self._tree.nodes:
            look: Callable[[Node], str] | None = getattr(self, f"_in_{node.type}", None)
            what = look(node) if look else ""
            if not what and any(map(self._is_active, worked_out(node))):
                what = "arithmetic on what a variable or a program gives"
            if what:
                yield f"{what} (line {node.start_point.row + 1})"

    def _written(self) -> Iterator[str]:
        """Yield the files that are run and stand elsewhere too, where they could be written."""
        for name in self._files:
            used = re.findall(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", self._tree.text)
            if len(used) > self._files.count(name):
                yield f"{name}, which it also names elsewhere"

    def _is_active(self, node: Node) -> bool:
        """Return whether more than numbers may stand where bash works something out."""
        text = self._tree.around_holes(node, self._tree.slots_in(node), b"0")
        text = _SLICED.sub("", re.sub(_COUNT, "", text.removeprefix("$((")))
        return bool(re.search(r"[A-Za-z_$`]", text))

    # Bash ---------------------------------------------------------------------------------------

    def _in_expansion(self, node: Node) -> str:
        text = source(node)
        if not _EXPANSION.fullmatch(text):
            return "an expansion such as ${!name} or ${name@P}"
        set_ = _SET_BY_EXPANSION.match(text)
        return set_[1] if set_ and programs.SPECIAL.fullmatch(set_[1]) else ""

    def _in_variable_assignment(self, node: Node) -> str:
        """Return the variable that is set, if something is run of what is in it."""
        variable = node.child_by_field_name("variable")
        name = source(variable) if variable else re.split(r"\W", source(node), maxsplit=1)[0]
        values = node.children_by_field_name("value")
        is_own = all(_OUTER.fullmatch(source(value)) for value in values)
        is_own &= not self._tree.slots_in(node) and not programs.STARTUP.fullmatch(name)
        return name if programs.SPECIAL.fullmatch(name) and not is_own else ""

    _in_for_statement = _in_variable_assignment

    def _in_declaration_command(self, node: Node) -> str:
        command = source(node.children[0])
        types = {each.type for each in self._tree.nodes}
        has_arrays = bool(types & {"array", "subscript"} or _ARRAY.search(self._tree.text))
        for child in node.named_children:
            word, is_set = self._tree.word(child), child.type == "variable_assignment"
            if command in ("declare", "typeset") or (not is_set and _sets_unknown(word, command)):
                return command
            if has_arrays and word.text is None:  # bash may read `(…)` in it as a list
                return f"{command} beside an array"
        return ""

    _in_unset_command = _in_declaration_command

    def _in_test_command(self, node: Node) -> str:
        words = self._tree.parts(node)
        return self._test(words, is_split=node.children[0].type == "[")

    def _test(self, words: Sequence[Word], is_split: bool = True) -> str:
        """Return whether ``test`` may take a word for an operator or a name, or split it."""
        for before, word in zip([None, *words], words, strict=False):
            is_named = before is not None and before.text in ("-v", "-R")
            is_behind = is_named or (is_split and before is not None and before.text is None)
            if (is_behind and word.text is None) or (is_named and "[" in (word.text or "")):
                return "a test of something that isn't written out"
            if is_split and not _ONE_WORD.fullmatch(source(word.node)):
                return "a test of something without quotes"
        return ""

    def _in_redirected_statement(self, node: Node) -> str:
        body = node.child_by_field_name("body")
        strays = self._tree.strays(body) if body and body.type != "command" else []
        is_unknown = any(self._tree.word(stray).text is None for stray in strays)
        return "words behind a redirection" * is_unknown

    # Programs -----------------------------------------------------------------------------------

    def _in_command(self, node: Node) -> str:
        words, self._node = self._tree.words(node), node
        return self._program(words) if words else ""

    def _program(self, words: Sequence[Word]) -> str:
        """Return the evaluator that a program and its arguments are, or ""."""
        (program, *rest), name = words, _last(words[0].text or "")
        self._note([program], "program")
        if program.text is None and "SHELL" not in source(program.node):
            return "a program that isn't written out"
        if program.text is None or programs.interpreter(name) is not None:
            return self._interpreter(name or "sh", rest)
        if name in programs.ALWAYS:
            self._note(rest, "sh")
            return name
        if name in programs.RUNNERS:
            return name
        if name in programs.WRAPPERS:
            return self._wrapper(name, rest)
        if name in ("[", "test"):
            return self._test(rest)
        if name == "printf" or name in programs.NAMING:
            return self._names(name, rest)
        if name in programs.FILTERS:
            return self._filter(re.sub(r"\w?(awk|sed)|\w*(jq)", r"\1\2", name), rest)
        if name in programs.PLAIN or name in self.functions:
            return ""
        is_file = "/" in program.text and not self._is_own_file(program)
        return f"{name} as a program" if is_file else self._other(name, rest)

    def _note(self, words: Iterable[Word], kind: str) -> None:
        self.places += [(w.node, kind) for w in words if w.text is None]

    def _is_own_file(self, word: Word) -> bool:
        """Return whether a file's name is written out; it is looked for elsewhere, too."""
        name = _last(word.tail)
        if not name or _DEVICE.match(word.text or "") or (word.text is None and name == word.tail):
            return False
        self._files.append(name)
        return True

    def _interpreter(self, name: str, words: Sequence[Word]) -> str:
        """Return whether an interpreter runs more than a script's file or a module."""
        kind, rest, what = programs.interpreter(name) or "", iter(words), ""
        for word in rest:
            text = word.text or word.head
            if text[:1] not in ("-", "+"):
                self._note([word], "program")
                return what or name * (not self._is_own_file(word))
            if programs.CODE[kind].fullmatch(text):
                code = [*rest][:1]
                self._note(code, kind)
                is_inert = code and _is_inert(code[0].text, kind)
                return what or f"{name} {text}" * (not is_inert)
            if text == "-m" and kind == "python":
                module = next((each.text for each in rest), None)
                return f"{name} -m" * (not module or bool(programs.MODULES.match(module)))
            if re.fullmatch("--version|--help|-[Vh]", text):
                return ""
            if text == "-":
                break
            if programs.VALUED.fullmatch(text):
                next(rest, None)
            elif not programs.FLAGS[kind].fullmatch(text):
                what = what or f"{name} {text}"
        redirects = [each for node in [*around(self._node)][:2] for each in node.named_children]
        inputs = [each for each in redirects if re.match(r"(?!\d*&?>)", source(each))]
        inputs = [each for each in inputs if re.match("here|file_redirect", each.type)]
        texts = [n for each in inputs for n in each.named_children if n.type not in _HEREDOC_MARKS]
        self.places += [(text, kind) for text in texts]
        if len(inputs) == 1 and is_quoted(inputs[0]) and not self._tree.slots_in(texts[0]):
            return what or name * (not _is_inert(source(texts[0]), kind))
        return what or name

    def _names(self, name: str, words: Sequence[Word]) -> str:
        """Return whether a builtin sets a variable that isn't written out or is a special one."""
        if name == "printf":
            if words and words[0].text is None and not words[0].head:
                return name
            words = words[:2] if words and words[0].head.startswith("-v") else ()
        self._note([word for word in words if "=" not in word.head], "variable")
        is_special = any(programs.SPECIAL.fullmatch(word.head) for word in words)
        is_called = any(re.match(r"-\w*C", word.head) for word in words)
        return name * (is_special or is_called or any(map(_sets_unknown, words)))

    def _wrapper(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that a program starts which starts another."""
        if name == "command" and words and words[0].text in ("-v", "-V"):
            return ""
        before, has_operand = "", name in programs.WITH_OPERAND
        for at, word in enumerate(words):
            head, last, before = word.head, before, word.head
            set_ = re.match(r"(\w+)=", head)
            if re.match(r"-\w*S|-c$|--\w[\w-]*$", head):
                self._note(words[at + 1 : at + 3], "program")
                return f"{name} {head}"
            if set_ and programs.SPECIAL.fullmatch(set_[1]):
                if programs.STARTUP.fullmatch(set_[1]) or word.text is None:
                    return f"{name} {set_[0]}"
            if set_ or (head.startswith("-") and word.text is not None):
                continue
            if last.startswith("-") and word.text and not programs.is_known(_last(head)):
                continue  # it may be the option's argument
            if name == "xargs":  # which adds words that it reads
                return self._program(words[at:]) or name * (word.text not in programs.PLAIN)
            if not (has_operand or re.fullmatch(r"[\d.]+[smhd]?", head)):
                return self._program(words[at:])
            has_operand = False
        return ""

    def _filter(self, name: str, words: Sequence[Word]) -> str:
        """Return a filter that may run something, and note its code."""
        is_code = True
        for at, word in enumerate(words):
            before = [name, *(each.head for each in words[:at])]
            is_data = programs.takes_text(name, before) or before[-1] in ("--indent", "-L")
            if is_data or (word.head.startswith("-") and word.text is not None):
                continue
            if re.fullmatch("-[nErsuz]*f|--file", before[-1]):
                return name
            if is_code or re.fullmatch("-[nErsuz]*e|--expression", before[-1]):
                self._note([word], name)
                if name != "jq" and not _is_inert(word.text, name):
                    return name
            elif name == "sed" and word.text is None and not word.head:
                if not self._tree.slots_in(word.node):
                    return f"{name} with files that may be options"
            is_code = False
        return ""

    def _other(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that a value makes of a program, or that may stand behind it."""
        texts, is_open = [word.text or "" for word in words], False
        for at, word in enumerate(words):
            option = word.head.partition("=")[0] if word.head.startswith("-") else ""
            before, behind = texts[at - 1] if at else "", _last(texts[at]).removeprefix(".")
            is_started = not option and bool(programs.STARTING.fullmatch(before))
            is_open = is_started or (is_open and before[:1] in ("-", ""))
            is_code = name == "git" and ("config" in texts or re.match("-u|-O", option or before))
            is_code = is_code or programs.CODE_OPTION.fullmatch(option or before)
            is_program = is_started and before.startswith("-")
            is_judged = behind in programs.BEHIND or programs.interpreter(behind) is not None
            if is_program or is_judged:
                if what := self._program(words[at:]):
                    return what
            elif is_code and self._tree.slots_in(word.node):
                return f"{name} {option or before}"
            elif is_open and word.text is None:
                return f"{name} {before}"
        runs = {"git": r"alias\.|.*=!", "tar": "-I|--(?:checkpo|to-c|use-c)"}.get(name, "(?!)")
        return name * any(re.match(runs, text) for text in texts)


def _last(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _is_inert(code: str | None, kind: str) -> bool:
    """Return whether code is written out, in a language that is read, and runs no other."""
    return code is not None and kind in _RUNS and not _RUNS[kind].search(code)


def _sets_unknown(word: Word, command: str = "") -> bool:
    """Return whether it isn't known which variable a word names, or more than that happens."""
    name = word.head.partition("=")[0].rstrip("+")
    is_value = "=" in word.head and command != "unset"
    is_cut = (word.text is None and not is_value) or re.match(r"-\w*[in]", word.head)
    return (
        bool(is_cut) or "[" in name or bool(programs.SPECIAL.fullmatch(name) and word.text is None)
    )
