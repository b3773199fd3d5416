"""An agent of the team scores the answers, once per row, and is stopped with the sweep."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import Run, RunOptions
from nb_agents.errors import NotYoursError, UserError
from nb_agents.events import ModelFinished
from nb_agents.extensions.sweeps.judge import score_in
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests import processes
from tests.kit.models import Backend
from tests.kit.runs import registry
from tests.kit.sessions import load_session, read_journal
from tests.kit.sweeps import Sweep, fold_notes
from tests.kit.sweeps import scorer as _scorer
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import ROOT, WAIT_S
from tests.turns.trees import cut_copy
from tests.warm import WarmProcess

TASK = "Answer: {{q}}"


def team(judge: Backend, model: Backend | None = None) -> TeamSpec:
    def agent(name: str, instance: Backend) -> dict[str, Any]:
        return {"id": name, "backend": {"type": "python", "instance": instance}}

    answering = model or ScriptedModel(Answer("Blue."))
    return TeamSpec.model_validate(
        {"agents": [agent("a", answering)], "callable_agents": [agent("judge", judge)]}
    )


def judged(spec: TeamSpec, options: RunOptions, count: int = 2) -> Sweep:
    rows = [{"q": f"why {number}?"} for number in range(count)]
    return nb_agents.map(rows, TASK, spec, name="ask", score="judge", options=options)


def scores(sweep: Sweep) -> list[float | None]:
    return [record["score"] for record in sweep.table()]


def test_judge_gets_task_and_answer_and_its_last_line_is_the_score(
    options: RunOptions,
) -> None:
    model = ScriptedModel(lambda said: Answer("Clear, and right.\nScore: 7.5"))
    sweep = judged(team(model), options)
    view = sweep.wait(WAIT_S)
    assert (view.status, view.completed, view.score) == ("completed", 2, (7.5, 0.0))
    asked = [str(request) for request in model.requests]
    assert len(asked) == 2
    assert all("Answer: why" in each and "Blue." in each for each in asked)
    assert [record["answer"] for record in sweep.table()] == ["Blue."] * 2


def test_judge_does_not_take_part_in_the_round(options: RunOptions) -> None:
    sweep = judged(team(ScriptedModel(lambda said: Answer("3"))), options, 1)
    sweep.wait(WAIT_S)
    [row] = sweep.rows
    [turn] = load_session(sweep.path / row.name).turns
    assert turn.view.agents.keys() == {"a"}


def test_judges_cost_is_added_to_the_row_and_it_is_asked_once(options: RunOptions) -> None:
    model = ScriptedModel(lambda said: Answer("3"))
    sweep = judged(team(model), options, 1)
    tokens = sweep.wait(WAIT_S).tokens
    [row] = sweep.rows
    place = sweep.path / row.name
    turns = [*load_session(place).turns, *load_session(place / "judge").turns]
    used = [sum(agent.tokens for agent in turn.view.agents.values()) for turn in turns]
    assert len(used) == 2 and min(used) > 0
    assert tokens == fold_notes(sweep.path).results[row.name].tokens == sum(used)
    again = judged(team(model), options, 1)
    assert (again.wait(WAIT_S).tokens, scores(again)) == (tokens, [3.0])
    (sweep.path / "rows.jsonl").unlink()  # as if its process was killed before recording the row
    again = judged(team(model), options, 1)
    assert (again.wait(WAIT_S).tokens, scores(again)) == (tokens, [3.0])
    assert len(model.requests) == 1


def judges(sweep: Sweep) -> list[Run]:
    """Return the runs of the judge that this process started."""
    found = [run for run in registry.started_runs() if run.path.is_relative_to(sweep.path)]
    return [run for run in found if run.path.parent.name == "judge"]


@pytest.mark.parametrize("now", [False, True])
def test_stop_of_the_sweep_stops_the_judge_and_the_same_call_resumes_it(
    options: RunOptions, now: bool
) -> None:
    gate = Gate()
    model = ScriptedModel(replace(Answer("4"), text="some thoughts ", gate=gate))
    sweep = judged(team(model), options, 2)
    gate.wait_reached(2)
    sweep.stop(now)
    if not now:
        wait_until(lambda: [bool(run.view.stop) for run in judges(sweep)] == [True] * 2, WAIT_S)
        gate.open()
    assert sweep.wait(WAIT_S).is_over
    gate.open()
    begun = [run for run in registry.started_runs() if run.path.is_relative_to(sweep.path)]
    assert begun and not any(run.view.status == "in-progress" for run in begun)
    assert len(model.requests) == 2
    again = judged(team(model), options, 2)
    assert again.wait(WAIT_S).status == "completed"
    assert scores(again) == [4.0, 4.0]
    assert len(model.requests) == 2 + 2 * now, "what was cut is made again, and nothing else"
    for row in again.rows:
        last = load_session(again.path / row.name / "judge").turns[-1]
        assert last.view.resumes == int(now)


def test_judge_session_of_another_user_needs_trust(
    options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    judge = ScriptedModel(Answer("I see.\n7", gate=gate))
    sweep = judged(team(judge), options, 1)
    gate.wait_reached()
    sweep.stop(True)
    sweep.wait(WAIT_S)
    gate.open()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home of another"))
    with pytest.raises(NotYoursError, match="'ask' was not created by you"):
        judged(team(judge), options, 1)
    trusted = judged(team(judge), replace(options, trust=True), 1)
    trusted.wait(WAIT_S)
    assert scores(trusted) == [7]


def test_stopped_sweep_starts_no_further_judge(options: RunOptions) -> None:
    gate, spec = Gate(), team(model := ScriptedModel(lambda said: Answer("4")))
    held = ScriptedModel(replace(Answer("4"), gate=gate))
    sweep = nb_agents.map(
        range(2), "{{value}}", team(held), limit=1, score="judge", options=options
    )
    gate.wait_reached()
    wait_until(lambda: sweep.view.completed == 2, WAIT_S)  # the other row waits for the judge
    sweep.stop()
    wait_until(lambda: sweep.status == "stopping", WAIT_S)
    gate.open()
    sweep.wait(WAIT_S)
    assert len(held.requests) == len(list(sweep.path.glob("*/judge"))) == 1
    again = nb_agents.map(
        range(2), "{{value}}", spec, name=sweep.name, score="judge", options=options
    )
    again.wait(WAIT_S)
    assert (scores(again), len(model.requests)) == ([4.0, 4.0], 1)


def test_judge_without_a_number_is_asked_again_by_the_same_call(
    options: RunOptions,
) -> None:
    sweep = judged(team(ScriptedModel(lambda said: Answer("7 of 10, I think"))), options, 1)
    assert sweep.wait(WAIT_S).completed == 1
    [record] = sweep.table()
    assert (record["answer"], record["score"]) == ("Blue.", None)
    assert record["error"] == (
        "The judge 'judge' returned no number: its last line is '7 of 10, I think'."
    )
    again = judged(team(ScriptedModel(lambda said: Answer("7"))), options, 1)
    again.wait(WAIT_S)
    assert scores(again) == [7.0]
    assert again.table()[0]["error"] == ""


def test_failed_judge_reports_why(options: RunOptions) -> None:
    sweep = judged(team(ScriptedModel(lambda said: Turn(error=ValueError("no")))), options, 1)
    assert sweep.wait(WAIT_S).completed == 1
    assert "The judge failed: scripted: The call failed" in sweep.table()[0]["error"]


def test_unknown_judge_is_refused_before_the_start(
    options: RunOptions,
) -> None:
    spec = team(ScriptedModel())
    with pytest.raises(UserError, match="'critic' is not among the team's .*has: judge"):
        nb_agents.map([1], "{{value}}", spec, score="critic", options=options)
    assert not Path(options.session_root or "").exists()


def test_cell_names_a_function_or_an_agent_but_not_both() -> None:
    spec = team(ScriptedModel())

    def judge(task: str, answer: Any) -> float:
        return 1.0

    assert _scorer("judge", {}, spec) == "judge"
    assert _scorer("rate", {"rate": judge}, spec) is judge
    with pytest.raises(UserError, match="Rename one"):
        _scorer("judge", {"judge": judge}, spec)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("7", 7.0),
        ("So.\n\nScore: -0.5\n", -0.5),
        ("**Score: 8**", 8.0),
        ("7/10", None),
        ("8\nThat is it.", None),
        ("nan", None),
        ("9" * 400, None),
        ("", None),
    ],
)
def test_score_is_a_number_on_the_last_line(answer: str, score: float | None) -> None:
    assert score_in(answer) == score


_SCRIPT = """
import sys, nb_agents
url, root = sys.argv[1:]
backend = {"type": "chatcompletion", "base_url": url, "api_key": "k"}
team = nb_agents.TeamSpec.model_validate({
    "agents": [{"id": "a", "backend": {**backend, "model": "m"}}],
    "callable_agents": [{"id": "judge", "backend": {**backend, "model": "j"}}]})
sweep = nb_agents.map(range(5), "{{value}}", team, name="ask", score="judge",
                      options=nb_agents.RunOptions(session_root=root))
view = sweep.wait()
print(view.completed, view.score)
"""


def test_row_judged_before_a_kill_is_not_judged_again(tmp_path: Path) -> None:
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "Blue."}),))
    number = Reply(tool_calls=(ToolCall("new_answer", {"content": "5"}),))
    with ModelServer(default=answer) as server:
        server.script("j", number, number, Reply("I think", hang_after=1))
        command = [sys.executable, "-c", _SCRIPT, server.url, str(tmp_path)]

        def asked() -> list[Any]:
            return [request for request in server.requests if request.model == "j"]

        with WarmProcess(command, cwd=ROOT, stdout=subprocess.PIPE) as killed:
            server.wait_until(lambda: len(asked()) >= 3, WAIT_S)

            def all_have_answered_and_two_are_judged() -> bool:
                scores = [each.score for each in fold_notes(tmp_path / "ask").results.values()]
                return len(scores) == 5 and scores.count(5.0) == 2

            wait_until(all_have_answered_and_two_are_judged, WAIT_S)
            killed.kill()
        server.wait_closed()
        before = len(asked())
        server.script("j", number)
        done = processes.run(command, cwd=ROOT)
        assert done.stdout.split(" ", 1)[1].strip() == "(5.0, 0.0)", done.stderr
        assert len(asked()) - before == 3
        assert sum(request.model == "m" for request in server.requests) == 5


def test_judge_killed_at_any_event_repeats_no_call(tmp_path: Path) -> None:
    def judging(said: list[Any]) -> Turn:
        ask = Call("call_agent", {"name": "aide", "input": "help me"})
        return Answer("4") if len(said) > 1 else Turn(calls=(ask,))

    def aiding(said: list[Any]) -> Turn:
        return Turn(text="helped") if len(said) > 1 else Turn(calls=(Call("list_files"),))

    def play(root: Path) -> tuple[int, Path]:
        judge, aide = ScriptedModel(judging), ScriptedModel(aiding)
        agents = [
            {"id": name, "backend": {"type": "python", "instance": model, "can_call": "*"}}
            for name, model in (("judge", judge), ("aide", aide))
        ]
        answers = {"id": "a", "backend": {"type": "python", "instance": ScriptedModel(Answer("x"))}}
        spec = TeamSpec.model_validate({"agents": [answers], "callable_agents": agents})
        sweep = judged(spec, RunOptions(session_root=root), 1)
        assert sweep.wait(WAIT_S).status == "completed" and scores(sweep) == [4.0]
        return len(judge.requests) + len(aide.requests), sweep.path / sweep.rows[0].name

    whole, row = play(tmp_path / "whole")
    assert whole == 4
    count = len(read_journal(row / "judge/turn_1/events.jsonl").events)
    for after in range(2, count - 1):
        root = tmp_path / str(after)
        place = root / row.relative_to(tmp_path / "whole")
        shutil.copytree(tmp_path / "whole", root, symlinks=True)
        next(root.rglob("rows.jsonl")).unlink()
        shutil.rmtree(place / "judge")
        events = cut_copy(row, root / "cut", after, "judge")
        shutil.move(root / "cut" / "judge", place / "judge")
        finished = sum(isinstance(event, ModelFinished) for event in events)
        assert play(root)[0] == whole - finished, after


def test_judge_also_scores_what_a_running_row_has_written(options: RunOptions) -> None:
    gate = Gate()
    judge = ScriptedModel(lambda said: Answer("3" if "first draft" in str(said) else "8"))
    model = ScriptedModel(replace(Answer("Blue."), text="first draft ", gate=gate))
    sweep = judged(team(judge, model), options, 1)
    gate.wait_reached()
    wait_until(lambda: [run for run in sweep.runs.values() if run.view.agents["a"].partial], WAIT_S)
    sweep.steer(score=True)
    wait_until(lambda: sweep.view.interim, WAIT_S)
    [interim] = sweep.view.interim.values()
    assert (interim.score, interim.tokens > 0) == (3.0, True)
    gate.open()
    view = sweep.wait(WAIT_S)
    assert (view.scores, scores(sweep)) == ((8.0,), [8.0])
    [result] = fold_notes(sweep.path).results.values()
    assert view.tokens == result.tokens + interim.tokens, "both judgements are paid"
