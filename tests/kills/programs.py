"""Programs written by users, killed and stopped at random until they finish.

``python -m tests.kills.programs [KILLS [STOPS [KIND ...]]]`` runs a number of each kind. A program
runs three agents in parallel. Each calls a model three times and a tool three times, two of them at
the same time. It measures repeated calls that had finished, in the journal; repeated requests after
a complete reply, at the server; and effects of the tools, in the file that they write to.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import nb_agents
from bench.table import print_table
from nb_agents import RunOptions
from nb_agents import events as ev
from tests.agents.programs.frameworks import FRAMEWORKS
from tests.kills.shapes import events_of, turns_in
from tests.kills.understudy import NEVER, Kill, Understudy, understudy
from tests.kit.agents import TEXT_PLACE, is_place
from tests.kit.sessions import Journal
from tests.model_server import ModelServer, Reply, Request, ToolCall

__all__ = ["KINDS", "Arena", "Ended", "arena"]

Stop = Literal["", "graceful", "now"]
WORKERS = ("ann", "bob", "cyd")
URL, EFFECTS = "TESTS_MODEL_URL", "TESTS_EFFECTS"
DONE = "ann is done. bob is done. cyd is done."

_TOLD = re.compile(r"work as (\w+)!")


# The programs -------------------------------------------------------------------------------------


async def note(word: str) -> str:
    """Append a word to a file."""
    line = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await asyncio.sleep(0.01)
    os.write(line, f"{word}\n".encode())
    os.close(line)
    return f"{word} is written"


class _Address:
    """A model server with the address from the environment."""

    url = property(lambda self: os.environ[URL])


@cache
def _agent(kind: str) -> Any:
    return FRAMEWORKS[kind](_Address(), note)


async def _run(kind: str, ctx: Any) -> str:
    asked = (f"Please work as {name}!" for name in WORKERS)
    return " ".join(await asyncio.gather(*(ctx.run(_agent(kind), text) for text in asked)))


async def with_pydantic_ai(task: str, ctx: Any) -> str:
    return await _run("pydantic-ai", ctx)


async def with_openai(task: str, ctx: Any) -> str:
    return await _run("openai", ctx)


async def by_steps(task: str, ctx: Any) -> str:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=os.environ[URL], api_key="k"))

    async def work(name: str) -> str:
        await asyncio.gather(*(ctx.step(f"note {name}", note, f"{name}-{n}") for n in "12"))
        await ctx.step(f"note {name}", note, f"{name}-3")
        return str(await ctx.model(f"Just say it, and work as {name}!", model))

    return " ".join(await asyncio.gather(*map(work, WORKERS)))


KINDS = {
    "pydantic-ai": "tests.kills.programs:with_pydantic_ai",
    "openai": "tests.kills.programs:with_openai",
    "function": "tests.kills.programs:by_steps",
}


def _says(request: Request) -> Reply:
    found = _TOLD.search(request.prompt)
    name = found[1] if found else "nobody"
    results = sum(message.get("role") == "tool" for message in request.messages)
    if results == 3 or "Just say it" in request.prompt:
        return Reply(f"{name} is done.", words_per_second=200)
    numbers = "12" if not results else "3"
    calls = (ToolCall("note", {"word": f"{name}-{n}"}, f"c{n}") for n in numbers)
    return Reply("", tuple(calls), words_per_second=400)


# In a process that may be killed ------------------------------------------------------------------


def do(root: str, url: str, stop: str, after: str) -> None:
    """Do the rest of the work, or stop it after a number of events."""
    place = Path(root)
    os.environ |= {URL: url, EFFECTS: str(place / "effects")}
    turns, options = turns_in(place), RunOptions(session_root=place)
    if turns and turns[-1].is_complete:
        return
    stopping: list[Any] = []
    _call_after(int(after), lambda: stopping[0].stop(now=stop == "now"))
    if turns:
        run = nb_agents.resume("s", options=options)
    else:
        run = nb_agents.start("t", place / "team.yaml", "s", options=options)
    stopping.append(run)
    run.wait(100, raise_on_stop=False)


def _call_after(count: int, what: Any) -> None:
    append, seen = Journal.append, 0

    def counted(self: Journal, event: Any) -> None:
        nonlocal seen
        append(self, event)
        seen += 1
        if seen == count:
            threading.Thread(target=what, daemon=True).start()

    if count:
        Journal.append = counted  # type: ignore[method-assign]


# Runs with kills ----------------------------------------------------------------------------------


@dataclass
class Ended:
    """The result of an execution.

    Attributes:
        kills, stops: The number of kills and stops.
        result: The result of the last turn.
        begun_again: Call sites that were called again although the journal had the result.
        effects: Tool effects that are duplicated, or missing although the call finished.
        again_ms: For each complete reply that was requested again, the time in milliseconds from
            its end to the kill.
        cut: Number of tool calls reported to models as interrupted.
    """

    kills: int = 0
    stops: int = 0
    result: str = ""
    begun_again: list[str] = field(default_factory=list)
    effects: dict[str, int] = field(default_factory=dict)
    again_ms: list[float] = field(default_factory=list)
    cut: int = 0

    @property
    def is_right(self) -> bool:
        """Whether no finished work was repeated and no results were mixed up."""
        return self.result == DONE and not (self.begun_again or self.effects)


class Arena:
    """A model server, and a process from which the programs' processes are forked."""

    def __init__(self, server: ModelServer, forks: Understudy, place: Path) -> None:
        self._server = server
        self._forks = forks
        self._place = place
        self._count = 0

    def play(self, kind: str, kills: int, stops: int, chance: random.Random) -> Ended:
        """Kill or stop a number of processes of a program, and let another one finish."""
        self._count += 1
        root, seen = self._place / f"play-{self._count}", len(self._server.requests)
        root.mkdir()
        team = '{"agents": [{"id": "a", "backend": {"type": "python", "object": "%s"}}]}'
        (root / "team.yaml").write_text(team % KINDS[kind])
        ways = ["kill"] * kills + ["stop"] * stops
        chance.shuffle(ways)
        ended, killed_at = Ended(), list[float]()
        for way in (*ways, ""):
            after = chance.randrange(2, 34)
            if way == "kill":
                kill = Kill(after, chance.choice((0, 0, 5, 20)))
                if not self._do(root, kill=kill):
                    ended.kills += 1
                    killed_at.append(time.monotonic())
            else:
                stop: Stop = chance.choice(("graceful", "now")) if way else ""
                before = len(turns_in(root))
                assert self._do(root, stop, after if way else 0)
                turns = turns_in(root)
                ended.stops += bool(way) and len(turns) > before and not turns[-1].is_complete
        self._server.wait_closed()
        self._judge(ended, root, self._server.requests[seen:], killed_at)
        return ended

    def _do(self, root: Path, stop: Stop = "", after: int = 0, kill: Kill = NEVER) -> bool:
        args = (root, self._server.url, stop or "none", after)
        return self._forks.play("tests.kills.programs:do", *args, kill=kill)

    def _judge(
        self, ended: Ended, root: Path, requests: list[Request], killed_at: list[float]
    ) -> None:
        events = events_of(root)
        ended.result = str(turns_in(root)[-1].view.answer)
        done: set[str] = set()
        finished: list[str] = []
        for event in events:
            match event:
                case ev.ModelStarted(place=place) if place != TEXT_PLACE and place in done:
                    ended.begun_again.append(place)
                case ev.ToolStarted(call_id=place) if place in done:
                    ended.begun_again.append(place)
                case ev.ModelFinished(place=place):
                    done.add(place)
                case ev.ToolFinished(call_id=place, outcome="ok", result=result) if is_place(place):
                    done.add(place)
                    finished += re.findall(r"(\w+-\d) is written", result)
                case ev.ToolFinished(outcome="cut", result=told) if told:
                    ended.cut += 1
        wrote = Counter((root / "effects").read_text().split())
        once = {word: wrote[word] for word in finished if wrote[word] != 1}
        # An interrupted step is repeated, and may have written before.
        ended.effects = {word: count for word, count in once.items() if not _is_step(events, word)}
        whole = [r for r in requests if r.closed_by == "server"]
        for number, request in enumerate(whole):
            if request.body in [later.body for later in whole[number + 1 :]]:
                at = request.closed_at or 0.0
                ended.again_ms += [1000 * (t - at) for t in killed_at if t > at][:1]


def _is_step(events: list[Any], word: str) -> bool:
    """Return whether a finished function step was started more often than it ended."""
    name = f"note {word.partition('-')[0]}"
    begun = Counter(e.call_id for e in events if isinstance(e, ev.ToolStarted) and e.tool == name)
    return any(count > 1 for count in begun.values())


@contextmanager
def arena(place: Path) -> Iterator[Arena]:
    modules = ("agents", "pydantic_ai.models.openai", "tests.kills.programs")
    with ModelServer(default=_says) as server, understudy(*modules) as forks:
        yield Arena(server, forks, place)


def main() -> None:
    given = sys.argv[1:]
    kills, stops = (*map(int, given[:2]), *(70, 35)[len(given[:2]) :])
    chance, rows = random.Random(0), []
    with TemporaryDirectory() as place, arena(Path(place)) as here:
        for kind in given[2:] or KINDS:
            plays = list(_plays(here, kind, kills, stops, chance))
            again = [ms for play in plays for ms in play.again_ms]
            rows.append(
                [
                    kind,
                    *map(
                        str, (len(plays), sum(p.kills for p in plays), sum(p.stops for p in plays))
                    ),
                    f"{sum(p.is_right for p in plays)}/{len(plays)}",
                    str(sum(len(p.begun_again) for p in plays)),
                    str(sum(len(p.effects) for p in plays)),
                    str(sum(p.cut for p in plays)),
                    f"{len(again)} ({max(again):.0f} ms)" if again else "0",
                ]
            )
    heads = ("program", "plays", "kills", "stops", "right", "again", "effects", "told", "unread")
    title = (
        "kill -9 and stops of users' own programs, three agents side by side\n"
        "again: finished calls begun again; effects: of finished tools, not exactly once\n"
        "told: tools that were cut, of which their model was told\n"
        "unread: replies that were sent to their end and had not been read at a kill (age at most)"
    )
    print_table(title, heads, rows)


def _plays(
    here: Arena, kind: str, kills: int, stops: int, chance: random.Random
) -> Iterator[Ended]:
    while kills > 0 or stops > 0:
        ended = here.play(kind, min(kills, chance.randrange(3)), min(stops, 1), chance)
        kills, stops = kills - ended.kills, stops - ended.stops
        if not ended.is_right:
            print(kind, ended, file=sys.stderr, flush=True)
        yield ended


if __name__ == "__main__":
    main()
