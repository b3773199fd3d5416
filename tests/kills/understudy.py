"""A process from which runs are forked that are killed or stopped at one of their events.

It has imported all modules and called each kind of model once, because the libraries' first calls
are slow. It has no threads yet.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from tests.kit.runs import live_runs
from tests.kit.sessions import Journal
from tests.model_server import ModelServer, Reply, ToolCall
from tests.processes import line, python, tell

__all__ = ["KINDS", "NEVER", "Kill", "Understudy", "understudy"]

KINDS = ("chatcompletion", "responses", "claude", "gemini")
"""All kinds of models."""
_CODE = "import sys; from tests.kills.understudy import serve; serve(*sys.argv[1:])"


_STOPPED = 3


class Kill(NamedTuple):
    """When to kill a process or stop its runs.

    Attributes:
        after: Number of events after the start of the process; 0 means never.
        delay_ms: Time after that event, in milliseconds.
        is_stop: Whether to stop the runs immediately, so that the process exits by itself.
        kind: The kind of events that are counted. "*" means all kinds.
    """

    after: int = 0
    delay_ms: int = 0
    is_stop: bool = False
    kind: str = "*"


NEVER = Kill()


class Understudy:
    """The parent's end of the connection."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def play(self, function: str, *args: object, kill: Kill = NEVER) -> bool:
        """Call a function, "module:name", in a separate process.

        Returns:
            Whether it ended without being killed or stopped.
        """
        tell(self._process, " ".join(map(str, (function, *map(int, kill[:3]), kill.kind, *args))))
        status = line(self._process)
        assert status in ("0", str(_STOPPED), "-9"), status
        return status == "0"


@contextmanager
def understudy(*modules: str, kinds: Sequence[str] = KINDS[:1]) -> Iterator[Understudy]:
    """Start the process.

    Args:
        modules: Modules to import before forking.
        kinds: The kinds of models that the forks use.
    """
    with python(_CODE, ",".join(kinds), *modules) as process:
        yield Understudy(process)


# In the forked process ----------------------------------------------------------------------------


def serve(kinds: str, *modules: str) -> None:
    """Fork a process for each line of stdin."""
    _make_ready(kinds.split(","))
    for module in modules:
        import_module(module)
    assert threading.active_count() == 1
    gc.freeze()
    gc.disable()
    for told in sys.stdin:
        function, after, delay_ms, is_stop, kind, *args = told.split()
        child = os.fork()
        if not child:
            _play(function, Kill(int(after), int(delay_ms), is_stop == "1", kind), args)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _play(function: str, kill: Kill, args: list[str]) -> None:
    status = 1
    try:
        was_stopped = _arm(kill)
        module, _, name = function.partition(":")
        getattr(import_module(module), name)(*args)
        status = _STOPPED if was_stopped.is_set() else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _arm(kill: Kill) -> threading.Event:
    """Kill this process or stop its runs after a number of written events."""
    append, count = Journal.append, 0
    was_stopped = threading.Event()

    def end() -> None:
        if not kill.is_stop:
            os.kill(os.getpid(), signal.SIGKILL)
        was_stopped.set()
        threading.Thread(target=_stop_all, daemon=True).start()

    def counted(self: Journal, event: Any) -> None:
        nonlocal count
        append(self, event)
        count += kill.kind in ("*", event.kind)
        if count == kill.after and kill.kind in ("*", event.kind):
            threading.Timer(kill.delay_ms / 1000, end).start() if kill.delay_ms else end()

    Journal.append = counted  # type: ignore[method-assign]
    return was_stopped


def _stop_all() -> None:
    for run in live_runs():
        run.stop(now=True)


def _make_ready(kinds: Sequence[str]) -> None:
    import tests.kit.recipes  # noqa: F401
    from tests.kit.models import load
    from tests.kit.tools import mcp

    load(kinds)
    mcp._load_library()
    # Reading the certificates again would take a quarter of each run.
    context = ssl.create_default_context()
    ssl.create_default_context = lambda *args, **more: context
    with ModelServer(default=Reply(text="So.", tool_calls=(ToolCall("look"),))) as server:
        asyncio.run(_rehearse(server, kinds))


async def _rehearse(server: ModelServer, kinds: Sequence[str]) -> None:
    from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
    from pydantic_ai.tools import ToolDefinition

    from tests.kit.agents import dump_messages, load_messages
    from tests.kit.models import backend_for, http_client
    from tests.kit.teams import TeamSpec

    agents = [{"id": k, "backend": {**server.backend(k), "model": "m"}} for k in kinds]
    parts = ToolCallPart("look", {}, "c1"), ToolReturnPart("look", "seen", "c1")
    said = [ModelRequest.user_text_prompt("t"), ModelResponse([parts[0]]), ModelRequest([parts[1]])]
    said = load_messages(dump_messages(said))
    async with http_client() as client:
        for agent in TeamSpec.model_validate({"agents": agents}).agents:
            backend = backend_for(agent, lambda: client)
            async with backend.stream(said, [ToolDefinition(name="look")]) as reply:
                async for _ in reply:
                    pass
