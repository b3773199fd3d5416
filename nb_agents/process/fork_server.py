"""Client of the fork server, the process from which the supervisors of commands are forked.

The server is started for the first command, and exits soon after the last one, together with the
idle supervisors. It runs the script `nb_agents.process.supervisor`, and shares no memory, files or
variables with this process. Commands inherit the umask, resource limits and niceness that this
process had when the server started.

Time per bash step of a recipe (`bench.recipes`, busy machine with two cores, medians of one run):
17 ms with the server, 23 ms without idle supervisors, 134 ms with a new interpreter for each
command. The plain command, started by asyncio, takes 2.7 ms.
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
"""Seconds that an idle server keeps running. The next command of a run usually comes earlier."""

_EXIT_S = 0.2
"""Seconds that this process waits for the server at exit.

The server may take longer, because it ends the running commands.
"""

_MAX_IDLE = 8
"""Maximum number of idle supervisors that wait for the next commands."""

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


@dataclass
class Supervisor:
    """A supervisor process, which runs commands.

    Attributes:
        link: The non-blocking socket to the process.
        is_idle: Whether the process waits for a command.
    """

    link: socket.socket
    is_idle: bool = True

    def take(self, files: Sequence[int]) -> None:
        """Send a command to run, as file descriptors; see `nb_agents.process.supervisor`."""
        self.is_idle = False
        with suppress(
            ConnectionError
        ):  # the process has just died; reading from `link` will show it
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
        """Yield an idle supervisor. If it is idle again at the end of the block, it will be reused.

        Raises:
            OSError: No more file descriptors are available.
        """
        acquired = Supervisor(self._take_idle() or self._fork())
        try:
            yield acquired
        finally:
            if acquired.is_idle and len(self._idle) < _MAX_IDLE:
                self._idle.append(acquired.link)
            else:
                _hang_up(acquired.link)

    def _take_idle(self) -> socket.socket | None:
        """Return the socket of an idle supervisor that is alive, or None."""
        with suppress(IndexError):  # other threads may take them at the same time
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

    def _fork(self) -> socket.socket:
        link, far = socket.socketpair()
        link.setblocking(False)
        with (
            far,
            suppress(ConnectionError),
        ):  # the server has just died; reading from `link` will show it
            socket.send_fds(self._orders, [b"\0"], [far.fileno()])
        return link

    @property
    def is_ours(self) -> bool:
        """Whether the server is running and was started by this process, not by its parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    @property
    def has_exited(self) -> bool:
        """Whether the server has exited and was reaped."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Tell the server to exit after its supervisors have exited."""
        while self._idle:
            _hang_up(self._idle.pop())
        self._orders.close()

    def end(self) -> None:
        """Tell the server to exit, and wait briefly. Called when this process exits."""
        self.close()
        if self.is_ours:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_S)


def _hang_up(link: socket.socket) -> None:
    """Close the connection, so that the supervisor ends its command and exits."""
    with link, suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)  # a process forked from this one may hold a copy


# Commands can be started from the event loops of several threads.
_lock = threading.Lock()
_server: ForkServer | None = None
_closing: list[ForkServer] = []


@contextmanager
def supervisor() -> Iterator[Supervisor]:
    """Yield a supervisor like `ForkServer.supervisor`, starting the server if necessary."""
    server = _acquire()
    try:
        with server.supervisor() as acquired:
            yield acquired
    finally:
        with _lock:
            server.users -= 1
        with suppress(
            RuntimeError
        ):  # without a running loop, the loop of a later command closes it
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
    """Close a server if no command uses it."""
    global _server
    with _lock:
        if server is _server and not server.users:
            server.close()
            _closing.append(server)
            _server = None
        _closing[:] = [each for each in _closing if not each.has_exited]


def _forget() -> None:
    """Forget the parent's server after a fork, because the child process needs its own."""
    global _lock, _server
    _lock, _server = threading.Lock(), None
    _closing.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    for server in [*_closing, *([_server] if _server else [])]:
        server.end()
