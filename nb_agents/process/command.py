"""Running commands so that a stop ends every process of them.

Each command runs under a supervisor process (`nb_agents.process.supervisor`), forked by the fork
server (`nb_agents.process.fork_server`), in a session of its own: a kernel interrupt never
reaches it, and it has no terminal on which to ask for a password. All of its processes, background
jobs and their children included, are ended when its main process exits, on a time-out, on an
immediate stop (the waiting task is cancelled), and when this process is killed.

Limits. Without /proc and Linux's child subreaper (macOS), a process that leaves the command's
process group (``setsid``, ``timeout``, job control) is not found. If the supervisor itself is
killed with -9, the command's process group is ended, but not what left the group; if its starter is
killed at the same moment, nothing is. Unix only.
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

MAX_KEPT_BYTES = 10_000_000
"""Bytes kept of each of a command's two output streams."""

_MAX_INLINE_BYTES = 100_000
"""Linux allows 128 KiB for one argument (MAX_ARG_STRLEN)."""

_MAX_ARGUMENT_BYTES = 131_071
"""MAX_ARG_STRLEN, without the NUL at the end."""
_POINTER_BYTES = 9
"""Overhead of an argument: the NUL and a pointer."""
_MARGIN_S = 1.0
"""Extra time for a supervisor beyond its own time limits, on a busy machine."""
_DRAIN_S = 0.2
"""How long to read output after the end, when only processes that can't be ended still write."""
_CHUNK = 65_536

OnOutput = Callable[[str], None]
Outcome = Literal["finished", "timed out", "over a limit"]


@dataclass(frozen=True)
class Finished:
    """The result of a command.

    Attributes:
        exit_code: 0 for success; negative: the signal that ended it. None when it timed out or
            exceeded a limit.
        output: Its stdout; bytes that are not UTF-8 are replaced by U+FFFD.
        errors: Its stderr, likewise.
        outcome: Whether it exited by itself, timed out, or exceeded a limit.
        limit: The field of `CommandLimits` that it exceeded; else "".
    """

    exit_code: int | None
    output: str
    errors: str
    outcome: Outcome
    limit: str = ""


_NEVER_BEGUN = Finished(-signal.SIGKILL, "", "", "finished")


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
    """Run a program to its end, or until the calling task is cancelled.

    When this returns or raises, none of the command's processes is left: all of them get TERM and,
    two seconds later, KILL.

    Args:
        argv: The program, searched for on the PATH of ``env``, and its arguments. A program that
            can't be run counts as a command that exits with 127 or 126, as in a shell.
        cwd: Its working directory.
        env: Its whole environment; see `nb_agents.process.environment`.
        stdin: Its input; None means none.
        timeout_s: Time limit in seconds; None means no limit.
        on_output: Called with the kept text of both streams as it arrives, including what the
            command writes while it is being ended. It must neither block nor raise.
        limits: Resource limits; None for a user's own command. On macOS only those on file size,
            open files and the contents of ``folders`` are enforced.
        folders: Directories that count towards its workspace limit, besides ``cwd``.

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
    """Run a script of any length as ``bash -c`` does; see `run_command` for the other arguments.

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
    """Start a program and yield its pipes; leaving the block ends all of its processes.

    Arguments and errors are those of `run_command`.
    """
    with _started(_CommandSpec(argv, cwd, env, stdin=b"")) as command:
        try:
            yield command
        finally:
            with CancelScope(shield=True):
                await command.end()


@dataclass(frozen=True)
class _CommandSpec:
    """A command to start.

    Attributes:
        script: The script that a bash without arguments reads.
        limits: Its limits, if any.
        folders: Directories that count towards its workspace limit, besides ``cwd``.
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
    # If the fork server was killed before the command began, the next attempt starts a new one.
    return done or await _run_once(spec, timeout_s, on_output) or _NEVER_BEGUN


async def _run_once(
    spec: _CommandSpec, timeout_s: float | None, on_output: OnOutput | None
) -> Finished | None:
    """Run a command; None when it never began."""
    output, errors = _Capture(on_output), _Capture(on_output)
    await checkpoint_if_cancelled()  # once requested, the command may start before it is ended
    with _started(spec) as command:
        # The pumps go on while the command is being ended, as it may still write.
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
    """A running command and its pipes, which do not block: see `anyio.wait_readable`.

    Attributes:
        supervisor: Its supervisor.
        stdout: Its output.
        stderr: Its error output.
        feeds: Its inputs: each pipe to write to, with the data.
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
        """Its input, unless it has none; closing it ends the input."""
        return self.feeds[0][0]

    @property
    def reported(self) -> dict[str, str]:
        """The values that the supervisor has reported, by name."""
        lines = self.reports.decode("ascii").splitlines()
        return {name: value for name, _, value in (line.partition(" ") for line in lines)}

    @property
    def exit_code(self) -> int:
        """The exit code; that of SIGKILL when the supervisor was killed before reporting one."""
        return int(self.reported.get("exit", -signal.SIGKILL))

    @property
    def is_gone(self) -> bool:
        """Whether its supervisor has seen the end of all of its processes."""
        return self.reported.get("gone") == "1"

    async def wait(self) -> None:
        """Wait until none of the command's processes is left, or the supervisor hangs up."""
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
        """End all of the command's processes, and its supervisor unless none was left."""
        if self.supervisor.is_idle:
            return
        with suppress(OSError):  # it has hung up already
            # Not close(): a process forked from this one may hold a copy of the socket.
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
        """Kill the command's process group, and a supervisor that hangs."""
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
def _started(spec: _CommandSpec) -> Iterator[OpenCommand]:
    """Start a command; close our ends of its pipes when the block ends."""
    request = _request(spec)
    with supervisor() as given, ExitStack() as ours:
        with ExitStack() as theirs:
            output, stdout = _pipe(ours, theirs)
            errors, stderr = _pipe(ours, theirs)
            feeds = []
            if spec.stdin is not None:
                stdin, writing = _pipe(theirs, ours)
                feeds.append((writing, spec.stdin))
            else:
                stdin = theirs.enter_context(open(os.devnull, "rb", buffering=0))
            held = theirs.enter_context(_request_file(request))
            files = [each.fileno() for each in (held, stdin, stdout, stderr)]
            if spec.script is not None:
                reading, writing = _pipe(theirs, ours)
                feeds.append((writing, spec.script))
                files.append(reading.fileno())
            given.take(files)
        for pipe in (output, errors, *(pipe for pipe, _ in feeds)):
            os.set_blocking(pipe.fileno(), False)
        yield OpenCommand(given, output, errors, feeds)


def _request(spec: _CommandSpec) -> bytes:
    """Return what the supervisor reads of a command.

    Raises:
        OSError: The system would refuse to start the command, or to enter its directory.
        ValueError: So it would, as a text can't be passed.
    """
    env = {os.fsencode(name): os.fsencode(value) for name, value in spec.env.items()}
    argv = [os.fsencode(text) for text in spec.argv]
    _check_arguments([*argv, *env, *env.values()])
    _check_directory(spec.cwd)
    folder = os.fsencode(spec.cwd.absolute())  # the supervisor works elsewhere
    limits = spec.limits.model_dump() if spec.limits else {}
    measured = [folder, *map(os.fsencode, spec.folders)] if limits else []
    return marshal.dumps((folder, env, argv, limits, measured))


def _check_arguments(texts: list[bytes]) -> None:
    """Raise the error with which the system would refuse a program's arguments and variables."""
    whole = b"".join(texts)
    if b"\0" in whole:
        raise ValueError("embedded null byte")
    size = len(whole) + _POINTER_BYTES * len(texts)
    if max(map(len, texts)) > _MAX_ARGUMENT_BYTES or size > os.sysconf("SC_ARG_MAX"):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))


def _check_directory(cwd: Path) -> None:
    """Raise the error with which the system would refuse to enter a directory."""
    number = 0 if os.access(cwd, os.X_OK) else errno.EACCES
    if not cwd.is_dir():
        number = errno.ENOTDIR if cwd.exists() else errno.ENOENT
    if number:
        raise OSError(number, os.strerror(number), str(cwd))


def _request_file(request: bytes) -> IO[bytes]:
    """Return an unnamed file with the supervisor's request.

    The file is in memory where the system supports it, as environment variables may be secret.
    """
    if sys.platform == "linux":
        file: IO[bytes] = open(os.memfd_create("command"), "w+b", buffering=0)
    else:
        file = TemporaryFile(buffering=0)
    file.write(request)
    file.seek(0)
    return file


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """Open a pipe, each end of which is closed with its owner's stack."""
    reading, writing = os.pipe()
    return (
        reader.enter_context(open(reading, "rb", buffering=0)),
        writer.enter_context(open(writing, "wb", buffering=0)),
    )


class _Capture:
    """The captured output of a stream, up to `MAX_KEPT_BYTES`."""

    def __init__(self, on_output: OnOutput | None) -> None:
        self._tell = on_output or (lambda _: None)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._kept = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        data = data[: MAX_KEPT_BYTES - len(self._kept)]
        self._kept += data
        if text := self._decoder.decode(data):
            self._tell(text)

    def text(self) -> str:
        """Return the whole text, once the stream has ended."""
        rest, note = self._decoder.decode(b"", final=True), ""
        if self._total > len(self._kept):
            note = f"\n[cut: {self._total} bytes in all; the first {len(self._kept)} are kept]\n"
        if rest + note:
            self._tell(rest + note)
        return self._kept.decode("utf-8", errors="replace") + note


async def _pump(
    scope: CancelScope, command: OpenCommand, output: _Capture, errors: _Capture
) -> None:
    """Write a command's inputs and read its outputs."""
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
    with pipe, suppress(BrokenPipeError):  # nobody reads it any more
        await write_all(pipe, data)
