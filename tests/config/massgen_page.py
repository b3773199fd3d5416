"""Generates ``docs/massgen-keys.md``: what nb_agents does with every key of a MassGen file.

The page lists the fields of the specs with their docstrings, and the table of all other keys.
`python -m tests.config.test_massgen_keys` writes it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from tests.kit.teams import SECTIONS, Restriction, SectionKeys, Spec, TeamSpec, specs_in

__all__ = ["PAGE", "SPECS", "Row", "about", "page", "rows"]

PAGE = Path(__file__).parents[2] / "docs" / "massgen-keys.md"

HEAD = """# MassGen keys

What nb_agents does with each key of a MassGen team file. `python -m tests.config.test_massgen_keys`
generates this page from the code, and a test fails when it is outdated.

- *supported*: the key works as described. Keys that only nb_agents has are included.
- *enforced*: the key restricts agents, and the restriction applies.
- *withheld*: the key restricts a tool and cannot be enforced, so the agents do not get that tool.
- *refused*: the key restricts agents and cannot be enforced, so the team does not start.
- *ignored*: the key has no effect in nb_agents. `%agents check` and the run's panel name it, unless
  it is switched off.

`%agents check` reports a key that is not listed as unknown. If its name or place suggests a
restriction, the team does not start. Keys below a withheld, refused or ignored key have the same
status. `callable_agents` have the same keys as `agents`.

| key | status | meaning |
|---|---|---|
"""

Row = tuple[str, str, str]
Place = tuple[str, ...]


def _specs(spec: type[Spec], place: Place = ()) -> Iterator[tuple[Place, type[Spec]]]:
    yield place, spec
    for key, (inner, is_list) in specs_in(spec).items():
        yield from _specs(inner, (*place, key, *(["*"] if is_list else [])))


SPECS = dict(_specs(TeamSpec))
"""The spec that parses each section of a team file."""


def page() -> str:
    """Return the whole page."""
    lines = [f"| `{key}` | {happens} | {said} |\n" for key, happens, said in rows()]
    return HEAD + "".join(lines)


def rows() -> Iterator[Row]:
    """Yield each key with its section, its status and its meaning."""
    specs = {place: spec for place, spec in SPECS.items() if place[:1] != ("callable_agents",)}
    for place in dict.fromkeys([*specs, *SECTIONS]):
        found = {**_of_table(place), **(_of_spec(place, specs[place]) if place in specs else {})}
        prefix = "".join(f"{part}." for part in place if part != "*")
        for key in sorted(found):
            yield f"{prefix}{key}", *found[key]
        if not place:
            yield "agent", "supported", "One agent instead of a list, with the keys of `agents`."
        if place in SECTIONS and SECTIONS[place].is_strict:
            happens = "withheld" if SECTIONS[place].withholds else "refused"
            yield f"{prefix}…", happens, "Any other key of this section."


def _of_spec(place: Place, spec: type[BaseModel]) -> dict[str, tuple[str, str]]:
    restricting = SECTIONS.get(place, SectionKeys()).fields
    return {
        field.alias or name: (
            "enforced" if name in restricting else "supported",
            about(spec, name),
        )
        for name, field in spec.model_fields.items()
        if not field.exclude
    }


def _of_table(place: Place) -> dict[str, tuple[str, str]]:
    table = SECTIONS.get(place)
    if table is None:
        return {}
    found = {key: ("ignored", why) for key, why in table.harmless.items()}
    found |= {key: ("enforced", "") for key in table.enforced}
    found |= {key: ("withheld", _why(each)) for key, each in table.withheld.items()}
    found |= {key: ("refused", _why(each)) for key, each in table.refused.items()}
    return found


def _why(restriction: Restriction) -> str:
    return f"It restricts {restriction.what}. {restriction.remedy}"


@cache
def about(spec: type[BaseModel], field: str) -> str:
    """Return the description of a field from the docstring of a spec or of its bases."""
    for each in spec.__mro__:
        _, _, listed = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("Attributes:")
        for found in re.finditer(r"^    (\w[\w,\s]*?): ((?:.|\n(?=     ))*)", listed, re.MULTILINE):
            if field in re.split(r",\s+", found[1]):
                return " ".join(found[2].replace("``", "`").replace("|", "\\|").split())
    return ""
