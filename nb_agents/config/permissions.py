"""MassGen's ``permissions``: which calls of an agent's tools are allowed, asked about or denied.

A rule is ``action(target)``, such as ``command(git push*)``; the target is a glob, and one without
it is any. Deny goes before allow, allow before ask, and a role's rules before an agent's own.

Source: MassGen 0.1.97, `permissions/rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple

from pydantic import field_validator, model_validator

from nb_agents.config.spec import Spec, Texts

__all__ = ["Act", "Names", "PermissionRules", "PermissionSpec", "Role", "Verdict"]

Role = Literal["read-only", "researcher", "read-write", "implementer"]
Verdict = Literal["allow", "ask", "deny"]

ACTIONS = ("command", "read_file", "write_file", "read_url", "mcp", "*")
_RULE = re.compile(r"\s*([\w*]+)\s*(?:\((.*)\)\s*)?", re.DOTALL)


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
            f"{text!r} is no rule; write action(target) with one of the actions "
            f"{', '.join(ACTIONS)}"
        )
    return _Rule(found[1], "*" if found[2] is None else found[2])


class PermissionRules(Spec):
    """Rules, by what they decide.

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
    """What an agent's tools may do.

    Attributes:
        enabled: Whether the rules are in force.
        role: A set of rules by its name, besides the agent's own.
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
            What the rules say; None when none of them fits.

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

    def denied(self, action: str) -> tuple[str, ...]:
        """Give the targets of an action that are never allowed, as globs.

        Args:
            action: One of `ACTIONS`, but "*".
        """
        return tuple(r.pattern for r in self._rules("deny") if r.action in ("*", action))

    def _fits(self, verdict: Verdict, acts: Names) -> bool:
        return any(rule.fits(act) for rule in self._rules(verdict) for act in acts)

    def _rules(self, verdict: Verdict) -> list[_Rule]:
        sets = [_ROLES[self.role], self.rules] if self.role else [self.rules]
        return [_rule(text) for each in sets for text in getattr(each, verdict)]
