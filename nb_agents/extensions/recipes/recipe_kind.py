"""Recipes as a kind of work; see `nb_agents.launch.work_kind.WorkKind`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nb_agents.agents.runner import Runners
from nb_agents.agents.subagents import SubAgents
from nb_agents.config.file_findings import Finding
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.events import Event, RecipeLoaded
from nb_agents.extensions.recipes.recipe import Recipe, is_recipe_text
from nb_agents.launch.work_kind import (
    CheckArguments,
    Diagram,
    FileReport,
    LoadedWork,
    ResumeArguments,
    WorkResume,
    WorkSource,
)
from nb_agents.tools.run_tools import RunTools
from nb_agents.turns.drivers import Driver, DriverDeps


class RecipeKind:
    """Loads, checks and resumes recipes. Slow modules are imported only when they are needed."""

    def reads(self, text: str) -> bool:
        """Return whether text is a recipe."""
        return is_recipe_text(text)

    def read(self, source: WorkSource | None) -> Recipe:
        """Return a recipe, loading it from its file if necessary."""
        if isinstance(source, str | os.PathLike):
            return Recipe.from_file(source)
        if not isinstance(source, Recipe):
            raise UserError(f"{source!r} is not a recipe. Use a file or an nb_agents.Recipe.")
        return source

    def stored_source(self, events: Sequence[Event]) -> Recipe:
        """Return the recipe that a turn was started with."""
        for event in events:
            if isinstance(event, RecipeLoaded) and not event.step:
                path = Path(event.path) if event.path else None
                return Recipe.from_text(event.text, "the recorded recipe", path=path, is_kept=True)
        raise UserError("The turn's journal does not contain its recipe.")

    def load(
        self, source: WorkSource | None, given: Mapping[str, Any], team: TeamSpec
    ) -> LoadedWork:
        """Load a recipe and check that it can run."""
        from nb_agents.extensions.recipes.recipe_launch import load

        return load(self.read(source), given, team)

    def would_run(self, source: WorkSource | None) -> tuple[str, ...]:
        """Return the commands of the recipe, and the recipes that it calls."""
        from nb_agents.extensions.recipes.recipe_launch import lines_of

        return tuple(lines_of([self.read(source)]))

    def project(self, source: WorkSource | None) -> Path | None:
        """Return the working directory if the recipe works in it."""
        return Path.cwd() if self.read(source).workspace == "project" else None

    def past_project(self, events: Sequence[Event]) -> Path | None:
        """Return the directory in which the recipe of a turn worked, if any."""
        from nb_agents.extensions.recipes.recipe_launch import fold_turns

        progress = fold_turns(events)
        is_there = progress.recipes[""].workspace == "project"
        return Path(progress.context["_project"]) if is_there else None

    def models(
        self, source: WorkSource, team: TeamSpec, values: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the models of the recipe's agent steps."""
        from nb_agents.extensions.recipes.agents import models_of

        return models_of(self.read(source), team, values)

    async def driver(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> Driver:
        """Return the executor that runs the recipe."""
        from nb_agents.extensions.recipes.recipe_driver import executor_for

        return await executor_for(deps, runners, run_tools, children)

    def plan_resume(self, arguments: ResumeArguments) -> WorkResume:
        """Return the progress of the recipe, and the steps that run next."""
        from nb_agents.extensions.recipes.recipe_launch import fold_turns, plan_resume, read_recipe

        events, initial_values, team = arguments.events, arguments.given, arguments.team
        for agent in arguments.again:
            raise UserError(
                f"The turn ran a recipe, so the agent {agent!r} can't be resumed alone."
            )
        changed = None
        if arguments.changed is not None and team is not None:
            values = {**fold_turns(events).context, **initial_values}
            changed = read_recipe(self.read(arguments.changed), values, team)
        return plan_resume(events, changed, initial_values, arguments.from_step)

    def report(self, arguments: CheckArguments) -> FileReport:
        """Return the report on a recipe, and on its team if one is given."""
        from nb_agents.extensions.recipes.recipe_report import report_of

        return report_of(Recipe.from_file(arguments.file), arguments)

    def findings(self, text: str, file: str) -> Iterator[Finding]:
        """Yield the problems in the text of a recipe, checked with a team of demo agents."""
        from nb_agents.extensions.recipes.recipe_report import findings_of

        return findings_of(Recipe.from_text(text, file, path=Path(file).absolute()))

    def diagram(self, file: str) -> Diagram:
        """Return the steps of a recipe as text and as a diagram."""
        from nb_agents.extensions.recipes.recipe_report import diagram_of

        return diagram_of(Recipe.from_file(file))

    def schema_class(self) -> type[Recipe]:
        """Return the class whose fields become the JSON schema of recipes."""
        return Recipe


RECIPE = RecipeKind()
