"""The verbs on team files and recipes."""

from __future__ import annotations

from collections.abc import Sequence

from nb_agents.launch.file_report import check_file
from nb_agents.launch.team_report import AgentReport
from nb_agents.verbs.verb import Caller, Outcome


def check(
    file: str,
    caller: Caller,
    *,
    config: str | None = None,
    bundles: Sequence[str] = (),
    connect: bool = False,
) -> Outcome:
    """Check a team file or a recipe without running it."""
    found = check_file(file, config, bundles, connects=connect)
    agents = [agent._asdict() for agent in found.agents]
    facts = {"can_start": found.can_start, "agents": agents, "lines": found.lines}
    lines = "\n".join(found.lines)
    return Outcome(lines, facts, AgentReport._fields, found.agents, is_ok=found.can_start)


def plan(file: str, caller: Caller) -> Outcome:
    """Show what a recipe would do, without running it."""
    from nb_agents.config.recipe import Recipe  # what no team needs
    from nb_agents.recipes.check import check as checked
    from nb_agents.recipes.diagram import mermaid

    recipe = Recipe.from_file(file)
    lines, drawn = checked(recipe).plan, mermaid(recipe)
    facts = {"lines": lines, "mermaid": drawn}
    return Outcome("\n".join(lines), facts, markdown=f"```mermaid\n{drawn}\n```")
