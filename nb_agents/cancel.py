"""Thread-safe cancel tokens, and the functions that check them.

Tokens form a tree (run → agent → tool …). A stop of a token also stops its descendants, including
those created later, but not its siblings. A context variable binds the token of the running code,
so that tools and user functions can call `should_stop()` and `checkpoint()` without a parameter.

This module does no I/O and needs no event loop. A component that reacts to stops registers a
listener. The listener is called on the thread that requested the stop, and should only post to its
own loop.

Source: the levels come from the cancellation states of Amplifier's recipes, the context variable
and the checks at boundaries from gofannon's ISSUE-007.
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
    "widget", "interrupt", "notebook", "api", "magic", "rest", "cli", "mcp", "acp",
    "timeout", "budget", "approval", "parent",
]  # fmt: skip
"""The interface or event that caused a stop.

"notebook" is an interrupt by a program that executes a notebook without a user, such as nbclient.
"""


class CancellationStatus(enum.IntEnum):
    """The level of a stop, which only rises."""

    NONE = 0
    """No stop was requested."""
    REQUESTED = 1
    """Graceful stop: calls in flight finish, and nothing new starts."""
    IMMEDIATE = 2
    """Immediate stop: calls in flight are interrupted, and their partial output is saved."""
    CANCELLED = 3
    """The run has stopped and is saved."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop a run or an agent.

    Attributes:
        level: The requested level.
        source: The interface or event from which it came.
        reason: The user's reason, or "".
        agent: Id of the agent to stop, or "" for the whole run.
        gate: Address of the gate if its denial caused the stop, or "".
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
        status: The run's status: "unknown", "finished", "vetoed", "asked", "stopping" (graceful) or
            "stopping-now" (immediate). "asked" means that the request has no effect yet, because a
            hook that can veto it has not returned, or because the loop is busy.
    """

    changed: bool
    status: Literal["unknown", "finished", "vetoed", "asked", "stopping", "stopping-now"]


class AgentStopped(BaseException):
    """Raised at a boundary when a stop has been requested.

    It derives from BaseException so that ``except Exception`` in a tool can't swallow it.

    Attributes:
        request: The first stop request, with its source and reason.
    """

    def __init__(self, request: StopRequest) -> None:
        super().__init__(request)
        self.request = request


@dataclass(frozen=True, slots=True)
class CancelPolicy:
    """Stop policy of a run: grace time and hooks. Hooks may omit their parameter.

    Attributes:
        grace_timeout_s: Seconds after which a graceful stop becomes immediate. None means never.
        before_cancel: Called with the StopRequest before a graceful stop. If it returns False, the
            run is not stopped. It can't veto an immediate stop.
        after_cancel: Called once with the Receipt after the stopped turn was saved.
        on_timeout: Called with the StopRequest at the orchestrator timeout. It can return "fail",
            "cancel" or "continue" to override the team's `on_timeout`.
        hook_timeout_s: Seconds that each hook may take. A hook that fails or takes longer is
            recorded in the journal and otherwise ignored.
        graceful: Whether `Run.cancel` lets calls in flight finish.
        reason: The reason that `Run.cancel` records by default.
    """

    grace_timeout_s: float | None = 30.0
    before_cancel: Callable[..., bool | None | Awaitable[bool | None]] | None = None
    after_cancel: Callable[..., object] | None = None
    on_timeout: Callable[..., object] | None = None
    hook_timeout_s: float = 5.0
    graceful: bool = True
    reason: str = ""


class CancelToken:
    """A cancel token: a node in a tree of runs, agents and tools that can be stopped.

    Example:
        >>> run = CancelToken("run")
        >>> agent = run.child("agent_a")
        >>> run.request(CancellationStatus.REQUESTED, "api", "wrong path")
        True
        >>> agent.status.name
        'REQUESTED'

    Args:
        name: Name of the run, agent or tool, for messages.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        # Guards against a stop from one thread while the loop thread creates children. Re-entrant,
        # because a signal handler may interrupt the holder on the same thread.
        self._lock = threading.RLock()
        self._status = CancellationStatus.NONE
        self._first: StopRequest | None = None
        self._last: StopRequest | None = None
        # Weak, because a long run creates thousands of children. A child that is referenced or has
        # listeners stays alive, and references its ancestors, which pass stops on to it.
        self._children: weakref.WeakSet[CancelToken] = weakref.WeakSet()
        self._parent: CancelToken | None = None
        self._with_listeners: set[CancelToken] = set()  # shared by the whole tree
        self._listeners: list[Callable[[StopRequest], None]] = []

    @property
    def status(self) -> CancellationStatus:
        """The current level."""
        return self._status

    @property
    def first_request(self) -> StopRequest | None:
        """The request that started the stop, or None."""
        return self._first

    @property
    def last_request(self) -> StopRequest | None:
        """The request that last raised the level, or None."""
        return self._last

    @property
    def is_stopping(self) -> bool:
        """Whether a stop of any level was requested."""
        return self._status is not CancellationStatus.NONE

    def request(self, level: CancellationStatus, source: StopSource, reason: str = "") -> bool:
        """Raise the level of this token and its descendants.

        Args:
            level: The new level. A level that is not above the current one has no effect.
            source: The interface or event from which the request comes.
            reason: The user's reason.

        Returns:
            Whether the level of this token rose.
        """
        return self._raise_to(StopRequest(level, source, reason))

    def _raise_to(self, request: StopRequest) -> bool:
        with self._lock:
            if request.level <= self._status:
                return False
            # The level is set last, because a reader without the lock that sees it must also find
            # the request.
            self._first = self._first or request
            self._last = request
            self._status = request.level
            listeners, children = tuple(self._listeners), tuple(self._children)
        # An ExitStack calls all of its callbacks even if one raises, so that no descendant misses
        # the stop. It calls them in reverse order, so children are pushed last to be called first.
        with ExitStack() as calls:
            for listener in reversed(listeners):
                calls.callback(listener, request)
            for child in reversed(children):
                calls.callback(child._raise_to, request)
        return True

    def child(self, name: str) -> CancelToken:
        """Create a child token, which inherits the level and the requests.

        Args:
            name: Name of the agent, tool or step.
        """
        token = CancelToken(name)
        with self._lock:
            token._status, token._first, token._last = self._status, self._first, self._last
            token._parent, token._with_listeners = self, self._with_listeners
            self._children.add(token)
        return token

    def immediate_only_child(self, name: str) -> CancelToken:
        """Create a child token that follows immediate stops of this one, but not graceful ones.

        For work that may finish after a graceful stop, including everything that this work starts.

        Args:
            name: Name of the work.
        """
        token = CancelToken(name)
        # Weak, because a long run creates thousands. Running work references its token.
        reference = weakref.ref(token)

        def forward(request: StopRequest) -> None:
            child = reference()
            if child is not None and request.level >= CancellationStatus.IMMEDIATE:
                child._raise_to(request)

        weakref.finalize(token, self.on_request(forward)).atexit = False
        return token

    def on_request(self, listener: Callable[[StopRequest], None]) -> Callable[[], None]:
        """Call ``listener`` whenever the level rises, and now if a stop was already requested.

        Args:
            listener: Called on the thread that requests the stop. It should only post to its own
                loop.

        Returns:
            A function that unsubscribes.
        """
        with self._lock:
            self._listeners.append(listener)
            self._with_listeners.add(self)
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
                    self._with_listeners.discard(self)

        return unsubscribe

    def checkpoint(self) -> None:
        """Raise AgentStopped if a stop of any level was requested."""
        if self._first is not None:
            raise AgentStopped(self._first)


_current: ContextVar[CancelToken | None] = ContextVar("nb_agents_cancel_token", default=None)


def bind(token: CancelToken) -> AbstractContextManager[None]:
    """Make `checkpoint` and `should_stop` use ``token`` in the block."""
    return within(_current, token)


def current_token() -> CancelToken | None:
    """Return the token of the running code, or None outside a run."""
    return _current.get()


def checkpoint() -> None:
    """Raise AgentStopped if the run that called this code is being stopped.

    Call it between the steps of sync or async tools and user functions, in the thread in which the
    function was called. Outside a run it does nothing.

    Raises:
        AgentStopped: A stop was requested. Do not catch it.

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
        True once a stop of any level was requested. False outside a run.

    Example:
        >>> should_stop()
        False
    """
    token = _current.get()
    return token is not None and token.is_stopping
