"""Agents' memories: Markdown files in the ``memory`` directories of their workspaces.

At the start of a round, the prompt of every agent in the team includes the ``short_term`` memories
in full and the names of the ``long_term`` ones, which agents can read. Memories are ordinary files
of a workspace, so they survive a stop and a resume. The next turn of a session starts with a copy.

Source: MassGen 0.1.97, `enable_memory_filesystem_mode` (`system_prompt_sections.MemorySection`).
MassGen archives the memories because it empties a workspace after each answer. nb_agents does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nb_agents.config.document import front_matter
from nb_agents.disk.directory import Directory

Tier = Literal["short_term", "long_term"]

_NAME = re.compile(r"[\w][\w .-]*\.md")
"""File names that can be included in a prompt without escaping."""
_TIERS: tuple[Tier, ...] = ("short_term", "long_term")
MAX_FILES = 50
"""Maximum number of memories read per agent and tier: the first ones by name."""
MAX_BYTES = 50_000
"""Maximum size of a memory in bytes. A larger file is ignored."""


@dataclass(frozen=True)
class Memory:
    """A memory file. Its path is relative to the workspace."""

    path: str
    tier: Tier
    text: str

    @property
    def description(self) -> str:
        """The ``description`` in the front matter, or "" if there is none."""
        return front_matter(self.text).get("description", "")


def read_memories(workspace: Path) -> list[Memory]:
    """Return the memories in an agent's workspace, skipping files that can't be read."""
    return [
        Memory(path, tier, data.decode("utf-8", "replace")) for path, tier, data in _read(workspace)
    ]


def copy_memories(old: Path, new: Path) -> None:
    """Copy an agent's memories from an earlier turn.

    Args:
        old: The agent's workspace in the earlier turn.
        new: The agent's workspace in the new turn, created if missing.

    Raises:
        OSError: A write failed.
    """
    memories = list(_read(old))
    if not memories:
        return
    with Directory.made(new) as directory:
        for path, _, data in memories:
            directory.replace(path, data)


def _read(workspace: Path) -> Iterator[tuple[str, Tier, bytes]]:
    # Links are not followed: neither the workspace nor a directory or file may be a link.
    with suppress(OSError), Directory.at(workspace) as directory:
        for tier in _TIERS:
            for path in _files(directory, tier):
                with suppress(OSError):
                    yield path, tier, directory.read(path, MAX_BYTES, follow=False)


def _files(directory: Directory, tier: Tier) -> list[str]:
    folder, names = f"memory/{tier}", list[str]()
    with suppress(OSError):
        for entry in directory.walk(folder):
            if entry.kind == "file" and _NAME.fullmatch(entry.name):
                names.append(f"{folder}/{entry.name}")
            if entry.kind == "folder" or len(names) == MAX_FILES:
                break
    return names
