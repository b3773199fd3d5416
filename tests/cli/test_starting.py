"""An interrupt between the start of a run and the wait for its end."""

import signal
from pathlib import Path

import pytest

import nb_agents
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, Vote, scripted_team
from tests.cli.calls import call_in
from tests.kit.runs import Run
from tests.kit.terminal import INCOMPLETE, USAGE, Chat, begin_and_wait


class Interrupted:
    """Starts a run and interrupts it immediately. Its model answers after that."""

    def __init__(self, root: Path) -> None:
        self.gate = Gate()
        # Two agents, because a single agent's answer is the result.
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


def test_interrupt_before_the_wait_stops_the_run_gracefully(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Interrupted(tmp_path)
    with pytest.raises(SystemExit) as left:
        begin_and_wait(case.begin, as_json=True)
    assert left.value.code == INCOMPLETE
    assert case.run.session in capsys.readouterr().out
    assert_stopped_gracefully(case.run)


def test_interrupt_of_a_detaching_command_does_not_stop_the_run(tmp_path: Path) -> None:
    case = Interrupted(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        begin_and_wait(case.begin, as_json=True, is_detached=True)
    case.gate.open()
    assert "So." in case.run.wait()


def test_interrupt_before_a_chat_waits_stops_the_turn_but_not_the_chat(
    tmp_path: Path,
) -> None:
    case, told = Interrupted(tmp_path), list[str]()
    Chat(case.begin, lambda run: "its end", told.append).talk(["Why?"])
    assert_stopped_gracefully(case.run)
    assert "its end" in told
    assert told.count("You:") == 2


@pytest.mark.parametrize(
    "words, key",
    [
        (("--model", "gemini-2.5-flash"), "GEMINI_API_KEY"),
        (("--backend", "openai", "--model", "gpt-4o-mini"), "OPENAI_API_KEY"),
    ],
)
def test_massgen_command_lines_find_their_provider(
    place: Path, words: tuple[str, ...], key: str
) -> None:
    line = ("run", "--orchestrator-timeout", "300", *words, "Explain entanglement.")
    assert key in call_in("utf-8", *line, code=USAGE)
