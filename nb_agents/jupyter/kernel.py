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
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.loop import interrupts_come_from
from nb_agents.presentation.asking import CELL
from nb_agents.runs import registry
from nb_agents.verbs.on_runs import find_work
from nb_agents.verbs.requests import BODIES, read, values_of
from nb_agents.verbs.table import ROUTES
from nb_agents.verbs.verb import Caller

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nb_agents.verbs.verb import Work

DRAWN_REQUEST = "nb_agents_drawn_request"
DRAWN_REPLY = "nb_agents_drawn_reply"
RESUME_REQUEST = "nb_agents_resume_turn_request"
RESUME_REPLY = "nb_agents_resume_turn_reply"

SWITCH_S = 0.001
"""How long the agents' thread may keep a cell from the interpreter: Python's 5 ms add up, as a
cell's answer passes several threads."""
_SWITCH_S_BEFORE = sys.getswitchinterval()

Handler = Callable[[int, FrameType | None], Any]
Resume = Callable[[str, bool], dict[str, Any]]
"""Resumes the turn of a directory, with or without trust; returns what the page is told."""


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


def cell_id(ip: InteractiveShell) -> str:
    """Return the id of the cell that runs, by which its front end knows it; "" where none says."""
    kernel = getattr(ip, "kernel", None)
    parent = kernel.get_parent() if kernel is not None else {}
    return str(parent.get("metadata", {}).get("cellId") or "")


def on_page_message(widget: Any, take: Callable[[Any], object]) -> None:
    """Call ``take`` with each custom message that a page sends by a widget.

    A verb is taken at once, in a thread of its own, whatever cell runs; all else is taken where the
    front end sent it, and not where the widget was made.
    """
    taken: deque[Any] = deque()  # and still to come again, by the shell

    def route(data: Any, default: str | None) -> str | None:
        match data:
            case {"method": "custom", "content": {"type": str(verb)} as content} if verb in ROUTES:
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


def request_of(route: str) -> str:
    """Return the type of the control message that asks for a verb."""
    return f"nb_agents_{route}_request"


def open_doors(ip: InteractiveShell, resume: Resume) -> None:
    """Open the kernel's doors: interrupt when idle, control channel, shutdown.

    Cells are answered sooner from then on, see `SWITCH_S`.

    Args:
        ip: The shell.
        resume: Resumes a turn for a page.
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
    for route in ROUTES:
        kernel.control_handlers[request_of(route)] = partial(_on_request, kernel, route)
    kernel.control_handlers[DRAWN_REQUEST] = partial(_on_drawn, kernel)
    kernel.control_handlers[RESUME_REQUEST] = partial(_on_resume, kernel, resume)
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
    for request in (*map(request_of, ROUTES), DRAWN_REQUEST, RESUME_REQUEST):
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


async def _on_request(
    kernel: Any, route: str, stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    # In a thread: it may wait for the loop of the runs, or for a hook of the person's.
    act = partial(do_as_asked, route, parent.get("content"))
    done = await asyncio.get_running_loop().run_in_executor(None, act)
    reply = {"status": "ok", **done._asdict()}
    kernel.session.send(stream, f"nb_agents_{route}_reply", reply, parent, ident)


class PageReply(NamedTuple):
    """The state that a page receives.

    Attributes:
        facts: What the verb returned.
        refusal: "", or why it was not carried out.
        is_unknown: Whether this process knows of no such run or sweep.
    """

    facts: Mapping[str, Any] = {}
    refusal: str = ""
    is_unknown: bool = False


# Separates the control channel's worker from the shell, where the same message comes again.
_asking = threading.Lock()
_done: deque[str] = deque(maxlen=1000)


def do_as_asked(route: str, content: Any, work: Work | None = None) -> PageReply:
    """Carry out a verb for a page.

    Args:
        route: The verb's.
        content: The ``run`` or ``sweep``, and what a request over HTTP holds. What must not be done
            twice when it comes in two messages has the same ``id`` in both.
        work: The run or the sweep, if it is known.
    """
    match content:
        # "" would be the latest run, whichever that is.
        case {"run": str(name), **sent} | {"sweep": str(name), **sent} if name:
            asked = {str(key): each for key, each in sent.items()}
            message_id = str(asked.pop("id", ""))
            # A stop has none, and waits for nobody.
            with _asking if message_id else nullcontext():
                if message_id and message_id in _done:
                    return PageReply()
                try:
                    facts = _act(route, name if work is None else work, asked)
                except UserError as exc:
                    return PageReply({}, str(exc), isinstance(exc, UnknownRunError))
                if message_id:
                    _done.append(message_id)
                return PageReply(facts)
    return PageReply({}, "The message names no run.")


def _act(route: str, on: Work | str, sent: Mapping[str, Any]) -> Mapping[str, Any]:
    values, caller = values_of(read(BODIES[route], sent)), Caller("widget", CELL)
    work = find_work(on, caller) if isinstance(on, str) else on
    outcome = ROUTES[route].act(work, caller, **values)
    if outcome.begin or outcome.begin_sweep:
        raise UserError(f"A panel can't begin a turn. Write `%agents {route}` in a cell.")
    return outcome.facts


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


async def _on_resume(
    kernel: Any, resume: Resume, stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    match parent.get("content"):
        case {"turn": str(turn), "trust": bool(trust)} if turn:
            act = partial(resume, turn, trust)
            done = await asyncio.get_running_loop().run_in_executor(None, act)
        case _:
            done = {"refusal": "The message names no turn."}
    kernel.session.send(stream, RESUME_REPLY, {"status": "ok", **done}, parent, ident)


async def _on_shutdown(
    shut_down: Callable[..., Any], stream: Any, ident: Any, parent: dict[str, Any]
) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(None, registry.stop_all)
    finally:
        await shut_down(stream, ident, parent)
