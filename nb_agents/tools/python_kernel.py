"""An agent's Python interpreter: the connection to an ipykernel in a separate process.

With ipykernel, an agent's cells work like those of the user's notebook (last value, ``await``,
magics, plots, interrupts), and it is already installed for the notebook. It starts in 0.6 s and
takes 80 MB. It is run by nb_agents's supervisor instead of its own launcher. The supervisor ends
all of its processes even if this process is killed. The connection uses sockets in a directory that
only the user can enter. This works in a sandbox without a network, and opens no port.

Messages are untrusted, because a cell can send any bytes. A message that is too large is dropped
unread, and an invalid message is ignored.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from anyio import CancelScope, create_task_group, move_on_after, to_thread
from anyio.lowlevel import checkpoint

from nb_agents.disk.directory import Directory
from nb_agents.process.command import Finished
from nb_agents.process.environment import ScratchFolder
from nb_agents.tools.sandbox import Sandbox

if TYPE_CHECKING:
    import zmq.asyncio

LOST = "nb_agents_lost"
"""Kind of the message that stands for messages that were dropped or too large."""

START_TIMEOUT_S = 60.0
_ASK_AGAIN_S = 0.5
_LAST_OUTPUT_S = 1.0
"""Seconds to wait for the idle status after a cell's reply. Too much output may lose it."""
_LAST_WORDS = 500
"""Characters of stderr that are reported when the interpreter has ended."""
_MAX_MESSAGE_BYTES = 16_000_000
_MAX_WAITING = 16
"""Maximum number of queued messages. Further ones wait or are dropped in the interpreter."""
_PORTS = ("shell", "iopub", "stdin", "control", "hb")
_LAUNCH = (
    "-m",
    "ipykernel_launcher",
    "--HistoryManager.enabled=False",
    "--InteractiveShell.colors=NoColor",
    "--InteractiveShell.xmode=Plain",
    # Seconds between flushes of output. By default, each cell would have to wait for 0.2 s.
    "--IPKernelApp.exec_lines=import sys; "
    "sys.stdout.flush_interval = sys.stderr.flush_interval = 0.01; del sys",
)
# Output of commands that a cell runs goes through other pipes, and may arrive after the cell has
# ended. A marker written to these pipes shows when all of it has arrived.
_MARK_NAME = "nb_agents_mark_"
_MARKS = re.compile(rf"{_MARK_NAME}[0-9a-f]*")
_MARK = "__import__('os').write(1, b'{mark}'), __import__('os').write(2, b'{mark}')"


class InterpreterEnded(Exception):
    """Raised when the interpreter has ended by itself. ``args[0]`` describes how."""


@dataclass(frozen=True)
class Message:
    """A message of an interpreter.

    Attributes:
        kind: Jupyter's ``msg_type``.
        parent: The id of the request that caused the message.
        content: The untrusted content.
    """

    kind: str
    parent: str
    content: dict[str, Any]


OnMessage = Callable[[Message], bool]
"""Called with a message. Returns False to drop the queued messages."""


class PythonInterpreter:
    """An interpreter that runs one cell at a time, from `start` to `close`.

    Args:
        sandbox: Runs the interpreter's process.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        import zmq.asyncio
        from jupyter_client.session import Session

        self._sandbox = sandbox
        self._key = secrets.token_hex(32)
        self._session = Session(key=self._key.encode())
        self._scratch = ScratchFolder()
        self._folder = self._scratch.path
        # A task outside of task groups, because it continues after the call that starts it.
        self._process: asyncio.Task[Finished] | None = None
        self._context = zmq.asyncio.Context()
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES),
            (zmq.RCVHWM, _MAX_WAITING),
            (zmq.RECONNECT_IVL, 10),
        ):
            self._context.setsockopt(option, value)
        self._shell = self._context.socket(zmq.DEALER)
        self._control = self._context.socket(zmq.DEALER)
        self._shell.connect(self._address("shell"))
        self._control.connect(self._address("control"))
        self._listen()

    async def start(self) -> None:
        """Start the interpreter and wait until it responds.

        Raises:
            InterpreterEnded: It did not start.
        """
        connection_file = self._folder / "connection.json"
        with Directory.made(self._folder) as folder, folder.create(connection_file.name) as file:
            file.write(json.dumps(self._connection()).encode())
        self._process = asyncio.create_task(
            self._sandbox.run(
                [sys.executable, *_LAUNCH, "-f", str(connection_file)],
                writable=[self._folder],
                env={
                    "IPYTHONDIR": str(self._folder / "ipython"),
                    # Otherwise its debugger, which is not used, prints a warning.
                    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                },
            )
        )
        with move_on_after(START_TIMEOUT_S) as clock:
            await self._while_alive(self._wait_for_response)
        if clock.cancelled_caught:
            raise InterpreterEnded(f"no answer within {START_TIMEOUT_S:g} s")

    def begin(self, code: str) -> str:
        """Send a cell to the interpreter and return the id of the request, for `follow`."""
        return self._execute(code, is_silent=False)

    async def follow(self, request: str, on_message: OnMessage) -> None:
        """Process a cell's messages until the cell has finished.

        Args:
            request: The id returned by `begin`.
            hear: Called with each message. If it returns False, queued messages are dropped. A
                message of the kind `LOST` stands for messages that were dropped or too large.

        Raises:
            InterpreterEnded: The interpreter exited before the cell finished.
        """

        async def listen() -> None:
            await self._read_all(request, on_message)
            await self._read_late_output(on_message)

        await self._while_alive(listen)

    async def interrupt(self) -> None:
        """Interrupt the running cell, as Ctrl-C does."""
        request = self._send(self._control, "interrupt_request", {})
        while True:
            reply = await self._receive(self._control)
            if reply is not None and reply.parent == request:
                break
        # A cell that is awaiting notices the signal only when a message arrives, because tornado's
        # add_callback does not wake the loop of its own thread.
        self._send(self._shell, "kernel_info_request", {})

    async def close(self) -> None:
        """End the interpreter and its processes."""
        with CancelScope(shield=True):
            if self._process is not None:
                self._process.cancel()
                await asyncio.wait({self._process})
            self._context.destroy(linger=0)
            await to_thread.run_sync(self._scratch.remove)

    def _connection(self) -> dict[str, Any]:
        ports = {f"{name}_port": number for number, name in enumerate(_PORTS, 1)}
        return ports | {
            "transport": "ipc",
            "ip": str(self._folder / "k"),
            "key": self._key,
            "signature_scheme": "hmac-sha256",
        }

    def _listen(self) -> None:
        import zmq

        self._iopub = self._context.socket(zmq.SUB)
        self._monitor = self._iopub.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self._iopub.subscribe(b"")
        self._iopub.connect(self._address("iopub"))

    async def _reconnect(self) -> None:
        """Open a new connection and drop queued messages.

        ZeroMQ does not reconnect after a message over the limit.
        """
        import zmq

        self._iopub.disable_monitor()
        self._monitor.close()
        self._iopub.close()
        self._listen()
        # If the process has ended, this waits until `_watch` cancels it.
        await self._event(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    async def _event(self, execution: int) -> None:
        from zmq.utils.monitor import recv_monitor_message

        while (await recv_monitor_message(self._monitor))["event"] != execution:
            pass

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder / 'k'}-{_PORTS.index(name) + 1}"

    def _execute(self, code: str, *, is_silent: bool) -> str:
        cell = {"code": code, "silent": is_silent, "store_history": not is_silent}
        # With stop_on_error, a request right after a failed cell would be dropped.
        cell |= {"allow_stdin": False, "stop_on_error": False}
        return self._send(self._shell, "execute_request", cell)

    def _send(self, socket: zmq.asyncio.Socket, kind: str, content: dict[str, Any]) -> str:
        sent: Any = self._session.send(socket, kind, content)
        return str(sent["header"]["msg_id"])

    async def _receive(self, socket: zmq.asyncio.Socket) -> Message | None:
        # Let other tasks run, because a message that has already arrived is returned without a
        # switch to them.
        await checkpoint()
        frames: Any = await socket.recv_multipart()
        try:
            _, frames = self._session.feed_identities(frames)
            message: Any = self._session.deserialize(frames)
            kind, parent, content = (message[k] for k in ("msg_type", "parent_header", "content"))
            return Message(str(kind), str(parent.get("msg_id")), dict(content))
        except Exception:  # a library parses bytes that a cell may have forged
            return None

    async def _while_alive(self, work: Callable[[], Awaitable[None]]) -> None:
        is_done = False
        async with create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            await work()
            is_done = True
            tasks.cancel_scope.cancel()
        if not is_done:
            raise InterpreterEnded(self._end_reason())

    async def _watch(self, scope: CancelScope) -> None:
        assert self._process is not None
        await asyncio.wait({self._process})
        scope.cancel()

    def _end_reason(self) -> str:
        assert self._process is not None
        if self._process.cancelled():
            return "it was ended"
        if error := self._process.exception():
            return str(error)
        done = self._process.result()
        if done.limit:
            return f"it had {self._sandbox.limits.exceeded(done.limit)}"
        words = _MARKS.sub("", done.errors).strip()[-_LAST_WORDS:]
        return f"exit code {done.exit_code}" + (f": {words}" if words else "")

    async def _wait_for_response(self) -> None:
        # Messages sent before the subscription takes effect are lost, so the request is repeated.
        while True:
            request = self._send(self._shell, "kernel_info_request", {})
            with move_on_after(_ASK_AGAIN_S):
                while True:
                    message = await self._receive(self._iopub)
                    if message is not None and message.parent == request:
                        return

    async def _read_all(
        self,
        request: str,
        on_message: OnMessage,
        is_enough: Callable[[], bool] = lambda: True,
    ) -> None:
        is_over = False
        async with create_task_group() as tasks:
            tasks.start_soon(self._limit_wait, request, tasks.cancel_scope)
            while not (is_over := await self._read_until_lost(request, on_message, is_enough)):
                await self._reconnect()
                on_message(Message(LOST, request, {}))
            tasks.cancel_scope.cancel()
        if not is_over:
            await self._wait_for_response()

    async def _read_late_output(self, on_message: OnMessage) -> None:
        mark = _MARK_NAME + secrets.token_hex(8)
        late = {"stdout": "", "stderr": ""}

        def hold(message: Message) -> bool:
            name, text = message.content.get("name"), message.content.get("text")
            if message.kind == "stream" and name in late and isinstance(text, str):
                late[name] += text
            return True

        request = self._execute(_MARK.format(mark=mark), is_silent=True)
        await self._read_all(request, hold, lambda: all(mark in text for text in late.values()))
        for name, text in late.items():
            content = {"name": name, "text": text.replace(mark, "")}
            on_message(Message("stream", request, content))

    async def _read_until_lost(
        self, request: str, on_message: OnMessage, is_enough: Callable[[], bool]
    ) -> bool:
        """Read a cell's messages. Returns False if messages were lost or reading stopped early."""
        is_idle = is_over = False
        async with create_task_group() as tasks:
            tasks.start_soon(self._watch_connection, tasks.cancel_scope)
            while not is_over:
                message = await self._receive(self._iopub)
                if message is None:
                    continue
                # Threads and commands of earlier cells may still write output.
                is_ours = message.parent == request or message.kind == "stream"
                if is_ours and not on_message(message):
                    break
                is_status = message.kind == "status" and message.parent == request
                is_idle |= is_status and message.content.get("execution_state") == "idle"
                is_over = is_idle and is_enough()
            tasks.cancel_scope.cancel()
        return is_over

    async def _watch_connection(self, scope: CancelScope) -> None:
        import zmq

        await self._event(zmq.EVENT_DISCONNECTED)
        scope.cancel()

    async def _limit_wait(self, request: str, scope: CancelScope) -> None:
        while True:
            reply = await self._receive(self._shell)
            if reply is not None and reply.parent == request:
                scope.deadline = anyio.current_time() + _LAST_OUTPUT_S
                return
