"""Client of the fork server, the process that the supervisors of commands are forked from.

The server starts with the first command and ends soon after the last, as do supervisors that wait
for another command. It shares none of this process's memory, files or variables: it is
`nb_agents.process.supervisor`, run as a script. Commands inherit the umask, resource limits and
niceness that this process had when the server started.

What it is worth, in milliseconds a bash step of a recipe (`tests.bench.recipes`; a busy machine of
two cores, medians of one run): 17 as it is, 23 without the supervisors that are kept, 134 with an
interpreter started for each command; the bare command, which asyncio starts, 2.7.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LINGER_S = 10.0
"""How long an idle server is kept: a run's next command usually comes sooner."""

_EXIT_S = 0.2
"""How long this process waits for the server at exit; the server outlives it to end commands."""

_MAX_IDLE = 8
"""Supervisors that are kept for the next commands."""

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


@dataclass
class Supervisor:
    """The supervisor of a command.

    Attributes:
        link: The socket to it, which does not block.
        is_idle: Whether it waits for an order.
    """

    link: socket.socket
    is_idle: bool = True

    def take(self, files: Sequence[int]) -> None:
        """Give it an order, by its file descriptors; see `nb_agents.process.supervisor`."""
        self.is_idle = False
        with suppress(ConnectionError):  # it has just died, which its end of the socket shows
            socket.send_fds(self.link, [b"\0"], files)


class ForkServer:
    """A running fork server."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._orders, far = socket.socketpair()
        self._idle: list[socket.socket] = []
        self.users = 0
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _SUPERVISOR, str(far.fileno()), str(self._owner)],
                cwd="/",
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
                start_new_session=True,
            )

    @contextmanager
    def supervisor(self) -> Iterator[Supervisor]:
        """Yield a supervisor that waits for an order; it is kept if it does so at the end, too.

        Raises:
            OSError: The system has no file descriptors left.
        """
        given = Supervisor(self._waiting() or self._forked())
        try:
            yield given
        finally:
            if given.is_idle and len(self._idle) < _MAX_IDLE:
                self._idle.append(given.link)
            else:
                _hang_up(given.link)

    def _waiting(self) -> socket.socket | None:
        """Take a supervisor that is kept and lives, if any."""
        with suppress(IndexError):  # threads may take them at the same time
            while True:
                link = self._idle.pop()
                try:
                    link.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    return link
                except OSError:
                    pass
                link.close()
        return None

    def _forked(self) -> socket.socket:
        link, far = socket.socketpair()
        link.setblocking(False)
        with far, suppress(ConnectionError):  # the server has just died, which `link` shows
            socket.send_fds(self._orders, [b"\0"], [far.fileno()])
        return link

    @property
    def is_ours(self) -> bool:
        """Whether the server is running and was started by this process, not before a fork."""
        return self._owner == os.getpid() and self._process.poll() is None

    @property
    def has_exited(self) -> bool:
        """Whether the server has exited and was reaped."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Ask the server to exit once its supervisors have."""
        while self._idle:
            _hang_up(self._idle.pop())
        self._orders.close()

    def end(self) -> None:
        """Ask the server to exit and wait for it briefly; called when this process exits."""
        self.close()
        if self.is_ours:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_S)


def _hang_up(link: socket.socket) -> None:
    """Make a supervisor exit, once it has ended what it runs."""
    with link, suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)  # a process forked from this one may hold a copy


# Separates the threads whose event loops start commands.
_lock = threading.Lock()
_server: ForkServer | None = None
_closing: list[ForkServer] = []


@contextmanager
def supervisor() -> Iterator[Supervisor]:
    """Yield a supervisor for a command; arguments and errors are those of `ForkServer`."""
    server = _acquire()
    try:
        with server.supervisor() as given:
            yield given
    finally:
        with _lock:
            server.users -= 1
        with suppress(RuntimeError):  # no running loop: the next command's loop closes it
            asyncio.get_running_loop().call_later(LINGER_S, _close_if_idle, server)


def _acquire() -> ForkServer:
    global _server
    with _lock:
        _closing[:] = [each for each in _closing if not each.has_exited]
        if _server is None or not _server.is_ours:
            if _server is not None:
                _server.close()
                _closing.append(_server)
            _server = ForkServer()
        _server.users += 1
        return _server


def _close_if_idle(server: ForkServer) -> None:
    """Close a server that no command uses."""
    global _server
    with _lock:
        if server is _server and not server.users:
            server.close()
            _closing.append(server)
            _server = None
        _closing[:] = [each for each in _closing if not each.has_exited]


def _forget() -> None:
    """Drop the parent's server in a forked process, which needs its own."""
    global _lock, _server
    _lock, _server = threading.Lock(), None
    _closing.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    for server in [*_closing, *([_server] if _server else [])]:
        server.end()
