"""Runs commands in a way that lets a stop end all of their processes.

Each command runs under a supervisor process (`nb_agents.process.supervisor`), forked by the fork
server (`nb_agents.process.fork_server`), in a separate session. An interrupt of the kernel does not
reach it, and it has no terminal on which to ask for a password. All of its processes, including
background jobs and their children, are terminated when its main process exits, on a timeout, on an
immediate stop (which cancels the waiting task), and when this process is killed.

Limits: On macOS, which has no /proc and no child subreaper, a process that leaves the command's
process group (``setsid``, ``timeout``, job control) is not found. If the supervisor is killed with
-9, only the command's process group is terminated. If this process is killed at the same moment,
the command survives. Unix only.
"""

from __future__ import annotations

import codecs
import errno
import marshal
import os
import signal
import socket
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Literal

import anyio
from anyio import CancelScope, create_task_group, move_on_after
from anyio.lowlevel import checkpoint_if_cancelled

from nb_agents.config.permissions import CommandLimits
from nb_agents.process.fork_server import Supervisor, supervisor
from nb_agents.process.lines import read_chunk, write_all
from nb_agents.process.supervisor import KILL_WAIT_S, TERM_GRACE_S

MAX_CAPTURED_BYTES = 10_000_000
"""Maximum number of bytes captured of each of a command's two output streams."""

_MAX_INLINE_BYTES = 100_000
"""Size limit of a script that is passed as an argument; Linux allows 128 KiB (MAX_ARG_STRLEN)."""

_MAX_ARGUMENT_BYTES = 131_071
"""Linux's MAX_ARG_STRLEN, without the NUL at the end."""
_POINTER_BYTES = 9
"""Overhead of an argument: the NUL and a pointer."""
_MARGIN_S = 1.0
"""Extra time for a supervisor in addition to its time limits, for busy machines."""
_DRAIN_S = 0.2
"""Seconds to read output after the end, in case unkillable processes hold the pipes open."""
_CHUNK = 65_536

OnOutput = Callable[[str], None]
Outcome = Literal["finished", "timed out", "over a limit"]


@dataclass(frozen=True)
class Finished:
    """The result of a command.

    Attributes:
        exit_code: 0 means success, and -N that signal N ended the command. None if it timed out or
            exceeded a limit.
        output: The content of stdout; invalid UTF-8 is replaced by U+FFFD.
        errors: The content of stderr; invalid UTF-8 is replaced as well.
        outcome: Whether the command exited, timed out, or exceeded a limit.
        limit: The field of `CommandLimits` that the command exceeded, or "".
    """

    exit_code: int | None
    output: str
    errors: str
    outcome: Outcome
    limit: str = ""


_NEVER_STARTED = Finished(-signal.SIGKILL, "", "", "finished")


async def run_command(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes | None = None,
    timeout_s: float | None = None,
    on_output: OnOutput | None = None,
    limits: CommandLimits | None = None,
    folders: Sequence[Path] = (),
) -> Finished:
    """Run a program until it ends or the calling task is cancelled.

    When this returns or raises, none of the command's processes are left. Those that are still
    running get TERM and, two seconds later, KILL.

    Args:
        argv: The program, searched for on the PATH of ``env``, and its arguments. A program that
            can't be run results in the exit code 127 or 126, as in a shell.
        cwd: The working directory.
        env: The complete environment; see `nb_agents.process.environment`.
        stdin: The input. None means no input.
        timeout_s: Time limit in seconds. None means no limit.
        on_output: Called with the captured text of both streams as it arrives, including output
            that the command writes while it is being ended. It must neither block nor raise.
        limits: Resource limits. None for a command that the user wrote. On macOS, only the limits
            for file size, open files and the contents of ``folders`` are enforced.
        folders: Directories that count towards the workspace limit, in addition to ``cwd``.

    Raises:
        OSError: ``cwd`` is not a directory that can be entered, or the arguments are too long.
        ValueError: An argument can't be passed: it contains a NUL or a lone surrogate.
    """
    spec = _CommandSpec(argv, cwd, env, stdin, limits=limits, folders=folders)
    return await _run(spec, timeout_s, on_output)


async def run_bash(
    script: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes | None = None,
    timeout_s: float | None = None,
    on_output: OnOutput | None = None,
) -> Finished:
    """Run a script of any length like ``bash -c``; see `run_command` for the other arguments.

    Raises:
        OSError: As for `run_command`.
        ValueError: The script contains a NUL or a lone surrogate.
    """
    if "\0" in script:
        raise ValueError("A script can't contain a NUL character.")
    data = os.fsencode(script)
    if len(data) <= _MAX_INLINE_BYTES:
        spec = _CommandSpec(["bash", "-c", script], cwd, env, stdin)
    else:
        spec = _CommandSpec(["bash"], cwd, env, stdin, script=data)
    return await _run(spec, timeout_s, on_output)


@asynccontextmanager
async def open_command(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> AsyncIterator[OpenCommand]:
    """Start a program and yield its pipes. All of its processes are terminated when the block ends.

    Arguments and errors are those of `run_command`.
    """
    with _start(_CommandSpec(argv, cwd, env, stdin=b"")) as command:
        try:
            yield command
        finally:
            with CancelScope(shield=True):
                await command.end()


@dataclass(frozen=True)
class _CommandSpec:
    """A command to start.

    Attributes:
        script: The script for a bash without arguments, or None for other commands.
        limits: Resource limits. None means no limits.
        folders: Directories that count towards the workspace limit, in addition to ``cwd``.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stdin: bytes | None
    script: bytes | None = None
    limits: CommandLimits | None = None
    folders: Sequence[Path] = ()


async def _run(spec: _CommandSpec, timeout_s: float | None, on_output: OnOutput | None) -> Finished:
    done = await _run_once(spec, timeout_s, on_output)
    # If the fork server was killed before the command started, the next attempt starts a new one.
    return done or await _run_once(spec, timeout_s, on_output) or _NEVER_STARTED


async def _run_once(
    spec: _CommandSpec, timeout_s: float | None, on_output: OnOutput | None
) -> Finished | None:
    """Run a command. Returns None if it never started."""
    output, errors = _Capture(on_output), _Capture(on_output)
    await checkpoint_if_cancelled()  # after this, the command may start even on a cancellation
    with _start(spec) as command:
        # The pumps continue while the command is being ended, because it may still write.
        pumping = CancelScope(shield=True)
        async with create_task_group() as tasks:
            tasks.start_soon(_pump, pumping, command, output, errors)
            try:
                with move_on_after(timeout_s) as clock:
                    await command.wait()
            finally:
                with CancelScope(shield=True):
                    await command.end()
                pumping.deadline = anyio.current_time() + _DRAIN_S
    if command.has_hung_up and not command.reports and not clock.cancelled_caught:
        return None
    limit = command.reported.get("limit", "")
    outcome: Outcome = "over a limit" if limit else "finished"
    if clock.cancelled_caught:
        outcome = "timed out"
    return Finished(
        exit_code=command.exit_code if outcome == "finished" else None,
        output=output.text(),
        errors=errors.text(),
        outcome=outcome,
        limit=limit,
    )


@dataclass
class OpenCommand:
    """A running command and its non-blocking pipes; use `anyio.wait_readable` to wait.

    Attributes:
        supervisor: The command's supervisor.
        feeds: The inputs: pairs of a pipe and the data to write to it.
        reports: The lines received from the supervisor.
        has_hung_up: Whether the supervisor has closed its end of the socket.
    """

    supervisor: Supervisor
    stdout: FileIO
    stderr: FileIO
    feeds: list[tuple[FileIO, bytes]]
    reports: bytes = b""
    has_hung_up: bool = False

    @property
    def stdin(self) -> FileIO:
        """The pipe to the command's stdin. Call this only if the command has one."""
        return self.feeds[0][0]

    @property
    def reported(self) -> dict[str, str]:
        """The values reported by the supervisor, by name."""
        lines = self.reports.decode("ascii").splitlines()
        return {name: value for name, _, value in (line.partition(" ") for line in lines)}

    @property
    def exit_code(self) -> int:
        """The exit code; -9, as for SIGKILL, if the supervisor did not report one."""
        return int(self.reported.get("exit", -signal.SIGKILL))

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor has confirmed that all processes of the command have ended."""
        return self.reported.get("gone") == "1"

    async def wait(self) -> None:
        """Wait until all of the command's processes have ended, or the supervisor hangs up."""
        link = self.supervisor.link
        while not self.supervisor.is_idle and not self.has_hung_up:
            await anyio.wait_readable(link)
            data = b""
            with suppress(ConnectionError):  # the supervisor was killed before it read the order
                data = link.recv(_CHUNK)
            self.reports += data
            self.has_hung_up = not data
            self.supervisor.is_idle = b"idle 1\n" in self.reports

    async def end(self) -> None:
        """End all of the command's processes and its supervisor.

        Does nothing if they have already ended.
        """
        if self.supervisor.is_idle:
            return
        with suppress(OSError):  # it has already hung up
            # Not close(), because a process forked from this one may hold a copy of the socket.
            self.supervisor.link.shutdown(socket.SHUT_WR)
        with move_on_after(TERM_GRACE_S + KILL_WAIT_S + _MARGIN_S):
            await self.wait()
        self.supervisor.is_idle = False
        if "exit" not in self.reported:
            self._kill()
        # A supervisor that has hung up exits and is reaped within a millisecond.
        with move_on_after(_MARGIN_S):
            while self._is_known():  # noqa: ASYNC110 - nothing would set an event
                await anyio.sleep(0.001)

    def _kill(self) -> None:
        """Kill the command's process group, and the supervisor if it hangs."""
        if group := self.reported.get("group"):
            with suppress(OSError):
                os.killpg(int(group), signal.SIGKILL)
        if not self.has_hung_up and (supervisor := self.reported.get("pid")):
            with suppress(OSError):
                os.kill(int(supervisor), signal.SIGKILL)

    def _is_known(self) -> bool:
        try:
            os.kill(int(self.reported["pid"]), 0)
        except (KeyError, OSError):
            return False
        return True


@contextmanager
def _start(spec: _CommandSpec) -> Iterator[OpenCommand]:
    """Start a command. This process's ends of the pipes are closed when the block ends."""
    request = _request(spec)
    with supervisor() as acquired, ExitStack() as cleanup:
        with ExitStack() as theirs:
            output, stdout = _pipe(cleanup, theirs)
            errors, stderr = _pipe(cleanup, theirs)
            feeds = []
            if spec.stdin is not None:
                stdin, writing = _pipe(theirs, cleanup)
                feeds.append((writing, spec.stdin))
            else:
                stdin = theirs.enter_context(open(os.devnull, "rb", buffering=0))
            request_file = theirs.enter_context(_request_file(request))
            files = [each.fileno() for each in (request_file, stdin, stdout, stderr)]
            if spec.script is not None:
                reading, writing = _pipe(theirs, cleanup)
                feeds.append((writing, spec.script))
                files.append(reading.fileno())
            acquired.take(files)
        for pipe in (output, errors, *(pipe for pipe, _ in feeds)):
            os.set_blocking(pipe.fileno(), False)
        yield OpenCommand(acquired, output, errors, feeds)


def _request(spec: _CommandSpec) -> bytes:
    """Return a command in the format that the supervisor reads.

    Raises:
        OSError: The arguments are too long, or the working directory can't be entered.
        ValueError: An argument or variable contains a NUL or a lone surrogate.
    """
    env = {os.fsencode(name): os.fsencode(value) for name, value in spec.env.items()}
    argv = [os.fsencode(text) for text in spec.argv]
    _check_arguments([*argv, *env, *env.values()])
    _check_directory(spec.cwd)
    folder = os.fsencode(spec.cwd.absolute())  # the supervisor has another working directory
    limits = spec.limits.model_dump() if spec.limits else {}
    measured = [folder, *map(os.fsencode, spec.folders)] if limits else []
    return marshal.dumps((folder, env, argv, limits, measured))


def _check_arguments(texts: list[bytes]) -> None:
    """Raise the system's error if a program's arguments and variables are too long or invalid."""
    whole = b"".join(texts)
    if b"\0" in whole:
        raise ValueError("embedded null byte")
    size = len(whole) + _POINTER_BYTES * len(texts)
    if max(map(len, texts)) > _MAX_ARGUMENT_BYTES or size > os.sysconf("SC_ARG_MAX"):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))


def _check_directory(cwd: Path) -> None:
    """Raise the system's error if a directory can't be entered."""
    number = 0 if os.access(cwd, os.X_OK) else errno.EACCES
    if not cwd.is_dir():
        number = errno.ENOTDIR if cwd.exists() else errno.ENOENT
    if number:
        raise OSError(number, os.strerror(number), str(cwd))


def _request_file(request: bytes) -> IO[bytes]:
    """Return an unnamed file with the request for the supervisor.

    The file is in memory if the system supports it, because environment variables may be secret.
    """
    if sys.platform == "linux":
        file: IO[bytes] = open(os.memfd_create("command"), "w+b", buffering=0)
    else:
        file = TemporaryFile(buffering=0)
    file.write(request)
    file.seek(0)
    return file


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """Open a pipe. Each end is closed by the exit stack of its owner."""
    reading, writing = os.pipe()
    return (
        reader.enter_context(open(reading, "rb", buffering=0)),
        writer.enter_context(open(writing, "wb", buffering=0)),
    )


class _Capture:
    """The captured output of a stream, up to `MAX_CAPTURED_BYTES`."""

    def __init__(self, on_output: OnOutput | None) -> None:
        self._on_output = on_output or (lambda _: None)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._captured = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        data = data[: MAX_CAPTURED_BYTES - len(self._captured)]
        self._captured += data
        if text := self._decoder.decode(data):
            self._on_output(text)

    def text(self) -> str:
        """Return the captured text. Call this once, after the stream has ended."""
        rest, note = self._decoder.decode(b"", final=True), ""
        if self._total > len(self._captured):
            note = (
                f"\n[truncated: {self._total} bytes in total; only the first "
                f"{len(self._captured)} are shown]\n"
            )
        if rest + note:
            self._on_output(rest + note)
        return self._captured.decode("utf-8", errors="replace") + note


async def _pump(
    scope: CancelScope, command: OpenCommand, output: _Capture, errors: _Capture
) -> None:
    """Write a command's inputs and read its outputs until it ends."""
    with scope:
        async with create_task_group() as tasks:
            tasks.start_soon(_read, command.stdout, output)
            tasks.start_soon(_read, command.stderr, errors)
            for pipe, data in command.feeds:
                tasks.start_soon(_feed, pipe, data)


async def _read(pipe: FileIO, capture: _Capture) -> None:
    while data := await read_chunk(pipe):
        capture.add(data)


async def _feed(pipe: FileIO, data: bytes) -> None:
    with pipe, suppress(BrokenPipeError):  # the reader has closed its end
        await write_all(pipe, data)
