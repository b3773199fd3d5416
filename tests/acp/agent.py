"""An external agent for tests, which carries out the steps in its arguments.

It carries out all steps in order in each prompt. In a resumed session it carries out those after
RESUMED, and in later prompts those after AGAIN.

    say TEXT         write a text, word by word
    slow N           write N words, one each 50 ms
    think TEXT       thoughts
    plan TEXT        a plan of one step
    cost N           the session's cost so far, in dollars
    tool KIND TITLE  a tool call that succeeds
    open KIND TITLE  a tool call without an end
    run COMMAND      a shell command as a tool call; the prompt waits for it
    ask KIND TITLE   ask for permission, and write the outcome
    asks DATA        the same for a call (JSON, zlib, base64), after its announcement if it has one
    hold FILE        write that file, and wait until it is removed
    hang             wait forever
    answer TEXT      call new_answer of the team's tools
    vote             vote for the first possible target
    mcp NAME JSON    call another of the team's tools, and write the result
    leave            exit with code 3 immediately
    quota N JSON     end this prompt with an error; only the first N times, counted over processes
    deaf             ignore cancels from now on

It writes its requests to ``$HOME/asked.jsonl``, one per line. With --forgetful it can't resume
sessions. It only needs Python, because the protocol's library takes a second to load, and tests
start many of these agents.
"""

import asyncio
import base64
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any
from uuid import uuid4

STEPS = [each for each in sys.argv[1:] if each != "--forgetful"]
IS_FORGETFUL = "--forgetful" in sys.argv
HOME = Path(os.environ["HOME"])


class RefusedError(Exception):
    """Ends a prompt with an error, the only argument."""


class ScriptedAgent:
    """Carries out the steps in its arguments."""

    def __init__(self) -> None:
        self.prompts = 0
        self.is_resumed = self.is_deaf = False
        self.working: asyncio.Task[None] | None = None
        self.answers: dict[int, asyncio.Future[Any]] = {}

    async def initialize(self, _: Any) -> dict[str, Any]:
        sessions = {"close": {}} if IS_FORGETFUL else {"close": {}, "resume": {}}
        able = {"loadSession": not IS_FORGETFUL, "sessionCapabilities": sessions}
        return {"protocolVersion": 1, "agentCapabilities": able}

    async def session_new(self, given: dict[str, Any]) -> dict[str, Any]:
        self._open(f"s-{uuid4().hex[:8]}", given)
        return {"sessionId": self.session}

    async def session_resume(self, given: dict[str, Any]) -> dict[str, Any]:
        self._open(given["sessionId"], given)
        self.is_resumed = True
        return {}

    async def session_load(self, given: dict[str, Any]) -> dict[str, Any]:
        self._open(given["sessionId"], given)
        self.is_resumed = True
        self._tell(sessionUpdate="agent_message_chunk", content=_text("replayed "))
        return {}

    def _open(self, session: str, given: dict[str, Any]) -> None:
        self.session = session
        self.servers = given["mcpServers"]
        note("session", session)

    async def session_close(self, given: dict[str, Any]) -> dict[str, Any]:
        note("close", given["sessionId"])
        return {}

    async def session_cancel(self, given: dict[str, Any]) -> None:
        note("cancel", given["sessionId"])
        if self.working and not self.is_deaf:
            self.working.cancel()

    async def session_prompt(self, given: dict[str, Any]) -> dict[str, Any]:
        self.prompts += 1
        note("prompt", given["prompt"][0]["text"])
        self.working = asyncio.create_task(self._work(self._steps()))
        try:
            await self.working
        except asyncio.CancelledError:
            return {"stopReason": "cancelled"}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        return {"stopReason": "end_turn", "usage": usage}

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

    def _tell(self, **update: Any) -> None:
        params = {"sessionId": self.session, "update": update}
        send(method="session/update", params=params)

    async def do_say(self, text: str) -> None:
        for word in text.split(" "):
            self._tell(sessionUpdate="agent_message_chunk", content=_text(f"{word} "))

    async def do_slow(self, count: str) -> None:
        for number in range(int(count)):
            await self.do_say(f"w{number}")
            await asyncio.sleep(0.05)

    async def do_think(self, text: str) -> None:
        self._tell(sessionUpdate="agent_thought_chunk", content=_text(text))

    async def do_plan(self, text: str) -> None:
        entry = {"content": text, "priority": "medium", "status": "pending"}
        self._tell(sessionUpdate="plan", entries=[entry])

    async def do_cost(self, amount: str) -> None:
        cost = {"amount": float(amount), "currency": "USD"}
        self._tell(sessionUpdate="usage_update", used=1, size=2, cost=cost)

    async def do_tool(self, what: str) -> None:
        call = await self.do_open(what)
        self._end(call, f"did {what}")

    async def do_open(self, what: str) -> str:
        kind, _, title = what.partition(" ")
        call = uuid4().hex
        about = {"title": title, "kind": kind, "status": "pending", "rawInput": {"title": title}}
        self._tell(sessionUpdate="tool_call", toolCallId=call, **about)
        return call

    def _end(self, call: str, text: str) -> None:
        content = [{"type": "content", "content": _text(text)}]
        update = "tool_call_update"
        self._tell(sessionUpdate=update, toolCallId=call, status="completed", content=content)

    async def do_run(self, command: str) -> None:
        call = await self.do_open(f"execute {command}")
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        self._end(call, said.decode())

    async def do_ask(self, what: str) -> None:
        kind, _, title = what.partition(" ")
        call = await self.do_open(what)
        await self._ask_for({"toolCallId": call, "kind": kind, "title": title})

    async def do_asks(self, data: str) -> None:
        asked = json.loads(zlib.decompress(base64.b64decode(data)))
        call = {"toolCallId": uuid4().hex}
        if announced := asked.pop("announced", None):
            self._tell(sessionUpdate="tool_call", **call, **announced)
        await self._ask_for({**call, **asked})

    async def _ask_for(self, asked: dict[str, Any]) -> None:
        ways = {"x1": "allow_always", "x2": "reject_once", "x3": "allow_once"}
        ways["x4"] = "reject_always"
        answer = await self._ask(
            sessionId=self.session,
            toolCall=asked,
            options=[{"optionId": id, "name": id, "kind": way} for id, way in ways.items()],
        )
        outcome = answer["outcome"]
        chosen = {"x1": "always", "x2": "rejected", "x3": "allowed"}
        is_chosen = outcome["outcome"] == "selected"
        said = chosen[outcome["optionId"]] if is_chosen else "cancelled"
        note("permission", said)
        self._end(asked["toolCallId"], said)
        if said == "cancelled":
            raise asyncio.CancelledError
        await self.do_say(said)

    async def _ask(self, **params: Any) -> Any:
        """Ask for permission, and wait for the answer."""
        number = len(self.answers)
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        send(id=number, method="session/request_permission", params=params)
        return await answer

    async def do_hold(self, name: str) -> None:
        open(name, "w").close()  # noqa: ASYNC230
        while os.path.exists(name):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)

    async def do_hang(self, _: str) -> None:
        await asyncio.Event().wait()

    async def do_deaf(self, _: str) -> None:
        self.is_deaf = True

    async def do_quota(self, what: str) -> None:
        times, _, error = what.partition(" ")
        file = HOME / "refused"
        count = len(file.read_text()) if file.exists() else 0
        if count < int(times):
            file.write_text("x" * (count + 1))
            raise RefusedError(json.loads(error))

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
        for image in result["content"][1:]:
            note("image", image)
        self._end(call, text)
        return text

    async def _mcp(self, method: str, params: dict[str, Any]) -> Any:
        return await asyncio.to_thread(_ask_tools, self.servers[0], method, params)


def _ask_tools(server: dict[str, Any], method: str, params: dict[str, Any]) -> Any:
    """Open a session with an MCP server, and ask it."""
    from urllib.request import Request, urlopen

    headers = {each["name"]: each["value"] for each in server["headers"]}
    headers |= {"Accept": "application/json, text/event-stream"}
    headers |= {"Content-Type": "application/json"}

    def post(message: dict[str, Any]) -> tuple[str, str | None]:
        request = Request(server["url"], json.dumps(message).encode(), headers)
        with urlopen(request, timeout=60) as answer:
            return answer.read().decode(), answer.headers["mcp-session-id"]

    about = {"protocolVersion": "2025-06-18", "capabilities": {}}
    about["clientInfo"] = {"name": "agent", "version": "1"}
    _, session = post(_rpc("initialize", about))
    headers["mcp-protocol-version"] = "2025-06-18"
    if session:
        headers["mcp-session-id"] = session
    post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    text, _ = post(_rpc(method, params))
    data = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
    return json.loads(data[-1])["result"]


def _rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def note(what: str, text: str) -> None:
    """Write a received request to a file."""
    with (HOME / "asked.jsonl").open("a") as file:
        file.write(json.dumps([what, text]) + "\n")


def send(**message: Any) -> None:
    """Send a message to the client."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


async def reply(agent: ScriptedAgent, message: dict[str, Any]) -> None:
    """Handle a message, and send the result if it is a request."""
    told: dict[str, Any]
    try:
        does = getattr(agent, message["method"].replace("/", "_"))
        told = {"result": await does(message["params"])}
    except RefusedError as error:
        told = {"error": error.args[0]}
    except Exception as error:
        told = {"error": {"code": -32603, "message": repr(error)}}
    if "id" in message:
        send(id=message["id"], **told)


async def main() -> None:
    """Handle messages until the input ends."""
    agent, tasks = ScriptedAgent(), set[asyncio.Task[None]]()
    reader = asyncio.StreamReader(limit=2**26)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        message = json.loads(line)
        if "method" in message:
            tasks.add(asyncio.create_task(reply(agent, message)))
        elif not (answer := agent.answers[message["id"]]).done():  # else its prompt was cancelled
            answer.set_result(message["result"])


if __name__ == "__main__":
    asyncio.run(main())
