"""Enforces the allowed and blocked commands of an agent's configuration.

With an *allowed* list, a line runs only if it can be parsed and each of its commands matches a
pattern. Programs that an allowed program starts are not checked.

With a *blocked* list, the programs that the patterns name are hidden while any line runs. No script
or other program can start them. A pattern such as ``git push`` blocks only some commands of a
program. That program is visible only to a line that can be parsed, runs no other program, and
contains no blocked command.

The parser accepts only syntax that needs no evaluation: words and quotes, joined by ``| || && & ;``
and line ends, with redirects to files. A line with anything that bash evaluates first, such as
``$x``, ``$(…)``, braces, a pattern as a program's name, or a keyword, can't be parsed. So no list
of known tricks is needed: a parsed line runs exactly the programs that the parser found.

Limits: an agent can write its own program, and an allowed program may do what a blocked one does. A
pattern for some commands of a program is matched against its arguments, not against files that it
reads, such as git aliases.

Source: Bash Reference Manual, 3.1.1 (shell operation), 3.1.2 (quoting), 3.6 (redirections).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from nb_agents.config.permissions import Blocked, CommandRules
from nb_agents.tools.base import ToolError

MAX_CHARS = 10_000

_TOKEN = re.compile(
    r"""
      (?P<blank> [ \t]+ (?: \\\n [ \t]* )* )
    | (?P<comment> \#[^\n]* )
    | (?P<closing> \d* [<>]&- )
    | (?P<redirect> \d*(?: >> | >\| | <> | >& | <& | > | < (?!<) ) | &>>? )
    | (?P<join> \|\| | \|& | \| | && | & | ; | \n )
    | (?P<quoted> '[^']*' | "(?: [^"\\$`] | \\[\\$`"\n] | \\(?=[^\\$`"\n]) )*" )
    | (?P<escaped> \\[\x20-\x7e] )
    | (?P<bare> [A-Za-z0-9_@%+,./:^-]+ )
    | (?P<brackets> \[ (?=[ \t]) | \] (?=[ \t\n;|&]|$) )
    | (?P<inner> [\#~=!] )
    | (?P<glob> [*?\[\]] )
    """,
    re.VERBOSE,
)
_ESCAPE_IN_QUOTES = re.compile(r"\\([\\$`\"])|\\\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_KEYWORDS = frozenset(
    "! case coproc do done elif else esac fi for function if in select then time until while "
    "[[ ]] { }".split()
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)

_HARMLESS = frozenset({"cd", "echo", "printf", "pwd", "test", "[", "true", "false", ":"})
"""Bash builtins that start no program and change no other command."""

_PLAIN = (
    "only plain commands are allowed here: words and quotes, joined by | && || or ;, without $, "
    "brackets and keywords"
)
_BOUNDARY = re.compile(r"(?<![\w.-])(?=\w)")


@dataclass(frozen=True)
class PlainCommand:
    """A simple shell command, without pipes or lists.

    Attributes:
        words: The program and its arguments, without quotes.
        has_patterns: Whether an argument is a file name pattern. It is not expanded.
        writes: Whether one of its redirects writes a file.
    """

    words: tuple[str, ...]
    has_patterns: bool = False
    writes: bool = False

    @property
    def text(self) -> str:
        """The words, joined by single spaces."""
        return " ".join(self.words)

    @property
    def program(self) -> str:
        """The program's name, without its directory."""
        return self.words[0].rpartition("/")[2]


class _UnreadableError(Exception):
    pass


def read_commands(line: str) -> list[PlainCommand] | None:
    """Parse one or more lines of shell commands.

    Args:
        line: The argument of ``bash -c``.

    Returns:
        The commands in order, or None if they can't be determined without evaluation.

    Example:
        >>> [command.words for command in read_commands("cd 'my src' && ls -l | wc")]
        [('cd', 'my src'), ('ls', '-l'), ('wc',)]
        >>> read_commands("$(echo python3) -V") is None
        True
    """
    if len(line) > MAX_CHARS or _CONTROL.search(line):
        return None
    try:
        return _LineReader(line).commands()
    except _UnreadableError:
        return None


class _LineReader:
    def __init__(self, line: str) -> None:
        self._line = line
        self._commands: list[PlainCommand] = []
        self._words: list[str] = []
        self._word: str | None = None
        self._is_pattern = False
        self._has_patterns = False
        self._writes = False
        self._redirects_by = ""

    def commands(self) -> list[PlainCommand]:
        at = 0
        while at < len(self._line):
            token = _TOKEN.match(self._line, at)
            if token is None:
                raise _UnreadableError
            at = token.end()
            self._add_token(str(token.lastgroup), token[0])
        self._end_command()
        return self._commands

    def _add_token(self, kind: str, text: str) -> None:
        match kind:
            case "blank":
                self._end_word()
            case "comment" if self._word is None:
                pass
            case "comment" | "inner":
                self._take_inner(text)
            case "redirect" | "closing":
                self._redirect(text)
                self._redirects_by = text if kind == "redirect" else ""
            case "join":
                self._end_command()
            case "quoted":
                self._add(_unquoted(text))
            case "escaped":
                self._add(text[1:])
            case "bare" | "brackets":
                self._add(text)
            case "glob":
                self._add(text)
                self._is_pattern = True

    def _take_inner(self, text: str) -> None:
        # At the start of a command, ~ is a home directory and ! is a keyword.
        if len(text) > 1 or (self._word is None and not self._words):
            raise _UnreadableError
        self._is_pattern |= text == "~" and self._word is None
        self._add(text)

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _redirect(self, text: str) -> None:
        if self._redirects_by:
            raise _UnreadableError
        if self._word is not None:
            # A number directly after a word is part of the word, not a file descriptor.
            self._word += text[: len(text) - len(text.lstrip("0123456789"))]
        self._end_word()

    def _end_word(self) -> None:
        word, self._word = self._word, None
        if word is None:
            return
        if self._redirects_by:
            if self._redirects_by.endswith("&") and word.startswith("-"):
                # Bash reads the rest as a separate word.
                raise _UnreadableError
            self._writes |= ">" in self._redirects_by and not word.isdigit()
            self._redirects_by = ""
        else:
            self._check_word(word)
            self._words.append(word)
            self._has_patterns |= self._is_pattern
        self._is_pattern = False

    def _check_word(self, word: str) -> None:
        """Raise if the first word of a command is not a plain program name. It may be quoted."""
        is_special = word in _KEYWORDS or _ASSIGNMENT.match(word) or self._is_pattern or not word
        if is_special and not self._words:
            raise _UnreadableError

    def _end_command(self) -> None:
        self._end_word()
        if self._redirects_by:
            raise _UnreadableError
        if self._words:
            self._commands.append(
                PlainCommand(tuple(self._words), self._has_patterns, self._writes)
            )
        self._words, self._has_patterns, self._writes = [], False, False


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    if text[0] == "'":
        return inner
    return _ESCAPE_IN_QUOTES.sub(lambda match: match[1] or "", inner)


class CommandGuard:
    """Checks the command lines of one agent.

    Args:
        rules: The configured lists.
        programs: The files of each program that has commands blocked by `rules`.
    """

    def __init__(self, rules: CommandRules, programs: Mapping[str, Collection[Path]]) -> None:
        self._rules = rules
        self._programs = programs

    def check(self, line: str) -> frozenset[Path]:
        """Return the files that must be hidden while a line runs.

        Args:
            line: The argument of ``bash -c``.

        Raises:
            ToolError: The rules forbid the line.
        """
        commands = read_commands(line)
        self._check_allowed(line, commands)
        for blocked in self._rules.blocked:
            _check_blocked(blocked, line, commands or ())
        usable = self._usable_programs(commands or ())
        # A file may have several names. It stays hidden unless all of them may be used.
        hidden = frozenset(
            path for name, paths in self._programs.items() if name not in usable for path in paths
        )
        if hidden and _bash() in hidden:
            raise ToolError("no command can run, because the rules block bash itself")
        return hidden

    def _check_allowed(self, line: str, commands: Sequence[PlainCommand] | None) -> None:
        allowed = self._rules.allowed
        if allowed is None:
            return
        if commands is None:
            raise ToolError(f"{_PLAIN}. Allowed: {_patterns_text(allowed)}.")
        for text in (line.strip(), *(command.text for command in commands)):
            if not any(pattern.match(text) for pattern in allowed):
                raise ToolError(f"{text!r} is not allowed. Allowed: {_patterns_text(allowed)}.")

    def _usable_programs(self, commands: Sequence[PlainCommand]) -> set[str]:
        """Return the partly blocked programs that these commands may use, or raise `ToolError`."""
        blocked = self._rules.blocked
        concerned_programs = {
            c.program for c in commands if any(b.concerns(c.program) for b in blocked)
        }
        if not concerned_programs:
            return set()
        for command in commands:
            if command.program not in concerned_programs and command.words[0] not in _HARMLESS:
                these = " and ".join(map(repr, sorted(concerned_programs)))
                raise ToolError(
                    f"run {these} in a separate call, without {command.words[0]!r}, because "
                    "some of its commands are blocked."
                )
            if command.program in concerned_programs and command.has_patterns:
                raise ToolError(
                    f"write the arguments of {command.program!r} without patterns such as *, "
                    "because some of its commands are blocked."
                )
        return concerned_programs


def find_programs(rules: CommandRules, roots: Iterable[Path]) -> Mapping[str, frozenset[Path]]:
    """Find the files of the programs that "blocked" rules name. Scans all program directories.

    Args:
        rules: The configured lists.
        roots: Directories that contain programs.

    Returns:
        The files of each program, with links resolved, by the program's name.
    """
    return _find_programs(rules.blocked, tuple(dict.fromkeys(root.resolve() for root in roots)))


@lru_cache(maxsize=20)
def _find_programs(
    blocked: tuple[Blocked, ...], roots: tuple[Path, ...]
) -> Mapping[str, frozenset[Path]]:
    program_paths: dict[str, set[Path]] = {}
    for entry in _files(roots):
        if any(each.concerns(entry.name) for each in blocked):
            real = Path(os.path.realpath(entry.path))
            if os.access(real, os.X_OK) and real.is_file():
                program_paths.setdefault(entry.name, set()).add(real)
    names_by_path = _other_names(
        {path for paths in program_paths.values() for path in paths}, roots
    )
    return {
        name: frozenset(
            {*paths, *(other for path in paths for other in names_by_path.get(path, ()))}
        )
        for name, paths in program_paths.items()
    }


def _other_names(files: Iterable[Path], roots: tuple[Path, ...]) -> Mapping[Path, set[Path]]:
    """Find the other hard links to programs' files."""
    linked = {}
    for path in files:
        status = path.stat()
        if status.st_nlink > 1:
            linked[status.st_ino] = path
    names_by_path: dict[Path, set[Path]] = {}
    for entry in _files(roots) if linked else ():
        linked_file = linked.get(entry.inode())
        if linked_file is not None and linked_file.samefile(entry.path):
            names_by_path.setdefault(linked_file, set()).add(Path(os.path.realpath(entry.path)))
    return names_by_path


def _files(roots: Iterable[Path]) -> Iterator[os.DirEntry[str]]:
    folders: list[str] = [str(root) for root in roots]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # removed, or without read permission
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                yield entry


def _check_blocked(blocked: Blocked, line: str, commands: Iterable[PlainCommand]) -> None:
    texts = [line.strip(), *(text for command in commands for text in _readings(command))]
    if any(blocked.pattern.match(text) for text in texts):
        raise ToolError(f"this command is blocked by the rule {blocked.shown!r}")


def _readings(command: PlainCommand) -> Iterator[str]:
    """Yield the strings that a pattern is matched against: the whole command and each suffix."""
    program, words = command.program, command.words
    yield command.text
    yield " ".join([program, *words[1:]])
    for number, word in enumerate(words[1:], 1):
        for start in {0, *(match.start() for match in _BOUNDARY.finditer(word))}:
            rest = " ".join([word[start:], *words[number + 1 :]])
            yield rest
            yield f"{program} {rest}"


@cache
def _bash() -> Path:
    return Path(shutil.which("bash") or "/bin/bash").resolve()


def _patterns_text(patterns: Iterable[re.Pattern[str]]) -> str:
    return ", ".join(pattern.pattern for pattern in patterns)
