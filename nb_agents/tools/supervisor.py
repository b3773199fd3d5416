"""The process between us and one command: it ends all of the command, also when we are killed.

`nb_agents.tools.process` runs this file as a script, one for each command, with the standard
library alone. The command runs as its child in a process group of its own. When the command ends,
when its starter hangs up, and when its starter dies, whatever is left of the command gets TERM and,
after a grace time, KILL.

Why a process for each command: the only thing that reliably tells a dead kernel from a busy one is
a closed connection, and somebody must live to see it. PR_SET_PDEATHSIG would do without, but fires
when the *thread* that forked ends, and reaches no grandchild. On Linux this process is besides the
reaper of its descendants, which it may be because it does nothing else: what leaves the group
(``setsid``, ``timeout``, a daemon) becomes its child and is found. Elsewhere it can only end the
group, and what left it lives on.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

__all__ = ["KILL_WAIT_S", "TERM_GRACE_S"]

TERM_GRACE_S = 2.0
"""What a command gets between TERM and KILL, to tidy up."""

KILL_WAIT_S = 1.0
"""How long KILL is waited for: a process stuck in the system (a dead disk) can't be ended."""

_POLL_S = 0.02
_PARENT_POLL_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(link: int, starter: int, command: list[str]) -> None:
    """Run a command and end all of it.

    Args:
        link: A socket to the starter. Its end of file says: stop. It is told the command's process
            group and, when nothing is left of it, its exit code, one a line.
        starter: The starter's process id. A process that it forked may keep the other end of the
            link open after its death.
        command: What to run.
    """
    os.set_inheritable(link, False)
    signals = _signals()
    _adopt_orphans()
    if _is_stopped(link, signals, starter, wait_s=0):
        return
    leader = os.fork()
    if leader == 0:
        _execute(command)
    with suppress(OSError):  # the child may have done it already, and be gone
        os.setpgid(leader, leader)
    _say(link, leader)
    family = _Family(leader)
    while family.exit_code is None and not _is_stopped(link, signals, starter, _PARENT_POLL_S):
        family.reap()
    family.end(signals)
    if family.exit_code is not None:
        _say(link, family.exit_code)
    os._exit(0)


class _Family:
    """A command's process and all that descend from it.

    Args:
        leader: The id of the command's process, and of its group.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.exit_code: int | None = None

    def reap(self) -> bool:
        """Take leave of the dead; say whether anyone lives."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._has_group()
            if pid == self._leader:
                self.exit_code = os.waitstatus_to_exitcode(status)
            if pid == 0:
                return True

    def end(self, signals: int) -> None:
        """End all who live: TERM, and KILL to those who stay."""
        if not self.reap():
            return
        # A stopped process would sleep through TERM.
        self._send(signal.SIGTERM, signal.SIGCONT)
        if self._wait(signals, TERM_GRACE_S):
            return
        deadline = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < deadline:
            self._send(signal.SIGKILL)
            if self._wait(signals, _POLL_S):  # again and again: some may fork faster
                return

    def _wait(self, signals: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.reap():
            if time.monotonic() > deadline:
                return False
            if _ready(_POLL_S, signals):
                os.read(signals, 4096)
        return True

    def _send(self, *numbers: int) -> None:
        others = _descendants()
        for number in numbers:
            with suppress(OSError):
                os.killpg(self._leader, number)
            for pid, group in others:
                if group != self._leader:
                    with suppress(OSError):
                        os.kill(pid, number)

    def _has_group(self) -> bool:
        # Where orphans are not adopted, a group outlives the last child.
        try:
            os.killpg(self._leader, 0)
        except OSError:
            return False
        return True


def _ready(wait_s: float, *files: int) -> set[int]:
    """Wait until one of them can be read; give those that can."""
    poll = select.poll()  # select.select refuses numbers from 1024, and a kernel may have many
    for file in files:
        poll.register(file, select.POLLIN)
    return {file for file, _ in poll.poll(wait_s * 1000)}


def _is_stopped(link: int, signals: int, starter: int, wait_s: float) -> bool:
    """Wait for something to happen; say whether it is time to end the command."""
    ready = _ready(wait_s, link, signals)
    if signals in ready and _ENDING & set(os.read(signals, 4096)):
        return True
    return link in ready or os.getppid() != starter


def _signals() -> int:
    """Give a pipe on which arriving signals can be read, each a byte."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENDING):
        signal.signal(number, lambda *_: None)
    return reading


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, where that can be had."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError, MemoryError):
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _execute(command: list[str]) -> None:
    os.setpgid(0, 0)
    # An idle Jupyter kernel ignores SIGINT, and Python SIGPIPE; commands expect neither.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as exc:
        os.write(2, os.fsencode(f"{command[0]}: {exc.strerror}\n"))
        os._exit(127 if isinstance(exc, FileNotFoundError) else 126)


def _descendants() -> list[tuple[int, int]]:
    """List (process id, group) of all who descend from this process; none where /proc is not."""
    children: dict[int, list[tuple[int, int]]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            with suppress(OSError, ValueError):
                pid = int(name)
                with open(f"/proc/{pid}/stat", "rb") as file:
                    # The name before is in parentheses, and may have some itself.
                    _, parent, group = file.read().rpartition(b")")[2].split()[:3]
                children.setdefault(int(parent), []).append((pid, int(group)))
    found = children.get(os.getpid(), [])
    # The list grows while it is walked: children, then theirs.
    for pid, _ in found:
        found += children.get(pid, [])
    return found


def _say(link: int, number: int) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(link, f"{number}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
