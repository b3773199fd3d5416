"""Loads functions from Python files as tools: MassGen's ``custom_tools``.

A file contains the user's code. It is imported once per run, in a worker thread. A tool that can't
be loaded is left out, with a notice, and the run continues.

A function may be a generator: each value is shown when it arrives, and the result consists of all
values. An immediate stop ends the function at its next value at the latest.

The tools' names have MassGen's prefix, so they can't replace tools of another kind.

Source: MassGen 0.1.97, `tool/_manager.py` (names, preset arguments), `tool/_result.py` (results),
`backend/base_with_custom_tool_and_mcp.py` (`stream_custom_tool_execution`: chunks, `is_log`).
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from nb_agents.cancel import AgentStopped, CancellationStatus, current_token
from nb_agents.config.tools import CustomFunction, CustomToolSpec, allows_any_tool
from nb_agents.errors import UserError
from nb_agents.tools.base import Tool, ToolContext
from nb_agents.tools.functions import as_printed, function_tool, result_text

logger = logging.getLogger("nb_agents")

PREFIX = "custom_tool__"
"""The prefix of the tools' names."""

_numbers = itertools.count(1)


class CustomTools:
    """Loads the custom tools of a run. Agents share the imported modules and their state.

    Args:
        notice: Called with each notice for the user, which is one sentence.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._files: dict[str, ModuleType | UserError] = {}
        self._loading = anyio.Lock()

    async def tools(
        self,
        context: ToolContext,
        specs: Sequence[CustomToolSpec],
        takes: Callable[..., bool] = allows_any_tool,
    ) -> list[Tool]:
        """Return an agent's custom tools. Reports those that can't be loaded.

        Args:
            context: The agent's tool context.
            specs: The custom tools in the agent's configuration.
            takes: Called with a tool's short and full name. Returns whether the agent may have it.
        """
        tools_by_name: dict[str, Tool] = {}
        for path, function_spec in _select(specs, takes):
            try:
                tool = await self._tool(path, function_spec, context)
                if tool.name in tools_by_name:
                    raise UserError("another custom tool has the same name.")
            except UserError as exc:
                self._notice(_left_out(context.agent, function_spec, exc))
            else:
                tools_by_name[tool.name] = tool
        return list(tools_by_name.values())

    async def _tool(self, path: str, function_spec: CustomFunction, context: ToolContext) -> Tool:
        module = await self._loaded(path)
        function = vars(module).get(function_spec.function)
        if not callable(function):
            raise UserError(f"{path!r} has no function {function_spec.function!r}.")
        answering = _wrapped(function, PREFIX + function_spec.name, context.tell)
        tool = function_tool(answering, context, function_spec.preset)
        if function_spec.description:
            tool.definition = replace(tool.definition, description=function_spec.description)
        return tool

    async def _loaded(self, path: str) -> ModuleType:
        async with self._loading:
            if path not in self._files:
                # A separate limiter, so that a file that hangs can't use up the threads of other
                # tools.
                self._files[path] = await to_thread.run_sync(
                    _load, path, abandon_on_cancel=True, limiter=CapacityLimiter(1)
                )
        module = self._files[path]
        if isinstance(module, UserError):
            raise module
        return module


def missing_file_notices(
    agent: str, specs: Sequence[CustomToolSpec], takes: Callable[..., bool] = allows_any_tool
) -> Iterator[str]:
    """Yield a notice for each custom tool with a missing file, without importing files.

    Args:
        agent: The agent's id.
        specs: The custom tools in the agent's configuration.
        takes: See `CustomTools.tools`.
    """
    for path, function_spec in _select(specs, takes):
        try:
            _existing(path)
        except UserError as exc:
            yield _left_out(agent, function_spec, exc)


def _left_out(agent: str, function_spec: CustomFunction, why: UserError) -> str:
    return f"Custom tool {function_spec.name!r} of {agent} is left out: {why}"


def _select(
    specs: Sequence[CustomToolSpec], takes: Callable[..., bool]
) -> Iterator[tuple[str, CustomFunction]]:
    for spec in specs:
        for each in spec.functions:
            if takes(each.name, PREFIX + each.name):
                yield spec.path, each


def _load(path: str) -> ModuleType | UserError:
    """Import a file as a module. Returns the reason if that fails."""
    try:
        return _run(_existing(path))
    except UserError as exc:
        return exc
    except AgentStopped:
        raise
    except BaseException as exc:  # the user's code may raise SystemExit, which would end all runs
        logger.warning("the file %s of custom tools failed", path, exc_info=True)
        return UserError(f"{path!r} can't be imported ({as_printed(exc)}).")


def _existing(path: str) -> Path:
    if not path:
        raise UserError("it has no `path`, and MassGen's own tools are not available here.")
    file = Path(path).absolute()
    if file.suffix != ".py" or not file.is_file():
        where = "next to the team file or in the working directory"
        raise UserError(f"there is no Python file {path!r} {where}.")
    return file


def _run(file: Path) -> ModuleType:
    name = f"nb_agents_custom_tools_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # because the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their types there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _wrapped(
    function: Callable[..., Any], name: str, tell: Callable[[str], None]
) -> Callable[..., Any]:
    """Wrap a MassGen function so that it has another name and returns text for a model."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        value = function(**arguments)
        return _joined(value, tell) if inspect.isgenerator(value) else _result_value(value)

    @functools.wraps(function)
    async def call_async(**arguments: Any) -> Any:
        return _result_value(await function(**arguments))

    @functools.wraps(function)
    async def call_yielding(**arguments: Any) -> Any:
        return await _joined_async(function(**arguments), tell)

    chosen: Callable[..., Any] = call
    if inspect.iscoroutinefunction(function):
        chosen = call_async
    elif inspect.isasyncgenfunction(function):
        chosen = call_yielding
    chosen.__name__ = name
    return chosen


def _joined(pieces: Generator[Any, Any, Any], tell: Callable[[str], None]) -> str | None:
    with closing(pieces):
        return _join(_line(piece, tell) for piece in pieces)


async def _joined_async(
    pieces: AsyncGenerator[Any, Any], tell: Callable[[str], None]
) -> str | None:
    async with aclosing(pieces):
        return _join([_line(piece, tell) async for piece in pieces])


def _join(lines: Iterable[str]) -> str | None:
    return "".join(lines).removesuffix("\n") or None


def _line(piece: Any, tell: Callable[[str], None]) -> str:
    """Show a value that a function yielded. Returns it as lines for the model, or ""."""
    _raise_if_stopped()
    text = "" if piece is None else result_text(_result_value(piece))
    if not text:
        return ""
    line = text if text.endswith("\n") else f"{text}\n"
    tell(line)
    return "" if getattr(piece, "is_log", False) else line  # only for the user


def _raise_if_stopped() -> None:
    """Raise AgentStopped after an immediate stop, because a thread can't be ended from outside.

    A graceful stop lets the call finish.
    """
    token = current_token()
    if token is not None and token.status >= CancellationStatus.IMMEDIATE:
        token.checkpoint()


def _result_value(value: Any) -> Any:
    """Return the text of a MassGen ``ExecutionResult``, or any other value unchanged."""
    blocks = getattr(value, "output_blocks", None)
    if not isinstance(blocks, list | tuple):
        return value
    return "\n".join(str(getattr(block, "data", "")) for block in blocks)
