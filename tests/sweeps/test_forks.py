"""Several forks from one checkpoint, each a row. Work before the checkpoint is not paid again."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from tests.cli.calls import call_here, told_here
from tests.kit.runs import Run, registry
from tests.kit.sweeps import fold_notes, is_sweep
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.snapshots.test_store import state
from tests.team_kit import WAIT_S, events, finish


def _play(request: Request) -> Reply:
    """Write a file, answer, vote for the first answer, and present at the end."""
    if "<FINAL PRESENTATION>" in request.prompt:
        return Reply(text=f"The end by {request.model}.")
    answered = f"answer of {request.model}" in request.prompt
    first = re.search(r'<ANSWER from="(agent\d)">', request.prompt)
    if answered and first and "vote" in request.tool_names:
        return Reply(tool_calls=(ToolCall("vote", {"agent_id": first[1], "reason": "good"}),))
    if "work.md" not in str(request.messages[1:]):
        call = ToolCall("write_file", {"path": "work.md", "content": request.model})
        return Reply(tool_calls=(call,))
    answer = {"content": f"answer of {request.model}"}
    return Reply(tool_calls=(ToolCall("new_answer", answer),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(_play) as server:
        yield server
        for group in registry.groups():
            group.stop(True, reason="the test is over", source="parent")


def _team(server: ModelServer, *models: str) -> TeamSpec:
    agents = [
        {"id": agent, "backend": server.backend("openai", model=model)}
        for agent, model in zip("ab", models, strict=False)
    ]
    return TeamSpec.model_validate({"agents": agents})


def _played(server: ModelServer, root: Path, *models: str) -> Run:
    """Play a turn. The calls of one agent come in a fixed order, so they can be counted."""
    options = RunOptions(session_root=root)
    run = finish(
        nb_agents.start(
            "the task", _team(server, *(models or ("m",))), session="s", options=options
        )
    )
    assert run.status == "completed", run.view.notices
    return run


def _calls_after(run: Run, point: int) -> int:
    return sum(event.seq > point for event in events(run, ev.ModelFinished))


def test_forks_pay_only_for_work_after_the_checkpoint(server: ModelServer, tmp_path: Path) -> None:
    run = _played(server, tmp_path)
    before, calls = state(run.path), server.count()
    point = run.preview_rewind("a's 1st write_file").point
    sweep = nb_agents.fork(run.path, "a's 1st write_file", times=3)
    view = sweep.wait(WAIT_S)
    assert (view.status, view.completed, view.total) == ("completed", 3, 3)
    table = sweep.table()
    assert [record["try"] for record in table] == [1, 2, 3]
    assert {record["answer"] for record in table} == {run.result}
    made = server.count() - calls
    assert made == 3 * _calls_after(run, point) < 3 * calls
    assert state(run.path) == before
    spent = sum(record["tokens"] for record in table)
    kept = events(run, ev.ModelFinished)
    used = [e.usage.input_tokens + e.usage.output_tokens for e in kept if e.seq > point]
    assert spent == view.tokens
    assert abs(spent - 3 * sum(used)) < sum(used)  # only new work


def test_forks_share_stored_files_and_add_their_own(server: ModelServer, tmp_path: Path) -> None:
    run = _played(server, tmp_path)
    own = {each.name: each.stat().st_ino for each in tmp_path.glob("s/snapshots/files/*/*")}
    sweep = nb_agents.fork(run.path, 1, say="Think of the cost, too.", times=2)
    assert sweep.wait(WAIT_S).completed == 2
    for row in ("try_1", "try_2"):
        found = {e.name: e.stat().st_ino for e in (sweep.path / row).glob("snapshots/files/*/*")}
        assert own.items() <= found.items()
    assert own.keys() == {each.name for each in tmp_path.glob("s/snapshots/files/*/*")}


def test_repeated_fork_is_free_and_a_higher_number_adds_rows(
    server: ModelServer, tmp_path: Path
) -> None:
    run = _played(server, tmp_path)
    point = run.preview_rewind("a's 1st write_file").point
    first = nb_agents.fork(run.path, point, times=2)
    first.wait(WAIT_S)
    calls = server.count()
    same = nb_agents.fork(run.path, point, times=2)
    same.wait(WAIT_S)
    assert (same.path, server.count()) == (first.path, calls)
    more = nb_agents.fork(run.path, point, times=3)
    assert more.wait(WAIT_S).completed == 3
    assert (more.path, server.count()) == (first.path, calls + _calls_after(run, point))
    other = nb_agents.fork(run.path, point, say="Think of the cost, too.", times=1)
    other.wait(WAIT_S)
    assert other.path != first.path


def test_stop_ends_all_forks_and_the_same_call_resumes_them(
    server: ModelServer, tmp_path: Path
) -> None:
    run = _played(server, tmp_path)
    point, calls = run.preview_rewind("a's 1st write_file").point, server.count()
    server.hold(0)
    sweep = nb_agents.fork(run.path, point, times=2)
    server.wait_until(lambda: server.open_count >= 2, what="both forks at work")
    sweep.stop(True, reason="enough")
    assert sweep.wait(WAIT_S).status == "cancelled"
    cut = server.count() - calls
    server.release()
    again = sweep.resume()
    assert again.wait(WAIT_S).completed == 2
    assert {record["answer"] for record in again.table()} == {run.result}
    assert server.count() - calls - cut == 2 * _calls_after(run, point)


def test_fork_of_a_dead_process_is_started_by_the_next_call(
    server: ModelServer, tmp_path: Path
) -> None:
    run = _played(server, tmp_path)
    sweep = nb_agents.fork(run.path, 1, times=1)
    sweep.wait(WAIT_S)
    row = sweep.path / "try_1"
    for path in (row / "turn_2").rglob("*"):
        assert path.exists()
    # As after a kill between the copy and the start: only turn 1, complete.
    fold_before = fold_notes(sweep.path)
    assert fold_before.completed == 1
    (sweep.path / "rows.jsonl").unlink()
    (row / "turn_2").rename(tmp_path / "gone")
    calls = server.count()
    assert nb_agents.fork(run.path, 1, times=1).wait(WAIT_S).completed == 1
    assert server.count() > calls


def test_fork_can_use_another_model_or_team(server: ModelServer, tmp_path: Path) -> None:
    run = _played(server, tmp_path, "m", "n")
    again = finish(run.rewind("b's 1st answer", model="openai:other"))
    assert again.result == "The end by other."
    assert {agent.model for agent in again.view.agents.values()} == {"other"}
    team = tmp_path / "other.yaml"
    backends = [server.backend("openai", model=model) for model in ("m", "critic")]
    agents = [{"id": each, "backend": made} for each, made in zip("ab", backends, strict=True)]
    team.write_text(f"agents: {agents}")
    third = finish(run.rewind("before b's 1st answer", config=team))
    assert third.view.agents["b"].answers[0] == "answer of critic"
    assert run.view.agents["b"].answers[0] == "answer of n"


def test_agents_that_choose_their_models_keep_them_and_are_named(
    server: ModelServer, tmp_path: Path
) -> None:
    own = {"type": "python", "object": "tests.agents.programs.members:function"}
    ours = server.backend("openai", model="m")
    agents = [{"id": "a", "backend": ours}, {"id": "f", "backend": own}]
    team, options = TeamSpec.model_validate({"agents": agents}), RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("the task", team, session="s", options=options))
    said = "These agents choose their own model, not openai:other: f."
    assert said in str(run.preview_rewind(1, model="openai:other"))
    assert "themselves" not in str(run.preview_rewind(1))
    again = finish(run.rewind(1, config=team, model="openai:other"))
    assert said in again.view.notices
    assert again.view.agents["a"].model == "other"
    assert again.view.agents["f"].answers == run.view.agents["f"].answers


@pytest.mark.parametrize("times", [0, -1, 101])
def test_invalid_number_of_forks_is_refused(
    server: ModelServer, tmp_path: Path, times: int
) -> None:
    run = _played(server, tmp_path)
    with pytest.raises(UserError, match=f"can't be forked {times} times"):
        nb_agents.fork(run.path, 1, times=times)


def test_row_of_a_sweep_can_be_rewound_and_forked(server: ModelServer, tmp_path: Path) -> None:
    options = RunOptions(session_root=tmp_path)
    rows: list[dict[str, Any]] = [{"q": "one"}, {"q": "two"}]
    team = _team(server, "m")
    sweep = nb_agents.map(rows, "Answer: {{q}}", team, name="many", options=options)
    assert sweep.wait(WAIT_S).completed == 2
    row = Path(sweep.table()[0]["session"])
    before, calls = state(row / "turn_1"), server.count()
    again = finish(nb_agents.rewind(sweep.table()[0]["session"], "a's 1st write_file", team))
    assert (again.path, again.view.resumes) == (row / "turn_2", 1)
    point = again.view.point
    made = server.count() - calls
    assert 0 < made < calls / 2
    tried = nb_agents.fork(str(row / "turn_1"), point, team, times=2)
    assert tried.wait(WAIT_S).completed == 2
    assert server.count() - calls - made == 2 * made
    # Next to the sweep, whose own rows are not changed.
    assert tried.path.parent == tmp_path and is_sweep(tried.path)
    assert state(row / "turn_1") == before
    assert {record["answer"] for record in tried.table()} == {again.result}


def test_command_line_starts_forks_and_prints_a_table(server: ModelServer, tmp_path: Path) -> None:
    run = _played(server, tmp_path)
    words = ("rewind", "s/1", "--to", "a's 1st write_file", "--times", "2")
    words += ("--model", "openai:other", "--session-root", str(tmp_path))
    said = call_here(*words)
    assert said.count("answer of other") == 2
    assert "try 1: complete" in said
    calls = server.count()
    told = told_here(*words)
    assert [row["answer"] for row in told["rows"]] == ["answer of other"] * 2
    assert (told["status"], server.count()) == ("completed", calls)
    assert run.result == "answer of m"


def test_arguments_of_version_0_1_still_work_with_a_warning(
    server: ModelServer, tmp_path: Path
) -> None:
    run = _played(server, tmp_path)
    with pytest.warns(DeprecationWarning, match=r"Use nb_agents\.fork\(\)"):
        old: Any = nb_agents.rewind
        first = old(run.path, 1, times=1)
    assert first.wait(WAIT_S).completed == 1
    with pytest.warns(DeprecationWarning) as warned:
        method: Any = run.rewind
        second = method(1, "Think of the cost, too.", times=1)
    assert second.wait(WAIT_S).completed == 1
    assert [str(each.message) for each in warned] == [
        "Pass say to rewind() by name: say='Think of the cost, too.'.",
        "rewind(times=) is deprecated. Use nb_agents.fork().",
    ]
    assert {Path(each.filename).name for each in warned} == {"test_forks.py"}
