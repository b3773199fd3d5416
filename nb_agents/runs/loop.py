"""The background loop of all runs of a process, and interrupts while somebody waits for one.

The loop is one named daemon thread, never the kernel's loop, so a busy cell can't freeze the agents
and agents can't freeze a cell. It starts on first use, and anew when its thread has died or the
process was forked; at the interpreter's exit every run is stopped at once and saved.

The first press of Ctrl-C, or of the kernel's interrupt, stops the runs that are waited for
gracefully, and the wait goes on; the second stops them at once. Outside of that nothing is
installed here (`nb_agents.jupyter.kernel` has the idle kernel's handler).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import anyio

from nb_agents.errors import UserError

__all__ = [
    "at_shutdown",
    "call",
    "ensure_loop",
    "interrupt_calls",
    "interrupts_held",
    "is_loop_thread",
    "post",
    "submit",
]

logger = logging.getLogger("nb_agents")

THREAD_NAME = "nb_agents"

GOODBYE_S = 0.3
"""What the loop gets at exit to close its sockets, after the runs are saved."""

T = TypeVar("T")


class _Handler:
    """A handler of SIGINT that calls whoever waits, and passes on what nobody waits for.

    Somebody may put a handler over it and keep it to call it: it works there, too, and what it
    replaced is still called when nobody waits.
    """

    def __init__(self) -> None:
        self._previous: Any = signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _waits:
            # A run that is waited for twice is pressed once.
            for press in dict.fromkeys(_waits):
                press()
        elif callable(self._previous):
            self._previous(number, frame)
        elif self._previous is not signal.SIG_IGN:
            signal.default_int_handler(number, frame)

    def restore(self) -> None:
        """Put back what was there before, unless somebody has put a handler over this one."""
        is_uppermost: bool = signal.getsignal(signal.SIGINT) is self
        if is_uppermost:
            # None stands for a handler that was not set from Python and can't be put back.
            known = self._previous is not None
            signal.signal(signal.SIGINT, self._previous if known else signal.default_int_handler)


# All of this is the main thread's own: signals reach no other.
_waits: list[Callable[[], None]] = []
_handlers: list[_Handler] = []


@contextmanager
def interrupt_calls(press: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT call ``press`` instead of raising, within the block.

    Blocks may overlap in any order (several runs awaited on one loop): one handler serves them
    all, and the last to leave puts back what was there before the first.
    In another thread than the main one nothing changes: signals never reach it.

    Args:
        press: Called on the main thread between two bytecodes; must only post elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        # Within: one that stayed behind after an interrupt right here would take all later ones.
        _waits.append(press)
        if signal.getsignal(signal.SIGINT) not in _handlers:
            _handlers.append(_Handler())
        yield
    finally:
        if press in _waits:
            _waits.remove(press)
        if not _waits:
            while _handlers:
                _handlers.pop().restore()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let SIGINT wait until the end of the block: what is done there is done as a whole.

    In another thread than the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[tuple[int, Any]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if previous is None else previous)
    if pressed and callable(previous):
        previous(*pressed[-1])
    elif pressed and previous is not signal.SIG_IGN:
        signal.default_int_handler(*pressed[-1])


@dataclass(frozen=True)
class _Background:
    loop: asyncio.AbstractEventLoop
    end: asyncio.Event
    thread: threading.Thread


# Separates threads that start the first run at the same moment.
_lock = threading.Lock()
_background: _Background | None = None
_before_exit: list[Callable[[], None]] = []


def ensure_loop() -> asyncio.AbstractEventLoop:
    """Give the loop; starts its thread where none lives.

    Raises:
        UserError: The system gives it no thread or no files.
    """
    global _background
    with _lock:
        if _background is None or not _background.thread.is_alive():
            _background = _started()
        return _background.loop


def _started() -> _Background:
    ready: Future[_Background] = Future()
    thread = threading.Thread(target=_serve, args=(ready,), name=THREAD_NAME, daemon=True)
    try:
        thread.start()
        started = ready.result()
    except (OSError, RuntimeError) as exc:
        raise UserError(
            f"The loop that runs agents can't start: {exc}. Close files, threads or other runs, "
            "and try again."
        ) from None
    atexit.unregister(_shut_down)
    atexit.register(_shut_down)
    return started


def submit(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
    """Start a task on the loop; from any thread, without waiting for the loop.

    Args:
        function: Async. Tasks begin in the order in which they were submitted.
        args: Its arguments.

    Returns:
        What comes of it; cancelling that cancels the task, but not what it shields.
    """
    loop, outcome = ensure_loop(), Future[T]()
    asyncio.run_coroutine_threadsafe(_carry_out(outcome, loop, function, args), loop)
    return outcome


async def _carry_out(
    outcome: Future[T],
    loop: asyncio.AbstractEventLoop,
    function: Callable[..., Coroutine[Any, Any, T]],
    args: tuple[Any, ...],
) -> None:
    # A task's own cancel() would reach into shielded scopes, such as that which ends a process.
    with anyio.CancelScope() as scope:

        def cancel(done: Future[T]) -> None:
            if done.cancelled():
                loop.call_soon_threadsafe(scope.cancel)

        outcome.add_done_callback(cancel)
        try:
            result = await function(*args)
        except anyio.get_cancelled_exc_class():
            outcome.cancel()
            raise
        except BaseException as exc:
            with suppress(InvalidStateError):  # nobody waits any more
                outcome.set_exception(exc)
        else:
            with suppress(InvalidStateError):
                outcome.set_result(result)


def post(function: Callable[..., object], *args: Any) -> None:
    """Call a function on the loop soon; from any thread, also from a signal handler.

    Args:
        function: Must not block.
        args: Its arguments.
    """

    async def posted() -> None:
        # In a task: what waits on the loop can be made in no plain callback.
        try:
            function(*args)
        except Exception:
            logger.exception("%s failed", getattr(function, "__qualname__", function))

    if _background is None or _background.loop.is_closed():
        return
    task = posted()
    try:
        asyncio.run_coroutine_threadsafe(task, _background.loop)
    except RuntimeError:  # the loop is closed: nothing is left to be told
        task.close()


def call(function: Callable[..., T], *args: Any, timeout_s: float | None = None) -> T:
    """Call a function on the loop and wait for its result; from any thread, the loop's own too.

    Args:
        function: Must not block.
        args: Its arguments.
        timeout_s: Seconds after which to give up waiting: it is called all the same.

    Returns:
        What it returned.

    Raises:
        TimeoutError: ``timeout_s`` passed.
    """

    async def called() -> T:
        return function(*args)

    if is_loop_thread():
        return function(*args)
    return submit(called).result(timeout_s)


def is_loop_thread() -> bool:
    """Whether this is the loop's own thread, on which nothing may wait for the loop."""
    return _background is not None and threading.current_thread() is _background.thread


def at_shutdown(action: Callable[[], None]) -> None:
    """Call ``action`` when the interpreter exits, before the loop ends; it must not take long."""
    _before_exit.append(action)


def _serve(ready: Future[_Background]) -> None:
    async def main() -> None:
        end, here = asyncio.Event(), threading.current_thread()
        ready.set_result(_Background(asyncio.get_running_loop(), end, here))
        await end.wait()

    # Not anyio's blocking portal: it waits for the loop to begin a task, so that a busy loop would
    # hold up who starts a run, and it joins its thread without a limit at the exit.
    try:
        anyio.run(main)
    except BaseException as exc:
        if ready.done():
            raise
        ready.set_exception(exc)  # no loop could be made


def _shut_down() -> None:
    for action in _before_exit:
        action()
    if _background is not None:
        with suppress(RuntimeError):
            _background.loop.call_soon_threadsafe(_background.end.set)
        _background.thread.join(GOODBYE_S)


def _forget() -> None:
    """Begin anew in a forked child: the thread has stayed with the parent."""
    global _lock, _background
    _lock, _background = threading.Lock(), None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
