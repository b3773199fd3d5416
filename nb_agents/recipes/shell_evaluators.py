"""What in a bash command runs text as code: ``eval``, ``sh -c``, arithmetic on names and their kin.

Nothing is followed. Where a command holds one, a value could reach it by a variable, a file or a
pipe; so it counts for all values of the command. What is written out counts as the author's: code
that names no evaluator of its own language, a file that the command names nowhere else, a variable
that it doesn't set or sets to numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tree_sitter import Node

from nb_agents.recipes import shell_programs as programs
from nb_agents.recipes.shell_programs import Interpreter
from nb_agents.recipes.shell_tree import FILLING, Tree, Word, is_quoted, nodes, source, worked_out

_INERT = {
    *("word", "regex", "extglob_pattern", "number", "string", "string_content", "raw_string"),
    *("ansi_c_string", "comment", "variable_name", "heredoc_body", "heredoc_content", "program"),
    *("list", "pipeline", "subshell", "negated_command", "if_statement", "elif_clause", "array"),
    *("else_clause", "while_statement", "do_group", "command_substitution", "concatenation"),
    *("process_substitution", "binary_expression", "ternary_expression", "command_name"),
    *("parenthesized_expression", "postfix_expression", "unary_expression", "case_item"),
    *("case_statement", "file_redirect", "function_definition", "heredoc_redirect", "subscript"),
    *("herestring_redirect", "variable_assignments", "brace_expression", "file_descriptor"),
    *("heredoc_end", "heredoc_start", "simple_expansion", "special_variable_name"),
    *("test_operator", "translated_string", "arithmetic_expansion", "c_style_for_statement"),
    *("compound_statement",),
}
_WORKED_OUT = ("arithmetic_expansion", "compound_statement")
_EXPANSION = re.compile(
    r"\$\{(?:#[\w@*]+(?:\[.*\])?|!\w+(?:[@*]|\[[@*]\])"
    r"|(?:\w+|[-@*#?$!])(?:\[[^\]]*\])?(?:(?::?[-=+?]|[#%^,/]).*|@[QULuEaAKk]|:.*)?)\}",
    re.DOTALL,
)
_SET_BY_EXPANSION = re.compile(r"\$\{(\w+):?=")
_OUTER = re.compile(r"\"?\$(?:([A-Za-z_]\w*)|\{(\w+)(?::?-(?P<default>[^$`}]*))?\})\"?")
_UNOWNED = re.compile(r"BASH_\w+|COPROC|DIRSTACK|MAPFILE|OLDPWD|OPTARG|PWD|REPLY|_|\d+")
_COUNT = (
    r"(?:\$(?:[?#$!]|\{#[^}]*\})"
    r"|\$\((?:date \+%s|(?:[^()]*\|\s*)?wc -[clmw](?:\s*<\s*[^\s()]+)?)\))"
)
_NUMBERS = re.compile(rf"=[\"']?(?:\d+\b|{_COUNT})|\+?=\$\(\(|\+\+|--")
_DEVICE = re.compile(r"-$|/dev/|/proc/")
_FED = {"pipeline", "redirected_statement", "process_substitution", "function_definition"}
_RUNS = {
    "python": re.compile(
        r"\b(?:eval|exec[lv]?\w*|system|popen|spawn\w*|getoutput|getstatusoutput|__import__"
        r"|import_module|create_subprocess_shell)\s*\(|(?<!\bre\.)\bcompile\s*\("
        r"|\b(?:pty|runpy)\b|shell *= *True|[\[(]\s*['\"](?:/bin/)?\w*sh['\"]|['\"]-\w*[ceE]['\"]"
    ),
    "sed": re.compile(r"[^\w\s][gpiImM0-9]*e[gpiImM0-9]*\s*(?:[;}#\n]|$)|(?:^|[\s;{}/0-9$])e\b"),
    "awk": re.compile(r"\b(?:system|getline)\b|\|"),
    "": re.compile(
        r"\b(?:eval|exec(?:[lv]\w*|Sync|File\w*)?|system|popen|spawn\w*|getline|qx|Function)\b|`"
        r"|\| *[\"']"
    ),
}
_MODULES = re.compile("timeit|code|pdb|trace|runpy|c?[pP]rofile|IPython|xonsh")
_EXECUTABLE = re.compile(r"[ugoa]*[+=]\w*[xX]\w*|[0-7]*[1357][0-7]*")


class Evaluators:
    """What of a command is run.

    Args:
        tree: The command.
        outer: The text of the command that this one is written in, if any.

    Attributes:
        what: What runs text as code, in words; "" when nothing does.
        programs: Names of programs in which something is filled in.
        names: Those of variables.
        codes: Texts that are run in which something is filled in, each with what runs it.
        functions: Names of the command's functions.
    """

    def __init__(self, tree: Tree, outer: str = "") -> None:
        self.programs: list[Node] = []
        self.names: list[Node] = []
        self.codes: list[tuple[Node, str]] = []
        definitions = [node for node in tree.nodes if node.type == "function_definition"]
        self.functions = {source(node.child_by_field_name("name")) for node in definitions}
        self._tree = tree
        self._text = outer + tree.text
        plain = tree.text.encode(errors="surrogateescape")
        for node in tree.nodes:
            if node.type in _WORKED_OUT and node in worked_out(node):
                number = b"0" * (node.end_byte - node.start_byte)
                plain = plain[: node.start_byte] + number + plain[node.end_byte :]
        self._plain = outer + plain.decode(errors="surrogateescape")
        self._command: Node | None = None
        self.what = next(iter([*self._found()]), "")

    def _found(self) -> Iterator[str]:
        for node in self._tree.nodes:
            if look := _LOOKS.get(node.type):
                what = look(self, node)
            else:
                what = "" if node.type in _INERT else f"a construct ({node.type})"
            if not what and any(map(self._is_active, worked_out(node))):
                what = "arithmetic on what a variable or a program gives"
            if what:
                yield f"{what} (line {node.start_point.row + 1})"

    # Variables and files ------------------------------------------------------------------------

    def _settings(self, name: str) -> list[str]:
        """Return what stands behind a variable's name where it isn't expanded."""
        found = rf"(?<![\w$./-])(?<!\$\{{)(?<!\$\{{[#!])(?:\$\{{(?={name}:?=))?{name}\b(.{{0,99}})"
        return re.findall(found, self._plain, re.DOTALL)

    def _is_outer(self, node: Node | None) -> bool:
        """Return whether a word is a variable that the command never sets."""
        found = _OUTER.fullmatch(source(node))
        name = found and (found[1] or found[2])
        if not name or _UNOWNED.fullmatch(name):
            return False
        # What is assigned to special ones is looked at there.
        return bool(programs.SPECIAL.fullmatch(name)) or not self._settings(name)

    def _is_number(self, name: str) -> bool:
        return all(map(_NUMBERS.match, self._settings(name))) and not _UNOWNED.fullmatch(name)

    def _is_active(self, node: Node) -> bool:
        """Return whether more than numbers may stand where bash works something out."""
        text = re.sub(_COUNT, "", source(node).removeprefix("$(("))
        text = re.sub(r"^\$\{[\w@*]+(?:\[[^\]]*\])?:", "", text)
        names = re.findall(r"[A-Za-z_]\w*", text)
        return bool(re.search(r"\$\{?[0-9@*]|\$\(|`", text)) or not all(map(self._is_number, names))

    def _is_own_text(self, value: Node | None) -> bool:
        """Return whether a text is the command's, but for variables that it never sets."""
        filled = [each for each in nodes(value) if each.type in FILLING] if value else []
        return not self._tree.slots_in(value) and all(map(self._is_outer, filled))

    def _is_own_file(self, word: Word) -> bool:
        """Return whether a file is there before: the command names it only where it is run."""
        name = _last(word.tail)
        if not name or _DEVICE.match(word.text or "") or (word.text is None and name == word.tail):
            return False
        used = rf"(?<![\w.-]){re.escape(name)}(?![\w.-])"
        run = r"(?:^|[\n;&|(]|\b(?:then|do|else|\w*sh|python[\d.]*|node|perl|ruby|source)\s|\.\s"
        run += rf"|-[efxrs]\s|\}}\"?\s)\s*[\"']?[^\s\"'<>|;]*[\"']?[^\s\"'<>|;]*{used}"
        return len(re.findall(used, self._text)) <= max(1, len(re.findall(run, self._text)))

    # Bash ---------------------------------------------------------------------------------------

    def _expansion(self, node: Node) -> str:
        text = source(node)
        if not _EXPANSION.fullmatch(text):
            return "an expansion such as ${!name} or ${name@P}"
        set_ = _SET_BY_EXPANSION.match(text)
        return set_[1] if set_ and programs.SPECIAL.fullmatch(set_[1]) else ""

    def _assignment(self, node: Node) -> str:
        """Return the variable that is set, if something is run of what is in it."""
        variable = node.child_by_field_name("variable")
        name = source(variable) if variable else re.split(r"\W", source(node), maxsplit=1)[0]
        values = node.children_by_field_name("value")
        is_own = all(map(self._is_own_text, values)) and not programs.STARTUP.fullmatch(name)
        return name if programs.SPECIAL.fullmatch(name) and not is_own else ""

    def _declaration(self, node: Node) -> str:
        command = source(node.children[0])
        for child in node.named_children:
            word, is_set = self._tree.word(child), child.type == "variable_assignment"
            name = re.split(r"\W", source(child).lstrip("\"'"), maxsplit=1)[0]
            value = child.child_by_field_name("value") if is_set else child
            if not is_set and (_sets_unknown(word) or re.match(r"-\w*[in]", word.head)):
                return command
            array = rf"\b{name}(?:\[|\+?=\()|-\w*[aA]\b[^;\n]*\b{name}\b"
            if value and value.type != "array" and self._tree.word(value).text is None:
                if re.search(array, self._text):
                    return f"{command} of an array"
        return ""

    def _unset(self, node: Node) -> str:
        words = [self._tree.word(child) for child in node.named_children]
        return "unset" * any(word.text is None or "[" in word.text for word in words)

    def _bracket(self, node: Node) -> str:
        words = self._tree.parts(node)
        return self._test(words, is_split=node.children[0].type == "[")

    def _test(self, words: Sequence[Word], is_split: bool = True) -> str:
        """Return whether ``test`` may take a word for an operator or a name, or split it."""
        for before, word in zip([None, *words], words, strict=False):
            is_behind = before is not None and (before.text in (None, "-v", "-R"))
            is_named = before is not None and before.text in ("-v", "-R")
            is_unknown = word.text is None and (is_behind if is_split else is_named)
            if is_unknown or (is_named and "[" in (word.text or "")):
                return "a test of something that isn't written out"
            if is_split and word.text is None and not self._is_whole(word.node):
                return "a test of something without quotes"
        return ""

    def _is_whole(self, node: Node | None) -> bool:
        """Return whether bash makes one word of a word."""
        for each in nodes(node) if node else ():
            is_quoted_ = any(outer.type == "string" for outer in self._tree.around(each))
            if each.type in FILLING and not is_quoted_:
                name = re.fullmatch(r"\$\{?(\w+)\}?", source(each))
                is_count = re.fullmatch(_COUNT, source(each))
                if not (is_count or (name and self._is_number(name[1]))):
                    return False
        return True

    def _redirected(self, node: Node) -> str:
        body = node.child_by_field_name("body")
        strays = self._tree.strays(body) if body and body.type != "command" else []
        is_unknown = any(self._tree.word(stray).text is None for stray in strays)
        return "words behind a redirection" * is_unknown

    # Programs -----------------------------------------------------------------------------------

    def _simple(self, node: Node) -> str:
        words, self._command = self._tree.words(node), node
        return self._program(words) if words else ""

    def _program(self, words: Sequence[Word], starter: str = "") -> str:
        """Return the evaluator that some words start, or "".

        Args:
            words: The program and its arguments.
            starter: The program that starts it, if another does.
        """
        (program, *rest), name = words, self._program_name(words[0])
        self._note(self.programs, [program])
        if name is None or not self._is_own_program(program, name):
            return "a program that isn't written out" if name is None else f"{name} as a program"
        if name in programs.ALWAYS:
            self._note_codes(rest, "sh")
            return name
        if how := programs.interpreter(name):
            return self._interpreter(name, how, rest, starter)
        if name in programs.GIVEN:
            return name * (self._is_fed() or any(word.text is None for word in rest))
        if name in programs.WRAPPERS:
            return self._wrapper(name, rest)
        if look := _PROGRAMS.get(name):
            return look(self, rest)
        if name in programs.NAMING:
            self._note(self.names, [word for word in rest if "=" not in word.head])
            return name * any(_sets_unknown(w) or _is_special(w) for w in rest)
        if name in programs.FILTERS:
            return self._filter(re.sub(r"\w?(awk|sed)|\w*(jq)", r"\1\2", name), rest)
        return "" if name in programs.PLAIN | self.functions else self._other(name, rest)

    def _note(self, where: list[Node], words: Iterable[Word]) -> None:
        where += [word.node for word in words if word.text is None and word.node is not None]

    def _note_codes(self, words: Iterable[Word], kind: str) -> None:
        self.codes += [(w.node, kind) for w in words if w.text is None and w.node is not None]

    def _program_name(self, program: Word) -> str | None:
        """Return a program's name without a folder; None when it can't be read."""
        if program.text is not None or _last(program.tail) != program.tail:
            return _last(program.tail)
        if not self._is_outer(program.node):
            return None
        outer = _OUTER.fullmatch(source(program.node))
        default = outer["default"] if outer else None
        return "sh" if "SHELL" in source(program.node) else _last(default or "of the environment")

    def _is_own_program(self, program: Word, name: str) -> bool:
        return "/" not in (program.text or program.tail) or self._is_own_file(program)

    def _is_fed(self) -> bool:
        """Return whether a command may read something that is given to it."""
        above = {node.type for node in self._tree.around(self._command)}
        has_own = self._command and self._command.children_by_field_name("redirect")
        return bool(has_own or above & _FED or re.search(r"\bexec\b", self._text))

    def _interpreter(
        self, name: str, how: Interpreter, words: Sequence[Word], starter: str = ""
    ) -> str:
        rest, kind = iter(words), how.kind or name
        for word in rest:
            text = word.text
            if text is None or text[:1] not in ("-", "+"):
                self._note(self.programs, [word])
                return name * (not self._is_own_file(word))
            if how.code.fullmatch(text):
                code = [*rest][:1]
                self._note_codes(code, kind)
                is_filled = starter.startswith(("xargs", "-")) or not code
                # Perl and its like open what they are given as commands, too.
                is_known = kind in ("sh", "python", "node")
                is_own = is_known and not (is_filled or code[0].head.startswith(("-", "+")))
                return f"{name} {text}" * (not (is_own and self._is_own_code(code[0].text, kind)))
            if text == "-m" and kind != "sh":
                module = next(rest, Word(None, (None,))).text
                return f"{name} -m" * (not module or bool(_MODULES.match(module)))
            if how.valued.fullmatch(text):
                next(rest, None)
            elif re.fullmatch("--version|--help|-[Vh]", text):
                return ""
            elif text == "-":
                break
            elif not how.flags.fullmatch(text):
                return f"{name} {text}"
        is_alone = bool(starter) and not self._is_fed()
        return name * (not is_alone and not self._is_own_code(self._input(kind), kind))

    def _is_own_code(self, code: str | None, kind: str) -> bool:
        """Return whether code is written out, and runs nothing that it is given."""
        if code is None or kind != "sh":
            return code is not None and not _RUNS.get(kind, _RUNS[""]).search(code)
        inner = Tree(code.encode(errors="surrogateescape"))
        return not inner.error_line and not Evaluators(inner, self._text + "\n").what

    def _input(self, kind: str) -> str | None:
        """Return the code that a command reads, if it is written out in a here-document."""
        above = [*self._tree.around(self._command)][:2]
        redirects = [each for node in above for each in node.named_children]
        inputs = [each for each in redirects if re.match("here|file_redirect", each.type)]
        inputs = [each for each in inputs if not re.match(r"\d*&?>", source(each))]
        texts = [n for each in inputs for n in each.named_children if n.type not in _HEREDOC_MARKS]
        self.codes += [(text, kind) for text in texts]
        if len(inputs) != 1 or not is_quoted(inputs[0]) or self._tree.slots_in(texts[0]):
            return None
        return source(texts[0])

    def _source(self, words: Sequence[Word]) -> str:
        self._note(self.programs, words[:1])
        return "source" * any(not self._is_own_file(word) for word in words[:1])

    def _trap(self, words: Sequence[Word]) -> str:
        code = [word for word in words if word.text != "--"][:1]
        self._note_codes(code, "sh")
        sets = rf"=|\b(?:{'|'.join(programs.NAMING)}|printf)\b"
        is_own = all(self._is_own_code(word.text, "sh") for word in code)
        return "trap" * (not is_own or any(re.search(sets, word.text or "") for word in code))

    def _printf(self, words: Sequence[Word]) -> str:
        names = words[:2] if words and words[0].head.startswith("-v") else ()
        self._note(self.names, names)
        is_first = bool(words) and words[0].text is None and not words[0].head
        return "printf" * (is_first or any(_sets_unknown(w) or _is_special(w) for w in names))

    def _chmod(self, words: Sequence[Word]) -> str:
        modes = [word.text for word in words if not word.head.startswith("-")][:1]
        return "chmod" * any(mode is None or _EXECUTABLE.fullmatch(mode) for mode in modes)

    def _wrapper(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that a program starts which starts another."""
        if name == "command" and words and words[0].text in ("-v", "-V"):
            return ""
        rest, valued = list(words), programs.WRAPPERS[name]
        operands = int(name in ("chroot", "chrt", "flock", "setarch", "taskset", "timeout"))
        while rest:
            head, is_known = rest[0].head, rest[0].text is not None
            set_ = re.match(r"(\w+)=", head)
            if re.match(r"-\w*S|-c$", head) or _is_unclear_option(head, valued):
                self._note(self.programs, rest[1:3])
                return f"{name} {head}"
            if set_ and programs.SPECIAL.fullmatch(set_[1]):
                if programs.STARTUP.fullmatch(set_[1]) or not self._is_own_text(rest[0].node):
                    return f"{name} {set_[0]}"
            if head.startswith("-") and is_known:
                if name == "xargs" and re.match("-I|-i|--replace", head):
                    name = "xargs -I"
                del rest[0 : re.fullmatch(valued, head) is not None]
            elif not set_ and not operands and not re.fullmatch(r"[\d.]+[smhd]?", head):
                return self._started(name, rest)
            elif not set_:
                operands = 0
            del rest[0:1]
        return ""

    def _started(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that another program starts, with what it reads behind it."""
        if name == "xargs -I" and not {words[0].text} <= programs.PLAIN:
            return f"{name} {words[0].head}"
        more = [Word(None, (None,))] if name == "xargs" else []
        return self._program([*words, *more], name)

    def _filter(self, name: str, words: Sequence[Word]) -> str:
        """Return a filter that may run something, and note its code."""
        is_code = True
        for at, word in enumerate(words):
            before = [name, *(each.head for each in words[:at])]
            is_data = programs.takes_text(name, before) or before[-1] in ("--indent", "-L")
            if is_data or (word.head.startswith("-") and word.text is not None):
                continue
            if re.fullmatch("-[nErsuz]*f|--file", before[-1]):
                if not self._is_own_file(word):
                    return name
            elif is_code or re.fullmatch("-[nErsuz]*e|--expression", before[-1]):
                self._note_codes([word], name)
                if name != "jq" and (word.text is None or _RUNS[name].search(word.text)):
                    return name
            elif name == "sed" and word.text is None and not word.head:
                if not (self._tree.slots_in(word.node) or self._begins_well(word.node)):
                    return name
            is_code = False
        return ""

    def _begins_well(self, node: Node | None) -> bool:
        """Return whether no option can stand in a variable: what is assigned begins otherwise."""
        name = re.fullmatch(r"\"?\$\{?(\w+)\}?\"?", source(node))
        settings = self._settings(name[1]) if name else [""]
        return all(re.match(r"=[\"']?(?!nb_value_)[\w./]", each) for each in settings)

    def _other(self, name: str, words: Sequence[Word]) -> str:
        """Return the evaluator that a value makes of a program, or that may stand behind it."""
        texts, is_open = [word.text for word in words], False
        for at, word in enumerate(words):
            option = word.head.partition("=")[0] if word.head.startswith("-") else ""
            before = texts[at - 1] or "" if at else ""
            is_git = name == "git" and (
                "config" in texts[:at] or re.fullmatch("-u|-O.*", option or before)
            )
            is_code = is_git or programs.CODE_OPTION.fullmatch(option or before)
            is_started = not option and bool(programs.STARTING.fullmatch(before))
            is_open = is_started or (is_open and (before[:1] == "-" or not before))
            if is_started and before.startswith("-"):
                if what := self._program(words[at:], before):
                    return what
            elif (is_code and self._tree.slots_in(word.node)) or (is_open and not word.text):
                return f"{name} {option or before}"
            if word.text and (programs.interpreter(_last(word.text)) or word.text in _BEHIND):
                if what := self._program(words[at:], name):
                    return what
        if name == "git" and any(re.match(r"alias\.|.*=!", text or "") for text in texts):
            return "git's alias"
        runs = [text for text in texts if re.match("-I|--(?:checkpo|to-c|use-c)", text or "")]
        return f"tar {runs[0]}" if name == "tar" and runs else ""


_BEHIND = {"busybox", "env", "eval", "expect", "ssh", "su", "sudo", "toybox", "xargs"}
_FLAGS = {"--foreground", "--preserve-status", "--null", "--no-run-if-empty", "--wait", "--fork"}
_HEREDOC_MARKS = {"heredoc_start", "heredoc_end", "file_descriptor"}
_PROGRAMS: dict[str, Callable[[Evaluators, Sequence[Word]], str]] = {
    **dict.fromkeys((".", "source"), Evaluators._source),
    **dict.fromkeys(("[", "test"), Evaluators._test),
    **{"chmod": Evaluators._chmod, "printf": Evaluators._printf, "trap": Evaluators._trap},
}
_LOOKS: dict[str, Callable[[Evaluators, Node], str]] = {
    "command": Evaluators._simple,
    "declaration_command": Evaluators._declaration,
    "expansion": Evaluators._expansion,
    "for_statement": Evaluators._assignment,
    "redirected_statement": Evaluators._redirected,
    "test_command": Evaluators._bracket,
    "unset_command": Evaluators._unset,
    "variable_assignment": Evaluators._assignment,
}


def _last(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _is_unclear_option(head: str, valued: str) -> bool:
    """Return whether it isn't known if a word follows an option."""
    is_known = re.fullmatch(valued, head) or head in _FLAGS or "=" in head
    return head.startswith("--") and head != "--" and not is_known


def _sets_unknown(word: Word) -> bool:
    """Return whether it isn't known which variable a word names, or more than that happens."""
    name = word.head.partition("=")[0].rstrip("+")
    is_cut = word.text is None and "=" not in word.head
    return is_cut or "[" in name or bool(programs.SPECIAL.fullmatch(name) and word.text is None)


def _is_special(word: Word) -> bool:
    """Return whether a word names a variable that is not like others, or a callback."""
    return bool(programs.SPECIAL.fullmatch(word.head) or re.match(r"-\w*C", word.head))
