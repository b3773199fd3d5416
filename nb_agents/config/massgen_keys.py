"""Classifies the keys of MassGen's files that are not fields of nb_agents's specs.

A restriction in a file must never be ignored silently. So ``massgen_keys.toml`` lists all keys that
may be ignored, and classifies the others:

- *harmless*: The key requests a feature that nb_agents lacks, or has no effect here. It is reported
  as ignored.
- *enforced*: The key restricts something that is always restricted here. It is not reported.
- *withheld*: The key restricts a tool and can't be enforced. The agent does not get the tool.
- *refused*: The key restricts something and can't be enforced. The team does not start.
- *unknown*: The key is not in the table. It is treated as a restriction if all keys of its section
  are (`SectionKeys.is_strict`) or its name suggests one (`sounds_restricting`). Otherwise it is
  reported as unknown. Not all unknown keys are refused, because MassGen passes them to the model's
  API and adds keys each week.

Keys that are fields of a spec are *supported*, or *enforced* if they restrict something
(`SectionKeys.fields`).

Source: MassGen 0.1.97, `backend/_excluded_params.py`, `agent_config.py`, `config_validator.py`,
`mcp_tools/security.py`, `permissions/`, and the keys of its 276 configs. Tests compare the table
with all of these.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from nb_agents.config.document import Keys
from nb_agents.config.faults import dotted

KeyStatus = Literal["supported", "enforced", "withheld", "refused", "harmless", "unknown"]


class Restriction(NamedTuple):
    """A restriction that a key imposes, and what a user can do about it.

    Attributes:
        what: What is restricted, phrased to follow "restricts".
        remedy: What the user can do, as a sentence.
        unless: Values for which the key has no effect. None means all falsy values.
    """

    what: str
    remedy: str = "Remove it if the agents may work without it."
    unless: list[Any] | None = None

    def restricts(self, value: Any) -> bool:
        """Return whether the key restricts anything with this value."""
        return bool(value) if self.unless is None else value not in self.unless


@dataclass(frozen=True)
class SectionKeys:
    """The classified keys of a section.

    Attributes:
        fields: Fields of its spec that are enforced restrictions.
        harmless: Keys that may be ignored, with the reason.
        enforced: Keys that restrict something that is always restricted here.
        withheld: Keys that withhold a tool.
        refused: Keys that prevent a start.
        is_strict: Whether all unknown keys count as restrictions.
        withholds: Whether unknown restrictions withhold the tool instead of preventing a start.
    """

    fields: frozenset[str] = frozenset()
    harmless: Mapping[str, str] = field(default_factory=dict)
    enforced: frozenset[str] = frozenset()
    withheld: Mapping[str, Restriction] = field(default_factory=dict)
    refused: Mapping[str, Restriction] = field(default_factory=dict)
    is_strict: bool = False
    withholds: bool = False


def _section(table: Mapping[str, Any]) -> SectionKeys:
    section_keys = dict(table)
    for name in ("fields", "enforced"):
        section_keys[name] = frozenset(section_keys.get(name, "").split())
    for name in ("withheld", "refused"):
        section_keys[name] = {
            key: Restriction(**each) for key, each in section_keys.get(name, {}).items()
        }
    reasons = section_keys.get("harmless", {})
    section_keys["harmless"] = {key: why for why, keys in reasons.items() for key in keys.split()}
    return SectionKeys(**section_keys)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SECTIONS: Mapping[tuple[str, ...], SectionKeys] = {
    tuple(path.split(".")) if path else (): _section(each) for path, each in _TABLE.items()
}
"""The classified keys of each section, by path: keys from the top level, "*" for a list item."""

_UNKNOWN = Restriction("what agents may do, judging by its name or section")

_RESTRICTING = re.compile(
    r"allow|approv|ask|audit|author|block|budget|cap|ceiling|confin|confirm|consent|deni|deny|"
    r"disab|disallow|except|exclud|filter|firewall|forbid|gate|guard|ignor|isolat|jail|limit|"
    r"lock|max|only|permi|polic|prevent|privil|prohib|protect|quota|read_?only|refus|reject|"
    r"require|restrict|review|safe|sandbox|scope|secur|skip|timeout|trust|white_?list|writ",
    re.IGNORECASE,
)


def status_of_key(
    section: tuple[str, ...], key: str, fields: frozenset[str] = frozenset()
) -> KeyStatus:
    """Return the status of a key.

    Args:
        section: The path of its section.
        key: Its name.
        fields: The fields of the section's spec.

    Example:
        >>> status_of_key(("agents", "*", "backend"), "enable_audio_generation")
        'harmless'
    """
    table = SECTIONS.get(section, SectionKeys())
    if key in fields:
        return "enforced" if key in table.fields else "supported"
    sorts: tuple[KeyStatus, ...] = ("harmless", "enforced", "withheld", "refused")
    for sort in sorts:
        if key in getattr(table, sort):
            return sort
    # The keys of a nested section are classified individually.
    return "supported" if (*section, key) in SECTIONS else "unknown"


def sounds_restricting(key: str) -> bool:
    """Return whether the name of an unknown key suggests a restriction. Errs on the side of True.

    Example:
        >>> sounds_restricting("forbidden_hosts"), sounds_restricting("colour")
        (True, False)
    """
    return _RESTRICTING.search(key) is not None


def section_of(path: Keys) -> tuple[str, ...]:
    """Return the path of a section in the form used as a key of `SECTIONS`.

    Args:
        path: Keys from the top level. List items are indices, "*" or, for agents, ids.
    """
    names = ["*" if isinstance(part, int) else str(part) for part in path]
    if names[:1] == ["agent"]:
        names[:1] = ["agents", "*"]
    elif names[:1] in (["agents"], ["callable_agents"]):
        names[:2] = ["agents", "*"][: len(names)]
    return tuple(names)


class ForeignKey(NamedTuple):
    """A key of a file that is not a field of a spec.

    Attributes:
        path: Keys from the top level. Agents are identified by id, other list items by index.
        sort: Its status, taking its value into account: "enforced" if the value restricts nothing.
        restriction: What it restricts. None if it is not a known restriction.
    """

    path: Keys
    sort: KeyStatus
    restriction: Restriction | None
    value: Any

    @property
    def key(self) -> str:
        """The key's own name: the last part of `path`."""
        return str(self.path[-1])

    @property
    def name(self) -> str:
        """The key's path with dots, without indices and ids."""
        below = (part for part in section_of(self.path)[1:] if part != "*")
        return dotted((self.path[0], *below))


def foreign_keys(spec: BaseModel, path: Keys = ()) -> Iterator[ForeignKey]:
    """Yield all keys of a spec and of its nested specs that are not fields.

    Args:
        spec: A team or a part of one.
        path: The spec's path in the team.
    """
    yield from own_foreign_keys(spec, path)
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, BaseModel):
            yield from foreign_keys(value, (*path, name))
        for number, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, BaseModel):
                yield from foreign_keys(item, (*path, name, getattr(item, "id", number)))


def own_foreign_keys(spec: BaseModel, path: Keys = ()) -> Iterator[ForeignKey]:
    """Yield the keys of a spec that are not fields, without those of nested specs."""
    for key, value in (spec.model_extra or {}).items():
        yield from _classify((*path, key), value)


def refusal(key: ForeignKey) -> str:
    """Return why a refused key prevents a team's start, with the remedy."""
    assert key.restriction is not None
    return (
        f"`{key.name}` restricts {key.restriction.what} and can't be enforced here. "
        f"{key.restriction.remedy}"
    )


def _classify(path: Keys, value: Any) -> Iterator[ForeignKey]:
    section, key = section_of(path[:-1]), str(path[-1])
    table, sort = SECTIONS.get(section, SectionKeys()), status_of_key(section, key)
    if sort == "supported" and isinstance(value, dict):  # a section without a spec
        for name, each in value.items():
            yield from _classify((*path, str(name)), each)
        return
    restriction = {**table.withheld, **table.refused}.get(key)
    if restriction and not restriction.restricts(value):
        sort, restriction = "enforced", None
    elif sort == "supported" and not value:
        sort = "enforced"
    elif sort == "supported" or (
        sort == "unknown" and (table.is_strict or _may_restrict(key, value))
    ):
        sort, restriction = ("withheld" if table.withholds else "refused"), _UNKNOWN
    yield ForeignKey(path, sort, restriction, value)


def _may_restrict(key: str, value: Any) -> bool:
    """Return whether the name of an unknown key, or of a key inside it, suggests a restriction."""
    if sounds_restricting(key):
        return True
    if isinstance(value, dict):
        return any(_may_restrict(str(name), each) for name, each in value.items())
    return isinstance(value, list) and any(_may_restrict("", each) for each in value)
