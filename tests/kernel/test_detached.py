"""Detached runs of a live kernel: what a user sees and requests, even after its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import canaries
from tests.kernel.driver import Kernel
from tests.kernel.notebook import AGENTS, TURN_MIME, WORDS, Notebook, Turn, assert_stopped_now
from tests.kernel.test_decisions import APPROVE_REQUEST
from tests.kernel.test_notebook import wait_frozen
from tests.kernel.test_tools import calling, tool_results, use_team
from tests.kit.runs import live_turns
from tests.model_server import Reply, Request, ToolCall, wait_until

QUERY = """
import asyncio, pathlib
prices = {{'x': {price}}}
async def query(name: str) -> str:
    '''Look a price up.'''
    while {hangs}:
        pathlib.Path('begun').touch()
        await asyncio.sleep(0.01)
    return f'THE RESULT is {{prices[name]}}'
"""

Open = Callable[..., Notebook]


@pytest.fixture(autouse=True)
def ended(tmp_path: Path) -> Iterator[None]:
    """Assert that no process that writes to the test's directory outlives the test."""
    yield
    for turn in live_turns():
        if turn.paths.path.is_relative_to(tmp_path):
            os.kill(turn.pid, signal.SIGKILL)


def define(notebook: Notebook, price: int, *, hangs: bool = False) -> None:
    use_team(notebook)
    calling(notebook, "query", name="x")
    made = notebook.kernel.run(QUERY.format(price=price, hangs=hangs))
    assert made.status == "ok", made


def asks_again(request: Request) -> Reply:
    """Call the function until it has a result, and then answer."""
    if "THE RESULT" in request.prompt:
        return Reply(tool_calls=(ToolCall("new_answer", {"content": "I have read it."}),))
    return Reply(tool_calls=(ToolCall("query", {"name": "x"}),))


ENDS: dict[str, Callable[[Kernel], object]] = {
    "restart": Kernel.restart,
    "shutdown": Kernel.shutdown,
    "kill -9": Kernel.kill,
}


def test_kernel_in_another_directory_only_counts_the_run(
    open_notebook: Open, tmp_path: Path
) -> None:
    notebook = open_notebook()
    turn = notebook.start_held("--detach")
    other = open_notebook(load=False)
    other.use(other.kernel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other.kernel.run(f"import os; os.environ['NB_AGENTS_SESSIONS'] = {str(elsewhere)!r}")
    told = other.text(other.kernel.run("%load_ext nb_agents"))
    assert "1 run of other directories is running: `%agents runs` lists it." in told
    assert turn.name not in told


@pytest.mark.parametrize("end", ENDS)
def test_next_kernel_follows_and_stops_a_run(open_notebook: Open, end: str) -> None:
    notebook = open_notebook()
    turn = notebook.start_held("--detach")
    ENDS[end](notebook.kernel)

    later = notebook if end == "restart" else open_notebook(load=False)
    later.use(later.kernel)
    told = later.text(later.kernel.run("%load_ext nb_agents"))
    assert f"Run {turn.name} is running in " in told
    assert not turn.is_over
    shown = later.turn_of(later.kernel.send(f"%agents show {turn.name}"))
    assert shown.path == turn.path
    later.server.hold(after=5)
    drawn = " ".join(WORDS.split()[:5])
    later.kernel.wait_until(lambda: last_words(later, shown) == [drawn] * 3, what="new words")

    stopped = later.kernel.run("%agents stop --now")
    assert "is stopping now" in later.text(stopped)
    turn.wait_over()
    sent = [" ".join(WORDS.split()[: each.chunks_sent]) for each in later.server.requests]
    kept = turn.partial_answers
    assert [kept[agent]["partial_text"].strip() for agent in AGENTS] == sent
    assert later.server.endings() == ["client"] * 3
    assert wait_frozen(later, shown).data[TURN_MIME]["state"] == "stopped"


def last_words(notebook: Notebook, turn: Turn) -> list[str]:
    """Return the text of each agent that the panel shows."""
    return [agent["says"].strip() for agent in notebook.panel(turn).state["state"]["agents"]]


def test_graceful_stop_on_the_panel_becomes_immediate_after_the_grace_time(
    notebook: Notebook,
) -> None:
    made = notebook.kernel.run(
        "from nb_agents.options import CancelPolicy, RunOptions\n"
        "hasty = RunOptions(cancel=CancelPolicy(grace_timeout_s=0.4))"
    )
    assert made.status == "ok", made
    turn = notebook.start_held("--detach --options hasty")
    notebook.press(turn)
    turn.wait_stop("requested")
    turn.wait_stop("immediate")
    assert_stopped_now(turn, notebook.server, "widget")


def test_panel_approves_a_call_and_card_shows_the_cost(notebook: Notebook) -> None:
    policy = [{"match": "run_command", "action": "ask"}]
    use_team(notebook, enable_mcp_command_line=True, tool_policy=policy, model="gpt-5-mini")
    calling(notebook, "run_command", command="echo THE RESULT")
    turn = notebook.start("--detach")
    gates = notebook.kernel.wait_until(
        lambda: notebook.panel(turn).state["state"]["gates"], what="the gate on the panel"
    )
    answer = {"run": turn.run, "gate": gates[0]["id"], "message": "Go.", "id": "1"}
    assert notebook.kernel.control(APPROVE_REQUEST, answer)["refusal"] == ""
    turn.wait_over()
    [given] = turn.events("approval_given")
    assert (given["approved"], given["message"]) == (True, "Go.")
    assert turn.metadata["run_status"] == "completed"
    assert "$" in wait_frozen(notebook, turn).data["text/plain"]


def test_each_kernel_answers_calls_of_its_own_detached_run(open_notebook: Open) -> None:
    one, two = open_notebook(), open_notebook()
    define(one, 1)
    define(two, 2)
    turns = [each.start("--detach --tools query") for each in (one, two)]
    for turn in turns:
        turn.wait_over()
    assert [tool_results(turn) for turn in turns] == [["THE RESULT is 1"], ["THE RESULT is 2"]]
    assert {turn.metadata["run_status"] for turn in turns} == {"completed"}


def test_run_survives_a_kill_of_its_kernel_and_uses_tools_of_the_next(
    open_notebook: Open, tmp_path: Path
) -> None:
    notebook = open_notebook()
    define(notebook, 1, hangs=True)
    turn = notebook.start("--detach --tools query")
    wait_until((tmp_path / "begun").exists, 60, "the call")
    notebook.server.default = asks_again
    notebook.server.hold(after=0)
    notebook.kernel.kill()
    wait_until(lambda: tool_results(turn), 60, "the answer to the call")
    assert tool_results(turn) == ["Error: the notebook that offers `query` is not running"]

    later = open_notebook(load=False)
    told = later.text(later.kernel.run("%load_ext nb_agents"))
    assert f"Run {turn.name} is running in " in told
    assert later.kernel.run(QUERY.format(price=42, hangs=False)).status == "ok"
    assert later.kernel.run(f"%agents show {turn.name} --tools query").status == "ok"
    later.server.release()
    turn.wait_over()
    assert tool_results(turn)[1:] == ["THE RESULT is 42"]
    assert turn.metadata["run_status"] == "completed"


def test_tools_are_offered_only_to_runs_of_other_processes(notebook: Notebook) -> None:
    notebook.kernel.run(QUERY.format(price=1, hangs=False))
    turn = notebook.start_held()
    said = notebook.kernel.run(f"%agents show {turn.run} --tools query")
    assert "is in this process" in notebook.text(said) + str(said.error)


def test_log_of_a_failed_start_is_shown_below_the_cell(open_notebook: Open, tmp_path: Path) -> None:
    notebook = open_notebook(cold=True)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pydantic.py").write_text(
        f"raise SystemError('no such thing as {canaries.KEY}')"
    )
    notebook.kernel.eval(
        f"__import__('os').environ.update(PYTHONPATH={str(tmp_path / 'broken')!r})"
    )
    result = notebook.kernel.run(notebook.magic("--detach"))
    said = notebook.text(result)
    assert "The run's process ended before the run began. Its log:" in said
    assert "no such thing as [key]" in said
    assert not (tmp_path / "sessions").exists()
