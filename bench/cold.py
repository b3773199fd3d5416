"""A whole script, from its start to the answers of three agents, in a new process each time."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from bench.server import BenchServer
from bench.table import print_table, spread, verdict
from tests.model_server import ModelServer, Reply, ToolCall
from tests.processes import ROOT

REPEATS = 5
WALL_S = 1.5
RSS_MB = 90

_USED = """
import resource, sys

def used():
    spent = resource.getrusage(resource.RUSAGE_SELF)
    # Not its ru_maxrss, which begins with what the process had that started this one.
    with open("/proc/self/status") as status:
        most_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return spent.ru_utime + spent.ru_stime, most_kb / 1024
"""
_SCRIPT = f"""{_USED}
import tempfile
import nb_agents
imported = used()
backend = {{"type": "openai", "model": "bench", "base_url": sys.argv[1], "api_key": "k"}}
team = nb_agents.TeamSpec.model_validate({{
    "agents": [{{"id": name, "backend": backend}} for name in "abc"],
    "orchestrator": {{"skip_voting": True, "skip_final_presentation": True}},
}})
with tempfile.TemporaryDirectory() as root:
    nb_agents.start("Answer.", team, options=nb_agents.RunOptions(session_root=root)).wait()
print(*imported, *used())
"""
_BARE = f"""{_USED}
import asyncio
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
imported = used()

def new_answer(content: str) -> str:
    return content

async def ask():
    model = OpenAIChatModel("bench", provider=OpenAIProvider(base_url=sys.argv[1], api_key="k"))
    agent = Agent(model, output_type=ToolOutput(new_answer, name="new_answer"))
    async with agent.run_stream("Answer.") as reply:
        return await reply.get_output()

async def main():
    return await asyncio.gather(ask(), ask(), ask())

assert asyncio.run(main()) == ["an answer"] * 3
print(*imported, *used())
"""
"""The same calls with only the SDK, which saves nothing."""


def main(server: BenchServer) -> None:
    answer = ToolCall("new_answer", {"content": "an answer"})
    with ModelServer(default=Reply(tool_calls=(answer,))) as instant:
        for script in (_SCRIPT, _BARE):  # what is compiled once is no part of it
            _run(script, instant.url)
        runs, bare = zip(
            *[(_run(_SCRIPT, instant.url), _run(_BARE, instant.url)) for _ in range(REPEATS)],
            strict=True,
        )
    wall, import_cpu, import_mb, cpu, mb = zip(*runs, strict=True)
    bare_wall, _, _, _, bare_mb = zip(*bare, strict=True)
    rows = [
        ["seconds", spread(wall), f"<= {WALL_S}", verdict(median(wall) <= WALL_S)],
        ["seconds of pydantic-ai alone", spread(bare_wall), "", ""],
        ["of them on a core", spread(cpu), "", ""],
        ["of those for `import nb_agents`", spread(import_cpu), "", ""],
        ["MB at most", spread(mb, 0), f"<= {RSS_MB}", verdict(median(mb) <= RSS_MB)],
        ["of them after `import nb_agents`", spread(import_mb, 0), "", ""],
        ["MB at most of pydantic-ai alone", spread(bare_mb, 0), "", ""],
    ]
    title = f"cold: a script with 3 agents, instant server, median of {REPEATS} (least-greatest)"
    print_table(title, ("process", "used", "aim", ""), rows)


def _run(script: str, url: str) -> list[float]:
    """Give its seconds, then seconds on a core and megabytes: after the import, and at the end."""
    began = time.perf_counter()
    command = [sys.executable, "-c", script, url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [time.perf_counter() - began, *map(float, done.stdout.split())]
