"""A kernel that a run starts for a notebook that no page shows, to run cells for its agents.

It is a kernel of the notebook's kernelspec, in the notebook's directory, and is used by this run
only. It runs one cell at a time. A kernel ends with its parent, so none is left if this process is
killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio
from anyio import CancelScope

from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.cell_outputs import MAX_OUTPUT, output_text

if TYPE_CHECKING:
    from jupyter_client.asynchronous.client import AsyncKernelClient
    from jupyter_client.manager import AsyncKernelManager

START_S = 60.0
"""Seconds for a kernel to start."""
MAX_ITEMS = 100
"""Maximum number of outputs of a cell that are kept. Earlier ones are dropped."""
MAX_ITEM = 5_000_000
"""Maximum length of a kept output that is not a stream, in characters."""
_CHECK_S = 0.5
"""Seconds between two checks whether the kernel is alive."""
_PYTHON = "python3"

Outcome = Literal["ok", "error", "aborted", "lost"]


class Executed(NamedTuple):
    """How a cell ended, and its outputs as in a notebook's JSON."""

    how: Outcome
    outputs: tuple[Mapping[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """The outputs as text for a model."""
        return output_text([*self.outputs])


class CellKernel:
    """The kernel of a run for one notebook. It starts with the first cell.

    Args:
        path: The notebook's file.
        kernel_name: The name of its kernelspec, or "".
    """

    def __init__(self, path: Path, kernel_name: str = "") -> None:
        self._path = path
        self._name = kernel_name or _PYTHON
        self._lock = anyio.Lock()
        self._manager: AsyncKernelManager | None = None
        self._client: AsyncKernelClient | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a cell runs now."""
        return self._lock.locked()

    @property
    def turn(self) -> anyio.Lock:
        """The lock to hold while a cell runs."""
        return self._lock

    async def run(self, source: str) -> Executed:
        """Run a cell. If this is cancelled, the cell is interrupted.

        Args:
            source: The cell's source.

        Raises:
            UserError: The kernel can't be started.
        """
        client = await self._started()
        try:
            return await self._run(client, source)
        except anyio.get_cancelled_exc_class():
            with CancelScope(shield=True):
                await self._interrupt()
            raise

    async def close(self) -> None:
        """End the kernel."""
        manager, client, self._manager, self._client = self._manager, self._client, None, None
        with CancelScope(shield=True):
            if client is not None:
                client.stop_channels()
            if manager is not None:
                await manager.shutdown_kernel(now=True)

    async def _started(self) -> AsyncKernelClient:
        """Return the client of the kernel, which is started if it does not run.

        Raises:
            UserError: It can't be started.
        """
        from jupyter_client.kernelspec import NoSuchKernel
        from jupyter_client.manager import AsyncKernelManager

        if self._manager is not None and self._client is not None:
            if await self._manager.is_alive():
                return self._client
        await self.close()
        manager = AsyncKernelManager(kernel_name=self._name)
        try:
            # The user's terminal must not show what a kernel prints when it starts and ends.
            await manager.start_kernel(cwd=str(self._path.parent), stdout=DEVNULL, stderr=DEVNULL)
            self._manager, self._client = manager, manager.client()
            self._client.start_channels()
            await self._client.wait_for_ready(timeout=START_S)
        except NoSuchKernel:
            raise UserError(
                f"The kernel {self._name!r} of {self._path.name} is not installed. `jupyter "
                "kernelspec list` lists the installed ones."
            ) from None
        except (OSError, RuntimeError) as exc:
            raise UserError(f"The kernel {self._name!r} can't be started: {exc}") from None
        return self._client

    async def _run(self, client: AsyncKernelClient, source: str) -> Executed:
        request = client.execute(source, allow_stdin=False)
        outputs = _Outputs()
        while (message := await self._next(client)) is not None:
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content.get("execution_state") == "idle":
                return Executed(await _outcome(client, request), outputs.kept)
            outputs.add(message["msg_type"], content)
        return Executed("lost", outputs.kept)

    async def _next(self, client: AsyncKernelClient) -> dict[str, Any] | None:
        """Return the kernel's next message, or None if the kernel has ended."""
        while self._manager is not None:
            with suppress(Empty):
                return dict(await client.get_iopub_msg(timeout=_CHECK_S))
            if not await self._manager.is_alive():
                break
        return None

    async def _interrupt(self) -> None:
        if self._manager is not None and await self._manager.is_alive():
            await self._manager.interrupt_kernel()


async def _outcome(client: AsyncKernelClient, request: str) -> Outcome:
    """Return how a cell ended, from the reply to its request."""
    with suppress(Empty):
        while True:
            reply = await client.get_shell_msg(timeout=START_S)
            if reply["parent_header"].get("msg_id") == request:
                status = reply["content"].get("status")
                return status if status in ("ok", "error", "aborted") else "error"
    return "lost"


class _Outputs:
    """The last outputs of a cell, as in a notebook's JSON. Their size is bounded."""

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] = []
        self._is_clear_pending = False

    @property
    def kept(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._items)

    def add(self, kind: str, content: Mapping[str, Any]) -> None:
        """Add the content of a message, which a cell may have forged."""
        if kind == "clear_output":
            self._is_clear_pending = bool(content.get("wait"))
            self._items = self._items if self._is_clear_pending else []
            return
        if kind not in ("stream", "display_data", "execute_result", "error"):
            return
        if self._is_clear_pending:
            self._items, self._is_clear_pending = [], False
        if kind == "stream":
            self._add_stream(str(content.get("name")), str(content.get("text") or ""))
        else:
            self._items.append(_bounded(kind, content))
        del self._items[:-MAX_ITEMS]

    def _add_stream(self, name: str, text: str) -> None:
        last = self._items[-1] if self._items else {}
        if last.get("output_type") == "stream" and last.get("name") == name:
            # One character more than models get, so that the text says that it is not whole.
            last["text"] = (last["text"] + text)[-2 * MAX_OUTPUT :]
        else:
            text = text[-2 * MAX_OUTPUT :]
            self._items.append({"output_type": "stream", "name": name, "text": text})


def _bounded(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "error":
        traceback = [str(each)[-MAX_OUTPUT:] for each in content.get("traceback") or ()]
        names = {key: str(content.get(key))[:MAX_OUTPUT] for key in ("ename", "evalue")}
        return {"output_type": kind, **names, "traceback": traceback[-MAX_ITEMS:]}
    data = content.get("data")
    items = data.items() if isinstance(data, dict) else ()
    return {
        "output_type": kind,
        "data": {key: each for key, each in items if len(str(each)) <= MAX_ITEM},
    }
