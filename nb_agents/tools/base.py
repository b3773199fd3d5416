"""A tool that a model may call, a call of it, and what it knows of the agent that it works for.

Schema and argument checking are pydantic-ai's. A tool tells the model of a failure by raising
`ToolError`; a stop passes through every tool as `AgentStopped`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from nb_agents.cancel import checkpoint
from nb_agents.config.secret_names import MASK, is_secret_name
from nb_agents.errors import leaves_of
from nb_agents.masking import Mask
from nb_agents.process.writable import WritablePath, WriteAccess
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from pydantic_ai.tools import ToolDefinition

logger = logging.getLogger("nb_agents")

MAX_RESULT_CHARS = 100_000
"""What one result may add to a conversation; the rest is cut, and the model is told."""

_ANY_MAPPING = TypeAdapter(dict[str, Any]).validator


@dataclass(frozen=True)
class ToolContext:
    """Where an agent's tools work.

    Attributes:
        agent: The agent's id, or the address of its step.
        workspace: Its directory; it exists.
        project: The same, when it is not the run's own but a person's: what of it stays as it is.
        readable: Files and directories that it may read besides.
        session: The session's directory: what is kept beyond the turn goes there.
        kept: Directory of the turn for what is too long for a model; made when it is needed.
        secrets: Values that no process of it inherits, such as the team's keys.
        access: What it may write besides, and whether now.
        tell: Is given what a running tool writes, piece by piece, for the panel. It must neither
            block nor raise.
        mask: Takes secrets out of what its tools write down.
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


@dataclass
class ToolCall:
    """A call of a tool.

    Attributes:
        agent: Whose it is: an agent's id, or the address of its step; "" for nobody's.
        id: Its id in the journal, or "".
        is_repeated: Whether it may have happened before: it was cut in its middle, and is made
            again. A tool then takes done for done.
        began: Whether its tool was let begin.
        thread: Number of the thread in which it was left running; 0 when it was not.
        subagents: The ids of those sub-agents whose results its own holds.
    """

    agent: str = ""
    id: str = ""
    is_repeated: bool = False
    began: bool = True
    thread: int = 0
    subagents: tuple[str, ...] = ()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the call as not begun within the block, and also after it when the block raises."""
        self.began = False
        yield
        self.began = True


# Functions of a person are called without it, and may call agents or ask from any thread.
_current: ContextVar[ToolCall | None] = ContextVar("nb_agents_tool_call", default=None)


@contextmanager
def calling(call: ToolCall) -> Iterator[ToolCall]:
    """Make a call the current one within the block.

    Args:
        call: What `current_call` gives there, in tasks and threads that begin there, too.
    """
    reset = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(reset)


def current_call() -> ToolCall:
    """Return the call that is made here; one that is nobody's where none is."""
    return _current.get() or ToolCall()


class ToolError(Exception):
    """A tool could not do what the model asked; the text goes to the model."""


class ToolResult(str):
    """What a model is told of its call; ``is_error`` says that it failed."""

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

    That takes milliseconds: of a method it is made once, as each round of each agent has the tools
    of its workspace anew.
    """
    from pydantic_ai import Tool as PydanticTool

    method = getattr(function, "__func__", None)
    if method in _schemas:
        return _schemas[method]
    tool: Any = PydanticTool(function)
    made = tool.tool_def, tool.function_schema.validator
    if method is not None:
        _schemas[method] = made
    return made


class Tool:
    """A tool that a model may call.

    Args:
        function: An async function with a Google docstring; its signature is the schema.
        is_repeatable: Whether a call that was cut in its middle may be made again: it then has no
            effect, or what is done already does no harm.
    """

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
            definition: What a model is told of it.
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

    async def call(self, args: str | dict[str, Any] | None) -> ToolResult:
        """Run the tool.

        Args:
            args: The model's arguments: JSON text or a mapping.

        Returns:
            What the model is told.

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
            # A tool that breaks costs a call, never the run: the model is told and goes on.
            logger.warning("tool %s failed", self.name, exc_info=True)
            why = "; ".join(dict.fromkeys(map(_without_path, leaves_of(exc))))
            return ToolResult(f"Error: {why}", is_error=True)


def _without_path(exc: BaseException) -> str:
    """Return what an exception says without a path of the machine."""
    no_path = isinstance(exc, OSError) and exc.strerror
    return f"{type(exc).__name__}: {no_path or exc}"


class Toolbox:
    """The tools that one agent has.

    Args:
        tools: Their names must differ.
        keep: Writes a file that a model's provider made into the agent's workspace; it raises
            ToolError.

    Attributes:
        keep: As given.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        keep: Callable[[str, bytes], Awaitable[None]] | None = None,
    ) -> None:
        self.keep = keep
        self._tools = {tool.name: tool for tool in tools}

    @property
    def definitions(self) -> list[ToolDefinition]:
        """What a model is told of them."""
        return [tool.definition for tool in self._tools.values()]

    def is_repeatable(self, name: str) -> bool:
        """Return whether a cut call of a tool may be made again; one of an unknown tool may."""
        tool = self._tools.get(name)
        return tool is None or tool.is_repeatable

    async def call(self, name: str, args: str | dict[str, Any] | None) -> ToolResult:
        """Run a tool by name; an unknown name is an error that the model is told."""
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
    """Return a call's arguments as people are shown them: without those that are called a secret.

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
    # The model's own spelling stays when there is nothing to hide.
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
    return f"Error: {name} was called wrongly: {faults}."
