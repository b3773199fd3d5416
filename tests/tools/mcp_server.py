"""An MCP server that can misbehave; run as a script.

    python mcp_server.py ALIVE [HOW]

It keeps the FIFO `ALIVE` open while it runs. `HOW` is "junk" (writes other text to stdout), "mute"
(never responds), "broken" (exits immediately with a message on stderr), "stubborn" (ignores the end
of stdin and SIGTERM), "odd" (lists invalid tools), or "http" (prints its port).
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import mcp.server
from mcp.types import ImageContent, TextContent, ToolAnnotations

ALIVE = sys.argv[1]
HOW = sys.argv[2] if len(sys.argv) > 2 else ""

Server: Any = getattr(mcp.server, "MCPServer", None) or mcp.server.FastMCP  # of mcp 2 or 1
server = Server("test", log_level="ERROR")


def note(mark: str, text: str) -> None:
    Path(mark).write_text(text)


def add_line(text: str) -> None:
    with open(os.environ["LINES"], "a") as file:
        print(text, file=file)


def sleep_for_ever() -> None:
    while True:
        time.sleep(1000)


@server.tool()
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool(annotations=ToolAnnotations.model_validate({"idempotentHint": True}))
async def line(text: str) -> str:
    """Write a line to the file in the environment variable at the start and at the end."""
    add_line(f"begun {text}")
    await anyio.sleep(0.05)
    add_line(f"ended {text}")
    return f"wrote {text}"


@server.tool()
async def pid() -> str:
    return str(os.getpid())


@server.tool()
async def variable(name: str) -> str:
    return f"it is {os.environ.get(name)}"


@server.tool()
async def where() -> str:
    return os.getcwd()


@server.tool()
async def hang(mark: str) -> str:
    """Wait forever; the file shows the state."""
    note(mark, "started")
    try:
        await anyio.sleep_forever()
    finally:
        note(mark, "cancelled")
    return ""


@server.tool()
async def freeze(mark: str) -> str:
    """Stop responding, also to other calls."""
    note(mark, "started")
    sleep_for_ever()
    return ""


@server.tool()
async def meet(folder: str, name: str, other: str) -> str:
    """Return when another call has arrived."""
    await anyio.to_thread.run_sync(wait_for, Path(folder, name), Path(folder, other))
    return f"{name} met {other}"


def wait_for(own: Path, other: Path) -> None:
    own.touch()
    while not other.exists():
        time.sleep(0.005)


@server.tool()
async def append(folder: str) -> str:
    """Write a line when the test permits it."""
    await anyio.to_thread.run_sync(wait_for, Path(folder, "begun"), Path(folder, "go"))
    return await anyio.to_thread.run_sync(append_line, Path(folder, "lines"))


def append_line(path: Path) -> str:
    with path.open("a") as file:
        file.write("line\n")
    return "written"


for name, hint in (("append_safely", "idempotentHint"), ("append_unseen", "readOnlyHint")):
    server.add_tool(append, name, annotations=ToolAnnotations.model_validate({hint: True}))


@server.tool()
async def crash() -> str:
    os._exit(3)


@server.tool()
async def fail(why: str) -> str:
    raise ValueError(why)


@server.tool()
def grandchild(alive: str) -> str:
    """Start a process in another group, which tries to outlive this one."""
    code = f"exec 9>'{alive}'; echo up; exec sleep 1000"
    child = subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


@server.tool()
async def show() -> list[TextContent | ImageContent]:
    picture = ImageContent.model_validate(
        {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    )
    return [TextContent(type="text", text="look:"), picture]


@server.tool()
async def much() -> str:
    return "x" * 200_000


def odd() -> None:
    """List tools with names and texts that no provider accepts."""

    async def anything() -> str:
        return "called"

    for name in ("with.dots", "with_dots", "l" * 100):
        server.add_tool(anything, name=name, description="d" * 5000)

    async def wide(a: int) -> str:
        return str(a)

    wide.__annotations__["a"] = Literal[tuple(f"w{n}" for n in range(5000))]
    server.add_tool(wide, name="wide")


def main() -> None:
    os.open(ALIVE, os.O_WRONLY)
    if HOW == "junk":
        print("Welcome!\n{}\n[1]\n\x00\xff", flush=True)
    if HOW == "mute":
        sleep_for_ever()
    if HOW == "broken":
        sys.exit(f"no token, but {os.environ.get('A_TOKEN')}")
    if HOW == "odd":
        odd()
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if HOW == "http":
        http()
    else:
        server.run()
    if HOW == "stubborn":
        sleep_for_ever()


def http() -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", 0))))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(guarded(server.streamable_http_app()), log_level="critical")
    uvicorn.Server(config).run(sockets=[listening])


def guarded(app: Any) -> Any:
    """Refuse requests without the token."""

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization")
        if scope["type"] == "http" and given != b"Bearer s3cret-token":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return guard


if __name__ == "__main__":
    main()
