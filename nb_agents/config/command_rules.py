r"""Which commands an agent may run: MassGen's lists of patterns, and the programs that they name.

A pattern is a regular expression that a command begins with. What MassGen asks of it is whether it
fits the text of a command, which a shell has many ways to get around (``p''ython3``,
``$(echo python3)``, a script); so a pattern is taken for the programs that it names as well, and
who runs a command keeps these from being started at all.

Source: MassGen 0.1.97, `filesystem_manager/_code_execution_server.py` (`_check_command_filters`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

__all__ = ["Blocked", "CommandRules", "as_pattern", "from_glob"]

_GLOB_CHARS = re.compile(r"[*?\[]")
_NOTHING = re.compile(r"\^|\\A|\\b")
_LETTER = re.compile(r"\\([^A-Za-z0-9])|([^\\.^$*+?{}\[\]|()])")
_QUANTIFIER = re.compile(r"[*?{]")
_SPACE = re.compile(r"\s")
_PLAIN_CHOICE = re.compile(r"[^()\[\]\\]*")


@lru_cache(maxsize=1000)
def as_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of a file.

    Args:
        text: The regular expression.

    Raises:
        ValueError: It is none.
    """
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ValueError(f"{text!r} is no regular expression ({exc})") from None


@dataclass(frozen=True)
class Blocked:
    """Commands that may not be run.

    Attributes:
        shown: The pattern as the file has it.
        pattern: Fits the beginning of such a command.
        begins: Text that each of them begins with; "" when it is not known.
    """

    shown: str
    pattern: re.Pattern[str]
    begins: str

    @property
    def names_programs(self) -> bool:
        """Whether the programs are known that such a command may run."""
        return bool(self._name) and not self.begins.startswith((".", "~"))

    def concerns(self, program: str) -> bool:
        """Whether a command of a program may be one of these.

        Args:
            program: Its name, without a path.
        """
        has_more = _SPACE.search(self.begins) is not None
        return program == self._name if has_more else program.startswith(self._name)

    def is_whole(self, program: str) -> bool:
        """Whether every command of a program is one of these."""
        return self.pattern.match(program) is not None

    @property
    def _name(self) -> str:
        return _SPACE.split(self.begins, maxsplit=1)[0].rpartition("/")[2]


@dataclass(frozen=True)
class CommandRules:
    """The commands that an agent may run.

    Attributes:
        allowed: Patterns, one of which must fit the beginning of each command; None allows all.
        blocked: Those that may not be run, whatever is allowed.
    """

    allowed: tuple[re.Pattern[str], ...] | None = None
    blocked: tuple[Blocked, ...] = ()

    @classmethod
    def of(
        cls, allowed: Sequence[str] = (), blocked: Sequence[str] = (), denied: Iterable[str] = ()
    ) -> CommandRules:
        """Make them.

        Args:
            allowed: Regular expressions; an empty list allows all, as it does in MassGen.
            blocked: Regular expressions.
            denied: Globs over whole commands.
        """
        patterns = [
            Blocked(text, as_pattern(each), _beginning(each))
            for text in blocked
            for each in (text.split("|") if _PLAIN_CHOICE.fullmatch(text) else [text])
        ]
        return cls(
            tuple(map(as_pattern, allowed)) or None,
            (*patterns, *map(from_glob, denied)),
        )

    @property
    def is_open(self) -> bool:
        """Whether every command may be run."""
        return self.allowed is None and not self.blocked

    @property
    def unclear(self) -> tuple[str, ...]:
        """Patterns that do not say which programs they are about."""
        return tuple(each.shown for each in self.blocked if not each.names_programs)


def from_glob(glob: str) -> Blocked:
    """Block the commands that a glob fits.

    Args:
        glob: Such as ``git push*``.
    """
    found = _GLOB_CHARS.search(glob)
    return Blocked(glob, re.compile(translate(glob)), glob[: found.start()] if found else glob)


def _beginning(pattern: str) -> str:
    """Give the letters that everything begins with which a regular expression fits.

    Example:
        >>> _beginning("git push"), _beginning("python3?.*"), _beginning("a|b")
        ('git push', 'python', '')
    """
    if "|" in pattern:
        return ""
    found, at = "", 0
    while nothing := _NOTHING.match(pattern, at):
        at = nothing.end()
    while letter := _LETTER.match(pattern, at):
        if _QUANTIFIER.match(pattern, letter.end()):
            break
        found += letter[1] or letter[2]
        at = letter.end()
    return found
