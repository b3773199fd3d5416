"""Stopping: a thread-safe token whose level only rises, and the checks against it.

A token is a node of a tree (run → agent → tool …). Stopping a node stops what is under it and
nothing beside it; a child made late inherits. The token of the code that runs now is bound by a
context variable, so tools and user functions ask `should_stop()` or call `checkpoint()` without
being handed anything.

No I/O, no event loop: whoever must act on a change registers a listener, which is called on the
thread that asked for the stop and should do no more than post to its own loop.

Source: levels from Amplifier recipes' cancellation states, the context variable and the checks at
boundaries from gofannon's ISSUE-007.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from nb_agents.context import within

StopSource = Literal[
    "widget", "interrupt", "notebook", "api", "magic", "rest", "cli",
    "timeout", "budget", "approval", "parent",
]  # fmt: skip
"""The door that a stop came through.

"notebook" is an interrupt by the program that runs a notebook which no person watches.
"""


class CancellationStatus(enum.IntEnum):
    """How far a stop has gone. It only rises."""

    NONE = 0
    """Nobody asked."""
    REQUESTED = 1
    """Graceful: work in hand finishes, none begins."""
    IMMEDIATE = 2
    """Work in hand is cut; what it produced so far is kept."""
    CANCELLED = 3
    """Stopped and saved."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Who asked for a stop, how hard, and why.

    Attributes:
        level: How hard.
        source: The door.
        reason: In a person's words.
        agent: Id of the one agent that is to stop, or "" for the run.
        gate: Address of the gate whose denial this is, or "".
    """

    level: CancellationStatus
    source: StopSource
    reason: str = ""
    agent: str = ""
    gate: str = ""


@dataclass(frozen=True, slots=True)
class StopResult:
    """Result of a request to stop.

    Attributes:
        changed: Whether this request raised the level.
        status: Where the run stands now: "unknown", "finished", "vetoed", "asked", "stopping"
            (graceful) or "stopping-now" (immediate). "asked" has no effect yet: the hook that
            may veto it has not decided, or the loop is busy.
    """

    changed: bool
    status: Literal["unknown", "finished", "vetoed", "asked", "stopping", "stopping-now"]


class AgentStopped(BaseException):
    """Raised at a boundary once a stop was asked for.

    It derives from BaseException so that ``except Exception`` in a tool can't swallow it.

    Attributes:
        request: The first request, with its source and reason.
    """

    def __init__(self, request: StopRequest) -> None:
        super().__init__(request)
        self.request = request


@dataclass(frozen=True, slots=True)
class CancelPolicy:
    """Stop policy of a run: grace time and hooks.

    Attributes:
        grace_timeout_s: Seconds after which a graceful stop becomes immediate; None means never.
        before_cancel: Called with the StopRequest before a graceful stop; returning False vetoes
            it. An immediate stop is never vetoed.
        after_cancel: Called with the Receipt once the stopped turn is saved; runs exactly once.
        on_timeout: Called with the StopRequest when the orchestrator timeout is reached; returning
            "fail", "cancel" or "continue" decides in the place of the team's `on_timeout`.
        hook_timeout_s: Seconds that each hook may take; a hook that fails or takes longer is
            noted in the journal and otherwise ignored.
        graceful: Whether `Run.cancel` lets calls in flight finish; a graceful stop that takes
            longer than ``grace_timeout_s`` becomes immediate.
        reason: What `Run.cancel` records when it is given none.
    """

    grace_timeout_s: float | None = 30.0
    before_cancel: Callable[[StopRequest], bool | None | Awaitable[bool | None]] | None = None
    after_cancel: Callable[..., object] | None = None
    on_timeout: Callable[[StopRequest], object] | None = None
    hook_timeout_s: float = 5.0
    graceful: bool = True
    reason: str = ""


class CancelToken:
    """A node in the tree of things that can be stopped.

    Example:
        >>> run = CancelToken("run")
        >>> agent = run.child("agent_a")
        >>> run.request(CancellationStatus.REQUESTED, "api", "wrong path")
        True
        >>> agent.status.name
        'REQUESTED'

    Args:
        name: What the token stands for, for messages.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        # Separates the threads that ask for a stop from the loop thread that makes children.
        # Re-entrant because a signal handler may interrupt its holder on the same thread.
        self._lock = threading.RLock()
        self._status = CancellationStatus.NONE
        self._first: StopRequest | None = None
        self._last: StopRequest | None = None
        # Weak, as a long run makes thousands. Those that somebody holds, or listens to, live on,
        # and with them the ones above, through which a stop finds its way.
        self._children: weakref.WeakSet[CancelToken] = weakref.WeakSet()
        self._parent: CancelToken | None = None
        self._heard: set[CancelToken] = set()  # of the whole tree, those with listeners
        self._listeners: list[Callable[[StopRequest], None]] = []

    @property
    def status(self) -> CancellationStatus:
        """The level now."""
        return self._status

    @property
    def first_request(self) -> StopRequest | None:
        """The request that started the stop, or None."""
        return self._first

    @property
    def last_request(self) -> StopRequest | None:
        """The request that raised the level last, or None."""
        return self._last

    @property
    def is_stopping(self) -> bool:
        """Whether a stop of any level was asked for."""
        return self._status is not CancellationStatus.NONE

    def request(self, level: CancellationStatus, source: StopSource, reason: str = "") -> bool:
        """Raise the level here and below.

        Args:
            level: The level wanted; a lower one than now changes nothing.
            source: The door.
            reason: Why, in a person's words.

        Returns:
            Whether the level of this node rose.
        """
        return self._raise_to(StopRequest(level, source, reason))

    def _raise_to(self, request: StopRequest) -> bool:
        with self._lock:
            if request.level <= self._status:
                return False
            # In this order: whoever sees the level without the lock finds the request, too.
            self._first = self._first or request
            self._last = request
            self._status = request.level
            listeners, children = tuple(self._listeners), tuple(self._children)
        # All listeners are called, even when one fails: a stop that is lost below one is none. An
        # ExitStack calls backwards, hence children last in it: they hear of it first.
        with ExitStack() as calls:
            for listener in reversed(listeners):
                calls.callback(listener, request)
            for child in reversed(children):
                calls.callback(child._raise_to, request)
        return True

    def child(self, name: str) -> CancelToken:
        """Create a child token, which inherits the level and the first request.

        Args:
            name: What the child stands for.

        Returns:
            The new token.
        """
        token = CancelToken(name)
        with self._lock:
            token._status, token._first, token._last = self._status, self._first, self._last
            token._parent, token._heard = self, self._heard
            self._children.add(token)
        return token

    def immediate_only_child(self, name: str) -> CancelToken:
        """Create a child token that follows immediate stops of this one, and no graceful ones.

        For work that a graceful stop lets come to its end, with all that it begins.

        Args:
            name: What the node stands for.
        """
        token = CancelToken(name)
        # Weak, as a long run makes thousands: one feels stops as long as any work is bound to it.
        known = weakref.ref(token)

        def feel(request: StopRequest) -> None:
            patient = known()
            if patient is not None and request.level >= CancellationStatus.IMMEDIATE:
                patient._raise_to(request)

        weakref.finalize(token, self.on_request(feel)).atexit = False
        return token

    def on_request(self, listener: Callable[[StopRequest], None]) -> Callable[[], None]:
        """Call ``listener`` at each rise; at once if a stop was asked for already.

        Args:
            listener: Called on the asking thread; must only post to its own loop.

        Returns:
            A function that unsubscribes.
        """
        with self._lock:
            self._listeners.append(listener)
            self._heard.add(self)
            pending = (
                StopRequest(self._status, self._first.source, self._first.reason)
                if (self._first)
                else None
            )
        if pending is not None:
            listener(pending)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)
                if not self._listeners:
                    self._heard.discard(self)

        return unsubscribe

    def checkpoint(self) -> None:
        """Raise AgentStopped if a stop was asked for.

        Raises:
            AgentStopped: At any level but NONE.
        """
        if self._first is not None:
            raise AgentStopped(self._first)


_current: ContextVar[CancelToken | None] = ContextVar("nb_agents_cancel_token", default=None)


def bind(token: CancelToken) -> AbstractContextManager[None]:
    """Make ``token`` the current one of `checkpoint` and `should_stop` within the block."""
    return within(_current, token)


def current_token() -> CancelToken | None:
    """Return the token that is bound here; None outside a run."""
    return _current.get()


def checkpoint() -> None:
    """Raise AgentStopped if the run that called this code is being stopped.

    Call it in tools and user functions between steps, sync or async, in any thread that the tool
    was started in. Outside a run it does nothing.

    Raises:
        AgentStopped: When a stop was asked for. Let it pass.

    Example:
        >>> for row in range(3):
        ...     checkpoint()  # a stop ends the tool here
    """
    token = _current.get()
    if token is not None:
        token.checkpoint()


def should_stop() -> bool:
    """Return whether the run that called this code is being stopped.

    Returns:
        True from the moment that a stop of any level was asked for; False outside a run.

    Example:
        >>> should_stop()
        False
    """
    token = _current.get()
    return token is not None and token.is_stopping
