"""The estimate of a run's cost before it starts: in checks, in the panel, and for sweeps."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import nb_agents
from nb_agents import RunOptions, TeamSpec
from tests.kit.cards import CELL
from tests.kit.runs import Budget, Run
from tests.kit.sessions import TurnPaths
from tests.kit.sweeps import sweep_notices
from tests.kit.teams import (
    Estimate,
    PastRun,
    Price,
    check_file,
    check_lines,
    estimate_of,
    past_runs,
    prices_of,
    start_lines,
)
from tests.kit.verbs import Caller, check
from tests.model_server import ModelServer, Reply, ToolCall
from tests.team_kit import WAIT_S, finish

MODEL = "gpt-4o"
"""A model that genai-prices knows: $2.50 per million input tokens and $10 for output."""


def team_of(server: ModelServer, *models: str, **orchestrator: Any) -> TeamSpec:
    names = models or (MODEL,)
    backends = [server.backend("openai", model=model, api_key="k") for model in names]
    agents = [{"id": f"a{n}", "backend": each} for n, each in enumerate(backends)]
    return TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})


def answer_with(server: ModelServer, tokens: int, model: str = MODEL) -> None:
    """Let the next run's single call use this many input tokens."""
    done = ToolCall("new_answer", {"content": "done"})
    server.script(model, Reply(tool_calls=(done,), input_tokens=tokens, output_tokens=0))


def run_once(root: Path, server: ModelServer, tokens: int = 40_000, **more: Any) -> Run:
    answer_with(server, tokens)
    options = RunOptions(session_root=root)
    return finish(nb_agents.start("t", team_of(server), options=options, **more))


def file_of(tmp_path: Path, team: TeamSpec) -> str:
    path = tmp_path / "team.yaml"
    path.write_text(yaml.safe_dump(team.model_dump(mode="json", exclude_unset=True)))
    return str(path)


def checked(tmp_path: Path, root: Path, team: TeamSpec) -> str:
    """The lines of a check about the cost."""
    lines = check_file(file_of(tmp_path, team), root=root).lines
    return "\n".join(line for line in lines if line.startswith(("Estimate", "The price")))


# Sentences

PAST = tuple(PastRun(3, 12, 1_000 * n, 0.1 * n) for n in (2, 3, 4))
PRICES = {"m": Price(0.25, 2.0)}


def test_estimate_has_the_range_of_earlier_runs_as_its_basis() -> None:
    assert check_lines(Estimate(3, PAST, PRICES)) == [
        "Estimate: 3 agents, about 4 model calls each. The last 3 completed runs of this team cost "
        "$0.20–0.40."
    ]


@pytest.mark.parametrize(
    ("limit", "asks", "said"),
    [
        (0.5, False, ""),
        (0.3, False, "That can exceed the budget of $0.30, at which the run stops."),
        (0.3, True, "That can exceed the budget of $0.30, at which the run asks you to raise it."),
    ],
)
def test_estimate_above_the_budget_says_what_happens_then(
    limit: float, asks: bool, said: str
) -> None:
    [line] = check_lines(Estimate(3, PAST, PRICES, Budget(max_cost=limit), asks))
    assert line.endswith(said or "$0.20–0.40.")


def test_rows_multiply_the_estimate_and_share_the_budget() -> None:
    [line] = start_lines(Estimate(3, PAST, PRICES, Budget(max_cost=1.0), rows=10))
    assert line.startswith("Estimate: 10 rows with 3 agents, about 4 model calls each.")
    assert "$0.20–0.40, so all rows together about $2.00–4.00." in line
    assert line.endswith("the budget of $1.00, at which the sweep stops.")


def test_without_earlier_runs_only_prices_are_stated() -> None:
    [line] = check_lines(Estimate(3, (), PRICES))
    assert line == (
        "Estimate: 3 agents, at least one model call each. No completed run of this team was found "
        "here. Prices of a million tokens: m $0.25 for input and $2.00 for output."
    )
    assert start_lines(Estimate(3, (), PRICES)) == []


def test_runs_without_a_known_cost_are_estimated_in_tokens() -> None:
    past = (PastRun(1, 2, 1_000, None), PastRun(1, 2, 3_000, None))
    estimate = Estimate(1, past, {"m": None}, Budget(max_tokens=2_000))
    first, price = check_lines(estimate)
    assert "used 1,000–3,000 tokens. That can exceed the budget of 2,000 tokens" in first
    assert price == "The price of m is unknown. Its cost is not shown."
    assert start_lines(estimate) == [first]


def test_free_models_need_no_estimate() -> None:
    assert check_lines(Estimate(3)) == []


# Prices


def test_prices_are_those_with_which_calls_are_counted(server: ModelServer, tmp_path: Path) -> None:
    prices = prices_of(team_of(server, MODEL, "no-such-model").agents)
    assert prices["no-such-model"] is None
    price = prices[MODEL]
    run = run_once(tmp_path, server, 40_000)
    assert price is not None
    assert run.receipt.cost == pytest.approx(price.input * 0.04)


# Earlier runs


def test_check_uses_the_last_five_runs_of_the_team(tmp_path: Path, server: ModelServer) -> None:
    root = tmp_path / "sessions"
    team = team_of(server)
    assert "No completed run of this team" in checked(tmp_path, root, team)
    for tokens in (4_000_000, 40_000, 80_000, 120_000, 160_000, 200_000):
        run_once(root, server, tokens)
    assert checked(tmp_path, root, team) == (
        "Estimate: 1 agent, about 1 model call. The last 5 completed runs of this team cost "
        "$0.10–0.50."
    )


def test_team_is_recognized_by_its_models(tmp_path: Path, server: ModelServer) -> None:
    root = tmp_path / "sessions"
    run_once(root, server)
    assert "No completed run" in checked(tmp_path, root, team_of(server, "gpt-4o-mini"))
    assert "No completed run" in checked(tmp_path, root, team_of(server, MODEL, MODEL))
    team = team_of(server)
    renamed = team.model_copy(update={"agents": (team.agents[0].model_copy(update={"id": "b"}),)})
    assert "The last completed run of this team cost $0.10." in checked(tmp_path, root, renamed)


def test_stopped_run_is_counted_only_after_it_was_resumed(
    tmp_path: Path, server: ModelServer
) -> None:
    root = tmp_path / "sessions"
    read = ToolCall("list_files", {})
    server.script(MODEL, Reply(tool_calls=(read,), input_tokens=40_000, output_tokens=0))
    options = RunOptions(session_root=root, max_tokens=10)
    run = finish(nb_agents.start("t", team_of(server), session="s", options=options))
    assert run.receipt.source == "budget"
    assert "No completed run" in checked(tmp_path, root, team_of(server))

    answer_with(server, 80_000)
    resumed = finish(
        nb_agents.resume("s", options=RunOptions(session_root=root, max_tokens=1_000_000))
    )
    assert resumed.status == "completed"
    line = checked(tmp_path, root, team_of(server))
    assert "about 2 model calls. The last completed run of this team cost $0.30." in line


def test_copied_session_is_counted_once(tmp_path: Path, server: ModelServer) -> None:
    root = tmp_path / "sessions"
    run = run_once(root, server)
    shutil.copytree(run.path.parent, root / "copy")
    assert "The last completed run of this team" in checked(tmp_path, root, team_of(server))


@pytest.mark.parametrize("change", ["forged", "torn", "removed"])
def test_changed_journal_is_not_used(tmp_path: Path, server: ModelServer, change: str) -> None:
    root = tmp_path / "sessions"
    journal = TurnPaths(run_once(root, server).path).journal
    data = journal.read_bytes()
    changes: dict[str, Callable[[], object]] = {
        "forged": lambda: journal.write_bytes(data.replace(b"40000", b"90000")),
        "torn": lambda: journal.write_bytes(data[: len(data) // 2]),
        "removed": journal.unlink,
    }
    changes[change]()
    assert "No completed run" in checked(tmp_path, root, team_of(server))


def test_reading_is_limited(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sessions"
    run_once(root, server)
    monkeypatch.setattr(past_runs, "MAX_BYTES", 100)
    assert not estimate_of(team_of(server), RunOptions(session_root=root)).past


# Where it is shown


def test_check_has_the_estimate_as_text_and_as_data(tmp_path: Path, server: ModelServer) -> None:
    root = tmp_path / "sessions"
    run_once(root, server)
    team = team_of(server, max_cost=0.05)
    report = check_file(file_of(tmp_path, team), root=root)
    *_, estimate, verdict = report.lines
    assert verdict == "Can start."
    assert estimate.endswith("$0.10. That can exceed the budget of $0.05, at which the run stops.")
    assert report.estimate is not None
    assert report.estimate.facts() == {
        "agents": 1,
        "calls_each": 1,
        "runs": 1,
        "cost": [pytest.approx(0.1), pytest.approx(0.1)],
        "tokens": [40_000, 40_000],
        "unpriced": [],
    }


def test_new_session_shows_the_estimate_and_its_next_turn_does_not(
    tmp_path: Path, server: ModelServer
) -> None:
    assert not run_once(tmp_path, server).view.notices
    second = run_once(tmp_path, server, session="s")
    assert [each for each in second.view.notices if "Estimate" in each] == [
        "Estimate: 1 agent, about 1 model call. The last completed run of this team cost $0.10."
    ]
    third = run_once(tmp_path, server, session="s")
    assert not any("Estimate" in each for each in third.view.notices)


def test_unknown_prices_are_stated_once_before_a_start_with_a_budget(
    tmp_path: Path, server: ModelServer
) -> None:
    for model in ("no-such", "nor-this"):
        answer_with(server, 10, model)
    team = team_of(server, "no-such", "nor-this", skip_voting=True)
    options = RunOptions(session_root=tmp_path, max_cost=1.0)
    run = nb_agents.start("t", team, options=options)
    expected = (
        "The prices of no-such, nor-this are unknown. Their cost does not count towards max_cost.",
    )
    assert run.view.notices == expected
    assert finish(run).view.notices == expected

    free = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
    assert not any("price" in each for each in finish(free).view.notices)


def test_sweep_shows_one_estimate_for_all_rows(tmp_path: Path, server: ModelServer) -> None:
    run_once(tmp_path, server)
    answer_with(server, 40_000)
    rows = [{"q": n} for n in range(3)]
    options = RunOptions(session_root=tmp_path)
    sweep = nb_agents.map(rows, "Say {{q}}", team_of(server), max_cost=0.2, options=options)
    [line] = sweep_notices(sweep.path)
    assert "3 rows with 1 agent" in line
    assert "cost $0.10, so all rows together about $0.30." in line
    assert "the budget of $0.20" in line
    sweep.wait(WAIT_S)
    turns = [TurnPaths(path) for path in sweep.path.glob("*/turn_1")]
    assert turns and not any(b"Estimate" in turn.journal.read_bytes() for turn in turns)


def test_command_line_and_cell_use_the_session_root_of_their_caller(
    tmp_path: Path, server: ModelServer
) -> None:
    root = tmp_path / "sessions"
    run_once(root, server)
    found = check(file_of(tmp_path, team_of(server)), Caller("cli", CELL, root))
    assert found.reply.facts["estimate"]["runs"] == 1


def test_recipe_is_estimated_from_its_own_runs(tmp_path: Path, server: ModelServer) -> None:
    root, recipe = tmp_path / "sessions", tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: facts\ndescription: d\nversion: 1.0.0\n"
        "steps: [{id: one, agent: a0, prompt: Say., output: said}]\n"
    )
    team, options = team_of(server), RunOptions(session_root=root)
    run_once(root, server)  # of the same team, but not of the recipe
    arguments: dict[str, Any] = {"config": team, "recipe": recipe, "options": options}
    for _ in range(2):
        server.script(MODEL, Reply("done", input_tokens=80_000, output_tokens=0))
        run = finish(nb_agents.start(**arguments))
    expected = "Estimate: 1 agent, about 1 model call. The last completed run of this recipe "
    assert [each for each in run.view.notices if "Estimate" in each] == [f"{expected}cost $0.20."]
    report = check_file(str(recipe), file_of(tmp_path, team), root=root)
    expected = "Estimate: 1 agent, about 1 model call. The last 2 completed runs of this recipe "
    assert [each for each in report.lines if "Estimate" in each] == [f"{expected}cost $0.20."]
    assert report.estimate is not None and report.estimate.facts()["runs"] == 2
