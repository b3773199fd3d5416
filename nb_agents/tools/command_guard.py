"""Holding an agent's commands to the lists of its configuration.

An *allowed* list: a line is run only when it can be read (`nb_agents.tools.command_reader`) and
each of its commands fits a pattern. What an allowed program starts in turn is up to the program.

A *blocked* list: whatever the line says, the programs that the patterns name are not there while it
runs: no script and no other program can start them. A pattern may block some commands of a program
and not others, as ``git push`` does. Then a line that can be read, and that runs this program alone
with none of those, gets it.

What this can't do: a program that an agent brings along is another program, and one that is allowed
may itself do what a blocked one does. A pattern for a part of a program is held against its words,
not against what it reads from files, such as git's aliases.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from nb_agents.config.command_rules import Blocked, CommandRules
from nb_agents.tools.base import ToolError
from nb_agents.tools.command_reader import PlainCommand, read_commands

__all__ = ["CommandGuard", "find_programs"]

_HARMLESS = frozenset({"cd", "echo", "printf", "pwd", "test", "[", "true", "false", ":"})
"""Of bash's own commands, those that start nothing and change no other command."""

_PLAIN = (
    "Only plain commands can be checked: words and quotes, joined by | && || or ;, without $, "
    "brackets and keywords"
)
_BOUNDARY = re.compile(r"(?<![\w.-])(?=\w)")


class CommandGuard:
    """Judges the lines that one agent wants to run.

    Args:
        rules: What it may run.
        programs: For each program that `rules` block some of, where it is.
    """

    def __init__(self, rules: CommandRules, programs: Mapping[str, Collection[Path]]) -> None:
        self._rules = rules
        self._programs = programs

    def check(self, line: str) -> frozenset[Path]:
        """Say which files must not be there while a line runs.

        Args:
            line: What bash is given.

        Raises:
            ToolError: It may not be run.
        """
        commands = read_commands(line)
        self._check_allowed(line, commands)
        for blocked in self._rules.blocked:
            _check_blocked(blocked, line, commands or ())
        hidden = self._hidden(self._opened(commands or ()))
        if hidden and _bash() in hidden:
            raise ToolError("nothing can be run: a program that is blocked here is bash itself")
        return hidden

    def _check_allowed(self, line: str, commands: Sequence[PlainCommand] | None) -> None:
        allowed = self._rules.allowed
        if allowed is None:
            return
        if commands is None:
            raise ToolError(f"{_PLAIN}. Allowed: {_shown(allowed)}.")
        for text in (line.strip(), *(command.text for command in commands)):
            if not any(pattern.match(text) for pattern in allowed):
                raise ToolError(f"{text!r} is not allowed. Allowed: {_shown(allowed)}.")

    def _opened(self, commands: Sequence[PlainCommand]) -> set[str]:
        """Name the programs that are blocked in part, and that these commands may have."""
        wanted = {c.program for c in commands if self._is_blocked_in_part(c.program)}
        if not wanted:
            return set()
        for command in commands:
            if command.program not in wanted and command.words[0] not in _HARMLESS:
                raise ToolError(
                    f"{_listed(wanted)} can only be run by itself here, without "
                    f"{command.words[0]!r}: some of its commands are blocked."
                )
            if command.program in wanted and command.has_patterns:
                raise ToolError(
                    f"write out the arguments of {command.program!r}: some of its commands are "
                    f"blocked."
                )
        return wanted

    def _is_blocked_in_part(self, program: str) -> bool:
        return any(blocked.concerns(program) for blocked in self._rules.blocked)

    def _hidden(self, opened: Collection[str]) -> frozenset[Path]:
        # One file may have many names; all of them must be open.
        return frozenset(
            path for name, paths in self._programs.items() if name not in opened for path in paths
        )


def find_programs(rules: CommandRules, roots: Iterable[Path]) -> Mapping[str, frozenset[Path]]:
    """Find the programs that some commands of are blocked; looks at every file.

    Args:
        rules: What may be run.
        roots: Directories where programs are.

    Returns:
        For each one's name, its real files.
    """
    return _find_programs(rules.blocked, tuple(dict.fromkeys(root.resolve() for root in roots)))


@lru_cache(maxsize=20)
def _find_programs(
    blocked: tuple[Blocked, ...], roots: tuple[Path, ...]
) -> Mapping[str, frozenset[Path]]:
    found: dict[str, set[Path]] = {}
    for entry in _files(roots):
        if any(each.concerns(entry.name) for each in blocked):
            real = Path(os.path.realpath(entry.path))
            if os.access(real, os.X_OK) and real.is_file():
                found.setdefault(entry.name, set()).add(real)
    others = _other_names({path for paths in found.values() for path in paths}, roots)
    return {
        name: frozenset({*paths, *(other for path in paths for other in others.get(path, ()))})
        for name, paths in found.items()
    }


def _other_names(files: Iterable[Path], roots: tuple[Path, ...]) -> Mapping[Path, set[Path]]:
    """Find the other names of files that have some: a hard link is the same program."""
    linked = {}
    for path in files:
        found = path.stat()
        if found.st_nlink > 1:
            linked[found.st_ino] = path
    others: dict[Path, set[Path]] = {}
    for entry in _files(roots) if linked else ():
        known = linked.get(entry.inode())
        if known is not None and known.samefile(entry.path):
            others.setdefault(known, set()).add(Path(os.path.realpath(entry.path)))
    return others


def _files(roots: Iterable[Path]) -> Iterator[os.DirEntry[str]]:
    folders: list[str] = [str(root) for root in roots]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # gone, or not ours to read
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                yield entry


def _check_blocked(blocked: Blocked, line: str, commands: Iterable[PlainCommand]) -> None:
    texts = [line.strip(), *(text for command in commands for text in _readings(command))]
    if any(blocked.pattern.match(text) for text in texts):
        raise ToolError(f"it is blocked here: {blocked.shown!r}")


def _readings(command: PlainCommand) -> Iterator[str]:
    """Give a command as a pattern may have it: without its first words, or as another's words."""
    program, words = command.program, command.words
    yield command.text
    yield " ".join([program, *words[1:]])
    for number, word in enumerate(words[1:], 1):
        for start in {0, *(found.start() for found in _BOUNDARY.finditer(word))}:
            rest = " ".join([word[start:], *words[number + 1 :]])
            yield rest
            yield f"{program} {rest}"


@cache
def _bash() -> Path:
    return Path(shutil.which("bash") or "/bin/bash").resolve()


def _shown(patterns: Iterable[re.Pattern[str]]) -> str:
    return ", ".join(pattern.pattern for pattern in patterns)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(map(repr, sorted(names)))
