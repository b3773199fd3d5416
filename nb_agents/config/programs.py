"""Agents that are programs: which are known, what starts them, and how they are installed.

Each speaks the Agent Client Protocol over stdin and stdout; `nb_agents.agents.acp` talks to them.

Source: the packages' own pages; MassGen 0.1.97, `backend/capabilities.py` (names, variables).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from nb_agents.config.mcp_servers import as_words
from nb_agents.config.spec import Spec, as_text, start_place

_ASK_S = 10
_VERSION = re.compile(r"v(\d+)\.")


class ProgramKeys(Spec):
    """The keys of a backend whose agent is a program.

    Attributes:
        command: The program, by type ``acp`` with its arguments; by another type the place of that
            type's program, if it is not on the PATH.
        args: Further arguments.
        env: Additional environment variables of the program.
        use_my_settings: Whether the program works with your own login and settings. By default it
            has a home directory of its own in the session's directory.
    """

    command: Annotated[tuple[str, ...], BeforeValidator(as_words)] = Field(default=(), repr=False)
    args: tuple[Annotated[str, BeforeValidator(as_text)], ...] = Field(default=(), repr=False)
    env: dict[str, Annotated[SecretStr, BeforeValidator(as_text)]] = Field(default_factory=dict)
    use_my_settings: bool = False

    @field_validator("command", "args")
    @classmethod
    def _from_here(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The program works elsewhere, and a journal keeps its command.
        here = start_place()
        return tuple(str(here / word) if (here / word).is_file() else word for word in value)


class ProgramType(NamedTuple):
    """A program that is known by name.

    Attributes:
        command: It, and the arguments by which it speaks the protocol.
        package: The npm package that has it.
        node: The oldest major version of Node that it runs on; 0 when it brings its own.
        settings: Where a person's login and settings are, below the home directory.
        variables: Variables that may hold its key, best first.
    """

    command: tuple[str, ...]
    package: str
    node: int
    settings: tuple[str, ...]
    variables: tuple[str, ...]

    @property
    def install(self) -> str:
        """How it is installed, as a command line."""
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
"""Programs by the backend type that names them."""

ACP = "acp"
"""The backend type of any other program that speaks the protocol."""

ACP_TYPES = frozenset({ACP, *PROGRAM_TYPES})
"""All backend types whose agent is a program."""

TEAM = "nb_agents"
"""What a team calls itself where it is an agent or a tool of others: it stops as we do."""

NO_LIBRARY = "Agents that are programs need a library: `pip install 'nb_agents[acp]'` installs it."


def command_of(kind: str, keys: ProgramKeys) -> tuple[str, ...]:
    """Return the command line of an agent's program.

    Args:
        kind: One of `ACP_TYPES`.
        keys: Its keys.
    """
    known = PROGRAM_TYPES.get(kind)
    if known is None:
        return (*keys.command, *keys.args)
    return (*(keys.command or known.command[:1]), *known.command[1:], *keys.args)


def why_not_startable(kind: str, keys: ProgramKeys) -> str:
    """Return why an agent's program can't be started, with the remedy, or "".

    It asks Node for its version, which takes a moment the first time.

    Args:
        kind: One of `ACP_TYPES`.
        keys: Its keys.
    """
    command, known = command_of(kind, keys), PROGRAM_TYPES.get(kind)
    if find_spec("acp") is None:
        return NO_LIBRARY
    if not command:
        return "Type 'acp' needs a `command`, such as `command: my-agent --acp`."
    path = which(os.path.expanduser(command[0]))
    if path is None:
        how = f"Install it: {known.install}" if known else "Install it, or give its whole path"
        return f"{command[0]!r} is not installed. {how}."
    if known is None or not known.node or not _is_for_node(path):
        return ""
    node = which("node", path=os.pathsep.join([os.environ.get("PATH", ""), os.path.dirname(path)]))
    version = _version_of(node) if node else 0
    if version >= known.node:
        return ""
    found = f"is version {version}" if version else "is not installed"
    return (
        f"{command[0]!r} needs Node {known.node} or later, and Node {found} here. Install a newer "
        f"Node, and then the program again: {known.install} (npm had taken an old version of it)."
    )


def _is_for_node(path: str) -> bool:
    with Path(path).open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"node" in first


@cache
def _version_of(node: str) -> int:
    try:
        shown = subprocess.run([node, "-v"], capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.match(shown.stdout)
    return int(found[1]) if found else 0
