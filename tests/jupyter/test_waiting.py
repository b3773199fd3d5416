"""A cell that waits for its run, and an interrupt at any moment of it."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

import nb_agents
from nb_agents.jupyter import kernel, verbs
from nb_agents.options import RunOptions
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team


def test_an_interrupt_while_the_panel_is_made_stops_the_run_and_not_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", gate=gate)))
    run = nb_agents.start("Why?", team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()

    def show(_: Run) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(verbs, "show_run", show)
    monkeypatch.setattr(kernel, "has_front_end", lambda ip: True)
    shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True))
    verbs.follow(shell, run, wait=True)
    assert run.view.stop is not None
    assert (run.status, run.view.stop.source) == ("cancelled", "interrupt")


@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupt_as_soon_as_there_is_a_run_stops_it_if_its_cell_was_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", gate=gate)))
    begun: list[Run] = []

    def begin() -> Run:
        begun.append(nb_agents.start("Why?", team, options=RunOptions(session_root=tmp_path)))
        signal.raise_signal(signal.SIGINT)
        return begun[0]

    monkeypatch.setattr(verbs, "show_run", lambda run: gate.open())
    monkeypatch.setattr(kernel, "has_front_end", lambda ip: True)
    shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True), user_ns={})
    if waits:
        verbs.follow_new(shell, begin, wait=True, out="run")
        assert shell.user_ns["run"] is begun[0]
        assert begun[0].view.stop is not None
        assert begun[0].view.stop.source == "interrupt"
        return
    with pytest.raises(KeyboardInterrupt):
        verbs.follow_new(shell, begin, wait=False)
    gate.open()
    assert "So." in str(begun[0].wait())
