"""Permissions of an agent's commands and tools: limits, patterns, MassGen's ``permissions``.

A rule of ``permissions`` is ``action(target)``, such as ``command(git push*)``; the target is a
glob, and one without it is any. Deny goes before allow, allow before ask, and a role's rules before
an agent's own.

A pattern of the lists is a regular expression that a command begins with. What MassGen asks of it
is whether it fits the text of a command, which a shell has many ways to get around (``p''ython3``,
``$(echo python3)``, a script); so a pattern is taken for the programs that it names as well, and
who runs a command keeps these from being started at all.

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
    """The limits of one command, or of an agent's Python; a megabyte is a million bytes.

    Attributes:
        processes: Its processes and threads. A command that has more is ended.
        memory_mb: What its processes hold in memory, files on disk that they map aside. One process
            is refused more; a command whose processes have more together is ended.
        tmp_mb: What its ``/tmp`` and its ``/dev/shm`` may hold each in a sandbox: they are memory,
            and gone when it ends.
        open_files: How many files one process may have open.
        file_size_mb: How large a file may become that it writes; it is refused more.
        workspace_mb: What its workspace may hold. A command that makes it more is ended.
    """

    # A limit that is not known here must not be taken for one that holds.
    model_config = ConfigDict(extra="forbid")

    processes: Count = PROCESSES
    memory_mb: Count = MEMORY_MB
    tmp_mb: Count = TMP_MB
    open_files: Count = OPEN_FILES
    file_size_mb: Count = FILE_SIZE_MB
    workspace_mb: Count = WORKSPACE_MB

    def exceeded(self, name: str) -> str:
        """Return which limit a command exceeded.

        Args:
            name: A field's.

        Example:
            >>> CommandLimits(processes=20).exceeded("processes")
            'more than 20 processes and threads (`processes` of its limits)'
        """
        return f"more than {getattr(self, name)} {_UNITS[name]} (`{name}` of its limits)"


@lru_cache(maxsize=1000)
def as_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of a file.

    Args:
        text: The regular expression.

    Raises:
        ValueError: The text is not a rule.
    """
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ValueError(f"{text!r} is not a regular expression ({exc})") from None


@dataclass(frozen=True)
class Blocked:
    """Commands that may not be run.

    Attributes:
        shown: The pattern as the file has it.
        pattern: Matches the beginning of a command.
        begins: Text that each of them begins with; "" when it is not known.
    """

    shown: str
    pattern: re.Pattern[str]
    begins: str

    @property
    def names_programs(self) -> bool:
        """Whether the programs that such a command may run are known."""
        return bool(self._name) and not self.begins.startswith((".", "~"))

    def concerns(self, program: str) -> bool:
        """Return whether the list may match a command of a program.

        Args:
            program: Its name, without a path.
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
        allowed: Patterns, one of which must fit the beginning of each command; None allows all.
        blocked: Those that may not be run, whatever is allowed.
    """

    allowed: tuple[re.Pattern[str], ...] | None = None
    blocked: tuple[Blocked, ...] = ()

    @classmethod
    def of(
        cls, allowed: Sequence[str] = (), blocked: Sequence[str] = (), denied: Iterable[str] = ()
    ) -> CommandRules:
        """Return the rules made from these lists.

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
    """Return the literal prefix of everything that a regular expression matches.

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


Role = Literal["read-only", "researcher", "read-write", "implementer"]
Verdict = Literal["allow", "ask", "deny"]


class Act(NamedTuple):
    """What a call of a tool does, by one of its names.

    Attributes:
        action: One of `ACTIONS`.
        target: The command, path, address or tool.
    """

    action: str
    target: str


Names = Sequence[Act]
"""One thing that is done, by all names that a rule may have for it."""


class _Rule(NamedTuple):
    action: str
    pattern: str

    def fits(self, act: Act) -> bool:
        return self.action in ("*", act.action) and fnmatchcase(act.target, self.pattern)


@lru_cache(maxsize=1000)
def _rule(text: str) -> _Rule:
    found = _RULE.fullmatch(text)
    if not found or found[1] not in ACTIONS:
        raise ValueError(
            f"{text!r} is not a rule; write action(target) with one of the actions "
            f"{', '.join(ACTIONS)}"
        )
    return _Rule(found[1], "*" if found[2] is None else found[2])


class PermissionRules(Spec):
    """Rules, by their decision.

    Attributes:
        deny: Calls that are never made.
        allow: Calls that are made without asking.
        ask: Calls that a person decides on.
    """

    deny: Texts = ()
    allow: Texts = ()
    ask: Texts = ()

    @field_validator("deny", "allow", "ask")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # One that can't be read would restrict nothing.
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
        enabled: Whether the rules are in force.
        role: Name of a further set of rules.
        rules: The agent's own.
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
        """Decide on a call of a tool.

        Args:
            parts: What it does; each part is one thing by all of its names. All parts must be
                allowed, and one that is denied is enough.
            also: Further names, by which it can be denied or asked about, and not allowed.

        Returns:
            The decision; None when no rule matches.

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
        """Return the targets of an action that are so decided, as globs.

        Args:
            verdict: The decision.
            action: One of `ACTIONS`, but "*".
        """
        return tuple(r.pattern for r in self._rules(verdict) if r.action in ("*", action))

    def _fits(self, verdict: Verdict, acts: Names) -> bool:
        return any(rule.fits(act) for rule in self._rules(verdict) for act in acts)

    def _rules(self, verdict: Verdict) -> list[_Rule]:
        sets = [_ROLES[self.role], self.rules] if self.role else [self.rules]
        return [_rule(text) for each in sets for text in getattr(each, verdict)]
