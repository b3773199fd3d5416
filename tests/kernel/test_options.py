"""Options of a run on the cell line: a variable of the notebook holds them."""

from __future__ import annotations

from tests.kernel.notebook import Notebook
from tests.model_server import Reply

ONCE = (
    "from nb_agents.options import Retry, RunOptions\n"
    "told = []\n"
    "once = RunOptions(\n"
    "    retry=Retry(attempts=0), on_failed=lambda error: told.append(str(error))\n"
    ")"
)


def test_a_cell_takes_the_options_that_a_variable_holds(notebook: Notebook) -> None:
    notebook.server.default = Reply(status=500, error="Overloaded.")
    assert notebook.kernel.run(ONCE).status == "ok"
    turn = notebook.start("--options once")
    turn.wait_over()
    assert turn.metadata["run_status"] == "failed"
    assert {event.get("retry_in_s") for event in turn.events("model_failed")} == {None}
    notebook.kernel.run("%agents wait")
    assert notebook.kernel.run("len(told)").value == "1"


def test_a_resume_takes_them_too(notebook: Notebook) -> None:
    notebook.server.default = Reply(status=500, error="Overloaded.")
    notebook.kernel.run(ONCE)
    turn = notebook.start("--options once")
    turn.wait_over()
    notebook.kernel.run(f"%agents resume {turn.session} --options once --wait")
    assert notebook.kernel.run("len(told)").value == "2"


def test_options_that_are_not_there_or_none_are_told_in_a_sentence(notebook: Notebook) -> None:
    notebook.kernel.run("seven = 7")
    for name, why in (
        ("nowhere", "no variable 'nowhere' is defined. Define it in a cell before"),
        ("seven", "'seven' is of type int, not RunOptions."),
    ):
        error = notebook.kernel.run(notebook.magic(f"--options {name}")).error
        assert error
        assert why in error.evalue
    assert notebook.server.requests == []


def test_a_file_that_the_task_names_may_be_read_and_not_one_that_a_variable_names(
    notebook: Notebook,
) -> None:
    for name in ("typed.md", "held.md"):
        (notebook.root.parent / name).write_text("x")
    folder = notebook.root.parent
    notebook.kernel.run(f"held = '@{folder}/held.md'")
    task = f"Compare @{folder}/typed.md with {{{{held}}}}."
    assert notebook.kernel.run(notebook.magic("--wait --out run", task)).status == "ok"
    asked = notebook.server.requests[0].prompt
    assert f"Compare {folder}/typed.md with @{folder}/held.md." in asked
    # Once in the task; what may be read is listed besides.
    assert asked.count("held.md") == 1 and asked.count("typed.md") == 2
