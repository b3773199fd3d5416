"""A hostile external agent for tests. Its argument selects the attack.

With "mute METHOD TEXT" it answers all but that request, after it has written the text.
It needs nothing but Python.
"""

import json
import os
import sys
import time
from typing import Any

WAY = sys.argv[1]
SESSION = "s" * 600 if WAY == "long session" else "s1"


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(session: str = SESSION, **what: Any) -> None:
    send(method="session/update", params={"sessionId": session, "update": what})


def words(text: str, session: str = SESSION) -> None:
    content = {"type": "text", "text": text}
    update(session, sessionUpdate="agent_message_chunk", content=content)


def permission(number: int, session: str = SESSION) -> None:
    options = [{"optionId": "a", "name": "a", "kind": "allow_once"}]
    call = {"toolCallId": f"c{number}", "kind": "execute", "title": "rm -rf /"}
    params = {"sessionId": session, "toolCall": call, "options": options}
    send(id=1000 + number, method="session/request_permission", params=params)


def call_with(id: str, args: str) -> None:
    """Return a finished call with this text, possibly invalid JSON, as arguments and output."""
    about = {"sessionUpdate": "tool_call", "toolCallId": id, "title": "t", "status": "completed"}
    told = json.dumps({**about, "rawInput": "ARGS", "rawOutput": "ARGS", "_meta": "ARGS"})
    params = f'{{"sessionId": "{SESSION}", "update": {told}}}'.replace('"ARGS"', args)
    line = f'{{"jsonrpc": "2.0", "method": "session/update", "params": {params}}}'
    print(line, flush=True)


def play(id: int) -> None:
    """Handle a prompt."""
    match WAY:
        case "endless line":
            while True:
                sys.stdout.write("x" * 1_000_000)
        case "endless words":
            while True:
                words("word " * 1000)
        case "flood":
            for number in range(20_000):
                words(f"{number} ")
            send(id=id, result={"stopReason": "end_turn"})
        case "calls":
            for number in range(3_000):
                update(sessionUpdate="tool_call", toolCallId=f"c{number}", title="t", kind="read")
            words("done")
            send(id=id, result={"stopReason": "end_turn"})
        case "dies":
            words("one two ")
            print("Segmentation fault", file=sys.stderr, flush=True)
            os._exit(139)
        case "closes":
            words("one ")
            os.close(1)
            while True:
                time.sleep(60)
        case "deaf":
            words("one ")
            while True:
                time.sleep(60)
        case "forged":
            words("stolen ", session="another")
            permission(1, session="another")
            words("mine")
            send(id=id, result={"stopReason": "end_turn"})
        case "permissions":
            for number in range(500):
                permission(number)
            while True:
                time.sleep(60)
        case "garbage":
            for junk in ("nonsense", "[]", "null", "1e999", '{"id": []}', "[" * 100_000):
                print(junk, flush=True)
            send(id=[], result={})
            send(id=id + 100, result={})
            send(id="x", error="no")
            send(method="session/update", params=[])
            send(method="session/update", params={"sessionId": SESSION, "update": 7})
            send(method="qwen/notify", params={})
            send(id=7, method="fs/read_text_file", params={"path": "/etc/passwd"})
            send(id=8, method="session/request_permission", params={"options": 7})
            update(sessionUpdate="usage_update", cost={"amount": 1e400, "currency": "USD"})
            update(sessionUpdate="tool_call", toolCallId=7, title=[], rawInput="x" * 10**6)
            update(sessionUpdate="agent_message_chunk", content="text")
            words("mine")
            send(id=id, result={"stopReason": "end_turn", "usage": {"inputTokens": -1}})
        case "deep":
            for depth in (50, 120, 250, 400, 600, 800, 900):
                call_with(f"list {depth}", "[" * depth + "1" + "]" * depth)
                call_with(f"map {depth}", '{"a":' * depth + "1" + "}" * depth)
            words("mine")
            send(id=id, result={"stopReason": "end_turn"})
        case "numbers":
            for number in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 4_000):
                call_with(number[:20], f'{{"x": [{number}]}}')
            words("mine")
            print(
                f'{{"jsonrpc": "2.0", "id": {id}, "result": {{"stopReason": "end_turn", '
                '"usage": {"inputTokens": NaN, "outputTokens": Infinity}}}',
                flush=True,
            )
        case "no reason":
            send(id=id, result={"stopReason": ["x"]})
        case "error":
            send(
                id=id, error={"code": -32603, "message": "Internal\x1b[31m error", "data": {"x": 1}}
            )
        case "writes outside":
            said = []
            for path in (os.path.join(sys.argv[2], "outside"), "inside"):
                try:
                    with open(path, "w") as file:
                        file.write("x")
                    said.append("wrote")
                except OSError:
                    said.append("refused")
            words(" ".join(said))
            send(id=id, result={"stopReason": "end_turn"})
        case _:
            words("done")
            send(id=id, result={"stopReason": "end_turn"})


if WAY == "greets":
    print("\x1b[31mWelcome!", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if WAY == "mute" and message.get("method") == sys.argv[2]:
        print(sys.argv[3], file=sys.stderr, flush=True)
        sys.stdout.write("Say yes: ")
        sys.stdout.flush()
        continue
    match message.get("method"):
        case "initialize" if WAY == "mute":
            able = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
            send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": able})
        case "session/resume":
            send(id=message["id"], error={"code": -32603, "message": "Not found"})
        case "initialize" if WAY == "old":
            send(id=message["id"], result={"protocolVersion": 0})
        case "initialize" if WAY == "malformed":
            send(id=message["id"], result={"protocolVersion": "one", "agentCapabilities": 7})
        case "initialize":
            send(id=message["id"], result={"protocolVersion": 1})
        case "session/new" if WAY == "login":
            send(id=message["id"], error={"code": -32000, "message": "Authentication required"})
        case "session/new":
            print("x" * 300_000, file=sys.stderr, flush=True)
            send(id=message["id"], result={"sessionId": SESSION})
        case "session/prompt":
            play(message["id"])
