"""The commands on what is on disk: team files, recipes, sessions and sweeps."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nb_agents.cli.application import (
    COMPLETE,
    FAILED,
    Bundles,
    Config,
    File,
    Json,
    app,
)
from nb_agents.cli.printing import say, say_json, table
from nb_agents.launch.file_report import check_file
from nb_agents.launch.team_report import AgentReport


@app.command("check")
def check(
    file: File,
    config: Config = None,
    bundles: Bundles = None,
    connects: Annotated[
        bool, typer.Option("--connect", help="Load custom tools and start MCP servers, to try.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a team file or a recipe without running it; exits with 1 if it can't start."""
    told = check_file(file, config, bundles or [], connects=connects)
    if as_json:
        agents = [agent._asdict() for agent in told.agents]
        say_json({"can_start": told.can_start, "agents": agents, "lines": told.lines})
    else:
        if told.agents:
            table(AgentReport._fields, told.agents, False, "")
        say("\n".join(told.lines))
    sys.exit(COMPLETE if told.can_start else FAILED)


@app.command("plan")
def plan(file: File, as_json: Json = False) -> None:
    """Show what a recipe would do, without running it; --json has it as a Mermaid diagram, too."""
    from nb_agents.config.recipe import Recipe
    from nb_agents.recipes.check import check
    from nb_agents.recipes.diagram import mermaid

    recipe = Recipe.from_file(file)
    lines = check(recipe).plan
    if as_json:
        say_json({"lines": lines, "mermaid": mermaid(recipe)})
    else:
        say("\n".join(lines))
