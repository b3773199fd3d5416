"""What a value must be like in a place of a bash command."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Rule", "Sink", "code", "nowhere", "number", "option", "path", "printed", "reached"]

_DIGITS = r"[-+]?[0-9]*\.?[0-9]*"
_NUMBER = re.compile(_DIGITS)
_WORD = re.compile(rf"{_DIGITS}|[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_PATH = re.compile(rf"{_DIGITS}|[A-Za-z0-9_./:,@][A-Za-z0-9_./:,@+-]*")
# Nor `| command`, which Perl's -n and others run when it is given as a file.
_NO_OPTION = re.compile(r"(?!\s*[-+|<>])(?!.*\|\s*\Z).*", re.DOTALL)
_NO_NAMED_OPTION = re.compile(r"(?!--?[A-Za-z]).*", re.DOTALL)


class Rule(NamedTuple):
    """What a value must be like in a place.

    Attributes:
        where: The place, in words.
        allowed: What the value must match; None when none can stand there.
        what: The allowed values, in words.
        is_fault: Whether a value that isn't known before doesn't belong there.
        is_silent: Whether the place itself says what is expected, so that a check needn't.
        remedy: What to do instead, with ``%s`` for the value.
    """

    where: str
    allowed: re.Pattern[str] | None
    what: str
    is_fault: bool = False
    is_silent: bool = False
    remedy: str = (
        "Make it an argument, as in bash -c 'echo \"$1\"' _ %s, or give it in the step's env"
    )

    def allows(self, text: str) -> bool:
        """Return whether a value can stand there."""
        return self.allowed is not None and bool(self.allowed.fullmatch(text))

    def refusal(self, path: str) -> str:
        """Return why a value can't stand there, in a sentence, and what to do.

        Args:
            path: The variable.
        """
        name = f"{{{{{path}}}}}"
        only = f"only {self.what}" if self.allowed else "no value"
        remedy = self.remedy.replace("%s", name)
        return (
            f"{name} stands {self.where}, where {only} can stand safely. {remedy}, or write "
            f"{{{{{path} | raw}}}} to insert it as a part of the command."
        )


class Sink(NamedTuple):
    """Text that is run as code, or taken for the name of what is run.

    Attributes:
        spans: The bytes where it stands.
        rule: What a value in it must be like.
        is_open: Whether values may get into it by way of something else.
        line: Where the command is that runs it, from 1.
    """

    spans: tuple[range, ...]
    rule: Rule
    is_open: bool
    line: int


def nowhere(where: str) -> Rule:
    """Return the rule of a place where no value can stand."""
    return Rule(where, None, "", is_fault=True)


def number(where: str) -> Rule:
    """Return the rule of a place where bash works a text out."""
    return Rule(where, _NUMBER, "a number", is_silent=True, remedy="See that it is one")


def path(where: str, *, is_fault: bool = False) -> Rule:
    """Return the rule of a place where these characters mean nothing to a shell."""
    return Rule(where, _PATH, "letters, digits and _./:,@+-", is_fault)


def word(where: str, *, is_fault: bool = False) -> Rule:
    """Return the rule of a place where these characters mean nothing in most languages."""
    return Rule(where, _WORD, "letters, digits and _.-", is_fault)


def code(name: str, *, is_shell: bool, is_fault: bool = True) -> Rule:
    """Return the rule of a place in code for a program."""
    rule = path if is_shell else word
    return rule(f"in what {name} runs as code", is_fault=is_fault)


def option(name: str, *, is_known: bool) -> Rule:
    """Return the rule of a place where a program may take a value for an option."""
    allowed = _NO_OPTION if is_known else _NO_NAMED_OPTION
    where, what = f"where {name} may take it for an option", "what doesn't begin like one"
    remedy = "Write -- or ./ before it, or give it in the step's env"
    return Rule(where, allowed, what, is_silent=True, remedy=remedy)


def printed(rule: Rule) -> Rule:
    """Return a place's rule for a value that a program is given which prints into the place."""
    return path(rule.where, is_fault=rule.is_fault) if rule.allowed is _NUMBER else rule


def reached(sink: Sink) -> Rule:
    """Return the rule of all places from which a value may get into what is run."""
    rule = word if sink.rule.allowed is _WORD else path  # of a number too: a name is one there
    return rule(f"in a command that also runs text (line {sink.line}: {sink.rule.where})")
