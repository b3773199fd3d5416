"""What an MCP server may be, by its ``security`` in a team file.

Source: MassGen 0.1.97, `mcp_tools/security.py`. Only what a file says is heeded: a server without
``security`` may be any.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from nb_agents.config.spec import Spec, Texts

__all__ = ["McpEnvSecurity", "McpSecurity"]

Level = Literal["strict", "moderate", "permissive"]

_PROGRAMS = frozenset(
    "python python3 py uv uvx pipx pip pip3 node npm npx yarn pnpm bun deno java ruby go rust "
    "cargo fastmcp srt mcp-server-filesystem sh bash zsh fish powershell pwsh cmd".split()
) | {f"python3.{minor}" for minor in range(8, 15)}
_MORE_PROGRAMS = {"moderate": frozenset({"git", "nodejs"}), "strict": frozenset[str]()}
_SUFFIXES = (".exe", ".bat", ".cmd", ".ps1")
_DENIED_VARIABLES = frozenset(
    {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONPATH", "PWD", "OLDPWD"}
)
_DENIED_WHEN_STRICT = frozenset({"PATH", "HOME", "USER", "USERNAME", "SHELL"})
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})


def _level(value: Any) -> Any:
    # MassGen takes any other word, such as "high", for the strictest.
    return value if value in ("moderate", "permissive") else "strict"


_Level = Annotated[Level, BeforeValidator(_level)]


class McpEnvSecurity(Spec):
    """Which variables a file may give a server.

    Attributes:
        level: How many are denied; None takes the server's.
        mode: Whether `allowed_vars` or `denied_vars` counts.
        allowed_vars: The only ones, in any case of letters; none allows all.
        denied_vars: Those that may not be given, instead of the level's.
    """

    level: _Level | None = None
    mode: Literal["denylist", "allowlist"] = "denylist"
    allowed_vars: Texts = ()
    denied_vars: Texts | None = None

    def fault(self, names: Iterable[str], level: Level) -> str:
        """Say which of some variables may not be given, or "".

        Args:
            names: The variables.
            level: The server's.
        """
        allowed, denied = _upper(self.allowed_vars), _upper(self._denied(self.level or level))
        for name in names:
            if self.mode == "allowlist" and allowed and name.upper() not in allowed:
                return f"its `security` allows no variable {name!r}"
            if self.mode == "denylist" and name.upper() in denied:
                return f"its `security` denies the variable {name!r}"
        return ""

    def _denied(self, level: Level) -> Iterable[str]:
        if self.denied_vars is not None:
            return self.denied_vars
        return _DENIED_VARIABLES | (_DENIED_WHEN_STRICT if level == "strict" else set())


class McpSecurity(Spec):
    """What a server may be.

    Attributes:
        level: Which programs and variables are allowed.
        allowed_executables: The only programs, instead of the level's; none leaves those.
        allowed_hostnames: Hosts that are allowed whatever else is not; with any, the only ones.
        allow_localhost: Whether it may be on this machine.
        allow_private_ips: Whether its address may be a private network's.
        env: Which variables it may be given.
    """

    level: _Level = "strict"
    allowed_executables: Texts = ()
    allowed_hostnames: Texts = ()
    allow_localhost: bool = False
    allow_private_ips: bool = False
    env: McpEnvSecurity = McpEnvSecurity()

    def fault(self, command: str, url: str, variables: Iterable[str]) -> str:
        """Say why a server may not be, or "".

        Args:
            command: The program of a stdio server, or "".
            url: The address of another, or "".
            variables: Names of the variables that it is given.

        Example:
            >>> McpSecurity().fault("/usr/bin/docker", "", ())
            "its `security` allows no program 'docker'"
        """
        found = self._of_program(command) if command else self._of_host(url)
        return found or self.env.fault(variables, self.level)

    def _of_program(self, command: str) -> str:
        name = PurePath(command).name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        if self.allowed_executables:
            allowed = frozenset(each.lower() for each in self.allowed_executables)
        elif self.level == "permissive":
            return ""
        else:
            allowed = _PROGRAMS | _MORE_PROGRAMS[self.level]
        return "" if name.lower() in allowed else f"its `security` allows no program {name!r}"

    def _of_host(self, url: str) -> str:
        host = (urlsplit(url).hostname or "").lower()
        if self.allowed_hostnames:
            is_allowed = host in {each.lower() for each in self.allowed_hostnames}
        else:
            is_allowed = self._may_be_at(host)
        return "" if is_allowed else f"its `security` allows no host {host!r}"

    def _may_be_at(self, host: str) -> bool:
        if host in _LOCAL_NAMES:
            return self.allow_localhost
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # a name
            return True
        if address.is_loopback and self.allow_localhost:
            return True
        return self.allow_private_ips or address.is_global


def _upper(names: Iterable[str]) -> set[str]:
    return {name.upper() for name in names}
