"""The plain commands that a line of bash runs, where that can be told from its text.

Only what needs no evaluation is read: words and quotes, joined by ``| || && & ;`` and line ends,
with redirects to files. Whatever bash would have to work out first, such as ``$x``, ``$(…)``,
braces, a pattern as a program's name, or a keyword, makes the whole line unreadable. So it is never
a list of tricks that decides, and a line that was read runs these programs and no others, itself.
What they start in turn is theirs.

Source: Bash Reference Manual, 3.1.1 (shell operation), 3.1.2 (quoting), 3.6 (redirections).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PlainCommand", "read_commands"]

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


@dataclass(frozen=True)
class PlainCommand:
    """One command.

    Attributes:
        words: Its program and arguments, without their quotes.
        has_patterns: Whether an argument stands for names of files; it is here as it was written.
        writes: Whether a file is written by a redirect of it.
    """

    words: tuple[str, ...]
    has_patterns: bool = False
    writes: bool = False

    @property
    def text(self) -> str:
        """Its words with single spaces between them."""
        return " ".join(self.words)

    @property
    def program(self) -> str:
        """Its program's name, without a path."""
        return self.words[0].rpartition("/")[2]


class _UnreadableError(Exception):
    pass


def read_commands(line: str) -> list[PlainCommand] | None:
    """Read a line, or several.

    Args:
        line: What ``bash -c`` is given.

    Returns:
        Its commands in order; None when that can't be told from the text.

    Example:
        >>> [command.words for command in read_commands("cd 'my src' && ls -l | wc")]
        [('cd', 'my src'), ('ls', '-l'), ('wc',)]
        >>> read_commands("$(echo python3) -V") is None
        True
    """
    if len(line) > MAX_CHARS or _CONTROL.search(line):
        return None
    try:
        return _Reader(line).commands()
    except _UnreadableError:
        return None


class _Reader:
    def __init__(self, line: str) -> None:
        self._line = line
        self._found: list[PlainCommand] = []
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
            self._take(str(token.lastgroup), token[0])
        self._end_command()
        return self._found

    def _take(self, kind: str, text: str) -> None:
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
        # The first word of a command begins with ~ for a home, and with ! for a keyword.
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
            # Only a number that stands by itself is a file's.
            self._word += text[: len(text) - len(text.lstrip("0123456789"))]
        self._end_word()

    def _end_word(self) -> None:
        word, self._word = self._word, None
        if word is None:
            return
        if self._redirects_by:
            if self._redirects_by.endswith("&") and word.startswith("-"):
                # To bash the rest is a word of its own.
                raise _UnreadableError
            self._writes |= ">" in self._redirects_by and not word.isdigit()
            self._redirects_by = ""
        else:
            self._check_word(word)
            self._words.append(word)
            self._has_patterns |= self._is_pattern
        self._is_pattern = False

    def _check_word(self, word: str) -> None:
        """Refuse what is no program's name, also where quotes make it one."""
        is_other = word in _KEYWORDS or _ASSIGNMENT.match(word) or self._is_pattern or not word
        if is_other and not self._words:
            raise _UnreadableError

    def _end_command(self) -> None:
        self._end_word()
        if self._redirects_by:
            raise _UnreadableError
        if self._words:
            self._found.append(PlainCommand(tuple(self._words), self._has_patterns, self._writes))
        self._words, self._has_patterns, self._writes = [], False, False


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    if text[0] == "'":
        return inner
    return _ESCAPE_IN_QUOTES.sub(lambda found: found[1] or "", inner)
