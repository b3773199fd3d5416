"""The Python tool of an agent, which runs cells in a persistent interpreter.

The first cell starts the interpreter, and `PythonCells.close` ends it. It never outlives the
notebook's kernel. A stop or timeout interrupts the cell. If the cell does not end within two
seconds, the whole interpreter is terminated, and the result of the next cell reports that
variables were lost. Images that a cell shows are saved in the agent's workspace.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from anyio import CancelScope, Event, Lock, create_task_group, move_on_after, to_thread

from nb_agents.disk.directory import Directory
from nb_agents.tools.base import BuiltInTool, Tool, ToolContext, ToolError, declare
from nb_agents.tools.python_kernel import LOST, InterpreterEnded, Message, PythonInterpreter
from nb_agents.tools.sandbox import Sandbox
from nb_agents.tools.shell import OutputLog, kept_folder

declare(BuiltInTool("run_python", "code", "code", is_asked=True))

FOLDER = "plots"
_MAX_BYTES = 10_000_000
_PNG = b"\x89PNG\r\n\x1a\n"

DEFAULT_TIMEOUT_S = 300.0
MAX_OUTPUT_CHARS = 10_000_000
"""Maximum size of a cell's output in characters. A cell that writes more is interrupted."""
_MAX_PLOTS = 20
_INTERRUPT_GRACE_S = 2.0
_INTERRUPT_AGAIN_S = 1.0
"""Seconds until another interrupt. Python ignores one that arrives in a callback or finalizer."""

_LOST = "[Python was restarted: the variables and imports of earlier cells are lost.]"


@dataclass(frozen=True)
class Plot:
    """An image that a cell has shown.

    Attributes:
        name: The file's name in `FOLDER`.
        data: The PNG data.
    """

    name: str
    data: bytes


def decode_png(value: Any) -> bytes | None:
    """Decode an image from an interpreter. Returns None if it is invalid or too large."""
    if not isinstance(value, str) or len(value) > _MAX_BYTES * 4 // 3:
        return None
    try:
        data = base64.b64decode(value)
    except ValueError:
        return None
    return data if data.startswith(_PNG) else None


def next_number(workspace: Path, last: int) -> int:
    """Return a number for the next cell that no plot in the workspace uses."""
    used_numbers = set()
    with suppress(OSError), Directory.at(workspace) as directory:
        # `walk` yields files before directories.
        entries = takewhile(lambda entry: entry.kind != "folder", directory.walk(FOLDER))
        names = [entry.name for entry in entries]
        used_numbers = {name.split("_")[1] for name in names if "_" in name}
    number = last + 1
    while str(number) in used_numbers:
        number += 1
    return number


def save_plots(workspace: Path, plots: Sequence[Plot]) -> None:
    """Write images to a workspace without replacing files.

    Raises:
        OSError: An image can't be written.
    """
    with Directory.at(workspace) as directory:
        for plot in plots:
            with directory.create(f"{FOLDER}/{plot.name}") as file:
                file.write(plot.data)


class PythonCells:
    """The Python tool of one agent.

    Args:
        sandbox: Runs the interpreter.
        timeout_s: Time limit of a cell, in seconds.
    """

    def __init__(self, sandbox: Sandbox, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._sandbox = sandbox
        self._context = sandbox.context
        self._timeout_s = timeout_s
        self._output_folder = kept_folder(self._context.kept, self._context.agent)
        self._one_at_a_time = Lock()  # a model may make parallel calls
        self._interpreter: PythonInterpreter | None = None
        self._is_lost = False
        self._could_write = False
        self._number = 0

    def tools(self) -> list[Tool]:
        """Return the tool that runs a cell."""
        return [Tool(self.run_python)]

    async def run_python(self, code: str) -> str:
        """Run Python code in your workspace, like a notebook cell.

        Variables and imports persist between calls. The result contains the printed output and the
        value of the last expression. Plots are saved as PNG files.

        Args:
            code: The Python code.
        """
        try:
            code.encode()
        except UnicodeEncodeError:
            raise ToolError("the code contains a lone surrogate") from None
        async with self._one_at_a_time:
            return await self._run(code)

    async def close(self) -> None:
        """End the interpreter and its processes. No cell may be running."""
        if self._interpreter is not None:
            interpreter, self._interpreter = self._interpreter, None
            await interpreter.close()

    async def _run(self, code: str) -> str:
        interpreter = await self._started()
        self._number = await to_thread.run_sync(next_number, self._sandbox.cwd, self._number)
        cell = _Cell(self._context, self._number)
        if self._is_lost:
            cell.output.line(_LOST)
            self._is_lost = False
        try:
            await self._follow(interpreter, code, cell)
        finally:
            # Save all output and images, even after a stop.
            with CancelScope(shield=True):
                if cell.is_lost:
                    self._is_lost = True
                    await self.close()
                output = await self._save_output(cell)
        return output.rstrip("\n") or "(no output)"

    async def _started(self) -> PythonInterpreter:
        can_write = bool(self._context.access.now)
        if self._interpreter is not None and can_write != self._could_write:
            # The paths that the interpreter can write to are fixed when it starts.
            await self.close()
            self._is_lost = True
        if self._interpreter is None:
            self._could_write = can_write
            interpreter = PythonInterpreter(self._sandbox)
            try:
                await interpreter.start()
            except InterpreterEnded as exc:
                await interpreter.close()
                raise ToolError(f"Python could not be started: {exc}") from None
            except BaseException:
                await interpreter.close()
                raise
            self._interpreter = interpreter
        return self._interpreter

    async def _follow(self, interpreter: PythonInterpreter, code: str, cell: _Cell) -> None:
        # The reader continues while the cell is interrupted, to receive its last output and the
        # message that it has ended.
        reading = CancelScope(shield=True)
        request = interpreter.begin(code)
        async with create_task_group() as tasks:
            tasks.start_soon(_read, reading, interpreter, request, cell)
            try:
                with move_on_after(self._timeout_s):
                    await cell.is_enough.wait()
            finally:
                with CancelScope(shield=True):
                    await self._end(interpreter, cell)
                reading.cancel()

    async def _end(self, interpreter: PythonInterpreter, cell: _Cell) -> None:
        """Interrupt a cell that has not ended by itself, and record the reason."""
        if not cell.has_ended.is_set():
            with move_on_after(_INTERRUPT_GRACE_S):
                await cell.has_begun.wait()
                while not cell.has_ended.is_set():
                    await interpreter.interrupt()
                    with move_on_after(_INTERRUPT_AGAIN_S):
                        await cell.has_ended.wait()
            self._explain(cell)

    def _explain(self, cell: _Cell) -> None:
        why = "wrote too much" if cell.is_too_long else f"took more than {self._timeout_s:g} s"
        if not cell.has_ended.is_set():
            cell.is_lost = True
            cell.output.line(f"[The cell {why} and could not be interrupted, so Python was ended.]")
        elif not cell.is_lost:
            cell.output.line(f"[The cell {why} and was interrupted. Its variables are kept.]")

    async def _save_output(self, cell: _Cell) -> str:
        if cell.plots:
            try:
                await to_thread.run_sync(save_plots, self._sandbox.cwd, cell.plots)
            except OSError as exc:
                cell.output.line(f"[Plots could not be saved: {exc.strerror}]")
        return await cell.output.keep(self._output_folder, "python")


class _Cell:
    """A running cell.

    Attributes:
        output: The output, in order.
        plots: The images.
        has_begun: Set when the cell has started and can be interrupted.
        has_ended: Set when the cell has ended.
        is_enough: Set when the cell has ended or has written too much.
        is_too_long: Whether the cell has written too much.
        is_lost: Whether the interpreter has ended.
    """

    def __init__(self, context: ToolContext, number: int) -> None:
        self.output = OutputLog(context.tell, context.mask)
        self.plots: list[Plot] = []
        self.has_begun = Event()
        self.has_ended = Event()
        self.is_enough = Event()
        self.is_too_long = False
        self.is_lost = False
        self._number = number

    def record(self, message: Message) -> bool:
        """Record a message from the interpreter. Returns False after too much output."""
        if message.kind == "execute_input":
            self.has_begun.set()
        if self.is_too_long:
            return message.kind != "stream"
        content = message.content
        if message.kind == "stream":
            self.output.add(_text(content.get("text")))
        elif message.kind in ("execute_result", "display_data"):
            self._show(content.get("data"))
        elif message.kind == "error":
            lines = content.get("traceback")
            self.output.line("\n".join(map(_text, lines if isinstance(lines, list) else [])))
        if self.output.chars > MAX_OUTPUT_CHARS or message.kind == LOST:
            self.is_too_long = True
            self.is_enough.set()
        return not self.is_too_long

    def end(self) -> None:
        """Record that the interpreter has exited."""
        for event in (self.has_begun, self.has_ended, self.is_enough):
            event.set()

    def _show(self, data: Any) -> None:
        if not isinstance(data, dict):
            return
        image = decode_png(data.get("image/png"))
        if image is None:
            self.output.line(_text(data.get("text/plain")))
        elif len(self.plots) == _MAX_PLOTS:
            self.output.line(f"[A plot was not saved: the limit is {_MAX_PLOTS} per cell.]")
        else:
            name = f"cell_{self._number}_{len(self.plots) + 1}.png"
            self.plots.append(Plot(name, image))
            self.output.line(f"[plot: {FOLDER}/{name}]")


async def _read(
    scope: CancelScope, interpreter: PythonInterpreter, request: str, cell: _Cell
) -> None:
    with scope:
        try:
            await interpreter.follow(request, cell.record)
        except InterpreterEnded as exc:
            cell.is_lost = True
            cell.output.line(f"[Python ended: {exc}]")
        cell.end()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
