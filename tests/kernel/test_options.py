"""Options of a run in the cell line, from a notebook variable."""

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


def test_cell_uses_options_from_a_variable(notebook: Notebook) -> None:
    notebook.server.default = Reply(status=500, error="Overloaded.")
    assert notebook.kernel.run(ONCE).status == "ok"
    turn = notebook.start("--options once")
    turn.wait_over()
    assert turn.metadata["run_status"] == "failed"
    assert {event.get("retry_in_s") for event in turn.events("model_failed")} == {None}
    notebook.kernel.run("%agents wait")
    assert notebook.kernel.run("len(told)").value == "1"


def test_resume_uses_options_from_a_variable(notebook: Notebook) -> None:
    notebook.server.default = Reply(status=500, error="Overloaded.")
    notebook.kernel.run(ONCE)
    turn = notebook.start("--options once")
    turn.wait_over()
    notebook.kernel.run(f"%agents resume {turn.session} --options once --wait")
    assert notebook.kernel.run("len(told)").value == "2"


def test_missing_or_invalid_options_are_reported_in_a_sentence(notebook: Notebook) -> None:
    notebook.kernel.run("seven = 7")
    for name, why in (
        ("nowhere", "variable 'nowhere' is not defined. Define it in an earlier cell"),
        ("seven", "'seven' is of type int, not RunOptions."),
    ):
        error = notebook.kernel.run(notebook.magic(f"--options {name}")).error
        assert error
        assert why in error.evalue
    assert notebook.server.requests == []


def test_file_named_in_the_task_is_readable_but_not_one_named_in_a_variable(
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
    # Once in the task, and once in the list of readable files.
    assert asked.count("held.md") == 1 and asked.count("typed.md") == 2
