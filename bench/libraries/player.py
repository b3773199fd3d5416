"""The process of a library: start three agents and stop them on request, or resume them.

The standard library is all that is needed here: the process may be of another environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

__all__ = ["GO_ON", "NAMES", "PROMPT", "Agents", "play", "tell", "work"]

NAMES = ("a", "b", "c")
PROMPT = "Work."
GO_ON = "Go on."

_OUT, sys.stdout = sys.stdout, sys.stderr


class Agents(Protocol):
    """Agents a, b and c side by side, as a library runs them."""

    async def begin(self) -> None:
        """Run until all are done, or have stopped and what they did is saved."""
        ...

    def stop(self) -> None:
        """Stop all of them immediately; called on the loop."""
        ...

    async def saved(self) -> dict[str, str]:
        """Read each agent's last words from the disk."""
        ...

    async def resume(self) -> None:
        """Resume from what is on disk until all are done."""
        ...


async def work(command: str) -> str:
    """Run a command: c's tool, the same in every library."""
    child = await asyncio.create_subprocess_exec("bash", "-c", command)
    return f"exit code {await child.wait()}"


def play(agents: Callable[[str, Path], Agents]) -> None:
    """Do what the command line says: `begin` or `resume`, the server's URL, the directory."""
    verb, url, root = sys.argv[1:]
    asyncio.run((_begin if verb == "begin" else _resume)(agents(url, Path(root))))


async def _begin(agents: Agents) -> None:
    task = asyncio.create_task(agents.begin())
    await asyncio.to_thread(sys.stdin.readline)
    tell(time.monotonic())
    agents.stop()
    await asyncio.wait([task])
    tell(time.monotonic())


async def _resume(agents: Agents) -> None:
    tell(await agents.saved())
    await agents.resume()
    tell(await agents.saved())


def tell(what: object) -> None:
    """Say something to who plays; what the library prints goes elsewhere."""
    print(json.dumps(what), file=_OUT, flush=True)
