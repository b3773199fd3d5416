"""Drives a real IPython kernel as a front end does, without a browser.

    with Kernel(cwd=tmp_path) as kernel:
        assert kernel.run("1 + 1").value == "2"
        blocked = kernel.send("import time; time.sleep(60)")
        kernel.wait_busy(blocked)
        kernel.interrupt()
        assert kernel.result(blocked).error.ename == "KeyboardInterrupt"

Messages are read on demand: every wait and every query drains all sockets first, so messages after
a cell's end (late prints, display updates, widget state) are not lost. Use a `Kernel` in only one
thread.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import zmq
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from tests import canaries, warm
from tests.model_server import wait_until

__all__ = ["CellError", "Comm", "Display", "Kernel", "KernelDied", "Result"]

_ROOT = Path(__file__).parents[2]
_START_S = 60
_GRACE_S = 60  # JupyterLab waits for 5 s, on machines that are less busy


class KernelDied(RuntimeError):
    """The kernel's process ended while a test waited for it."""


class CellError(NamedTuple):
    """The exception that ended a cell."""

    ename: str
    evalue: str
    traceback: list[str]


@dataclass(frozen=True)
class Display:
    """One rich output: a mime bundle, and the id under which it can be updated."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None


@dataclass(frozen=True)
class Result:
    """The replies to one message so far. `Kernel.outputs_of` returns later ones.

    Attributes:
        reply: The content of the reply. Empty until it arrives.
        messages: All iopub messages whose parent it is, oldest first.
    """

    msg_id: str
    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        """Show the outputs as a user sees them, because messages contain whole widget scripts."""
        shown = [d.data.get("text/plain", sorted(d.data)) for d in self.displays]
        seen = {"stdout": self.stdout, "stderr": self.stderr, "displays": shown}
        told = "".join(f", {name}={value!r}" for name, value in seen.items() if value)
        return f"Result({self.status or self._states}{told}, error={self.error!r})"

    @property
    def status(self) -> str | None:
        """`ok`, `error`, `aborted`, or None until the reply arrives."""
        return self.reply.get("status")

    @property
    def is_busy(self) -> bool:
        """Whether the kernel is working on the message."""
        return self._states[-1:] == ["busy"]

    @property
    def is_complete(self) -> bool:
        """Whether the reply is here and all output until idle."""
        return bool(self.reply) and self._states[-1:] == ["idle"]

    @property
    def stdout(self) -> str:
        """Everything printed."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """Everything written to the error stream."""
        return self._stream("stderr")

    @property
    def value(self) -> str | None:
        """The plain text of the cell's last expression."""
        found = self._displays("execute_result")
        return found[-1].data.get("text/plain") if found else None

    @property
    def displays(self) -> list[Display]:
        """The cell's first displays, including its last expression, without later updates."""
        return self._displays("display_data", "execute_result")

    @property
    def updates(self) -> list[Display]:
        """Updates of displays sent by this cell. `Kernel.shown` gives the latest from anywhere."""
        return self._displays("update_display_data")

    @property
    def error(self) -> CellError | None:
        """The exception that ended the cell, or None."""
        if self.status != "error":
            return None
        return CellError(*(self.reply[name] for name in CellError._fields))

    @property
    def _states(self) -> list[str]:
        return [c["execution_state"] for c in self._contents("status")]

    def _contents(self, *kinds: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] in kinds]

    def _stream(self, name: str) -> str:
        return "".join(c["text"] for c in self._contents("stream") if c["name"] == name)

    def _displays(self, *kinds: str) -> list[Display]:
        return [_display(content) for content in self._contents(*kinds)]


def _display(content: dict[str, Any]) -> Display:
    transient = content.get("transient") or {}
    return Display(content["data"], content.get("metadata") or {}, transient.get("display_id"))


@dataclass
class Comm:
    """The front end's half of a comm that the kernel opened, such as a widget.

    Attributes:
        cell: The message id of the cell in which the kernel opened it.
        state: The widget's state as sent by the kernel so far.
        custom: Contents of the custom messages from the kernel.
    """

    comm_id: str
    target_name: str
    cell: str
    state: dict[str, Any]
    custom: list[Any] = field(default_factory=list)
    is_open: bool = True


class _ThisPython(KernelSpecManager):
    """A provider of one kernel: ipykernel in the Python that runs the tests."""

    def __init__(self, cold: bool) -> None:
        super().__init__()
        warmly = {"kernel_provisioner": {"provisioner_name": warm.PROVISIONER}}
        self._how = {} if cold else warmly

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(
            argv=argv, display_name=kernel_name, language="python", metadata=self._how
        )


class Kernel:
    """A live kernel, started by `start` or by entering it as a context manager.

    Args:
        cwd: The kernel's working directory; default: a temporary one.
        env: Variables added to this process's environment.
        headless: Behave like nbclient: no stdin, no notebook path.
        ipython_config: Text of an `ipython_config.py`, to load extensions at start.
        cold: Start a new Python instead of a fork with everything imported (see `tests.warm`).
    """

    def __init__(
        self,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        headless: bool = False,
        ipython_config: str = "",
        cold: bool = False,
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="nb-kernel-"))
        self.cwd = cwd or self._home
        self.headless = headless
        self._cold = (
            cold or sys.platform != "linux"
        )  # on other systems, some imported libraries can't be forked
        self.comms: dict[str, Comm] = {}
        self.input_prompts: list[str] = []
        self._env = self._environment(env or {})
        self._log = self._home / "kernel.log"
        self._iopub_of: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._reply_to: dict[str, dict[str, Any]] = {}
        self._shown: dict[str, Display] = {}
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        if ipython_config:
            profile = self._home / "ipython" / "profile_default"
            profile.mkdir(parents=True)
            (profile / "ipython_config.py").write_text(ipython_config)

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        env = {**os.environ, "IPYTHONDIR": str(self._home / "ipython")}
        env |= {f"JUPYTER_{n}_DIR": str(self._home) for n in ("CONFIG", "DATA", "RUNTIME")}
        path = [str(_ROOT), *filter(None, [env.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(path)
        env.pop("JPY_SESSION_NAME", None)
        if not self.headless:
            env["JPY_SESSION_NAME"] = str(self.cwd / "notebook.ipynb")
        return {**env, **extra}

    # Life

    def __enter__(self) -> Kernel:
        try:
            self.start()
        except BaseException:  # also on pytest's timeout, so that no process remains
            self.shutdown(now=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(now=True)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self._context = zmq.Context()
        # Requests to a kernel that never answers must not fill a pipe and block forever.
        self._context.setsockopt(zmq.SNDHWM, 0)
        self._manager = KernelManager(
            context=self._context,
            # Ports are chosen before the kernel opens them, and may be taken meanwhile.
            transport="ipc",
            connection_file=str(self._home / "connection.json"),
            kernel_spec_manager=_ThisPython(self._cold),
            shutdown_wait_time=_GRACE_S,
        )
        self._launch(self._manager.start_kernel)
        manager, identity = self._manager, self._manager.session.bsession
        self._sockets = {
            "shell": manager.connect_shell(identity=identity),
            "control": manager.connect_control(identity=identity),
            "stdin": manager.connect_stdin(identity=identity),
            "iopub": manager.connect_iopub(),
        }
        self._wait_ready()

    def _launch(self, start: Callable[..., None], **options: Any) -> None:
        with self._log.open("ab") as log:
            start(cwd=str(self.cwd), env=self._env, stdout=log, stderr=log, **options)
        provisioner: Any = self._manager.provisioner
        self._process: subprocess.Popen[bytes] = provisioner.process  # removed there at the end

    def _wait_ready(self) -> None:
        asked: list[str] = []

        # Repeat the request, because output that is sent before iopub is connected is lost.
        def answers() -> bool:
            asked.append(self._send("shell", "kernel_info_request", {}))
            return any(self.outputs_of(msg_id).is_complete for msg_id in asked)

        self.wait_until(answers, _START_S, "the kernel to answer")
        self.result(asked[-1])  # and no reply remains in the pipe

    def restart(self, now: bool = False) -> None:
        """Restart as JupyterLab does (interrupt, shutdown request, new process); forgets comms."""
        self._launch(self._manager.restart_kernel, now=now)
        self._forget()
        self._wait_ready()

    def _forget(self) -> None:
        self._drain(0)
        for known in (self.comms, self.input_prompts, self._reply_to, self._shown):
            known.clear()

    def kill(self) -> None:
        """Send SIGKILL to the kernel's process only, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(60)

    def shutdown(self, now: bool = False, grace_s: float = _GRACE_S) -> int | None:
        """Shut down as JupyterLab does, or kill immediately, and free everything. Idempotent.

        Args:
            now: Kill it immediately.
            grace_s: Half of it ends in a SIGTERM, all of it in a SIGKILL.

        Returns:
            The exit code of the process, if it ran.
        """
        if not self._sockets:
            return None
        self._manager.shutdown_wait_time = grace_s
        self._manager.shutdown_kernel(now=now)
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._sockets.clear()
        self._context.term()
        shutil.rmtree(self._home, ignore_errors=True)
        return self._process.wait(60)

    @property
    def pid(self) -> int:
        """The process id of the kernel."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """The output of the kernel's process outside any cell."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    # Cells

    def run(self, code: str, timeout_s: float = 60) -> Result:
        """Execute a cell and wait for its reply and for all output until idle."""
        return self.result(self.send(code), timeout_s)

    def send(
        self,
        code: str,
        subshell_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Queue a cell and return its message id.

        Args:
            code: The source.
            subshell_id: From `create_subshell`; None is the main shell.
            metadata: Of the request, such as JupyterLab's `{"cellId": ...}`.
            options: Fields of the execute request, such as `silent` or `stop_on_error`.
        """
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": not self.headless,
            "stop_on_error": True,
            **options,
        }
        return self._send("shell", "execute_request", content, subshell_id, metadata)

    def result(self, msg_id: str, timeout_s: float = 60) -> Result:
        """Wait for a message's reply and for all its output until idle.

        Raises:
            TimeoutError: When it takes longer; says what came so far.
            KernelDied: When the kernel's process has ended.
        """
        done = lambda: self.outputs_of(msg_id).is_complete  # noqa: E731
        self.wait_until(done, timeout_s, "the cell to end", lambda: self.outputs_of(msg_id))
        return self.outputs_of(msg_id)

    def outputs_of(self, msg_id: str) -> Result:
        """Return the replies to a message until now."""
        self._drain(0)
        return Result(msg_id, dict(self._reply_to.get(msg_id, {})), list(self._iopub_of[msg_id]))

    def eval(self, expression: str, timeout_s: float = 60, subshell_id: str | None = None) -> Any:
        """Evaluate an expression with a literal value, silently and outside of cells.

        While a cell blocks the main shell, pass a subshell's id.
        """
        wanted = {"value": f"repr({expression})"}
        msg_id = self.send(
            "", subshell_id, silent=True, store_history=False, user_expressions=wanted
        )
        reply = self.result(msg_id, timeout_s).reply
        answer = reply.get("user_expressions", {}).get("value", reply)
        if answer["status"] != "ok":
            raise ValueError(f"{expression!r}: {answer.get('ename')}: {answer.get('evalue')}")
        return ast.literal_eval(ast.literal_eval(answer["data"]["text/plain"]))

    def shown(self, display_id: str) -> Display | None:
        """Return what a user sees under this display id now, after all updates."""
        self._drain(0)
        return self._shown.get(display_id)

    def answer_input(self, text: str) -> None:
        """Answer the kernel's last `input()`; its prompt is the last of `input_prompts`."""
        self._send("stdin", "input_reply", {"value": text})

    # Channels next to the queue of cells

    def interrupt(self) -> None:
        """Send SIGINT to the kernel's process group, as the toolbar's button does."""
        self._manager.interrupt_kernel()

    def interrupt_cell(self, msg_id: str) -> CellError | None:
        """Interrupt the kernel until this cell ends, and return its error.

        One interrupt may be lost: Python ignores exceptions in callbacks and finalizers.
        """
        self.interrupt()
        with suppress(TimeoutError):
            return self.result(msg_id, timeout_s=20).error
        self.interrupt()
        return self.result(msg_id).error

    def control(
        self, msg_type: str, content: Mapping[str, Any] | None = None, timeout_s: float = 60
    ) -> dict[str, Any]:
        """Send a request on the control channel and return the reply's content."""
        msg_id = self._send("control", msg_type, dict(content or {}))
        replied = lambda: self._reply_to.get(msg_id)  # noqa: E731
        return dict(self.wait_until(replied, timeout_s, f"a reply to {msg_type}"))

    def create_subshell(self) -> str:
        """Create a subshell, which handles messages while the main shell is busy. Return its id."""
        return str(self.control("create_subshell_request")["subshell_id"])

    def comm_msg(self, comm_id: str, data: Any, subshell_id: str | None = None) -> str:
        """Send a message over a comm, as a widget in the browser does. Returns the message id."""
        content = {"comm_id": comm_id, "data": data}
        return self._send("shell", "comm_msg", content, subshell_id)

    def send_custom(self, comm_id: str, content: Any, subshell_id: str | None = None) -> str:
        """Send a widget's custom message, such as `model.send(content)` in an anywidget."""
        return self.comm_msg(comm_id, {"method": "custom", "content": content}, subshell_id)

    def press(self, comm_id: str, subshell_id: str | None = None) -> str:
        """Press an ipywidgets Button."""
        return self.send_custom(comm_id, {"event": "click"}, subshell_id)

    def find_comm(self, **state: Any) -> Comm:
        """Wait for an open widget whose state has these values, and return the newest."""

        def matching() -> list[Comm]:
            wanted = state.items()
            found = [c for c in self.comms.values() if c.is_open and wanted <= c.state.items()]
            return found[-1:]

        found: list[Comm] = self.wait_until(matching, 60, f"a widget with {state}", self._states)
        return found[0]

    def _states(self) -> list[Any]:
        return [comm.state for comm in self.comms.values()]

    # Waiting

    def wait_until(
        self,
        predicate: Callable[[], Any],
        timeout_s: float = 60,
        what: str = "the kernel's state",
        seen: Callable[[], object] | None = None,
    ) -> Any:
        """Wait until a predicate is true, and read the kernel's messages during the wait."""
        return wait_until(predicate, timeout_s, what, seen, self._pause)

    def wait_busy(self, msg_id: str, timeout_s: float = 60) -> None:
        """Wait until the kernel works on this message."""
        self.wait_until(lambda: self.outputs_of(msg_id).is_busy, timeout_s, "the cell to begin")

    def wait_stdout(self, msg_id: str, text: str, timeout_s: float = 60) -> None:
        """Wait until a cell, running or over, has printed this text."""
        printed = lambda: text in self.outputs_of(msg_id).stdout  # noqa: E731
        self.wait_until(printed, timeout_s, repr(text), lambda: self.outputs_of(msg_id))

    def _pause(self, seconds: float) -> None:
        was_alive = self.is_alive  # check first: the kernel's last messages are read after its end
        if not self._drain(seconds) and not was_alive:
            code = self._process.returncode
            raise KernelDied(f"The kernel ended with code {code}. Its log:\n{self.log[-2000:]}")

    # Messages

    def _send(
        self,
        channel: str,
        msg_type: str,
        content: dict[str, Any],
        subshell_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        session = self._manager.session
        message = session.msg(msg_type, content, metadata=dict(metadata or {}))
        if subshell_id is not None:
            message["header"]["subshell_id"] = subshell_id
        session.send(self._sockets[channel], message)
        return str(message["header"]["msg_id"])

    def _drain(self, seconds: float) -> bool:
        """Read every waiting message, or the first that arrives within the given seconds.

        Returns:
            Whether there was any.
        """
        poller = zmq.Poller()
        for socket in self._sockets.values():
            poller.register(socket, zmq.POLLIN)
        timeout_ms = max(0, int(seconds * 1000))
        has_come = False
        while ready := dict(poller.poll(timeout_ms)):
            timeout_ms, has_come = 0, True
            for channel, socket in self._sockets.items():
                if socket in ready:
                    self._take(channel, socket)
        return has_come

    def _take(self, channel: str, socket: zmq.Socket[bytes]) -> None:
        parts = socket.recv_multipart()
        if found := canaries.found_in(b"".join(parts)):
            raise AssertionError(f"The kernel has sent {', '.join(found)}: {parts!r}")
        _, frames = self._manager.session.feed_identities(parts)
        message = self._manager.session.deserialize(frames)
        parent = message["parent_header"].get("msg_id", "")
        if channel == "iopub":
            self._iopub_of[parent].append(message)
            self._note(message["msg_type"], message["content"], parent)
        elif channel == "stdin":
            self.input_prompts.append(message["content"]["prompt"])
        else:
            self._reply_to[parent] = message["content"]

    def _note(self, kind: str, content: dict[str, Any], cell: str) -> None:
        if kind in ("display_data", "execute_result", "update_display_data"):
            display = _display(content)
            known = kind != "update_display_data" or display.display_id in self._shown
            if display.display_id and known:  # like a page, which drops updates of unknown displays
                self._shown[display.display_id] = display
        elif kind == "comm_open":
            state = dict(content["data"].get("state") or {})
            comm = Comm(content["comm_id"], content["target_name"], cell, state)
            self.comms[comm.comm_id] = comm
        elif kind in ("comm_msg", "comm_close") and content["comm_id"] in self.comms:
            self._follow(self.comms[content["comm_id"]], kind, content["data"])

    def _follow(self, comm: Comm, kind: str, data: dict[str, Any]) -> None:
        comm.is_open = kind != "comm_close"
        comm.state |= data.get("state") or {}
        if data.get("method") == "custom":
            comm.custom.append(data.get("content"))
