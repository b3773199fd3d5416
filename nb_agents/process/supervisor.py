"""The process between us and one command: it ends all of the command, also when we are killed.

`nb_agents.process.fork_server` runs this file as a script, with the standard library alone. That
process does nothing but fork a supervisor for each command, because to start an interpreter takes
ten times as long as most commands do. It knows nothing of them: what it is to run, a supervisor
reads itself. The command runs as the supervisor's child, in a session of its own. When the command
ends, when its starter hangs up, and when its starter dies, whatever is left of the command gets
TERM and, after a grace time, KILL. When the command goes beyond a limit, it gets KILL at once.

Why a process for each command: the only thing that reliably tells a dead kernel from a busy one is
a closed connection, and somebody must live to see it. PR_SET_PDEATHSIG would do without, but fires
when the *thread* that forked ends, and reaches no grandchild. On Linux this process is besides the
reaper of its descendants, which it may be because it does nothing else: what leaves the group
(``setsid``, ``timeout``, a daemon) becomes its child and is found. Elsewhere it can only end the
group, and what left it lives on.

Limits that the system holds a process to are set before the command runs; those on all of its
processes together, and on its workspace, are looked after from here. That is what holds for root
and for everybody: RLIMIT_NPROC counts all processes of a user and none of root's, and cgroups can
seldom be written from within a container. It is a look every quarter of a second, so a command may
be beyond a limit for that long. What no process holds in its address space (a memfd, a pipe) is
not counted. Off Linux, processes and their memory are not.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

TYPE_CHECKING = False  # to import `typing` takes a third of the start
if TYPE_CHECKING:
    from typing import Any

__all__ = ["KILL_WAIT_S", "TERM_GRACE_S"]

TERM_GRACE_S = 2.0
"""What a command gets between TERM and KILL, to tidy up."""

KILL_WAIT_S = 1.0
"""How long KILL is waited for: a process stuck in the system (a dead disk) can't be ended."""

_MB = 1_000_000
_KB = 1024
_LOOK_S = 0.25
_LOOK_SHARE = 0.05
"""What part of the time looking may take."""
_MEASURE_SLICE_S = 0.05
_MEASURE_AGAIN_BYTES = 100 * _MB
"""How much fuller the disk becomes before the workspace is measured again."""

_READ_SCRIPT = 'eval "$(</dev/fd/{fd})" {fd}<&-'
"""Runs a script like ``bash -c`` does: same $0, line numbers, exit codes; stdin stays free."""

_MAX_FILES = 6
_POLL_S = 0.02
_PARENT_POLL_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_KEYCTL_JOIN_SESSION_KEYRING = 1
# By machine. Source: the tables of system calls in Linux.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def serve(control: int, starter_id: int) -> None:
    """Fork a supervisor for each order, until the starter hangs up or dies.

    Args:
        control: A socket to the starter: each byte brings the files of an order, in the order of
            `_Order`.
        starter_id: The starter's process id.
    """
    _library()  # which takes a while to load, and the supervisors have it then
    here, starter, signals = os.getpid(), _Starter(starter_id), _signals(signal.SIGCHLD)
    orders = socket.socket(fileno=control)
    waits_for = [*starter.files, signals, control]
    while control in waits_for or _reap():
        ready = _ready(_PARENT_POLL_S, *waits_for)
        if starter.is_gone(ready):
            break
        if signals in ready:
            os.read(signals, 4096)
        if control in ready and not (files := _received(orders)):
            waits_for.remove(control)  # those that are there still have to be reaped
        elif control in ready:
            if os.fork() == 0:
                try:
                    os.close(control)
                    os.close(signals)
                    _supervise(_Order(*files), starter.seen_from_below(here))
                finally:
                    os._exit(1)
            for file in files:
                os.close(file)
        _reap()
    os._exit(0)


class _Order:
    """The files that come with an order.

    Args:
        words: A file with what to run: `marshal` of (directory, environment, limits, arguments).
            Limits are lines of name=value, as `nb_agents.config.permissions` names them, and
            folder=path for each directory that is measured; "" for none.
        link: A socket to the starter. Its end of file says: stop. It is told the supervisor's
            process id, the command's process group, the limit that it went beyond and, when nothing
            is left of it, its exit code, one a line.
        streams: The command's stdin, stdout and stderr; and a script, where a bash is to read one.
    """

    def __init__(self, words: int, link: int, *streams: int) -> None:
        self.words, self.link = words, link
        self.stdin, self.stdout, self.stderr, self.script = (*streams, -1)[:4]


class _Starter:
    """The process that gives the orders: what it started ends with it.

    A process that it forked may keep the other ends of its sockets open after its death.

    Args:
        parent: Its process id, which is this process's parent's.

    Attributes:
        files: What can be read when it has died, where that can be had.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self.files: list[int] = []
        with suppress(OSError, AttributeError):
            self.files = [os.pidfd_open(parent)]

    def is_gone(self, ready: set[int]) -> bool:
        """Say whether it has died; ``ready`` are the files that can be read."""
        return not ready.isdisjoint(self.files) or os.getppid() != self._parent

    def seen_from_below(self, server: int) -> _Starter:
        """Give the same within a process that the fork server has forked, which ends with it.

        Args:
            server: The fork server's process id.
        """
        self._parent = server
        return self


def _supervise(order: _Order, starter: _Starter) -> None:
    """Run a command and end all of it."""
    os.setsid()
    _say(order.link, "pid", os.getpid())
    with open(order.words, "rb") as file:
        folder, env, limits, command = marshal.loads(file.read())
    for number, file_number in enumerate((order.stdin, order.stdout, order.stderr)):
        os.dup2(file_number, number)
        os.close(file_number)
    if order.script >= 0:
        os.set_inheritable(order.script, True)
        command += [b"-c", _READ_SCRIPT.format(fd=order.script).encode()]
    try:
        os.chdir(folder)
    except OSError as exc:  # it was there a moment ago
        os.write(2, folder + os.fsencode(f": {exc.strerror}\n"))
        os._exit(126)
    _run(order, starter, _Watch(limits), command, env)


def _run(
    order: _Order,
    starter: _Starter,
    watch: _Watch,
    command: list[bytes],
    env: dict[bytes, bytes],
) -> None:
    link, signals = order.link, _signals(signal.SIGCHLD, *_ENDING)
    _adopt_orphans()
    if _is_stopped(link, signals, starter, wait_s=0):
        os._exit(0)
    leader = os.fork()
    if leader == 0:
        os.setsid()
        _say(link, "group", os.getpid())  # before the command may kill who else would say it
        watch.confine()
        _execute(command, env)
    if order.script >= 0:
        os.close(order.script)
    _go_first()
    family = _Family(leader)
    while family.exit_code is None and not _is_stopped(link, signals, starter, watch.pause_s):
        family.reap()
        if watch.look():
            _say(link, "limit", watch.exceeded)
            break
    family.end(signals, at_once=bool(watch.exceeded))
    if family.exit_code is not None:
        _say(link, "exit", family.exit_code)
    os._exit(0)


class _Watch:
    """Holds a command to its limits.

    Args:
        limits: See `main`.

    Attributes:
        pause_s: Seconds until the next look.
        exceeded: The limit that it went beyond, or "".
    """

    def __init__(self, limits: str) -> None:
        lines = [line.partition("=")[::2] for line in limits.split("\n") if line]
        self._limits = {name: int(value) for name, value in lines if name != "folder"}
        self._folders = [value for name, value in lines if name == "folder"]
        self._free = [_free_bytes(folder) for folder in self._folders]
        self._measure: Iterator[int] | None = None
        self._measured_at = self._size = 0
        self._looked_at = 0.0
        self._tasks = 0
        self.pause_s = _LOOK_S if limits else _PARENT_POLL_S
        self.exceeded = ""

    def confine(self) -> None:
        """Set the limits that the system holds this process to, and all that it starts.

        An agent's command has limits; what has none is the person's own, keys included.
        """
        if not self._limits:
            return
        _leave_keyring()
        for number, most in (
            (resource.RLIMIT_NOFILE, self._limits["open_files"]),
            (resource.RLIMIT_FSIZE, self._limits["file_size_mb"] * _MB),
            (resource.RLIMIT_DATA, self._limits["memory_mb"] * _MB),
            # Neither a file nor, on Linux, a program that takes the dump: of those, 1 alone stops
            # any. Source: fs/coredump.c, coredump_pipe.
            (resource.RLIMIT_CORE, 1),
            (resource.RLIMIT_NPROC, _machines_tasks() + self._limits["processes"]),
        ):
            _, allowed = resource.getrlimit(number)
            most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            resource.setrlimit(number, (most, most))

    def look(self) -> str:
        """Look whether the command is beyond a limit; give its name, or ""."""
        began = time.monotonic()
        if self._limits and began >= self._looked_at + self.pause_s:
            self.exceeded = self._processes() or self._workspace()
            self._looked_at = time.monotonic()
            cost_s = self._looked_at - began
            # Looking takes long where there is much to see, and that grows.
            is_near = self._tasks > self._limits["processes"] // 4
            pause_s = _LOOK_S if is_near else cost_s / _LOOK_SHARE
            self.pause_s = min(max(_LOOK_S, pause_s), _PARENT_POLL_S)
        return self.exceeded

    def _processes(self) -> str:
        self._tasks = held = 0
        pids = []
        for pid, count in _tasks():
            self._tasks += count
            held += _held_bytes(pid)
            pids.append(pid)
            if self._tasks > self._limits["processes"]:
                return "processes"
        most = self._limits["memory_mb"] * _MB
        # What forked processes share counts for each of them at first.
        return "memory_mb" if held > most and sum(map(_share_bytes, pids)) > most else ""

    def _workspace(self) -> str:
        most = self._limits["workspace_mb"] * _MB
        fuller = self._fuller_bytes()
        if self._measure is None:
            if fuller - self._measured_at < min(_MEASURE_AGAIN_BYTES, most // 10):
                return ""
            self._measured_at, self._size = fuller, 0
            self._measure = _sizes(self._folders)
        # In slices: a stop must not wait for a tree of a million files.
        until = time.monotonic() + _MEASURE_SLICE_S
        for size in self._measure:
            self._size = size
            if time.monotonic() > until:
                return ""
        self._measure = None
        # What was too much before it began is not its doing, and it may be there to remove it.
        return "workspace_mb" if 0 < self._size - most <= fuller else ""

    def _fuller_bytes(self) -> int:
        """Give how much fuller the disk is than at the beginning, by whomever."""
        now = map(_free_bytes, self._folders)
        return max((was - is_ for was, is_ in zip(self._free, now, strict=True)), default=0)


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

    def end(self, signals: int, at_once: bool) -> None:
        """End all who live: TERM, unless it is to be at once, and KILL to those who stay."""
        if not self.reap():
            return
        if not at_once:
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
        # The group first: among thousands that fork, to look for others takes many seconds.
        for number in numbers:
            with suppress(OSError):
                os.killpg(self._leader, number)
        for pid, group in _descendants():
            if group != self._leader:
                for number in numbers:
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


def _is_stopped(link: int, signals: int, starter: _Starter, wait_s: float) -> bool:
    """Wait for something to happen; say whether it is time to end the command."""
    ready = _ready(wait_s, link, signals, *starter.files)
    if signals in ready and _ENDING & set(os.read(signals, 4096)):
        return True
    return link in ready or starter.is_gone(ready)


def _signals(*numbers: int) -> int:
    """Give a pipe on which arriving signals can be read, each a byte."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before >= 0:  # of the process that forked this one
        os.close(before)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reading


def _received(orders: socket.socket) -> list[int]:
    """Give the files of the next order; none when nobody gives any more."""
    _, files, _, _ = socket.recv_fds(orders, 1, _MAX_FILES)
    for file in files:
        os.set_inheritable(file, False)
    return files


def _reap() -> bool:
    """Reap the supervisors that have ended; say whether any lives."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _go_first() -> None:
    """Be served before thousands that fork, or their end would be long in coming.

    Only root may, and only root needs it: the system itself limits others by RLIMIT_NPROC. To be
    nicer would not do, where the system gives each session its share. Source: sched(7).
    """
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, where that can be had."""
    if library := _library():
        with suppress(AttributeError):
            library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _leave_keyring() -> None:
    """Begin a session keyring of its own: no namespace keeps a command from the person's keys."""
    if (library := _library()) and (call := _KEYCTL.get(os.uname().machine)):
        with suppress(AttributeError):
            library.syscall(call, _KEYCTL_JOIN_SESSION_KEYRING, None)


@cache
def _library() -> Any:
    """Give the system's library; None where what is wanted of it is not to be had."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, MemoryError):
            import ctypes

            return ctypes.CDLL(None)
    return None


def _execute(command: list[bytes], env: dict[bytes, bytes]) -> None:
    # An idle Jupyter kernel ignores SIGINT, and Python SIGPIPE; commands expect neither.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, env)
    except OSError as exc:
        os.write(2, command[0] + f": {exc.strerror}\n".encode())
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


def _tasks() -> Iterator[tuple[int, int]]:
    """Give (process id, number of threads) of each who descends from this process.

    Walks down from here, where `_descendants` reads all processes of the machine, and so misses one
    whose parent ends in this moment: good enough to count, and not to kill.
    """
    pids = [os.getpid()]
    for pid in pids:  # the list grows while it is walked
        with suppress(OSError):
            threads = os.listdir(f"/proc/{pid}/task")
            if pid != pids[0]:
                yield pid, len(threads)
            for thread in threads:
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    pids += map(int, file.read().split())


def _machines_tasks() -> int:
    """Give the number of all processes and threads; 0 when it can't be had."""
    with suppress(OSError, ValueError), open("/proc/loadavg", "rb") as file:
        # "0.20 0.18 0.12 1/80 11206"; source: proc_loadavg(5)
        return int(file.read().split()[3].partition(b"/")[2])
    return 0


def _held_bytes(pid: int) -> int:
    """Give what a process holds in memory besides files on disk; 0 when it is gone."""
    return _sum_kb(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:", b"VmSwap:")


def _share_bytes(pid: int) -> int:
    """Give the same without what others hold as well; it takes longer to find out."""
    place = f"/proc/{pid}/smaps_rollup"
    return _sum_kb(place, b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:") or _held_bytes(pid)


def _sum_kb(place: str, *names: bytes) -> int:
    with suppress(OSError), open(place, "rb") as file:
        return _KB * sum(int(row.split()[1]) for row in file if row.startswith(names))
    return 0


def _free_bytes(folder: str) -> int:
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize
    return 0


def _sizes(folders: list[str]) -> Iterator[int]:
    """Add up the space that all files below some directories take; give each sum on the way."""
    total = 0
    for folder in (waiting := list(folders)):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                yield total


def _say(link: int, what: str, value: int | str) -> None:
    with suppress(OSError):  # nobody listens any more
        os.write(link, f"{what} {value}\n".encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
