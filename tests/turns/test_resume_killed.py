"""Exact resume after kill -9 at every event: new processes, models behind HTTP that count."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nb_agents import events as ev
from tests.kills.understudy import Kill, Understudy, understudy
from tests.kit.runs import preview
from tests.kit.sessions import load_session
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.play import AGENTS, Conductor, Line
from tests.samples import IS_FULL, sample
from tests.turns.proof import (
    all_events,
    assert_complete,
    assert_truthful,
    lines_said,
    without_time,
)

KEY = "sk-nobody-may-read-this"


class Theatre(ModelServer):
    """The play, given by a server."""

    def __init__(self) -> None:
        super().__init__(default=self._reply)
        self.conductor = Conductor()
        self.strays: list[str] = []
        self._lines: dict[int, Line] = {}

    def begin(self, said: Sequence[str]) -> None:
        """Make ready for a run, when that before is dead."""
        self.wait_closed()
        self._on_loop(lambda: self.conductor.begin(said))

    async def _respond(self, request: Request, writer: Any) -> None:
        messages = request.messages
        opening = next(m["content"] for m in messages if m["role"] == "user")
        said = sum(m["role"] == "assistant" for m in messages)
        heard = without_time(json.dumps(request.body, sort_keys=True))
        try:
            said_now = await self.conductor.turn(request.model, opening, said, heard)
        except KeyError as exc:
            self.strays.append(str(exc))
            return await super()._respond(request, writer)
        self._lines[request.number] = said_now
        await super()._respond(request, writer)
        self.conductor.said(said_now.name)

    def _reply(self, request: Request) -> Reply:
        if request.number not in self._lines:
            return Reply(status=400, error="The play has no line for this.")
        mine = self._lines[request.number]
        calls = [ToolCall(t, a, f"{mine.name}.{n}") for n, (t, a) in enumerate(mine.calls)]
        return Reply(text=mine.text, tool_calls=tuple(calls))


@dataclass
class Stage:
    """A theatre, and a process that forks the runs."""

    theatre: Theatre
    forks: Understudy
    work: tuple[str, ...] = ("tests.kills.shapes:plain",)

    def play(self, root: Path, after: int = 0) -> bool:
        """Start or continue in a separate process. Return whether it survived until the end."""
        self.theatre.begin(lines_said(all_events(root)))
        function, *args = self.work
        lived = self.forks.play(function, root, *args, kill=Kill(after))
        assert not self.theatre.strays
        return lived


@contextmanager
def stage(*work: str) -> Iterator[Stage]:
    with Theatre() as theatre, understudy() as forks:
        yield Stage(theatre, forks, work or Stage.work)


def write_team(root: Path, theatre: Theatre) -> None:
    root.mkdir()
    backend = {"type": "chatcompletion", "base_url": theatre.url, "api_key": KEY}
    agents = [{"id": a, "backend": {**backend, "model": a}} for a in AGENTS]
    (root / "team.yaml").write_text(json.dumps({"agents": agents}))


def play_killed(stage: Stage, root: Path, kills: Sequence[int], reference: Conductor) -> None:
    """Kill a run after an event, and resumptions after others; resume it; compare."""
    write_team(root, stage.theatre)
    stage.theatre.conductor = mine = Conductor()
    left = [*kills, 0]
    lived = stage.play(root, left.pop(0))
    assert not lived or stage.work != Stage.work
    # A turn that is killed after its last line is complete: reading it brings its files up to date.
    while not load_session(root / "s").turns[-1].is_complete:
        old, asked = all_events(root), len(mine.asked)
        told = preview("s", session_root=root)
        lived = stage.play(root, left.pop(0) if left else 0)
        assert not set(lines_said(old)) & set(mine.asked[asked:])
        if lived:
            assert_truthful(told, old, all_events(root)[len(old) :])
    assert_complete(root, mine.heard, reference.heard)
    assert KEY not in "".join(p.read_text() for p in (root / "s").rglob("*.*") if p.is_file())


@pytest.mark.timeout(3600 if IS_FULL else 300)
def test_resume_after_a_kill_at_any_event(tmp_path: Path) -> None:
    with stage() as here:
        write_team(tmp_path / "whole", here.theatre)
        assert here.play(tmp_path / "whole")
        reference = here.theatre.conductor
        assert_complete(tmp_path / "whole", reference.heard, reference.heard)
        # Once its last line is written a turn is complete, whatever becomes of the process.
        ends = (e.seq for e in all_events(tmp_path / "whole") if isinstance(e, ev.TurnEnded))
        for number, after in enumerate(sample(range(2, next(ends)), 6)):
            again = [3 + after % 7] if number % 3 == 0 else []
            play_killed(here, tmp_path / str(after), [after, *again], reference)


@pytest.mark.parametrize("level", ["gracefully", "now"])
@pytest.mark.timeout(600)
def test_resume_after_a_stop_and_a_kill_while_presenting(tmp_path: Path, level: str) -> None:
    with stage("tests.kills.shapes:stopped_presenter", level) as here:
        write_team(tmp_path / "whole", here.theatre)
        here.work = Stage.work
        assert here.play(tmp_path / "whole")
        reference = here.theatre.conductor
        events = all_events(tmp_path / "whole")
        begun = next(e.seq for e in events if isinstance(e, ev.PresentationStarted))
        here.work = ("tests.kills.shapes:stopped_presenter", level)
        kills_of = [begun + 1], [begun + 4], [begun, 3], [begun + 2, 2, 4]
        for number, kills in enumerate(sample(kills_of, 2)):
            play_killed(here, tmp_path / str(number), kills, reference)
