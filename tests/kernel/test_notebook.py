"""What a user sees in a notebook: cells, tables, panels, and saved outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests import canaries, warm
from tests.kernel.driver import Display, Kernel, Result
from tests.kernel.notebook import (
    HELD,
    TURN_MIME,
    WIDGET_MIME,
    Notebook,
    Turn,
    assert_stopped_gracefully,
    play,
)
from tests.model_server import ModelServer, Reply, Request, wait_until
from tests.run_demo import without_ports

KEY = "sk-test-0123456789abcdef0123456789abcdef"
STATIC = {"text/html", "text/markdown", "text/plain", TURN_MIME}


def shown(notebook: Notebook, turn: Turn, number: int = 0) -> Display:
    """Return the current output of the cell that started the turn, or of another cell."""
    displays = notebook.kernel.outputs_of(turn.cell).displays
    panel = [d for d in displays if d.display_id][number]
    now = notebook.kernel.shown(panel.display_id or "")
    assert now
    return now


def wait_frozen(notebook: Notebook, turn: Turn) -> Display:
    notebook.kernel.wait_until(
        lambda: WIDGET_MIME not in shown(notebook, turn).data, what="the frozen card"
    )
    return shown(notebook, turn)


# The cell


def test_cell_returns_while_the_run_continues(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    assert notebook.kernel.run("run.is_over, run.status").value == "(False, 'in-progress')"
    notebook.server.release()
    assert notebook.kernel.run("run.wait()").value == '"The team\'s final answer."'
    assert turn.metadata["run_status"] == "completed"


def test_the_cell_has_no_value_and_prints_nothing(notebook: Notebook) -> None:
    turn = notebook.start()
    turn.wait_over()
    result = notebook.kernel.result(turn.cell)
    assert (result.value, result.stdout, result.stderr) == (None, "", "")


def test_a_task_takes_notebook_variables(notebook: Notebook) -> None:
    notebook.kernel.run("city = 'Oslo'\nlimit = 3")
    task = "Name {{limit}} parks of {{ city }}, not of \\{{city}} nor of {city} or $city."
    turn = notebook.start(task=task)
    turn.wait_over()
    wanted = "Name 3 parks of Oslo, not of {{city}} nor of {city} or $city."
    assert turn.metadata["task"] == wanted
    assert wanted in notebook.server.requests[0].prompt


def test_out_names_the_run_before_it_ends(notebook: Notebook) -> None:
    turn = notebook.start_held("--out my_run")
    assert notebook.kernel.eval("(my_run.id, str(my_run.path))") == (turn.run, str(turn.path))


def test_options_may_be_quoted(notebook: Notebook) -> None:
    place = notebook.place / "two words"
    place.mkdir()
    notebook.team = notebook.team.rename(place / "my team.yaml")
    result = notebook.kernel.run(f'%%agents --config "{notebook.team}" --wait\nCount.')
    assert result.status == "ok", result
    assert notebook.server.count() > 3


def test_wait_blocks_the_cell_until_the_card_is_shown(notebook: Notebook) -> None:
    turn = notebook.send("--wait")
    result = notebook.kernel.result(turn.cell)
    assert result.status == "ok"
    assert turn.is_over
    assert shown(notebook, turn).data.keys() == STATIC


# Secrets


@pytest.mark.parametrize("given", ["file", "environment"])
def test_key_is_stored_and_shown_nowhere(notebook: Notebook, given: str) -> None:
    """Neither on disk nor in an output, although the server's error repeats it."""
    text = notebook.team.read_text()
    key = f'"{KEY}"' if given == "file" else '"${TEST_KEY}"'
    notebook.team.write_text(text.replace(f'"{canaries.KEY}"', key))
    notebook.kernel.eval(f"__import__('os').environ.update(TEST_KEY={KEY!r})")
    notebook.server.default = Reply(status=401, error=f"Incorrect API key provided: {KEY}.")
    turn = notebook.send("--debug --wait --out run")
    result = notebook.kernel.result(turn.cell)
    assert result.status == "ok"
    assert notebook.server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    seen = notebook.kernel.run("%agents show\n%agents log\nrun.view, run.receipt")
    failed = notebook.kernel.run("await run")
    for each in (result, seen, failed):
        assert KEY not in json.dumps(each.messages, default=str)
    assert "debug.log" in notebook.text(seen)
    assert (turn.path / "debug.log").stat().st_size
    written = [p for p in notebook.root.rglob("*") if p.is_file()]
    assert [p for p in written if KEY.encode() in p.read_bytes()] == []
    assert "The server refused the key" in shown(notebook, turn).data["text/plain"]
    assert KEY not in json.dumps([c.state for c in notebook.kernel.comms.values()], default=str)


# %agents


def table(result: Result) -> list[str]:
    assert result.status == "ok", result
    [display] = result.displays
    assert "<table>" in display.data["text/html"]
    return [line for line in display.data["text/plain"].splitlines() if line.strip()]


def test_agents_lists_the_runs_of_the_kernel(notebook: Notebook) -> None:
    done = notebook.start(task="First task.")
    done.wait_over()
    live = notebook.start_held()
    head, *rows = table(notebook.kernel.run("%agents"))
    heads = ["run", "status", "round/step", "elapsed", "session/turn", "where", "task"]
    assert head.split() == heads
    by_run = {row.split()[0]: row for row in rows}
    assert "complete" in by_run[done.run]
    assert "First task." in by_run[done.run]
    assert "running" in by_run[live.run]
    assert live.name in by_run[live.run]
    notebook.press(live)
    live.wait_stop()
    rows = table(notebook.kernel.run("%agents"))
    assert any("Stopping… (after current LLM call completes)" in row for row in rows)


def test_agents_in_a_new_kernel_explains_how_to_start() -> None:
    with Kernel() as kernel:
        kernel.run("%load_ext nb_agents")
        [display] = kernel.run("%agents").displays
        assert "No run was started in this kernel" in display.data["text/plain"]
        [display] = kernel.run("%agents sessions").displays
        assert "No sessions in .nb_agents/sessions" in display.data["text/plain"]


def test_sessions_shows_every_state(notebook: Notebook) -> None:
    done = notebook.start("--session done")
    done.wait_over()
    stopped = notebook.start_held("--session stopped")
    notebook.kernel.run("%agents stop --now")
    stopped.wait_over()
    late = notebook.start(
        "--session late --orchestrator-timeout 0.3"
    )  # the server still holds the streams
    late.wait_stop()
    notebook.server.release()
    late.wait_over()
    notebook.start_held("--session running")
    rows = {row.split()[0]: row for row in table(notebook.kernel.run("%agents sessions"))[1:]}
    assert list(rows) == ["running", "late", "stopped", "done"]
    assert " complete " in rows["done"]
    assert " stopped " in rows["stopped"]
    assert " timed out " in rows["late"]
    assert " running " in rows["running"]


def test_sessions_of_another_root(notebook: Notebook) -> None:
    other = notebook.place / "other"
    turn = notebook.kernel.run(
        f"%%agents --config {notebook.team} --session-root {other} --session there --wait\nCount."
    )
    assert turn.status == "ok"
    rows = table(notebook.kernel.run(f"%agents sessions --session-root {other}"))
    assert rows[1].startswith("there")
    [card] = notebook.kernel.run(f"%agents show there/1 --session-root {other}").displays
    assert card.data[TURN_MIME]["state"] == "complete"


def test_log_omits_streamed_text(notebook: Notebook) -> None:
    turn = notebook.start_held()
    notebook.kernel.run("%agents stop --now --reason 'too slow'")
    turn.wait_over()
    [by_run] = notebook.kernel.run(f"%agents log {turn.run}").displays
    lines = by_run.data["text/plain"].splitlines()
    assert any("stop requested" in line and "too slow" in line for line in lines)
    assert ["turn ended" in line for line in lines[-2:]] == [True, False]  # then its files
    assert not any("text streamed" in line for line in lines)
    [by_name] = notebook.kernel.run(f"%agents log {turn.name}").displays
    assert by_name.data == by_run.data


def test_show_of_a_live_run_is_a_second_view_of_its_panel(notebook: Notebook) -> None:
    turn = notebook.start_held()
    again = notebook.kernel.run(f"%agents show {turn.run}")
    [display] = again.displays
    first = notebook.kernel.outputs_of(turn.cell).displays[0]
    assert display.data[WIDGET_MIME]["model_id"] == first.data[WIDGET_MIME]["model_id"]
    notebook.kernel.run("%agents stop --now")
    for cell in (turn.cell, again.msg_id):
        card = wait_frozen(notebook, Turn(turn.path, turn.run, cell))
        assert card.data[TURN_MIME]["state"] == "stopped"


def test_show_of_a_finished_run_and_of_a_turn_on_disk_is_the_card(notebook: Notebook) -> None:
    turn = notebook.start("--session kept")
    notebook.kernel.run(f"%agents wait {turn.run}")  # its card appears shortly before its end
    frozen = wait_frozen(notebook, turn)
    for name in (turn.run, "kept", "kept/1"):
        [display] = notebook.kernel.run(f"%agents show {name}").displays
        assert display.data == frozen.data
    with Kernel() as other:
        other.run("%load_ext nb_agents")
        root = f"--session-root {notebook.root}"
        for name in ("kept", "kept/1", "kept/turn_1"):
            [display] = other.run(f"%agents show {name} {root}").displays
            assert (
                display.data["text/markdown"].splitlines()[:-1]
                == (frozen.data["text/markdown"].splitlines()[:-1])
            )


def test_run_is_found_again_from_a_new_kernel(notebook: Notebook) -> None:
    turn = notebook.start("--session kept")
    notebook.kernel.run(f"%agents wait {turn.run}")
    with Kernel() as other:
        other.run(f"import nb_agents; run = nb_agents.find_run('kept', {str(notebook.root)!r})")
        result = other.run("print(run.state, run.result, len(run.to_frame()) > 0)")
        assert result.stdout.startswith("complete ")
        assert result.stdout.strip().endswith("True")


def test_show_while_the_run_ends_is_the_card(notebook: Notebook) -> None:
    """The loop thread freezes the panel while a cell shows it: one must wait for the other."""
    turn = notebook.start_held()
    cell = notebook.kernel.send(
        "import threading\n"
        "from nb_agents.jupyter import panel as _panel\n"
        "_bundle, _close = _panel.card_bundle, _panel.PanelWidget.close\n"
        "_closed = threading.Event()\n"
        "def close(self): _close(self); _closed.set()\n"
        "def bundle(*args):\n"
        "    if threading.current_thread() is threading.main_thread():\n"
        "        print('showing', flush=True); _closed.wait(1.5)\n"
        "    return _bundle(*args)\n"
        "_panel.card_bundle, _panel.PanelWidget.close = bundle, close\n"
        "try: get_ipython().run_line_magic('agents', 'show')\n"
        "finally: _panel.card_bundle, _panel.PanelWidget.close = _bundle, _close"
    )
    notebook.kernel.wait_stdout(cell, "showing")
    notebook.server.release()
    result = notebook.kernel.result(cell)
    assert result.status == "ok", result
    card = wait_frozen(notebook, Turn(turn.path, turn.run, cell))
    assert card.data[TURN_MIME]["state"] == "complete"
    assert card.data == wait_frozen(notebook, turn).data


# Frozen outputs


@pytest.mark.parametrize("end", ["complete", "stopped", "failed"])
def test_output_no_longer_changes_after_the_end(notebook: Notebook, end: str) -> None:
    if end == "failed":
        notebook.server.default = Reply(status=401)
    turn = notebook.start() if end == "failed" else notebook.start_held()
    panel = notebook.panel(turn)
    [first] = notebook.kernel.outputs_of(turn.cell).displays
    assert first.data.keys() == STATIC | {WIDGET_MIME}
    if end == "stopped":
        notebook.kernel.run("%agents stop --now")
    notebook.server.release()
    card = wait_frozen(notebook, turn)
    assert card.data.keys() == STATIC
    assert card.data[TURN_MIME]["state"] == end
    assert f"[{end}]" in card.data["text/plain"]
    assert end in card.data["text/html"]
    notebook.kernel.wait_until(lambda: not panel.is_open, 60, "the closed widget")


def test_live_panel_shows_what_agents_do(notebook: Notebook) -> None:
    turn = notebook.start_held()
    panel = notebook.panel(turn)
    rows = lambda: [row["says"] for row in panel.state["state"]["agents"]]  # noqa: E731
    notebook.kernel.wait_until(lambda: rows() == [HELD] * 3, 60, HELD, rows)
    assert panel.state["state"]["button"]["label"] == "Stop"
    notebook.press(turn)
    label = lambda: (panel.state["state"]["button"] or {}).get("label", "")  # noqa: E731
    counts = lambda: label().startswith("Stop now · ")  # noqa: E731
    notebook.kernel.wait_until(counts, 60, "the countdown", label)
    assert panel.state["state"]["chip"] == "Stopping… (after current LLM call completes)"


def test_output_of_a_background_run_never_lands_in_another_cell(notebook: Notebook) -> None:
    turn = notebook.start_held()
    busy = notebook.kernel.send("name = input('name? ')\nprint(name)")
    notebook.kernel.wait_until(lambda: notebook.kernel.input_prompts, 60, "the prompt")
    notebook.server.release()
    wait_frozen(notebook, turn)
    notebook.kernel.answer_input("Ada")
    result = notebook.kernel.result(busy)
    assert (result.stdout, result.stderr, result.displays, result.updates) == ("Ada\n", "", [], [])
    kinds = {m["msg_type"] for m in result.messages}
    assert kinds <= {"status", "execute_input", "stream"}


def test_several_runs_have_their_own_panels_and_sessions(notebook: Notebook) -> None:
    notebook.server.hold(after=3)
    turns = [notebook.start(task=f"Task {n}.") for n in range(3)]
    assert len({t.session for t in turns}) == len({t.run for t in turns}) == 3
    assert len({notebook.panel(t).comm_id for t in turns}) == 3
    for turn in turns:
        turn.wait_streamed()
    notebook.press(turns[1], now=True)
    turns[1].wait_over()
    notebook.server.release()
    states = [wait_frozen(notebook, t).data[TURN_MIME] for t in turns]
    assert [s["state"] for s in states] == ["complete", "stopped", "complete"]
    assert [s["task"] for s in states] == ["Task 0.", "Task 1.", "Task 2."]


def test_a_reloaded_page_keeps_the_widget_with_the_card(notebook: Notebook) -> None:
    turn = notebook.start_held()
    panel = notebook.panel(turn)
    for page in ("first page", "second page"):
        notebook.kernel.send_custom(panel.comm_id, {"type": "mounted", "page": page})
    notebook.server.release()
    card = wait_frozen(notebook, turn)
    there = lambda: panel.state["state"]["card"]  # noqa: E731
    notebook.kernel.wait_until(there, 60, "the card in the widget")
    assert panel.state["state"]["card"] == card.data["text/html"]
    assert panel.state["state"]["button"] is None
    assert panel.is_open


def test_two_views_on_one_page_do_not_count_as_a_reload(notebook: Notebook) -> None:
    turn = notebook.start_held()
    panel = notebook.panel(turn)
    for _ in range(2):
        notebook.kernel.send_custom(panel.comm_id, {"type": "mounted", "page": "the page"})
    notebook.server.release()
    wait_frozen(notebook, turn)
    notebook.kernel.wait_until(lambda: not panel.is_open, 60, "the closed widget")


def test_model_text_is_escaped_on_the_card(notebook: Notebook) -> None:
    evil = "<script>alert(1)</script> <img src=x onerror=alert(2)> [a](javascript:alert(3))"

    def reply(request: Request) -> Reply:
        return Reply(text=evil) if "<FINAL" in request.prompt else play(request)

    notebook.server.default = reply
    turn = notebook.start(task="<b onmouseover=alert(4)>Bold</b>")
    html = wait_frozen(notebook, turn).data["text/html"]
    for sign in ("<script", "<img", "<b o", 'href="javascript'):
        assert sign not in html


# Headless


def test_headless_run_blocks_the_cell(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(headless=True)
    notebook.server.hold(after=0)
    turn = notebook.send()
    notebook.server.release()
    result = notebook.kernel.result(turn.cell)
    assert turn.is_over
    states = [d.data[TURN_MIME]["state"] for d in [*result.displays, *result.updates]]
    # A slow run is shown several times while it continues.
    assert [state for state, _ in groupby(states)] == ["running", "complete"]


def test_nbclient_executes_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", warm.kernel_path(tmp_path / "jupyter"))
    (tmp_path / "team.yaml").write_text(
        "agents:\n  - id: solo\n    backend: {type: demo, words_per_second: 500}\n"
    )
    run = "%%agents --config team.yaml\nCount to six."
    cells = ["%load_ext nb_agents", run, "%agents"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(
        nb, config=without_ports(tmp_path), timeout=60, kernel_name="python3", resources=place
    ).execute()
    [output] = nb.cells[1].outputs
    assert set(output.data) == STATIC
    assert output.data[TURN_MIME]["state"] == "complete"
    assert "demo model" in output.data["text/markdown"]
    assert "complete" in nb.cells[2].outputs[0].data["text/plain"]
    # The code of the panel, which is no longer shown, is not saved.
    assert len(json.dumps(nb.metadata.get("widgets", {}))) < 4000
    nbformat.validate(nb)


def test_a_headless_run_that_fails_does_not_end_the_notebook(
    open_notebook: Callable[..., Notebook], server: ModelServer
) -> None:
    server.default = Reply(status=401)
    notebook = open_notebook(headless=True)
    turn = notebook.send()
    assert notebook.kernel.result(turn.cell).status == "ok"
    assert shown(notebook, turn).data[TURN_MIME]["state"] == "failed"


def test_stop_of_a_run_while_its_cell_waits_headless(
    open_notebook: Callable[..., Notebook], server: ModelServer
) -> None:
    notebook = open_notebook(headless=True)
    server.hold(after=3)
    turn = notebook.send()
    turn.wait_streamed()
    notebook.kernel.interrupt()
    turn.wait_stop()
    assert_stopped_gracefully(turn, server, "notebook")
    assert notebook.kernel.result(turn.cell).status == "ok"
    card = shown(notebook, turn).data["text/plain"]
    assert "Stopped by the program that ran the notebook" in card
    assert "by you" not in card


def test_user_hooks(notebook: Notebook) -> None:
    """before_cancel can veto a graceful stop; after_cancel runs once, after saving."""
    notebook.server.hold(after=3)
    cell = notebook.kernel.run(
        "import nb_agents\n"
        "asked, done = [], []\n"
        "from nb_agents.options import CancelPolicy, RunOptions\n"
        "policy = CancelPolicy(before_cancel=lambda r: asked.append(r.source),\n"
        "    after_cancel=lambda receipt: done.append(receipt))\n"
        "options = RunOptions(cancel=policy)\n"
        f"run = nb_agents.start('Count.', {str(notebook.team)!r}, options=options)\n"
        "print(run.path)"
    )
    turn = Turn(Path(cell.stdout.strip()))
    turn.wait_streamed()
    notebook.kernel.interrupt()
    wait_until(lambda: notebook.kernel.eval("asked") == ["interrupt"], 60, "before_cancel")
    turn.wait_stop()
    assert_stopped_gracefully(turn, notebook.server, "interrupt")
    notebook.kernel.wait_until(lambda: notebook.kernel.eval("len(done)") == 1, 60, "after_cancel")
