"""The page ``docs/massgen-keys.md``: every key of a MassGen file, and what becomes of it here.

It is made of the code alone: the specs' fields with what their docstrings say, and the table of all
other keys. `python -m tests.config.test_massgen_keys` writes it anew.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from nb_agents.config.faults import specs_in
from nb_agents.config.massgen_keys import SECTIONS, Restriction, SectionKeys
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec

__all__ = ["PAGE", "SPECS", "Row", "about", "page", "rows"]

PAGE = Path(__file__).parents[2] / "docs" / "massgen-keys.md"

HEAD = """# What becomes of a MassGen file's keys

Written from the code by `python -m tests.config.test_massgen_keys`; a test tells when it is old.

- *supported*: it does here what its sentence says; keys that only nb_agents has are among them.
- *enforced*: it restricts, and what it restricts is so; without a sentence it is so in any case.
- *withheld*: it restricts a tool and can't be kept to here, so the agents don't get that tool.
- *refused*: it restricts and can't be kept to here, so the team does not start.
- *ignored*: it asks for what is not available here, or is of no consequence; `%agents check` and
  the run's panel name it, unless it is switched off.

Of a key that is not listed, `%agents check` says that it is not known; where its name or its place
says that it restricts, the team does not start. What stands below a key that is withheld, refused
or ignored falls with it. `callable_agents` have the keys of `agents`.

| key | what happens | |
|---|---|---|
"""

Row = tuple[str, str, str]
Place = tuple[str, ...]


def _specs(spec: type[Spec], place: Place = ()) -> Iterator[tuple[Place, type[Spec]]]:
    yield place, spec
    for key, (inner, is_list) in specs_in(spec).items():
        yield from _specs(inner, (*place, key, *(["*"] if is_list else [])))


SPECS = dict(_specs(TeamSpec))
"""For each section of a team file the spec that it becomes."""


def page() -> str:
    """The whole page."""
    lines = [f"| `{key}` | {happens} | {said} |\n" for key, happens, said in rows()]
    return HEAD + "".join(lines)


def rows() -> Iterator[Row]:
    """Each key with its section, what happens, and a sentence."""
    specs = {place: spec for place, spec in SPECS.items() if place[:1] != ("callable_agents",)}
    for place in dict.fromkeys([*specs, *SECTIONS]):
        found = {**_of_table(place), **(_of_spec(place, specs[place]) if place in specs else {})}
        prefix = "".join(f"{part}." for part in place if part != "*")
        for key in sorted(found):
            yield f"{prefix}{key}", *found[key]
        if not place:
            yield "agent", "supported", "One agent, without a list: it has the keys of `agents`."
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
    """What the docstrings of a spec, or of one that it is made from, say of a field."""
    for each in spec.__mro__:
        _, _, listed = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("Attributes:")
        for found in re.finditer(r"^    (\w[\w,\s]*?): ((?:.|\n(?=     ))*)", listed, re.MULTILINE):
            if field in re.split(r",\s+", found[1]):
                return " ".join(found[2].replace("``", "`").replace("|", "\\|").split())
    return ""
