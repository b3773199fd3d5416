"""Warm Python processes, forked from a process that has imported everything.

    process = WarmProcess([sys.executable, "-m", "ipykernel_launcher", "-f", file])

It is what `subprocess.Popen` starts of that, with a process id, a session, an environment and files
of its own, except that what this module imports has been imported before. Tests of imports, and of
the start itself, start Python in the ordinary way.

The process that others are forked from starts with the first of them, or with the first of several
processes of tests, which share it; they, and a server that the tests have started, find it by the
environment. It runs nothing but imports, and so has no threads, sockets or state that a fork would
double. For processes of Dask it forks, with the first of them, one that has imported Dask, too.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

__all__ = [
    "PROVISIONER",
    "WarmProcess",
    "WarmProvisioner",
    "address",
    "fork_hosts",
    "forked_with",
    "kernel_path",
    "warm_up",
]

PROVISIONER = "warm"
"""The name of the provisioner of warm kernels, for those who have imported this module."""

_ADDRESS = "TESTS_WARM_ADDRESS"
"""The variable that holds where the process listens that others are forked from."""

_ROOT = Path(__file__).parent.parent
_IMPORTS = (
    "ipykernel.kernelapp",
    "IPython",
    "IPython.core.completer",
    "IPython.terminal.ipapp",
)
_LATER = (
    "ipywidgets",  # see `_import_widgets`
    "anywidget",
    # Not every kernel has them.
    "dask",
    "distributed",
    "jupyter_server",
    # Few kernels have them, and they take longer than all others together.
    "ag2",
    "agents",
    "langgraph",
)
_DASK = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")
"""What a scheduler, and workers, import besides."""

_NEVER = "rfc3987_syntax"  # see tests/lean


# --- the process that wants another ---------------------------------------------------------------


class _Forked(subprocess.Popen[Any]):
    """What `subprocess.Popen` would start of the same command, which is one of Python.

    Of its arguments those on the command, the environment, the directory, the standard streams and
    a new session count. It leads a group of its own; a standard input that is not given is empty.
    """

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:  # type: ignore[override]
        _, _, _, _, cwd, env, _, _, _, *pipes = rest[:15]
        _, _, _, _, _, is_leader, *_ = rest[15:]
        reads, _, _, writes, _, errs = pipes
        order = {
            "argv": [*itertools.dropwhile(lambda word: word.startswith("-X"), args[1:])],
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "start_new_session": is_leader,
        }
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(address() + (".dask" if order["argv"][:2] == ["-m", "dask"] else ""))
        with open(os.devnull, "rb") as nothing:
            its = zip((reads, writes, errs), (nothing.fileno(), 1, 2), strict=True)
            files = [instead if file == -1 else file for file, instead in its]
            _send(self._line, json.dumps(order).encode(), files)
        [self.pid] = _NUMBER.unpack(self._line.recv(_NUMBER.size, socket.MSG_WAITALL))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            [self.returncode] = _NUMBER.unpack(self._line.recv(_NUMBER.size, socket.MSG_WAITALL))
            self._line.close()
        return self.returncode


WarmProcess = _Forked if sys.platform == "linux" else subprocess.Popen
"""Elsewhere a fork of what libraries have begun is not safe."""


class WarmProvisioner(LocalProvisioner):
    """Starts kernels as warm processes, and does all else with them as with other processes."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start a kernel."""
        names = ("env", "cwd", "stdout", "stderr")
        wanted = {"cwd": os.getcwd(), **{name: kwargs[name] for name in names if name in kwargs}}
        wanted["env"]["JPY_PARENT_PID"] = str(os.getpid())
        self.process = WarmProcess(cmd, start_new_session=True, **wanted)
        self.pid = self.pgid = self.process.pid
        self.cwd = wanted["cwd"]
        return self.connection_info


KernelProvisionerFactory.provisioners[PROVISIONER] = EntryPoint(
    PROVISIONER, f"{__name__}:WarmProvisioner", KernelProvisionerFactory.GROUP_NAME
)


def fork_hosts() -> None:
    """Let the processes of this one's detached runs be warm, as they are in those forked here."""
    from tests.kit.runs import detach

    forking = {**vars(subprocess), "Popen": WarmProcess}
    detach.subprocess = SimpleNamespace(**forking)  # type: ignore[attr-defined]


def kernel_path(folder: Path) -> str:
    """What JUPYTER_PATH must be for the kernels of this process's notebooks to be warm.

    Args:
        folder: Where the kernel "python3" is described.
    """
    if sys.platform == "linux":
        spec = folder / "kernels" / "python3" / "kernel.json"
        spec.parent.mkdir(parents=True, exist_ok=True)
        kernel = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Python 3",
            "language": "python",
            "metadata": {"kernel_provisioner": {"provisioner_name": PROVISIONER}},
        }
        spec.write_text(json.dumps(kernel))
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("JUPYTER_PATH")]))


def address() -> str:
    """Where the process listens that others are forked from; it is started if there is none."""
    if _ADDRESS not in os.environ:
        warm_up()
    return os.environ[_ADDRESS]


def warm_up() -> None:
    """Start the process that others are forked from: the first then has less to wait for."""
    process, place = _start()
    os.environ[_ADDRESS] = f"{place.name}/socket"
    atexit.register(_end_server, process, place)


@contextmanager
def forked_with(path: Path, *modules: str) -> Iterator[None]:
    """Fork the processes of this block from another one, which finds packages in a directory.

    Args:
        path: The directory.
        modules: What that process imports. Nothing else has been imported before.
    """
    before = os.environ.get(_ADDRESS)
    process, place = _start(*modules, path=[str(path)])
    os.environ[_ADDRESS] = f"{place.name}/socket"
    try:
        yield
    finally:
        del os.environ[_ADDRESS]
        if before is not None:
            os.environ[_ADDRESS] = before
        _end_server(process, place)


_Folder = tempfile.TemporaryDirectory[str]


def _start(*modules: str, path: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], _Folder]:
    """Start a process that others are forked from. Returns it, and where it listens."""
    place = tempfile.TemporaryDirectory(prefix="nb-warm-")
    paths = filter(None, [str(_ROOT), *path, os.environ.get("PYTHONPATH")])
    with _listen(f"{place.name}/socket") as plain, _listen(f"{place.name}/socket.dask") as dask:
        listeners = [plain.fileno(), dask.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", *map(str, listeners), *modules],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,  # it ends when this is closed, hence also when we are killed
            pass_fds=listeners,
            start_new_session=True,  # a Ctrl-C in the terminal is for pytest
        )
    return process, place


def _end_server(process: subprocess.Popen[bytes], place: _Folder) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    place.cleanup()


def _listen(place: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    return listener


_SIZE = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


def _send(line: socket.socket, text: bytes, files: Sequence[int]) -> None:
    socket.send_fds(line, [_SIZE.pack(len(text))], files)
    line.sendall(text)


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    head, files, _, _ = socket.recv_fds(line, _SIZE.size, 3)
    size = _SIZE.unpack(head)[0] if head else 0
    return line.recv(size, socket.MSG_WAITALL), files


# --- the process that others are forked from ------------------------------------------------------


def _import_all() -> None:
    import pkgutil

    from pydantic_ai.models.test import TestModel

    import nb_agents
    from tests.kit.agents import dump_messages, load_messages
    from tests.kit.cards import cards
    from tests.kit.models import providers

    for name in (_NEVER, *_LATER):
        sys.modules[name] = None  # type: ignore[assignment]
    for name in [
        *_IMPORTS,
        *(m.name for m in pkgutil.walk_packages(nb_agents.__path__, "nb_agents.")),
    ]:
        with suppress(ImportError):  # it needs what comes later, and comes with it
            import_module(name)
    providers.load(["openai"])
    for name in _LATER:
        del sys.modules[name]
    # The first of each makes ready what all others use.
    TestModel()
    providers.http_client()
    load_messages(dump_messages([]))
    cards.load_templates()
    _import_widgets()
    fork_hosts()


def _import_widgets() -> None:
    """Import all of ipywidgets. Its first module is executed again by the next import.

    When it is imported, it looks for the kernel in which it runs.
    """
    kept = import_module("ipywidgets")
    spec = kept.__spec__
    assert spec is not None and spec.loader is not None
    spec.loader.create_module = lambda _: kept  # type: ignore[method-assign]
    find = lambda name, *_: spec if name == "ipywidgets" else None  # noqa: E731
    sys.meta_path.insert(0, SimpleNamespace(find_spec=find))  # type: ignore[arg-type]
    del sys.modules["ipywidgets"]


def _import_dask() -> None:
    for name in _DASK:
        import_module(name)


def _serve(listener: socket.socket, dask: socket.socket | None) -> dict[str, Any] | None:
    """Fork until nobody needs it any more.

    Args:
        listener: Where processes are asked for.
        dask: Where those of Dask are asked for, unless this process has imported it.

    Returns:
        In each process that is forked, what it shall be; in this one None, at its end.
    """
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, woken, *filter(None, [dask])], [], [])
        if 0 in ready:
            return None
        if woken in ready:
            woken.recv(4096)
            _tell_of_ends(lines)
        if dask in ready:
            if not os.fork():
                for each in (listener, woken, wake, *lines.values()):
                    each.close()
                _do_once(_import_dask)
                return _serve(dask, None)
            dask.close()
            dask = None
        if listener in ready:
            line, _ = listener.accept()
            text, files = _receive(line)
            if not text:  # who wanted it has been killed
                continue
            pid = os.fork()
            if not pid:
                for each in (listener, woken, wake, line, *lines.values()):
                    each.detach()  # closed below, by number
                order = dict(json.loads(text))
                _take_over(files, order["start_new_session"])
                return order
            for file in files:
                os.close(file)
            lines[pid] = line
            with suppress(ConnectionError):
                line.sendall(_NUMBER.pack(pid))


def _tell_of_ends(lines: dict[int, socket.socket]) -> None:
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in lines:
            with lines.pop(pid) as line, suppress(ConnectionError):
                line.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _take_over(files: Sequence[int], is_leader: bool) -> None:
    """Have nothing of the process that this one was forked from but its memory."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid() if is_leader else os.setpgrp()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1024)
    if is_leader and os.isatty(0):
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # whoever opens it first is controlled by it
    # As at a start: those of a terminal are flushed after each line.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


def _become(order: dict[str, Any]) -> None:
    """Do as Python does in this directory with this environment and these words."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    if "dask" in sys.modules:
        sys.modules["dask.config"].refresh()  # it has read the environment at its import
    if "JPY_PARENT_PID" in os.environ:  # a kernel ends with its parent
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
    what, *rest = order["argv"]
    if what == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        for name in (rest[0], f"{rest[0]}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)  # runpy warns of one that it is to run
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = [what, *rest], os.path.dirname(os.path.abspath(what))
        runpy.run_path(what, run_name="__main__")


def _run(order: dict[str, Any]) -> int:
    """Do what Python does, and return its exit code; whoever fails leaves as ever."""
    try:
        _become(order)
    except SystemExit as exc:
        if not isinstance(exc.code, int | None):
            raise
        return exc.code or 0
    return 0


def _end(code: int) -> None:
    """End as Python does, but for taking apart all that is imported: it takes most of the time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python has words for that
    os._exit(code)


def _do_once(imports: Callable[[], object]) -> None:
    """Import for all that are forked later."""
    gc.disable()
    imports()
    gc.freeze()  # what is never looked at is never copied
    gc.enable()


if __name__ == "__main__":
    sockets = [socket.socket(fileno=int(each)) for each in sys.argv[1:3]]
    modules = sys.argv[3:]
    _do_once((lambda: [*map(import_module, modules)]) if modules else _import_all)
    order = _serve(*sockets)
    if order is not None:
        _end(_run(order))
