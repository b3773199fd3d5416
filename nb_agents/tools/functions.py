"""Turns functions of a notebook into tools.

A plain function runs in a worker thread and may therefore block. All async functions run on one
event loop in a separate thread. Shared objects such as a client or a semaphore work across calls,
and a function that blocks delays only other async functions, not a run. No function runs on the
notebook's loop, which is blocked while a cell is busy, so an async client that a cell has used
can't be used in a tool.

In both kinds of functions, `nb_agents.checkpoint` and `should_stop` refer to the calling run. An
immediate stop cancels an async call. Both kinds then get a moment to clean up. A thread can't be
ended, so a plain function that does not check for a stop keeps running (`nb_agents.tools.threads`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import traceback
import typing
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, overload

import anyio
from pydantic import TypeAdapter
from pydantic_core import from_json

from nb_agents.cancel import AgentStopped
from nb_agents.errors import UserError, error_message, leaf_exceptions
from nb_agents.json_text import json_text
from nb_agents.models.providers import load
from nb_agents.nouns import did_you_mean
from nb_agents.service_loops import ServiceLoop
from nb_agents.tools.base import Tool, ToolContext, ToolError, is_being_closed, running_task
from nb_agents.tools.gate import NAME
from nb_agents.tools.threads import ThreadCall
from nb_agents.tools.tool_schemas import SchemaFault, fit_schema

logger = logging.getLogger("nb_agents")

CLEANUP_S = 1.0
"""Seconds that a cancelled function gets for its ``finally`` blocks before it is abandoned."""

EMPTY_RESULT = "(nothing was returned)"

_MARK = "__nb_agents_tool__"
_REPEATABLE = "__nb_agents_repeatable__"
_ASKS = "__nb_agents_asks__"
F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, repeatable: bool = False, asks: bool = False) -> Callable[[F], F]: ...
def tool(
    function: F | None = None, *, repeatable: bool = False, asks: bool = False
) -> F | Callable[[F], F]:
    """Mark a function as a tool for agents. It can still be called directly.

    The model sees the function's name, signature and docstring. The return value is sent to the
    model: text unchanged, other values as JSON (NaN becomes null), and values without a JSON form,
    such as a figure, as their repr. If the function raises, the call fails, and the model gets the
    exception's type and message. A parameter with the annotation `nb_agents.tools.base.ToolContext`
    is filled in and hidden from the model.

    Args:
        function: A sync or async function.
        repeatable: Whether a resume repeats a call that a stop or a crash interrupted. Set it for a
            function that only reads or is idempotent. Other functions are not called again, because
            they may have taken effect in part. The model is then asked to check the state and to do
            what is missing.
        asks: Whether the user must approve each call. A matching rule of the team file's
            `tool_policy` decides instead.

    Returns:
        The same function.

    Raises:
        UserError: The function can't be described to a model.

    Example:
        >>> @tool
        ... def area(width: float, height: float = 1.0) -> float:
        ...     "Compute the area of a rectangle."
        ...     return width * height
        >>> area(2.0, 3.0)
        6.0
        >>> @tool(repeatable=True)
        ... def population(city: str) -> int:
        ...     "Look up how many people live in a city."
        ...     return {"Basel": 178_000}[city]
    """
    if function is None:
        return partial(_marked, is_repeatable=repeatable, asks=asks)
    return _marked(function, is_repeatable=repeatable, asks=asks)


def _marked(function: F, *, is_repeatable: bool, asks: bool) -> F:
    function_tool(function)  # raises in the cell that defines the function
    setattr(function, _MARK, True)
    setattr(function, _REPEATABLE, is_repeatable)
    setattr(function, _ASKS, asks)
    return function


def is_marked(function: object) -> bool:
    """Return whether an object is a function marked with `tool`."""
    return callable(function) and getattr(function, _MARK, False) is True


def find_functions(names: str, namespace: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Find functions by name.

    Args:
        names: Comma-separated names, as in ``--tools f,g``.
        namespace: The names to search, such as the notebook's variables.

    Returns:
        The functions in the order of the names, without duplicates.

    Raises:
        UserError: A name is unknown or not a function, or two functions have the same ``__name__``.
    """
    requested = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if not requested:
        raise UserError("No function names were given. Separate names with commas: --tools f,g")
    functions: dict[str, Callable[..., Any]] = {}
    for name in requested:
        function = _find(name, namespace)
        own = getattr(function, "__name__", name)
        if own in functions and functions[own] is not function:
            raise UserError(
                f"Two functions in {names!r} have the name {own!r}. Rename one of them."
            )
        functions[own] = function
    return list(functions.values())


def function_tool(
    function: Callable[..., Any],
    context: ToolContext | None = None,
    preset: Mapping[str, Any] | None = None,
) -> Tool:
    """Create a tool from a function.

    Args:
        function: A sync or async function. It need not be marked with `tool`.
        context: The value of the function's `ToolContext` parameter. None if the tool is created
            only to check the function.
        preset: Additional arguments, which are hidden from the model.

    Raises:
        UserError: The function can't be described to a model.
    """
    load()
    name = _name_of(function)
    hints = _hints_of(function, name)
    filled = {each: context for each, hint in hints.items() if hint is ToolContext}
    hidden_args = {**filled, **(preset or {})}
    visible = _parameters_of(function, name, hints, set(hidden_args))

    thread = ThreadCall(name, context.session, context.tell) if context else ThreadCall(name)

    async def call(**arguments: Any) -> str:
        return await _run(thread, function, arguments | hidden_args)

    # Not functools.wraps: the return annotation is not used, and one without a schema would cause a
    # warning in each run.
    call.__name__ = call.__qualname__ = name
    call.__doc__ = inspect.getdoc(function)
    call.__annotations__ = {each.name: each.annotation for each in visible if each.name in hints}
    setattr(call, "__signature__", inspect.Signature(visible))  # noqa: B010 - mypy knows no such name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a default that JSON can't express is not shown to models
            result = Tool(call, is_repeatable=getattr(function, _REPEATABLE, False) is True)
    except Exception as exc:  # pydantic and pydantic-ai raise exceptions of many types
        raise UserError(_refusal(name, error_message(exc).splitlines()[0])) from exc
    try:
        fit_schema(result.definition.parameters_json_schema)
    except SchemaFault as exc:
        raise UserError(_refusal(name, f"its schema {exc}. Simplify its annotations.")) from None
    result.knows_workspace = bool(hidden_args)
    result.asks = getattr(function, _ASKS, False) is True
    return result


def _find(name: str, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    if name in namespace:
        function: Callable[..., Any] = namespace[name]
        if not callable(function):
            kind = type(function).__name__
            raise UserError(f"{name!r} is of type {kind!r}. Pass the name of a function.")
        return function
    callables = [each for each, value in namespace.items() if callable(value) and each[:1] != "_"]
    marked = ", ".join(each for each in callables if is_marked(namespace[each]))
    hint = did_you_mean(name, callables) or f" Marked as tools: {marked or 'none'}."
    raise UserError(f"No function {name!r} in this notebook.{hint} Run the cell that defines it.")


def _refusal(name: str, why: str) -> str:
    return f"{name!r} can't be a tool: {why}"


def _name_of(function: Callable[..., Any]) -> str:
    if not callable(function):
        kind = type(function).__name__
        raise UserError(f"{function!r} can't be a tool: it is of type {kind!r}. Use a function.")
    name = getattr(function, "__name__", "")
    if not NAME.fullmatch(name):
        function_name = name or type(function).__name__
        why = "its name must have 1 to 64 characters from A-Z, a-z, 0-9 and _. Rename it"
        raise UserError(_refusal(function_name, f"{why}."))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(_refusal(name, "it is a generator. Return a list instead."))
    return str(name)


def _hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as exc:  # annotations can run any code
        why = f"its annotations can't be read ({error_message(exc)}). Define their names before it."
        raise UserError(_refusal(name, why)) from exc
    hints.pop("return", None)
    return hints


def _parameters_of(
    function: Callable[..., Any], name: str, hints: Mapping[str, Any], hidden: set[str]
) -> list[inspect.Parameter]:
    """Return the parameters that the model sets, with resolved annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as exc:  # some functions written in C
        raise UserError(_refusal(name, "it has no signature. Wrap it in a `def`.")) from exc
    _require_named(name, signature, hidden)
    visible = [each for each in signature.parameters.values() if each.name not in hidden]
    for each in visible:
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
            why = f"its parameter {each.name!r} can't be passed by name. Remove the `*` or `/`."
            raise UserError(_refusal(name, why))
        _require_schema(name, each.name, hints.get(each.name, Any))
    return [each.replace(annotation=hints.get(each.name, each.annotation)) for each in visible]


def _require_named(name: str, signature: inspect.Signature, hidden: set[str]) -> None:
    """Raise unless the hidden arguments can be passed by name."""
    kinds = {each.name: each.kind for each in signature.parameters.values()}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    unknown = sorted(each for each in hidden if kinds.get(each) not in named)
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds.values():
        why = f"it has no parameter {unknown[0]!r} that can be passed by name. "
        has = ", ".join(each for each, kind in kinds.items() if kind in named)
        raise UserError(_refusal(name, f"{why}Its parameters: {has or 'none'}."))


def _require_schema(name: str, parameter: str, hint: Any) -> None:
    try:
        TypeAdapter(hint).json_schema()
    except Exception as exc:  # pydantic runs code of the type
        kind = getattr(hint, "__name__", str(hint))
        why = f"its parameter {parameter!r} is of type {kind!r}, which a model can't write. "
        remedy = "Use str, int, float, bool, list, dict, Literal or a pydantic model."
        raise UserError(_refusal(name, why + remedy)) from exc


async def _run(
    thread: ThreadCall, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> str:
    if inspect.iscoroutinefunction(function):
        return await _async_thread().run(partial(_answer_async, thread.tool, function, arguments))
    answer = await thread.run(partial(_answer, thread.tool, function, arguments), CLEANUP_S)
    if isinstance(answer, str):
        return answer
    # Many decorators wrap an async function in a plain one that returns the coroutine.
    return await _async_thread().run(partial(_answer_async, thread.tool, lambda: answer, {}))


def _answer(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> str | Coroutine[Any, Any, Any]:
    with _errors_for_model(name):
        value = function(**arguments)
        return value if inspect.iscoroutine(value) else result_text(value)


async def _answer_async(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> str:
    with _errors_for_model(name):
        return result_text(await function(**arguments))


@contextmanager
def _errors_for_model(name: str) -> Iterator[None]:
    """Convert exceptions of the user's code to a ToolError for the model; re-raise a stop.

    SystemExit and KeyboardInterrupt would end the event loop of all runs. A CancelledError that the
    function itself raised would look like a stop of the agent.
    """
    task = running_task()
    try:
        yield
    except (AgentStopped, ToolError):
        raise
    except asyncio.CancelledError as exc:
        raise ToolError("the function was cancelled") from exc
    except BaseException as exc:
        if is_being_closed(exc, task):
            raise
        leaves = leaf_exceptions(exc)  # a task group in the function may have wrapped a stop
        if stop := next((leaf for leaf in leaves if isinstance(leaf, AgentStopped)), None):
            raise stop from exc
        logger.warning("notebook function %s failed", name, exc_info=True)
        raise ToolError(as_printed(exc)) from exc


def as_printed(exc: BaseException) -> str:
    """Return an exception's type and message. For a group, return those of its exceptions.

    This also works for an exception with a ``__str__`` that fails.
    """
    printed = (
        "".join(traceback.format_exception_only(leaf)).strip() for leaf in leaf_exceptions(exc)
    )
    return "\n".join(dict.fromkeys(printed))


def result_text(value: object) -> str:
    """Convert a function's return value to text for a model.

    Text is returned unchanged and other values as compact JSON, with null for missing values. A
    value without a JSON form becomes its repr.
    """
    if value is None:
        return EMPTY_RESULT
    if isinstance(value, str):
        return value
    text = json_text(value, is_compact=True)
    # A value that was converted to a JSON string (a date, a path, a repr) is shown without quotes.
    return str(from_json(text)) if text.startswith('"') else text


class _AsyncThread:
    """A thread with an event loop that runs a notebook's async functions."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, name="nb_agents functions", daemon=True).start()

    def _serve(self) -> None:
        while not self._loop.is_closed():
            with ServiceLoop.ASYNC_FUNCTIONS.item():  # a task may raise SystemExit
                self._loop.run_forever()

    async def run(self, make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Run a coroutine in this thread, in the caller's context, and pass on a cancellation."""
        outcome: Future[str] = Future()
        outcome.set_running_or_notify_cancel()  # awaiting tasks can't cancel it
        tasks: list[asyncio.Task[str]] = []
        was_delivered, was_cancelled = threading.Event(), False

        def begin() -> None:
            tasks.append(self._loop.create_task(make()))
            tasks[0].add_done_callback(partial(_settle, outcome))

        def cancel() -> None:
            nonlocal was_cancelled
            was_cancelled = tasks[0].cancel()
            was_delivered.set()

        self._loop.call_soon_threadsafe(begin)
        try:
            return await asyncio.wrap_future(outcome)
        except anyio.get_cancelled_exc_class():
            self._loop.call_soon_threadsafe(cancel)
            with anyio.move_on_after(CLEANUP_S, shield=True), suppress(AgentStopped, ToolError):
                await asyncio.wrap_future(outcome)
            if not was_delivered.is_set():
                _abandon(self)
            if outcome.done() and (not was_cancelled or outcome.exception() is None):
                return outcome.result()  # it ended before the cancellation took effect
            raise


def _settle(outcome: Future[str], task: asyncio.Task[str]) -> None:
    if task.cancelled():  # before it started
        outcome.set_exception(ToolError("the function was cancelled"))
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


# Changed only in the thread of the runs' event loop, so no lock is needed.
_threads: list[_AsyncThread] = []


def _async_thread() -> _AsyncThread:
    if not _threads:
        _threads.append(_AsyncThread())
    return _threads[0]


def _abandon(thread: _AsyncThread) -> None:
    """Make later calls start a new loop, because a function blocks this one."""
    logger.warning("an async notebook function blocks its loop; later calls use a new loop")
    if thread in _threads:
        _threads.remove(thread)
