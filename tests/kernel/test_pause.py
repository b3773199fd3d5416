"""Pause, unpause and answer a run from cells, also from later ones and other kernels."""

from __future__ import annotations

from collections.abc import Callable

from tests.kernel.notebook import Notebook

START = """
import threading
import nb_agents
from nb_agents.testing import ScriptedModel, Turn, scripted_team

team = scripted_team(None, a=ScriptedModel(Turn("I think ", hang=True)))
run = nb_agents.start("a task", team)
"""
STOP = "run.stop(now=True); run.wait(raise_on_stop=False)"
ASK = """
box = []
thread = threading.Thread(target=lambda: box.append(run.wait_for_input("Which city?")))
thread.start()
while not run.view.gates:
    pass
"""


def said(notebook: Notebook, cell: str) -> str:
    return notebook.text(notebook.kernel.run(cell))


def begin(notebook: Notebook) -> str:
    """Start a run and return its id."""
    said(notebook, START)
    return said(notebook, "print(run.id)").strip()


def test_later_cell_pauses_and_unpauses_a_run(notebook: Notebook) -> None:
    run = begin(notebook)
    assert f"`%agents unpause {run}` continues it" in said(notebook, "%agents pause")
    assert "paused" in said(notebook, "%agents")
    assert "awaiting" in said(notebook, "run.status")
    assert f"Run {run} continues." in said(notebook, f"%agents unpause {run}")
    assert f"Run {run} is not paused; it is running." in said(notebook, "%agents continue")
    said(notebook, STOP)


def test_a_line_answers_a_question(notebook: Notebook) -> None:
    run = begin(notebook)
    said(notebook, ASK)
    assert "awaiting an answer" in said(notebook, "%agents")
    assert "The answer was sent" in said(notebook, f"%agents answer {run} Lyon, don't ask again")
    assert "Lyon, don't ask again" in said(notebook, "thread.join(); print(box[0])")
    assert "has no open question" in said(notebook, f"%agents answer {run} Paris")
    said(notebook, STOP)


ASK_TWICE = """
def ask(function, question):
    asked = len(run.view.gates)
    threading.Thread(target=lambda: box.append(function(question))).start()
    while len(run.view.gates) == asked:
        pass

box = []
ask(run.wait_for_input, "Which city?")
ask(run.wait_for_approval, "Publish it?")
"""
LEFT = "while len(box) < %d: pass\nprint(box[-1], list(run.view.gates))"


def test_approval_does_not_answer_a_text_question(notebook: Notebook) -> None:
    run = begin(notebook)
    said(notebook, ASK_TWICE)
    told = said(notebook, f"%agents approve {run} Fine.")
    assert told.strip() == f"Approved “Publish it?” of run {run}."
    assert "message='Fine.'" in said(notebook, LEFT % 1)
    assert f"or `%agents answer {run} TEXT`" in said(notebook, f"%agents approve {run}")
    assert "['input #1']" in said(notebook, LEFT % 1)
    said(notebook, f"%agents answer {run} Lyon")
    assert "Lyon []" in said(notebook, LEFT % 2)
    said(notebook, STOP)


def test_stopped_run_does_not_wait_for_approval(notebook: Notebook) -> None:
    run = begin(notebook)
    said(notebook, ASK)
    said(notebook, STOP)
    for verb in ("approve", "deny"):
        assert "is not waiting for an approval; it is stopped" in said(
            notebook, f"%agents {verb} {run}"
        )


def test_line_denies_a_text_question(notebook: Notebook) -> None:
    run = begin(notebook)
    said(notebook, ASK)
    assert "Denied the question of run" in said(notebook, f"%agents deny {run} No idea.")
    assert "[]" in said(notebook, "thread.join(); print(box)")
    said(notebook, STOP)


def test_insufficient_approval_is_reported(notebook: Notebook) -> None:
    begin(notebook)
    said(notebook, STOP)
    both = "approval=nb_agents.options.ApprovalConfig(required_approvals=2)"
    options = f"options=nb_agents.RunOptions({both})"
    said(notebook, START.replace("team)\n", f"team, {options})\n"))
    run = said(notebook, "print(run.id)").strip()
    said(notebook, ASK_TWICE)
    told = said(notebook, f"%agents approve {run}")
    assert "is not decided yet: it waits for more approvals." in told
    said(notebook, STOP)


def test_another_kernel_approves_denies_answers_pauses_and_shows_a_run(
    notebook: Notebook, open_notebook: Callable[..., Notebook]
) -> None:
    begin(notebook)
    other, run = open_notebook(), said(notebook, "print(f'{run.session}/{run.turn}')").strip()
    said(notebook, "while not run.view.agents['a'].partial: pass")
    said(notebook, ASK_TWICE)
    told = said(other, f"%agents approve {run} Fine.")
    assert told.strip() == f"Approved “Publish it?” of run {run}."
    assert "approved=True" in (left := said(notebook, LEFT % 1)) and "message='Fine.'" in left
    assert f"The answer was sent to run {run}." in said(other, f"%agents answer {run} Lyon")
    assert "Lyon []" in said(notebook, LEFT % 2)
    said(notebook, "ask(run.wait_for_approval, 'Publish it?')")
    assert "Denied “Publish it?”" in said(other, f"%agents deny {run} Not yet.")
    assert "approved=False" in (left := said(notebook, LEFT % 3)) and "message='Not yet.'" in left
    assert f"`%agents unpause {run}` continues it" in said(other, f"%agents pause {run}")
    assert "True" in said(notebook, "run.view.is_paused")
    shown = other.turn_of(other.kernel.send(f"%agents show {run}"))
    state = other.panel(shown).state["state"]
    assert (state["chip"], state["agents"][0]["says"].strip()) == ("paused", "I think")
    assert f"Run {run} continues." in said(other, f"%agents continue {run}")
    assert "False" in said(notebook, "run.view.is_paused")
    said(notebook, STOP)


TWO = START.replace("hang=True)))", "hang=True)), b=ScriptedModel(Turn('I too ', hang=True)))")


def test_finished_agent_is_not_stopped_again(notebook: Notebook) -> None:
    said(notebook, TWO)
    run = said(notebook, "print(run.id)").strip()
    stop = f"%agents stop {run} --agent a --now"
    assert f"Agent a of run {run} is stopping now." in said(notebook, stop)
    said(notebook, "while not run.view.agents['a'].outcome: pass")
    assert f"Agent a of run {run} is already over; nothing was changed." in said(notebook, stop)
    said(notebook, STOP)
