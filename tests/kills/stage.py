"""Kill the processes of a shape, let others resume, and compare with a run never killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from tests.kills.shapes import SHAPES, TOOLS_URL, Shape, events_of, turns_in
from tests.kills.understudy import KINDS, NEVER, Kill, Understudy, understudy
from tests.model_server import ModelServer, Reply, Request, wait_until, words_of
from tests.processes import line, python
from tests.recipes.live import commands_alive
from tests.turns.proof import files_of, without_time

__all__ = ["FOLD", "Outcome", "Played", "Stage", "at_each", "every_event", "kills_for", "stage"]

FOLD = "context_folded"
"""The kind of the event that ends a fold."""
LINES = "lines.txt"
_TOOLS = """
import os, runpy, sys
os.environ["LINES"] = sys.argv[3]
runpy.run_path("tests/tools/mcp_server.py", run_name="__main__")
"""
_MADE_UP = re.compile(r'"timestamp": "[^"]*"|"input_tokens": [0-9]+')
_PLACE = re.compile("session_[0-9]+_[0-9]+(_[0-9]+)?|(turn|task)_[0-9]+")


@dataclass(frozen=True)
class Outcome:
    """The result of a shape's work.

    Attributes:
        result: The results of completed turns, and the messages of the last one.
        files: The files in the agents' directories.
        calls: The recorded replies, with their numbers.
        tools: The finished tool calls, with their results.
        asked: The requests to models.
        served: The calls that a tool server finished.
    """

    result: Any
    files: dict[str, str]
    calls: Counter[str]
    tools: Counter[str]
    asked: frozenset[str]
    served: frozenset[str]


@dataclass(frozen=True)
class Played:
    """One execution of a shape.

    Attributes:
        kills: The kills that took place.
        differs: Differences from an execution without kills, by field of `Outcome`.
        again_ms: For each complete reply that was requested again, the time in milliseconds from
            its end to the kill.
        words_lost: Words that models sent and that are in no journal.
        error: The error of a process that was not killed.
        left: The processes that were still running in its directory at the end.
    """

    kills: tuple[Kill, ...]
    differs: dict[str, str]
    again_ms: tuple[float, ...]
    words_lost: int = 0
    error: str = ""
    left: tuple[str, ...] = ()


class _Server(ModelServer):
    """A model server that sends a shape's replies at the right time."""

    def __init__(self) -> None:
        super().__init__(strict=True)
        self.shape: Shape = SHAPES["anthropic"]
        self.root = Path()
        self._replies: dict[int, Reply] = {}

    async def _respond(self, request: Request, writer: Any) -> None:
        if (is_due := self.shape.waits(request)) is not None:
            await asyncio.to_thread(wait_until, lambda: is_due(events_of(self.root)), 20)
        await super()._respond(request, writer)

    def worded(self, request: Request) -> str:
        """Return a request to a model without paths and times."""
        body = json.dumps(request.body, sort_keys=True).replace(str(self.root), "ROOT")
        return re.sub(self.shape.besides, "", _PLACE.sub("PLACE", without_time(body)))

    def _choose(self, request: Request) -> Reply:
        # The base of ids and signatures, which are the same for the same request.
        request.number = zlib.crc32(self.worded(request).encode())
        reply = self._replies[request.number] = self.shape.reply(request)
        return reply

    def words_sent(self, request: Request) -> Counter[str]:
        """Return the words of the text and of the thoughts that were sent."""
        reply = self._replies.get(request.number, Reply())  # a client that left early got none
        thoughts = "" if request.protocol == "openai" else reply.thoughts  # the protocol has none
        chunks = [*words_of(thoughts), *words_of(reply.text)]
        return Counter(" ".join(chunks[: request.chunks_sent]).split())


class Stage:
    """A model server, and a process from which the shapes' processes are forked."""

    def __init__(self, server: _Server, forks: Understudy, place: Path) -> None:
        self._server = server
        self._forks = forks
        self._place = place
        self._wholes: dict[str, tuple[Outcome, Counter[str]]] = {}
        self._count = 0

    def whole(self, key: str) -> tuple[Outcome, int]:
        """Return the result of a shape without kills, and its number of events."""
        if key not in self._wholes:
            root = self._begin(key)
            assert self._forks.play("tests.kills.shapes:do", key, root)
            events = events_of(root)
            tools = [e for e in events if isinstance(e, ev.ToolFinished)]
            assert not (wrong := [e for e in tools if e.outcome != "ok"]), wrong
            self._wholes[key] = self._outcome(root), Counter(event.kind for event in events)
        outcome, kinds = self._wholes[key]
        return outcome, kinds.total()

    def count(self, key: str, kind: str) -> int:
        """Return the number of a shape's events of a kind, without kills."""
        self.whole(key)
        return self._wholes[key][1][kind]

    def play(self, key: str, kills: Sequence[Kill]) -> Played:
        """Kill the first processes of a shape, let the next one resume, and compare."""
        whole, _ = self.whole(key)
        root = self._begin(key)
        killed_at: list[float] = []
        try:
            for kill in (*kills, NEVER):
                if self._forks.play("tests.kills.shapes:do", key, root, kill=kill):
                    break
                killed_at.append(time.monotonic())
        except AssertionError as exc:
            return Played(tuple(kills), {}, (), error=str(exc) or "an error")
        differs = _differences(whole, self._outcome(root))
        done, again = tuple(kills[: len(killed_at)]), self._again_ms(killed_at)
        sent = sum(map(self._server.words_sent, self._requests), Counter[str]())
        lost = (sent - _words_kept(events_of(root))).total()
        return Played(done, differs, again, lost, left=tuple(commands_alive(root)))

    def _again_ms(self, killed_at: Sequence[float]) -> tuple[float, ...]:
        found = []
        worded = self._server.worded
        whole = [r for r in self._requests if r.closed_by == "server"]
        for number, request in enumerate(whole):
            if worded(request) in map(worded, whole[number + 1 :]):
                ended = request.closed_at or 0.0
                found.append(1000 * (min(t for t in killed_at if t > ended) - ended))
        return tuple(found)

    @property
    def _requests(self) -> list[Request]:
        return self._server.requests[self._seen :]

    def _begin(self, key: str) -> Path:
        self._server.wait_closed()
        self._count += 1
        root = self._place / f"{key}-{self._count}"
        self._server.shape, self._server.root = SHAPES[key], root
        self._seen = len(self._server.requests)
        (self._place / LINES).write_text("")
        SHAPES[key].prepare(root, self._server)
        return root

    def _lines(self) -> list[str]:
        """Return the lines that the tool server wrote in this execution."""
        return (self._place / LINES).read_text().splitlines()

    def _outcome(self, root: Path) -> Outcome:
        self._server.wait_closed()
        turns, events = turns_in(root), events_of(root)
        done = [turn.view for turn in turns if turn.is_complete]
        said = [e for e in events if isinstance(e, ev.ModelFinished)]
        tools = [e for e in events if isinstance(e, ev.ToolFinished)]
        ended = [e for e in tools if e.outcome in ("ok", "error")]
        return Outcome(
            result=([(v.task, v.answer, v.outputs) for v in done], turns[-1].state),
            files=files_of(turns[-1].paths.workspaces),
            calls=Counter(f"{e.agent} {_MADE_UP.sub('', json.dumps(e.response))}" for e in said),
            tools=Counter(f"{e.agent} {e.tool} {e.result}" for e in ended),
            asked=frozenset(map(self._server.worded, self._requests)),
            served=frozenset(line for line in self._lines() if line.startswith("ended")),
        )


def _words_kept(events: Sequence[Any]) -> Counter[str]:
    """Return the words of text and thoughts in the journals, by call."""
    streams: dict[tuple[str, int, str], str] = defaultdict(str)
    asked: Counter[str] = Counter()
    for event in events:
        if isinstance(event, ev.ModelStarted):
            asked[event.agent] += 1
        elif isinstance(event, ev.TextStreamed) and event.channel in ("text", "thinking"):
            streams[event.agent, asked[event.agent], event.channel] += event.text
    return Counter(word for text in streams.values() for word in text.split())


def _differences(whole: Outcome, other: Outcome) -> dict[str, str]:
    pairs = {e.name: (getattr(whole, e.name), getattr(other, e.name)) for e in fields(Outcome)}
    return {name: _first(*pair) for name, pair in pairs.items() if pair[0] != pair[1]}


def _first(whole: Any, other: Any) -> str:
    """Describe the first difference between two values."""
    if isinstance(whole, Counter | frozenset):
        whole, other = (next(iter(each), "") for each in (whole - other, other - whole))
    one, two = str(whole), str(other)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))
    begin = max(0, sum(1 for _ in same) - 60)
    return f"{two[begin : begin + 260]!r}, and was {one[begin : begin + 260]!r}"


def every_event(events: int, is_stop: bool) -> Iterator[tuple[Kill, ...]]:
    """Return kills or stops, one after each event."""
    return (tuple([Kill(after, is_stop=is_stop)]) for after in range(1, events + 1))


def at_each(kind: str, count: int, is_stop: bool) -> Iterator[tuple[Kill, ...]]:
    """Return kills or stops at each event of a kind: immediately, and up to 30 ms later."""
    for number in range(1, count + 1):
        for delay_ms in (0, 5, 30):
            yield tuple([Kill(number, delay_ms, is_stop, kind)])


def kills_for(events: int, count: int, in_a_row: int, seed: int) -> Iterator[tuple[Kill, ...]]:
    """Spread the first kills over all events; later kills follow, some between two events."""
    chance = random.Random(f"{seed} {in_a_row}")
    for number in range(count):
        first = 1 + number * (events - 1) // count
        later = [1 + chance.randrange(max(2, events // 2)) for _ in range(in_a_row - 1)]
        yield tuple(Kill(after, chance.choice((0, 0, 5, 30))) for after in (first, *later))


@contextmanager
def stage(place: Path) -> Iterator[Stage]:
    with (
        _Server() as server,
        python(_TOOLS, os.devnull, "http", place / LINES) as tools,
        understudy(kinds=KINDS) as forks,
    ):
        os.environ[TOOLS_URL] = f"http://127.0.0.1:{line(tools)}/mcp"
        yield Stage(server, forks, place)
