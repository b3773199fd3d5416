"""A team as tools of an MCP server."""

import re
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import anyio
import httpx2
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.extensions.external_agents.team_server import TeamServer
from nb_agents.testing import Call, ScriptedModel, Turn
from tests.cli.test_team_agent import team_file
from tests.kit.programs import TEAM
from tests.kit.runs import Run
from tests.model_server import free_port, wait_until
from tests.team_kit import WAIT_S, events, finish, journal_text
from tests.warm import WarmProcess

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        version("mcp") < "2", reason="The client of mcp 1 tells no progress by a call's argument."
    ),
]


def command(root: Path, config: str, *options: str) -> list[str]:
    line = [sys.executable, "-m", "nb_agents.cli", "mcp", "--config", config]
    return [*line, "--session-root", str(root), *options]


async def test_team_is_called_reports_progress_and_is_cancelled_and_resumed(tmp_path: Path) -> None:
    import mcp
    from mcp.client.stdio import StdioServerParameters, stdio_client

    config = team_file(tmp_path, "say one", "hold held", "RESUMED", "say two")
    program, *args = command(tmp_path / "s", config)
    parameters = StdioServerParameters(command=program, args=args, cwd=Path.cwd())
    told: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with mcp.Client(stdio_client(parameters), cache=None) as client:
        names = {each.name for each in (await client.list_tools()).tools}
        assert names == {"run_team", "status", "stop", "resume", "list_sessions"}

        async def call(tool: str, **given: str) -> str:
            result = await client.call_tool(tool, given, progress_callback=progress)
            return str(result.content[0].text)

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: call("run_team", task="Say it."))
            await anyio.to_thread.run_sync(wait_until, lambda: list(tmp_path.rglob("held")))
            await anyio.to_thread.run_sync(wait_until, lambda: any("ada" in each for each in told))
            assert "ada" in await call("status")
            group.cancel_scope.cancel()
        while "stopped" not in (said := await call("status")):  # noqa: ASYNC110
            await anyio.sleep(0.05)
        assert "Incomplete turn" in said
        assert "Stopped by an MCP client (its call was cancelled)" in said
        assert (await call("resume")).startswith("two\n\n(session session_")
        assert "2 turns, the last one complete: Say it." in await call("list_sessions")
        assert "(complete); nothing was changed" in await call("stop")


@pytest.mark.parametrize("name", ["a\0b", "\0", "x" * 300, "../..", "a/b"])
async def test_invalid_session_id_returns_a_sentence(tmp_path: Path, name: str) -> None:
    import mcp

    server = TeamServer(None, tmp_path)
    async with mcp.Client(server.server) as client:
        for tool, given in (
            ("run_team", {"task": "t", "session": name}),
            ("resume", {"session": name}),
            ("status", {"run": name}),
            ("stop", {"run": name}),
        ):
            result = await client.call_tool(tool, given)
            assert not result.is_error
            [said] = result.content
            assert said.text and "Error" not in said.text and "\n" not in said.text


async def test_server_reports_the_package_version(tmp_path: Path) -> None:
    import mcp

    async with mcp.Client(TeamServer(None, tmp_path).server) as client:
        about = client.server_info
    assert about is not None
    assert (about.name, about.version) == (TEAM, version("nb_agents"))


async def test_http_requests_need_the_token(tmp_path: Path) -> None:
    from tests.kit.mcp import connect, http_transport

    config, port = team_file(tmp_path, "say one"), free_port()
    line = command(tmp_path / "s", config, "--http", str(port))
    pipe = subprocess.PIPE
    with WarmProcess(line, stderr=pipe, text=True) as server:
        try:
            assert server.stderr is not None
            told = await anyio.to_thread.run_sync(server.stderr.readline)
            url, name, value = re.fullmatch(r"(\S+) (\w+): (.+)\n", told).groups()  # type: ignore[union-attr]

            def answers() -> int:
                try:
                    return httpx2.post(url, json={}).status_code
                except httpx2.TransportError:
                    return 0

            assert await anyio.to_thread.run_sync(wait_until, answers) == 401
            async with connect(http_transport(url, {name: value}, WAIT_S)) as client:
                result = await client.call_tool("run_team", {"task": "Say it."})
                assert result["content"][0]["text"].startswith("one\n")
        finally:
            server.terminate()


def test_stop_of_a_team_stops_the_team_it_called_as_a_tool(tmp_path: Path) -> None:
    program, *args = command(tmp_path / "second", team_file(tmp_path, "hold held", "say one"))
    model = ScriptedModel(Turn(calls=(Call("mcp__second__run_team", {"task": "Say it."}),)))
    server = {"name": "second", "command": program, "args": args}
    backend = {"type": "python", "instance": model, "mcp_servers": [server]}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path / "first"))
    [held] = wait_until(lambda: list(tmp_path.rglob("held")))
    run.stop()
    wait_until(lambda: '"requested"' in journal_text(tmp_path / "second"))
    held.unlink()
    finish(run)
    assert run.status == "cancelled" and '"immediate"' not in journal_text(tmp_path)
    [result] = [each.result for each in events(run, ev.ToolFinished)]
    assert result.startswith("one\n")
    assert run.receipt.ends == (("MCP server second", True, "None of its processes is left."),)


async def test_stop_of_a_call_that_is_still_starting_stops_its_turn(tmp_path: Path) -> None:
    asked, may_begin = threading.Event(), threading.Event()
    team = TeamSpec.from_file(team_file(tmp_path, "hold held"))

    def begin() -> Run:
        asked.set()
        may_begin.wait()
        return nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))

    async def progress(*_: object, **__: object) -> None:
        pass

    request = SimpleNamespace(meta={TEAM: "key"})
    ctx = SimpleNamespace(request_context=request, report_progress=progress)
    server = TeamServer(team, tmp_path, None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server._work, begin, ctx)
        await anyio.to_thread.run_sync(asked.wait)
        async with anyio.create_task_group() as stopping:
            stopping.start_soon(server.stop, "key", True)
            await anyio.wait_all_tasks_blocked()
            may_begin.set()
    assert '"immediate"' in journal_text(tmp_path)
