"""A command that starts a run, and an interrupt before it waits for it."""

import signal
from pathlib import Path

import pytest

import nb_agents
from nb_agents.cli.application import INCOMPLETE
from nb_agents.cli.chat import Chat
from nb_agents.cli.run_end import begin_and_wait
from nb_agents.options import RunOptions
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Gate, ScriptedModel, Vote, scripted_team


class Interrupted:
    """Begins a run, which is interrupted at once; its model answers after that."""

    def __init__(self, root: Path) -> None:
        self.gate = Gate()
        # Two, as the only answer of a team is its result.
        self.team = scripted_team(
            **{
                agent: ScriptedModel(Answer("So.", gate=self.gate), Vote("agent1"))
                for agent in "ab"
            }
        )
        self.options = RunOptions(session_root=root)

    def begin(self, task: str = "Why?") -> Run:
        self.run = nb_agents.start(task, self.team, options=self.options)
        self.gate.wait_reached()
        signal.raise_signal(signal.SIGINT)
        self.gate.open()
        return self.run


def assert_stopped_gracefully(run: Run) -> None:
    assert run.view.stop is not None
    assert (run.view.stop.source, run.view.stop.level) == ("interrupt", "requested")
    assert run.status == "cancelled"


def test_an_interrupt_before_a_command_waits_stops_its_run_gracefully(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Interrupted(tmp_path)
    with pytest.raises(SystemExit) as left:
        begin_and_wait(case.begin, as_json=True)
    assert left.value.code == INCOMPLETE
    assert case.run.session in capsys.readouterr().out
    assert_stopped_gracefully(case.run)


def test_an_interrupt_of_a_command_that_does_not_wait_is_none_of_its_run(tmp_path: Path) -> None:
    case = Interrupted(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        begin_and_wait(case.begin, as_json=True, is_detached=True)
    case.gate.open()
    assert "So." in case.run.wait()


def test_an_interrupt_before_a_chat_waits_stops_the_turn_and_the_chat_goes_on(
    tmp_path: Path,
) -> None:
    case, told = Interrupted(tmp_path), list[str]()
    Chat(case.begin, lambda run: "its end", told.append).talk(["Why?"])
    assert_stopped_gracefully(case.run)
    assert "its end" in told
    assert told.count("You:") == 2
