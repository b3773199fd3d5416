"""Kernels that restart, shut down or are killed, and resuming afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.driver import Kernel
from tests.kernel.notebook import HELD, TURN_MIME, WORDS, Notebook, Turn, play
from tests.model_server import ModelServer, Reply, Request, ToolCall

Open = Callable[..., Notebook]
AGENTS = ("ada", "Ben", "cleo")


def assert_saved(turn: Turn, server: ModelServer) -> None:
    """Assert that the ended kernel's run is incomplete on disk, with all streamed text."""
    server.wait_closed()
    data = turn.metadata
    assert (data["status"], data["run_status"]) == ("incomplete", "cancelled")
    assert turn.events("turn_ended")
    assert {a: e["partial_text"] for a, e in turn.partial_answers.items()} == dict.fromkeys(
        AGENTS, HELD
    )
    assert "[INCOMPLETE - CANCELLED]" in turn.summary


def test_restart_saves_live_runs(open_notebook: Open, server: ModelServer) -> None:
    notebook = open_notebook()
    first, second = notebook.start_held(), notebook.start_held()
    notebook.kernel.restart()
    for turn in (first, second):
        assert_saved(turn, server)
        assert turn.events("stop_requested")[-1]["level"] == "immediate"
    assert set(server.endings()) == {"client"}
    notebook.use(notebook.kernel)
    told = notebook.kernel.run("%load_ext nb_agents")
    assert told.displays == []  # saved properly, so nothing is reported
    assert "stopped" in notebook.text(notebook.kernel.run("%agents sessions"))


def test_shutdown_saves_live_runs_within_the_grace(
    open_notebook: Open, server: ModelServer
) -> None:
    notebook = open_notebook(cold=True)
    turn = notebook.start_held()
    assert notebook.kernel.shutdown() == 0  # exited without a signal
    assert_saved(turn, server)


def test_shutdown_by_request_alone_saves_live_runs(
    open_notebook: Open, server: ModelServer
) -> None:
    """Without an interrupt before: `exit` in a cell, or a front end that sends the request."""
    notebook = open_notebook()
    turn = notebook.start_held()
    notebook.kernel.control("shutdown_request", {"restart": False})
    turn.wait_over()
    assert_saved(turn, server)
    assert turn.events("stop_requested")[0]["source"] == "parent"


def test_shutdown_while_a_cell_waits_saves_the_run(
    open_notebook: Open, server: ModelServer
) -> None:
    notebook = open_notebook()
    server.hold(after=3)
    turn = notebook.send("--wait")
    turn.wait_streamed()
    assert notebook.kernel.shutdown() == 0
    assert_saved(turn, server)


def test_shutdown_while_a_cell_ignores_interrupts_saves_the_run(
    open_notebook: Open, server: ModelServer
) -> None:
    notebook = open_notebook()
    turn = notebook.start_held()
    deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    cell = notebook.kernel.send(f"{deaf}print('begun', flush=True)\ntime.sleep(60)")
    notebook.kernel.wait_stdout(cell, "begun")
    notebook.kernel.shutdown(grace_s=10)  # the process ends during this call
    assert_saved(turn, server)


# kill -9


def endless(request: Request) -> Reply:
    return Reply(text="tick", endless=True, words_per_second=25)


def test_kill_loses_only_the_last_streamed_text(open_notebook: Open, server: ModelServer) -> None:
    """At 25 words per second and a flush every 100 ms, all but the last 50 words are on disk."""
    notebook = open_notebook(cold=True)
    server.default = endless
    turn = notebook.start()
    server.wait_open(3)
    server.wait_chunks(5)
    sent = {r.model: r.chunks_sent for r in server.requests}
    server.wait_chunks(max(sent.values()) + 50)
    notebook.kernel.kill()
    server.wait_closed()
    kept = {agent: text.count("tick") for agent, text in turn.streamed().items()}
    assert sorted(kept) == sorted(AGENTS)
    for agent, model in zip(AGENTS, ("m1", "m2", "m3"), strict=True):
        assert kept[agent] >= sent[model]
    assert turn.metadata["status"] == "incomplete"
    assert turn.events("turn_ended") == []


def wrote_a_file(request: Request) -> Reply:
    """Let m1 write a file and answer, and m2 write a file; then all stream text."""
    done = [m for m in request.messages if m["role"] == "tool"]
    if "<INCOMPLETE" in request.prompt or "[INCOMPLETE TURN" in request.prompt:
        return play(request)
    # No writing model may finish before the kill, because its text would count as an answer.
    writes = Reply(text=WORDS, hang_after=4)
    if request.model == "m3" or "<ANSWER" in request.prompt:
        return writes
    if not done:
        args = {"path": "notes.md", "content": f"Notes of {request.model}."}
        return Reply(tool_calls=(ToolCall("write_file", args),))
    return play(request) if request.model == "m1" else writes


def die_in_mid_stream(notebook: Notebook) -> Turn:
    """Kill the kernel when ada has answered, ben has a file, and ben and cleo are writing."""
    server = notebook.server
    server.default = wrote_a_file
    turn = notebook.start("--session lab")

    def is_there() -> bool:
        texts = turn.streamed()
        return (
            bool(turn.events("answer_given"))
            and len(turn.events("tool_finished")) >= 2
            and "alpha" in texts.get("Ben", "")
            and HELD in texts.get("cleo", "")
        )

    notebook.kernel.wait_until(is_there, 60, "the middle of a turn", turn.streamed)
    notebook.kernel.kill()
    server.wait_closed()
    return turn


def test_new_kernel_reports_a_turn_after_its_kernel_died(
    open_notebook: Open, server: ModelServer
) -> None:
    turn = die_in_mid_stream(open_notebook())
    notebook = open_notebook(load=False)
    told = notebook.text(notebook.kernel.run("%load_ext nb_agents"))
    assert "Incomplete turn lab/1: its kernel died." in told
    assert "Saved: 1 answer" in told
    assert "2 files" in told
    assert "`%agents resume lab` resumes it" in told
    assert "stopped" in notebook.text(notebook.kernel.run("%agents sessions"))
    [card] = notebook.kernel.run("%agents show lab").displays
    assert card.data[TURN_MIME]["state"] == "stopped"
    assert "The answer of m1." in card.data["text/plain"]
    assert HELD in card.data["text/plain"]
    # Reading repaired the files.
    data = turn.metadata
    assert (data["status"], data["reason"]) == ("incomplete", "kernel died")
    assert turn.partial_answers["ada"]["answer"] == "The answer of m1."
    assert HELD in turn.partial_answers["cleo"]["partial_text"]
    assert "[INCOMPLETE - KERNEL DIED]" in turn.summary
    assert "The answer of m1." in turn.answer


def test_continue_after_a_kill(open_notebook: Open, server: ModelServer) -> None:
    """The models get the incomplete turn in MassGen's words, and can read its workspaces."""
    old = die_in_mid_stream(open_notebook())
    before = server.count()
    notes = old.path / "workspaces" / "Ben" / "notes.md"
    seen: list[str] = []

    def reads_first(request: Request) -> Reply:
        returned = [m["content"] for m in request.messages if m["role"] == "tool"]
        seen.extend(returned)
        if request.model == "m1" and not returned and "<ANSWER" not in request.prompt:
            return Reply(tool_calls=(ToolCall("read_file", {"path": str(notes)}),))
        return play(request)

    server.default = reads_first
    notebook = open_notebook()
    turn = notebook.start("--continue", task="Go on.")
    turn.wait_over()
    assert turn.name == "lab/2"
    assert turn.metadata["run_status"] == "completed"
    asked = server.requests[before:]
    spaces = old.path / "workspaces"
    wanted = (
        "[INCOMPLETE TURN - Session was cancelled before completion]\n"
        "[Phase when cancelled: coordinating]\n"
        "\n"
        "## Ben:\n"
        "[No answer submitted - agent was still working]\n"
        f"[View workspace for current progress: {spaces / 'Ben'}]\n"
        "\n"
        "## ada's answer:\n"
        "The answer of m1.\n"
        f"[Workspace available at: {spaces / 'ada'}]\n"
        "\n"
        "## cleo:\n"
        "[No answer submitted - agent was still working]\n"
        f"[View workspace for current progress: {spaces / 'cleo'}]\n"
    )
    for request in asked:
        assert wanted in request.prompt
        assert "Count to six." in request.prompt
        for agent in AGENTS:
            assert f"- {spaces / agent}" in request.prompt
    assert any(text.startswith("Notes of m2.") for text in seen)
    panel = notebook.panel(turn).state["state"]["notices"]
    assert [line.strip() for line in panel] == [
        "Continues session lab: this is turn 2.",
        "Turn 1 was stopped while coordinating (its process ended): Count to six.",
        "Saved: answers of ada.",
        "Session: lab (“Count to six.”)",
    ]
    assert "TURN 1 [INCOMPLETE - KERNEL DIED]" in turn.summary
    assert "TURN 2\n" in turn.summary


def test_continue_after_a_stop_in_the_same_kernel(open_notebook: Open, server: ModelServer) -> None:
    notebook = open_notebook()
    notebook.start_held()
    notebook.kernel.run("%agents stop --now")
    notebook.kernel.run("__import__('nb_agents').runs()[0].wait(raise_on_stop=False)")
    before = server.count()
    server.release()
    turn = notebook.start("--continue", task="Go on.")
    turn.wait_over()
    assert turn.path.name == "turn_2"
    prompt = server.requests[before].prompt
    assert "[INCOMPLETE TURN - Session was cancelled before completion]" in prompt
    assert f"was writing:\n{HELD}" in prompt


def test_session_continues_after_a_complete_turn(open_notebook: Open, server: ModelServer) -> None:
    notebook = open_notebook()
    notebook.start("--session talk", task="First question.").wait_over()
    before = server.count()
    turn = notebook.start("--session talk", task="Second question.")
    turn.wait_over()
    assert turn.name == "talk/2"
    prompt = server.requests[before].prompt
    assert "User: First question.\nAssistant: The team's final answer." in prompt


# Two kernels


def test_a_session_that_another_kernel_runs_is_refused(
    open_notebook: Open, server: ModelServer
) -> None:
    owner, other = open_notebook(), open_notebook()
    turn = owner.start_held("--session shared")
    before = server.count()
    result = other.kernel.run(other.magic("--session shared"))
    said = other.text(result)
    assert "shared" in said
    assert f"pid {owner.kernel.pid}" in said
    assert "Traceback" not in said
    assert server.count() == before
    assert sorted(p.name for p in turn.path.parent.glob("turn_*")) == ["turn_1"]
    # The other kernel can show it, as running and with its location.
    [listed] = other.kernel.run("%agents").displays
    [row] = [each for each in listed.data["text/plain"].splitlines() if turn.name in each]
    assert "running" in row and f"pid {owner.kernel.pid}" in row
    assert "running" in other.text(other.kernel.run("%agents sessions"))
    assert not turn.is_over
    server.release()
    turn.wait_over()
    assert other.kernel.run(other.magic("--session shared --wait")).status == "ok"


def test_a_busy_session_of_the_same_kernel_is_refused(open_notebook: Open) -> None:
    notebook = open_notebook()
    turn = notebook.start_held("--session shared")
    said = notebook.text(notebook.kernel.run(notebook.magic("--session shared")))
    assert f"run {turn.run} in this kernel" in said


def test_loading_names_the_kernel_that_runs_a_turn(open_notebook: Open) -> None:
    turn = open_notebook().start_held()
    [told] = open_notebook(load=False).kernel.run("%load_ext nb_agents").displays
    assert f"Run {turn.name} is running in " in told.data["text/plain"]
    assert "died" not in told.data["text/plain"]


@pytest.mark.skipif(sys.platform == "win32", reason="a directory of mode 0")
def test_loading_works_with_a_broken_session(open_notebook: Open, tmp_path: Path) -> None:
    turn = tmp_path / "sessions" / "broken" / "turn_1"
    turn.mkdir(parents=True)
    (turn / "metadata.json").write_text("[1, 2")
    (turn / "events.jsonl").write_bytes(b'{"kind": "turn_sta\xff')
    notebook = open_notebook(load=False)
    assert notebook.kernel.run("%load_ext nb_agents").status == "ok"
    assert notebook.kernel.run("%agents sessions").status == "ok"


def test_loading_without_sessions_prints_nothing() -> None:
    with Kernel(cold=True) as kernel:
        result = kernel.run("%load_ext nb_agents")
        assert (result.status, result.displays, result.stdout, result.stderr) == ("ok", [], "", "")
