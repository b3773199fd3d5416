"""A play of three agents with a fixed order of replies, despite stops and repeated requests.

What a model says is told by the conversation that it is sent, not by how often it was asked, so a
call that is sent again gets the same reply. The conductor lets one reply go at a time, in the order
of the play, once everybody who has something to say next is waiting to say it: all runs of the
play go the same way, and of one that is stopped at any point and resumed, too. That needs a play
in which the line before an answer is its agent's own: a graceful stop lets all replies go that are
open, and nobody may begin a round meanwhile, which would see another answer then.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["AGENTS", "ANSWERS", "FILES", "FINAL", "PLAY", "TOOLS", "VOTES", "Conductor", "Line"]

AGENTS = ("ada", "ben", "cleo")
"""Under which the others know them: agent1, agent2, agent3."""

Kind = Literal["work", "answer", "stale", "vote", "end"]


@dataclass(frozen=True)
class Line:
    """What a model says once.

    Attributes:
        name: The name of the line: its agent's first letter and a number.
        kind: Its effect.
        text: The text.
        calls: Its tool calls: (tool, arguments).
    """

    name: str
    kind: Kind
    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def agent(self) -> str:
        """Whose model says it."""
        return next(a for a in AGENTS if a[0] == self.name[0])


def _line(name: str, kind: Kind, *calls: tuple[str, dict[str, Any]], text: str = "") -> Line:
    return Line(name, kind, text, calls)


def _answer(name: str, text: str) -> Line:
    return _line(name, "answer", ("new_answer", {"content": text}))


def _vote(name: str, kind: Kind, target: str) -> Line:
    return _line(name, kind, ("vote", {"agent_id": target, "reason": f"Says {name}."}))


def _file(verb: str, path: str, **more: str) -> tuple[str, dict[str, Any]]:
    return (f"{verb}_file", {"path": path, **more})


FINAL = "This is the final answer."
PLAY = (
    _line("c1", "work", _file("write", "plan.md", content="one two three")),
    _line("a1", "work", text="Let me think first."),
    _line(
        "b1",
        "work",
        _file("write", "notes/b.md", content="black white"),
        _file("write", "junk.md", content="junk"),
        _file("edit", "notes/b.md", old="white", new="black and white"),
        text="To work.",
    ),
    _line("a2", "work", _file("write", "data.csv", content="x,y\n1,2\n")),
    _line("b2", "work", _file("delete", "junk.md")),
    _line("c2", "work", _file("read", "plan.md")),
    _answer("c3", "answer-c1 by cleo"),
    _line("b3", "work", _file("edit", "notes/b.md", old="nowhere", new="x"), text="Better so."),
    _line("c4", "work", ("list_files", {"path": "."})),
    _line("a3", "work", _file("edit", "data.csv", old="1,2", new="11,22")),
    _answer("a4", "answer-a1 by ada"),
    _vote("c5", "stale", "agent3"),
    _line("a5", "work", _file("read", "peers/agent3/plan.md")),
    _line("c6", "work", _file("read", "peers/agent1/data.csv")),
    _line("b4", "work", _file("read", "notes/b.md")),
    _answer("b5", "answer-b1 by ben"),
    _vote("a6", "stale", "agent3"),
    _line("c7", "work", _file("edit", "plan.md", old="two", new="2")),
    _answer("c8", "answer-c2 by cleo, a second one"),
    _vote("b6", "stale", "agent3"),
    _vote("a7", "stale", "agent2"),
    _vote("b7", "vote", "agent3"),
    _line("c9", "work", ("list_files", {"path": "peers/agent2"})),
    _vote("a8", "vote", "agent2"),
    _vote("c10", "vote", "agent3"),
    _line("c11", "work", _file("write", "final.md", content="the end"), text="One more file."),
    _line("c12", "end", text=FINAL),
)
ANSWERS = {
    "ada": ("answer-a1 by ada",),
    "ben": ("answer-b1 by ben",),
    "cleo": ("answer-c1 by cleo", "answer-c2 by cleo, a second one"),
}
VOTES = {"ada": "ben", "ben": "cleo", "cleo": "cleo"}
FILES = {
    "ada/data.csv": "x,y\n11,22\n",
    "ben/notes/b.md": "black black and white",
    "cleo/plan.md": "one 2 three",
    "cleo/final.md": "the end",
}
TOOLS = sorted(
    (line.agent, f"{line.name}.{number}", tool)
    for line in PLAY
    for number, (tool, _) in enumerate(line.calls)
    if tool not in ("new_answer", "vote")
)
"""Every tool call of the play: (agent, the call's id, tool)."""


class _Cue(NamedTuple):
    """What a model has before it: the answers that its round shows, and how much it said."""

    agent: str
    shown: frozenset[str]
    said: int
    is_presenting: bool


class _Rehearsal:
    """Plays once to find the cue of each line and the agents that wait at the same time."""

    def __init__(self) -> None:
        self.lines: dict[_Cue, Line] = {}
        self.beside: dict[str, frozenset[str]] = {}
        self._answers: dict[str, str] = {}
        self._shown = {a: frozenset[str]() for a in AGENTS}
        self._said = dict.fromkeys(AGENTS, 0)
        self._resting: set[str] = set()
        self._is_presenting = False
        for number, line in enumerate(PLAY):
            self._play(line, PLAY[number:])

    def _play(self, line: Line, rest: tuple[Line, ...]) -> None:
        agent = line.agent
        if len(self._resting) == len(AGENTS) and not self._is_presenting:
            self._is_presenting = True
            self._open(agent)
        cue = _Cue(agent, self._shown[agent], self._said[agent], self._is_presenting)
        assert cue not in self.lines, line
        self.lines[cue] = line
        coming = {n.agent: n.name for n in reversed(rest) if n.agent not in self._resting}
        self.beside[line.name] = frozenset(coming.values())
        self._said[agent] += 1
        if line.kind == "answer":
            self._answers[agent] = _tokens(line.calls[0][1]["content"])[0]
            for each in {agent, *self._resting}:
                self._open(each)
            self._resting.clear()
        elif line.kind == "stale":
            self._open(agent)
        elif line.kind == "vote":
            self._resting.add(agent)

    def _open(self, agent: str) -> None:
        self._shown[agent] = frozenset(self._answers.values())
        self._said[agent] = 0


def _tokens(text: str) -> list[str]:
    return re.findall(r"answer-[abc]\d", text)


_REHEARSED = _Rehearsal()


class Conductor:
    """Sends the lines one after the other. Its methods run in the models' thread.

    Attributes:
        asked: The requested lines, in order. Repeated requests are listed again.
        heard: For each line, the requests sent to the model.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heard: dict[str, list[str]] = {}
        self._said: set[str] = set()
        self._waiting: dict[str, asyncio.Event] = {}
        self._is_free = False

    def begin(self, said: Iterable[str] = ()) -> None:
        """Begin a run; the lines that were said by then are not waited for."""
        self._said = set(said)
        self._waiting = {}
        self._is_free = False

    async def turn(self, agent: str, opening: str, said: int, heard: str) -> Line:
        """Wait until a line may be sent.

        Args:
            agent: The agent whose model was called.
            opening: The message that opened the round.
            said: Number of the agent's own messages so far.
            heard: The whole request, for `heard`.

        Raises:
            KeyError: The play has no line for this request, because the run differed.
        """
        cue = _Cue(agent, frozenset(_tokens(opening)), said, "<FINAL PRESENTATION>" in opening)
        line = _REHEARSED.lines[cue]
        self.asked.append(line.name)
        self.heard.setdefault(line.name, []).append(heard)
        self._said.discard(line.name)
        moment = self._waiting[line.name] = asyncio.Event()
        self._go_on()
        await moment.wait()
        return line

    def said(self, name: str) -> None:
        """Record that a line has been sent."""
        self._waiting.pop(name, None)
        self._said.add(name)
        self._go_on()

    def free(self) -> None:
        """Let all lines go that wait, in order: after a graceful stop nobody else comes."""
        self._is_free = True
        self._go_on()

    def _go_on(self) -> None:
        there = self._said | self._waiting.keys()
        for line in PLAY:
            if line.name in self._said:
                continue
            moment = self._waiting.get(line.name)
            if moment and (self._is_free or there >= _REHEARSED.beside[line.name]):
                moment.set()
            if moment or not self._is_free:
                return
