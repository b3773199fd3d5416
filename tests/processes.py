"""Python code in other processes that exchange lines, and programs at a pseudo-terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.model_server import wait_until
from tests.warm import WarmProcess

ROOT = Path(__file__).parent.parent

_DROP = """
import ctypes, os, sys
if os.getuid() == 0:
    for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, right, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.argv[1], sys.argv[1:])
"""
BOUND_BY_PERMISSIONS = (sys.executable, "-c", _DROP)
"""Put before a command: root does not pass over the permissions of files then; nobody else does."""


@contextmanager
def python(code: str, *args: object, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run code with arguments; whatever is left of it at the end is killed.

    Forked from where all is imported, unless another command comes before.
    """
    start = subprocess.Popen if before else WarmProcess
    process = start(
        [*before, sys.executable, "-c", code, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of Python to its end; it is forked from where all is imported."""
    pipe = subprocess.PIPE
    with WarmProcess(command, stdout=pipe, stderr=pipe, text=True, **more) as process:
        out, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def output(code: str, *args: object, before: Sequence[str] = ()) -> str:
    """Run code to its end and give what it printed."""
    with python(code, *args, before=before) as process:
        out, _ = process.communicate()
        assert process.returncode == 0, out
        return out


def read_line(process: subprocess.Popen[str]) -> str:
    """Wait for the next line that the process prints, and read nothing of what follows.

    A buffer that took more would keep it from `communicate`, which reads the pipe itself.
    """
    assert process.stdout is not None
    read = b""
    while not read.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        read += byte
    return read.decode()


def line(process: subprocess.Popen[str]) -> str:
    """Wait for the next line that the process prints."""
    return read_line(process).strip()


def tell(process: subprocess.Popen[str], text: str = "") -> None:
    """Send the process a line."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def suspend(pid: int) -> None:
    """Suspend a process, and wait for each of its threads: they stop one after the other."""

    def is_suspended() -> bool:
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        return {each.read_text().rpartition(")")[2].split()[0] for each in threads} == {"T"}

    os.kill(pid, signal.SIGSTOP)
    wait_until(is_suspended, what="the process to be suspended")


def children(parent: int) -> list[int]:
    """The processes that a process has started and that live or are not reaped."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, above = place.read_text().rpartition(")")[2].split()[:2]
            if int(above) == parent:
                found.append(int(place.parent.name))
    return found


def fork_servers(parent: int) -> list[int]:
    """The fork servers of a process, by their script."""
    return [pid for pid in children(parent) if b"supervisor.py" in _words_of(pid)]


def supervisors() -> list[int]:
    """The supervisors of this process's commands."""
    return [pid for server in fork_servers(os.getpid()) for pid in children(server)]


def environment_of(pid: int) -> bytes:
    """The variables that a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes()


def _words_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Terminal:
    """A program of Python at a pseudo-terminal, typed to and read from.

    It is forked from where all is imported, unless it is `cold`.
    """

    def __init__(
        self, argv: list[str], cwd: Path, env: Mapping[str, str], cold: bool = False
    ) -> None:
        self._master, slave = pty.openpty()
        start = subprocess.Popen if cold else WarmProcess
        self.process = start(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its controlling tty
        )
        os.close(slave)
        self.text = ""
        self.bytes = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ctrl_c(self) -> None:
        self.type("\x03")

    def wait_text(self, text: str) -> None:
        wait_until(lambda: text in self.read(), what=repr(text), seen=lambda: self.text)

    def read(self) -> str:
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO: the program has ended
                break
            if not data:
                break
            self.bytes += data
            self.text += re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", data.decode(errors="replace"))
        return self.text

    def wait_end(self) -> int:
        def ended() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(ended, what="the program's end", seen=lambda: self.text)
        return int(self.process.returncode)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(200)
        os.close(self._master)
