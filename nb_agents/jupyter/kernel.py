"""Every reach into ipykernel's inside, in one place, each with its reason.

- The idle kernel's interrupt: ipykernel ignores SIGINT at start and swaps handlers around each
  message, so a handler set in a cell is gone when the cell ends; ``saved_sigint_handler`` is what
  it puts back. https://github.com/ipython/ipykernel/blob/main/ipykernel/kernelbase.py
- The wake-up descriptor: an interrupt of a cell that awaits takes effect only when the loop next
  wakes; any ``add_signal_handler`` makes every signal wake it.
  https://github.com/ipython/ipykernel/issues/881
- A control-channel message is handled while a cell blocks the shell channel, on every ipykernel
  and with any JupyterLab setting. https://jupyter-client.readthedocs.io/en/stable/messaging.html
- The shutdown request comes on that channel too. A cell that blocks would keep the interpreter from
  its orderly end until it is killed, so the runs are saved when the request comes.
- The comm's route: 7.4 sends comm messages to the subshell that made the widget, which may be
  blocked. It asks the comm for that on the thread that reads the shell channel, which no cell
  blocks: front ends without control channel and subshells have no other way into a busy kernel.
  https://github.com/ipython/ipykernel/pull/1565

Each has a live test that fails when an ipykernel release changes it (tests/kernel).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from nb_agents.cancel import StopResult
from nb_agents.errors import UserError
from nb_agents.loop import interrupts_come_from
from nb_agents.runs import registry
from nb_agents.runs.finding import find_run

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

STOP_REQUEST = "nb_agents_stop_request"
STOP_REPLY = "nb_agents_stop_reply"
SAY_REQUEST = "nb_agents_say_request"
SAY_REPLY = "nb_agents_say_reply"
DECIDE_REQUEST = "nb_agents_decide_request"
DECIDE_REPLY = "nb_agents_decide_reply"
DRAWN_REQUEST = "nb_agents_drawn_request"
DRAWN_REPLY = "nb_agents_drawn_reply"

SWITCH_S = 0.001
"""How long the agents' thread may keep a cell from the interpreter: Python's 5 ms add up, as a
cell's answer passes several threads."""
_SWITCH_S_BEFORE = sys.getswitchinterval()

Handler = Callable[[int, FrameType | None], Any]


def has_front_end(ip: InteractiveShell) -> bool:
    """Return whether the shell runs in a kernel: only there are widgets and late updates."""
    return getattr(ip, "kernel", None) is not None


def is_headless(ip: InteractiveShell) -> bool:
    """Return whether nobody can look at the cell after it ended: nbclient, papermill, nbconvert.

    They drop output that comes after the cell's end, so runs wait in the cell. They all run cells
    with ``allow_stdin`` off; front ends with a person have it on.
    """
    kernel = getattr(ip, "kernel", None)
    return kernel is not None and not kernel._allow_stdin


def on_page_message(widget: Any, take: Callable[[Any], object]) -> None:
    """Call ``take`` with each custom message that a page sends by a widget.

    What stops, says or decides something is taken at once, in a thread of its own, whatever cell
    runs; all else is taken where the front end sent it, and not where the widget was made.
    """
    taken: deque[Any] = deque()  # and still to come again, by the shell

    def route(data: Any, default: str | None) -> str | None:
        match data:
            case {"method": "custom", "content": {"type": "stop" | "say" | "decide"} as content}:
                with suppress(RuntimeError):  # the interpreter ends, and starts no thread
                    threading.Thread(target=take, args=(content,), daemon=True).start()
                    taken.append(content)
        return default

    def on_message(_: object, content: Any, buffers: object) -> None:
        try:
            taken.remove(content)
        except ValueError:
            take(content)

    widget.comm._reply_subshell_for = route
    widget.on_msg(on_message)


def open_doors(ip: InteractiveShell) -> None:
    """Open the kernel's stop doors: interrupt when idle, control channel, shutdown.

    Cells are answered sooner from then on, see `SWITCH_S`.
    """
    kernel = getattr(ip, "kernel", None)
    if kernel is None:
        return
    _take_idle_interrupt(kernel)
    interrupts_come_from(lambda: "notebook" if is_headless(ip) else "interrupt")
    sys.setswitchinterval(min(_SWITCH_S_BEFORE, SWITCH_S))
    # Other libraries set the handler too; ours is put back after each cell.
    if not _our_callbacks(ip):
        ip.events.register("post_run_cell", partial(_after_cell, kernel))
    _wake_on_signals()
    kernel.control_handlers[STOP_REQUEST] = partial(_on_control, kernel)
    kernel.control_handlers[SAY_REQUEST] = partial(_on_said, kernel)
    kernel.control_handlers[DECIDE_REQUEST] = partial(_on_decided, kernel)
    kernel.control_handlers[DRAWN_REQUEST] = partial(_on_drawn, kernel)
    shut_down = kernel.control_handlers["shutdown_request"]
    if getattr(shut_down, "func", None) is not _on_shutdown:
        kernel.control_handlers["shutdown_request"] = partial(_on_shutdown, shut_down)


def close_doors(ip: InteractiveShell) -> None:
    """Close them again."""
    kernel = getattr(ip, "kernel", None)
    if kernel is None:
        return
    for callback in _our_callbacks(ip):
        ip.events.unregister("post_run_cell", callback)
    sys.setswitchinterval(_SWITCH_S_BEFORE)
    saved = getattr(kernel, "saved_sigint_handler", None)
    if isinstance(saved, _IdleInterrupt):
        kernel.saved_sigint_handler = saved.previous
    for request in (STOP_REQUEST, SAY_REQUEST, DECIDE_REQUEST, DRAWN_REQUEST):
        kernel.control_handlers.pop(request, None)
    shut_down = kernel.control_handlers["shutdown_request"]
    if getattr(shut_down, "func", None) is _on_shutdown:
        kernel.control_handlers["shutdown_request"] = shut_down.args[0]


def when_idle(ip: InteractiveShell, action: Callable[[], object]) -> None:
    """Call ``action`` on the kernel's main thread between two cells; not at all in a terminal."""
    if has_front_end(ip):
        asyncio.get_event_loop().call_soon(action)


class _IdleInterrupt:
    """The handler of an idle kernel: one press for all that lives, else what was there before."""

    def __init__(self, previous: Handler | int | None) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not registry.press() and callable(self.previous):
            self.previous(number, frame)


def _take_idle_interrupt(kernel: Any) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if hasattr(kernel, "saved_sigint_handler"):
        saved = kernel.saved_sigint_handler
        if not isinstance(saved, _IdleInterrupt):
            kernel.saved_sigint_handler = _IdleInterrupt(saved)
    else:
        # Loaded at kernel start, before the first message: nothing is saved yet.
        signal.signal(signal.SIGINT, _IdleInterrupt(signal.getsignal(signal.SIGINT)))


def _our_callbacks(ip: InteractiveShell) -> list[Any]:
    callbacks = ip.events.callbacks["post_run_cell"]
    return [c for c in callbacks if getattr(c, "func", None) is _after_cell]


def _after_cell(kernel: Any, result: object) -> None:
    _take_idle_interrupt(kernel)


def _wake_on_signals() -> None:
    # SIGURG is ignored by default; the handler does nothing, its registration is what counts.
    with suppress(NotImplementedError, ValueError, RuntimeError, AttributeError):
        asyncio.get_event_loop().add_signal_handler(signal.SIGURG, lambda: None)


async def _on_control(kernel: Any, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    # In a thread: a hook of the person's may veto the stop and take its time over it.
    stop = partial(stop_as_asked, parent.get("content"))
    result = await asyncio.get_running_loop().run_in_executor(None, stop)
    reply = {"status": "ok", "changed": result.changed, "run_status": result.status}
    kernel.session.send(stream, STOP_REPLY, reply, parent, ident)


def stop_as_asked(content: Any) -> StopResult:
    """Carry out a panel's message about a stop. Idempotent.

    Args:
        content: The run, whether to stop "now", and the one agent to stop, if it is one alone.

    Returns:
        What it did: nothing when the message makes no sense, or names what is not there.
    """
    match content:
        # "" would be the latest run, whichever that is.
        case {"sweep": str(name), **more} | {"run": str(name), **more} if name and isinstance(
            agent := more.get("agent"), str | None
        ):
            # There is no such agent, or several runs are called so.
            with suppress(UserError):
                return registry.stop(name, bool(more.get("now")), "widget", agent=agent)
    return StopResult(False, "unknown")


# Separates the control channel's worker from the shell, where the same message comes again.
_saying = threading.Lock()
_said: deque[str] = deque(maxlen=1000)


def say_once(run: str, text: str, message_id: str) -> str:
    """Add a text from a panel to a run, once although it arrives in two messages.

    Args:
        run: The run's id.
        text: What the person wrote.
        message_id: The same in both messages.

    Returns:
        "" when the agents get it, else why not.
    """
    return _once(message_id, lambda: find_run(run).say(text))


def decide_once(run: str, gate: str, approved: bool, text: str, message_id: str) -> str:
    """Decide a gate from a panel, once for its two messages.

    Args:
        run: The run's id.
        gate: The gate's address: one that is decided by now stays as it is.
        approved: Whether the recipe goes on.
        text: What the person wrote.
        message_id: The same in both messages.

    Returns:
        "" when it is decided so, else why not.
    """
    return _once(message_id, lambda: find_run(run).decide(approved, text, gate=gate))


def _once(message_id: str, do: Callable[[], object]) -> str:
    with _saying:
        if message_id in _said:
            return ""
        try:
            do()
        except UserError as exc:
            return str(exc)
        _said.append(message_id)
        return ""


async def _on_said(kernel: Any, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    match parent.get("content"):
        case {"run": str(run), "text": str(text), "id": str(message_id)} if run:
            # In a thread: it waits for the loop of the runs.
            say = partial(say_once, run, text, message_id)
            refusal = await asyncio.get_running_loop().run_in_executor(None, say)
        case _:
            refusal = "The message lacks a run, a text or an id."
    reply = {"status": "ok", "refusal": refusal}
    kernel.session.send(stream, SAY_REPLY, reply, parent, ident)


async def _on_decided(kernel: Any, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    match parent.get("content"):
        case {
            "run": str(run),
            "gate": str(gate),
            "approved": bool(approved),
            "text": str(text),
            "id": str(message_id),
        } if run and gate:
            decide = partial(decide_once, run, gate, approved, text, message_id)
            refusal = await asyncio.get_running_loop().run_in_executor(None, decide)
        case _:
            refusal = "The message lacks a run, a gate, a decision, a text or an id."
    reply = {"status": "ok", "refusal": refusal}
    kernel.session.send(stream, DECIDE_REPLY, reply, parent, ident)


# Called when a page tells that it draws these by itself, by what it calls them.
_drawn_by_page: dict[str, Callable[[], object]] = {}


def drawn_by_page(shown: str, callback: Callable[[], object]) -> Callable[[], object]:
    """Call back when a page tells that it draws a run or a sweep without this kernel.

    Args:
        shown: What the page calls it: "session/turn", or a sweep's name.
        callback: Called on the kernel's control thread.

    Returns:
        Ends it.
    """
    _drawn_by_page[shown] = callback
    return lambda: _drawn_by_page.pop(shown, None)


async def _on_drawn(kernel: Any, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    match parent.get("content"):
        case {"shown": str(shown)}:
            _drawn_by_page.get(shown, lambda: None)()
    kernel.session.send(stream, DRAWN_REPLY, {"status": "ok"}, parent, ident)


async def _on_shutdown(
    shut_down: Callable[..., Any], stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(None, registry.stop_all)
    finally:
        await shut_down(stream, ident, parent)
