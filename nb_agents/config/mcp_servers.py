"""The MCP servers of a team file: addresses, security rules, and which tools are used.

``${VAR}`` in a server's spec is expanded when the server starts, not when the file is read. So the
journal can contain the spec without tokens. Servers without a ``security`` section are not
restricted.

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
from nb_agents.config.spec import Seconds, Spec, Texts, as_text, start_directory

Level = Literal["strict", "moderate", "permissive"]

TEAM = "nb_agents"
"""Our own name as an agent or tool of other programs. Such a team supports stops."""

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
    # MassGen treats any other value, such as "high", as "strict".
    return value if value in ("moderate", "permissive") else "strict"


_Level = Annotated[Level, BeforeValidator(_level)]


class McpEnvSecurity(Spec):
    """Which environment variables a file may pass to a server.

    Attributes:
        level: The strictness. By default, the server's `level`.
        mode: Whether `allowed_vars` or `denied_vars` applies.
        allowed_vars: The only permitted variables, in any letter case. An empty list permits all.
        denied_vars: Forbidden variables, instead of those of the level.
    """

    level: _Level | None = None
    mode: Literal["denylist", "allowlist"] = "denylist"
    allowed_vars: Texts = ()
    denied_vars: Texts | None = None

    def fault(self, names: Iterable[str], level: Level) -> str:
        """Return which variable is not permitted, as a clause, or "" if all are.

        Args:
            names: The variables' names.
            level: The server's strictness.
        """
        allowed, denied = _upper(self.allowed_vars), _upper(self._denied(self.level or level))
        for name in names:
            if self.mode == "allowlist" and allowed and name.upper() not in allowed:
                return f"its `security` does not allow the variable {name!r}"
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
        level: The strictness: which programs and variables are allowed.
        allowed_executables: The only allowed programs. By default, those of the level.
        allowed_hostnames: The only allowed hosts, which may also be local or private.
        allow_localhost: Whether the server may run on this machine.
        allow_private_ips: Whether the server may be in a private network.
        env: Which environment variables the file may pass to the server.
    """

    level: _Level = "strict"
    allowed_executables: Texts = ()
    allowed_hostnames: Texts = ()
    allow_localhost: bool = False
    allow_private_ips: bool = False
    env: McpEnvSecurity = McpEnvSecurity()

    def fault(self, command: str, url: str, variables: Iterable[str]) -> str:
        """Return why a server is not allowed, as a clause, or "" if it is.

        Args:
            command: The program of a stdio server, or "".
            url: The address of an HTTP server, or "".
            variables: Names of the environment variables that the server gets.

        Example:
            >>> McpSecurity().fault("/usr/bin/docker", "", ())
            "its `security` does not allow the program 'docker'"
        """
        fault = self._program_fault(command) if command else self._host_fault(url)
        return fault or self.env.fault(variables, self.level)

    def _program_fault(self, command: str) -> str:
        name = PurePath(command).name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        if self.allowed_executables:
            allowed = frozenset(each.lower() for each in self.allowed_executables)
        elif self.level == "permissive":
            return ""
        else:
            allowed = _PROGRAMS | _MORE_PROGRAMS[self.level]
        is_allowed = name.lower() in allowed
        return "" if is_allowed else f"its `security` does not allow the program {name!r}"

    def _host_fault(self, url: str) -> str:
        host = (urlsplit(url).hostname or "").lower()
        if self.allowed_hostnames:
            is_allowed = host in {each.lower() for each in self.allowed_hostnames}
        else:
            is_allowed = self._is_address_allowed(host)
        return "" if is_allowed else f"its `security` does not allow the host {host!r}"

    def _is_address_allowed(self, host: str) -> bool:
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
        raise ValueError("a closing quote is missing") from None


_Command = Annotated[tuple[str, ...], BeforeValidator(as_words)]
_Argument = Annotated[str, BeforeValidator(as_text)]
_Value = Annotated[SecretStr, BeforeValidator(as_text)]


class McpServerSpec(Spec):
    """An MCP server whose tools an agent gets.

    Attributes:
        name: The server's name, which is part of its tools' names: ``mcp__name__tool``.
        type: The transport.
        command: The program of a stdio server, with or without arguments. A string is split like a
            shell command.
        args: Additional arguments. Here and in the following keys, ``${cwd}`` is replaced by the
            agent's workspace. Agents with identical servers share one process.
        env: Additional environment variables.
        cwd: The server's working directory. By default, the directory in which the run is started.
            Relative paths are relative to that directory as well.
        url: The address of a streamable-http server.
        headers: HTTP headers of each request.
        authorization: The value of the header ``Authorization``. A token without a scheme is sent
            as a bearer token.
        allowed_tools: The names, short or full, of the only tools that are used. By default, all.
        exclude_tools: The names of tools that are not used.
        tool_timeout_sec: Time limit of a tool call in seconds.
        timeout: Another name for `tool_timeout_sec`, which has precedence.
        security: Security rules. By default, there are no restrictions.
    """

    name: str = Field(min_length=1, max_length=200)
    type: Literal["stdio", "streamable-http"] = "stdio"
    # Arguments and URLs may contain tokens.
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
    def _absolute_cwd(cls, value: Any) -> Any:
        # The journal contains this path, so that a resume from another directory uses the same one.
        is_relative = value is None or (isinstance(value, str) and value[:1] not in ("$", "~"))
        return str(start_directory() / (value or "")) if is_relative else value

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
            raise ValueError(
                f"MCP server {self.name!r} of type {self.type!r} needs the key `{needed}`"
            )
        return self

    @property
    def call_timeout_s(self) -> float | None:
        """Time limit of a tool call in seconds. None means the default of nb_agents."""
        return self.tool_timeout_sec or self.timeout

    @property
    def fault(self) -> str:
        """Why the team file does not allow the server to start, as a clause, or "" if it does."""
        section = ("agents", "*", "backend", "mcp_servers", "*")
        for foreign_key in foreign_keys(self, section):
            if foreign_key.sort == "withheld":
                return f"`{dotted(foreign_key.path[len(section) :])}` can't be enforced here"
        if self.security is None:
            return ""
        try:
            return self.security.fault("".join(self.command[:1]), self.url, self.env)
        except ValueError:  # a malformed IPv6 address
            return f"{self.url!r} is not a URL"


def is_storable(server: McpServerSpec) -> bool:
    """Return whether a server can be journalled: all possible secrets in it are ``${VAR}``."""
    values = [*server.env.values(), *server.headers.values(), server.authorization]
    return _is_open_url(server.url) and all(
        is_reference_or_harmless(value.get_secret_value()) for value in values if value
    )


def is_reference_or_harmless(text: str) -> bool:
    """Return whether a value can be written to the journal: a ``${VAR}``, switch or number."""
    # Text around a reference is not secret, as in "Bearer ${TOKEN}".
    return bool(VARIABLE.search(text) or _HARMLESS.fullmatch(text))


def _is_open_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return not url.password and not url.username and is_reference_or_harmless(url.query)
    except ValueError:  # a malformed IPv6 address
        return False
