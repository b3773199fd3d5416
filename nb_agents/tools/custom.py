"""Functions of Python files as tools: MassGen's ``custom_tools``.

A file is the user's own code: it is imported once per run, in a worker thread. A tool that can't be
loaded is left out with a notice; it never ends a run.

A function may yield: each piece is shown as it arrives, and all of them are the result. An
immediate stop ends it at its next piece at the latest.

The tools' names have MassGen's prefix, so that none can replace a tool of another kind.

Source: MassGen 0.1.97, `tool/_manager.py` (names, preset arguments), `tool/_result.py` (results),
`backend/base_with_custom_tool_and_mcp.py` (`stream_custom_tool_execution`: pieces, `is_log`).
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
from nb_agents.config.tools import CustomFunction, CustomToolSpec, takes_all
from nb_agents.errors import UserError
from nb_agents.tools.base import Tool, ToolContext
from nb_agents.tools.functions import as_printed, function_tool, result_text

logger = logging.getLogger("nb_agents")

PREFIX = "custom_tool__"
"""The prefix of their names."""

_numbers = itertools.count(1)


class CustomTools:
    """The functions of files that the agents of a run have; its agents share what a file keeps.

    Args:
        notice: Called with each notice for the user, one sentence.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._files: dict[str, ModuleType | UserError] = {}
        self._loading = anyio.Lock()

    async def tools(
        self,
        context: ToolContext,
        specs: Sequence[CustomToolSpec],
        takes: Callable[..., bool] = takes_all,
    ) -> list[Tool]:
        """Return an agent's tools; those that can't be made are reported.

        Args:
            context: Whose they are.
            specs: What its configuration gives it.
            takes: Returns whether it gets a tool, by its own and its full name.
        """
        made: dict[str, Tool] = {}
        for path, wanted in _wanted(specs, takes):
            try:
                tool = await self._tool(path, wanted, context)
                if tool.name in made:
                    raise UserError("there is another of that name.")
            except UserError as exc:
                self._notice(_left_out(context.agent, wanted, exc))
            else:
                made[tool.name] = tool
        return list(made.values())

    async def _tool(self, path: str, wanted: CustomFunction, context: ToolContext) -> Tool:
        module = await self._loaded(path)
        function = vars(module).get(wanted.function)
        if not callable(function):
            raise UserError(f"{path!r} has no function {wanted.function!r}.")
        answering = _answering(function, PREFIX + wanted.name, context.tell)
        tool = function_tool(answering, context, wanted.preset)
        if wanted.description:
            tool.definition = replace(tool.definition, description=wanted.description)
        return tool

    async def _loaded(self, path: str) -> ModuleType:
        async with self._loading:
            if path not in self._files:
                # A separate limiter: a file that hangs can't use up the threads of other tools.
                self._files[path] = await to_thread.run_sync(
                    _load, path, abandon_on_cancel=True, limiter=CapacityLimiter(1)
                )
        found = self._files[path]
        if isinstance(found, UserError):
            raise found
        return found


def without_file(
    agent: str, specs: Sequence[CustomToolSpec], takes: Callable[..., bool] = takes_all
) -> Iterator[str]:
    """Yield a notice for each tool whose file is missing; imports no file.

    Args:
        agent: Its id.
        specs: What its configuration gives it.
        takes: See `CustomTools.tools`.
    """
    for path, wanted in _wanted(specs, takes):
        try:
            _existing(path)
        except UserError as exc:
            yield _left_out(agent, wanted, exc)


def _left_out(agent: str, wanted: CustomFunction, why: UserError) -> str:
    return f"Custom tool {wanted.name!r} of {agent} is left out: {why}"


def _wanted(
    specs: Sequence[CustomToolSpec], takes: Callable[..., bool]
) -> Iterator[tuple[str, CustomFunction]]:
    for spec in specs:
        for each in spec.functions:
            if takes(each.name, PREFIX + each.name):
                yield spec.path, each


def _load(path: str) -> ModuleType | UserError:
    """Import a file as a module; return the reason if that fails."""
    try:
        return _run(_existing(path))
    except UserError as exc:
        return exc
    except AgentStopped:
        raise
    except BaseException as exc:  # any code; its SystemExit would end the loop of all runs
        logger.warning("the file %s of custom tools failed", path, exc_info=True)
        return UserError(f"{path!r} can't be imported ({as_printed(exc)}).")


def _existing(path: str) -> Path:
    if not path:
        raise UserError("it has no `path`, and MassGen's own tools are not available here.")
    file = Path(path).absolute()
    if file.suffix != ".py" or not file.is_file():
        where = "beside the team's file or in the working directory"
        raise UserError(f"there is no Python file {path!r} {where}.")
    return file


def _run(file: Path) -> ModuleType:
    name = f"nb_agents_custom_tools_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # as it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their types
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _answering(
    function: Callable[..., Any], name: str, tell: Callable[[str], None]
) -> Callable[..., Any]:
    """Wrap a function of MassGen's kind under another name, with a result that a model can read."""

    @functools.wraps(function)
    def call(**known: Any) -> Any:
        value = function(**known)
        return _joined(value, tell) if inspect.isgenerator(value) else _told(value)

    @functools.wraps(function)
    async def call_async(**known: Any) -> Any:
        return _told(await function(**known))

    @functools.wraps(function)
    async def call_yielding(**known: Any) -> Any:
        return await _joined_async(function(**known), tell)

    chosen: Callable[..., Any] = call
    if inspect.iscoroutinefunction(function):
        chosen = call_async
    elif inspect.isasyncgenfunction(function):
        chosen = call_yielding
    chosen.__name__ = name
    return chosen


def _joined(pieces: Generator[Any, Any, Any], tell: Callable[[str], None]) -> str | None:
    with closing(pieces):
        return _whole(_line(piece, tell) for piece in pieces)


async def _joined_async(
    pieces: AsyncGenerator[Any, Any], tell: Callable[[str], None]
) -> str | None:
    async with aclosing(pieces):
        return _whole([_line(piece, tell) async for piece in pieces])


def _whole(lines: Iterable[str]) -> str | None:
    return "".join(lines).removesuffix("\n") or None


def _line(piece: Any, tell: Callable[[str], None]) -> str:
    """Show what a function yields, unless its call has been abandoned.

    Returns:
        What of it the model gets: lines, or "".
    """
    _leave_if_cut()
    text = "" if piece is None else result_text(_told(piece))
    if not text:
        return ""
    line = text if text.endswith("\n") else f"{text}\n"
    tell(line)
    return "" if getattr(piece, "is_log", False) else line  # MassGen's for what a person alone sees


def _leave_if_cut() -> None:
    """Raise after an immediate stop, because a thread can't be ended from outside.

    A graceful one lets a call in hand finish.
    """
    token = current_token()
    if token is not None and token.status >= CancellationStatus.IMMEDIATE:
        token.checkpoint()


def _told(value: Any) -> Any:
    """Return the texts of MassGen's ``ExecutionResult``; any other value as it is."""
    blocks = getattr(value, "output_blocks", None)
    if not isinstance(blocks, list | tuple):
        return value
    return "\n".join(str(getattr(block, "data", "")) for block in blocks)
