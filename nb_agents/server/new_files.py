"""What JupyterLab asks to begin a team: providers, the text of a first file, what is wrong with it.

No route here writes a file, and none runs what a text says.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from pathlib import PurePosixPath

from nb_agents.config.new_team import new_notebook, new_team
from nb_agents.config.team import TeamSpec
from nb_agents.launch.findings import findings
from nb_agents.models.found_providers import found_providers
from nb_agents.server.handlers import Handler, Route, allowed
from nb_agents.server.openapi import CheckedText, NewFile, Tool

TOOLS: dict[Tool, str] = {
    "enable_web_search": "Search the web",
    "enable_mcp_command_line": "Run commands in their workspaces",
    "enable_code_interpreter": "Run code at the provider, where it offers that",
}
"""The tools that are offered for a new team, by their keys."""


class New(Handler):
    """What a new team can be made of, and the text of its file."""

    @allowed("read")
    async def get(self) -> None:
        """Reply with the providers that can be used here, and the tools."""
        found = await to_thread(found_providers)
        tools = [{"key": key, "label": label} for key, label in TOOLS.items()]
        self.reply({"providers": [each._asdict() for each in found], "tools": tools})

    @allowed("read")
    async def post(self) -> None:
        """Reply with the text of a file."""
        body = self.body(NewFile)
        self.reply({"text": _new_text(body.kind, body.models, body.tools)})


def _new_text(kind: str, models: Sequence[str], tools: Sequence[str]) -> str:
    real = [each for each in models if each != "demo"]
    for each in real:
        TeamSpec.from_model(each)  # a mistake in it is told before a file has it
    return new_notebook(real) if kind == "notebook" else new_team(models, tools=tools)


class TextCheck(Handler):
    """What is wrong with a text that is being written."""

    @allowed("execute")
    async def post(self) -> None:
        """Reply with what a check finds."""
        body = self.body(CheckedText)
        named = PurePosixPath(body.file or "team.yaml")
        folder = await to_thread(self.places.folder, str(named.parent))
        found = await to_thread(findings, body.text, str(folder / named.name))
        self.reply({"findings": [each._asdict() for each in found]})


NEW_FILE_ROUTES: tuple[Route, ...] = ((r"/new", New), (r"/check", TextCheck))
