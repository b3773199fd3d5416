"""The MCP servers of a team file: addresses, security rules, and which tools are used.

``${VAR}`` in a server's spec is expanded when the server is started, not when the file is read:
so a journal can keep the spec and never holds a token. Only what a file says of ``security`` is
heeded: a server without it may be any.

Source: MassGen 0.1.97, `mcp_tools/client.py` (servers, filters, `timeout`),
`mcp_tools/security.py` (names, ``security``), `backend/codex.py` (`tool_timeout_sec`).
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from nb_agents.config.document import VARIABLE
from nb_agents.config.faults import dotted
from nb_agents.config.massgen_keys import foreign_keys
from nb_agents.config.spec import Seconds, Spec, Texts, as_text, start_place

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

_HARMLESS = re.compile(r"(true|false|yes|no|on|off|\d{1,5})?", re.IGNORECASE)


def _level(value: Any) -> Any:
    # MassGen takes any other word, such as "high", for the strictest.
    return value if value in ("moderate", "permissive") else "strict"


_Level = Annotated[Level, BeforeValidator(_level)]


class McpEnvSecurity(Spec):
    """Which variables a file may give a server.

    Attributes:
        level: The strictness; None means the server's default.
        mode: Whether `allowed_vars` or `denied_vars` counts.
        allowed_vars: The only ones, in any case of letters; none allows all.
        denied_vars: Those that may not be given, instead of the level's.
    """

    level: _Level | None = None
    mode: Literal["denylist", "allowlist"] = "denylist"
    allowed_vars: Texts = ()
    denied_vars: Texts | None = None

    def fault(self, names: Iterable[str], level: Level) -> str:
        """Return which variables may not be passed on, or "".

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
    """Security rules for a server.

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
        """Return why a server is not allowed, or "".

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


def as_words(value: Any) -> Any:
    """Split a command line as a shell would."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError:
        raise ValueError("a quote is open") from None


_Command = Annotated[tuple[str, ...], BeforeValidator(as_words)]
_Argument = Annotated[str, BeforeValidator(as_text)]
_Value = Annotated[SecretStr, BeforeValidator(as_text)]


class McpServerSpec(Spec):
    """An MCP server whose tools an agent gets.

    Attributes:
        name: Stands in the tools' names: ``mcp__name__tool``.
        type: How it is talked to.
        command: The program of a stdio server, with arguments or without; a text is split as a
            shell would.
        args: Further arguments. ``${cwd}`` stands for the agent's workspace, here and in all that
            follows; agents with equal servers share one.
        env: Additional environment variables.
        cwd: Its working directory; by default the one that the run is started in, from which a
            relative one is taken.
        url: The address of a streamable-http server.
        headers: Sent with each request.
        authorization: Sent as that header; a bare token as a bearer's.
        allowed_tools: The tools that are taken, by their own or their full names; None means all.
        exclude_tools: The tools that are left out.
        tool_timeout_sec: Time limit of a tool call, seconds; None means our default.
        timeout: Short for `tool_timeout_sec`, which has precedence.
        security: Security rules; None allows any server.
    """

    name: str = Field(min_length=1, max_length=200)
    type: Literal["stdio", "streamable-http"] = "stdio"
    # Arguments and addresses may hold tokens.
    command: _Command = Field(default=(), repr=False)
    args: tuple[_Argument, ...] = Field(default=(), repr=False)
    env: dict[str, _Value] = Field(default_factory=dict)
    cwd: str = Field(default="", validate_default=True)
    url: str = Field(default="", repr=False)
    headers: dict[str, _Value] = Field(default_factory=dict)
    authorization: SecretStr | None = None
    allowed_tools: Texts | None = None
    exclude_tools: Texts = ()
    tool_timeout_sec: Seconds | None = None
    timeout: Seconds | None = None
    security: McpSecurity | None = None

    @field_validator("cwd", mode="before")
    @classmethod
    def _from_here(cls, value: Any) -> Any:
        # A journal keeps it, and a resume from elsewhere works at the same place.
        is_relative = value is None or (isinstance(value, str) and value[:1] not in ("$", "~"))
        return str(start_place() / (value or "")) if is_relative else value

    @model_validator(mode="before")
    @classmethod
    def _url_is_http(cls, value: Any) -> Any:
        if isinstance(value, dict) and "type" not in value and "url" in value:
            return {**value, "type": "streamable-http"}
        return value

    @model_validator(mode="after")
    def _reachable(self) -> McpServerSpec:
        needed = "command" if self.type == "stdio" else "url"
        if not getattr(self, needed):
            raise ValueError(f"MCP server {self.name!r} of type {self.type!r} needs a `{needed}`")
        return self

    @property
    def call_timeout_s(self) -> float | None:
        """Time limit of a tool call, seconds; None means our default."""
        return self.tool_timeout_sec or self.timeout

    @property
    def fault(self) -> str:
        """Why it may not be started, by the team's file, or ""."""
        section = ("agents", "*", "backend", "mcp_servers", "*")
        for found in foreign_keys(self, section):
            if found.sort == "withheld":
                return f"`{dotted(found.path[len(section) :])}` can't be kept here"
        if self.security is None:
            return ""
        try:
            return self.security.fault("".join(self.command[:1]), self.url, self.env)
        except ValueError:  # half an IPv6 address
            return f"{self.url!r} is not an address"


def is_storable(server: McpServerSpec) -> bool:
    """Return whether a server can be stored: whatever may be a secret in it is a ``${VAR}``."""
    values = [*server.env.values(), *server.headers.values(), server.authorization]
    return _is_open_url(server.url) and all(
        is_reference_or_harmless(value.get_secret_value()) for value in values if value
    )


def is_reference_or_harmless(text: str) -> bool:
    """Return whether a possibly secret value can be stored: a ``${VAR}``, a switch or a number.

    Args:
        text: The value.
    """
    # With a reference in it, the rest is what goes around a secret: "Bearer ${TOKEN}".
    return bool(VARIABLE.search(text) or _HARMLESS.fullmatch(text))


def _is_open_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return not url.password and not url.username and is_reference_or_harmless(url.query)
    except ValueError:  # half an IPv6 address
        return False
