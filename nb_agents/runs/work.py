"""What a run is to do: the task, the team, and where the turn is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from nb_agents.agents.replay import Past
from nb_agents.config.recipe import Recipe
from nb_agents.config.snapshot import snapshot
from nb_agents.config.team import DEFAULT_ORCHESTRATOR_TIMEOUT_S, AgentSpec, TeamSpec
from nb_agents.recipes.progress import Progress
from nb_agents.session.history import Message
from nb_agents.session.layout import TurnPaths
from nb_agents.view import RunView

__all__ = ["Resumed", "Work"]


@dataclass(frozen=True)
class Resumed:
    """The turn that a run goes on with.

    Attributes:
        turn: Its number.
        past: Where its agents were.
        view: What it showed.
        progress: How far its recipe was; None for a team.
    """

    turn: int
    past: Past
    view: RunView
    progress: Progress | None = None


@dataclass(frozen=True)
class Work:
    """What a run is to do.

    Attributes:
        task: What was asked.
        spec: The team.
        paths: The turn's files.
        history: The conversation before.
        context: Read-only files and directories.
        timeout_s: The orchestrator timeout, seconds.
        notices: One-line notes for the panel.
        owner: Who runs it, in words.
        config: The team file's path, or "".
        resumed: What this goes on with, or None.
        recipe: What the agents work through instead of a task of their own, or None.
        given: The values that the recipe was started with.
    """

    task: str
    spec: TeamSpec
    paths: TurnPaths
    history: Sequence[Message] = ()
    context: Sequence[Path] = ()
    timeout_s: float = DEFAULT_ORCHESTRATOR_TIMEOUT_S
    notices: tuple[str, ...] = ()
    owner: str = ""
    config: str = ""
    resumed: Resumed | None = None
    recipe: Recipe | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workspaces(self) -> tuple[str, ...]:
        """Names of the turn's workspaces, as `RunView.workspaces` has them."""
        return (self.recipe.name,) if self.recipe else tuple(a.id for a in self.spec.agents)

    def started(self) -> ev.TurnStarted:
        """Make the turn's first line."""
        return ev.TurnStarted(
            session=self.paths.session,
            turn=self.paths.number,
            task=self.task,
            agents=() if self.recipe else tuple(map(_info, self.spec.agents)),
            timeout_s=self.timeout_s,
            notices=self.notices,
            resumes=self.resumed.turn if self.resumed else 0,
            team=snapshot(self.spec),
            config=self.config,
            recipe=self.recipe.name if self.recipe else "",
            context=dict(self.given),
        )


def _info(agent: AgentSpec) -> ev.AgentInfo:
    backend = agent.backend
    return ev.AgentInfo(id=agent.id, model=backend.model or backend.type, backend=backend.type)
