"""Real MCP servers, which answer, hang or crash, and end with the run."""

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import CancelScope, create_task_group, to_thread

from nb_agents.tools.mcp import McpServers, plain_name, tool_name
from tests.kit.models import ANY_MODEL, MAX_DESCRIPTION_CHARS
from tests.kit.tools import (
    McpServerSpec,
    Toolbox,
    ToolContext,
    ToolGate,
    ToolKeys,
    ToolResult,
    mcp_server,
)
from tests.model_server import wait_until
from tests.processes import line, python

SCRIPT = Path(__file__).with_name("mcp_server.py")
TOKEN = "s3cret-token"


class Alive:
    """A FIFO that a server and its children keep open; end of file means that all have ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def is_gone(self) -> bool:
        try:
            return os.read(self._end, 1) == b""
        except BlockingIOError:
            return False

    def wait_gone(self) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        poll.poll(200_000)
        assert self.is_gone()

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Alive]:
    made = Alive(tmp_path / "alive")
    yield made
    made.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Alive]:
    made = Alive(tmp_path / "other")
    yield made
    made.close()


def spec(alive: Alive, how: str = "", **keys: Any) -> McpServerSpec:
    command = (sys.executable, str(SCRIPT), str(alive.path), how)
    return McpServerSpec.model_validate({"name": "t", "command": command, **keys})


def context(workspace: Path, secrets: tuple[str, ...] = ()) -> ToolContext:
    return ToolContext("ada", workspace, (), workspace, workspace, secrets, lambda _: None)


class Desk:
    """One agent's tools by their own names, and the notices about them."""

    def __init__(self, tools: Toolbox, notices: list[str]) -> None:
        self.tools = tools
        self.notices = notices

    async def __call__(self, tool: str, /, **args: Any) -> ToolResult:
        return await self.tools.call(f"mcp__t__{tool}", args)


@asynccontextmanager
async def desk(
    workspace: Path, *specs: McpServerSpec, secrets: tuple[str, ...] = ()
) -> AsyncIterator[Desk]:
    notices: list[str] = []
    async with McpServers(notices.append) as servers:
        found = await servers.tools(context(workspace, secrets), specs)
        gate = ToolGate(notices.append)
        yield Desk(await gate.admit("ada", Toolbox(found), ANY_MODEL), notices)


def names(desk: Desk) -> list[str]:
    return [d.name for d in desk.tools.definitions]


async def until_says(mark: Path, text: str) -> None:
    await to_thread.run_sync(wait_until, lambda: mark.exists() and mark.read_text() == text)


async def stopped(desk: Desk, name: str, mark: Path, *, twice: bool = False) -> None:
    """Call a tool that does not return, and stop the call."""
    async with create_task_group() as tasks:

        async def work() -> None:
            await desk(name, mark=str(mark))

        tasks.start_soon(work)
        await until_says(mark, "started")
        tasks.cancel_scope.cancel()
        if twice:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            tasks.cancel_scope.cancel()


# Tools


async def test_agent_gets_the_tools_of_its_server(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        assert "mcp__t__add" in names(it) and it.notices == []
        definition = next(d for d in it.tools.definitions if d.name == "mcp__t__add")
        assert definition.description == "Add two numbers."
        assert definition.parameters_json_schema["required"] == ["a", "b"]
        assert await it("add", a=1, b=2) == "3"
        assert not alive.is_gone()
    assert alive.is_gone()


async def test_results_are_text_of_limited_length(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        assert await it("show") == "look:\n[image, image/png, 3 bytes: not shown]"
        assert "[truncated: 200000 characters in total]" in await it("much")


async def test_tool_error_is_reported_to_the_model(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        for result in (await it("fail", why="no"), await it("add", a=1)):
            assert result.is_error and result.startswith("Error: ")
        assert (await it.tools.call("mcp__t__add", "[1]")).is_error
        assert not (await it("add", a=1, b=1)).is_error


async def test_names_and_texts_of_a_server_are_sanitized(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive, "odd")) as it:
        found = {d.name: d for d in it.tools.definitions}
        assert all(len(name) <= 64 for name in found)
        names = "mcp__t__with_dots", tool_name("t", "with.dots"), tool_name("t", "l" * 100)
        assert {*names} <= {*found}
        assert len(found["mcp__t__with_dots"].description or "") == MAX_DESCRIPTION_CHARS
        assert "mcp__t__wide" not in found
    [notice] = it.notices
    assert "'mcp__t__wide' is left out: its schema has more than 20000 characters" in notice


async def test_tools_are_filtered_by_their_own_or_full_names(tmp_path: Path, alive: Alive) -> None:
    keys = {"allowed_tools": ["add", "mcp__t__pid", "fail"], "exclude_tools": "mcp__t__fail"}
    async with McpServers(pytest.fail) as servers:
        takes = ToolKeys(exclude_tools=("pid",)).takes
        tools = await servers.tools(context(tmp_path), [spec(alive, **keys)], takes)
    assert [tool.name for tool in tools] == ["mcp__t__add"]


async def test_other_text_on_stdout_is_ignored(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive, "junk")) as it:
        assert await it("add", a=1, b=2) == "3"


async def test_calls_run_at_the_same_time(tmp_path: Path, alive: Alive) -> None:
    said: list[str] = []
    async with desk(tmp_path, spec(alive)) as it:

        async def meet(name: str, other: str) -> None:
            said.append(await it("meet", folder=str(tmp_path), name=name, other=other))

        async with create_task_group() as tasks:
            tasks.start_soon(meet, "a", "b")
            tasks.start_soon(meet, "b", "a")
    assert sorted(said) == ["a met b", "b met a"]


# Start


async def test_equal_specs_share_a_server(tmp_path: Path, alive: Alive) -> None:
    async def pid(servers: McpServers, workspace: Path, it: McpServerSpec) -> str:
        tools = Toolbox(await servers.tools(context(workspace), [it]))
        return await tools.call("mcp__t__pid", {})

    (tmp_path / "b").mkdir()
    own = spec(alive, cwd="${cwd}")
    async with McpServers(pytest.fail) as servers:
        shared = {await pid(servers, w, spec(alive)) for w in (tmp_path, tmp_path / "b")}
        apart = {await pid(servers, w, own) for w in (tmp_path, tmp_path / "b")}
    assert (len(shared), len(shared | apart)) == (1, 3)


async def test_server_that_does_not_start_has_no_tools(tmp_path: Path, alive: Alive) -> None:
    missing = McpServerSpec(name="none", command=("no-such-server",))
    async with desk(tmp_path, spec(alive, "broken", name="bad"), missing, spec(alive)) as it:
        assert await it("add", a=1, b=2) == "3"
        assert {name.split("__")[1] for name in names(it)} == {"t"}
    bad, none = it.notices
    assert "'bad' did not start" in bad and "no token, but None" in bad
    assert "no-such-server: No such file or directory" in none


async def test_server_that_never_responds_times_out(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "START_TIMEOUT_S", 0.2)
    async with desk(tmp_path, spec(alive, "mute")) as it:
        assert names(it) == []
    assert "it did not respond within" in it.notices[0]


async def test_stop_ends_servers_that_are_starting(tmp_path: Path, alive: Alive) -> None:
    async with create_task_group() as tasks:

        async def work() -> None:
            async with desk(tmp_path, spec(alive, "mute")):
                pytest.fail("it started")

        tasks.start_soon(work)
        # When the FIFO has its first writer, a reader gets "would block" instead of end of file.
        await to_thread.run_sync(wait_until, lambda: not alive.is_gone())
        tasks.cancel_scope.cancel()
    assert alive.is_gone()


# Secrets


async def test_server_gets_its_own_and_default_variables(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("INNOCENT", "team-key")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:password@host")
    keys = {"env": {"A_TOKEN": "${MY_TOKEN}", "PLAIN": 8000}}
    async with desk(tmp_path, spec(alive, **keys), secrets=("team-key",)) as it:
        assert await it("variable", name="PLAIN") == "it is 8000"
        assert await it("variable", name="A_TOKEN") == "it is [key]"
        assert await it("variable", name="HOME") == f"it is {os.environ['HOME']}"
        for name in ("OPENAI_API_KEY", "MY_TOKEN", "INNOCENT", "DATABASE_URL"):
            assert await it("variable", name=name) == "it is None"


async def test_notices_contain_no_token(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    unset = spec(alive, args=["${NOT_THERE}"], name="u")
    async with desk(tmp_path, spec(alive, "broken", env={"A_TOKEN": "${MY_TOKEN}"}), unset) as it:
        told = "\n".join(it.notices)
    assert "NOT_THERE is not set" in told
    assert "no token, but [key]" in told and TOKEN not in told


# Stops and crashes


async def test_stop_ends_the_call_but_not_the_server(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        before = await it("pid")
        for number in range(2):
            mark = tmp_path / f"mark{number}"
            await stopped(it, "hang", mark, twice=True)
            await until_says(mark, "cancelled")
        assert await it("pid") == before


async def test_server_that_hangs_after_a_stop_is_restarted(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        before = await it("pid")
        await stopped(it, "freeze", tmp_path / "mark")
        monkeypatch.setattr(mcp_server, "PROBE_TIMEOUT_S", 0.1)
        after = await it("pid")
        assert not after.is_error and after != before
    assert alive.is_gone()


async def test_call_times_out(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        monkeypatch.setattr(mcp_server, "CALL_TIMEOUT_S", 0.2)
        result = await it("hang", mark=str(tmp_path / "mark"))
        assert result.is_error and "did not answer within" in result
        monkeypatch.undo()
        assert await it("add", a=1, b=2) == "3"


async def test_time_limit_applies_only_to_its_own_server(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive), spec(alive, name="quick", timeout=1)) as it:
        before, mark, other = await it("pid"), tmp_path / "mark", tmp_path / "other"
        async with create_task_group() as tasks:
            tasks.start_soon(partial(it, "hang", mark=str(other)))
            await until_says(other, "started")
            result = await it.tools.call("mcp__quick__hang", {"mark": str(mark)})
            assert result.is_error and "did not answer within 1 s" in result
            await until_says(mark, "cancelled")
            assert other.read_text() == "started"
            tasks.cancel_scope.cancel()
        assert await it("pid") == before


async def test_server_that_hangs_after_a_timeout_is_restarted(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, spec(alive), spec(alive, name="quick", timeout=0.2)) as it:
        before = await it("pid")
        frozen = await it.tools.call("mcp__quick__freeze", {"mark": str(tmp_path / "mark")})
        assert frozen.is_error and "may or may not have taken effect" in frozen
        monkeypatch.setattr(mcp_server, "PROBE_TIMEOUT_S", 0.1)
        after = await it("pid")
        assert not after.is_error and after != before
    assert alive.is_gone()


def test_time_limit_keys_of_massgen(alive: Alive) -> None:
    assert spec(alive).call_timeout_s is None
    assert spec(alive, timeout=30, tool_timeout_sec=None).call_timeout_s == 30
    assert spec(alive, timeout=30, tool_timeout_sec=1.5).call_timeout_s == 1.5


@pytest.mark.parametrize("value", [0, -1, "30", True, float("inf")])
def test_invalid_time_limit_is_refused(alive: Alive, value: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        spec(alive, timeout=value)


async def test_crash_is_reported_and_the_next_call_restarts_the_server(
    tmp_path: Path, alive: Alive
) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        before = await it("pid")
        for _ in range(2):
            result = await it("crash")
            assert result.is_error and "may or may not have taken effect" in result
        after = await it("pid")
        assert not after.is_error and after != before


async def test_crash_between_calls_has_no_effect(tmp_path: Path, alive: Alive) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        os.kill(int(await it("pid")), signal.SIGKILL)
        await to_thread.run_sync(alive.wait_gone)

        async def again() -> bool:
            return not (await it("add", a=1, b=2)).is_error

        # A call before the end is noticed reports the end; the next one works.
        assert await again() or await again()


async def test_task_cancelled_twice_while_closing_ends(tmp_path: Path, alive: Alive) -> None:
    """The `mcp` package's own client hangs forever in this case."""
    ready = anyio.Event()

    async def work() -> None:
        async with desk(tmp_path, spec(alive, "stubborn")) as it:
            await it("add", a=1, b=2)
            ready.set()
            await anyio.sleep_forever()

    task = asyncio.ensure_future(work())
    await ready.wait()
    for _ in range(3):
        task.cancel()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive.is_gone()


async def test_server_works_until_the_block_ends_even_after_a_stop(
    tmp_path: Path, alive: Alive
) -> None:
    with CancelScope() as stop:
        async with desk(tmp_path, spec(alive)) as it:
            stop.cancel()
            with CancelScope(shield=True):
                assert await it("add", a=1, b=2) == "3"
    assert alive.is_gone()


async def test_exception_of_the_block_is_not_wrapped(tmp_path: Path, alive: Alive) -> None:
    with pytest.raises(ZeroDivisionError):
        async with desk(tmp_path, spec(alive)):
            raise ZeroDivisionError
    assert alive.is_gone()


# Processes

OWNER = """
import os, signal, sys, anyio
from pathlib import Path
from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.tools.base import Toolbox
from nb_agents.tools.base import ToolContext
from nb_agents.tools.mcp import McpServers

script, alive, other, how = sys.argv[1:]
here = Path(alive).parent
context = ToolContext("a", here, (), here, here, (), lambda _: None)
spec = McpServerSpec(name="t", command=(sys.executable, script, alive, how))

async def main():
    async with McpServers(print) as servers:
        tools = Toolbox(await servers.tools(context, [spec]))
        print(await tools.call("mcp__t__grandchild", {"alive": other}), flush=True)
        if how == "":
            os.setpgrp()
            signal.signal(signal.SIGINT, lambda *_: None)
            os.killpg(0, signal.SIGINT)
            print(await tools.call("mcp__t__add", {"a": 1, "b": 2}), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux lets orphans be found.")
async def test_processes_of_a_server_end_with_the_run(
    tmp_path: Path, alive: Alive, other: Alive
) -> None:
    async with desk(tmp_path, spec(alive)) as it:
        assert await it("grandchild", alive=str(other.path)) == "up"
        assert not other.is_gone()
    assert alive.is_gone() and other.is_gone()


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux lets orphans be found.")
def test_sigkill_of_the_owner_leaves_no_orphan(alive: Alive, other: Alive) -> None:
    with python(OWNER, SCRIPT, alive.path, other.path, "stubborn") as owner:
        assert line(owner) == "up"
        assert not alive.is_gone() and not other.is_gone()
        owner.kill()
        alive.wait_gone()
        other.wait_gone()


def test_interrupt_of_the_process_group_does_not_reach_a_server(alive: Alive, other: Alive) -> None:
    with python(OWNER, SCRIPT, alive.path, other.path, "") as owner:
        assert (line(owner), line(owner)) == ("up", "3")
        assert not alive.is_gone() and not other.is_gone()
        owner.kill()
        alive.wait_gone()


# Streamable HTTP


SERVE = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"


@pytest.fixture
def http_server(alive: Alive) -> Iterator[str]:
    with python(SERVE, alive.path, "http") as process:
        yield f"http://127.0.0.1:{line(process)}/mcp"


def at(url: str, authorization: str = "${MY_TOKEN}") -> McpServerSpec:
    keys = {"name": "t", "url": url, "authorization": authorization}
    return McpServerSpec.model_validate(keys)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)


async def test_http_server(tmp_path: Path, http_server: str, token: None) -> None:
    async with desk(tmp_path, at(http_server)) as it:
        assert it.notices == []
        before = await it("pid")
        mark = tmp_path / "mark"
        await stopped(it, "hang", mark, twice=True)
        await until_says(mark, "cancelled")
        assert await it("pid") == before


async def test_wrong_token_is_reported_without_the_token(
    tmp_path: Path, http_server: str, token: None
) -> None:
    async with desk(tmp_path, at(http_server, "wrong-token")) as it:
        assert names(it) == []
    assert "did not start" in it.notices[0] and "wrong-token" not in it.notices[0]


async def test_end_of_a_cancelled_http_call_is_unconfirmed(
    tmp_path: Path, http_server: str, token: None
) -> None:
    async with McpServers(pytest.fail) as servers:
        found = await servers.tools(context(tmp_path), [at(http_server)])
        await stopped(Desk(Toolbox(found), []), "hang", tmp_path / "mark")
    [end] = servers.ends()
    assert (end.what, end.is_confirmed) == ("MCP server t", False)
    assert "notified that its call is cancelled" in end.how


async def test_http_server_that_ends_is_reported_and_reconnected(
    tmp_path: Path, alive: Alive, other: Alive, token: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with python(SERVE, alive.path, "http") as first:
        port = line(first)
        async with desk(tmp_path, at(f"http://127.0.0.1:{port}/mcp")) as it:
            assert await it("add", a=1, b=2) == "3"
            first.kill()
            first.wait()
            assert (await it("add", a=1, b=2)).is_error
            gone = await it("add", a=1, b=2)
            assert gone.is_error and "can't be started" in gone
            monkeypatch.setenv("PORT", port)
            with python(SERVE, other.path, "http") as second:
                assert line(second) == port
                assert await it("add", a=1, b=2) == "3"


async def test_unreachable_http_server_gives_a_notice(tmp_path: Path, token: None) -> None:
    async with desk(tmp_path, at("http://127.0.0.1:1/mcp")) as it:
        assert names(it) == []
    assert "did not start" in it.notices[0]


async def test_notice_names_the_proxy(
    tmp_path: Path, token: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with desk(tmp_path, at("http://127.0.0.1:1/mcp")) as it:
        assert "through the proxy 127.0.0.1:9 (HTTP_PROXY)" in it.notices[0]
    monkeypatch.setenv("HTTP_PROXY", "socks4://127.0.0.1:9")
    async with desk(tmp_path, at("http://127.0.0.1:1/mcp")) as it:
        assert "The proxy in HTTP_PROXY can't be used" in it.notices[0]


# Names


def test_names_are_valid_for_every_provider() -> None:
    assert tool_name("brave_search", "search") == "mcp__brave_search__search"
    assert plain_name("a b", "c.d/é") == "mcp__a_b__c_d__"
    assert tool_name("a b", "c.d/é").startswith("mcp__a_b__c_d___")
    long, longer = tool_name("s", "x" * 80), tool_name("s", "x" * 81)
    assert len(long) == len(longer) == 64 and long != longer
