"""Client of the fork server, the process that the supervisors of commands are forked from.

The server starts with the first command and ends soon after the last. It shares none of this
process's memory, files or variables: it is `nb_agents.process.supervisor`, run as a script.
Commands inherit the umask, resource limits and niceness that this process had when the server
started.
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
from pathlib import Path

__all__ = ["ForkServer", "fork_server"]

LINGER_S = 10.0
"""How long an idle server is kept: a run's next command usually comes sooner."""

_EXIT_S = 0.2
"""How long this process waits for the server at exit; the server outlives it to end commands."""

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


class ForkServer:
    """A running fork server."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._orders, far = socket.socketpair()
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

    def fork(self, files: Sequence[int]) -> None:
        """Fork a supervisor that reads its command from the given file descriptors.

        Raises:
            OSError: The server has just died.
        """
        socket.send_fds(self._orders, [b"\0"], files)

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
        self._orders.close()

    def end(self) -> None:
        """Ask the server to exit and wait for it briefly; called when this process exits."""
        self.close()
        if self.is_ours:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_S)


# Separates the threads whose event loops start commands.
_lock = threading.Lock()
_server: ForkServer | None = None
_closing: list[ForkServer] = []


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Yield the fork server, starting it if needed; it is kept at least until the block ends."""
    server = _acquire()
    try:
        yield server
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    for server in [*_closing, *([_server] if _server else [])]:
        server.end()
