"""Tools that agents call: a tool, a call, its result, and the context of the calling agent.

Schemas and argument checking come from pydantic-ai. A tool reports a failure to the model by
raising `ToolError`; a stop passes through every tool as `AgentStopped`.
"""

from __future__ import annotations

import asyncio
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

from nb_agents.cancel import AgentStopped, checkpoint
from nb_agents.config.secret_names import MASK, is_secret_name
from nb_agents.context import within
from nb_agents.errors import leaf_exceptions
from nb_agents.events import ToolImage
from nb_agents.masking import Mask
from nb_agents.process.writable import WritablePath, WriteAccess
from nb_agents.unicode import well_formed

logger = logging.getLogger("nb_agents")

MAX_RESULT_CHARS = 100_000
"""Maximum length of a result. A longer one is truncated, with a note for the model."""

_ANY_MAPPING = TypeAdapter(dict[str, Any]).validator


class BuiltInTool(NamedTuple):
    """The permission metadata of a built-in tool.

    Attributes:
        name: The tool's name, which user functions can't have.
        action: The action that `permissions` of a team file check, or "" if they check none.
        target: The argument that the rules are matched against. A user who approves a call sees it
            in full.
        file: The workspace file that the tool reads or writes, or "" if `target` names the file.
        is_asked: Whether the user must approve a call if no rule matches it.
        asks_itself: Whether the tool asks the user to approve each call, because it alone knows
            what the call does.
    """

    name: str
    action: Literal["", "command", "code", "read_file", "write_file"] = ""
    target: str = ""
    file: str = ""
    is_asked: bool = False
    asks_itself: bool = False


BUILT_IN: dict[str, BuiltInTool] = {}
"""All built-in tools by name. Modules register their tools with `declare`."""


def declare(*tools: BuiltInTool) -> tuple[str, ...]:
    """Register built-in tools in `BUILT_IN` and return their names."""
    BUILT_IN.update({tool.name: tool for tool in tools})
    return tuple(tool.name for tool in tools)


@dataclass(frozen=True)
class ToolDefinition:
    """The definition of a tool that is sent to models.

    Attributes:
        parameters_json_schema: The JSON schema of the arguments.
        ends_round: Whether a call ends the agent's round.
        other_name: A second name that rules and earlier turns may use, or "" for none.
        is_foreign: Whether the schema is not from nb_agents and has not been checked.
        strict: Whether the provider is asked to enforce the schema. None leaves the decision to
            pydantic-ai.
    """

    name: str
    description: str | None
    parameters_json_schema: dict[str, Any]
    ends_round: bool = False
    other_name: str = ""
    is_foreign: bool = False
    strict: bool | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which rules can refer to the tool."""
        return tuple(filter(None, (self.name, self.other_name)))


@dataclass(frozen=True)
class ToolContext:
    """The directories, permissions and secrets that an agent's tools work with.

    Attributes:
        agent: The agent's id, or the address of its step.
        workspace: The agent's directory, which exists.
        project: The workspace with its protected paths, if it is the user's project directory.
        readable: Other files and directories that the agent may read.
        session: The session's directory, for files that outlive the turn.
        kept: The turn's directory for outputs that are too long for a model. Created when needed.
        secrets: Values that processes of the agent must not inherit, such as the team's keys.
        access: Paths outside the workspace that the agent may write to, and whether it may do so
            now.
        tell: Called with each piece of a running tool's output, for the panel. It must neither
            block nor raise.
        mask: Removes secrets from the files that the tools write.
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
        """The user files that the agent may write to now."""
        return (*self.access.now, *([self.project] if self.project else ()))


class ToolEnvironment(NamedTuple):
    """The context of an agent's tools and the checks around them. External agents use it too.

    Attributes:
        context: The directories, permissions and secrets of the tools.
        check: Called with a tool's name and arguments before the call. It waits for the user's
            approval where the rules require it, and raises ToolError if the call is denied.
        keep: Returns a context manager that snapshots the files that the agent changes in its
            block. Called with the paths to be written, or None if they are unknown. If `keep`
            itself is None, no snapshots are made.
    """

    context: ToolContext
    check: Callable[[str, dict[str, Any]], Awaitable[None]]
    keep: Callable[[Sequence[str] | None], AbstractAsyncContextManager[None]] | None = None


@dataclass
class ToolCall:
    """A call to a tool.

    Attributes:
        agent: The calling agent's id, or the address of its step; "" outside of a call.
        id: The call's id in the journal, or "".
        is_repeated: Whether a resume repeats an interrupted call, which may have taken effect. The
            tool then accepts that its work may already be done.
        began: Whether the tool has started. False while the call waits for approval.
        thread: Number of the thread that still runs the abandoned call, or 0.
        subagents: Ids of the sub-agents that contributed to the result.
    """

    agent: str = ""
    id: str = ""
    is_repeated: bool = False
    began: bool = True
    thread: int = 0
    subagents: tuple[str, ...] = ()

    @property
    def cut_outcome(self) -> Literal["cut", "cancelled"]:
        """How an interruption would end the call: "cancelled" if the tool has not started."""
        return "cut" if self.began or self.is_repeated else "cancelled"

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the call as not started while the block runs.

        If the block raises, the call remains marked as not started.
        """
        self.began = False
        yield
        self.began = True


# A context variable, because user functions don't receive the call but may call agents or ask for
# approval from any thread.
_current: ContextVar[ToolCall | None] = ContextVar("nb_agents_tool_call", default=None)


def use_call(call: ToolCall) -> AbstractContextManager[None]:
    """Make `current_call` return this call in the block and in tasks and threads started there."""
    return within(_current, call)


def current_call() -> ToolCall:
    """Return the current tool call. Outside of a tool call, return one without an agent."""
    return _current.get() or ToolCall()


class ToolError(Exception):
    """Raised by a tool to report a failure. The message is sent to the model."""


class TextWithImages(str):
    """What a tool returns if its result has images, too."""

    images: tuple[ToolImage, ...]

    def __new__(cls, text: str, images: Iterable[ToolImage]) -> TextWithImages:
        """Create a result.

        Args:
            text: The text, which says what the images are.
            images: The images, whose files are in the session.
        """
        result = super().__new__(cls, text)
        result.images = tuple(images)
        return result


class ToolResult(str):
    """The result of a tool call, as sent to the model.

    Attributes:
        is_error: Whether the call failed.
        images: The images in the result.
    """

    is_error: bool
    images: tuple[ToolImage, ...]

    def __new__(
        cls, text: str, *, is_error: bool = False, images: tuple[ToolImage, ...] = ()
    ) -> ToolResult:
        """Create a result.

        Invalid Unicode is replaced, and text over `MAX_RESULT_CHARS` is truncated.
        """
        text = well_formed(text)
        if len(text) > MAX_RESULT_CHARS:
            text = f"{text[:MAX_RESULT_CHARS]}\n[truncated: {len(text)} characters in total]"
        result = super().__new__(cls, text)
        result.is_error, result.images = is_error, images
        return result


_schemas: dict[Any, tuple[ToolDefinition, Any]] = {}


def _schema_of(function: Callable[..., Awaitable[str]]) -> tuple[ToolDefinition, Any]:
    """Return a function's tool definition and argument validator.

    Results for methods are cached, because this takes milliseconds, and each agent's workspace
    tools are created again in each round.
    """
    from pydantic_ai import Tool as PydanticTool

    method = getattr(function, "__func__", None)
    if method in _schemas:
        return _schemas[method]
    tool: Any = PydanticTool(function)
    source = tool.tool_def
    definition = ToolDefinition(source.name, source.description, source.parameters_json_schema)
    schema = definition, tool.function_schema.validator
    if method is not None:
        _schemas[method] = schema
    return schema


class Tool:
    """A tool that a model may call.

    Args:
        function: An async function with a Google-style docstring. The schema is derived from its
            signature.
        is_repeatable: Whether a resume may repeat an interrupted call, because the tool has no side
            effects or is idempotent.

    Attributes:
        knows_workspace: Whether the tool may write to the workspace. False if it does not get the
            workspace's path.
    """

    knows_workspace = True

    def __init__(
        self, function: Callable[..., Awaitable[str]], *, is_repeatable: bool = False
    ) -> None:
        definition, validator = _schema_of(function)
        self._setup(definition, validator, lambda arguments: function(**arguments), is_repeatable)

    @classmethod
    def from_definition(
        cls,
        definition: ToolDefinition,
        call: Callable[[dict[str, Any]], Awaitable[str]],
        *,
        is_repeatable: bool = False,
    ) -> Tool:
        """Create a tool from a definition. ``call`` must validate the arguments itself.

        Args:
            definition: The definition for models.
            call: Runs the tool with the model's unchecked arguments.
            is_repeatable: See `Tool`.
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
        self.asks = False
        self._validator = validator
        self._run = run
        self._restore: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def within(self, around: Callable[[dict[str, Any]], AbstractAsyncContextManager[None]]) -> Tool:
        """Return a copy of the tool that runs each call inside a context manager.

        Args:
            around: Returns the context manager for a call. Called with the validated arguments.
        """
        tool, run = copy(self), self._run

        async def inside(arguments: dict[str, Any]) -> str:
            async with around(arguments):
                return await run(arguments)

        tool._run = inside
        return tool

    def offered_as(
        self,
        definition: ToolDefinition,
        restore: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Tool:
        """Return a copy of the tool with another definition for models.

        Args:
            definition: The new definition, with the same name.
            restore: Converts arguments for the new definition to arguments for this tool. None if
                they are the same.
        """
        tool = copy(self)
        tool.definition = definition
        tool._restore = restore
        return tool

    async def call(self, args: str | dict[str, Any] | None) -> ToolResult:
        """Validate the arguments and run the tool. Exceptions become error results.

        Args:
            args: The model's arguments: JSON text or a mapping.

        Raises:
            AgentStopped: A stop was requested before the call started, or the tool raised it.
        """
        checkpoint()
        task = running_task()
        try:
            validate = self._validator
            if self._restore is not None:
                args = json.dumps(self._restore(_any_mapping(args)))
            arguments = (
                validate.validate_json(args or "{}")
                if isinstance(args, str) or args is None
                else validate.validate_python(args)
            )
            output = await self._run(arguments)
            return ToolResult(output, images=getattr(output, "images", ()))
        except ValidationError as exc:
            return ToolResult(_explain(self.name, exc), is_error=True)
        except ToolError as exc:
            return ToolResult(f"Error: {exc}", is_error=True)
        except BaseException as exc:
            # An exception in a tool must not fail the run. The model gets a message and continues.
            if (end := _end_in(exc, task)) is exc:
                raise
            if end is not None:
                raise end from exc
            logger.warning("tool %s failed", self.name, exc_info=True)
            why = "; ".join(dict.fromkeys(map(_without_path, leaf_exceptions(exc))))
            return ToolResult(f"Error: {why}", is_error=True)


def _any_mapping(args: str | dict[str, Any] | None) -> dict[str, Any]:
    if isinstance(args, dict):
        return args
    arguments: dict[str, Any] = _ANY_MAPPING.validate_json(args or "{}")
    return arguments


class EndOfAgent(BaseException):
    """Raised in a tool to end the whole agent, not only the call."""


def _end_in(exc: BaseException, task: object) -> BaseException | None:
    """Return the exception that ends the agent or the process, or None if only the call failed.

    Args:
        exc: The exception from the tool. A task group may have wrapped a stop in it.
        task: The task in which the call started.
    """
    ends = (KeyboardInterrupt, SystemExit, asyncio.CancelledError)
    if isinstance(exc, ends) or is_being_closed(exc, task):
        return exc
    stops = (leaf for leaf in leaf_exceptions(exc) if isinstance(leaf, AgentStopped | EndOfAgent))
    return next(stops, None)


def is_being_closed(exc: BaseException, task: object) -> bool:
    """Return whether Python is closing an abandoned coroutine.

    A GeneratorExit that a tool raised itself must not leave the tool, because it would close the
    coroutines that await it.

    Args:
        exc: The exception that was raised in the coroutine.
        task: The result of `running_task` when the coroutine started.
    """
    return isinstance(exc, GeneratorExit) and running_task() is not task


def running_task() -> object:
    """Return the current asyncio task, or None outside of a task."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


def _without_path(exc: BaseException) -> str:
    """Return an exception's message without local paths."""
    no_path = isinstance(exc, OSError) and exc.strerror
    return f"{type(exc).__name__}: {no_path or exc}".removesuffix(": ")


class Toolbox:
    """The tools of one agent.

    Args:
        tools: The tools. If two have the same name, the first is used.
        keep: Writes a file created by the model's provider to the agent's workspace. It may raise
            ToolError.
        place: The environment that the tools are called in, with its checks.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        keep: Callable[[str, bytes], Awaitable[None]] | None = None,
        environment: ToolEnvironment | None = None,
    ) -> None:
        self.keep = keep
        self.place = environment
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self._tools.setdefault(tool.name, tool)

    def with_tools(self, tools: Iterable[Tool]) -> Toolbox:
        """Return a copy of the toolbox that has other tools."""
        return Toolbox(tools, self.keep, self.place)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in the order in which they were added."""
        return tuple(self._tools.values())

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The definitions of the tools, for models."""
        return [tool.definition for tool in self._tools.values()]

    def is_repeatable(self, name: str) -> bool:
        """Return whether an interrupted call may be repeated. True for an unknown tool."""
        tool = self._named(name)
        return tool is None or tool.is_repeatable

    async def call(self, name: str, args: str | dict[str, Any] | None) -> ToolResult:
        """Run a tool by name. For an unknown name, return an error to the model."""
        tool = self._named(name)
        if tool is None:
            tool_names = ", ".join(self._tools) or "none"
            return ToolResult(f"Error: no tool {name!r}. Your tools: {tool_names}.", is_error=True)
        return await tool.call(args)

    def _named(self, name: str) -> Tool | None:
        """Find a tool by its name or by its `other_name`, which calls of earlier turns may use."""
        if (tool := self._tools.get(name)) is not None:
            return tool
        candidates = [tool for tool in self.tools if tool.definition.other_name == name]
        return candidates[0] if len(candidates) == 1 else None


def summarize(name: str, args: str | dict[str, Any] | None) -> str:
    """Return a short text about a call for the panel: its path, or its first argument."""
    try:
        arguments = json.loads(args) if isinstance(args, str) else args
    except (ValueError, RecursionError):
        return ""
    if not isinstance(arguments, dict) or not arguments:
        return ""
    name = "path" if "path" in arguments else next(iter(arguments))
    return MASK if arguments[name] and is_secret_argument(name) else str(arguments[name])[:80]


def mask_arguments(args: Any) -> Any:
    """Mask the values of arguments with secret-like names, for display.

    Args:
        args: The model's arguments: JSON text or a mapping.
    """
    if not isinstance(args, str):
        return _hidden(args)
    try:
        arguments = json.loads(args)
        hidden = _hidden(arguments)
    except (ValueError, RecursionError):
        return args
    # The model's text is returned unchanged if nothing had to be hidden.
    return args if hidden == arguments else json.dumps(hidden, ensure_ascii=False)


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
    """Return whether an argument's name suggests a secret. ``key`` and ``keys`` do not."""
    return name not in ("key", "keys") and is_secret_name(name)


def _explain(name: str, exc: ValidationError) -> str:
    faults = "; ".join(
        f"{'.'.join(str(p) for p in e['loc']) or 'arguments'}: {e['msg']}"
        for e in exc.errors(include_url=False, include_input=False)
    )
    return f"Error: invalid arguments for {name}: {faults}."
