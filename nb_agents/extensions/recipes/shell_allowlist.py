"""Lists the parts of bash that only pass values on as data.

A command that consists of listed parts can get any text: wherever the text goes, through variables,
files, pipes or functions, nothing runs it as code. The flow of values is not followed, so one part
that is not listed restricts all values of the command (see
`nb_agents.extensions.recipes.shell_places`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from tree_sitter import Node

from nb_agents.extensions.recipes import shell_programs as programs
from nb_agents.extensions.recipes.shell_tree import (
    COMPARES,
    Tree,
    Word,
    ancestors,
    is_arithmetic,
    source,
)

CONSTRUCTS = frozenset(
    "binary_expression brace_expression case_item case_statement command command_name"
    " command_substitution comment compound_statement concatenation declaration_command do_group"
    " elif_clause else_clause expansion extglob_pattern file_descriptor file_redirect"
    " for_statement function_definition heredoc_body heredoc_content heredoc_end heredoc_redirect"
    " heredoc_start herestring_redirect if_statement list negated_command number"
    " parenthesized_expression pipeline process_substitution program raw_string"
    " redirected_statement regex simple_expansion special_variable_name string string_content"
    " subshell test_command test_operator translated_string unary_expression unset_command"
    " variable_assignment variable_assignments variable_name while_statement word".split()
)
"""Kinds of nodes that are listed. Some of them are restricted further below."""

_EXPANSION = re.compile(r"\$\{#?(?:\w+|[@*#?$-])(?:(?::?[-+?]|[#%^,/]).*)?\}", re.DOTALL)
_ONE_WORD = re.compile(r'[^$`]*|"[^"]*"|\$[?#]')
_OWN_VALUE = re.compile(r"(?!BASH_ENV|ENV|PROMPT|PS4)(?:[^$`]|\$\{?(?:HOME|PATH|PWD|USER)\b)*")


class AllowList:
    """Finds the parts of a command that the allowlist does not contain.

    Args:
        tree: The command.

    Attributes:
        unlisted: A description of the first such part, or "" if all parts are listed.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        functions = (node for node in tree.nodes if node.type == "function_definition")
        self._functions = {source(node.child_by_field_name("name")) for node in functions}
        commands = (tree.words(node) for node in tree.nodes if node.type == "command")
        scripts = (script_of(words) for words in commands if words)
        self._scripts = [programs.basename(script.tail) for script in scripts if script]
        self._unlisted = {
            node.id: description for node in tree.nodes if (description := self._describe(node))
        }
        self.unlisted = next(iter(self._unlisted.values()), "")

    def around(self, nodes: Sequence[Node]) -> str:
        """Return a description of a disallowed command among a node's ancestors, or "".

        Args:
            nodes: The node and its ancestors. A redirection belongs to the commands before it.
        """
        for inner, node in itertools.pairwise([nodes[0], *nodes]):
            commands = [node] if node.type == "command" else []
            if node.type == "redirected_statement" and inner.type.endswith("_redirect"):
                commands = [each for each in self._tree.nodes if each.type == "command"]
                commands = [each for each in commands if node in ancestors(each)]
            for command in commands:
                if description := self._unlisted.get(command.id):
                    return description
        return ""

    def _describe(self, node: Node) -> str:
        """Return a description of a syntax node that the allowlist does not contain, or ""."""
        check: Callable[[Node], str] = getattr(self, f"_in_{node.type}", lambda _: "")
        if is_arithmetic(node):
            description = self._arithmetic(node)
        else:
            is_known = node.type in CONSTRUCTS or any(map(is_arithmetic, ancestors(node)))
            description = check(node) if is_known else node.type.replace("_", " ")
        return description and f"{description} (line {node.start_point.row + 1})"

    def _arithmetic(self, node: Node) -> str:
        """Return a description of arithmetic that may contain more than numbers, or ""."""
        text = self._tree.around_holes(node, self._tree.slots_in(node), b"0").removeprefix("$")
        is_number = not re.search(r"[A-Za-z_$`]", COMPARES.sub("", text))
        if is_number and node.type != "array":
            return ""
        return "an array, or arithmetic on a variable or a program's output"

    # Bash ---------------------------------------------------------------------------------------

    def _in_expansion(self, node: Node) -> str:
        is_text = _EXPANSION.fullmatch(source(node))
        return "" if is_text else "an expansion such as ${!name} or ${name@P}"

    def _in_variable_assignment(self, node: Node) -> str:
        """Return the name of the assigned variable if its value affects what is run."""
        text = re.sub(r"^(?:for|select)\s+", "", source(node))
        name = re.split(r"\W", text, maxsplit=1)[0]
        is_own = _OWN_VALUE.fullmatch(text) and not self._tree.slots_in(node)
        return name if programs.SPECIAL.fullmatch(name) and not is_own else ""

    _in_for_statement = _in_variable_assignment

    def _in_declaration_command(self, node: Node) -> str:
        command = source(node.children[0])
        words = [each for each in node.named_children if each.type != "variable_assignment"]
        is_name = all(_is_plain_name(self._tree.word(word)) for word in words)
        is_listed = command in ("export", "local", "readonly", "unset") and is_name
        return "" if is_listed else command

    _in_unset_command = _in_declaration_command

    def _in_test_command(self, node: Node) -> str:
        return self._test(self._tree.parts(node)[1:-1], is_split=node.children[0].type == "[")

    def _test(self, words: Sequence[Word], is_split: bool = True) -> str:
        """Return a message if ``test`` may interpret a value as an operator or a name, or ""."""
        texts = [word.text for word in words]
        is_open = (None, None) in itertools.pairwise(texts)
        is_open |= not all(_ONE_WORD.fullmatch(source(word.node)) for word in words)
        is_named = "-v" in texts or "-R" in texts
        return "a test of an unquoted value" * (is_named or (is_split and is_open))

    def _in_file_redirect(self, node: Node) -> str:
        words = node.children_by_field_name("destination")[1:]
        words += node.children_by_field_name("argument")
        return "words after a redirection" * bool(words)

    _in_heredoc_redirect = _in_herestring_redirect = _in_file_redirect

    # Programs -----------------------------------------------------------------------------------

    def _in_command(self, node: Node) -> str:
        words = self._tree.words(node)
        return self._program(words) if words else ""

    def _program(self, words: Sequence[Word]) -> str:
        """Return the name of a program if it may run text as code, or ""."""
        program, *rest = words
        name = programs.basename(program.text or "")
        if name in programs.INERT or name in self._functions:
            return ""
        if name in ("[", "test"):
            return self._test(rest)
        if name in programs.PREFIXES and rest and rest[0].head[:1] != "-":
            is_limit = name == "timeout" and re.fullmatch(r"[\d.]+[smhd]?", rest[0].text or "")
            return self._program(rest[1:] or rest) if is_limit else self._program(rest)
        if programs.interpreter(name) is not None:
            script = script_of(words)
            is_literal = script is not None and self._is_own_file(script)
            return name * (not (is_literal or _is_module(words)))
        if shape := programs.SHAPES.get(name):
            return name * (not shape.fullmatch(_signature(rest)))
        if "/" in (program.text or program.tail) and not self._is_own_file(program):
            return f"{name or 'a script'}, which the command also names elsewhere,"
        if program.text is None and "/" not in program.tail:
            return "a program with a name that is not literal"
        return name * (programs.runs_code(name) or any(self._code_words(name, rest)))

    def _code_words(self, name: str, words: Sequence[Word]) -> Iterator[bool]:
        """Yield, for each argument of a program, whether it may be code or the name of code."""
        texts = [word.text or "" for word in words]
        for last, word in zip(["", *texts], words, strict=False):
            option = word.head.partition("=")[0] if word.head.startswith("-") else ""
            is_code = programs.CODE_OPTION.fullmatch(f"{name} {option or last}")
            yield bool(is_code and word.text is None)
            yield bool(programs.STARTING.fullmatch(last) and word.text is None)
            yield programs.runs_code(programs.basename(word.text or "").removeprefix("."))
            yield bool(programs.CODE_WORD.fullmatch(word.text or ""))

    def _is_own_file(self, script: Word) -> bool:
        """Return whether a script's name is literal, and is used only to run it."""
        name = programs.basename(script.tail)
        is_known = script.text is not None or name != script.tail
        if not name or not is_known or re.match(r"-$|/dev/|/proc/", script.text or ""):
            return False
        used = re.findall(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", source(self._tree.nodes[0]))
        return len(used) == self._scripts.count(name)


def _operands(words: Sequence[Word]) -> Sequence[Word]:
    """Return an interpreter's arguments without the leading harmless options."""
    kind = programs.interpreter(programs.basename(words[0].text or "")) or ""
    is_flag = programs.FLAGS[kind].fullmatch
    return [*itertools.dropwhile(lambda word: is_flag(word.text or "?"), words[1:])]


def _is_module(words: Sequence[Word]) -> bool:
    """Return whether Python runs a module with a literal name that does not run its arguments."""
    option, module = [*(word.text for word in _operands(words)[:2]), None, None][:2]
    return option == "-m" and bool(module) and not programs.MODULES.match(module or "")


def script_of(words: Sequence[Word]) -> Word | None:
    """Return the word with the program or script file that a command runs, if any.

    Args:
        words: The command's words, starting with its name.
    """
    if programs.interpreter(programs.basename(words[0].text or "")) is None:
        return words[0]
    operands = _operands(words)
    return operands[0] if operands and operands[0].head[:1] not in ("-", "+") else None


def _signature(words: Sequence[Word]) -> str:
    """Return a program's arguments as lines. NUL marks where the text of an argument is unknown."""
    texts = (f"{word.head}\0" if word.text is None else word.text for word in words)
    return "".join(re.sub(r"\s", " ", text) + "\n" for text in texts)


def _is_plain_name(word: Word) -> bool:
    """Return whether a word is the literal name of a variable, with or without a value."""
    name, is_set, _ = word.head.partition("=")
    is_literal = word.text is not None or bool(is_set)
    return is_literal and bool(re.fullmatch(r"\w+", name)) and not programs.SPECIAL.fullmatch(name)
