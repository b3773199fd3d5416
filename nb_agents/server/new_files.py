"""The routes for new team files in JupyterLab: list options, create the text, and check it.

These routes do not write files or run anything in the text.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from pathlib import PurePosixPath

from nb_agents.config.new_team import NewAgent, new_notebook, new_team
from nb_agents.config.team import TeamSpec
from nb_agents.launch.findings import findings
from nb_agents.models.found_providers import found_providers, offered_types
from nb_agents.server.handler import Handler, handles_route
from nb_agents.server.openapi import CheckedText, NewFile, Tool

TOOLS: dict[Tool, str] = {
    "enable_web_search": "Search the web",
    "enable_mcp_command_line": "Run commands in their workspaces",
    "enable_code_interpreter": "Run code at the provider, if the provider offers that",
}
"""The labels of the tools in the form for a new team, by key."""


@handles_route("get_new_options")
async def get_new_options(request: Handler) -> None:
    """Reply with the providers that can be used here, and the tools."""
    providers = await to_thread(found_providers)
    tools = [{"key": key, "label": label} for key, label in TOOLS.items()]
    request.reply(
        {
            "providers": [each._asdict() for each in providers],
            "types": [each._asdict() for each in offered_types()],
            "tools": tools,
        }
    )


@handles_route("make_file")
async def make_file(request: Handler) -> None:
    """Reply with the text of a new file."""
    body = request.body(NewFile)
    asked = [NewAgent(**each.model_dump()) for each in body.agents]
    agents = asked or [NewAgent(model) for model in body.models]
    request.reply({"text": _new_text(body.kind, agents, body.tools)})


def _new_text(kind: str, agents: Sequence[NewAgent], tools: Sequence[str]) -> str:
    real = [each.model for each in agents if each.model != "demo"]
    for each in real:
        TeamSpec.from_model(each)  # raises an error for an invalid model
    if kind == "notebook":
        return new_notebook(real)
    text = new_team(agents, tools=tools)
    TeamSpec.from_text(text, "team.yaml")  # raises an error for an invalid name or address
    return text


@handles_route("check_text")
async def check_text(request: Handler) -> None:
    """Reply with the findings in a text."""
    body = request.body(CheckedText)
    named = PurePosixPath(body.file or "team.yaml")
    folder = await to_thread(request.places.folder, str(named.parent))
    findings_found = await to_thread(findings, body.text, str(folder / named.name))
    request.reply({"findings": [each.facts() for each in findings_found]})
