"""The process that supervisors of commands are forked from: this process's end of it.

It is started with the first command, serves those that follow, and ends soon after the last. It has
none of our memory, files or variables: it is `nb_agents.process.supervisor`, run as a script. What
else a command inherits (umask, resource limits, niceness) is as this process had it at that start.
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
"""How long it stays when nobody needs it: the next command of a run mostly comes sooner."""

_EXIT_S = 0.2
"""What it gets to end when this process does; where a command still ends, it goes on to."""

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


class ForkServer:
    """A fork server, from its start to its end."""

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
        """Let it fork a supervisor, which reads from the files what to run.

        Raises:
            OSError: It has died in this moment.
        """
        socket.send_fds(self._orders, [b"\0"], files)

    @property
    def is_ours(self) -> bool:
        """Whether it lives, and is this process's and not that of one it was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    @property
    def is_over(self) -> bool:
        """Whether it has ended and is reaped."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Let it end, once its supervisors have."""
        self._orders.close()

    def end(self) -> None:
        """Let it end and wait for that, for the end of this process."""
        self.close()
        if self.is_ours:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_S)


# Separates the threads whose loops start commands.
_lock = threading.Lock()
_server: ForkServer | None = None
_leaving: list[ForkServer] = []


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Give the fork server; it stays at least until the end of the block."""
    server = _taken()
    try:
        yield server
    finally:
        with _lock:
            server.users -= 1
        with suppress(RuntimeError):  # no loop: then the next one sees to it
            asyncio.get_running_loop().call_later(LINGER_S, _leave, server)


def _taken() -> ForkServer:
    global _server
    with _lock:
        _leaving[:] = [each for each in _leaving if not each.is_over]
        if _server is None or not _server.is_ours:
            if _server is not None:
                _server.close()
                _leaving.append(_server)
            _server = ForkServer()
        _server.users += 1
        return _server


def _leave(server: ForkServer) -> None:
    """Let it end if nobody needs it."""
    global _server
    with _lock:
        if server is _server and not server.users:
            server.close()
            _leaving.append(server)
            _server = None
        _leaving[:] = [each for each in _leaving if not each.is_over]


def _forget() -> None:
    """In a forked process, whose commands need one of its own."""
    global _lock, _server
    _lock, _server = threading.Lock(), None
    _leaving.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    for server in [*_leaving, *([_server] if _server else [])]:
        server.end()
