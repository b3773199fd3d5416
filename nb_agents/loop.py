"""The background event loop of a process, and SIGINT handlers that are active during a wait.

The loop runs all runs of the process in its own daemon thread. It is never the kernel's loop, so a
busy cell can't block the agents and the agents can't block a cell. It is started on first use, and
again after its thread has died or the process has forked. At the interpreter's exit, all runs are
stopped immediately and saved.

While a run is awaited, the first Ctrl-C or kernel interrupt stops it gracefully and the wait
continues. The second one stops it immediately. At other times this module installs no handler.
`nb_agents.jupyter.kernel` has the handler for the idle kernel.
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
"""Seconds for the loop to close its sockets at exit, after the runs are saved."""

MISSED_S = 0.5
"""Interval in seconds at which a waiting thread wakes up to run the handlers of missed signals.

CPython runs signal handlers between two bytecodes. A signal does not wake the main thread from
waiting on a lock if it arrives just before the wait, or if another thread receives it. Under load
the former does happen, because the thread may have to wait for the GIL first.
"""

T = TypeVar("T")


class _InterruptHandler:
    """A SIGINT handler that calls the functions of active waits, or the previous handler.

    It also works if another handler replaces it and calls it.
    """

    def __init__(self) -> None:
        self._previous: Any = signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _waits:
            # A run with two active waits gets one interrupt.
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
    """Set the SIGINT handler back to ``previous``, if ``over`` is still the current one."""
    is_uppermost: bool = signal.getsignal(signal.SIGINT) is over
    if is_uppermost:
        # None means a handler that was not set from Python and can't be restored.
        can_restore = previous is not None
        signal.signal(signal.SIGINT, previous if can_restore else signal.default_int_handler)


# Used only by the main thread, because Python runs signal handlers nowhere else.
_waits: list[Callable[[], None]] = []
_handlers: list[_InterruptHandler] = []


_source: Callable[[], StopSource] | None = None


def interrupt_source() -> StopSource:
    """Return the source to record for a stop by SIGINT. By default, a user's interrupt."""
    return _source() if _source else "interrupt"


def set_interrupt_source(source: Callable[[], StopSource]) -> None:
    """Set the function that `interrupt_source` calls. Signal handlers also call it."""
    global _source
    _source = source


@contextmanager
def redirect_interrupts(press: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT call ``press`` instead of raising, during the block.

    Blocks may overlap in any order, for example if several runs are awaited on one loop. They share
    one handler, and the last block to end restores the previous one. Has no effect outside the main
    thread, where no signal handlers run.

    Args:
        press: Called on the main thread between two bytecodes. It must only post to another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        # Inside the try. If an interrupt here left the entry in the list, the entry would receive
        # all later interrupts.
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
def intercept_interrupts(press: Callable[[], bool]) -> Iterator[None]:
    """Make SIGINT call ``press`` in the block, and the previous handler if it returns False.

    A wait in the block replaces this handler for its duration. Has no effect outside the main
    thread.

    Args:
        press: Called on the main thread between two bytecodes. It must not block.
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
    """Block until a future is done. Interrupts call ``press``, as in `redirect_interrupts`.

    Args:
        future: The future, which is resolved by another thread.
        press: Called on the main thread between two bytecodes.
        timeout: Seconds after which to give up waiting. None means never.

    Returns:
        The future's result.

    Raises:
        TimeoutError: ``timeout`` passed.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with redirect_interrupts(press):
        while not future.done() and (remaining_s := deadline - time.monotonic()) > 0:
            wait((future,), min(remaining_s, MISSED_S))
        return future.result(0)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer SIGINT to the end of the block, so that the block is never interrupted.

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


# Needed because two threads may start the first run at the same time.
_lock = threading.Lock()
_background: _Background | None = None
_before_exit: list[Callable[[], None]] = []


def ensure_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, starting its thread if none is alive.

    Raises:
        UserError: The system has no free threads or file descriptors.
    """
    global _background
    with _lock:
        if _background is None or not _background.thread.is_alive():
            _background = _start()
        return _background.loop


def _start() -> _Background:
    ready: Future[_Background] = Future()
    thread = threading.Thread(target=_serve, args=(ready,), name=THREAD_NAME, daemon=True)
    try:
        thread.start()
        started = ready.result()
    except (OSError, RuntimeError) as exc:
        raise UserError(
            f"The background loop can't start: {exc}. End other runs, or close files or threads, "
            "and try again."
        ) from None
    atexit.unregister(_shut_down)
    atexit.register(_shut_down)
    return started


def submit(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
    """Start a task on the loop, from any thread and without waiting for the loop.

    Args:
        function: An async function. Tasks start in the order of their submission.
        args: Its arguments.

    Returns:
        A future of its result. Cancelling the future cancels the task, except for shielded parts.
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
        function: The function, which must not block.
        args: Its arguments.
    """

    async def posted() -> None:
        # In a task, because anyio's primitives can't be created in a plain callback.
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
        function: The function, which must not block.
        args: Its arguments.
        timeout_s: Seconds after which to stop waiting. The function is still called.

    Raises:
        TimeoutError: ``timeout_s`` passed.
    """

    async def call_function() -> T:
        return function(*args)

    if is_loop_thread():
        return function(*args)
    return submit(call_function).result(timeout_s)


def is_loop_thread() -> bool:
    """Return whether this is the thread of the loop, which must not wait for the loop."""
    return _background is not None and threading.current_thread() is _background.thread


def at_shutdown(action: Callable[[], None]) -> None:
    """Register a short action to call when the interpreter exits, before the loop ends.

    Actions are called in reverse order of registration, as with `atexit`.
    """
    _before_exit.insert(0, action)


def _serve(ready: Future[_Background]) -> None:
    async def main() -> None:
        end, thread = asyncio.Event(), threading.current_thread()
        ready.set_result(_Background(asyncio.get_running_loop(), end, thread))
        await end.wait()

    # anyio's blocking portal is not used, because it waits for the loop to start a task, so that a
    # busy loop would delay the start of a run, and because it joins its thread at exit without a
    # time limit.
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


def _reset_after_fork() -> None:
    """Reset the state in a forked child process, which does not have the thread."""
    global _lock, _background
    _lock, _background = threading.Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)
