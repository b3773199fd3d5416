"""Exact resume after a stop at every event: the same result, and nothing is repeated."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import scripted_team
from tests.kit.agents import dump_messages
from tests.kit.models import PydanticBackend
from tests.kit.runs import CancellationStatus, Run, StopRequest, TurnWriter, preview
from tests.play import AGENTS, Conductor
from tests.samples import sample
from tests.turns.proof import (
    all_events,
    assert_complete,
    assert_truthful,
    line_of,
    lines_said,
    without_time,
)
from tests.watching import turns_watched

LEVELS = {"graceful": CancellationStatus.REQUESTED, "immediate": CancellationStatus.IMMEDIATE}
WAIT_S = 200.0


class Actor(PydanticBackend):
    """A model that says its lines of the play."""

    def __init__(self, agent: str, conductor: Conductor) -> None:
        self._agent = agent
        self._conductor = conductor
        super().__init__(FunctionModel(stream_function=self._speak), "actor")

    async def _speak(self, messages: list[ModelMessage], info: Any) -> AsyncIterator[Any]:
        opening = str(messages[0].parts[1].content)  # type: ignore[union-attr]
        said = sum(isinstance(m, ModelResponse) for m in messages)
        heard = without_time(json.dumps(dump_messages(messages)))
        line = await self._conductor.turn(self._agent, opening, said, heard)
        if line.text:
            yield line.text
        for number, (tool, args) in enumerate(line.calls):
            call_id = f"{line.name}.{number}"
            yield {number: DeltaToolCall(tool, json.dumps(args), tool_call_id=call_id)}


@dataclass
class Stage:
    """Where the play is given, in the session "s" below `root`.

    Attributes:
        stop_after: The number of the event after which a run is stopped, or 0.
        level: How it is stopped.
    """

    root: Path
    stop_after: int = 0
    level: CancellationStatus = CancellationStatus.REQUESTED
    conductor: Conductor = field(default_factory=Conductor)

    def __post_init__(self) -> None:
        actors: dict[str, Any] = {a: Actor(a, self.conductor) for a in AGENTS}
        self.team = scripted_team(None, **actors)

    def begin(self) -> Run:
        """Give the play, to its end or its stop."""
        self.conductor.begin()
        _stages.append(self)
        return self._to_its_end(
            nb_agents.start("t", self.team, "s", options=RunOptions(session_root=self.root))
        )

    def resume(self) -> Run:
        """Resume it."""
        self.conductor.begin(lines_said(all_events(self.root)))
        return self._to_its_end(
            nb_agents.resume("s", self.team, options=RunOptions(session_root=self.root))
        )

    def heed(self, turn: TurnWriter, event: ev.Event | None) -> None:
        """Stop the run if this is the event."""
        if isinstance(event, ev.ModelFinished):
            self.conductor.said(line_of(event.response))
        if (event.seq if event else turn.view.seq) == self.stop_after and not turn.view.is_over:
            turn.take(StopRequest(self.level, "api", "at an event"))
            if self.level is CancellationStatus.REQUESTED:
                self.conductor.free()

    def _to_its_end(self, run: Run) -> Run:
        try:
            run.wait(WAIT_S, raise_on_stop=False)
        except TimeoutError:
            run.stop(now=True)
            raise AssertionError(f"Stuck after {self.conductor.asked}") from None
        return run


_stages: list[Stage] = []


@pytest.fixture(scope="module", autouse=True)
def _watched() -> Iterator[None]:
    """Let the stage of the moment hear all events of its runs, as they are written."""

    with turns_watched(lambda turn, event: _stages[-1].heed(turn, event)):
        yield
    _stages.clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The play, given without a stop."""
    stage = Stage(tmp_path_factory.mktemp("whole"))
    assert stage.begin().status == "completed"
    return stage


def test_play_uses_every_feature_of_a_team(whole: Stage) -> None:
    assert_complete(whole.root, whole.conductor.heard, whole.conductor.heard)
    kinds = {type(e) for e in all_events(whole.root)}
    assert kinds >= {ev.TurnRejected, ev.VoteIgnored, ev.VoteCast, ev.PresentationStarted}
    ended = [e for e in all_events(whole.root) if isinstance(e, ev.ToolFinished)]
    assert {e.outcome for e in ended} == {"ok", "error"}


@pytest.mark.parametrize("level", LEVELS)
def test_stop_after_any_event_does_not_change_the_final_result(
    whole: Stage, tmp_path: Path, level: str
) -> None:
    """Every third resume is stopped, too."""
    for number, after in enumerate(sample(range(1, len(all_events(whole.root)) + 1), 8)):
        stage = Stage(tmp_path / str(after), after, LEVELS[level])
        run = stage.begin()
        stage.level = CancellationStatus.IMMEDIATE
        # A second graceful stop would let an agent come two lines ahead of the others.
        again = 3 + after % 11 if number % 3 == 0 else 0
        while run.status != "completed":
            assert run.status == "cancelled"
            old, told = all_events(stage.root), preview("s", session_root=stage.root)
            stage.stop_after, again = again, 0
            run = stage.resume()
            if run.status == "completed":
                assert_truthful(told, old, all_events(stage.root)[len(old) :])
        assert_complete(stage.root, stage.conductor.heard, whole.conductor.heard)
