"""Skills, as a capability: guides to kinds of work, which the person has installed.

Of a skill, whose author is unknown, the prompt shows the name and description; the agent reads the
rest with its file tools.

Source: MassGen 0.1.97, `filesystem_manager/skills_manager.py` (one directory a skill, its name and
description in the front matter).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nb_agents.agents.capabilities import Capability
from nb_agents.config.document import front_matter
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import RefusedError

MAX_SKILLS = 100
MAX_LOOKED_AT = 10_000
MAX_BYTES = 200_000
MAX_DESCRIPTION_CHARS = 400
_FILE = "SKILL.md"

_GUIDE = """There are skills: guides for kinds of work, which the person has installed. Before you
do such work, read the guide with read_file; other files that it names lie beside it, read-only."""


@dataclass(frozen=True)
class Skill:
    """A skill: a guide to one kind of work.

    Attributes:
        name: As its file says, or the name of its directory.
        description: What it is for, as its file says.
        path: Its ``SKILL.md``, absolute.
    """

    name: str
    description: str
    path: Path


def find_skills(directory: Path) -> list[Skill]:
    """Find the skills of a directory, sorted by the names of their directories; takes a moment.

    Args:
        directory: Where they are; one that can't be read has none.
    """
    found: list[Skill] = []
    with suppress(OSError), Directory.at(directory) as opened:
        # A name that could end its line in a prompt names no skill.
        folders = sorted(each.name for each in directory.iterdir() if each.name.isprintable())
        for folder in folders[:MAX_LOOKED_AT]:
            with suppress(OSError, RefusedError):
                data = opened.read(f"{folder}/{_FILE}", MAX_BYTES, follow=False)
                found.append(_skill(directory / folder / _FILE, data.decode("utf-8", "replace")))
            if len(found) == MAX_SKILLS:
                break
    return found


def _skill(path: Path, text: str) -> Skill:
    head = front_matter(text)
    about = head.get("description", "")[:MAX_DESCRIPTION_CHARS]
    return Skill(head.get("name", path.parent.name), about, path)


class Skills(Capability):
    """The skills of a team.

    Args:
        found: All that there are.
    """

    holds_in_planning = True

    def __init__(self, found: Sequence[Skill]) -> None:
        self._found = found

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return the list of them; "" if there are none."""
        listed = [f"- {s.name} ({s.path}): {s.description}" for s in self._found]
        return "\n".join([_GUIDE, *listed]) if listed else ""
