"""A recipe as the work of a turn; see `nb_agents.turns.turn_spec.TurnWork`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.private import write_private
from nb_agents.errors import ConfigError
from nb_agents.extensions.recipes.progress import Progress
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.units import planned
from nb_agents.masking import Mask
from nb_agents.process.writable import WritablePath
from nb_agents.session.history import Session
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.turn_spec import TurnSpec


@dataclass(frozen=True)
class RecipeWork:
    """A recipe that a turn runs.

    Attributes:
        given: Its initial values.
        progress: The progress from which to continue, or None for a new start.
        kind: The name of this kind of work.
        opens_tools: False, because tools are opened when their steps start.
        has_default_timeout: False, because steps have their own timeouts.
    """

    recipe: Recipe
    given: Mapping[str, Any]
    progress: Progress | None = None
    kind: str = "recipe"
    opens_tools: bool = False
    has_default_timeout: bool = False

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    def members(self, team: TeamSpec) -> tuple[AgentSpec, ...]:
        """Return no agents, because they start with their steps."""
        return ()

    def workspaces(self, team: TeamSpec) -> tuple[str, ...]:
        """Return the single workspace that all steps share."""
        return (self.name,)

    def first_events(self) -> tuple[ev.Event, ...]:
        """Return the event with the recipe's text."""
        path, text = str(self.recipe.path or ""), self.recipe.text
        return (ev.RecipeLoaded(step="", path=path, text=text, outline=planned(self.recipe)),)

    def fill(self, spec: TurnSpec, session: Session) -> TurnSpec:
        """Write a copy of the recipe, and return the spec with the recipe's working directory."""
        before = spec.resumed.view.recipe if spec.resumed else ""
        keep_recipe(spec.paths, self.recipe, spec.mask, before)
        return replace(spec, project=self._project(spec.team, spec.paths.root))

    def _project(self, team: TeamSpec, sessions: Path) -> WritablePath | None:
        """Return the user's directory in which the steps work, if any.

        Args:
            team: The team with the agents of the steps.
            sessions: The session root, which is protected.

        Raises:
            ConfigError: The directory no longer exists.
        """
        is_own = self.recipe.workspace == "project"
        path = Path(self.given["_project"]) if is_own else team.project
        if path is None:
            return None
        if not path.is_dir():
            raise ConfigError(
                f"The recipe works in {str(path)!r}, which is no longer a directory. Restore it, "
                "or start the recipe again in another directory."
            )
        return WritablePath(path, [sessions.resolve()])


def keep_recipe(paths: TurnPaths, recipe: Recipe, mask: Mask, resumed_name: str = "") -> None:
    """Write a copy of the recipe's file into the turn, for the user.

    Args:
        paths: The turn's paths.
        mask: Masks secrets in the text.
        resumed_name: The recipe's name in the turn that this turn resumes, or "". The workspace
            has this name, and is renamed if the recipe's name has changed.

    Raises:
        OSError: The turn's directory can't be written.
    """
    old, new = paths.live_workspaces / resumed_name, paths.live_workspaces / recipe.name
    if resumed_name and old.is_dir() and not new.exists():
        old.rename(new)
        with suppress(OSError):  # for values that contain the old path
            old.symlink_to(new.name, target_is_directory=True)
    write_private(paths.path / "recipe.yaml", mask.text(recipe.text))
