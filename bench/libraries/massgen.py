"""massgen: its command line with a team file; stopped by Ctrl+C.

It continues a session that has a turn: the first question of a session saves nothing at a stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from massgen.cli.entrypoint import cli_main
from massgen.session import SessionRegistry

from bench.libraries.player import GO_ON, NAMES, PROMPT, tell

SESSION = "s"
TOOL = '''
import asyncio
from massgen.tool._result import ExecutionResult, TextContent

async def work(command: str) -> ExecutionResult:
    """Run a command."""
    child = await asyncio.create_subprocess_exec("bash", "-c", command)
    text = f"exit code {await child.wait()}"
    return ExecutionResult(output_blocks=[TextContent(data=text)])
'''


def main(verb: str, url: str, root: str) -> None:
    """Begin or resume; the command takes the main thread, whose Ctrl+C it handles."""
    os.environ |= {"HOME": root, "OPENAI_API_KEY": "k"}
    os.chdir(root)
    Path("team.json").write_text(json.dumps(_team(url)))
    Path("tool.py").write_text(TOOL)
    if verb == "begin":
        _make_session()
        Thread(target=_stop_when_told, daemon=True).start()
        run(PROMPT)
        tell(time.monotonic())
    else:
        tell(saved())
        run(GO_ON)
        tell(saved())


def run(question: str) -> None:
    """Run the command to its end."""
    sys.argv = ["massgen", "--config", "team.json", "--session-id", SESSION, question]
    with suppress(SystemExit, KeyboardInterrupt):
        cli_main()


def saved() -> dict[str, str]:
    """Read the newest answers: from the session, and what is only in the log."""
    files = sorted(Path(".massgen").rglob("answer.txt"), key=lambda f: f.stat().st_mtime_ns)
    by_agent = {file.parents[1].name: file.read_text() for file in files}
    for file in sorted(Path(".massgen").rglob("partial_answers.json")):
        by_agent |= {name: kept["answer"] for name, kept in json.loads(file.read_text()).items()}
    return {name: by_agent.get(name, "") for name in NAMES}


def _team(url: str) -> dict[str, object]:
    tools = [{"path": "tool.py", "function": ["work"]}]
    backend = {"type": "chatcompletion", "base_url": url, "custom_tools": tools}
    return {
        "agents": [{"id": name, "backend": {**backend, "model": name}} for name in NAMES],
        "orchestrator": {"skip_voting": True, "skip_final_presentation": True},
        "ui": {"display_type": "simple", "logging_enabled": False},
    }


def _make_session() -> None:
    turn = Path(".massgen", "sessions", SESSION, "turn_1")
    turn.mkdir(parents=True)
    told = {"turn": 1, "task": "Greet.", "session_id": SESSION, "winning_agent": "b"}
    (turn / "metadata.json").write_text(json.dumps(told))
    (turn / "answer.txt").write_text("Hello.")
    SessionRegistry().register_session(SESSION, config_path="team.json")


def _stop_when_told() -> None:
    sys.stdin.readline()
    tell(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(*sys.argv[1:])
