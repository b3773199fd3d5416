"""A team as an ACP agent: of the protocol's reference client, and of another team."""

import asyncio
import json
import subprocess
import sys
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from asyncio.streams import FlowControlMixin
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.extensions.external_agents.team_agent import TeamAgent
from tests.acp.test_acp_runner import events, processes_with, start, team
from tests.kit.sessions import read_journal
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, finish, journal_text, streamed_text
from tests.warm import WarmProcess

pytestmark = pytest.mark.anyio
AGENT = Path(__file__).parents[1] / "acp" / "agent.py"


def command(root: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "nb_agents.cli", "acp", "--session-root", str(root), *options]


class Client:
    """A client that records all updates and approves all requests."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.asked: list[str] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.told.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> Any:
        from acp.schema import AllowedOutcome, RequestPermissionResponse

        self.asked.append(tool_call.title)
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        )

    def texts(self, kind: str) -> str:
        found = (u for u in self.told if u.session_update == kind)
        return "".join(u.content.text for u in found)


@asynccontextmanager
async def client_of(
    root: Path, *options: str, name: str = "test"
) -> AsyncIterator[tuple[Any, Client]]:
    import acp
    from acp.schema import Implementation

    client: Any = Client()
    async with team_process(command(root, *options)) as (reader, writer):
        conn = acp.connect_to_agent(client, writer, reader, use_unstable_protocol=True)
        info = Implementation(name=name, version="1")
        await conn.initialize(protocol_version=1, client_info=info)
        yield conn, client
        await conn.close()


@asynccontextmanager
async def team_process(line: list[str]) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """Start a team's process, and yield its stdout and stdin. Closing stdin ends the process."""
    loop, reader = asyncio.get_running_loop(), StreamReader(limit=2**24)
    pipe = subprocess.PIPE
    with WarmProcess(line, stdin=pipe, stdout=pipe) as process:
        answers, _ = await loop.connect_read_pipe(
            lambda: StreamReaderProtocol(reader), process.stdout
        )
        asks, flow = await loop.connect_write_pipe(FlowControlMixin, process.stdin)
        yield reader, StreamWriter(asks, flow, reader, loop)
        asks.close()
        assert await anyio.to_thread.run_sync(process.wait, WAIT_S) == 0
        answers.close()


def team_file(root: Path, *steps: str, **keys: Any) -> str:
    path = root / "team.json"
    backend = {"type": "acp", "command": [sys.executable, str(AGENT), *steps], **keys}
    path.write_text(json.dumps({"agent": {"id": "ada", "backend": backend}}))
    return str(path)


async def prompt(conn: Any, session: str, text: str) -> str:
    import acp

    answer = await conn.prompt(session_id=session, prompt=[acp.text_block(text)])
    return str(answer.stop_reason)


async def test_prompt_starts_a_turn_and_the_next_one_continues(tmp_path: Path) -> None:
    config = team_file(tmp_path, "say one two")
    async with client_of(tmp_path / "s", "--config", config) as (conn, client):
        session = (await conn.new_session(cwd=str(tmp_path))).session_id
        assert await prompt(conn, session, "Say it.") == "end_turn"
        assert client.texts("agent_message_chunk") == "one two"
        assert "**ada**: one two" in client.texts("agent_thought_chunk")
        assert await prompt(conn, session, "And again.") == "end_turn"
    assert len(list((tmp_path / "s" / session).glob("turn_*"))) == 2


async def test_cancel_stops_the_turn_and_resume_works_in_a_loaded_session(tmp_path: Path) -> None:
    config = team_file(tmp_path, "say one", "hold held", "RESUMED", "say two")
    async with client_of(tmp_path / "s", "--config", config) as (conn, client):
        session = (await conn.new_session(cwd=str(tmp_path))).session_id
        async with anyio.create_task_group() as group:
            reasons: list[str] = []

            async def ask() -> None:
                reasons.append(await prompt(conn, session, "Say it."))

            group.start_soon(ask)
            found = lambda: list(tmp_path.rglob("held"))  # noqa: E731
            await anyio.to_thread.run_sync(wait_until, found)
            await conn.cancel(session_id=session)
            await conn.cancel(session_id=session)
        assert reasons == ["cancelled"]
        assert "Incomplete turn" in client.texts("agent_message_chunk")
    async with client_of(tmp_path / "s", "--config", config) as (conn, client):
        await conn.load_session(session_id=session, cwd=str(tmp_path))
        assert client.texts("user_message_chunk") == "Say it."
        assert await prompt(conn, session, "resume") == "end_turn"
        assert client.texts("agent_message_chunk").endswith("two")


NO_NAMES = ["a\0b", "\0", "x" * 300, "../..", "a/b", ""]


async def test_invalid_session_id_is_an_error_and_the_client_stays_connected(
    tmp_path: Path,
) -> None:
    import acp

    async with client_of(tmp_path / "s", "--config", team_file(tmp_path, "say one")) as (conn, _):
        for name in NO_NAMES:
            for ask in (
                conn.load_session(session_id=name, cwd=str(tmp_path)),
                conn.resume_session(session_id=name, cwd=str(tmp_path)),
                prompt(conn, name, "Say it."),
            ):
                with pytest.raises(acp.RequestError) as caught:
                    await ask
                assert caught.value.code == -32602
            await conn.close_session(session_id=name)
        session = (await conn.new_session(cwd=str(tmp_path))).session_id
        assert await prompt(conn, session, "Say\0it.") == "end_turn"


async def test_invalid_working_directory_is_an_error(tmp_path: Path) -> None:
    import acp

    agent: Any = TeamAgent(None)
    for cwd in (f"{tmp_path}/a\0b", f"{tmp_path}/\ud800"):
        with pytest.raises(acp.RequestError) as caught:
            await agent.new_session(cwd=cwd)
        assert caught.value.code == -32602


async def test_jupyter_ai_receives_only_updates_that_it_shows(tmp_path: Path) -> None:
    config = team_file(tmp_path, "say one", "hold held", "RESUMED", "tool read a.md", "say two")
    async with client_of(tmp_path / "s", "--config", config, name="Jupyter AI") as (conn, client):
        session = (await conn.new_session(cwd=str(tmp_path))).session_id
        async with anyio.create_task_group() as group:
            group.start_soon(prompt, conn, session, "Say it.")
            found = lambda: "one" in client.texts("agent_message_chunk")  # noqa: E731
            await anyio.to_thread.run_sync(wait_until, found)
            await conn.cancel(session_id=session)
            await conn.cancel(session_id=session)
        end = client.told[-1]
        assert (end.session_update, end.title) == (
            "tool_call",
            "Stopped. Write “resume” to resume it.",
        )
        assert "Incomplete turn" in end.raw_output
        assert await prompt(conn, session, "resume") == "end_turn"
        assert client.texts("agent_message_chunk").endswith("---\n\ntwo")
        assert client.texts("agent_thought_chunk") == ""
        results = [u.raw_output for u in client.told if u.session_update == "tool_call_update"]
        assert "did read a.md" in results


async def test_gate_becomes_a_permission_request(tmp_path: Path) -> None:
    rules = [{"match": "run_command", "action": "ask"}]
    config = team_file(tmp_path, "ask execute rm x", tool_policy=rules)
    async with client_of(tmp_path / "s", "--config", config) as (conn, client):
        session = (await conn.new_session(cwd=str(tmp_path))).session_id
        assert await prompt(conn, session, "Do it.") == "end_turn"
    assert client.asked == ["ada wants to call run_command: rm x"]
    assert client.texts("agent_message_chunk") == "allowed"


def member_of(root: Path, *steps: str) -> TeamSpec:
    """A team with another nb_agents team as its agent."""
    line = command(root / "inner", "--config", team_file(root, *steps))
    return team({"id": "bo", "backend": {"type": "acp", "command": line, "sandbox": False}})


def ends_of(root: Path) -> list[str]:
    """Return the ends of the inner team's turns, in order."""
    found = (read_journal(path).events for path in sorted((root / "inner").rglob("events.jsonl")))
    return [e.status for journal in found for e in journal if isinstance(e, ev.TurnEnded)]


def test_team_as_an_agent_of_another_team_stops_and_resumes_with_it(
    tmp_path: Path,
) -> None:
    spec = member_of(tmp_path, "say one two", "hold held", "RESUMED", "say four")
    run = start(tmp_path / "outer", spec)
    wait_until(lambda: list(tmp_path.rglob("held")))
    wait_until(lambda: "two" in streamed_text(tmp_path / "inner"))
    run.stop(now=True)
    finish(run)
    wait_until(lambda: not processes_with(str(tmp_path)))
    assert (run.status, ends_of(tmp_path)) == ("cancelled", ["cancelled"])
    assert run.receipt.ends == tuple(
        (what, True, "None of its processes is left.") for what in ("bo: acp: ada: acp", "bo: acp")
    )
    assert events(run, ev.ModelCut) and "one two" in streamed_text(tmp_path / "inner")
    assert "Incomplete turn" not in journal_text(tmp_path / "outer")
    options = RunOptions(session_root=tmp_path / "outer")
    again = finish(nb_agents.resume(run.session, spec, options=options))
    assert (again.status, again.result) == ("completed", "four")
    assert ends_of(tmp_path) == ["cancelled", "completed"]


def test_immediate_stop_waits_until_an_inner_team_has_ended_its_processes(
    tmp_path: Path,
) -> None:
    run = start(tmp_path / "outer", member_of(tmp_path, "deaf", "say one two", "hold held"))
    wait_until(lambda: list(tmp_path.rglob("held")))
    run.stop(now=True)
    finish(run)
    assert ends_of(tmp_path) == ["cancelled"]
    assert [what for what, is_gone, _ in run.receipt.ends if is_gone] == [
        "bo: acp: ada: acp",
        "bo: acp",
    ]


def test_graceful_stop_reaches_an_inner_team(tmp_path: Path) -> None:
    run = start(tmp_path / "outer", member_of(tmp_path, "hold held", "say three"))
    [held] = wait_until(lambda: list(tmp_path.rglob("held")))
    run.stop()
    wait_until(lambda: '"requested"' in journal_text(tmp_path / "inner"))
    held.unlink()
    finish(run)
    assert '"immediate"' not in journal_text(tmp_path)
    assert ends_of(tmp_path) == ["completed"]
