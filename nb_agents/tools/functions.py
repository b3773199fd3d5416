"""Functions of a notebook as tools.

A plain function runs in a worker thread, and so may block. All async functions run on one loop in a
separate thread: shared objects (a client, a semaphore) stay usable between calls, and a function
that blocks delays other async functions, never a run. Neither runs on the notebook's loop, which is
blocked while a cell is busy: an async client created in a cell can't be used.

In both, `nb_agents.checkpoint` and `should_stop` refer to the calling run. An immediate stop
cancels an async call; both kinds then get a moment to clean up. A thread can't be ended: a plain
function that does not check keeps running (`nb_agents.tools.threads`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
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
from pydantic_core import from_json, to_json

from nb_agents.cancel import AgentStopped
from nb_agents.errors import UserError, leaves_of, said_by
from nb_agents.models.providers import load
from nb_agents.nouns import did_you_mean
from nb_agents.service_loops import ServiceLoop
from nb_agents.tools.base import Tool, ToolContext, ToolError
from nb_agents.tools.threads import ThreadCall

logger = logging.getLogger("nb_agents")

CLEANUP_S = 1.0
"""Seconds that a cancelled function gets for its ``finally`` blocks before it is abandoned."""

NOTHING = "(nothing was returned)"

_MARK = "__nb_agents_tool__"
_REPEATABLE = "__nb_agents_repeatable__"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that all providers accept."""

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, repeatable: bool = False) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, repeatable: bool = False) -> F | Callable[[F], F]:
    """Mark a function as a tool for agents; it can still be called directly.

    The model gets its name, signature and docstring. Its return value goes to the model: text
    unchanged, other values as JSON, and values without JSON (a data frame, a figure) by their repr.
    An exception fails the call: the model gets its type and message. A parameter annotated
    `nb_agents.tools.base.ToolContext` is filled in, and hidden from the model.

    Args:
        function: Sync or async.
        repeatable: Whether a resume repeats a call that a stop or a crash interrupted. Set it for a
            function that only reads, or that has the same effect when called twice. Any other is
            not called again, because a part of it may have happened: the model gets a message to
            check, and to do what is missing.

    Returns:
        The same function.

    Raises:
        UserError: It can't be described to a model.

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
        return partial(_marked, is_repeatable=repeatable)
    return _marked(function, is_repeatable=repeatable)


def _marked(function: F, *, is_repeatable: bool) -> F:
    function_tool(function)  # a mistake shows in the cell that made it
    setattr(function, _MARK, True)
    setattr(function, _REPEATABLE, is_repeatable)
    return function


def is_marked(function: object) -> bool:
    """Return whether `tool` was applied to this function."""
    return callable(function) and getattr(function, _MARK, False) is True


def find_functions(names: str, namespace: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Find functions by name.

    Args:
        names: Their names with commas between, as in ``--tools f,g``.
        namespace: Where to look, such as the notebook's names.

    Returns:
        The functions in that order, each once.

    Raises:
        UserError: A name is unknown, or is no function's; or two functions call themselves alike.
    """
    wanted = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if not wanted:
        raise UserError("No function is named. Write their names with commas: --tools f,g")
    found: dict[str, Callable[..., Any]] = {}
    for name in wanted:
        function = _find(name, namespace)
        own = getattr(function, "__name__", name)
        if own in found and found[own] is not function:
            raise UserError(f"Two of {names!r} are functions called {own!r}. Rename one of them.")
        found[own] = function
    return list(found.values())


def function_tool(
    function: Callable[..., Any],
    context: ToolContext | None = None,
    preset: Mapping[str, Any] | None = None,
) -> Tool:
    """Return a tool made from a function.

    Args:
        function: Sync or async; marked by `tool` or not.
        context: The value of its `ToolContext` parameter; None only checks whether the function can
            be a tool.
        preset: Further arguments, which are hidden from the model.

    Returns:
        The tool.

    Raises:
        UserError: It can't be described to a model.
    """
    load()
    name = _name_of(function)
    hints = _hints_of(function, name)
    filled = {each: context for each, hint in hints.items() if hint is ToolContext}
    given = {**filled, **(preset or {})}
    visible = _parameters_of(function, name, hints, set(given))

    thread = ThreadCall(name, context.session, context.tell) if context else ThreadCall(name)

    async def call(**known: Any) -> str:
        return await _run(thread, function, known | given)

    # Not functools.wraps: a return annotation means nothing here, and one without a schema would
    # print a warning at each run.
    call.__name__ = call.__qualname__ = name
    call.__doc__ = inspect.getdoc(function)
    call.__annotations__ = {each.name: each.annotation for each in visible if each.name in hints}
    setattr(call, "__signature__", inspect.Signature(visible))  # noqa: B010 - mypy knows no such name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a default without JSON is merely not shown
            made = Tool(call, is_repeatable=getattr(function, _REPEATABLE, False) is True)
    except Exception as exc:  # pydantic's, pydantic-ai's: there are a dozen
        raise UserError(_refusal(name, said_by(exc).splitlines()[0])) from exc
    made.knows_workspace = bool(given)
    return made


def _find(name: str, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    if name in namespace:
        function: Callable[..., Any] = namespace[name]
        if not callable(function):
            kind = type(function).__name__
            raise UserError(f"{name!r} is not a function but of type {kind!r}. Name functions.")
        return function
    known = [each for each, value in namespace.items() if callable(value) and each[:1] != "_"]
    marked = ", ".join(each for each in known if is_marked(namespace[each]))
    hint = did_you_mean(name, known) or f" Marked as tools: {marked or 'none'}."
    raise UserError(f"No function {name!r} in this notebook.{hint} Run the cell that defines it.")


def _refusal(name: str, why: str) -> str:
    return f"{name!r} can't be a tool: {why}"


def _name_of(function: Callable[..., Any]) -> str:
    if not callable(function):
        kind = type(function).__name__
        raise UserError(f"{function!r} can't be a tool: it is of type {kind!r}. Give a function.")
    name = getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        shown = name or type(function).__name__
        why = "its name must be 1 to 64 of A-Z, a-z, 0-9 and _. Define it with `def` and such a one"
        raise UserError(_refusal(shown, f"{why}."))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(_refusal(name, "it yields. Return a list instead."))
    return str(name)


def _hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as exc:  # an annotation is any code
        why = f"its annotations can't be read ({said_by(exc)}). Define what they name before it."
        raise UserError(_refusal(name, why)) from exc
    hints.pop("return", None)
    return hints


def _parameters_of(
    function: Callable[..., Any], name: str, hints: Mapping[str, Any], hidden: set[str]
) -> list[inspect.Parameter]:
    """Return the parameters that a model fills, with their annotations read."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as exc:  # some that are written in C have none
        raise UserError(_refusal(name, "it has no signature. Call it in a `def`.")) from exc
    _require_named(name, signature, hidden)
    visible = [each for each in signature.parameters.values() if each.name not in hidden]
    for each in visible:
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
            why = f"a model can't name its parameter {each.name!r}. Remove `*` or `/` there."
            raise UserError(_refusal(name, why))
        _require_schema(name, each.name, hints.get(each.name, Any))
    return [each.replace(annotation=hints.get(each.name, each.annotation)) for each in visible]


def _require_named(name: str, signature: inspect.Signature, hidden: set[str]) -> None:
    """Check that arguments not set by the model can be passed by name."""
    known = {each.name: each.kind for each in signature.parameters.values()}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    astray = sorted(each for each in hidden if known.get(each) not in named)
    if astray and inspect.Parameter.VAR_KEYWORD not in known.values():
        why = f"it takes no {astray[0]!r} by that name, which it is to be given. "
        has = ", ".join(each for each, kind in known.items() if kind in named)
        raise UserError(_refusal(name, f"{why}It takes: {has or 'nothing'}."))


def _require_schema(name: str, parameter: str, hint: Any) -> None:
    try:
        TypeAdapter(hint).json_schema()
    except Exception as exc:  # pydantic calls code of the type
        kind = getattr(hint, "__name__", str(hint))
        why = f"its parameter {parameter!r} is of type {kind!r}, which a model can't write. "
        remedy = "Use str, int, float, bool, list, dict, Literal or a pydantic model."
        raise UserError(_refusal(name, why + remedy)) from exc


async def _run(thread: ThreadCall, function: Callable[..., Any], known: Mapping[str, Any]) -> str:
    if inspect.iscoroutinefunction(function):
        return await _async_thread().run(partial(_answer_async, thread.tool, function, known))
    answer = await thread.run(partial(_answer, thread.tool, function, known), CLEANUP_S)
    if isinstance(answer, str):
        return answer
    # A plain function around an async one, as many decorators make it.
    return await _async_thread().run(partial(_answer_async, thread.tool, lambda: answer, {}))


def _answer(
    name: str, function: Callable[..., Any], known: Mapping[str, Any]
) -> str | Coroutine[Any, Any, Any]:
    with _failures_told(name):
        value = function(**known)
        return value if inspect.iscoroutine(value) else result_text(value)


async def _answer_async(name: str, function: Callable[..., Any], known: Mapping[str, Any]) -> str:
    with _failures_told(name):
        return result_text(await function(**known))


@contextmanager
def _failures_told(name: str) -> Iterator[None]:
    """Turn any exception of the user's code into a message for the model; re-raise a stop.

    SystemExit and KeyboardInterrupt would end the loop of all runs, and a CancelledError that the
    function made itself would pass for a stop of its agent.
    """
    try:
        yield
    except (AgentStopped, ToolError, GeneratorExit):
        raise
    except asyncio.CancelledError as exc:
        raise ToolError("the function was cancelled") from exc
    except BaseException as exc:
        leaves = leaves_of(exc)  # a task group of the function's own may have wrapped a stop
        if stop := next((leaf for leaf in leaves if isinstance(leaf, AgentStopped)), None):
            raise stop from exc
        logger.warning("notebook function %s failed", name, exc_info=True)
        raise ToolError(as_printed(exc)) from exc


def as_printed(exc: BaseException) -> str:
    """Return the last lines of an exception's traceback; for a group, those of its leaves.

    An exception whose message can't be formatted is handled too.
    """
    printed = ("".join(traceback.format_exception_only(leaf)).strip() for leaf in leaves_of(exc))
    return "\n".join(dict.fromkeys(printed))


def result_text(value: object) -> str:
    """Return a result as text, as short as is accurate.

    Args:
        value: A function's return value.

    Returns:
        Text unchanged, other values as JSON, and values without JSON by their repr.
    """
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    try:
        text = to_json(value, fallback=_plain, inf_nan_mode="constants")
    except ValueError:  # a circle, bytes that are no text, keys that are none
        return repr(value)
    # A lone string (a date, a path, a repr) is said without quotes and with its line ends.
    return str(from_json(text)) if text.startswith(b'"') else text.decode()


def _plain(value: Any) -> Any:
    """Return the JSON replacement of a value that JSON can't represent."""
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else repr(value)  # numpy's numbers, and everything else


class _AsyncThread:
    """A thread with an event loop for the async functions of a notebook."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, name="nb_agents functions", daemon=True).start()

    def _serve(self) -> None:
        while not self._loop.is_closed():
            with ServiceLoop.ASYNC_FUNCTIONS.item():  # a task may raise SystemExit
                self._loop.run_forever()

    async def run(self, make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Run a coroutine in this thread, in the caller's context; a cancellation reaches it."""
        outcome: Future[str] = Future()
        outcome.set_running_or_notify_cancel()  # those who wait for it can't cancel it
        tasks: list[asyncio.Task[str]] = []
        was_told, was_cancelled = threading.Event(), False

        def begin() -> None:
            tasks.append(self._loop.create_task(make()))
            tasks[0].add_done_callback(partial(_settle, outcome))

        def cancel() -> None:
            nonlocal was_cancelled
            was_cancelled = tasks[0].cancel()
            was_told.set()

        self._loop.call_soon_threadsafe(begin)
        try:
            return await asyncio.wrap_future(outcome)
        except anyio.get_cancelled_exc_class():
            self._loop.call_soon_threadsafe(cancel)
            with anyio.move_on_after(CLEANUP_S, shield=True), suppress(AgentStopped, ToolError):
                await asyncio.wrap_future(outcome)
            if not was_told.is_set():
                _leave(self)
            if outcome.done() and (not was_cancelled or outcome.exception() is None):
                return outcome.result()  # it ended, whoever asked for a stop meanwhile
            raise


def _settle(outcome: Future[str], task: asyncio.Task[str]) -> None:
    if task.cancelled():  # before it began
        outcome.set_exception(ToolError("the function was cancelled"))
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


# Made and left on the loop thread of all runs only, hence no lock.
_threads: list[_AsyncThread] = []


def _async_thread() -> _AsyncThread:
    if not _threads:
        _threads.append(_AsyncThread())
    return _threads[0]


def _leave(thread: _AsyncThread) -> None:
    """Start a new loop for later calls: a function blocks this one."""
    logger.warning("an async notebook function blocks its loop; later ones get a new one")
    if thread in _threads:
        _threads.remove(thread)
