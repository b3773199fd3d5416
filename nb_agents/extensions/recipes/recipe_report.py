"""Reports errors in a recipe, and what it would do, without running it."""

from __future__ import annotations

from collections.abc import Iterator

from nb_agents.config.file_findings import Finding, finding_of
from nb_agents.config.team import TeamSpec, team_from_options
from nb_agents.extensions.recipes.check import check
from nb_agents.extensions.recipes.diagram import mermaid
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_launch import (
    given_values,
    missing_values,
    recipe_notices,
)
from nb_agents.launch.estimate import check_lines
from nb_agents.launch.past_runs import estimate_of
from nb_agents.launch.start import demo_team
from nb_agents.launch.team_findings import load_team
from nb_agents.launch.team_report import report_on
from nb_agents.launch.work_kind import CheckArguments, Diagram, FileReport
from nb_agents.options import RunOptions


def report_of(recipe: Recipe, arguments: CheckArguments) -> FileReport:
    """Return the report on a recipe, and on its team if one is given."""
    config = arguments.config
    chosen = team_from_options(config, None, arguments.bundles) or demo_team()
    team = chosen if isinstance(chosen, TeamSpec) else load_team(chosen)
    team_report = report_on(team, connects=arguments.connects)
    checked = check(recipe, team)
    ignored = [finding_of(each, "warning") for each in recipe.warnings]
    lines = [
        f"{arguments.file}: {recipe.name} {recipe.version}",
        *checked.plan,
        *(f"Error {finding}" for finding in checked.faults),
        *(f"Note {finding}" for finding in (*ignored, *checked.warnings)),
    ]
    findings = [*checked.faults, *ignored, *checked.warnings]
    estimate = None
    if config:
        options = RunOptions(session_root=arguments.root)
        estimate = estimate_of(team, options, work=recipe.name)
        lines += [f"Team file {config}:", *team_report.lines, *check_lines(estimate)]
        lines.append(team_report.verdict)
        findings += team_report.findings
    if not team.missing_paths:
        lines += recipe_notices(recipe, team, given_values({}))
    missing = missing_values(recipe, {})
    can_start = not checked.faults and team_report.can_start
    lines += ["It can run." if can_start else "It can't run."]
    if missing:
        lines.append(missing)
        findings.append(Finding("info", "missing-value", missing))
    return FileReport(
        team_report.agents if config else (),
        tuple(dict.fromkeys(lines)),
        can_start,
        tuple(dict.fromkeys(findings)),
        estimate,
    )


def findings_of(recipe: Recipe) -> Iterator[Finding]:
    """Yield the problems of a recipe, checked with a team of demo agents."""
    checked = check(recipe, demo_team())
    yield from checked.faults
    yield from (finding_of(each, "warning") for each in recipe.warnings)
    yield from checked.warnings


def diagram_of(recipe: Recipe) -> Diagram:
    """Return the steps of a recipe as text and as a diagram."""
    return Diagram(check(recipe).plan, mermaid(recipe))
