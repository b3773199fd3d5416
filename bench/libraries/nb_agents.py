"""nb_agents: a run stopped by `stop(now=True)`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nb_agents
from bench.libraries.player import NAMES, PROMPT, play, work
from tests.kit.sessions import load_session
from tests.kit.teams import TeamSpec


class Team:
    """One run with three agents."""

    def __init__(self, url: str, root: Path) -> None:
        backend = {"type": "chatcompletion", "base_url": url, "api_key": "k"}
        agents = [{"id": name, "backend": {**backend, "model": name}} for name in NAMES]
        rules = {"skip_voting": True, "skip_final_presentation": True}
        self._root = root
        self._options: dict[str, Any] = {
            "config": TeamSpec.model_validate({"agents": agents, "orchestrator": rules}),
            "options": nb_agents.RunOptions(session_root=root),
            "tools": [nb_agents.tool(work)],
        }
        self._run: nb_agents.Run | None = None

    async def begin(self) -> None:
        self._run = nb_agents.start(PROMPT, session="s", **self._options)
        await asyncio.to_thread(self._run.wait, raise_on_stop=False)

    def stop(self) -> None:
        assert self._run is not None
        self._run.stop(now=True)

    async def saved(self) -> dict[str, str]:
        agents = load_session(self._root / "s").turns[-1].view.agents.values()
        return {agent.id: agent.answer or agent.partial for agent in agents}

    async def resume(self) -> None:
        run = nb_agents.resume("s", **self._options)
        await asyncio.to_thread(run.wait, raise_on_stop=False)


if __name__ == "__main__":
    play(Team)
