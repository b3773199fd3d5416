"""What a tool knows of the agent that it works for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nb_agents.masking import Mask
from nb_agents.tools.access import WriteAccess

__all__ = ["ToolContext"]


@dataclass(frozen=True)
class ToolContext:
    """Where an agent's tools work.

    Attributes:
        agent: The agent's id, or the address of its step.
        workspace: Its directory; it exists.
        readable: Files and directories that it may read besides.
        session: The session's directory: what is kept beyond the turn goes there.
        kept: Directory of the turn for what is too long for a model; made when it is needed.
        secrets: Values that no process of it inherits, such as the team's keys.
        access: What it may write besides, and whether now.
        tell: Is given what a running tool writes, piece by piece, for the panel. It must neither
            block nor raise.
        mask: Takes secrets out of what its tools write down.
    """

    agent: str
    workspace: Path
    readable: Sequence[Path]
    session: Path
    kept: Path
    secrets: Sequence[str]
    tell: Callable[[str], None]
    mask: Mask = field(default_factory=Mask)
    access: WriteAccess = field(default_factory=WriteAccess)
