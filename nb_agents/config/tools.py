"""Which tools an agent has, and which of its calls a person decides on: MassGen's keys and ours.

Source: MassGen 0.1.97, `backend/base_with_custom_tool_and_mcp.py` (`_register_custom_tools`),
`mcp_tools/client.py` (which lists of tools count).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.config.model_keys import WireFormat
from nb_agents.config.permissions import CommandLimits, PermissionSpec, as_pattern
from nb_agents.config.secret_names import is_distinctive, is_secret_name
from nb_agents.config.spec import Spec, Texts, as_tuple, beside_the_file

ToolAction = Literal["ask", "allow", "deny"]

_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MIN_PRESET_CHARS = 8
"""A shorter preset is a placeholder, whatever it is called."""
_WORDS = re.compile(r"[a-z]+([ _][a-z]+)*")

T = TypeVar("T")

_MASSGENS_NAMES: Mapping[str, tuple[str, ...]] = {
    "list_files": ("list_directory", "list_directory_with_sizes", "directory_tree"),
    "read_file": ("read_text_file", "read_multiple_files"),
    "write_file": ("mcp__filesystem__write_file",),
    "edit_file": ("mcp__filesystem__edit_file",),
    "delete_file": ("delete_files_batch", "mcp__workspace_tools__delete_file"),
    "run_command": ("execute_command", "mcp__command_line__execute_command"),
    "run_python": ("execute_command", "mcp__command_line__execute_command"),
}
"""What MassGen calls the tools that do what ours do."""
_NOT_WRITING = frozenset({"list_files", "read_file", "delete_file"})


def _as_mappings(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


def _pattern_text(text: str) -> str:
    as_pattern(text)
    return text


def _variable_name(value: str) -> str:
    if not _VARIABLE_NAME.fullmatch(value):
        # What was written may be NAME=secret.
        raise ValueError("it must be a variable's name; its value comes from the environment")
    return value


_VariableName = Annotated[str, AfterValidator(_variable_name)]
_VariableNames = Annotated[tuple[_VariableName, ...], BeforeValidator(as_tuple)]
_Pattern = Annotated[str, AfterValidator(_pattern_text)]
_Patterns = Annotated[tuple[_Pattern, ...], BeforeValidator(as_tuple)]
_Presets = Annotated[tuple[dict[str, JsonValue], ...], BeforeValidator(_as_mappings)]


class CustomFunction(NamedTuple):
    """A function of a file that becomes a tool.

    Attributes:
        function: Its name in the file.
        name: The tool's name.
        description: Its description for models; "" uses the function's docstring.
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
        description: Their description for models, one for all or one for each.
        preset_args: Arguments that they are given, one mapping for all or one for each. A journal
            keeps them, so they can hold no secret.
    """

    path: Annotated[str, AfterValidator(beside_the_file)] = ""
    function: Texts = Field(min_length=1)
    name: Texts = ()
    description: Texts = ()
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
        command_line_allowed_commands: Regular expressions, one of which must fit the beginning of
            each command; none allows all.
        command_line_blocked_commands: Regular expressions for the beginnings of commands that it
            may not run.
        allowed_tools: The tools that it gets, by name; None means all that it is given.
        sandbox: Whether its commands are confined where bubblewrap is installed. ``off`` is a
            person's word that they may do what the user may.
        limits: What its commands may use of the machine.
        pass_env: Names of variables that its commands get besides the ordinary ones.
        exclude_tools: Tools that it does not get, by name.
        exclude_file_operation_mcps: Whether, of the tools for files, it only gets those that write.
        data_store: Whether it shares the session's data store.
        tool_policy: Which of its calls need a person; the first rule that fits counts.
        permissions: MassGen's rules for its calls; they hold besides `tool_policy`.
        can_call: Agents that it may call as a tool: names, or "*" for all others. Each call is
            worked on by a fresh one of that name, never by the one that is a member of the team.
        enable_web_search: Whether it searches the web: its provider for it, or where that has no
            search, it by an ordinary tool.
        enable_code_interpreter, enable_code_execution: Whether its provider runs code for it; two
            names of one thing.
        enable_image_generation: Whether its provider makes images for it: files of its workspace,
            below ``images``.
    """

    mcp_servers: tuple[McpServerSpec, ...] = ()
    custom_tools: tuple[CustomToolSpec, ...] = ()
    enable_mcp_command_line: bool = False
    command_line_execution_mode: str = "local"
    command_line_allowed_commands: _Patterns = ()
    command_line_blocked_commands: _Patterns = ()
    allowed_tools: Texts | None = None
    sandbox: bool = True
    limits: CommandLimits = CommandLimits()
    pass_env: _VariableNames = ()
    exclude_tools: Texts = ()
    exclude_file_operation_mcps: bool = False
    data_store: bool = False
    tool_policy: tuple[ToolRule, ...] = ()
    permissions: PermissionSpec | None = None
    can_call: Texts = ()
    enable_web_search: bool = False
    enable_code_interpreter: bool = False
    enable_code_execution: bool = False
    enable_image_generation: bool = False

    @field_validator("mcp_servers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        named = isinstance(value.get("name"), str)  # one server, without a list around it
        return [value] if named else [_with_name(spec, name) for name, spec in value.items()]

    @field_validator("permissions", mode="before")
    @classmethod
    def _switched(cls, value: Any) -> Any:
        return ({} if value else None) if isinstance(value, bool) else value

    @property
    def rules(self) -> PermissionSpec | None:
        """`permissions`, where they are in force."""
        return self.permissions if self.permissions and self.permissions.enabled else None

    @property
    def searches_web(self) -> bool:
        """Whether it searches the web by a tool of ours; of a bare `ToolKeys` that is not known."""
        return False

    @property
    def chosen_tools(self) -> tuple[str, ...] | None:
        """The tools that `tool_choice` leaves it; of a bare `ToolKeys`, None for all."""
        return None

    def takes(self, *names: str, server: McpServerSpec | None = None) -> bool:
        """Return whether the agent gets a tool.

        Args:
            names: The tool's names: its own and its full one.
            server: The MCP server that it is of; a list of the server's goes before the agent's.
        """
        known = {*names, *(other for name in names for other in _MASSGENS_NAMES.get(name, ()))}
        lists = [self.chosen_tools, self.allowed_tools]
        excluded = {*self.exclude_tools, *(server.exclude_tools if server else ())}
        if server and server.allowed_tools is not None:
            lists[1] = server.allowed_tools
        elif self.exclude_file_operation_mcps and known & _NOT_WRITING:
            return False
        return not known & excluded and all(each is None or known & {*each} for each in lists)


takes_all = ToolKeys().takes
"""`ToolKeys.takes` of an agent of whose tools nothing is said."""


def rule_for(name: str, rules: Iterable[ToolRule]) -> ToolRule | None:
    """Return the first rule that matches a tool's name; None allows its calls.

    Args:
        name: The tool's name.
        rules: Read in order.

    Example:
        >>> rule_for("mcp__shop__buy", [ToolRule(match="mcp__*", action="ask")]).action
        'ask'
    """
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)


def _one_each(values: tuple[T, ...], count: int, other: T) -> tuple[T, ...]:
    """Return a value for each: its own, or the one for all, or else another."""
    shared = values * count if len(values) == 1 else values
    return shared if len(shared) == count else (other,) * count


def _secret_names(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of texts within a value that may be secrets."""
    match value:
        case str() if len(value) >= _MIN_PRESET_CHARS:
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
    """Yield the environment's secrets: a ``${VAR}`` elsewhere in the file is expanded by now."""
    for name, value in os.environ.items():
        if is_secret_name(name) and is_distinctive(value):
            yield value


def _with_name(spec: Any, name: Any) -> Any:
    return {"name": name, **spec} if isinstance(spec, dict) else spec


NativeTool = Literal["web_search", "code_execution", "image_generation"]
"""As pydantic-ai names them."""

NATIVE_KEYS: Mapping[str, NativeTool] = {
    "enable_web_search": "web_search",
    "enable_code_interpreter": "code_execution",
    "enable_code_execution": "code_execution",
    "enable_image_generation": "image_generation",
}

OFFERED: Mapping[WireFormat, frozenset[NativeTool]] = {
    "openai responses": frozenset({"web_search", "code_execution", "image_generation"}),
    "anthropic": frozenset({"web_search", "code_execution"}),
    "google": frozenset({"web_search", "code_execution"}),
}
_DOES: Mapping[NativeTool, str] = {
    "web_search": "read_url",
    "code_execution": "command",
    "image_generation": "write_file",
}
"""The action, as permissions name it, that a provider's tool comes to."""

_SEARCH_EXTRA = ". `pip install 'nb_agents[search]'` gives any model an ordinary one"

_TOO_OLD = re.compile(r"gemini-[12]\b|gemini-pro$|gemma", re.IGNORECASE)


class Missing(NamedTuple):
    """A tool that was asked for and is not given.

    Attributes:
        key: By which it was.
        why: Why not, after "because".
    """

    key: str
    why: str


def judged(
    keys: ToolKeys, kind: str, model: str, offered: frozenset[NativeTool]
) -> Iterator[NativeTool | Missing]:
    """Yield each tool that was asked for: given to the agent, or missing and why.

    Args:
        keys: The agent's backend.
        kind: Its type.
        model: Its model.
        offered: What its server has.
    """
    for key, tool in NATIVE_KEYS.items():
        is_ordinary = tool == "web_search" and needs_ordinary_search(keys, kind, model, offered)
        if getattr(keys, key) and not (is_ordinary and has_search_library()):
            why = _not_to_be_had(tool, kind, model, offered) or why_withheld(keys, key, tool)
            why += _SEARCH_EXTRA if is_ordinary else ""
            yield Missing(key, why) if why else tool


def needs_ordinary_search(
    keys: ToolKeys, kind: str, model: str, offered: frozenset[NativeTool]
) -> bool:
    """Return whether an agent searches the web by a tool of ours; `judged` decides what it gets.

    Of a model made in Python nothing is known but that it calls tools.
    """
    wants = keys.enable_web_search and keys.takes("web_search")
    calls_tools = not (kind == "gemini" and is_for_images(model))
    return wants and calls_tools and bool(_not_to_be_had("web_search", kind, model, offered))


def is_for_images(model: str) -> bool:
    """Return whether a model of Google's makes images, and calls no tools of an agent's.

    Source: pydantic-ai 2.68, `profiles/google.py`.
    """
    return "image" in model


@cache
def has_search_library() -> bool:
    """Return whether the library of the ordinary search tool is installed."""
    return find_spec("ddgs") is not None


def _not_to_be_had(tool: NativeTool, kind: str, model: str, offered: frozenset[NativeTool]) -> str:
    if kind == "gemini" and tool != "web_search" and is_for_images(model):
        return "" if tool == "image_generation" else f"{model} makes images, and runs no code"
    if tool not in offered:
        return f"{kind} has none" + (
            " by this API; write `api: responses`" if kind == "openai" else ""
        )
    if kind == "gemini" and _TOO_OLD.search(model):
        return f"{model} has none beside an agent's own tools; those from Gemini 3 on have"
    return ""


def why_withheld(keys: ToolKeys, key: str, tool: NativeTool) -> str:
    """Return why an agent may not have a provider's tool, or "".

    Args:
        keys: The agent's backend.
        key: By which it is asked for.
        tool: The tool.
    """
    if not keys.takes(tool, key.removeprefix("enable_")):
        return "the agent's list of tools leaves it out"
    rule = rule_for(tool, keys.tool_policy)
    if rule is not None and rule.action != "allow":
        return "its provider calls it, so that `tool_policy` can't be kept"
    if keys.rules is not None and _restricts(keys.rules, _DOES[tool]):
        return "its provider calls it, so that `permissions` can't be kept"
    return ""


def _restricts(rules: PermissionSpec, action: str) -> bool:
    return any((*rules.targets("deny", action), *rules.targets("ask", action)))
