"""Tools that agents call: a tool, a call, its result, and the context of the calling agent.

Schema and argument checking are pydantic-ai's. A tool reports a failure to the model by raising
`ToolError`; a stop passes through every tool as `AgentStopped`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from nb_agents.cancel import checkpoint
from nb_agents.config.secret_names import MASK, is_secret_name
from nb_agents.context import within
from nb_agents.errors import leaves_of
from nb_agents.masking import Mask
from nb_agents.process.writable import WritablePath, WriteAccess
from nb_agents.unicode import well_formed

logger = logging.getLogger("nb_agents")

MAX_RESULT_CHARS = 100_000
"""Limit of one result in a conversation; a longer one is cut, with a note for the model."""

_ANY_MAPPING = TypeAdapter(dict[str, Any]).validator


class BuiltInTool(NamedTuple):
    """What a built-in tool declares.

    Attributes:
        name: Its name, which no function of a user can have.
        action: What it does, as `permissions` of a team's file name it; "" for nothing of that.
        target: The argument that rules are about, and that a person who decides sees whole.
        file: The file that it is about, in the workspace; "" for the one of its target.
        is_asked: Whether a person decides on a call that no rule matches.
    """

    name: str
    action: Literal["", "command", "code", "read_file", "write_file"] = ""
    target: str = ""
    file: str = ""
    is_asked: bool = False


BUILT_IN: dict[str, BuiltInTool] = {}
"""The declared tools by name; each is declared where it is written."""


def declare(*tools: BuiltInTool) -> tuple[str, ...]:
    """Declare built-in tools; return their names."""
    BUILT_IN.update({tool.name: tool for tool in tools})
    return tuple(tool.name for tool in tools)


@dataclass(frozen=True)
class ToolDefinition:
    """A tool as agents see it.

    Attributes:
        name: Its name.
        description: What it does.
        parameters_json_schema: The JSON schema of its arguments.
        ends_round: Whether a call of it ends the agent's round.
    """

    name: str
    description: str | None
    parameters_json_schema: dict[str, Any]
    ends_round: bool = False


@dataclass(frozen=True)
class ToolContext:
    """Where an agent's tools work.

    Attributes:
        agent: The agent's id, or the address of its step.
        workspace: Its directory, which exists.
        project: The same directory, with its protected paths, when it is the user's own.
        readable: Other files and directories that it may read.
        session: The session's directory, for files that outlive the turn.
        kept: The turn's directory for outputs that are too long for a model; created when needed.
        secrets: Values that its processes must not inherit, such as the team's keys.
        access: Paths that it may write outside its workspace, and whether it may now.
        tell: Called with each piece of a running tool's output, for the panel. It must neither
            block nor raise.
        mask: Removes secrets from what its tools write to disk.
    """

    agent: str
    workspace: Path
    readable: Sequence[Path]
    session: Path
    kept: Path
    secrets: Sequence[str]
    tell: Callable[[str], None]
    mask: Mask = field(default_factory=Mask)
    access: WriteAccess = field(default_factory=WriteAccess)
    project: WritablePath | None = None

    @property
    def own(self) -> Sequence[WritablePath]:
        """The person's own files that may be written now."""
        return (*self.access.now, *([self.project] if self.project else ()))


class ToolPlace(NamedTuple):
    """Where an agent's tools work, and the rules of its calls: what a program needs as an agent.

    Attributes:
        context: Where they work.
        check: Given a tool's name and arguments, returns when the call may be made; it raises
            ToolError when the rules or a person deny it.
        keep: Keeps what the program may change within a block; None keeps nothing.
    """

    context: ToolContext
    check: Callable[[str, dict[str, Any]], Awaitable[None]]
    keep: Callable[[], AbstractAsyncContextManager[None]] | None = None


@dataclass
class ToolCall:
    """A call of a tool.

    Attributes:
        agent: The calling agent's id, or the address of its step; "" outside of any call.
        id: Its id in the journal, or "".
        is_repeated: Whether it was interrupted before and is made again, so that it may have
            happened already. A tool then accepts what is already done.
        began: Whether its tool has begun.
        thread: Number of the thread in which it was left running, or 0.
        subagents: Ids of the sub-agents whose results are part of its result.
    """

    agent: str = ""
    id: str = ""
    is_repeated: bool = False
    began: bool = True
    thread: int = 0
    subagents: tuple[str, ...] = ()

    @property
    def cut_outcome(self) -> Literal["cut", "cancelled"]:
        """How it ends when it is cut: one that still waited for approval has not happened."""
        return "cut" if self.began or self.is_repeated else "cancelled"

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the call as not begun within the block, and also after it when the block raises."""
        self.began = False
        yield
        self.began = True


# The user's functions are called without it, and may call agents or ask from any thread.
_current: ContextVar[ToolCall | None] = ContextVar("nb_agents_tool_call", default=None)


def calling(call: ToolCall) -> AbstractContextManager[None]:
    """Make a call the current one within the block.

    Args:
        call: Returned by `current_call` in the block, and in tasks and threads that begin there.
    """
    return within(_current, call)


def current_call() -> ToolCall:
    """Return the current call; outside of any, a call without an agent."""
    return _current.get() or ToolCall()


class ToolError(Exception):
    """A tool could not do what the model asked; the text goes to the model."""


class ToolResult(str):
    """The result of a call, as the model gets it; ``is_error`` says that it failed."""

    is_error: bool

    def __new__(cls, text: str, *, is_error: bool = False) -> ToolResult:
        """Create a result of ``text``, well-formed and cut to `MAX_RESULT_CHARS`."""
        text = well_formed(text)
        if len(text) > MAX_RESULT_CHARS:
            text = f"{text[:MAX_RESULT_CHARS]}\n[cut: {len(text)} characters in all]"
        result = super().__new__(cls, text)
        result.is_error = is_error
        return result


_schemas: dict[Any, tuple[ToolDefinition, Any]] = {}


def _schema_of(function: Callable[..., Awaitable[str]]) -> tuple[ToolDefinition, Any]:
    """Return a function's tool definition, and the validator of its arguments.

    This takes milliseconds, so it is cached for methods: each round of each agent creates the tools
    of its workspace again.
    """
    from pydantic_ai import Tool as PydanticTool

    method = getattr(function, "__func__", None)
    if method in _schemas:
        return _schemas[method]
    tool: Any = PydanticTool(function)
    found = tool.tool_def
    definition = ToolDefinition(found.name, found.description, found.parameters_json_schema)
    made = definition, tool.function_schema.validator
    if method is not None:
        _schemas[method] = made
    return made


class Tool:
    """A tool that a model may call.

    Args:
        function: An async function with a Google docstring; its signature is the schema.
        is_repeatable: Whether an interrupted call may be made again, because it has no effect, or
            the same effect twice.

    Attributes:
        knows_workspace: Whether a call may write there: False for what isn't told where it is.
    """

    knows_workspace = True

    def __init__(
        self, function: Callable[..., Awaitable[str]], *, is_repeatable: bool = False
    ) -> None:
        definition, validator = _schema_of(function)
        self._setup(definition, validator, lambda known: function(**known), is_repeatable)

    @classmethod
    def from_definition(
        cls,
        definition: ToolDefinition,
        call: Callable[[dict[str, Any]], Awaitable[str]],
        *,
        is_repeatable: bool = False,
    ) -> Tool:
        """Return a tool with a given schema; ``call`` checks the arguments itself.

        Args:
            definition: The tool's definition for models.
            call: Runs it with the model's arguments, any mapping.
            is_repeatable: See `Tool`.

        Returns:
            The tool.
        """
        tool = cls.__new__(cls)
        tool._setup(definition, _ANY_MAPPING, call, is_repeatable)
        return tool

    def _setup(
        self,
        definition: ToolDefinition,
        validator: Any,
        run: Callable[[dict[str, Any]], Awaitable[str]],
        is_repeatable: bool,
    ) -> None:
        self.definition = well_formed(definition)
        self.name: str = self.definition.name
        self.is_repeatable = is_repeatable
        self._validator = validator
        self._run = run

    def within(self, around: Callable[[dict[str, Any]], AbstractAsyncContextManager[None]]) -> Tool:
        """Return the same tool, which runs within a block.

        Args:
            around: Called with the arguments, once they are found valid; opens the block.
        """
        tool, run = copy(self), self._run

        async def inside(known: dict[str, Any]) -> str:
            async with around(known):
                return await run(known)

        tool._run = inside
        return tool

    async def call(self, args: str | dict[str, Any] | None) -> ToolResult:
        """Run the tool.

        Args:
            args: The model's arguments: JSON text or a mapping.

        Returns:
            The result for the model.

        Raises:
            AgentStopped: At entry, when a stop was asked for.
        """
        checkpoint()
        try:
            validate = self._validator
            known = (
                validate.validate_json(args or "{}")
                if isinstance(args, str) or args is None
                else validate.validate_python(args)
            )
            return ToolResult(await self._run(known))
        except ValidationError as exc:
            return ToolResult(_explain(self.name, exc), is_error=True)
        except ToolError as exc:
            return ToolResult(f"Error: {exc}", is_error=True)
        except Exception as exc:
            # An exception in a tool fails the call, never the run: the model gets a message and
            # continues.
            logger.warning("tool %s failed", self.name, exc_info=True)
            why = "; ".join(dict.fromkeys(map(_without_path, leaves_of(exc))))
            return ToolResult(f"Error: {why}", is_error=True)


def _without_path(exc: BaseException) -> str:
    """Return an exception's message without paths of this machine."""
    no_path = isinstance(exc, OSError) and exc.strerror
    return f"{type(exc).__name__}: {no_path or exc}"


class Toolbox:
    """The tools that one agent has.

    Args:
        tools: Their names must differ.
        keep: Writes a file that a model's provider made into the agent's workspace; it raises
            ToolError.
        place: Where they work, and the rules of calls.

    Attributes:
        keep, place: As given.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        keep: Callable[[str, bytes], Awaitable[None]] | None = None,
        place: ToolPlace | None = None,
    ) -> None:
        self.keep = keep
        self.place = place
        self._tools = {tool.name: tool for tool in tools}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools."""
        return tuple(self._tools.values())

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The definitions of the tools, for models."""
        return [tool.definition for tool in self._tools.values()]

    def is_repeatable(self, name: str) -> bool:
        """Return whether a tool's interrupted call may be made again; True for an unknown tool."""
        tool = self._tools.get(name)
        return tool is None or tool.is_repeatable

    async def call(self, name: str, args: str | dict[str, Any] | None) -> ToolResult:
        """Run a tool by name; an unknown name returns an error to the model."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(f"Error: no tool {name!r}. You have: {known}.", is_error=True)
        return await tool.call(args)


def summarize(name: str, args: str | dict[str, Any] | None) -> str:
    """Summarize a call for the panel: its path, or its first argument."""
    try:
        known = json.loads(args) if isinstance(args, str) else args
    except (ValueError, RecursionError):
        return ""
    if not isinstance(known, dict) or not known:
        return ""
    name = "path" if "path" in known else next(iter(known))
    return MASK if known[name] and is_secret_argument(name) else str(known[name])[:80]


def hide_arguments(args: Any) -> Any:
    """Return a call's arguments for display, with values of secret-like names hidden.

    Args:
        args: The model's: JSON text or a mapping.
    """
    if not isinstance(args, str):
        return _hidden(args)
    try:
        known = json.loads(args)
        hidden = _hidden(known)
    except (ValueError, RecursionError):
        return args
    # The model's own spelling stays if nothing has to be hidden.
    return args if hidden == known else json.dumps(hidden, ensure_ascii=False)


def _hidden(value: Any, name: str = "") -> Any:
    match value:
        case str() if value and is_secret_argument(name):
            return MASK
        case dict():
            return {key: _hidden(each, str(key)) for key, each in value.items()}
        case list():
            return [_hidden(each, name) for each in value]
    return value


def is_secret_argument(name: str) -> bool:
    """Return whether an argument may hold a secret by its name; a data store's ``key`` does not."""
    return name not in ("key", "keys") and is_secret_name(name)


def _explain(name: str, exc: ValidationError) -> str:
    faults = "; ".join(
        f"{'.'.join(str(p) for p in e['loc']) or 'arguments'}: {e['msg']}"
        for e in exc.errors(include_url=False, include_input=False)
    )
    return f"Error: {name} was called with wrong arguments: {faults}."
