"""Which tools an agent has, and which of its calls a person decides on: MassGen's keys and ours.

``${VAR}`` in a server's spec is expanded when the server is started, not when the file is read:
so a journal can keep the spec and never holds a token.

Source: MassGen 0.1.97, `mcp_tools/client.py` (servers, filters, `timeout`),
`mcp_tools/security.py` (names), `backend/codex.py` (`tool_timeout_sec`),
`backend/base_with_custom_tool_and_mcp.py` (`_register_custom_tools`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nb_agents.config.secret_names import MIN_SECRET_CHARS, is_secret_name
from nb_agents.config.spec import Seconds, Spec

__all__ = [
    "CustomFunction",
    "CustomToolSpec",
    "McpServerSpec",
    "ToolAction",
    "ToolKeys",
    "ToolRule",
    "is_storable",
    "rule_for",
]

ToolAction = Literal["ask", "allow", "deny"]

_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*\}")
_HARMLESS = re.compile(r"(true|false|yes|no|on|off|\d{1,5})?", re.IGNORECASE)
_WORDS = re.compile(r"[a-z]+([ _][a-z]+)*")

T = TypeVar("T")


def _as_text(value: Any) -> Any:
    """Write a variable's value as the shell would have it: YAML makes a number of ``PORT: 80``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _as_mappings(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


def _as_words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError:
        raise ValueError("a quote is open") from None


_Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
_Presets = Annotated[tuple[dict[str, JsonValue], ...], BeforeValidator(_as_mappings)]
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
    """

    name: str = Field(min_length=1, max_length=200)
    type: Literal["stdio", "streamable-http"] = "stdio"
    command: _Command = ()
    args: tuple[_Argument, ...] = ()
    env: dict[str, _Value] = Field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: dict[str, _Value] = Field(default_factory=dict)
    authorization: SecretStr | None = None
    allowed_tools: _Names | None = None
    exclude_tools: _Names = ()
    tool_timeout_sec: Seconds | None = None
    timeout: Seconds | None = None

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

    def takes(self, *names: str) -> bool:
        """Whether a tool is taken, by any of its names."""
        wanted = self.allowed_tools is None or any(n in self.allowed_tools for n in names)
        return wanted and not any(n in self.exclude_tools for n in names)


class CustomFunction(NamedTuple):
    """A function of a file that becomes a tool.

    Attributes:
        function: Its name in the file.
        name: The tool's name.
        description: What a model is told of it; "" takes the function's docstring.
        preset: Arguments that it is given, by their names; a model neither sees nor gives them.
    """

    function: str
    name: str
    description: str
    preset: Mapping[str, JsonValue] = MappingProxyType({})


class CustomToolSpec(Spec):
    """Functions of a Python file that an agent gets as tools.

    Attributes:
        path: The file. A relative one is looked for beside the team's file, then in the working
            directory; "" is MassGen's for a tool of its own.
        function: Their names in the file.
        name: The tools' names, one for each function; else they are named like the functions.
        description: What a model is told of them, one for all or one for each.
        preset_args: Arguments that they are given, one mapping for all or one for each. A journal
            keeps them, so they can hold no secret.
    """

    path: str = ""
    function: _Names = Field(min_length=1)
    name: _Names = ()
    description: _Names = ()
    preset_args: _Presets = ()

    @field_validator("preset_args")
    @classmethod
    def _no_secret(
        cls, value: tuple[dict[str, JsonValue], ...]
    ) -> tuple[dict[str, JsonValue], ...]:
        if found := next(_secret_names(value), None):
            raise ValueError(
                f"{found!r} may be a secret, and what is preset is kept in the journal: "
                "let the function read it from the environment"
            )
        return value

    @model_validator(mode="after")
    def _presets_fit(self) -> CustomToolSpec:
        # A preset that went astray would be asked of the model.
        given, count = len(self.preset_args), len(self.function)
        if given not in (0, 1, count):
            raise ValueError(
                f"{count} functions have {given} `preset_args`: give one mapping for all or one "
                "for each"
            )
        return self

    @field_validator("path")
    @classmethod
    def _beside_the_file(cls, value: str, info: ValidationInfo) -> str:
        # Absolute, because a journal keeps the spec without the place of the team's file.
        folder: Path | None = (info.context or {}).get("folder")
        return str(folder / value) if folder and value and _is_there(folder / value) else value

    @property
    def functions(self) -> tuple[CustomFunction, ...]:
        """The functions, each with what its tool is called, said to be, and given."""
        count = len(self.function)
        names = self.name if len(self.name) == count else self.function
        texts = _one_each(self.description, count, "")
        presets: tuple[dict[str, JsonValue], ...] = _one_each(self.preset_args, count, {})
        return tuple(map(CustomFunction, self.function, names, texts, presets))


class ToolRule(Spec):
    """What is done with the calls of some tools.

    Attributes:
        match: A tool's name or a pattern: ``mcp__*``.
        action: "ask" a person, "allow", or "deny".
        on_denial: What a person's denial does: the model is told, or the run stops.
    """

    match: str = Field(min_length=1)
    action: ToolAction
    on_denial: Literal["tell", "stop"] = "tell"


class ToolKeys(Spec):
    """The keys of a backend that say which tools its agent has.

    Attributes:
        mcp_servers: MCP servers, as a list or by name.
        custom_tools: Functions of Python files.
        enable_mcp_command_line: Whether it may run commands.
        command_line_execution_mode: Where: only "local" is to be had here.
        exclude_tools: Tools that it does not get, by name.
        data_store: Whether it shares the session's data store.
        tool_policy: Which of its calls need a person; the first rule that fits counts.
        can_call: Agents that it may call as a tool: names, or "*" for all others. Each call is
            worked on by a fresh one of that name, never by the one that is a member of the team.
    """

    mcp_servers: tuple[McpServerSpec, ...] = ()
    custom_tools: tuple[CustomToolSpec, ...] = ()
    enable_mcp_command_line: bool = False
    command_line_execution_mode: str = "local"
    exclude_tools: _Names = ()
    data_store: bool = False
    tool_policy: tuple[ToolRule, ...] = ()
    can_call: _Names = ()

    @field_validator("mcp_servers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        named = isinstance(value.get("name"), str)  # one server, without a list around it
        return [value] if named else [_with_name(spec, name) for name, spec in value.items()]

    @property
    def runs_commands(self) -> bool:
        """Whether its agent may run commands here; never instead of a container asked for."""
        return self.enable_mcp_command_line and self.command_line_execution_mode == "local"

    @property
    def tool_notices(self) -> tuple[str, ...]:
        """What was asked for and is not to be had here, in sentences."""
        if not self.enable_mcp_command_line or self.runs_commands:
            return ()
        mode = self.command_line_execution_mode
        return (
            f"Commands can't run in {mode!r} here, so there is no command line. Use "
            f"`command_line_execution_mode: local` to run them on this machine.",
        )


def rule_for(name: str, rules: Iterable[ToolRule]) -> ToolRule | None:
    """Give the first rule that fits a tool's name; None allows its calls.

    Args:
        name: The tool's name.
        rules: Read in order.

    Example:
        >>> rule_for("mcp__shop__buy", [ToolRule(match="mcp__*", action="ask")]).action
        'ask'
    """
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)


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


def _is_there(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # in a directory that may not be looked into
        return False


def _one_each(values: tuple[T, ...], count: int, other: T) -> tuple[T, ...]:
    """Give one value to each: its own, or the one for all, or else another."""
    shared = values * count if len(values) == 1 else values
    return shared if len(shared) == count else (other,) * count


def _secret_names(value: Any, name: str = "") -> Iterator[str]:
    """Give the names of texts within a value that may be secrets."""
    match value:
        case str() if len(value) >= MIN_SECRET_CHARS:
            if _may_be_secret(name, value):
                yield name
        case dict():
            for key, each in value.items():
                yield from _secret_names(each, name if is_secret_name(name) else key)
        case list() | tuple():
            for each in value:
                yield from _secret_names(each, name)


def _may_be_secret(name: str, text: str) -> bool:
    # A key may be one of a mapping: `sort_key: created_at`.
    is_word = name.lower().endswith("key") and _WORDS.fullmatch(text)
    return is_secret_name(name) and not is_word or any(known in text for known in _known_secrets())


def _known_secrets() -> Iterator[str]:
    """Give the environment's: a ``${VAR}`` of a file's other places is expanded by now."""
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET_CHARS and is_secret_name(name):
            yield value


def _with_name(spec: Any, name: Any) -> Any:
    return {"name": name, **spec} if isinstance(spec, dict) else spec
