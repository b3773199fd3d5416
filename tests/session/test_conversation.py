"""Tool results from before a stop in the messages of the next turn."""

from __future__ import annotations

from pathlib import Path

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.models import Backend
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.kit.views import MAX_LEARNED, MAX_LEARNED_CHARS
from tests.recipes.live import begin, write
from tests.team_kit import finish, prompt


def look(where: str) -> str:
    """Look somewhere."""
    return f"found in {where}: 42"


def flood(where: str) -> str:
    """Say too much."""
    return where + "x" * 100_000


def asked(name: str, *places: str) -> Turn:
    return Turn(calls=tuple(Call(name, {"where": place}) for place in places))


def go(root: Path, session: str | None = None, **models: Backend) -> Run:
    """Start a team, or continue its session."""
    return nb_agents.start(
        "Where is it?",
        scripted_team(None, **models),
        session,
        continue_=session is not None,
        tools=() if session else [look, flood],
        options=RunOptions(session_root=root),
    )


def stopped(run: Run, gate: Gate) -> Run:
    gate.wait_reached()
    run.stop(now=True)
    gate.open()
    return finish(run)


def told(run: Run) -> str:
    return "\n".join(m.content for m in load_session(run.path.parent).messages)


def test_results_before_a_stop_reach_the_next_turn(tmp_path: Path) -> None:
    gate = Gate()
    turns = (asked("look", "the attic", "the cellar"), Turn(text="So", gate=gate))
    run = stopped(go(tmp_path, ada=ScriptedModel(*turns)), gate)
    again = ScriptedModel(Answer("As found."))
    finish(go(tmp_path, run.session, ada=again))
    asks = prompt(again, 0)
    assert "[TOOL RESULTS - received by agents before the stop, not in an answer yet]" in asks
    assert asks.index("found in the attic: 42") < asks.index("found in the cellar: 42")
    assert "## ada called look" in asks


def test_results_before_an_answer_are_not_repeated(tmp_path: Path) -> None:
    gate = Gate()
    turns = (asked("look", "the attic"), Answer("42"), asked("look", "bed"), Turn("So", gate=gate))
    both = {"ada": ScriptedModel(*turns), "ben": ScriptedModel(Turn("Hm", gate=gate))}
    run = go(tmp_path, **both)
    gate.wait_reached(2)
    run.stop(now=True)
    gate.open()
    asks = told(finish(run))
    assert "found in bed" in asks and "attic" not in asks


def test_results_of_a_turn_resumed_and_stopped_again_reach_the_next_turn(tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    turns = (asked("look", "the attic"), Turn("So", gate=first))
    run = stopped(go(tmp_path, ada=ScriptedModel(*turns)), first)
    more = ScriptedModel(asked("look", "bed"), Turn("Well", gate=second))
    run = stopped(run.resume(scripted_team(ada=more), tools=[look]), second)
    asks = told(run)
    assert asks.index("found in the attic") < asks.index("found in bed")


def test_results_of_a_recipes_step_reach_the_next_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(asked("look", "the attic"), Turn(text="So", gate=gate))
    path = write(tmp_path, "steps: [{id: ask, agent: worker, prompt: Why?}]\n")
    run = stopped(begin(path, model, tools=[look]), gate)
    assert "## ask called look" in told(run) and "found in the attic: 42" in told(run)


def test_only_the_last_results_are_included_and_truncated(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(asked("flood", *(f"<{n}>" for n in range(12))), Turn("So", gate=gate))
    run = stopped(go(tmp_path, ada=model), gate)
    asks = told(run)
    assert asks.count("called flood") == MAX_LEARNED and "<11>x" in asks and "<3>x" not in asks
    assert len(asks) < (MAX_LEARNED + 1) * MAX_LEARNED_CHARS
