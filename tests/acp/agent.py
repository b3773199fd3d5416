"""An agent that speaks the Agent Client Protocol and does what its arguments say, for tests.

Each argument is a step; all are done in order in each prompt. In a session of before those after
RESUMED are done, and in a prompt after the first those after AGAIN.

    say TEXT         write a text, word by word
    slow N           write N words, one each 50 ms
    think TEXT       thoughts
    plan TEXT        a plan of one step
    cost N           the session's cost so far, in dollars
    tool KIND TITLE  a tool call that succeeds
    open KIND TITLE  a tool call without an end
    run COMMAND      a shell command as a tool call; the prompt waits for it
    ask KIND TITLE   ask for permission, and write what became of it
    hold FILE        write that file, and wait until it is gone
    hang             wait for ever
    answer TEXT      call new_answer of the team's tools
    vote             vote for the first of those who can be voted for
    mcp NAME JSON    call another of the team's tools, and write what it gave
    leave            exit with code 3 at once
    deaf             don't react to a cancel from here on

What it is asked goes into ``$HOME/asked.jsonl``, one line a request. With --forgetful it offers no
session of before.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import acp
import httpx2
from acp.schema import (
    AgentCapabilities,
    CloseSessionResponse,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionResumeCapabilities,
    ToolCallUpdate,
    Usage,
)

STEPS = [each for each in sys.argv[1:] if each != "--forgetful"]
IS_FORGETFUL = "--forgetful" in sys.argv
HOME = Path(os.environ["HOME"])


class ScriptedAgent(acp.Agent):
    """Does the steps of its arguments."""

    def __init__(self) -> None:
        self.prompts = 0
        self.is_resumed = self.is_deaf = False
        self.working: asyncio.Task[None] | None = None

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, *_: Any, **__: Any) -> InitializeResponse:
        can_resume = None if IS_FORGETFUL else SessionResumeCapabilities()
        sessions = SessionCapabilities(resume=can_resume, close=SessionCloseCapabilities())
        able = AgentCapabilities(load_session=not IS_FORGETFUL, session_capabilities=sessions)
        return InitializeResponse(protocol_version=1, agent_capabilities=able)

    async def new_session(self, cwd: str, *_: Any, **given: Any) -> NewSessionResponse:
        self._open(f"s-{uuid4().hex[:8]}", given)
        return NewSessionResponse(session_id=self.session)

    async def resume_session(self, session_id: str, *_: Any, **given: Any) -> ResumeSessionResponse:
        self._open(session_id, given)
        self.is_resumed = True
        return ResumeSessionResponse()

    async def load_session(self, session_id: str, *_: Any, **given: Any) -> LoadSessionResponse:
        self._open(session_id, given)
        self.is_resumed = True
        await self._tell(acp.update_agent_message_text("replayed "))
        return LoadSessionResponse()

    def _open(self, session: str, given: dict[str, Any]) -> None:
        self.session = session
        self.servers = given.get("mcp_servers") or []
        note("session", session)

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        note("close", session_id)
        return CloseSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        note("cancel", session_id)
        if self.working and not self.is_deaf:
            self.working.cancel()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        self.prompts += 1
        note("prompt", prompt[0].text)
        self.working = asyncio.create_task(self._work(self._steps()))
        try:
            await self.working
        except asyncio.CancelledError:
            return PromptResponse(stop_reason="cancelled")
        usage = Usage(input_tokens=10, output_tokens=5, total_tokens=15)
        return PromptResponse(stop_reason="end_turn", usage=usage)

    def _steps(self) -> list[str]:
        parts: dict[str, list[str]] = {"": []}
        for step in STEPS:
            if step in ("RESUMED", "AGAIN"):
                parts[step] = []
            else:
                parts[list(parts)[-1]].append(step)
        if self.prompts > 1:
            return parts.get("AGAIN", parts[""])
        return parts.get("RESUMED", parts[""]) if self.is_resumed else parts[""]

    async def _work(self, steps: list[str]) -> None:
        for step in steps:
            name, _, rest = step.partition(" ")
            await getattr(self, f"do_{name}")(rest)

    async def _tell(self, update: Any) -> None:
        await self.client.session_update(session_id=self.session, update=update)

    async def do_say(self, text: str) -> None:
        for word in text.split(" "):
            await self._tell(acp.update_agent_message_text(f"{word} "))

    async def do_slow(self, count: str) -> None:
        for number in range(int(count)):
            await self.do_say(f"w{number}")
            await asyncio.sleep(0.05)

    async def do_think(self, text: str) -> None:
        await self._tell(acp.update_agent_thought_text(text))

    async def do_plan(self, text: str) -> None:
        await self._tell(acp.update_plan([acp.plan_entry(text)]))

    async def do_cost(self, amount: str) -> None:
        cost = {"amount": float(amount), "currency": "USD"}
        update = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": cost}
        params = {"sessionId": self.session, "update": update}
        await self.client._conn.send_notification("session/update", params)

    async def do_tool(self, what: str) -> None:
        call = await self.do_open(what)
        await self._end(call, f"did {what}")

    async def do_open(self, what: str) -> str:
        kind, _, title = what.partition(" ")
        call = uuid4().hex
        started: Any = acp.start_tool_call(
            call,
            title,
            kind=kind,
            status="pending",
            raw_input={"title": title},  # type: ignore[arg-type]
        )
        await self._tell(started)
        return call

    async def _end(self, call: str, text: str) -> None:
        content = [acp.tool_content(acp.text_block(text))]
        await self._tell(acp.update_tool_call(call, status="completed", content=content))

    async def do_run(self, command: str) -> None:
        call = await self.do_open(f"execute {command}")
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        await self._end(call, said.decode())

    async def do_ask(self, what: str) -> None:
        kind, _, title = what.partition(" ")
        call = await self.do_open(what)
        about = ToolCallUpdate(tool_call_id=call, kind=kind, title=title)  # type: ignore[arg-type]
        options = [
            PermissionOption(option_id=name, name=name, kind=option)  # type: ignore[arg-type]
            for name, option in (
                ("x1", "allow_always"),
                ("x2", "reject_once"),
                ("x3", "allow_once"),
                ("x4", "reject_always"),
            )
        ]
        answer = await self.client.request_permission(
            session_id=self.session, tool_call=about, options=options
        )
        outcome = answer.outcome
        chosen = {"x1": "always", "x2": "rejected", "x3": "allowed"}
        said = chosen[outcome.option_id] if outcome.outcome == "selected" else "cancelled"
        note("permission", said)
        await self._end(call, said)
        if said == "cancelled":
            raise asyncio.CancelledError
        await self.do_say(said)

    async def do_hold(self, name: str) -> None:
        open(name, "w").close()  # noqa: ASYNC230
        while os.path.exists(name):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)

    async def do_hang(self, _: str) -> None:
        await asyncio.Event().wait()

    async def do_deaf(self, _: str) -> None:
        self.is_deaf = True

    async def do_leave(self, _: str) -> None:
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)

    async def do_answer(self, text: str) -> None:
        await self._use("new_answer", {"content": text})

    async def do_vote(self, _: str) -> None:
        tools = await self._mcp("tools/list", {})
        vote = next((each for each in tools["tools"] if each["name"] == "vote"), None)
        if vote:
            for agent in vote["inputSchema"]["properties"]["agent_id"]["enum"]:
                said = await self._use("vote", {"agent_id": agent, "reason": "the first"})
                if not said.startswith("Error"):
                    break

    async def do_mcp(self, what: str) -> None:
        name, _, args = what.partition(" ")
        await self.do_say(await self._use(name, json.loads(args or "{}")))

    async def _use(self, name: str, args: dict[str, Any]) -> str:
        call = await self.do_open(f"other mcp__team__{name}")
        result = await self._mcp("tools/call", {"name": name, "arguments": args})
        text: str = result["content"][0]["text"]
        note("result", text)
        await self._end(call, text)
        return text

    async def _mcp(self, method: str, params: dict[str, Any]) -> Any:
        server = self.servers[0]
        headers = {each.name: each.value for each in server.headers}
        headers["Accept"] = "application/json, text/event-stream"
        about = {"protocolVersion": "2025-06-18", "capabilities": {}}
        about["clientInfo"] = {"name": "agent", "version": "1"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            answer = await http.post(server.url, json=_rpc("initialize", about))
            http.headers["mcp-protocol-version"] = "2025-06-18"
            if session := answer.headers.get("mcp-session-id"):
                http.headers["mcp-session-id"] = session
            told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await http.post(server.url, json=told)
            answer = await http.post(server.url, json=_rpc(method, params))
        lines = answer.text.splitlines()
        data = [line[5:] for line in lines if line.startswith("data:")] or [answer.text]
        return json.loads(data[-1])["result"]


def _rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def note(what: str, text: str) -> None:
    """Write down what was asked."""
    with (HOME / "asked.jsonl").open("a") as file:
        file.write(json.dumps([what, text]) + "\n")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ScriptedAgent(), use_unstable_protocol=True))
