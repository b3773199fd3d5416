"""Permissions of an agent's commands and tools: limits, patterns and MassGen's ``permissions``.

A rule of ``permissions`` is ``action(target)``, such as ``command(git push*)``. The target is a
glob. A rule without a target applies to all targets. Deny has precedence over allow, and allow over
ask. The rules of a role apply in addition to an agent's own.

The lists of allowed and blocked commands contain regular expressions that match the beginning of a
command. MassGen compares them only with the command's text, and a shell offers many ways around
that (``p''ython3``, ``$(echo python3)``, a script). So we also derive program names from a pattern,
and the code that runs a command prevents these programs from starting.

Source: MassGen 0.1.97, `permissions/rules.py` and
`filesystem_manager/_code_execution_server.py` (`_check_command_filters`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, field_validator, model_validator

from nb_agents.config.spec import Count, Spec, Texts

PROCESSES = 2_000
MEMORY_MB = 8_000
TMP_MB = 2_000
OPEN_FILES = 4_096
FILE_SIZE_MB = 10_000
WORKSPACE_MB = 20_000

_UNITS = {
    "processes": "processes and threads",
    "memory_mb": "MB of memory",
    "workspace_mb": "MB in its workspace",
    "file_size_mb": "MB in one file",
}

_GLOB_CHARS = re.compile(r"[*?\[]")
_NOTHING = re.compile(r"\^|\\A|\\b")
_LETTER = re.compile(r"\\([^A-Za-z0-9])|([^\\.^$*+?{}\[\]|()])")
_QUANTIFIER = re.compile(r"[*?{]")
_SPACE = re.compile(r"\s")
_PLAIN_CHOICE = re.compile(r"[^()\[\]\\]*")

ACTIONS = ("command", "read_file", "write_file", "read_url", "mcp", "*")
_RULE = re.compile(r"\s*([\w*]+)\s*(?:\((.*)\)\s*)?", re.DOTALL)


class CommandLimits(Spec):
    """Resource limits of a command or of an agent's Python. A megabyte is a million bytes.

    Attributes:
        processes: Maximum number of processes and threads. A command with more is terminated.
        memory_mb: Maximum memory, without mapped files on disk. A single process can't allocate
            more. A command whose processes together exceed it is terminated.
        tmp_mb: Maximum size of ``/tmp`` and of ``/dev/shm`` in a sandbox. Both are in memory and
            are deleted when the command ends.
        open_files: Maximum number of open files per process.
        file_size_mb: Maximum size of a file that the command writes. Further writes fail.
        workspace_mb: Maximum size of the workspace. A command that exceeds it is terminated.
    """

    # An unknown limit would not be enforced, so it is an error.
    model_config = ConfigDict(extra="forbid")

    processes: Count = PROCESSES
    memory_mb: Count = MEMORY_MB
    tmp_mb: Count = TMP_MB
    open_files: Count = OPEN_FILES
    file_size_mb: Count = FILE_SIZE_MB
    workspace_mb: Count = WORKSPACE_MB

    def exceeded(self, name: str) -> str:
        """Describe a limit that a command exceeded.

        Args:
            name: The limit's field name.

        Example:
            >>> CommandLimits(processes=20).exceeded("processes")
            'more than 20 processes and threads (its limit `processes`)'
        """
        return f"more than {getattr(self, name)} {_UNITS[name]} (its limit `{name}`)"


@lru_cache(maxsize=1000)
def as_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression from a file.

    Raises:
        ValueError: The text is not a regular expression.
    """
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ValueError(f"{text!r} is not a regular expression ({exc})") from None


@dataclass(frozen=True)
class Blocked:
    """A pattern of commands that must not run.

    Attributes:
        shown: The pattern as written in the file.
        pattern: The compiled pattern, which matches the beginning of a command.
        begins: Literal text with which all matching commands begin, or "" if unknown.
    """

    shown: str
    pattern: re.Pattern[str]
    begins: str

    @property
    def names_programs(self) -> bool:
        """Whether the pattern identifies a program by name."""
        return bool(self._name) and not self.begins.startswith((".", "~"))

    def concerns(self, program: str) -> bool:
        """Return whether the pattern may match a command that runs this program.

        Args:
            program: The program's name, without a path.
        """
        has_more = _SPACE.search(self.begins) is not None
        return program == self._name if has_more else program.startswith(self._name)

    @property
    def _name(self) -> str:
        return _SPACE.split(self.begins, maxsplit=1)[0].rpartition("/")[2]


@dataclass(frozen=True)
class CommandRules:
    """The commands that an agent may run.

    Attributes:
        allowed: Patterns. One of them must match the beginning of a command. None allows all
            commands.
        blocked: Patterns of commands that must not run, even if `allowed` matches them.
    """

    allowed: tuple[re.Pattern[str], ...] | None = None
    blocked: tuple[Blocked, ...] = ()

    @classmethod
    def of(
        cls, allowed: Sequence[str] = (), blocked: Sequence[str] = (), denied: Iterable[str] = ()
    ) -> CommandRules:
        """Return the command rules that the lists of a team file define.

        Args:
            allowed: Regular expressions. An empty list allows all commands, as in MassGen.
            blocked: Regular expressions.
            denied: Globs that match whole commands.
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
        """Whether all commands may run."""
        return self.allowed is None and not self.blocked

    @property
    def unclear(self) -> tuple[str, ...]:
        """Blocked patterns from which no program name can be derived."""
        return tuple(each.shown for each in self.blocked if not each.names_programs)


def from_glob(glob: str) -> Blocked:
    """Return the pattern that blocks commands that match a glob, such as ``git push*``."""
    match = _GLOB_CHARS.search(glob)
    return Blocked(glob, re.compile(translate(glob)), glob[: match.start()] if match else glob)


def _beginning(pattern: str) -> str:
    """Return the literal prefix that all matches of a regular expression share.

    Example:
        >>> _beginning("git push"), _beginning("python3?.*"), _beginning("a|b")
        ('git push', 'python', '')
    """
    if "|" in pattern:
        return ""
    prefix, at = "", 0
    while nothing := _NOTHING.match(pattern, at):
        at = nothing.end()
    while letter := _LETTER.match(pattern, at):
        if _QUANTIFIER.match(pattern, letter.end()):
            break
        prefix += letter[1] or letter[2]
        at = letter.end()
    return prefix


Role = Literal["read-only", "researcher", "read-write", "implementer"]
Verdict = Literal["allow", "ask", "deny"]


class Act(NamedTuple):
    """An action of a tool call, in the form that rules refer to.

    Attributes:
        action: One of `ACTIONS`.
        target: The command, path, URL or tool.
    """

    action: str
    target: str


Names = Sequence[Act]
"""All the ways in which rules can refer to one action."""


class _Rule(NamedTuple):
    action: str
    pattern: str

    def fits(self, act: Act) -> bool:
        return self.action in ("*", act.action) and fnmatchcase(act.target, self.pattern)


@lru_cache(maxsize=1000)
def _rule(text: str) -> _Rule:
    match = _RULE.fullmatch(text)
    if not match or match[1] not in ACTIONS:
        raise ValueError(
            f"{text!r} is not a rule. Write action(target) with one of the actions "
            f"{', '.join(ACTIONS)}"
        )
    return _Rule(match[1], "*" if match[2] is None else match[2])


class PermissionRules(Spec):
    """Rules, grouped by their decision.

    Attributes:
        deny: Rules for calls that are rejected.
        allow: Rules for calls that run without an approval.
        ask: Rules for calls that need an approval.
    """

    deny: Texts = ()
    allow: Texts = ()
    ask: Texts = ()

    @field_validator("deny", "allow", "ask")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # An invalid rule must be an error, because it would restrict nothing.
        for text in value:
            _rule(text)
        return value


_READ_ONLY = PermissionRules(
    deny=("write_file(*)", "command(*)"), ask=("read_url(*)",), allow=("read_file(*)",)
)
_ROLES: dict[Role, PermissionRules] = {
    "read-only": _READ_ONLY,
    "researcher": _READ_ONLY,
    "read-write": PermissionRules(),
    "implementer": PermissionRules(),
}


class PermissionSpec(Spec):
    """The permissions of an agent's tools.

    Attributes:
        enabled: Whether the rules apply.
        role: The name of an additional, predefined set of rules.
        rules: The agent's own rules.
    """

    enabled: bool = True
    role: Role | None = None
    rules: PermissionRules = PermissionRules()

    @model_validator(mode="before")
    @classmethod
    def _plain_role(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("role"), str):
            return {**value, "role": value["role"].strip().lower()}
        return value

    def decide(self, parts: Sequence[Names], also: Names = ()) -> Verdict | None:
        """Return the decision on a tool call, or None if no rule matches.

        Args:
            parts: The actions of the call. Each is a sequence of the names under which a rule may
                refer to it. The call is allowed if every action is allowed, and denied if any
                action is denied.
            also: Additional names that "deny" and "ask" rules can match but "allow" rules can't.

        Example:
            >>> spec = PermissionSpec(rules=PermissionRules(deny=("write_file(/etc/*)",)))
            >>> spec.decide([[Act("write_file", "/etc/passwd")]])
            'deny'
        """
        everything = [*also, *chain.from_iterable(parts)]
        if self._fits("deny", everything):
            return "deny"
        if parts and all(self._fits("allow", part) for part in parts):
            return "allow"
        return "ask" if self._fits("ask", everything) else None

    def targets(self, verdict: Verdict, action: str) -> tuple[str, ...]:
        """Return the target globs of the rules with this decision about an action.

        Args:
            verdict: The decision.
            action: One of `ACTIONS`, except "*".
        """
        return tuple(r.pattern for r in self._rules(verdict) if r.action in ("*", action))

    def _fits(self, verdict: Verdict, acts: Names) -> bool:
        return any(rule.fits(act) for rule in self._rules(verdict) for act in acts)

    def _rules(self, verdict: Verdict) -> list[_Rule]:
        sets = [_ROLES[self.role], self.rules] if self.role else [self.rules]
        return [_rule(text) for each in sets for text in getattr(each, verdict)]
