"""The known external agents, their command lines, and how to install them.

They speak the Agent Client Protocol on stdin and stdout. The package `acp` is the client.

Source: the packages' pages; MassGen 0.1.97, `backend/capabilities.py` (names, variables).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import which
from typing import NamedTuple

from nb_agents.config.external_agent_keys import ExternalAgentKeys
from nb_agents.config.extras import missing_extra

_ASK_S = 10
_VERSION = re.compile(r"v(\d+)\.")


class ProgramType(NamedTuple):
    """An external agent with its own backend type.

    Attributes:
        command: The program and the arguments that select the protocol.
        package: The program's npm package.
        node: The minimum major version of Node, or 0 if the program does not need Node.
        settings: Paths of the user's login and settings, relative to the home directory.
        variables: Environment variables with its key, in order of preference.
    """

    command: tuple[str, ...]
    package: str
    node: int
    settings: tuple[str, ...]
    variables: tuple[str, ...]

    @property
    def install(self) -> str:
        """The command line that installs the program."""
        return f"npm install -g {self.package}"


PROGRAM_TYPES: Mapping[str, ProgramType] = {
    "claude_code": ProgramType(
        ("claude-agent-acp",),
        "@agentclientprotocol/claude-agent-acp",
        22,
        (".claude", ".claude.json"),
        ("ANTHROPIC_API_KEY",),
    ),
    "codex": ProgramType(
        ("codex-acp",), "@agentclientprotocol/codex-acp", 20, (".codex",), ("OPENAI_API_KEY",)
    ),
    "copilot": ProgramType(
        ("copilot", "--acp", "--no-auto-update"),
        "@github/copilot",
        22,
        (".copilot", ".config/github-copilot", ".config/gh"),
        ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
    ),
    "gemini_cli": ProgramType(
        ("gemini", "--acp"),
        "@google/gemini-cli",
        20,
        (".gemini",),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    "opencode": ProgramType(
        ("opencode", "acp"),
        "opencode-ai",
        0,
        (".config/opencode", ".local/share/opencode", ".local/state/opencode", ".cache/opencode"),
        ("OPENAI_API_KEY",),
    ),
    "qwen_code": ProgramType(
        ("qwen", "--acp", "--auth-type", "openai"),
        "@qwen-code/qwen-code",
        22,
        (".qwen",),
        ("OPENAI_API_KEY",),
    ),
}
"""The known external agents, by backend type."""

ACP = "acp"
"""The backend type of any other ACP agent."""

ACP_TYPES = frozenset({ACP, *PROGRAM_TYPES})
"""All backend types of external agents."""

NO_LIBRARY = "External agents need a library."


def command_of(kind: str, keys: ExternalAgentKeys) -> tuple[str, ...]:
    """Return the command line of an external agent.

    Args:
        kind: One of `ACP_TYPES`.
        keys: The agent's backend.
    """
    program_type = PROGRAM_TYPES.get(kind)
    if program_type is None:
        return (*keys.command, *keys.args)
    return (*(keys.command or program_type.command[:1]), *program_type.command[1:], *keys.args)


def start_fault(kind: str, keys: ExternalAgentKeys) -> str:
    """Return why an external agent can't be started, with the remedy, or "".

    It runs Node once to get its version, which takes a moment.

    Args:
        kind: One of `ACP_TYPES`.
        keys: The agent's backend.
    """
    command, program_type = command_of(kind, keys), PROGRAM_TYPES.get(kind)
    if remedy := missing_extra("acp"):
        return f"{NO_LIBRARY} {remedy}"
    if not command:
        return "Type 'acp' needs a `command`, such as `command: my-agent --acp`."
    path = which(os.path.expanduser(command[0]))
    if path is None:
        how = (
            f"Install it: {program_type.install}"
            if program_type
            else "Install it, or write its full path"
        )
        return f"{command[0]!r} is not installed. {how}."
    if program_type is None or not program_type.node or not _is_for_node(path):
        return ""
    node = which("node", path=os.pathsep.join([os.environ.get("PATH", ""), os.path.dirname(path)]))
    version = _version_of(node) if node else 0
    if version >= program_type.node:
        return ""
    problem = f"is version {version}" if version else "is not installed"
    return (
        f"{command[0]!r} needs Node {program_type.node} or later, but Node {problem}. "
        f"Install a newer Node, then reinstall the program, because npm chose an old version: "
        f"{program_type.install}"
    )


def _is_for_node(path: str) -> bool:
    with Path(path).open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"node" in first


@cache
def _version_of(node: str) -> int:
    try:
        result = subprocess.run([node, "-v"], capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.match(result.stdout)
    return int(match[1]) if match else 0
