"""What agents remember: Markdown files in ``memory/`` of their workspaces.

Those of ``short_term`` are read to every agent of the team as its round opens; of those of
``long_term`` it hears the names, and reads what it wants. They are files of the workspace like any
other, so that a stop keeps them and a resume has them; the next turn of a session begins with a
copy of them.

Source: MassGen 0.1.97, `enable_memory_filesystem_mode` (`system_prompt_sections.MemorySection`).
There a workspace is emptied at each answer, and its memories are archived before. Here it stays as
it is, so there is nothing to archive.
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
from nb_agents.disk.entry import RefusedError

__all__ = ["Memory", "carry_memories", "read_memories"]

Tier = Literal["short_term", "long_term"]

_NAME = re.compile(r"[\w][\w .-]*\.md")
"""Those that a prompt can hold as they are."""
_TIERS: tuple[Tier, ...] = ("short_term", "long_term")
MAX_FILES = 50
"""Of each tier of an agent, in the order of their names."""
MAX_BYTES = 50_000
"""Of one file; a larger one is left alone."""


@dataclass(frozen=True)
class Memory:
    """One file.

    Attributes:
        path: From the workspace.
        tier: Which of the two directories it is in.
        text: What it holds.
    """

    path: str
    tier: Tier
    text: str

    @property
    def description(self) -> str:
        """What it says of itself."""
        return front_matter(self.text).get("description", "")


def read_memories(workspace: Path) -> list[Memory]:
    """Read the memories of a workspace; what can't be read is passed over.

    Args:
        workspace: The agent's directory.
    """
    return [
        Memory(path, tier, data.decode("utf-8", "replace")) for path, tier, data in _read(workspace)
    ]


def carry_memories(old: Path, new: Path) -> None:
    """Copy the memories of an earlier turn into a new one's workspace.

    Args:
        old: The agent's directory in the earlier turn.
        new: The same in the new one; made if it is missing.

    Raises:
        OSError: The disk refused.
    """
    found = list(_read(old))
    if not found:
        return
    new.mkdir(parents=True, exist_ok=True)
    with Directory.at(new) as directory:
        for path, _, data in found:
            directory.replace(path, data)


def _read(workspace: Path) -> Iterator[tuple[str, Tier, bytes]]:
    # A link in the place of a workspace, a directory or a file is not followed.
    with suppress(OSError), Directory.at(workspace) as directory:
        for tier in _TIERS:
            for path in _files(directory, tier):
                with suppress(OSError, RefusedError):
                    yield path, tier, directory.read(path, MAX_BYTES, follow=False)


def _files(directory: Directory, tier: Tier) -> list[str]:
    folder, found = f"memory/{tier}", list[str]()
    with suppress(OSError):
        for entry in directory.walk(folder):
            if entry.kind == "file" and _NAME.fullmatch(entry.name):
                found.append(f"{folder}/{entry.name}")
            if entry.kind == "folder" or len(found) == MAX_FILES:
                break
    return found
