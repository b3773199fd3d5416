"""The keys of MassGen's files that no spec of ours has as a field, each sorted by a table.

A restriction in a file is never only words. So what may be ignored is listed by name, in
``massgen_keys.toml`` beside this file, and no other key is ever told of as ignored:

- *harmless*: it asks for what is not available here, or is of no consequence here; it is listed.
- *enforced*: it restricts, and what it restricts is so in any case; nothing is said.
- *withheld*: it restricts a tool, and can't be enforced: the agent does not get that tool.
- *refused*: it restricts, and can't be enforced: the team does not start.
- *unknown*: it is not in the table. Where every key restricts (`SectionKeys.is_strict`), and where
  its name sounds like a restriction (`sounds_restricting`), it is treated as one that can't be
  enforced, else listed as unknown. Not every unknown key is refused, because MassGen passes what it
  does not know to the model's API, and has new keys each week.

Keys that a spec has as a field are *supported*, or *enforced* if they restrict
(`SectionKeys.fields`).

Source: MassGen 0.1.97, `backend/_excluded_params.py`, `agent_config.py`, `config_validator.py`,
`mcp_tools/security.py`, `permissions/`, and the keys of its 276 configs. The tests hold the table
against all of these.
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

Sort = Literal["supported", "enforced", "withheld", "refused", "harmless", "unknown"]


class Restriction(NamedTuple):
    """What a key restricts, and what can be done about it.

    Attributes:
        what: What it restricts, after "restricts".
        remedy: What to do.
        unless: The values with which it restricts nothing; None means those that are false.
    """

    what: str
    remedy: str = "Remove it if the agents may work without it."
    unless: list[Any] | None = None

    def restricts(self, value: Any) -> bool:
        """Return whether it restricts with a value."""
        return bool(value) if self.unless is None else value not in self.unless


@dataclass(frozen=True)
class SectionKeys:
    """The keys of one section.

    Attributes:
        fields: Fields of its spec that restrict, and are kept.
        harmless: Those that may be ignored, each with the reason.
        enforced: Those that restrict what is so restricted in any case.
        withheld: Those for which a tool is withheld.
        refused: Those with which a team does not start.
        is_strict: Whether a key that is not known restricts, whatever its name.
        withholds: Whether one that restricts withholds the tool, instead of refusing the start.
    """

    fields: frozenset[str] = frozenset()
    harmless: Mapping[str, str] = field(default_factory=dict)
    enforced: frozenset[str] = frozenset()
    withheld: Mapping[str, Restriction] = field(default_factory=dict)
    refused: Mapping[str, Restriction] = field(default_factory=dict)
    is_strict: bool = False
    withholds: bool = False


def _section(written: Mapping[str, Any]) -> SectionKeys:
    made = dict(written)
    for name in ("fields", "enforced"):
        made[name] = frozenset(made.get(name, "").split())
    for name in ("withheld", "refused"):
        made[name] = {key: Restriction(**each) for key, each in made.get(name, {}).items()}
    reasons = made.get("harmless", {})
    made["harmless"] = {key: why for why, keys in reasons.items() for key in keys.split()}
    return SectionKeys(**made)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SECTIONS: Mapping[tuple[str, ...], SectionKeys] = {
    tuple(path.split(".")) if path else (): _section(each) for path, each in _TABLE.items()
}
"""What becomes of the keys of a section, by its path: keys from the top, "*" for a list's item."""

_UNKNOWN = Restriction("what agents may do, by its name or its place")

_RESTRICTING = re.compile(
    r"allow|approv|ask|audit|author|block|budget|cap|ceiling|confin|confirm|consent|deni|deny|"
    r"disab|disallow|except|exclud|filter|firewall|forbid|gate|guard|ignor|isolat|jail|limit|"
    r"lock|max|only|permi|polic|prevent|privil|prohib|protect|quota|read_?only|refus|reject|"
    r"require|restrict|review|safe|sandbox|scope|secur|skip|timeout|trust|white_?list|writ",
    re.IGNORECASE,
)


def sort_of(section: tuple[str, ...], key: str, fields: frozenset[str] = frozenset()) -> Sort:
    """Return what becomes of a key.

    Args:
        section: Where it stands.
        key: Its name.
        fields: The fields of that section's spec.

    Example:
        >>> sort_of(("agents", "*", "backend"), "enable_audio_generation")
        'harmless'
    """
    table = SECTIONS.get(section, SectionKeys())
    if key in fields:
        return "enforced" if key in table.fields else "supported"
    sorts: tuple[Sort, ...] = ("harmless", "enforced", "withheld", "refused")
    for sort in sorts:
        if key in getattr(table, sort):
            return sort
    # A section of its own is sorted key by key.
    return "supported" if (*section, key) in SECTIONS else "unknown"


def sounds_restricting(key: str) -> bool:
    """Return whether an unknown key sounds like a restriction; when in doubt, it does.

    Args:
        key: Its name.

    Example:
        >>> sounds_restricting("forbidden_hosts"), sounds_restricting("colour")
        (True, False)
    """
    return _RESTRICTING.search(key) is not None


def section_of(path: Keys) -> tuple[str, ...]:
    """Return the section that a path leads to, as `SECTIONS` has it.

    Args:
        path: Keys from the top; an item of a list by its position or "*", an agent by its id too.
    """
    names = ["*" if isinstance(part, int) else str(part) for part in path]
    if names[:1] == ["agent"]:
        names[:1] = ["agents", "*"]
    elif names[:1] in (["agents"], ["callable_agents"]):
        names[:2] = ["agents", "*"][: len(names)]
    return tuple(names)


class ForeignKey(NamedTuple):
    """A key that no spec has.

    Attributes:
        path: Where it stands: keys from the top, an agent by its id, other items by position.
        sort: What becomes of it with the value that it has; "enforced" when that restricts nothing.
        restriction: What it restricts; None when it is not known to restrict.
        value: What it was given.
    """

    path: Keys
    sort: Sort
    restriction: Restriction | None
    value: Any

    @property
    def key(self) -> str:
        """Its name."""
        return str(self.path[-1])

    @property
    def name(self) -> str:
        """Its path without positions and ids, with dots."""
        below = (part for part in section_of(self.path)[1:] if part != "*")
        return dotted((self.path[0], *below))


def foreign_keys(spec: BaseModel, path: Keys = ()) -> Iterator[ForeignKey]:
    """Yield every unknown key of a spec and of those below it.

    Args:
        spec: A team, or a part of one.
        path: Where it stands.
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
    """Yield every unknown key of a spec itself; see `foreign_keys`."""
    for key, value in (spec.model_extra or {}).items():
        yield from _judged((*path, key), value)


def refusal(found: ForeignKey) -> str:
    """Return why a team does not start, in a sentence or two.

    Args:
        found: A key that is refused.
    """
    assert found.restriction is not None
    return (
        f"`{found.name}` restricts {found.restriction.what}, and can't be enforced here. "
        f"{found.restriction.remedy}"
    )


def _judged(path: Keys, value: Any) -> Iterator[ForeignKey]:
    section, key = section_of(path[:-1]), str(path[-1])
    table, sort = SECTIONS.get(section, SectionKeys()), sort_of(section, key)
    if sort == "supported" and isinstance(value, dict):  # a section without a spec
        for name, each in value.items():
            yield from _judged((*path, str(name)), each)
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
    """Return whether an unknown key, or one below it, sounds like a restriction."""
    if sounds_restricting(key):
        return True
    if isinstance(value, dict):
        return any(_may_restrict(str(name), each) for name, each in value.items())
    return isinstance(value, list) and any(_may_restrict("", each) for each in value)
