"""One Python interpreter of an agent: an ipykernel in its own process, and our connection to it.

An ipykernel, because an agent's cells are then what they are in a person's notebook (last value,
``await``, magics, plots, interrupts), and it is there already: the notebook needs it. It starts in
0.6 s and takes 80 MB. Its own launcher is not used: below our supervisor it ends whole, also when
this process is killed. It is reached by sockets in a directory that only the user may enter, hence
from within a sandbox without a network, and by no port.

Its messages are untrusted, because a cell can send any bytes: a message that is too large is
dropped unread, and an invalid message is ignored.
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

from nb_agents.process.command import Finished
from nb_agents.process.environment import ScratchFolder
from nb_agents.tools.sandbox import Sandbox

if TYPE_CHECKING:
    import zmq.asyncio

LOST = "nb_agents_lost"
"""The kind of message that stands for some that were too large."""

START_TIMEOUT_S = 60.0
_ASK_AGAIN_S = 0.5
_LAST_OUTPUT_S = 1.0
"""How long the word that a cell is idle may come after its reply; it is lost after a flood."""
_LAST_WORDS = 500
"""Characters of what it wrote at its end, such as why it could not start."""
_MAX_MESSAGE_BYTES = 16_000_000
_MAX_WAITING = 16
"""Messages that are held for us; more are held, or dropped, on the interpreter's own side."""
_PORTS = ("shell", "iopub", "stdin", "control", "hb")
_LAUNCH = (
    "-m",
    "ipykernel_launcher",
    "--HistoryManager.enabled=False",
    "--InteractiveShell.colors=NoColor",
    "--InteractiveShell.xmode=Plain",
    # Seconds that output is held back; 0.2 by default, which every cell would have to wait.
    "--IPKernelApp.exec_lines=import sys; "
    "sys.stdout.flush_interval = sys.stderr.flush_interval = 0.01; del sys",
)
# What commands write that a cell runs takes another way, and may come after the cell's end. A mark
# on that way shows when all of it has come.
_MARK_NAME = "nb_agents_mark_"
_MARKS = re.compile(rf"{_MARK_NAME}[0-9a-f]*")
_MARK = "__import__('os').write(1, b'{mark}'), __import__('os').write(2, b'{mark}')"


class InterpreterEnded(Exception):
    """The interpreter ended by itself; ``args[0]`` says how."""


@dataclass(frozen=True)
class Message:
    """A message of an interpreter.

    Attributes:
        kind: What kind of message, in Jupyter's words.
        parent: The id of the request that it belongs to.
        content: Its content, which is untrusted.
    """

    kind: str
    parent: str
    content: dict[str, Any]


Hear = Callable[[Message], bool]
"""Called with a message; returns whether to read the waiting ones."""


class PythonInterpreter:
    """An interpreter that runs from `start` to `close`; one cell at a time.

    Args:
        sandbox: Where it runs.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        import zmq.asyncio
        from jupyter_client.session import Session

        self._sandbox = sandbox
        self._key = secrets.token_hex(32)
        self._session = Session(key=self._key.encode())
        self._scratch = ScratchFolder()
        self._folder = self._scratch.path
        # A task outside of any group: it outlives the call that starts it, up to `close`.
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
        """Start it and wait until it listens.

        Raises:
            InterpreterEnded: It did not start.
        """
        place = self._folder / "connection.json"
        place.touch(mode=0o600)
        place.write_text(json.dumps(self._connection()), "utf-8")
        self._process = asyncio.create_task(
            self._sandbox.run(
                [sys.executable, *_LAUNCH, "-f", str(place)],
                writable=[self._folder],
                env={
                    "IPYTHONDIR": str(self._folder / "ipython"),
                    # Or its debugger, which nobody uses, prints a warning.
                    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                },
            )
        )
        with move_on_after(START_TIMEOUT_S) as clock:
            await self._while_it_lives(self._hear_first_word)
        if clock.cancelled_caught:
            raise InterpreterEnded(f"no answer within {START_TIMEOUT_S:g} s")

    def begin(self, code: str) -> str:
        """Send a cell; return the request's id, for `follow`."""
        return self._execute(code, is_silent=False)

    async def follow(self, request: str, hear: Hear) -> None:
        """Wait for the end of a cell.

        Args:
            request: The id returned by `begin`.
            hear: Is given all that it says meanwhile, and a message of the kind `LOST` in the place
                of too much at once. What waits to be read is dropped when it returns False.

        Raises:
            InterpreterEnded: It ended first.
        """

        async def listen() -> None:
            await self._hear_all(request, hear)
            await self._hear_late(hear)

        await self._while_it_lives(listen)

    async def interrupt(self) -> None:
        """Interrupt the cell that runs, like Ctrl-C does."""
        request = self._send(self._control, "interrupt_request", {})
        while True:
            reply = await self._receive(self._control)
            if reply is not None and reply.parent == request:
                break
        # In an `await`, the signal is noticed when something comes: tornado's add_callback does
        # not wake its own thread's loop.
        self._send(self._shell, "kernel_info_request", {})

    async def close(self) -> None:
        """End it and all that it started."""
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
        self._line = self._iopub.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self._iopub.subscribe(b"")
        self._iopub.connect(self._address("iopub"))

    async def _reconnect(self) -> None:
        """Reconnect, without what waits to be read; ZeroMQ does not after one too large."""
        import zmq

        self._iopub.disable_monitor()
        self._line.close()
        self._iopub.close()
        self._listen()
        # Never, when it was the end of the process that cut the line: then `_watch` sees it.
        await self._event(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    async def _event(self, wanted: int) -> None:
        from zmq.utils.monitor import recv_monitor_message

        while (await recv_monitor_message(self._line))["event"] != wanted:
            pass

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder / 'k'}-{_PORTS.index(name) + 1}"

    def _execute(self, code: str, *, is_silent: bool) -> str:
        cell = {"code": code, "silent": is_silent, "store_history": not is_silent}
        # Stopping on an error would drop the request that is made right after it.
        cell |= {"allow_stdin": False, "stop_on_error": False}
        return self._send(self._shell, "execute_request", cell)

    def _send(self, socket: zmq.asyncio.Socket, kind: str, content: dict[str, Any]) -> str:
        sent: Any = self._session.send(socket, kind, content)
        return str(sent["header"]["msg_id"])

    async def _receive(self, socket: zmq.asyncio.Socket) -> Message | None:
        # A message that is there already is given without a turn of the loop, so that a flood of
        # them would let nothing else run.
        await checkpoint()
        frames: Any = await socket.recv_multipart()
        try:
            _, frames = self._session.feed_identities(frames)
            message: Any = self._session.deserialize(frames)
            kind, parent, content = (message[k] for k in ("msg_type", "parent_header", "content"))
            return Message(str(kind), str(parent.get("msg_id")), dict(content))
        except Exception:  # a library's parser on bytes that a cell may have made up
            return None

    async def _while_it_lives(self, work: Callable[[], Awaitable[None]]) -> None:
        is_done = False
        async with create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            await work()
            is_done = True
            tasks.cancel_scope.cancel()
        if not is_done:
            raise InterpreterEnded(self._how_it_ended())

    async def _watch(self, scope: CancelScope) -> None:
        assert self._process is not None
        await asyncio.wait({self._process})
        scope.cancel()

    def _how_it_ended(self) -> str:
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

    async def _hear_first_word(self) -> None:
        # What it says before it knows of our subscription is lost, so it is asked again.
        while True:
            request = self._send(self._shell, "kernel_info_request", {})
            with move_on_after(_ASK_AGAIN_S):
                while True:
                    message = await self._receive(self._iopub)
                    if message is not None and message.parent == request:
                        return

    async def _hear_all(
        self,
        request: str,
        hear: Hear,
        is_enough: Callable[[], bool] = lambda: True,
    ) -> None:
        is_over = False
        async with create_task_group() as tasks:
            tasks.start_soon(self._limit_wait, request, tasks.cancel_scope)
            while not (is_over := await self._hear_until_cut(request, hear, is_enough)):
                await self._reconnect()
                hear(Message(LOST, request, {}))
            tasks.cancel_scope.cancel()
        if not is_over:
            await self._hear_first_word()

    async def _hear_late(self, hear: Hear) -> None:
        mark = _MARK_NAME + secrets.token_hex(8)
        late = {"stdout": "", "stderr": ""}

        def hold(message: Message) -> bool:
            name, text = message.content.get("name"), message.content.get("text")
            if message.kind == "stream" and name in late and isinstance(text, str):
                late[name] += text
            return True

        request = self._execute(_MARK.format(mark=mark), is_silent=True)
        await self._hear_all(request, hold, lambda: all(mark in text for text in late.values()))
        for name, text in late.items():
            content = {"name": name, "text": text.replace(mark, "")}
            hear(Message("stream", request, content))

    async def _hear_until_cut(
        self, request: str, hear: Hear, is_enough: Callable[[], bool]
    ) -> bool:
        """Read a cell's messages; return whether they were read to the end of the cell."""
        is_idle = is_over = False
        async with create_task_group() as tasks:
            tasks.start_soon(self._watch_line, tasks.cancel_scope)
            while not is_over:
                message = await self._receive(self._iopub)
                if message is None:
                    continue
                # Threads and commands of an earlier cell may still write.
                is_ours = message.parent == request or message.kind == "stream"
                if is_ours and not hear(message):
                    break
                is_status = message.kind == "status" and message.parent == request
                is_idle |= is_status and message.content.get("execution_state") == "idle"
                is_over = is_idle and is_enough()
            tasks.cancel_scope.cancel()
        return is_over

    async def _watch_line(self, scope: CancelScope) -> None:
        import zmq

        await self._event(zmq.EVENT_DISCONNECTED)
        scope.cancel()

    async def _limit_wait(self, request: str, scope: CancelScope) -> None:
        while True:
            reply = await self._receive(self._shell)
            if reply is not None and reply.parent == request:
                scope.deadline = anyio.current_time() + _LAST_OUTPUT_S
                return
