"""A resume after a stop at any event does what its preview, notice and card said.

The plays contain the failures of a team: an agent fails immediately, another in its second round,
one never answers, all of them fail, one is stopped individually.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.agents import dump_messages
from tests.kit.models import Backend
from tests.kit.runs import CancellationStatus, Run, StopRequest, TurnWriter, preview, what_resumes
from tests.recipes.live import write
from tests.recipes.rich import assert_truthful as assert_recipe_truthful
from tests.samples import sample
from tests.team_kit import WAIT_S, start_by_rules, team_by_rules
from tests.turns.proof import all_events, assert_truthful
from tests.watching import turns_watched

LEVELS = {"graceful": CancellationStatus.REQUESTED, "immediate": CancellationStatus.IMMEDIATE}
WRITE = Call("write_file", {"path": "n.md", "content": "kept"})
LIST = Call("list_files")
BROKEN = Turn(text="half of it ", error=ModelHTTPError(401, "m"))
EMPTY = Answer("")


def plays(*first: Turn, later: Turn = Vote("agent2")) -> ScriptedModel:  # noqa: B008 - frozen
    """A model that goes through these in its first round, and says the last in each other."""

    def reply(messages: list[ModelMessage]) -> Turn:
        opening = str(messages[0].parts[1].content)  # type: ignore[union-attr]
        said = sum(isinstance(m, ModelResponse) for m in messages)
        if "<FINAL PRESENTATION>" in opening:
            return Turn(text="presented")
        if "<ANSWER from=" in opening:
            return later
        return first[min(said, len(first) - 1)]

    return ScriptedModel(reply)


@dataclass(frozen=True)
class Play:
    """A team, the agent that a user stops individually, and the event after which they do."""

    models: Callable[[], dict[str, ScriptedModel]]
    alone: str = ""


PLAYS = {
    "one fails at once": Play(
        lambda: {"a": plays(BROKEN), "b": plays(Turn(calls=(WRITE, LIST)), Answer("B's"))}
    ),
    "one comes to nothing": Play(
        lambda: {"a": plays(Turn(calls=(WRITE,)), EMPTY), "b": plays(Answer("B's"))}
    ),
    "one fails after its answer": Play(
        lambda: {"a": plays(Answer("A's"), later=BROKEN), "b": plays(Answer("B's"))}
    ),
    "two fail beside one": Play(
        lambda: {"a": plays(BROKEN), "b": plays(Answer("B's")), "c": plays(EMPTY)}
    ),
    "all fail": Play(lambda: {"a": plays(Turn(calls=(WRITE,)), BROKEN), "b": plays(EMPTY)}),
    "one fails, one is stopped alone": Play(
        lambda: {"a": plays(BROKEN), "b": plays(Turn(calls=(LIST,)), Answer("B's"))}, alone="b"
    ),
}


@dataclass
class Hand:
    """Stops runs: after the event of that number, or one agent once it has asked its model."""

    after: int
    level: CancellationStatus
    alone: str = ""

    def heed(self, turn: TurnWriter, event: ev.Event) -> None:
        """Look at an event that was just written."""
        if isinstance(event, ev.ModelStarted) and event.agent == self.alone:
            alone, self.alone = self.alone, ""
            turn.take(StopRequest(CancellationStatus.IMMEDIATE, "api", "it alone", alone))
        if event.seq == self.after and not turn.view.is_over:
            turn.take(StopRequest(self.level, "api", "at an event"))


_hands: list[Hand] = []


@pytest.fixture(scope="module", autouse=True)
def _watched() -> Iterator[None]:
    """Let the hand of the moment see all events of a run, as they are written."""

    def hear(turn: TurnWriter, event: ev.Event | None) -> None:
        if event is not None:
            _hands[-1].heed(turn, event)

    with turns_watched(hear):
        yield
    _hands.clear()


def over(run: Run) -> Run:
    run.wait(WAIT_S, raise_on_stop=False)
    return run


def given(root: Path, play: Play, after: int = 0, level: str = "graceful") -> Run:
    """Give a play, to its end or its stop."""
    _hands.append(Hand(after, LEVELS[level], play.alone))
    team = scripted_team(None, **play.models())
    return over(nb_agents.start("t", team, "s", options=RunOptions(session_root=root)))


def resumed(run: Run, after: int = 0, agent: str = "") -> Run:
    """Resume it, to its end or to a stop after the event of that number."""
    _hands.append(Hand(after, LEVELS["immediate"]))
    return over(run.resume(agent=agent))


@pytest.mark.parametrize("name", PLAYS)
def test_resume_after_a_stop_at_any_event_matches_its_preview(tmp_path: Path, name: str) -> None:
    """Every second stop is graceful; every third resume is stopped, too."""
    play = PLAYS[name]
    given(tmp_path / "whole", play)
    for number, after in enumerate(sample(range(2, len(all_events(tmp_path / "whole"))), 6)):
        root = tmp_path / str(after)
        run = given(root, play, after, tuple(LEVELS)[number % 2])
        again = 3 + after % 5 if number % 3 == 0 else 0
        # Where all fail, each resume is one more try.
        while run.status != "completed" and run.turn < 4:
            old, told = all_events(root), preview("s", session_root=root)
            assert run.preview == told  # which its card tells
            run, is_cut, again = resumed(run, after=again), again > 0, 0
            assert run.view.notices[0] == str(told)
            if not is_cut:
                assert_truthful(told, old, all_events(root)[len(old) :])


def test_agent_that_timed_out_without_an_answer_continues(tmp_path: Path) -> None:
    _hands.append(Hand(0, LEVELS["graceful"]))
    held, gate = Gate(), Gate()
    a = ScriptedModel(Turn(calls=(WRITE,)), Turn(text="so far ", gate=held), Answer("A's"))
    b = ScriptedModel(Turn(text="hm ", gate=gate), Turn(gate=gate), Answer("B's"), Vote("agent1"))
    times = {"initial_round_timeout_seconds": 2, "round_timeout_grace_seconds": 0}
    models: dict[str, Backend] = {"a": a, "b": b}
    run = over(start_by_rules(tmp_path, models, times))
    old, told = all_events(tmp_path, run.session), preview(run.session, session_root=tmp_path)
    held.open()
    gate.open()
    again = over(run.resume(team_by_rules(models)))
    assert told.asked_again == ("a", "b")
    assert_truthful(told, old, all_events(tmp_path, run.session)[len(old) :])
    assert again.view.agents["a"].answers == ("A's",)
    assert len([e for e in all_events(tmp_path, run.session) if isinstance(e, ev.ToolStarted)]) == 1


RECIPE = """
steps:
- {id: one, type: bash, command: "echo one"}
- {id: ask, agent: worker, prompt: Ask it, retry: {max_attempts: 2, initial_delay: 0.01}}
- {id: two, type: bash, command: "if [ -e mark ]; then echo fine; else touch mark; exit 1; fi"}
- {id: end, agent: worker, prompt: End it}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_resume_of_a_failing_recipe_matches_its_preview_at_any_event(
    tmp_path: Path, level: str
) -> None:
    path = write(tmp_path, RECIPE)

    def begun(root: Path, after: int = 0) -> Run:
        _hands.append(Hand(after, LEVELS[level]))
        worker = ScriptedModel(BROKEN, Turn(calls=(WRITE,)), BROKEN, BROKEN, Turn(text="well"))
        team = scripted_team(None, worker=worker)
        return over(
            nb_agents.start(
                recipe=path, config=team, session="s", options=RunOptions(session_root=root)
            )
        )

    begun(tmp_path / "whole")
    for after in sample(range(3, len(all_events(tmp_path / "whole"))), 6):
        root = tmp_path / str(after)
        run = begun(root, after)
        while run.status != "completed" and run.turn < 8:
            old, told = all_events(root), preview("s", session_root=root)
            assert run.preview == told
            run = resumed(run)
            assert_recipe_truthful(told, old, all_events(root)[len(old) :])
            assert run.view.notices[0] == str(told)
        assert run.status == "completed"


def cut(agent: str, call: int = 1) -> list[ev.Event]:
    """A round whose request was interrupted."""
    started = ev.ModelStarted(agent=agent, call=call)
    return [
        ev.RoundStarted(agent=agent, number=1, asks=("Why?",)),
        started,
        ev.ModelCut(agent=agent, call=call),
    ]


def calls_critic(agent: str) -> list[ev.Event]:
    """A round in which another agent is called.

    The call and that agent's request are interrupted.
    """
    child, asks = f"{agent}/critic#1", {"name": "critic", "model": "m", "workspace": "w"}
    response = dump_messages([ModelResponse(parts=[ToolCallPart("call_agent", {})])])[0]
    return [
        *cut(agent)[:-1],
        ev.ModelFinished(agent=agent, call=1, response=response, usage=ev.Usage()),
        ev.ToolStarted(agent=agent, call_id="1.0", tool="call_agent", is_repeatable=True),
        ev.AgentCalled(agent=child, caller=agent, input="?", call_id="1.0", **asks),
        *cut(child),
    ]


def alone(agent: str) -> list[ev.Event]:
    """One agent is stopped, and ends."""
    stop = ev.StopRequested(level="immediate", source="widget", agent=agent)
    return [stop, ev.AgentEnded(agent=agent, outcome="killed")]


def failed(agent: str) -> ev.AgentFailed:
    return ev.AgentFailed(agent=agent, error="x")


STOP = ev.StopRequested(level="immediate", source="widget")
ANSWERED = ev.AnswerGiven(agent="ben", answer="Ben's")
PRESENTS = ev.PresentationStarted(agent="ben")
ROWS: dict[str, tuple[list[ev.Event], str]] = {
    "nothing has happened": ([STOP], "nothing"),
    "both were cut": (
        [STOP, *cut("ada"), *cut("ben")], "2 model calls interrupted or failed (ada, ben)"
    ),
    "one was stopped alone before": (
        [*cut("ada"), *alone("ada"), STOP, *cut("ben")], "1 model call interrupted or failed (ben)"
    ),
    "each was stopped alone": (
        [*cut("ada"), *alone("ada"), *cut("ben"), *alone("ben")],
        "2 model calls interrupted or failed (ada, ben)",
    ),
    "a call of an agent was cut": (
        [*calls_critic("ada"), STOP], "1 model call interrupted or failed (ada/critic#1)"
    ),
    "who called was stopped alone": (
        [*calls_critic("ada"), *alone("ada"), STOP, *cut("ben")],
        "1 model call interrupted or failed (ben)",
    ),
    "one failed for good": (
        [*cut("ada"), failed("ada"), STOP, *cut("ben")],
        "2 model calls interrupted or failed (ada, ben)",
    ),
    "one failed with no request open": (
        [ev.RoundStarted(agent="ada", number=1, asks=("Why?",)), failed("ada"), STOP, *cut("ben")],
        "1 model call interrupted or failed (ben), the round of ada (it failed)",
    ),
    "what was chosen stands": (
        [*cut("ada"), failed("ada"), ANSWERED, PRESENTS, *cut("ben"), STOP],
        "1 model call interrupted or failed (ben)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_resume_of_a_stopped_team_repeats_interrupted_and_failed_work(name: str) -> None:
    events, again = ROWS[name]
    agents = tuple(ev.AgentInfo(id=each, model="m") for each in ("ada", "ben"))
    started = ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=60)
    assert what_resumes([started, *events]).preview.runs_again == again


@pytest.mark.parametrize("name", ["one fails at once", "one comes to nothing"])
def test_failed_agent_takes_part_again_in_a_completed_turn(tmp_path: Path, name: str) -> None:
    run = given(tmp_path, PLAYS[name])
    assert run.status == "completed"
    old, told = all_events(tmp_path), preview("s", session_root=tmp_path, agent="a")
    again = resumed(run, agent="a")
    assert told.asked_again + told.begun_again == ("a",)
    assert_truthful(told, old, all_events(tmp_path)[len(old) :])
    assert again.view.agents["a"].calls > run.view.agents["a"].calls
    assert again.view.agents["b"].answers == run.view.agents["b"].answers
