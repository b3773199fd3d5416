"""Interrupts of a cell that waits for its run, at any moment."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nb_agents
from nb_agents.jupyter import waiting
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.kit.cells import AgentsMagics, kernel
from tests.kit.runs import Run
from tests.kit.sweeps import Sweep, mapping, sweep_cells


def test_interrupt_while_the_panel_is_made_stops_the_run_but_not_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", gate=gate)))
    run = nb_agents.start("Why?", team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()

    def show(*_: Run | None) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(waiting, "show_run", show)
    monkeypatch.setattr(kernel, "has_front_end", lambda ip: True)
    shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True))
    waiting.follow(shell, run, wait=True)
    assert run.view.stop is not None
    assert (run.status, run.view.stop.source) == ("cancelled", "interrupt")


class Cell:
    """A cell that is interrupted right after its run starts. The run waits until it is shown."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, is_watched: bool) -> None:
        self.gate = Gate()
        self.team = scripted_team(a=ScriptedModel(Answer("So.", gate=self.gate)))
        self.options = RunOptions(session_root=root)
        kernel_of = SimpleNamespace(_allow_stdin=is_watched, get_parent=dict)
        self.shell = SimpleNamespace(kernel=kernel_of, user_ns={})
        monkeypatch.setattr(waiting, "show_run", lambda *_: self.gate.open())
        monkeypatch.setattr(kernel, "has_front_end", lambda ip: True)

    def begin(self) -> tuple[Run, bool]:
        self.run = nb_agents.start("Why?", self.team, options=self.options)
        signal.raise_signal(signal.SIGINT)
        return self.run, False


@pytest.mark.parametrize(("wait", "is_watched"), [(True, True), (True, False), (False, False)])
def test_interrupt_right_after_the_start_stops_the_run_of_a_waiting_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, is_watched: bool
) -> None:
    cell = Cell(tmp_path, monkeypatch, is_watched)
    waiting.follow_new(cell.shell, cell.begin, wait=wait, out="run")
    assert cell.shell.user_ns["run"] is cell.run
    assert cell.run.view.stop is not None
    assert cell.run.view.stop.source == "interrupt"


def test_interrupt_of_a_cell_that_does_not_wait_does_not_stop_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(tmp_path, monkeypatch, is_watched=True)
    with pytest.raises(KeyboardInterrupt):
        waiting.follow_new(cell.shell, cell.begin, wait=False)
    cell.gate.open()
    assert "So." in cell.run.wait()
    assert cell.run.view.stop is None


def test_interrupt_right_after_the_start_stops_the_sweep_of_a_waiting_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, made = Gate(), list[Sweep]()
    team = scripted_team(a=ScriptedModel(Answer("So.", gate=gate)))
    start_all = mapping.map_verbatim

    def begin(*args: Any, **more: Any) -> Sweep:
        made.append(start_all(*args, **more))
        gate.wait_reached()
        signal.raise_signal(signal.SIGINT)
        gate.open()
        return made[0]

    monkeypatch.setattr(sweep_cells, "map_verbatim", begin)
    shell = SimpleNamespace(user_ns={"rows": [{"q": "one"}, {"q": "two"}]})
    args = AgentsMagics.agents.parser.parse_args(["--over", "rows", "--limit", "1", "--wait"])
    options = RunOptions(session_root=tmp_path)
    monkeypatch.setattr(sweep_cells, "team_from_options", lambda *_: team)
    assert sweep_cells.start_sweep(shell, args, "Why {{q}}?", options) is made[0]
    assert (made[0].status, made[0].view.completed) == ("cancelled", 1)
