"""An MCP server with tools and results chosen by a test; a script that uses no library.

    python raw_mcp_server.py FILE

`FILE` is JSON: `tools` is the list of tools to send. The result of a call is the entry of the tool
in `results`, or else the tool and arguments as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

SAID: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        info = {"name": "raw", "version": "1"}
        told = {"protocolVersion": params["protocolVersion"], "serverInfo": info}
        return {**told, "capabilities": {"tools": {}}}
    if method == "tools/list":
        return {"tools": SAID["tools"]}
    if method == "tools/call":
        if (known := SAID.get("results", {}).get(params["name"])) is not None:
            return dict(known)
        text = json.dumps([params["name"], params.get("arguments")])
        return {"content": [{"type": "text", "text": text}]}
    return None


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        result = answer(asked["method"], asked.get("params") or {})
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if result is None:
            said["error"] = {"code": -32601, "message": "Method not found"}
        else:
            said["result"] = result
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
