"""Contains all code that relies on private parts of ipykernel, with the reasons.

- The interrupt of an idle kernel: ipykernel ignores SIGINT at its start and swaps handlers around
  each message, so a handler set in a cell is lost when the cell ends. It restores
  ``saved_sigint_handler``. https://github.com/ipython/ipykernel/blob/main/ipykernel/kernelbase.py
- The wake-up descriptor: an interrupt of an awaiting cell takes effect only when the loop wakes up
  the next time. After any ``add_signal_handler``, every signal wakes it up.
  https://github.com/ipython/ipykernel/issues/881
- A control-channel message is handled while a cell blocks the shell channel, with every ipykernel
  and every JupyterLab setting. https://jupyter-client.readthedocs.io/en/stable/messaging.html
- The shutdown request arrives on the same channel. A blocking cell would delay an orderly exit
  until the interpreter is killed, so the runs are saved when the request arrives.
- The routing of comm messages: ipykernel 7.4 sends comm messages to the subshell that created the
  widget, which may be blocked. It asks the comm for the subshell on the thread that reads the shell
  channel, which no cell blocks. For front ends without control channel and subshells, this is the
  only way into a busy kernel. https://github.com/ipython/ipykernel/pull/1565

Each of these has a test that fails if an ipykernel release changes it (tests/kernel).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.loop import set_interrupt_source
from nb_agents.presentation.asking import CELL
from nb_agents.turns import registry
from nb_agents.turns.groups import kinds
from nb_agents.verbs.on_runs import find_work
from nb_agents.verbs.outcome import Reply
from nb_agents.verbs.requests import BODIES, read, values_of
from nb_agents.verbs.table import ROUTES
from nb_agents.verbs.verb import Caller

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nb_agents.verbs.outcome import Work

DRAWN_REQUEST = "nb_agents_drawn_request"
DRAWN_REPLY = "nb_agents_drawn_reply"
RESUME_REQUEST = "nb_agents_resume_turn_request"
RESUME_REPLY = "nb_agents_resume_turn_reply"

SWITCH_S = 0.001
"""The interpreter's switch interval in seconds.

With Python's default of 5 ms, a busy agent thread would noticeably delay a cell's reply, which
passes through several threads.
"""
_DEFAULT_SWITCH_S = sys.getswitchinterval()

Handler = Callable[[int, FrameType | None], Any]
Resume = Callable[[str, bool], dict[str, Any]]
"""Resumes the turn in a directory, with or without trust, and returns the reply for the page."""


def has_front_end(ip: InteractiveShell) -> bool:
    """Return whether the shell runs in a kernel, and so supports widgets and later updates."""
    return getattr(ip, "kernel", None) is not None


def is_headless(ip: InteractiveShell) -> bool:
    """Return whether the notebook runs without a user, such as in nbclient or papermill.

    These drop output that arrives after a cell has ended, so cells wait for their runs. They
    execute cells with ``allow_stdin`` off, which interactive front ends turn on.
    """
    kernel = getattr(ip, "kernel", None)
    return kernel is not None and not kernel._allow_stdin


def cell_id(ip: InteractiveShell) -> str:
    """Return the front end's id of the running cell, or "" if it sends none."""
    kernel = getattr(ip, "kernel", None)
    parent = kernel.get_parent() if kernel is not None else {}
    return str(parent.get("metadata", {}).get("cellId") or "")


def on_page_message(widget: Any, take: Callable[[Any], object]) -> None:
    """Call ``take`` with each custom message that a page sends through a widget.

    A verb is handled immediately in a separate thread, even while a cell runs. Other messages are
    handled on the shell that the front end sent them to, not on the one that created the widget.
    """
    handled: deque[Any] = deque()  # verbs that the shell will deliver again

    def route(data: Any, default: str | None) -> str | None:
        match data:
            case {"method": "custom", "content": {"type": str(verb)} as content} if verb in ROUTES:
                with suppress(RuntimeError):  # the interpreter is exiting and starts no threads
                    threading.Thread(target=take, args=(content,), daemon=True).start()
                    handled.append(content)
        return default

    def on_message(_: object, content: Any, buffers: object) -> None:
        try:
            handled.remove(content)
        except ValueError:
            take(content)

    widget.comm._reply_subshell_for = route
    widget.on_msg(on_message)


def request_of(route: str) -> str:
    """Return the message type of a verb's request on the control channel."""
    return f"nb_agents_{route}_request"


def install_handlers(ip: InteractiveShell, resume: Resume) -> None:
    """Install handlers in the kernel: idle interrupt, control messages and shutdown.

    Also shortens the switch interval of the interpreter; see `SWITCH_S`.

    Args:
        resume: Resumes a turn for a page.
    """
    kernel = getattr(ip, "kernel", None)
    if kernel is None:
        return
    _take_idle_interrupt(kernel)
    set_interrupt_source(lambda: "notebook" if is_headless(ip) else "interrupt")
    sys.setswitchinterval(min(_DEFAULT_SWITCH_S, SWITCH_S))
    # Other libraries may replace the handler, so it is installed again after each cell.
    if not _our_callbacks(ip):
        ip.events.register("post_run_cell", partial(_after_cell, kernel))
    _wake_on_signals()
    for route in ROUTES:
        kernel.control_handlers[request_of(route)] = partial(_on_request, kernel, route)
    kernel.control_handlers[DRAWN_REQUEST] = partial(_on_drawn, kernel)
    kernel.control_handlers[RESUME_REQUEST] = partial(_on_resume, kernel, resume)
    shut_down = kernel.control_handlers["shutdown_request"]
    if getattr(shut_down, "func", None) is not _on_shutdown:
        kernel.control_handlers["shutdown_request"] = partial(_on_shutdown, shut_down)


def remove_handlers(ip: InteractiveShell) -> None:
    """Remove the handlers that `install_handlers` installed."""
    kernel = getattr(ip, "kernel", None)
    if kernel is None:
        return
    for callback in _our_callbacks(ip):
        ip.events.unregister("post_run_cell", callback)
    sys.setswitchinterval(_DEFAULT_SWITCH_S)
    saved = getattr(kernel, "saved_sigint_handler", None)
    if isinstance(saved, _IdleInterrupt):
        kernel.saved_sigint_handler = saved.previous
    for request in (*map(request_of, ROUTES), DRAWN_REQUEST, RESUME_REQUEST):
        kernel.control_handlers.pop(request, None)
    shut_down = kernel.control_handlers["shutdown_request"]
    if getattr(shut_down, "func", None) is _on_shutdown:
        kernel.control_handlers["shutdown_request"] = shut_down.args[0]


def when_idle(ip: InteractiveShell, action: Callable[[], object]) -> None:
    """Call ``action`` on the kernel's main thread between two cells. Does nothing in a terminal."""
    if has_front_end(ip):
        asyncio.get_event_loop().call_soon(action)


class _IdleInterrupt:
    """The SIGINT handler of an idle kernel: stops all live runs, or calls the previous handler."""

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
        # Loaded when the kernel starts, before the first message, there is no saved handler yet.
        signal.signal(signal.SIGINT, _IdleInterrupt(signal.getsignal(signal.SIGINT)))


def _our_callbacks(ip: InteractiveShell) -> list[Any]:
    callbacks = ip.events.callbacks["post_run_cell"]
    return [c for c in callbacks if getattr(c, "func", None) is _after_cell]


def _after_cell(kernel: Any, result: object) -> None:
    _take_idle_interrupt(kernel)


def _wake_on_signals() -> None:
    # SIGURG is ignored by default. The handler does nothing. Only its registration matters.
    with suppress(NotImplementedError, ValueError, RuntimeError, AttributeError):
        asyncio.get_event_loop().add_signal_handler(signal.SIGURG, lambda: None)


async def _on_request(
    kernel: Any, route: str, stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    # In a thread, because it may wait for the background loop or for a user's hook.
    act = partial(handle_page_request, route, parent.get("content"))
    result = await asyncio.get_running_loop().run_in_executor(None, act)
    reply = {"status": "ok", **result._asdict()}
    kernel.session.send(stream, f"nb_agents_{route}_reply", reply, parent, ident)


class PageReply(NamedTuple):
    """The reply to a page's request.

    Attributes:
        facts: The outcome of the verb, as data.
        refusal: An error message, or "".
        is_unknown: Whether this process does not know the run or group.
    """

    facts: Mapping[str, Any] = {}
    refusal: str = ""
    is_unknown: bool = False


# Serializes the control channel's worker and the shell, which may both get a message.
_handling = threading.Lock()
_handled_ids: deque[str] = deque(maxlen=1000)


def handle_page_request(route: str, content: Any, work: Work | None = None) -> PageReply:
    """Run a verb for a page.

    Args:
        route: The route of the verb.
        content: The name of the ``run``, or of the group under the noun of its kind, and the fields
            of a REST request. A request that is sent twice but must run once has the same ``id`` in
            both messages.
        work: The run or group, if the caller has it already.
    """
    name, fields = _name_and_fields(content)
    if not name:  # "" would mean the latest run
        return PageReply({}, "The message does not specify a run.")
    message_id = str(fields.pop("id", ""))
    # A stop has no id and must not wait for the lock.
    with _handling if message_id else nullcontext():
        if message_id and message_id in _handled_ids:
            return PageReply()
        try:
            facts = _act(route, name if work is None else work, fields)
        except UserError as exc:
            return PageReply({}, str(exc), isinstance(exc, UnknownRunError))
        if message_id:
            _handled_ids.append(message_id)
        return PageReply(facts)


def _name_and_fields(content: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a message's run or group, or "", and the message's other fields."""
    if isinstance(content, Mapping):
        for key in ("run", *(kind.noun for kind in kinds())):
            if name := content.get(key):
                fields = {str(each): value for each, value in content.items() if each != key}
                return (name if isinstance(name, str) else ""), fields
    return "", {}


def _act(route: str, on: Work | str, sent: Mapping[str, Any]) -> Mapping[str, Any]:
    values, caller = values_of(read(BODIES[route], sent)), Caller("widget", CELL)
    work = find_work(on, caller) if isinstance(on, str) else on
    outcome = ROUTES[route].act(work, caller, **values)
    if not isinstance(outcome, Reply):
        raise UserError(f"A panel can't start a turn. Write `%agents {route}` in a cell.")
    return outcome.facts


# Callbacks for pages that draw a run or group from disk, by the page's name for it.
_drawn_by_page: dict[str, Callable[[], object]] = {}


def on_drawn_by_page(page_name: str, callback: Callable[[], object]) -> Callable[[], object]:
    """Register a callback for when a page reports that it draws a run or group from disk.

    Args:
        page_name: The page's name for the run or group: "session/turn", or the group's name.
        callback: Called on the kernel's control thread.

    Returns:
        A function that removes the callback.
    """
    _drawn_by_page[page_name] = callback
    return lambda: _drawn_by_page.pop(page_name, None)


async def _on_drawn(kernel: Any, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    match parent.get("content"):
        case {"shown": str(page_name)}:
            _drawn_by_page.get(page_name, lambda: None)()
    kernel.session.send(stream, DRAWN_REPLY, {"status": "ok"}, parent, ident)


async def _on_resume(
    kernel: Any, resume: Resume, stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    match parent.get("content"):
        case {"turn": str(turn), "trust": bool(trust)} if turn:
            act = partial(resume, turn, trust)
            reply = await asyncio.get_running_loop().run_in_executor(None, act)
        case _:
            reply = {"refusal": "The message does not specify a turn."}
    kernel.session.send(stream, RESUME_REPLY, {"status": "ok", **reply}, parent, ident)


async def _on_shutdown(
    shut_down: Callable[..., Any], stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(None, registry.stop_all)
    finally:
        await shut_down(stream, ident, parent)
