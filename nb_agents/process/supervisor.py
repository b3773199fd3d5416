"""The supervisor process of a command, which makes sure that all processes of the command end.

This works even if the process that started the command, the *starter*, is killed.

`nb_agents.process.fork_server` runs this file as a script, with the standard library only. The
script forks a supervisor on request, because starting an interpreter takes ten times as long as
most commands. A supervisor receives a command and runs it as a child, in a separate session. When
the command exits, or the starter closes the connection or dies, the remaining processes get TERM
and, after a grace time, KILL. A command that exceeds a limit gets KILL immediately. A supervisor
runs one command at a time. If a command has exited by itself and all of its processes have ended,
the supervisor waits for the next command, because forking a new one takes longer than most commands
do.

A supervisor per command is necessary because only a closed connection reliably distinguishes a dead
kernel from a busy one, and a live process must notice it. PR_SET_PDEATHSIG does not work: it fires
when the *thread* that forked ends, and it does not affect grandchildren. On Linux, the supervisor
is also the subreaper of its descendants, so processes that leave the group (``setsid``,
``timeout``, a daemon) become its children and can be found. On other systems, it can only end the
group.

Limits per process are set with setrlimit before the command runs. Limits on all processes together,
and on the workspace, are checked by the supervisor. setrlimit and cgroups are not enough:
RLIMIT_NPROC counts all processes of a user and none of root's, and cgroups are seldom writable in a
container. The checks run every quarter of a second, so a command can exceed a limit for that long.
Memory outside an address space (a memfd, a pipe) is not counted. Processes and memory are only
counted on Linux.
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
import warnings  # noqa: F401 - os.execvpe needs it: imported once here, not by each supervisor
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

TYPE_CHECKING = False  # importing `typing` would take a third of the start-up time
if TYPE_CHECKING:
    from typing import Any

TERM_GRACE_S = 2.0
"""Time between TERM and KILL in seconds, so that a command can clean up."""

KILL_WAIT_S = 1.0
"""Seconds to wait after KILL. A process that hangs in a system call can't be ended."""

_MB = 1_000_000
_KB = 1024
_CHECK_S = 0.25
_CHECK_SHARE = 0.05
"""Maximum fraction of the time that the checks may take."""
_MEASURE_SLICE_S = 0.05
_MEASURE_AGAIN_BYTES = 100 * _MB
"""Growth in disk use after which the workspace is measured again."""

_READ_SCRIPT = 'eval "$(</dev/fd/{fd})" {fd}<&-'
"""Runs a script as ``bash -c`` does, with the same $0, line numbers and exit codes. The command's
stdin stays available.
"""

_MAX_FILES = 6
_POLL_S = 0.02
_PARENT_POLL_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_KEYCTL_JOIN_SESSION_KEYRING = 1
# By machine. Source: the tables of system calls in Linux.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def serve(control: int, starter_id: int) -> None:
    """Fork supervisors on request, until the starter closes the connection or dies.

    Args:
        control: The descriptor of a socket to the starter. Each byte on it is a request for a
            supervisor, and comes with the descriptor of that supervisor's socket.
        starter_id: The starter's process id.
    """
    _handle_ignored_signals()
    _library()  # loaded once here, so that the supervisors inherit it
    own_pid, starter, signals = os.getpid(), _Starter(starter_id), _signals(signal.SIGCHLD)
    orders = socket.socket(fileno=control)
    waits_for = [*starter.files, signals, control]
    while control in waits_for or _reap():
        ready = _ready(_PARENT_POLL_S, *waits_for)
        if starter.is_gone(ready):
            break
        if signals in ready:
            os.read(signals, 4096)
        if control in ready and not (files := _receive_files(orders)):
            waits_for.remove(control)  # the remaining supervisors still have to be reaped
        elif control in ready:
            (link,) = files
            if os.fork() == 0:
                try:
                    os.close(control)
                    os.close(signals)
                    starter.parent = own_pid
                    _supervise(link, starter)
                finally:
                    os._exit(1)
            os.close(link)
        _reap()
    os._exit(0)


class _Order:
    """A command to run.

    Args:
        request: The descriptor of a file in `marshal` format: (directory, environment, arguments,
            limits, measured directories). For the last two, see `_LimitWatch`.
        files: The command's stdin, stdout and stderr, and optionally a script for bash.
    """

    def __init__(self, request: int, *files: int) -> None:
        with open(request, "rb", buffering=0) as file:
            content = marshal.loads(file.readall())
        self._folder, self._env, self._command, self.limits, self.folders = content
        self._files = files

    def execute(self) -> None:
        """Replace this process with the command."""
        for number, file in enumerate(self._files[:3]):
            os.dup2(file, number)
        for script in self._files[3:]:
            os.set_inheritable(script, True)
            self._command += [b"-c", _READ_SCRIPT.format(fd=script).encode()]
        try:
            os.chdir(self._folder)
        except OSError as exc:  # removed after the starter checked it
            os.write(2, self._folder + os.fsencode(f": {exc.strerror}\n"))
            os._exit(126)
        _execute(self._command, self._env)

    def close(self) -> None:
        """Close the files, which only the command itself needs."""
        for file in self._files:
            os.close(file)


class _Starter:
    """The process that sends the commands. When it dies, the commands are terminated.

    A closed socket is not enough to detect its death, because processes that it forked may have
    copies.

    Args:
        parent: The process id of the starter, which is the parent of the fork server.

    Attributes:
        parent: The process id that `os.getppid` returns while the starter is alive.
        files: A pidfd that becomes readable when the starter dies. Empty if the system has no
            pidfds.
    """

    def __init__(self, parent: int) -> None:
        self.parent = parent
        self.files: list[int] = []
        with suppress(OSError, AttributeError):
            self.files = [os.pidfd_open(parent)]

    def is_gone(self, ready: set[int]) -> bool:
        """Return whether this process has died, given the descriptors that are readable."""
        return not ready.isdisjoint(self.files) or os.getppid() != self.parent


def _supervise(link: int, starter: _Starter) -> None:
    """Run one command after another, and end all processes of each.

    Args:
        link: The descriptor of a socket to the starter. Each byte on it comes with the files of an
            `_Order`, and its end means stop. Reports are sent back as lines: this process's id and
            the command's process group; the limit that was exceeded; and at the end the exit code,
            whether all processes have ended, and whether this process waits for the next command.
        starter: The process that sends the commands.
    """
    os.setsid()
    _adopt_orphans()
    _raise_priority()
    orders, signals = socket.socket(fileno=link), _signals(signal.SIGCHLD, *_ENDING)
    while files := _next_order(orders, signals, starter):
        if not _run(_Order(*files), link, signals, starter):
            break
    os._exit(0)


def _next_order(orders: socket.socket, signals: int, starter: _Starter) -> list[int]:
    """Wait for the files of the next command.

    Returns an empty list if there are no more commands.
    """
    link, ready = orders.fileno(), set[int]()
    while link not in ready:
        ready = _ready(_PARENT_POLL_S, link, signals, *starter.files)
        if _must_exit(ready, signals, starter):
            return []
    return _receive_files(orders)


def _run(order: _Order, link: int, signals: int, starter: _Starter) -> bool:
    """Run a command. Returns whether it exited by itself and all of its processes have ended."""
    watch = _LimitWatch(order.limits, order.folders)
    if _must_end(link, signals, starter, wait_s=0):
        return False
    own_pid, leader = os.getpid(), os.fork()
    if leader == 0:
        os.setsid()
        _report(link, pid=own_pid, group=os.getpid())  # the command may kill the supervisor
        watch.confine()
        order.execute()
    order.close()
    tree = _ProcessTree(leader)
    while tree.exit_code is None and not _must_end(link, signals, starter, watch.pause_s):
        tree.reap()
        if watch.look():
            _report(link, limit=watch.exceeded)
            break
    ended_by_itself = tree.exit_code is not None and not watch.exceeded
    is_gone = tree.end(signals, immediately=bool(watch.exceeded))
    is_idle = is_gone and ended_by_itself
    if tree.exit_code is not None:
        _report(link, exit=tree.exit_code, gone=int(is_gone), idle=int(is_idle))
    return is_idle


class _LimitWatch:
    """Checks whether a command exceeds its limits.

    Args:
        limits: Limits by their names in `nb_agents.config.permissions`; empty means no limits.
        folders: Directories that count towards the workspace limit.

    Attributes:
        pause_s: Seconds until the next check.
        exceeded: The name of the limit that was exceeded, or "".
    """

    def __init__(self, limits: dict[str, int], folders: list[bytes]) -> None:
        self._limits = limits
        self._folders = folders
        self._free = [_free_bytes(folder) for folder in folders]
        self._measure: Iterator[int] | None = None
        self._measured_at = self._size = 0
        self._checked_at = 0.0
        self._task_count = 0
        self.pause_s = _CHECK_S if limits else _PARENT_POLL_S
        self.exceeded = ""

    def confine(self) -> None:
        """Set resource limits for this process and its children, and leave the user's keyring.

        A command without limits was written by the user and may use the keyring.
        """
        if not self._limits:
            return
        _leave_keyring()
        for number, most in (
            (resource.RLIMIT_NOFILE, self._limits["open_files"]),
            (resource.RLIMIT_FSIZE, self._limits["file_size_mb"] * _MB),
            (resource.RLIMIT_DATA, self._limits["memory_mb"] * _MB),
            # 1 instead of 0: on Linux, only 1 also prevents a dump to a program that collects them.
            # Source: fs/coredump.c, coredump_pipe.
            (resource.RLIMIT_CORE, 1),
            (resource.RLIMIT_NPROC, _system_task_count() + self._limits["processes"]),
        ):
            _, allowed = resource.getrlimit(number)
            most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            resource.setrlimit(number, (most, most))

    def look(self) -> str:
        """Return the limit that the command exceeds, or "". Checks only once the pause is over."""
        start = time.monotonic()
        if self._limits and start >= self._checked_at + self.pause_s:
            self.exceeded = self._processes() or self._workspace()
            self._checked_at = time.monotonic()
            cost_s = self._checked_at - start
            # A check takes longer if there are more processes.
            is_near = self._task_count > self._limits["processes"] // 4
            pause_s = _CHECK_S if is_near else cost_s / _CHECK_SHARE
            self.pause_s = min(max(_CHECK_S, pause_s), _PARENT_POLL_S)
        return self.exceeded

    def _processes(self) -> str:
        self._task_count = used = 0
        pids = []
        for pid, count in _thread_counts():
            self._task_count += count
            used += _memory_bytes(pid)
            pids.append(pid)
            if self._task_count > self._limits["processes"]:
                return "processes"
        most = self._limits["memory_mb"] * _MB
        # The first sum counts shared memory once per process. The exact sum is slower, so it is
        # computed only if the first one exceeds the limit.
        return "memory_mb" if used > most and sum(map(_proportional_bytes, pids)) > most else ""

    def _workspace(self) -> str:
        most = self._limits["workspace_mb"] * _MB
        fuller = self._fuller_bytes()
        if self._measure is None:
            if fuller - self._measured_at < min(_MEASURE_AGAIN_BYTES, most // 10):
                return ""
            self._measured_at, self._size = fuller, 0
            self._measure = _sizes(self._folders)
        # In slices, so that a stop does not have to wait until a million files are measured.
        until = time.monotonic() + _MEASURE_SLICE_S
        for size in self._measure:
            self._size = size
            if time.monotonic() > until:
                return ""
        self._measure = None
        # An excess from before the command does not count, because the command may be removing
        # files.
        return "workspace_mb" if 0 < self._size - most <= fuller else ""

    def _fuller_bytes(self) -> int:
        """Return the growth of disk use since the start in bytes, whichever process caused it."""
        now = map(_free_bytes, self._folders)
        return max((before - is_ for before, is_ in zip(self._free, now, strict=True)), default=0)


class _ProcessTree:
    """A command's process and its descendants.

    Args:
        leader: The id of the command's process and of its process group.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.exit_code: int | None = None

    def reap(self) -> bool:
        """Reap exited children. Returns whether any process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._has_group()
            if pid == self._leader:
                self.exit_code = os.waitstatus_to_exitcode(status)
            if pid == 0:
                return True

    def end(self, signals: int, immediately: bool) -> bool:
        """Send TERM to all processes, then KILL to those that are left.

        Args:
            signals: The descriptor from which arriving signals can be read.
            immediately: Whether to send KILL without sending TERM first.

        Returns:
            Whether all processes have ended.
        """
        if not self.reap():
            return True
        if not immediately:
            # A stopped process does not handle TERM until it is continued.
            self._send(signal.SIGTERM, signal.SIGCONT)
            if self._wait(signals, TERM_GRACE_S):
                return True
        deadline = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < deadline:
            self._send(signal.SIGKILL)
            if self._wait(
                signals, _POLL_S
            ):  # in a loop, because processes may fork in the meantime
                return True
        return False

    def _wait(self, signals: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.reap():
            if time.monotonic() > deadline:
                return False
            if _ready(_POLL_S, signals):
                os.read(signals, 4096)
        return True

    def _send(self, *numbers: int) -> None:
        # The group first, because finding the others may take seconds if there are thousands.
        for number in numbers:
            with suppress(OSError):
                os.killpg(self._leader, number)
        for pid, group in _descendants():
            if group != self._leader:
                for number in numbers:
                    with suppress(OSError):
                        os.kill(pid, number)

    def _has_group(self) -> bool:
        # Without a subreaper, the group may outlive the last child.
        try:
            os.killpg(self._leader, 0)
        except OSError:
            return False
        return True


def _ready(wait_s: float, *files: int) -> set[int]:
    """Wait until a descriptor is readable or the time is up. Returns the readable ones."""
    poll = select.poll()  # select.select rejects descriptors above 1023, which a kernel may have
    for file in files:
        poll.register(file, select.POLLIN)
    return {file for file, _ in poll.poll(wait_s * 1000)}


def _must_end(link: int, signals: int, starter: _Starter, wait_s: float) -> bool:
    """Wait for an event or the timeout. Returns whether the command must be ended."""
    ready = _ready(wait_s, link, signals, *starter.files)
    return _must_exit(ready, signals, starter) or link in ready


def _must_exit(ready: set[int], signals: int, starter: _Starter) -> bool:
    """Return whether a signal or the starter's death requires this process to end."""
    if signals in ready and _ENDING & set(os.read(signals, 4096)):
        return True
    return starter.is_gone(ready)


def _signals(*numbers: int) -> int:
    """Return a pipe from which arriving signals can be read, one byte each."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before >= 0:  # inherited from the fork server
        os.close(before)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reading


def _receive_files(orders: socket.socket) -> list[int]:
    """Receive the descriptors that come with a byte. Returns none if the connection is closed."""
    _, files, _, _ = socket.recv_fds(orders, 1, _MAX_FILES)
    for file in files:
        os.set_inheritable(file, False)
    return files


def _reap() -> bool:
    """Reap supervisors that have exited. Returns whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _raise_priority() -> None:
    """Raise this process's priority, so that it can end thousands of forking processes.

    Its children get the default priority. Only root can do this, and only root needs it, because
    RLIMIT_NPROC limits other users. A nice value would have no effect across sessions if
    autogrouping is enabled. Source: sched(7).
    """
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _adopt_orphans() -> None:
    """Make this process the subreaper of its descendants, if the system supports it."""
    if library := _library():
        with suppress(AttributeError):
            library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _leave_keyring() -> None:
    """Join a new session keyring, so that a command can't use the user's keys."""
    if (library := _library()) and (call := _KEYCTL.get(os.uname().machine)):
        with suppress(AttributeError):
            library.syscall(call, _KEYCTL_JOIN_SESSION_KEYRING, None)


@cache
def _library() -> Any:
    """Return the C library, or None if it can't be loaded or the system is not Linux."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, MemoryError):
            import ctypes

            return ctypes.CDLL(None)
    return None


def _handle_ignored_signals() -> None:
    """Give every ignored signal a handler, so that commands start with the default actions.

    An exec resets signals with a handler to the default, but not ignored ones. An idle Jupyter
    kernel ignores SIGINT, and Python ignores SIGPIPE.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _execute(command: list[bytes], env: dict[bytes, bytes]) -> None:
    """Replace this process with a program.

    If that fails, exit with the code that a shell would use.
    """
    try:
        os.execvpe(command[0], command, env)
    except OSError as exc:
        os.write(2, command[0] + f": {exc.strerror}\n".encode())
        os._exit(127 if isinstance(exc, FileNotFoundError) else 126)


def _descendants() -> list[tuple[int, int]]:
    """Return (process id, group) of each descendant of this process; empty without /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            with suppress(OSError, ValueError):
                pid = int(name)
                with open(f"/proc/{pid}/stat", "rb") as file:
                    # The program's name comes first, in parentheses, and may contain parentheses.
                    _, parent, group = file.read().rpartition(b")")[2].split()[:3]
                children.setdefault(int(parent), []).append((pid, int(group)))
    descendants = children.get(os.getpid(), [])
    # The list grows during iteration: children, then grandchildren.
    for pid, _ in descendants:
        descendants += children.get(pid, [])
    return descendants


def _thread_counts() -> Iterator[tuple[int, int]]:
    """Yield (process id, number of threads) of each descendant of this process.

    Unlike `_descendants`, which reads all processes of the machine, this follows the lists of
    children. It may miss the child of a parent that is just exiting, so it is good enough for
    counting, but not for killing.
    """
    pids = [os.getpid()]
    for pid in pids:  # the list grows during iteration
        with suppress(OSError):
            threads = os.listdir(f"/proc/{pid}/task")
            if pid != pids[0]:
                yield pid, len(threads)
            for thread in threads:
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    pids += map(int, file.read().split())


def _system_task_count() -> int:
    """Return the number of processes and threads on the machine, or 0 if unknown."""
    with suppress(OSError, ValueError), open("/proc/loadavg", "rb") as file:
        # "0.20 0.18 0.12 1/80 11206"; source: proc_loadavg(5)
        return int(file.read().split()[3].partition(b"/")[2])
    return 0


def _memory_bytes(pid: int) -> int:
    """Return the size of a process's memory without mapped files, or 0 if the process has ended."""
    return _sum_kb(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:", b"VmSwap:")


def _proportional_bytes(pid: int) -> int:
    """Return the size of a process's memory, with its proportional share of shared pages."""
    path = f"/proc/{pid}/smaps_rollup"
    return _sum_kb(path, b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:") or _memory_bytes(pid)


def _sum_kb(path: str, *names: bytes) -> int:
    with suppress(OSError), open(path, "rb") as file:
        return _KB * sum(int(row.split()[1]) for row in file if row.startswith(names))
    return 0


def _free_bytes(folder: bytes) -> int:
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize
    return 0


def _sizes(folders: list[bytes]) -> Iterator[int]:
    """Sum the disk space of all files in some directories, yielding each intermediate sum."""
    total = 0
    for folder in (waiting := list(folders)):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                yield total


def _report(link: int, **values: int | str) -> None:
    with suppress(OSError):  # the starter has hung up
        os.write(link, "".join(f"{name} {value}\n" for name, value in values.items()).encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
