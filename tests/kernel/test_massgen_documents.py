"""Statements of MassGen's two documents about its terminal, tested in a notebook.

The other statements are in tests/massgen. Here, Ctrl+C is the kernel's interrupt, the prompt is the
next cell, and a session on the screen is the panel and then the card.
"""

from __future__ import annotations

import re

from tests.kernel.notebook import (
    HELD,
    TURN_MIME,
    Notebook,
    Turn,
    assert_stopped_gracefully,
    assert_stopped_now,
    write_team,
)
from tests.massgen.rows import Row, Table

TABLE = Table()
says = TABLE.says


@TABLE.parametrize()
def test_statement_about_the_terminal_holds_in_a_notebook(row: Row, notebook: Notebook) -> None:
    row.hold(notebook)


def stop_gracefully(notebook: Notebook, options: str = "") -> Turn:
    """Interrupt the idle kernel while the models write, and let them finish their answers."""
    turn = notebook.start_held(options)
    notebook.kernel.interrupt()
    turn.wait_stop()
    notebook.server.release()
    turn.wait_over()
    return turn


def stop_now(notebook: Notebook, options: str = "") -> Turn:
    turn = notebook.start_held(options)
    notebook.kernel.run("%agents stop --now")
    turn.wait_over()
    notebook.server.release()
    return turn


def card(notebook: Notebook, name: str) -> str:
    """Return the text of the card of `%agents show`."""
    (shown,) = notebook.kernel.run(f"%agents show {name}").displays
    assert TURN_MIME in shown.data
    return str(shown.data["text/plain"])


def notices(notebook: Notebook, turn: Turn) -> list[str]:
    return list(notebook.panel(turn).state["state"]["notices"])


# Cancelling ---------------------------------------------------------------------------------


@says("An interrupt of a running session stops it, and what was done until then is kept.")
def an_interrupt_keeps_what_was_done(notebook: Notebook) -> None:
    turn = notebook.start_held()
    notebook.kernel.interrupt()
    turn.wait_stop()
    assert_stopped_gracefully(turn, notebook.server, "interrupt")


@says(
    "The screen says that the stop was asked for, then what was saved, then how to go on. There is "
    "no goodbye here: the kernel lives on."
)
def the_screen_tells_of_the_stop(notebook: Notebook) -> None:
    turn = notebook.start_held()
    comm = notebook.panel(turn)
    notebook.kernel.interrupt()
    asked = lambda: comm.state["state"]["chip"].startswith("Stopping…")  # noqa: E731
    notebook.kernel.wait_until(asked, 60, "the panel to say so")
    assert comm.state["state"]["status"] == "stopping"
    notebook.server.release()
    turn.wait_over()
    text = card(notebook, turn.name)
    for said in (
        "**Incomplete turn.** Stopped by you (interrupt)",
        "Nothing was lost: 3 answers",
        f"%agents resume {turn.session}",
        f"%%agents --continue --session {turn.session}",
    ):
        assert said in text


@says("What agents were saying at a stop is on the screen as well, apart from their answers.")
def the_screen_tells_of_partial_answers(notebook: Notebook) -> None:
    turn = stop_now(notebook)
    text = card(notebook, turn.name)
    for agent in ("ada", "Ben", "cleo"):
        assert f"#### {agent}: no answer yet · was writing (3 words so far)" in text
    assert text.count(f"[partial text] {HELD}") == 3


@says("The first Ctrl+C of a cell that waits cancels gracefully and leads back to the prompt.")
def the_first_interrupt_leads_back(notebook: Notebook) -> None:
    notebook.server.hold(after=3)
    turn = notebook.send("--wait")
    turn.wait_streamed()
    notebook.kernel.interrupt()
    turn.wait_stop()
    assert notebook.kernel.outputs_of(turn.cell).is_busy
    notebook.server.release()
    result = notebook.kernel.result(turn.cell)
    assert (result.status, result.error) == ("ok", None)
    assert turn.metadata["status"] == "incomplete"
    assert notebook.kernel.run("'the next'").value == "'the next'"


@says(
    "A second Ctrl+C leaves the session at once, without saving. Here it ends the run at once, "
    "saves, and leaves the kernel: variables of a notebook are no price for a stop."
)
def the_second_interrupt_ends_the_run_alone(notebook: Notebook) -> None:
    notebook.kernel.run("mine = 42")
    turn = notebook.start_held()
    notebook.kernel.interrupt()
    turn.wait_stop("requested")
    notebook.kernel.interrupt()
    turn.wait_stop("immediate")
    assert_stopped_now(turn, notebook.server, "interrupt")
    assert notebook.kernel.run("mine").value == "42"


@says("`--continue` restores the session and tells of the turn that was cancelled.")
def continuing_tells_of_the_cancelled_turn(notebook: Notebook) -> None:
    old = stop_gracefully(notebook)
    turn = notebook.start("--continue", "Count to seven.")
    turn.wait_over()
    assert (turn.session, turn.metadata["turn"]) == (old.session, 2)
    assert notices(notebook, turn)[:3] == [
        f"Continues session {turn.session}: this is turn 2.",
        "Turn 1 was stopped while coordinating: Count to six.",
        "Saved: answers of ada, Ben, cleo.",
    ]
    asked = [r.prompt for r in notebook.server.requests if "Count to seven." in r.prompt]
    assert asked and all("## ada's answer" in prompt for prompt in asked)


@says("After a cancelled turn a simpler question may be asked in the next cell, and is answered.")
def the_next_cell_asks_something_simpler(notebook: Notebook) -> None:
    old = stop_now(notebook)
    turn = notebook.start(f"--session {old.session}", "Count to two.")
    turn.wait_over()
    assert (turn.metadata["run_status"], turn.answer) == ("completed", "The team's final answer.")
    assert old.metadata["status"] == "incomplete"


@says("Partial results are reviewed in a cell, of any session, also when it has gone on since.")
def partial_results_are_reviewed(notebook: Notebook) -> None:
    old = stop_gracefully(notebook)
    notebook.start(f"--session {old.session}").wait_over()
    text = card(notebook, old.name)
    assert "The answer of m1." in text and "best answer so far" in text
    sessions = notebook.text(notebook.kernel.run("%agents sessions"))
    assert old.session in sessions


# Timeouts -----------------------------------------------------------------------------------


@says("The flag sets the limit of one run, and wins over the team's file.")
def the_flag_wins_over_the_file(notebook: Notebook) -> None:
    limits = "timeout_settings:\n  orchestrator_timeout_seconds: 900"
    write_team(notebook.team, notebook.server, limits)
    shown = []
    for options in ("--orchestrator-timeout 3600", "--orchestrator-timeout 300", ""):
        turn = notebook.start(options)
        turn.wait_over()
        shown.append(turn.events("turn_started")[0]["timeout_s"])
    assert shown == [3600, 300, 900]


@says("One agent with a limit needs no file: its model is named beside the flag.")
def one_agent_needs_no_file(notebook: Notebook) -> None:
    cell = notebook.kernel.send("%%agents --model demo:quick --orchestrator-timeout 300\nWhy?")
    turn = notebook.turn_of(cell)
    begun = turn.events("turn_started")[0]
    assert (begun["timeout_s"], len(begun["agents"])) == (300, 1)


@says("At the limit the screen says that it was reached, that all is saved, and how it came out.")
def the_screen_tells_of_the_timeout(notebook: Notebook) -> None:
    notebook.server.hold(after=3)
    # The same until calls in flight are cut; then the panel shows that.
    turn = notebook.start("--orchestrator-timeout 3")
    turn.wait_stop()
    told = "Time limit of 3 s reached: waiting for "
    notebook.kernel.wait_until(
        lambda: any(each.startswith(told) for each in notices(notebook, turn)), 60, "the notice"
    )
    notebook.server.release()
    turn.wait_over()
    text = card(notebook, turn.name)
    assert "Timed out (time limit of 3 s reached) after " in text and "Nothing was lost" in text


@says("While it runs, the screen shows its round, the time used of the limit, and its state.")
def the_screen_shows_the_progress(notebook: Notebook) -> None:
    turn = notebook.start_held("--orchestrator-timeout 60")
    comm = notebook.panel(turn)
    first = comm.state["state"]
    assert re.fullmatch(r"Round: [1-9]/∞", first["round"])
    assert re.fullmatch(r"Elapsed: \d+s / 60s \(\d+%\)", first["elapsed"])
    assert first["chip"] == "running"
    later = lambda: comm.state["state"]["elapsed"] > first["elapsed"]  # noqa: E731
    notebook.kernel.wait_until(later, 60, "the time to go on")


@says("With debugging on there is a log of the limit, the start and the rounds; a cell finds it.")
def debugging_writes_a_log(notebook: Notebook) -> None:
    turn = notebook.start("--debug --orchestrator-timeout 60")
    turn.wait_over()
    log = (turn.path / "debug.log").read_text()
    assert "[INFO] Orchestrator timeout configured: 60 seconds" in log
    assert "[INFO] Starting coordination..." in log
    assert re.search(r"\[INFO\] Round 1 complete \(elapsed: \d+s / 60s\)", log)
    assert "debug.log)" in notebook.text(notebook.kernel.run(f"%agents log {turn.run}"))


@says("How long runs took is looked up in one table, beside what they were given.")
def times_are_looked_up(notebook: Notebook) -> None:
    turn = notebook.start("--orchestrator-timeout 60")
    turn.wait_over()
    table = notebook.text(notebook.kernel.run("%agents"))
    assert re.search(rf"\b{turn.run}\b.*completed?\b.*\d+s / 60s", table)


def test_rows_have_unique_names() -> None:
    said = [row.says for row in TABLE.rows]
    assert len(set(said)) == len(said) > 12
