"""A chain of teams: a client, a team, a team that is its member, and a second team by MCP.

    client ── nb-agents acp ── nb-agents acp ── nb-agents mcp ── model server
              outer            inner, `bo`      second, which streams

Tests stop it, and `python -m tests.acp chain` measures that.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import anyio
from anyio import to_thread

from nb_agents import events as ev
from tests import processes
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until

Stop = Literal["graceful", "at once", "client killed", "team killed"]
WORDS = " ".join(f"w{number}" for number in range(20))
ENDS = ["bo: acp: MCP server second", "bo: acp"]
"""What the outer team's receipt names, and confirms, after a stop."""


def play(request: Request) -> Reply:
    """Play the model of the inner team's agent and of the second team's agents."""
    if request.model == "inner":
        results = [str(each["content"]) for each in request.messages if each["role"] == "tool"]
        if not results:
            return Reply(tool_calls=(ToolCall("mcp__second__run_team", {"task": "Say it."}),))
        if "may have happened" in results[-1] or "Incomplete turn" in results[-1]:
            return Reply(tool_calls=(ToolCall("mcp__second__resume"),))
        return Reply("All done.")
    if "<FINAL PRESENTATION>" in request.prompt:
        return Reply("The second team's answer.")
    if found := re.search(r'<ANSWER from="(agent\d)">', request.prompt):
        args = {"agent_id": found[1], "reason": "It is the first."}
        return Reply(tool_calls=(ToolCall("vote", args),))
    call = ToolCall("new_answer", {"content": f"By {request.model}"})
    return Reply(WORDS, tool_calls=(call,), words_per_second=20)


class Chain:
    """The files and observable state of a chain.

    Args:
        root: An empty directory; what each team does is below it, by its name.
        server: Its models.
    """

    def __init__(self, root: Path, server: ModelServer) -> None:
        self.root, self.server = root, server
        line = [sys.executable, "-m", "nb_agents.cli"]
        env = {"PYTHONPATH": str(processes.ROOT)}
        tools = {
            "name": "second",
            "command": line[0],
            "args": self._given("second", "mcp"),
            "env": env,
        }
        agents = [{"id": id, "backend": server.backend("vllm", model=id)} for id in ("s1", "s2")]
        self._write("second", agents)
        backend = server.backend("vllm", model="inner", mcp_servers=[tools])
        self._write("inner", [{"id": "mid", "backend": backend}])
        command = [line[0], *self._given("inner", "acp")]
        member = {"type": "acp", "command": command, "env": env, "sandbox": False}
        self._write("outer", [{"id": "bo", "backend": member}])
        self.command = [line[0], *self._given("outer", "acp")]
        self.env = {**os.environ, "XDG_STATE_HOME": str(root / "state")}

    def _given(self, name: str, verb: str) -> list[str]:
        places = [
            "--config",
            str(self.root / f"{name}.json"),
            "--session-root",
            str(self.root / name),
        ]
        return ["-m", "nb_agents.cli", verb, *places]

    def _write(self, name: str, agents: list[Any]) -> None:
        (self.root / f"{name}.json").write_text(json.dumps({"agents": agents}))

    def events(self, team: str, kind: type[Any]) -> list[Any]:
        """The events of a kind in the journals of a team, in order."""
        paths = sorted((self.root / team).glob("session_*/*/events.jsonl"))
        return [
            each for path in paths for each in read_journal(path).events if isinstance(each, kind)
        ]

    def ends(self) -> list[str]:
        """Return how the turns of each team ended, team by team."""
        teams = ("outer", "inner", "second")
        found = {team: self.events(team, ev.TurnEnded) for team in teams}
        return [f"{team} {found[team][-1].status if found[team] else 'killed'}" for team in teams]

    def receipt(self) -> list[Any]:
        """Return the ends in the receipt of the outer team's last turn."""
        path = sorted((self.root / "outer").glob("session_*/turn_*/metadata.json"))[-1]
        ends: list[Any] = json.loads(path.read_text())["receipt"]["ends"]
        return ends

    def processes(self, without: Iterable[int] = ()) -> set[int]:
        """Return the processes of the chain."""
        mark, found = str(self.root).encode(), set[int]()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                told = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
                if mark in told:
                    found.add(int(place.name))
        return found - {os.getpid(), *without}

    def wait_streaming(self) -> None:
        """Wait until both agents of the second team stream."""
        models = ("s1", "s2")
        self.server.wait_until(
            lambda: all(
                any(each.model == model and each.chunks_sent > 2 for each in self.server.requests)
                for model in models
            )
        )


class Client:
    """Stores the text that it receives."""

    def __init__(self) -> None:
        self.said = ""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        if update.session_update == "agent_message_chunk":
            self.said += update.content.text


class Asked:
    """A client that has a session with the outer team.

    Attributes:
        pid: The outer team's process.
        client: The received updates.
    """

    def __init__(self, connection: Any, session: str, pid: int, client: Client) -> None:
        self._connection, self._session = connection, session
        self.pid, self.client = pid, client

    async def prompt(self, text: str) -> Any:
        """Send a prompt and wait for its end."""
        import acp

        blocks = [acp.text_block(text)]
        return await self._connection.prompt(session_id=self._session, prompt=blocks)

    async def cancel(self) -> None:
        """Send a cancel."""
        await self._connection.cancel(session_id=self._session)


@asynccontextmanager
async def asked(chain: Chain) -> AsyncIterator[Asked]:
    """Start the outer team as a client does, and open a session."""
    import acp

    client: Any = Client()
    given: dict[str, Any] = {"env": chain.env, "use_unstable_protocol": True}
    async with acp.spawn_agent_process(client, *chain.command, **given) as (connection, process):
        await connection.initialize(protocol_version=1)
        session = (await connection.new_session(cwd=str(chain.root))).session_id
        yield Asked(connection, session, process.pid, client)


class Seen:
    """What a stop has shown; times are seconds from the stop.

    Attributes:
        closed_s: Until the last stream of the model ended.
        ended_s: Until the last process below the outer team ended.
        answered_s: Until the client was answered.
        ends: How the turns of the three teams ended.
        receipt: The ends that the outer team's receipt names.
    """

    closed_s = ended_s = answered_s = 0.0
    ends: list[str]
    receipt: list[Any]


async def stopped(chain: Chain, client: Asked, how: Stop) -> Seen:
    """Prompt the outer team, stop it while the second team streams, and wait for all ends."""
    seen = Seen()
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            answer = await client.prompt("Ask the second team.")
            assert answer.stop_reason == "cancelled"
            seen.answered_s = time.monotonic() - began

        group.start_soon(ask)
        await to_thread.run_sync(chain.wait_streaming)
        began = time.monotonic()
        for _ in range(2 if how == "at once" else 1):
            await client.cancel()
        kept = {client.pid, *processes.fork_servers(client.pid)}
        await to_thread.run_sync(wait_until, lambda: not chain.processes(kept))
        seen.ended_s = time.monotonic() - began
    seen.closed_s = max(each.closed_at or 0.0 for each in chain.server.requests) - began
    seen.ends, seen.receipt = chain.ends(), chain.receipt()
    return seen


async def resumed(chain: Chain, client: Asked) -> str:
    """Resume the outer team's turn. Returns its result, and how often a call was repeated."""
    answer = await client.prompt("resume")
    paid = [f"{each.model} {each.messages}" for each in chain.server.requests]
    whole = answer.stop_reason == "end_turn" and client.client.said.endswith("All done.")
    return (
        f"resume {'completed' if whole else 'failed'}, {len(paid) - len(set(paid))} calls repeated"
    )


_CLIENT = """
import acp, asyncio, os, sys
from contextlib import suppress
from tests.acp.chain import Client

async def main():
    root, *command = sys.argv[1:]
    given = {"env": {**os.environ, "XDG_STATE_HOME": f"{root}/state"}}
    async with acp.spawn_agent_process(Client(), *command, **given) as (connection, process):
        await connection.initialize(protocol_version=1)
        session = (await connection.new_session(cwd=root)).session_id
        print(process.pid, flush=True)
        with suppress(ConnectionError):  # the team is killed
            await connection.prompt(session_id=session, prompt=[acp.text_block("Ask it.")])

asyncio.run(main())
"""


def killed(chain: Chain, how: Stop) -> Seen:
    """Kill the client or the outer team while the second team streams, and wait for all ends."""
    seen = Seen()
    with processes.python(_CLIENT, chain.root, *chain.command) as client:
        outer = int(processes.line(client))
        chain.wait_streaming()
        began = time.monotonic()
        os.kill(client.pid if how == "client killed" else outer, 9)
        wait_until(lambda: not chain.processes({client.pid}))
        seen.ended_s = time.monotonic() - began
        chain.server.wait_closed()
    seen.closed_s = max(each.closed_at or 0.0 for each in chain.server.requests) - began
    seen.ends = chain.ends()
    return seen


def measure(counts: dict[Stop, int]) -> int:
    """Stop and kill chains, and print a table. Return the exit status."""
    print(
        "| stop | times | model's streams closed, s | all ended, s | client answered, s | turns |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    bad = 0
    for how, count in counts.items():
        found = [_measured(how) for _ in range(count)]
        told = {"; ".join(each.ends) for each in found}
        times = (
            _spread([getattr(each, name) for each in found])
            for name in ("closed_s", "ended_s", "answered_s")
        )
        print(f"| {how} | {count} | {' | '.join(times)} | {' / '.join(sorted(told))} |", flush=True)
        for each in found:
            if "killed" not in how and each.receipt != [
                [e, True, each.receipt[0][2]] for e in ENDS
            ]:
                print(each.receipt)
                bad += 1
    return int(bool(bad))


def _measured(how: Stop) -> Seen:
    with TemporaryDirectory() as folder, ModelServer(default=play) as server:
        root = Path(folder).resolve()
        chain = Chain(root, server)
        if "killed" in how:
            return killed(chain, how)

        async def main() -> Seen:
            async with asked(chain) as client:
                seen = await stopped(chain, client, how)
                if how == "graceful":
                    seen.ends.append(await resumed(chain, client))
                return seen

        return anyio.run(main)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} (at most {max(values):.2f})" if any(values) else ""


COUNTS: dict[Stop, int] = {"at once": 20, "graceful": 10, "client killed": 5, "team killed": 5}
"""How often each is measured."""
