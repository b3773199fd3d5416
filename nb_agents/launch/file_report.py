"""Checking a team file or a recipe: everything that a start would report, without starting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nb_agents.config.team import TeamSpec, chosen_team
from nb_agents.errors import TaskError
from nb_agents.launch.start import demo_team
from nb_agents.launch.team_report import CAN_START, AgentReport, report_on

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe


@dataclass(frozen=True)
class FileReport:
    """A report on a team file or a recipe.

    Attributes:
        agents: The team's agents, if there is a team.
        lines: Lines for the user; the last one states whether it can start.
        can_start: Whether it can start.
    """

    agents: tuple[AgentReport, ...]
    lines: tuple[str, ...]
    can_start: bool


def check_file(
    file: str, config: str | None = None, bundles: Sequence[str] = (), *, connects: bool = False
) -> FileReport:
    """Return a report on a file, without running it.

    Args:
        file: A team file, or a recipe.
        config: For a recipe: its team file.
        bundles: For a recipe: directories of bundles, each as ``NAME=DIR``.
        connects: Whether to load custom tools and start MCP servers, to test them.

    Raises:
        ConfigError: A file can't be read.
        TaskError: A bundle is given without a recipe.
    """
    from nb_agents.config.recipe import Recipe, is_recipe

    if is_recipe(file):
        return _of_recipe(Recipe.from_file(file), file, config, bundles, connects)
    if bundles:
        raise TaskError("--bundle says where a recipe's bundles are: it goes with a recipe.")
    found = report_on(TeamSpec.from_file(file), connects=connects)
    can_start = found.verdict == CAN_START
    return FileReport(found.agents, (file, *found.lines, found.verdict), can_start)


def _of_recipe(
    recipe: Recipe, file: str, config: str | None, bundles: Sequence[str], connects: bool
) -> FileReport:
    from nb_agents.launch.recipes import given_values, missing_values, recipe_notices
    from nb_agents.recipes.check import check

    chosen = chosen_team(config, None, bundles) or demo_team()
    team = chosen if isinstance(chosen, TeamSpec) else TeamSpec.from_file(chosen)
    team_report, found = report_on(team, connects=connects), check(recipe, team)
    lines = [
        f"{file}: {recipe.name} {recipe.version}",
        *found.plan,
        *(f"Fault {finding}" for finding in found.faults),
        *(f"Note {finding}" for finding in (*recipe.warnings, *found.warnings)),
    ]
    if config:
        lines += [f"Its team {config}:", *team_report.lines, team_report.verdict]
    if not team.missing_paths:
        lines += recipe_notices(recipe, team, given_values({}))
    missing = missing_values(recipe, {})
    can_start = not found.faults and team_report.verdict == CAN_START
    lines += ["It can run." if can_start else "It can't run."]
    lines += [missing] if missing else []
    return FileReport(team_report.agents if config else (), tuple(dict.fromkeys(lines)), can_start)
