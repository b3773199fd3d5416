"""Sweeps in a notebook: one cell for all rows, and every stop of the kernel reaches them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.kernel.notebook import Notebook
from tests.kit.sweeps import fold_notes
from tests.model_server import Reply, ToolCall

TASK = "Answer: {{q}}"
ROWS = "rows = [{'q': f'what is {n}?'} for n in range(6)]"


@pytest.fixture
def sweeping(notebook: Notebook) -> Notebook:
    """A notebook with rows, and one agent that answers immediately."""
    return prepared(notebook)


def prepared(notebook: Notebook) -> Notebook:
    (notebook.team).write_text(
        "agents:\n  - id: ada\n    backend: {type: chatcompletion, model: one, api_key: k, "
        f"base_url: '{notebook.server.url}'}}\n"
    )
    answer = ToolCall("new_answer", {"content": "So it is."})
    notebook.server.default = Reply(text="one two three four ", tool_calls=(answer,))
    assert notebook.kernel.run(ROWS).status == "ok"
    return notebook


def cell(notebook: Notebook, options: str = "") -> str:
    return notebook.magic(f"--over rows --limit 2 --name all --out sweep {options}", TASK)


def test_cell_runs_all_rows_and_a_rerun_resumes(sweeping: Notebook) -> None:
    kernel = sweeping.kernel
    assert kernel.run(cell(sweeping, "--wait")).status == "ok"
    assert kernel.run("[r['answer'] for r in sweep.table()]").value == str(["So it is."] * 6)
    assert "6 of 6" in sweeping.text(kernel.run("%agents sweeps"))
    assert kernel.run("rows.append({'q': 'one more?'})").status == "ok"
    assert kernel.run(cell(sweeping, "--wait")).status == "ok"
    assert kernel.run("sweep.view.completed").value == "7"
    assert len(sweeping.server.requests) == 7


@pytest.mark.parametrize("door", ["interrupt", "magic", "panel"])
def test_no_row_starts_after_a_stop_of_the_kernel(sweeping: Notebook, door: str) -> None:
    kernel, server = sweeping.kernel, sweeping.server
    server.hold(after=3)
    assert kernel.run(cell(sweeping)).status == "ok"
    server.wait_open(2)
    if door == "interrupt":
        kernel.interrupt()
    elif door == "magic":
        assert "no further row" in sweeping.text(kernel.run("%agents stop"))
    else:
        kernel._send("control", "nb_agents_stop_request", {"sweep": "all", "immediate": False})
    kernel.wait_until(lambda: kernel.run("sweep.status").value == "'stopping'", 60, "the stop")
    server.release()
    assert kernel.run("sweep.wait().status").value == "'cancelled'"
    assert len(server.requests) == 2
    assert len(fold_notes(sweeping.root / "all").results) == 2


def test_line_steers_the_sweep_of_the_notebook(sweeping: Notebook) -> None:
    kernel, server = sweeping.kernel, sweeping.server
    server.hold(after=3)
    assert kernel.run(cell(sweeping)).status == "ok"
    server.wait_open(2)
    assert "at most 4 rows" in sweeping.text(kernel.run("%agents steer --limit 4"))
    server.wait_open(4)
    wrong = kernel.run("%agents steer all --pause-model opnai")
    assert "No row of the sweep uses 'opnai'" in sweeping.text(wrong)
    server.release()
    kernel.run("%agents wait all")


def test_a_function_of_the_notebook_scores_each_answer(sweeping: Notebook) -> None:
    kernel = sweeping.kernel
    score = "def lengths(task, answer):\n    return len(task) + len(answer)"
    assert kernel.run(score).status == "ok"
    assert kernel.run(cell(sweeping, "--score lengths")).status == "ok"
    assert kernel.run("(await sweep).status").value == "'completed'"
    asked, answer = "Answer: what is 1?", "So it is."
    scores = str([float(len(asked) + len(answer))] * 6)
    assert kernel.run("[r['score'] for r in sweep.table()]").value == scores
    assert f"Score: {len(asked) + len(answer)}\n" in sweeping.text(kernel.run("%agents show all"))


def test_failed_rows_are_retried_on_request(sweeping: Notebook) -> None:
    kernel, server = sweeping.kernel, sweeping.server
    good, bad = server.default, Reply(status=400, error="no")
    assert isinstance(good, Reply)
    server.script("one", lambda request: bad if "is 1?" in request.prompt else good)
    assert kernel.run(cell(sweeping, "--wait")).status == "ok"
    assert kernel.run("sweep.view.failed").value == "1"
    server.script("one", good)
    asked = len(server.requests)
    assert kernel.run(cell(sweeping, "--wait")).status == "ok"
    assert (kernel.run("sweep.view.failed").value, len(server.requests)) == ("1", asked)
    assert kernel.run(cell(sweeping, "--wait --retry-failed")).status == "ok"
    assert (kernel.run("sweep.view.completed").value, len(server.requests)) == ("6", asked + 1)


def test_line_resumes_a_sweep_and_retries_failed_rows(sweeping: Notebook) -> None:
    kernel, server = sweeping.kernel, sweeping.server
    answers, server.default = server.default, Reply(status=400, error="Bad.")
    assert kernel.run(cell(sweeping, "--wait")).status == "ok"
    assert kernel.run("sweep.view.failed").value == "6"
    server.default = answers
    resumed = kernel.run("%agents resume all --retry-failed")
    assert resumed.status == "ok", resumed
    kernel.run("%agents wait all")
    assert "6 of 6" in sweeping.text(kernel.run("%agents sweeps"))
    wrong = kernel.run("%agents resume --retry-failed")
    assert "is an option for sweeps" in sweeping.text(wrong)


def test_budget_and_path_apply_to_all_rows(sweeping: Notebook) -> None:
    kernel, server = sweeping.kernel, sweeping.server
    (sweeping.place / "notes.md").write_text("notes")
    asked = sweeping.magic(
        "--over rows --limit 1 --max-cost 1 --wait --out sweep",
        f"Answer {{{{q}}}} by @{sweeping.place}/notes.md",
    )
    assert kernel.run(asked).status == "ok"
    assert "price is unknown" in str(kernel.run("sweep.view.reason").value)
    assert len(server.requests) < 6
    assert f"{sweeping.place}/notes.md" in server.requests[0].prompt
    assert "list_files" in server.requests[0].tool_names


def test_line_runs_a_recipe_on_rows_of_a_file_and_prunes_old_sessions(
    sweeping: Notebook,
) -> None:
    kernel, place = sweeping.kernel, sweeping.place
    (place / "rows.csv").write_text("q\none\ntwo\n")
    steps = "steps:\n  - {id: say, type: bash, command: 'echo {{q}}', output: said}\n"
    (place / "shout.yaml").write_text(f"name: shout\ndescription: d\nversion: 1.0.0\n{steps}")
    line = f"--over {place}/rows.csv --recipe {place}/shout.yaml --config {sweeping.team}"
    assert kernel.run(f"%agents {line} --name said --wait --out sweep").status == "ok"
    assert kernel.run("[r['said'].strip() for r in sweep.table()]").value == "['one', 'two']"

    for path in (sweeping.root / "said").glob("*/turn_1/*"):
        os.utime(path, (0, 0))
    prune = "%agents prune --older 30d"
    assert "--yes" in sweeping.text(kernel.run(prune))
    assert len([*(sweeping.root / "said").glob("*/turn_1")]) == 2
    assert kernel.run(f"{prune} --yes").status == "ok"
    assert not [*(sweeping.root / "said").glob("*/turn_1")]


def test_stopped_run_resumes_on_a_cluster(sweeping: Notebook) -> None:
    kernel, server = sweeping.kernel, sweeping.server
    server.hold(after=3)
    assert kernel.run(sweeping.magic("--session alone --out run", "Hello")).status == "ok"
    server.wait_open(1)
    assert kernel.run("%agents stop --now").status == "ok"
    assert kernel.run("run.wait(raise_on_stop=False)").status == "ok"
    server.release()
    assert kernel.run("%agents resume alone --cluster local:1 --wait").status == "ok"
    again = "__import__('nb_agents').runs()[-1]"
    assert kernel.run(f"({again}.result, {again}.where[:7])").value == "('So it is.', 'worker ')"


def test_verbs_without_a_name_refer_to_the_sweep(sweeping: Notebook) -> None:
    kernel, server, text = sweeping.kernel, sweeping.server, sweeping.text
    server.hold(after=1)
    assert kernel.run(cell(sweeping)).status == "ok"
    server.wait_open(2)
    listed = text(kernel.run("%agents"))
    assert listed.count("running") == 1 and "0 of 6" in listed
    assert "Sweep all is paused" in text(kernel.run("%agents pause"))
    kernel.wait_until(lambda: kernel.run("sweep.status").value == "'paused'", 60, "the pause")
    assert "Sweep all continues" in text(kernel.run("%agents continue"))
    assert "0 of 6" in text(kernel.run("%agents show"))
    assert "is already running" in str(kernel.run(cell(sweeping)).error)

    # Then a sweep that started later is meant.
    assert kernel.run(sweeping.magic("--session alone --out alone", "Hello")).status == "ok"
    server.wait_open(3)
    assert "alone" in text(kernel.run("%agents show"))
    assert "Run " in text(kernel.run("%agents stop --now"))
    assert kernel.run("alone.wait(raise_on_stop=False)").status == "ok"
    assert "Sweep all is stopping" in text(kernel.run("%agents stop"))
    server.release()
    assert kernel.run("%agents wait").status == "ok"
    assert kernel.run("sweep.status").value == "'cancelled'"
    stopped = "of 6 rows are complete. Nothing was lost."
    assert stopped in text(kernel.run("%agents show all"))
    assert "%agents sweeps" in text(kernel.run("%agents sessions"))


def test_new_kernel_reports_a_sweep_after_its_kernel_died(
    open_notebook: Callable[..., Notebook],
) -> None:
    died = prepared(open_notebook())
    died.server.hold(after=3)
    assert died.kernel.run(cell(died)).status == "ok"
    died.server.wait_open(2)
    died.kernel.kill()
    died.server.release()
    notebook = prepared(open_notebook(load=False))
    told = notebook.text(notebook.kernel.run("%load_ext nb_agents"))
    assert "Sweep all: its kernel died with 0 of 6 rows complete. Run the cell again" in told
    assert notebook.kernel.run(cell(notebook, "--wait")).status == "ok"
    assert notebook.kernel.run("sweep.view.completed").value == "6"
    assert len(notebook.server.requests) == 2 + 6
    told = notebook.text(notebook.kernel.run("%reload_ext nb_agents"))
    assert "Sweep" not in told


def test_new_kernel_reports_a_live_sweep_once(
    sweeping: Notebook, open_notebook: Callable[..., Notebook]
) -> None:
    sweeping.server.hold(after=3)
    assert sweeping.kernel.run(cell(sweeping)).status == "ok"
    sweeping.server.wait_open(2)
    other = open_notebook(load=False)
    told = other.text(other.kernel.run("%load_ext nb_agents"))
    assert (
        "Sweep all is running in another process, with 0 rows complete" in told
        and "Run " not in told
    )
    assert "No run is live" in other.text(
        other.kernel.run("%agents pause")
    )  # it belongs to another kernel
    assert "0 of 6 rows are complete" in other.text(other.kernel.run("%agents show all"))
    assert "Sweep all is paused" in other.text(other.kernel.run("%agents pause all"))
    kernel = sweeping.kernel
    kernel.wait_until(lambda: kernel.run("sweep.status").value == "'paused'", 60, "the pause")
    assert "Sweep all continues" in other.text(other.kernel.run("%agents continue all"))
    kernel.wait_until(lambda: kernel.run("sweep.status").value == "'running'", 60, "its end")
    waiting = other.kernel.send("%agents wait all")
    other.kernel.wait_until(lambda: other.kernel.outputs_of(waiting).displays, 60, "its card")
    other.kernel.interrupt()
    kernel.wait_until(lambda: kernel.run("sweep.status").value == "'stopping'", 60, "the stop")
    assert "no further row" in other.text(kernel.run("%agents stop"))
    sweeping.server.release()
    assert other.kernel.result(waiting).status == "ok"
    assert "Stopped after" in other.text(other.kernel.run("%agents show all"))
    assert kernel.run("sweep.wait().status").value == "'cancelled'"
    assert len(sweeping.server.requests) == 2


@pytest.mark.parametrize(
    "options, says",
    [
        ("--limit 2", "--limit needs --over"),
        ("--over nowhere.csv", "nowhere.csv can't be read"),
        ("--over rows --session s", "--session can't be combined with --over"),
        ("--over rows --detach", "--detach can't be combined with --over"),
        ("--over rows --score seven", "seven"),
    ],
)
def test_mistake_is_reported_in_a_sentence(sweeping: Notebook, options: str, says: str) -> None:
    error = sweeping.kernel.run(sweeping.magic(options, TASK)).error
    assert error
    assert says in error.evalue
    assert sweeping.server.requests == []


def test_notebook_variable_is_refused_in_a_row_template(sweeping: Notebook) -> None:
    sweeping.kernel.run("tone = 'dry'")
    error = sweeping.kernel.run(sweeping.magic("--over rows", "{{q}} in a {{tone}} tone")).error
    assert error
    assert "{{tone}}, but row 1 has no such column" in error.evalue
    assert "To use the same value for all rows, add a column" in error.evalue
    assert sweeping.server.requests == []
