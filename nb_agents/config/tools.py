"""Determines which tools an agent has and which calls need approval: MassGen's keys and others.

Source: MassGen 0.1.97, `backend/base_with_custom_tool_and_mcp.py` (`_register_custom_tools`),
`mcp_tools/client.py` (precedence of the lists of tools).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
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

from nb_agents.config.extras import missing_extra
from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.config.model_keys import WireFormat
from nb_agents.config.permissions import CommandLimits, PermissionSpec, as_pattern
from nb_agents.config.secret_names import is_distinctive, is_secret_name
from nb_agents.config.spec import Spec, Texts, as_tuple, resolve_next_to_file

ToolAction = Literal["ask", "allow", "deny"]
NotebookAccess = Literal["read", "propose", "run"]
"""Whether an agent may only read cells of the open notebook, also propose changes, or also run."""
NotebookOutputs = Literal["none", "text", "images"]
"""Whether an agent may read the outputs of cells."""

_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MIN_PRESET_CHARS = 8
"""A shorter preset value is a placeholder, even under the name of a secret."""
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
"""Our file and command tools, each with MassGen's names of the equivalent tools."""
_NOT_WRITING = frozenset({"list_files", "read_file", "delete_file"})


def _as_mappings(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


def _pattern_text(text: str) -> str:
    as_pattern(text)
    return text


def _variable_name(value: str) -> str:
    if not _VARIABLE_NAME.fullmatch(value):
        # The value is not repeated, because it may be NAME=secret.
        raise ValueError("it must be the name of an environment variable, without its value")
    return value


_VariableName = Annotated[str, AfterValidator(_variable_name)]
_VariableNames = Annotated[tuple[_VariableName, ...], BeforeValidator(as_tuple)]
_Pattern = Annotated[str, AfterValidator(_pattern_text)]
_Patterns = Annotated[tuple[_Pattern, ...], BeforeValidator(as_tuple)]
_Files = Annotated[
    tuple[Annotated[str, AfterValidator(resolve_next_to_file)], ...], BeforeValidator(as_tuple)
]
_Presets = Annotated[tuple[dict[str, JsonValue], ...], BeforeValidator(_as_mappings)]


class CustomFunction(NamedTuple):
    """A function of a Python file that becomes a tool.

    Attributes:
        function: The function's name in the file.
        name: The tool's name.
        description: The tool's description for models. "" uses the function's docstring.
        preset: Arguments with fixed values, which are hidden from models.
    """

    function: str
    name: str
    description: str
    preset: Mapping[str, JsonValue] = MappingProxyType({})


class CustomToolSpec(Spec):
    """Functions of a Python file that an agent gets as tools.

    Attributes:
        path: The Python file, relative to the team file's directory or the working directory. In
            MassGen, "" means one of its own tools.
        function: Names of functions in the file.
        name: The tools' names, one per function. By default, the names of the functions.
        description: Descriptions for models, one for all functions or one per function.
        preset_args: Arguments with fixed values: one mapping for all functions or one per
            function. They are stored in the journal and can't contain secrets.
    """

    path: Annotated[str, AfterValidator(resolve_next_to_file)] = ""
    function: Texts = Field(min_length=1)
    name: Texts = ()
    description: Texts = ()
    preset_args: _Presets = ()

    @field_validator("preset_args")
    @classmethod
    def _no_secret(
        cls, value: tuple[dict[str, JsonValue], ...]
    ) -> tuple[dict[str, JsonValue], ...]:
        if name := next(_secret_names(value), None):
            raise ValueError(
                f"{name!r} may be a secret, but preset arguments are stored in the journal; let "
                f"the function read it from the environment"
            )
        return value

    @model_validator(mode="after")
    def _presets_match_functions(self) -> CustomToolSpec:
        # Without its preset, the argument would be left to the model.
        presets, count = len(self.preset_args), len(self.function)
        if presets not in (0, 1, count):
            raise ValueError(
                f"{count} functions have {presets} `preset_args`: write one mapping for all "
                "functions or one for each"
            )
        return self

    @property
    def functions(self) -> tuple[CustomFunction, ...]:
        """The functions, each with the name, description and preset arguments of its tool."""
        count = len(self.function)
        names = self.name if len(self.name) == count else self.function
        texts = _one_each(self.description, count, "")
        presets: tuple[dict[str, JsonValue], ...] = _one_each(self.preset_args, count, {})
        return tuple(map(CustomFunction, self.function, names, texts, presets))


class ToolRule(Spec):
    """Whether calls of some tools need an approval.

    Attributes:
        match: A tool's name or a pattern, such as ``mcp__*``.
        action: ``ask`` a user, ``allow`` or ``deny``.
        on_denial: What happens when a user denies a call: the model receives the denial
            (``tell``), or the run stops (``stop``).
    """

    match: str = Field(min_length=1)
    action: ToolAction
    on_denial: Literal["tell", "stop"] = "tell"


KEYS_OF_EXTENSIONS = ("recipes", "notebook")
"""Keys of agents whose tools an extension provides."""


class ToolKeys(Spec):
    """The keys of a backend that configure its agent's tools.

    Attributes:
        mcp_servers: MCP servers, as a list or as a mapping by name.
        custom_tools: Functions of Python files that become tools.
        enable_mcp_command_line: Whether the agent may run commands.
        command_line_execution_mode: Where commands run. Only ``local`` is supported.
        command_line_allowed_commands: Regular expressions. A command runs only if one of them
            matches its beginning. An empty list allows all commands.
        command_line_blocked_commands: Regular expressions that match the beginning of commands
            that must not run.
        allowed_tools: The names of the only tools that the agent gets. By default, all.
        sandbox: Whether the agent's commands run in a sandbox if bubblewrap is installed. Without a
            sandbox they have all permissions of the user.
        limits: Resource limits of the agent's commands.
        pass_env: Names of additional environment variables for the agent's commands.
        exclude_tools: The names of tools that the agent does not get.
        exclude_file_operation_mcps: Whether the agent gets only the file tools that write files.
        data_store: Whether the agent shares the session's data store.
        tool_policy: Which tool calls need an approval. The first matching rule applies.
        permissions: MassGen's rules for tool calls, in addition to `tool_policy`.
        extension_tools: The tools of installed extensions that the agent gets, by name.
        can_call: The agents that this agent may call as tools: names, or ``*`` for all others. Each
            call starts a new agent, even if the called agent is a member of the team.
        recipes: Recipe files that the agent, as a member of the team, may run with the `recipes`
            tool. Relative paths are relative to the team file's directory or the working directory.
            The recipes' commands run as in any recipe that you start.
        notebook: Access of the agent to the notebook that started the run: ``read`` its cells, also
            ``propose`` changes, which you accept or reject, or also ``run`` cells, after you
            approved each one.
        notebook_outputs: Whether the agent may also read the outputs of cells as ``text``, and the
            names, types and shapes of variables. ``images`` also sends images to models that take
            them; otherwise they are only named.
        enable_web_search: Whether the agent can search the web, through its provider or, if the
            provider has no search, with a tool of nb_agents.
        enable_code_interpreter, enable_code_execution: Whether the provider runs code for the
            agent. Both keys mean the same.
        enable_image_generation: Whether the provider generates images for the agent. They become
            files in ``images`` in its workspace.
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
    extension_tools: Texts = ()
    can_call: Texts = ()
    recipes: _Files = ()
    notebook: NotebookAccess | None = None
    notebook_outputs: NotebookOutputs = "none"
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
        """The rules in `permissions`, or None if they are disabled."""
        return self.permissions if self.permissions and self.permissions.enabled else None

    @property
    def searches_web(self) -> bool:
        """Whether the agent gets nb_agents's web search tool. `BackendSpec` overrides this."""
        return False

    @property
    def chosen_tools(self) -> tuple[str, ...] | None:
        """The tools that `tool_choice` allows, or None for all. `BackendSpec` overrides this."""
        return None

    def takes(self, *names: str, server: McpServerSpec | None = None) -> bool:
        """Return whether the agent gets a tool.

        Args:
            names: The tool's names: short and full.
            server: The tool's MCP server. Its `allowed_tools` override the agent's.
        """
        names_and_aliases = {
            *names,
            *(other for name in names for other in _MASSGENS_NAMES.get(name, ())),
        }
        lists = [self.chosen_tools, self.allowed_tools]
        excluded = {*self.exclude_tools, *(server.exclude_tools if server else ())}
        if server and server.allowed_tools is not None:
            lists[1] = server.allowed_tools
        elif self.exclude_file_operation_mcps and names_and_aliases & _NOT_WRITING:
            return False
        if names_and_aliases & excluded:
            return False
        return all(each is None or names_and_aliases & {*each} for each in lists)


allows_any_tool = ToolKeys().takes
"""`ToolKeys.takes` of an agent whose tools are not restricted."""


def rule_for(name: str, rules: Iterable[ToolRule]) -> ToolRule | None:
    """Return the first rule that matches a tool's name. If there is none, calls are allowed.

    Example:
        >>> rule_for("mcp__shop__buy", [ToolRule(match="mcp__*", action="ask")]).action
        'ask'
    """
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)


def _one_each(values: tuple[T, ...], count: int, default: T) -> tuple[T, ...]:
    """Return ``count`` values: a single value repeated, or ``default`` if their number differs."""
    shared = values * count if len(values) == 1 else values
    return shared if len(shared) == count else (default,) * count


def _secret_names(value: Any, name: str = "") -> Iterator[str]:
    """Yield the keys of strings in a nested value that may be secrets."""
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
    # A "key" can be harmless, as in `sort_key: created_at`.
    is_word = name.lower().endswith("key") and _WORDS.fullmatch(text)
    return (
        is_secret_name(name) and not is_word or any(secret in text for secret in _known_secrets())
    )


def _known_secrets() -> Iterator[str]:
    """Yield secrets of the environment, because each ``${VAR}`` in the file is already expanded."""
    for name, value in os.environ.items():
        if is_secret_name(name) and is_distinctive(value):
            yield value


def _with_name(spec: Any, name: Any) -> Any:
    return {"name": name, **spec} if isinstance(spec, dict) else spec


NativeTool = Literal["web_search", "code_execution", "image_generation"]
"""Built-in tools of providers, by their pydantic-ai names."""

NATIVE_KEYS: Mapping[str, NativeTool] = {
    "enable_web_search": "web_search",
    "enable_code_interpreter": "code_execution",
    "enable_code_execution": "code_execution",
    "enable_image_generation": "image_generation",
}

TOOLS_BY_FORMAT: Mapping[WireFormat, frozenset[NativeTool]] = {
    "openai responses": frozenset({"web_search", "code_execution", "image_generation"}),
    "anthropic": frozenset({"web_search", "code_execution"}),
    "google": frozenset({"web_search", "code_execution"}),
}
_DOES: Mapping[NativeTool, str] = {
    "web_search": "read_url",
    "code_execution": "command",
    "image_generation": "write_file",
}
"""The equivalent action in `permissions` for each provider tool."""

_SEARCH_EXTRA = ". `pip install 'nb_agents[search]'` adds a search tool for any model"

_TOO_OLD = re.compile(r"gemini-[12]\b|gemini-pro$|gemma", re.IGNORECASE)


class MissingTool(NamedTuple):
    """A requested provider tool that the agent does not get.

    Attributes:
        key: The key that requests it.
        why: The reason, as a clause after "because".
    """

    key: str
    why: str


def classify_native_tools(
    keys: ToolKeys, kind: str, model: str, offered: frozenset[NativeTool]
) -> Iterator[NativeTool | MissingTool]:
    """Yield each requested provider tool, or a `MissingTool` if the agent does not get it.

    Args:
        keys: The agent's backend.
        kind: The backend type.
        model: The model's name.
        offered: The tools of the server.
    """
    for key, tool in NATIVE_KEYS.items():
        is_ordinary = tool == "web_search" and needs_ordinary_search(keys, kind, model, offered)
        if getattr(keys, key) and not (is_ordinary and has_search_library()):
            why = _unavailable_reason(tool, kind, model, offered) or withheld_reason(
                keys, key, tool
            )
            why += _SEARCH_EXTRA if is_ordinary else ""
            yield MissingTool(key, why) if why else tool


def needs_ordinary_search(
    keys: ToolKeys, kind: str, model: str, offered: frozenset[NativeTool]
) -> bool:
    """Return whether an agent needs nb_agents's web search tool, because its provider has none.

    A model created in Python is assumed to support tool calls but not web search.
    """
    wants = keys.enable_web_search and keys.takes("web_search")
    calls_tools = not (kind == "gemini" and is_for_images(model))
    return wants and calls_tools and bool(_unavailable_reason("web_search", kind, model, offered))


def is_for_images(model: str) -> bool:
    """Return whether a Google model generates images and can't call an agent's tools.

    Source: pydantic-ai 2.68, `profiles/google.py`.
    """
    return "image" in model


@cache
def has_search_library() -> bool:
    """Return whether the library of nb_agents's web search tool is installed."""
    return not missing_extra("search")


def _unavailable_reason(
    tool: NativeTool, kind: str, model: str, offered: frozenset[NativeTool]
) -> str:
    if kind == "gemini" and tool != "web_search" and is_for_images(model):
        return "" if tool == "image_generation" else f"{model} generates images and runs no code"
    if tool not in offered:
        return f"{kind} has none" + (
            " in this API; write `api: responses`" if kind == "openai" else ""
        )
    if kind == "gemini" and _TOO_OLD.search(model):
        return f"{model} has none in addition to an agent's tools; Gemini 3 and later have"
    return ""


def withheld_reason(keys: ToolKeys, key: str, tool: NativeTool) -> str:
    """Return why the agent's rules don't permit a provider tool, or "" if they do.

    Args:
        keys: The agent's backend.
        key: The key that requests the tool.
    """
    if not keys.takes(tool, key.removeprefix("enable_")):
        return "the agent's list of tools excludes it"
    rule = rule_for(tool, keys.tool_policy)
    if rule is not None and rule.action != "allow":
        return "its provider calls it, so `tool_policy` can't be enforced"
    if keys.rules is not None and _restricts(keys.rules, _DOES[tool]):
        return "its provider calls it, so `permissions` can't be enforced"
    return ""


def _restricts(rules: PermissionSpec, action: str) -> bool:
    return any((*rules.targets("deny", action), *rules.targets("ask", action)))
