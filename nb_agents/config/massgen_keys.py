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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
