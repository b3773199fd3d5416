"""The skills capability: guides for certain kinds of work that the user has installed.

The prompt shows only the name and description of each skill, because its author is unknown. The
agent reads the rest with its file tools.

Source: MassGen 0.1.97, `filesystem_manager/skills_manager.py` (one directory per skill, with its
name and description in the front matter).
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

_GUIDE = """The user has installed skills: guides for certain kinds of work. Before you do one of
these kinds of work, read its guide with read_file. Files that a guide names are in its directory
and read-only."""


@dataclass(frozen=True)
class Skill:
    """A skill: a guide for one kind of work.

    Attributes:
        name: The name in its front matter, or the name of its directory.
        description: The description in its front matter.
        path: The absolute path of its ``SKILL.md``.
    """

    name: str
    description: str
    path: Path


def find_skills(directory: Path) -> list[Skill]:
    """Find the skills in a directory, sorted by the names of their directories. Reads each file.

    Args:
        directory: The directory. If it can't be read, no skills are found.
    """
    skills: list[Skill] = []
    with suppress(OSError), Directory.at(directory) as opened:
        # Names with line breaks could forge lines of a prompt.
        folders = sorted(each.name for each in opened.entries() if each.name.isprintable())
        for folder in folders[:MAX_LOOKED_AT]:
            with suppress(OSError, RefusedError):
                data = opened.read(f"{folder}/{_FILE}", MAX_BYTES, follow=False)
                skills.append(_skill(directory / folder / _FILE, data.decode("utf-8", "replace")))
            if len(skills) == MAX_SKILLS:
                break
    return skills


def _skill(path: Path, text: str) -> Skill:
    head = front_matter(text)
    about = head.get("description", "")[:MAX_DESCRIPTION_CHARS]
    return Skill(head.get("name", path.parent.name), about, path)


class Skills(Capability):
    """The skills of a team.

    Args:
        skills: All available skills.
    """

    holds_in_planning = True

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = skills

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return the list of skills with their descriptions, or "" if there are none."""
        list_lines = [f"- {s.name} ({s.path}): {s.description}" for s in self._skills]
        return "\n".join([_GUIDE, *list_lines]) if list_lines else ""
