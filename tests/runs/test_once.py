"""The same request made again: `nb_agents.once`."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.config.team import TeamSpec
from nb_agents.errors import RunNotFinished
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.team_kit import finish, start


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_the_same_request_returns_the_turn_that_it_has_had(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("first"), Answer("second"), Answer("third"), Answer("fourth"))
    options = RunOptions(session_root=tmp_path)
    team = scripted_team(None, a=model)
    first = nb_agents.once("the task", team, options=options)
    assert first.wait() == "first"
    again = nb_agents.once("the task ", team, options=options)
    assert (again.path, again.wait(), again.result) == (first.path, "first", "first")
    assert nb_agents.once("another task", team, options=options).wait() == "second"
    with_tool = nb_agents.once("the task", team, tools=[double], options=options)
    assert with_tool.wait() == "third"
    assert nb_agents.once("the task", team, options=options, fresh=True).wait() == "fourth"
    assert nb_agents.once("the task", team, options=options).wait() == "fourth"


def test_a_team_that_has_changed_is_another_request(tmp_path: Path) -> None:
    options = RunOptions(session_root=tmp_path)
    slow = "agents:\n  - id: solo\n    backend: {type: demo, words_per_second: 2000}\n"
    file = tmp_path / "team.yaml"
    file.write_text(slow)
    first = finish(nb_agents.once("the task", file, options=options))
    file.write_text(f"# a comment\n{slow}")
    assert nb_agents.once("the task", file, options=options).path == first.path
    assert nb_agents.once("the task", TeamSpec.from_file(file), options=options).path == first.path
    file.write_text(slow.replace("solo", "duo"))
    assert finish(nb_agents.once("the task", file, options=options)).path != first.path


def test_a_strangers_turn_of_the_same_request_is_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = (
        ScriptedModel(Answer("theirs"), Answer("mine")),
        RunOptions(session_root=tmp_path),
    )
    team = scripted_team(None, a=model)
    with monkeypatch.context() as as_another:
        as_another.setenv("XDG_STATE_HOME", str(tmp_path / "home of another"))
        assert nb_agents.once("the task", team, options=options).wait() == "theirs"
    assert nb_agents.once("the task", team, options=options).wait() == "mine"
    assert nb_agents.once("the task", team, options=options).wait() == "mine"


def test_a_live_run_has_no_result_yet_and_says_so(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    with pytest.raises(RunNotFinished, match=f"^{run.id} is still working"):
        run.result  # noqa: B018
    gate.open()
    assert finish(run).result == "A's"


def test_a_timeline_is_a_sequence_of_its_entries(tmp_path: Path) -> None:
    timeline = finish(start(tmp_path, a=ScriptedModel(Answer("A's")))).timeline
    assert timeline[:2] == timeline.entries[:2]
    assert timeline[-1] is timeline.entries[-1]
    assert (len(timeline), [*timeline]) == (len(timeline.entries), [*timeline.entries])
