"""The background event loop of all runs of a process, and interrupts while waiting for a run.

The loop has a daemon thread of its own and is never the kernel's loop, so that a busy cell can't
block the agents, nor agents a cell. It starts on first use, and again when its thread has died or
the process was forked; at the interpreter's exit all runs are stopped immediately and saved.

The first Ctrl-C, or interrupt of the kernel, gracefully stops the runs being waited for, and the
wait goes on; the second stops them immediately. At other times no handler is installed here
(`nb_agents.jupyter.kernel` has the one for the idle kernel).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import anyio

from nb_agents.cancel import StopSource
from nb_agents.errors import UserError
from nb_agents.models.reading import cell_waits

logger = logging.getLogger("nb_agents")

THREAD_NAME = "nb_agents"

GOODBYE_S = 0.3
"""Time for the loop to close its sockets at exit, after the runs are saved."""

MISSED_S = 0.5
"""Interval at which a thread that waits wakes up, for signals that did not wake it.

CPython runs handlers between two bytecodes. A signal that comes after the last one and before the
thread sleeps on a lock, or that another thread takes, is noted and does not end that sleep; the
first happens under load, as the thread may wait for another one to take the GIL in between.
"""

T = TypeVar("T")


class _InterruptHandler:
    """A SIGINT handler that calls the waiting blocks' functions, or else the previous handler.

    It also works when another handler has replaced it and calls it.
    """

    def __init__(self) -> None:
        self._previous: Any = signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _waits:
            # A run that is waited for twice gets one interrupt.
            for press in dict.fromkeys(_waits):
                press()
        elif callable(self._previous):
            self._previous(number, frame)
        elif self._previous is not signal.SIG_IGN:
            signal.default_int_handler(number, frame)

    def restore(self) -> None:
        """Restore the previous handler, unless another one has replaced this one."""
        _restore(self._previous, over=self)


def _restore(previous: Any, over: object) -> None:
    """Restore a handler of SIGINT, unless another one is in the place of the one over it."""
    is_uppermost: bool = signal.getsignal(signal.SIGINT) is over
    if is_uppermost:
        # None means a handler that was not set from Python and can't be restored.
        known = previous is not None
        signal.signal(signal.SIGINT, previous if known else signal.default_int_handler)


# Used by the main thread only, as signals reach no other.
_waits: list[Callable[[], None]] = []
_handlers: list[_InterruptHandler] = []


_source: Callable[[], StopSource] | None = None


def interrupt_source() -> StopSource:
    """Return whose interrupt a SIGINT is now: a person's, or that of a program."""
    return _source() if _source else "interrupt"


def interrupts_come_from(source: Callable[[], StopSource]) -> None:
    """Have `interrupt_source` ask a function, which is called in signal handlers."""
    global _source
    _source = source


@contextmanager
def interrupt_calls(press: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT call ``press`` instead of raising, within the block.

    Blocks may overlap in any order (several runs awaited on one loop): one handler serves them
    all, and the last block to end restores the previous handler. Has no effect outside the main
    thread, which signals do not reach.

    Args:
        press: Called on the main thread between two bytecodes; it must only post to another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        # Inside the try, as an entry left behind by an interrupt here would take all later ones.
        _waits.append(press)
        if signal.getsignal(signal.SIGINT) not in _handlers:
            _handlers.append(_InterruptHandler())
        with cell_waits():
            yield
    finally:
        if press in _waits:
            _waits.remove(press)
        if not _waits:
            while _handlers:
                _handlers.pop().restore()


@contextmanager
def interrupt_tries(press: Callable[[], bool]) -> Iterator[None]:
    """Make SIGINT call ``press`` within the block, and the previous handler if it returns False.

    A wait within the block has its own way with interrupts. Has no effect outside the main thread.

    Args:
        press: Called on the main thread between two bytecodes; it must not block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if not press() and callable(previous):
            previous(number, frame)

    try:
        signal.signal(signal.SIGINT, handle)
        yield
    finally:
        _restore(previous, over=handle)


def wait_interruptibly(future: Future[T], press: Callable[[], None], timeout: float | None) -> T:
    """Block until a future is done; meanwhile interrupts call ``press``, as in `interrupt_calls`.

    Args:
        future: The future, set by another thread.
        press: Called on the main thread between two bytecodes.
        timeout: Seconds after which to give up waiting. None means never.

    Returns:
        The future's result.

    Raises:
        TimeoutError: ``timeout`` passed.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with interrupt_calls(press):
        while not future.done() and (left := deadline - time.monotonic()) > 0:
            wait((future,), min(left, MISSED_S))
        return future.result(0)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer SIGINT to the end of the block, so that it is not interrupted halfway.

    Has no effect outside the main thread.
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
    """Return the loop, starting its thread if none is alive.

    Raises:
        UserError: The system has no thread or file descriptors left for it.
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
    """Start a task on the loop, from any thread and without waiting for the loop.

    Args:
        function: An async function. Tasks start in the order in which they are submitted.
        args: Its arguments.

    Returns:
        A future of its result; cancelling it cancels the task, except where that is shielded.
    """
    loop, outcome = ensure_loop(), Future[T]()
    loop.call_soon_threadsafe(loop.create_task, _carry_out(outcome, loop, function, args))
    return outcome


async def _carry_out(
    outcome: Future[T],
    loop: asyncio.AbstractEventLoop,
    function: Callable[..., Coroutine[Any, Any, T]],
    args: tuple[Any, ...],
) -> None:
    # Task.cancel() would also cancel shielded scopes, such as the one that ends a process.
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
            with suppress(InvalidStateError):  # cancelled in the meantime
                outcome.set_exception(exc)
        else:
            with suppress(InvalidStateError):
                outcome.set_result(result)


def post(function: Callable[..., object], *args: Any) -> None:
    """Schedule a call on the loop, from any thread or signal handler.

    Args:
        function: Must not block.
        args: Its arguments.
    """

    async def posted() -> None:
        # In a task, as anyio's primitives can't be created in a plain callback.
        try:
            function(*args)
        except Exception:
            logger.exception("%s failed", getattr(function, "__qualname__", function))

    if _background is None or _background.loop.is_closed():
        return
    task = posted()
    try:
        asyncio.run_coroutine_threadsafe(task, _background.loop)
    except RuntimeError:  # the loop has closed
        task.close()


def call(function: Callable[..., T], *args: Any, timeout_s: float | None = None) -> T:
    """Call a function on the loop and return its result, from any thread including the loop's.

    Args:
        function: Must not block.
        args: Its arguments.
        timeout_s: Seconds after which to give up waiting; the function is still called.

    Raises:
        TimeoutError: ``timeout_s`` passed.
    """

    async def called() -> T:
        return function(*args)

    if is_loop_thread():
        return function(*args)
    return submit(called).result(timeout_s)


def is_loop_thread() -> bool:
    """Return whether this is the loop's own thread, which must not wait for the loop."""
    return _background is not None and threading.current_thread() is _background.thread


def at_shutdown(action: Callable[[], None]) -> None:
    """Call ``action`` when the interpreter exits, before the loop ends; it must not take long.

    Actions are called in the reverse order in which they were registered, as those of `atexit`.
    """
    _before_exit.insert(0, action)


def _serve(ready: Future[_Background]) -> None:
    async def main() -> None:
        end, here = asyncio.Event(), threading.current_thread()
        ready.set_result(_Background(asyncio.get_running_loop(), end, here))
        await end.wait()

    # Not anyio's blocking portal: it waits for the loop to start a task, so that a busy loop would
    # delay the start of a run, and it joins its thread at exit without a time limit.
    try:
        anyio.run(main)
    except BaseException as exc:
        if ready.done():
            raise
        ready.set_exception(exc)  # the loop could not be created


def _shut_down() -> None:
    for action in _before_exit:
        action()
    if _background is not None:
        with suppress(RuntimeError):
            _background.loop.call_soon_threadsafe(_background.end.set)
        _background.thread.join(GOODBYE_S)


def _forget() -> None:
    """Reset the state in a forked child, which does not have the thread."""
    global _lock, _background
    _lock, _background = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
