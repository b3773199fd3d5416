"""The MCP servers of a team file: how each is reached, and which of its tools are taken.

``${VAR}`` in a server's spec is expanded when the server is started, not when the file is read:
so a journal can keep the spec and never holds a token.

Source: MassGen 0.1.97, `mcp_tools/client.py` (servers, filters, `timeout`),
`mcp_tools/security.py` (names), `backend/codex.py` (`tool_timeout_sec`).
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from nb_agents.config.foreign_keys import foreign_keys
from nb_agents.config.mcp_security import McpSecurity
from nb_agents.config.spec import Seconds, Spec, Texts

__all__ = ["McpServerSpec", "is_storable"]

_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*\}")
_HARMLESS = re.compile(r"(true|false|yes|no|on|off|\d{1,5})?", re.IGNORECASE)


def _as_text(value: Any) -> Any:
    """Write a variable's value as the shell would have it: YAML makes a number of ``PORT: 80``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _as_words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError:
        raise ValueError("a quote is open") from None


_Command = Annotated[tuple[str, ...], BeforeValidator(_as_words)]
_Argument = Annotated[str, BeforeValidator(_as_text)]
_Value = Annotated[SecretStr, BeforeValidator(_as_text)]


class McpServerSpec(Spec):
    """An MCP server whose tools an agent gets.

    Attributes:
        name: Stands in the tools' names: ``mcp__name__tool``.
        type: How it is talked to.
        command: The program of a stdio server, with arguments or without; a text is split as a
            shell would.
        args: Further arguments. ``${cwd}`` stands for the agent's workspace, here and in all that
            follows; agents with equal servers share one.
        env: Variables that it gets besides the ordinary ones.
        cwd: Its working directory; by default this process's.
        url: Where a streamable-http server lives.
        headers: Sent with each request.
        authorization: Sent as that header; a bare token as a bearer's.
        allowed_tools: The tools that are taken, by their own or their full names; None means all.
        exclude_tools: The tools that are left out.
        tool_timeout_sec: Seconds that a call of a tool may take; None leaves it to us.
        timeout: The same in fewer letters; the other one goes before.
        security: What it may be; None allows any.
    """

    name: str = Field(min_length=1, max_length=200)
    type: Literal["stdio", "streamable-http"] = "stdio"
    # Arguments and addresses may hold tokens.
    command: _Command = Field(default=(), repr=False)
    args: tuple[_Argument, ...] = Field(default=(), repr=False)
    env: dict[str, _Value] = Field(default_factory=dict)
    cwd: str | None = None
    url: str = Field(default="", repr=False)
    headers: dict[str, _Value] = Field(default_factory=dict)
    authorization: SecretStr | None = None
    allowed_tools: Texts | None = None
    exclude_tools: Texts = ()
    tool_timeout_sec: Seconds | None = None
    timeout: Seconds | None = None
    security: McpSecurity | None = None

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
        """Seconds that a call of a tool may take; None leaves it to us."""
        return self.tool_timeout_sec or self.timeout

    @property
    def fault(self) -> str:
        """Why it may not be started, by the team's file, or ""."""
        section = ("agents", "*", "backend", "mcp_servers", "*")
        for found in foreign_keys(self, section=section):
            if found.sort == "withheld":
                return f"`{found.name}` can't be kept here"
        if self.security is None:
            return ""
        try:
            return self.security.fault("".join(self.command[:1]), self.url, self.env)
        except ValueError:  # half an IPv6 address
            return f"{self.url!r} is no address"


def is_storable(server: McpServerSpec) -> bool:
    """Whether a server can be written down: what may be a secret in it is a ``${VAR}``."""
    values = [*server.env.values(), *server.headers.values(), server.authorization]
    return _is_open_url(server.url) and all(
        _is_reference_or_harmless(value.get_secret_value()) for value in values if value
    )


def _is_reference_or_harmless(text: str) -> bool:
    # With a reference in it, the rest is what goes around a secret: "Bearer ${TOKEN}".
    return bool(_REFERENCE.search(text) or _HARMLESS.fullmatch(text))


def _is_open_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return not url.password and not url.username and _is_reference_or_harmless(url.query)
    except ValueError:  # half an IPv6 address
        return False
