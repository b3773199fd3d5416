"""Running a command so that a stop ends all of it.

Each command runs below a supervisor process (`nb_agents.process.supervisor`), which the fork server
(`nb_agents.process.fork_server`) forks for it, in a session of its own: an interrupt to the kernel
never reaches it, and no terminal can ask it for a password. It ends whole, background jobs and
their children too: when its own process ends, on a time-out, on an immediate stop (the waiting task
is cancelled), and also when this process is killed.

Limits. Where /proc and Linux's child subreaper are not to be had (macOS), a process that leaves the
command's process group (``setsid``, ``timeout``, job control) is not found. A supervisor that is
itself killed with -9 takes the command's process group with it, but nothing that left the group,
and nothing at all when its starter is killed in the same moment. Unix only.
"""

from __future__ import annotations

import codecs
import errno
import marshal
import os
import signal
import socket
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
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
from typing import IO, Literal, Protocol

import anyio
from anyio import CancelScope, create_task_group, move_on_after
from anyio.lowlevel import checkpoint_if_cancelled

from nb_agents.config.permissions import CommandLimits
from nb_agents.process.fork_server import fork_server
from nb_agents.process.supervisor import KILL_WAIT_S, TERM_GRACE_S

__all__ = ["Finished", "MAX_KEPT_BYTES", "OpenCommand", "open_command", "run_bash", "run_command"]

MAX_KEPT_BYTES = 10_000_000
"""What is kept of each of a command's two streams."""

_MAX_INLINE_BYTES = 100_000
"""Linux takes 128 KiB as one argument (MAX_ARG_STRLEN)."""

_MAX_ARGUMENT_BYTES = 131_071
"""MAX_ARG_STRLEN, without the NUL at the end."""
_POINTER_BYTES = 9
"""What an argument takes besides: the NUL, and a pointer."""
_MARGIN_S = 1.0
"""What a supervisor gets beyond its own time limits, on a busy machine."""
_DRAIN_S = 0.2
"""How long output is waited for after the end; only what could not be ended still writes then."""
_CHUNK = 65_536

OnOutput = Callable[[str], None]
Outcome = Literal["finished", "timed out", "over a limit"]


@dataclass(frozen=True)
class Finished:
    """How a command ended.

    Attributes:
        exit_code: 0 for success; negative: the signal that ended it. None when it timed out or
            went beyond a limit.
        output: What it wrote to stdout; bytes that are not UTF-8 became U+FFFD.
        errors: The same of stderr.
        outcome: Whether it ended by itself, by `timeout_s`, or by one of its limits.
        seconds: How long it took, from its start until nothing of it was left.
        limit: The limit that it went beyond, a name in `CommandLimits`; else "".
    """

    exit_code: int | None
    output: str
    errors: str
    outcome: Outcome
    seconds: float
    limit: str = ""


_NEVER_BEGUN = Finished(-signal.SIGKILL, "", "", "finished", 0.0)


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

    When this returns or raises, nothing of the command is left: first comes TERM, to all of it, and
    KILL two seconds later.

    Args:
        argv: The program, looked for on the PATH of ``env``, and its arguments. One that can't be
            run is a command that exits with 127 or 126, like in a shell.
        cwd: Its working directory.
        env: Its whole environment; see `nb_agents.process.environment`.
        stdin: What it reads; None means nothing.
        timeout_s: Seconds that it may take; None means for ever.
        on_output: Is given the kept text of both streams, piece by piece as it comes; also what a
            command writes while it is being ended. It must neither block nor raise.
        limits: What it may use of the machine; None for a person's own command. On macOS only the
            sizes of files and the number of open ones hold, and what is in ``folders``.
        folders: Directories that count as its workspace does, besides ``cwd``.

    Returns:
        How it ended.

    Raises:
        OSError: ``cwd`` is not a directory that can be entered, or the arguments are too long.
        ValueError: An argument can't be passed: it has a NUL or half a surrogate pair.
    """
    held = _limit_lines(limits, folders) if limits else ""
    return await _run(_Order(argv, cwd, env, stdin, limits=held), timeout_s, on_output)


async def run_bash(
    script: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes | None = None,
    timeout_s: float | None = None,
    on_output: OnOutput | None = None,
) -> Finished:
    """Run a script of any length like ``bash -c`` does.

    Args:
        script: The script.
        cwd: See `run_command`, and for all that follow.
        env: Its whole environment.
        stdin: What the script reads; None means nothing.
        timeout_s: Seconds that it may take.
        on_output: Is given the text that it writes.

    Returns:
        How it ended.

    Raises:
        OSError: As `run_command`.
        ValueError: As `run_command`, for the script.
    """
    if "\0" in script:
        raise ValueError("A script can't contain a NUL character.")
    data = os.fsencode(script)
    if len(data) <= _MAX_INLINE_BYTES:
        order = _Order(["bash", "-c", script], cwd, env, stdin)
    else:
        order = _Order(["bash"], cwd, env, stdin, script=data)
    return await _run(order, timeout_s, on_output)


@dataclass(frozen=True)
class OpenCommand:
    """A running program to talk to. Its pipes do not block: see `anyio.wait_readable`.

    Attributes:
        stdin: What it reads; closing it is the end of its input.
        stdout: What it writes.
        stderr: What it writes besides.
        wait: Waits until nothing of it is left.
    """

    stdin: FileIO
    stdout: FileIO
    stderr: FileIO
    wait: Callable[[], Awaitable[None]]


@asynccontextmanager
async def open_command(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> AsyncIterator[OpenCommand]:
    """Start a program to talk to; when the block is left, nothing of it is.

    Args:
        argv: See `run_command`, and for all that follow.
        cwd: Its working directory.
        env: Its whole environment.

    Yields:
        The program.

    Raises:
        OSError: As `run_command`.
        ValueError: As `run_command`.
    """
    with _started(_Order(argv, cwd, env, stdin=b"")) as command:
        (stdin, _), *_ = command.feeds
        try:
            yield OpenCommand(stdin, command.output, command.errors, command.wait)
        finally:
            with CancelScope(shield=True):
                await command.end()


@dataclass(frozen=True)
class _Order:
    """What to run; ``script`` is for a bash without arguments, ``limits`` for the supervisor."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stdin: bytes | None
    script: bytes | None = None
    limits: str = ""


def _limit_lines(limits: CommandLimits, folders: Sequence[Path]) -> str:
    """Write limits as the supervisor reads them, which has no time to import a parser."""
    lines = [f"{name}={getattr(limits, name)}" for name in CommandLimits.model_fields]
    return "\n".join([*lines, "folder=.", *(f"folder={folder}" for folder in folders)])


async def _run(order: _Order, timeout_s: float | None, on_output: OnOutput | None) -> Finished:
    done = await _run_once(order, timeout_s, on_output)
    # It never began, as the fork server was killed in this moment: another one is there by now.
    return done or await _run_once(order, timeout_s, on_output) or _NEVER_BEGUN


async def _run_once(
    order: _Order, timeout_s: float | None, on_output: OnOutput | None
) -> Finished | None:
    """Run a command; None when it never began."""
    began = time.monotonic()
    output, errors = _Kept(on_output), _Kept(on_output)
    await checkpoint_if_cancelled()  # once it is ordered, it may begin before it hears of a stop
    with _started(order) as command:
        # The pumps go on while the command is being ended: it may have last words.
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
    if command.has_hung_up and not command.said:
        return None
    limit = command.told.get("limit", "")
    outcome: Outcome = "over a limit" if limit else "finished"
    if clock.cancelled_caught:
        outcome = "timed out"
    return Finished(
        exit_code=command.exit_code if outcome == "finished" else None,
        output=output.text(),
        errors=errors.text(),
        outcome=outcome,
        seconds=time.monotonic() - began,
        limit=limit,
    )


@dataclass
class _Command:
    """A running command.

    Attributes:
        link: The socket to the supervisor.
        output: Its stdout.
        errors: Its stderr.
        feeds: What it reads, each with the pipe to write it to.
        said: What the supervisor has told.
        has_hung_up: Whether it has ended.
    """

    link: socket.socket
    output: FileIO
    errors: FileIO
    feeds: list[tuple[FileIO, bytes]]
    said: bytes = b""
    has_hung_up: bool = False

    @property
    def told(self) -> dict[str, str]:
        """What the supervisor has told, by its first words."""
        lines = self.said.decode("ascii").splitlines()
        return {name: value for name, _, value in (line.partition(" ") for line in lines)}

    @property
    def exit_code(self) -> int:
        """The command's; "killed" when its supervisor was, and so could not tell."""
        return int(self.told.get("exit", -signal.SIGKILL))

    async def wait(self) -> None:
        """Wait until the supervisor hangs up: then nothing of the command is left."""
        while True:
            await anyio.wait_readable(self.link)
            said = self.link.recv(_CHUNK)
            if not said:
                self.has_hung_up = True
                return
            self.said += said

    async def end(self) -> None:
        """See to it that all of it ends, and reap the supervisor."""
        with suppress(OSError):  # it has hung up already
            # close() would not do: a process forked from this one may hold a copy of the socket.
            self.link.shutdown(socket.SHUT_WR)
        with move_on_after(TERM_GRACE_S + KILL_WAIT_S + _MARGIN_S):
            await self.wait()
        if "exit" not in self.told:
            self._kill()
        # It has hung up, and is gone and reaped within a millisecond.
        with move_on_after(_MARGIN_S):
            while self._is_known():  # noqa: ASYNC110 - nothing would set an event
                await anyio.sleep(0.001)

    def _kill(self) -> None:
        """Do the work of a supervisor that was killed, or hangs."""
        if group := self.told.get("group"):
            with suppress(OSError):
                os.killpg(int(group), signal.SIGKILL)
        if not self.has_hung_up and (supervisor := self.told.get("pid")):
            with suppress(OSError):
                os.kill(int(supervisor), signal.SIGKILL)

    def _is_known(self) -> bool:
        try:
            os.kill(int(self.told["pid"]), 0)
        except (KeyError, OSError):
            return False
        return True


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


@contextmanager
def _started(order: _Order) -> Iterator[_Command]:
    """Start a command; close our ends of its pipes at the end."""
    _refuse(order)
    with ExitStack() as ours:
        server = ours.enter_context(fork_server())
        with ExitStack() as theirs:
            link, far = socket.socketpair()
            ours.enter_context(link)
            theirs.enter_context(far)
            output, stdout = _pipe(ours, theirs)
            errors, stderr = _pipe(ours, theirs)
            feeds = []
            if order.stdin is not None:
                stdin, writing = _pipe(theirs, ours)
                feeds.append((writing, order.stdin))
            else:
                stdin = theirs.enter_context(open(os.devnull, "rb", buffering=0))
            given: list[_HasFileno] = [_words(order, theirs), far, stdin, stdout, stderr]
            if order.script is not None:
                reading, writing = _pipe(theirs, ours)
                feeds.append((writing, order.script))
                given.append(reading)
            server.fork([each.fileno() for each in given])
        link.setblocking(False)
        for pipe in (output, errors, *(pipe for pipe, _ in feeds)):
            os.set_blocking(pipe.fileno(), False)
        yield _Command(link, output, errors, feeds)


def _refuse(order: _Order) -> None:
    """Refuse what can't be started, as the system would.

    Raises:
        OSError: The directory can't be entered, or the arguments are too long.
        ValueError: An argument can't be passed.
    """
    size = 0
    for text in (*order.argv, *order.env, *order.env.values()):
        data = os.fsencode(text)
        if b"\0" in data:
            raise ValueError("embedded null byte")
        if len(data) > _MAX_ARGUMENT_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        size += len(data) + _POINTER_BYTES
    if size > os.sysconf("SC_ARG_MAX"):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    number = 0 if os.access(order.cwd, os.X_OK) else errno.EACCES
    if not order.cwd.is_dir():
        number = errno.ENOTDIR if order.cwd.exists() else errno.ENOENT
    if number:
        raise OSError(number, os.strerror(number), str(order.cwd))


def _words(order: _Order, theirs: ExitStack) -> IO[bytes]:
    """Write what the supervisor is to run into a file, from its beginning.

    It is in memory where that is to be had: variables that a command inherits may be secret.
    """
    env = {os.fsencode(name): os.fsencode(value) for name, value in order.env.items()}
    argv = [os.fsencode(text) for text in order.argv]
    file = theirs.enter_context(_unnamed_file())
    folder = os.fsencode(order.cwd.absolute())  # the fork server works elsewhere
    file.write(marshal.dumps((folder, env, order.limits, argv)))
    file.seek(0)
    return file


def _unnamed_file() -> IO[bytes]:
    if sys.platform == "linux":
        return open(os.memfd_create("command"), "w+b", buffering=0)
    return TemporaryFile(buffering=0)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """Make a pipe; each end is closed with its owner's stack."""
    reading, writing = os.pipe()
    return (
        reader.enter_context(open(reading, "rb", buffering=0)),
        writer.enter_context(open(writing, "wb", buffering=0)),
    )


class _Kept:
    """What a stream said, up to `MAX_KEPT_BYTES`.

    Args:
        on_output: Is given what is kept, as it comes.
    """

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
        """Give all of it, once it is over."""
        rest, note = self._decoder.decode(b"", final=True), ""
        if self._total > len(self._kept):
            note = f"\n[cut: {self._total} bytes in all; the first {len(self._kept)} are kept]\n"
        if rest + note:
            self._tell(rest + note)
        return self._kept.decode("utf-8", errors="replace") + note


async def _pump(scope: CancelScope, command: _Command, output: _Kept, errors: _Kept) -> None:
    """Move all that goes in and out of a command."""
    with scope:
        async with create_task_group() as tasks:
            tasks.start_soon(_read, command.output, output)
            tasks.start_soon(_read, command.errors, errors)
            for pipe, data in command.feeds:
                tasks.start_soon(_feed, pipe, data)


async def _read(pipe: FileIO, kept: _Kept) -> None:
    while True:
        await anyio.wait_readable(pipe)
        data = pipe.read(_CHUNK)
        if not data:
            return
        kept.add(data)


async def _feed(pipe: FileIO, data: bytes) -> None:
    left = memoryview(data)
    with pipe, suppress(BrokenPipeError):  # nobody reads it any more
        while left:
            await anyio.wait_writable(pipe)
            left = left[pipe.write(left[:_CHUNK]) or 0 :]
