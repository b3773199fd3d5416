"""Assertions about a completed play, in any number of turns."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from tests.kit.runs import Preview
from tests.kit.sessions import load_session, read_journal
from tests.play import ANSWERS, FILES, FINAL, PLAY, TOOLS, VOTES

__all__ = [
    "all_events",
    "assert_complete",
    "assert_truthful",
    "files_of",
    "line_of",
    "lines_said",
    "without_time",
]

_NEWS = re.compile(r"While you worked, other agents submitted.*?in your decision\.(?:\\n)*")
_TIMES = re.compile(r'"timestamp": "[^"]*"|\[Time left: [^]]*\]')


def without_time(text: str) -> str:
    """Remove times from a request."""
    return _TIMES.sub("", text)


def _without_news(request: str) -> str:
    return _NEWS.sub("", request)


def all_events(root: Path, session: str = "s") -> list[Any]:
    """The events of all turns of a session, in order."""
    turns = sorted((root / session).glob("turn_*"), key=lambda p: int(p.name[5:]))
    return [e for t in turns for e in read_journal(t / "events.jsonl").events]


def line_of(response: Mapping[str, Any]) -> str:
    """Return the line of the play that matches a response."""
    calls = [p["tool_call_id"] for p in response["parts"] if p["part_kind"] == "tool-call"]
    if calls:
        return str(calls[0]).partition(".")[0]
    text = "".join(p["content"] for p in response["parts"] if p["part_kind"] == "text")
    return next(n.name for n in PLAY if n.text == text and not n.calls)


def lines_said(events: Sequence[Any]) -> list[str]:
    """Return the lines with complete replies."""
    return [line_of(e.response) for e in events if isinstance(e, ev.ModelFinished)]


def files_of(root: Path) -> dict[str, str]:
    """Return the contents of the files below a directory."""
    found = [p for p in root.rglob("*") if p.is_file()]
    return {p.relative_to(root).as_posix(): p.read_text() for p in found}


def assert_complete(
    root: Path, heard: Mapping[str, Sequence[str]], expected: Mapping[str, Sequence[str]]
) -> None:
    """Assert that the play is complete without repetitions, and that all requests are right."""
    last, events = load_session(root / "s").turns[-1], all_events(root)
    view = last.view
    assert (view.status, view.answer, view.winner) == ("completed", FINAL, "cleo")
    assert {a.id: a.answers for a in view.agents.values()} == ANSWERS
    assert {a.id: a.vote.target for a in view.agents.values() if a.vote} == VOTES
    assert files_of(last.paths.workspaces) == FILES
    assert Counter(lines_said(events)) == Counter(line.name for line in PLAY)
    assert _tools_run(events) == TOOLS
    for name, each in heard.items():
        # Who had its tools left to run may ask before or after the news that another one makes.
        allowed = {*expected[name], *map(_without_news, expected[name])}
        assert each and set(each) <= allowed, name


def _tools_run(events: Sequence[Any]) -> list[tuple[str, str, str]]:
    """Return all finished tool calls, as in `TOOLS`."""
    asked = [e for e in events if isinstance(e, ev.ModelFinished)]
    names = {(e.agent, str(e.call)): line_of(e.response) for e in asked}
    ended = [e for e in events if isinstance(e, ev.ToolFinished) and e.outcome in ("ok", "error")]
    ids = [(e, *e.call_id.split(".")) for e in ended]
    return sorted((e.agent, f"{names[e.agent, call]}.{n}", e.tool) for e, call, n in ids)


def assert_truthful(told: Preview, old: Sequence[Any], new: Sequence[Any]) -> None:
    """Assert that a resume did what its preview said."""
    calls = {e.agent: e.call for e in old if isinstance(e, ev.ModelStarted)}
    first: dict[str, Any] = {}
    for event in new:
        if isinstance(event, ev.ModelStarted | ev.ToolStarted | ev.RoundStarted):
            first.setdefault(event.agent, event)
    asked = {a for a, e in first.items() if isinstance(e, ev.ModelStarted)}
    begun = {a for a, e in first.items() if isinstance(e, ev.RoundStarted)}
    assert set(told.asked_again) == {a for a in asked if _was_open(a, old)}
    assert set(told.begun_again) == begun & _failed(old)
    tools = [
        f"{e.agent}: {e.tool}"
        for e in new
        if isinstance(e, ev.ToolStarted) and int(e.call_id.split(".")[0]) <= calls.get(e.agent, 0)
    ]
    assert sorted(told.tools_again) == sorted(tools)
    assert told.calls == sum(isinstance(e, ev.ModelFinished) for e in old)
    if not any(isinstance(e, ev.PresentationStarted) for e in old):
        assert _failed(old) <= {*told.asked_again, *told.begun_again}


def _failed(events: Sequence[Any]) -> set[str]:
    """Return the agents that failed and have not been called again."""
    kinds = (ev.AgentFailed, ev.RoundStarted, ev.ModelStarted)
    last = {e.agent: e for e in events if isinstance(e, kinds)}
    return {agent for agent, event in last.items() if isinstance(event, ev.AgentFailed)}


def _was_open(agent: str, events: Sequence[Any]) -> bool:
    """Return whether the last request of an agent's current round is unfinished."""
    kinds = (ev.RoundStarted, ev.ModelStarted, ev.ModelFinished)
    mine = [e for e in events if isinstance(e, kinds) and e.agent == agent]
    return bool(mine) and isinstance(mine[-1], ev.ModelStarted)
