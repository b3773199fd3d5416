"""A run is paused, asked and let go on from cells, also from later ones."""

from __future__ import annotations

from tests.kernel.notebook import Notebook

START = """
import threading
import nb_agents
from nb_agents.testing import ScriptedModel, Turn, scripted_team

team = scripted_team(None, a=ScriptedModel(Turn("I think ", hang=True)))
run = nb_agents.start("a task", team)
"""
STOP = "run.stop(now=True); run.wait_over()"
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
    """Start a run; give its id."""
    said(notebook, START)
    return said(notebook, "print(run.id)").strip()


def test_a_later_cell_pauses_and_continues_a_run(notebook: Notebook) -> None:
    run = begin(notebook)
    assert f"`%agents continue {run}` goes on" in said(notebook, "%agents pause")
    assert "paused" in said(notebook, "%agents")
    assert "awaiting" in said(notebook, "run.status")
    assert f"Run {run} goes on." in said(notebook, f"%agents continue {run}")
    assert f"Run {run} is not paused; it is in-progress." in said(notebook, "%agents continue")
    said(notebook, STOP)


def test_a_line_answers_a_question(notebook: Notebook) -> None:
    run = begin(notebook)
    said(notebook, ASK)
    assert "awaiting an answer" in said(notebook, "%agents")
    assert "has its answer" in said(notebook, f"%agents answer {run} Lyon, don't ask again")
    assert "Lyon, don't ask again" in said(notebook, "thread.join(); print(box[0])")
    assert "asks for no text" in said(notebook, f"%agents answer {run} Paris")
    said(notebook, STOP)
