"""Functions of this process that a run in another process calls."""

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.options import RunOptions
from tests import canaries
from tests.kit.runs import Run, attach, live_turns
from tests.kit.tools import MAX_RESULT_CHARS, ToolContext, offer
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import WAIT_S, events, finish, read_line, script

TEAM = """
agents:
  - id: a
    backend: {{type: vllm, model: m, base_url: "{url}", api_key: {key}}}
"""


def offers(root: Path) -> list[str]:
    """What there is of offers on the disk."""
    folder = root / ".offers"
    return os.listdir(folder) if folder.exists() else []


@pytest.fixture
def team(tmp_path: Path, server: ModelServer) -> Path:
    path = tmp_path / "team.yaml"
    path.write_text(TEAM.format(url=server.url, key=canaries.KEY))
    return path


def calling(server: ModelServer, *calls: ToolCall) -> None:
    """Let the model make these calls, one a reply, and then answer."""
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "the answer"}),))
    server.script("m", *(Reply(tool_calls=(call,)) for call in calls), answer)


def begin(team: Path, root: Path, *tools: Callable[..., Any]) -> Run:
    return nb_agents.start(
        "the task", team, tools=tools, options=RunOptions(session_root=root, detach=True)
    )


def finished(run: Run) -> list[ev.ToolFinished]:
    return events(run, ev.ToolFinished)


def results(run: Run) -> list[tuple[str, str]]:
    return [(each.outcome, each.result) for each in finished(run)]


def endless_function() -> tuple[Callable[..., Any], threading.Event, threading.Event]:
    """Make an async function that ends by being cancelled; tell when it began and when it did."""
    begun, cancelled = threading.Event(), threading.Event()

    async def query() -> str:
        """Look."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    return query, begun, cancelled


def test_functions_are_called_in_their_own_process_and_their_results_used(
    team: Path, root: Path, server: ModelServer
) -> None:
    seen: list[Any] = []

    def query(name: str) -> dict[str, int]:
        """Look a thing up."""
        return {name: os.getpid()}

    async def fetch(count: int, context: ToolContext) -> str:
        """Fetch so much."""
        seen.append((context.agent, context.workspace))
        return "x" * count

    calling(server, ToolCall("query", {"name": "x"}), ToolCall("fetch", {"count": 200_000}))
    run = begin(team, root, query, fetch)
    finish(run)
    assert run.result == "the answer"
    [first, second] = finished(run)
    assert first.result == f'{{"x":{os.getpid()}}}'
    assert second.result.startswith("x" * MAX_RESULT_CHARS) and "[truncated: " in second.result
    assert seen == [("a", run.path.parent / "task_1" / "workspaces" / "a")]
    offered = {
        tool["function"]["name"]: tool["function"] for tool in server.requests[0].body["tools"]
    }
    assert offered["query"]["description"] == "Look a thing up."
    assert offered["query"]["parameters"]["required"] == ["name"]
    assert str(os.getpid()) in server.requests[1].prompt
    wait_until(lambda: not offers(root), WAIT_S, "the offer's end", lambda: offers(root))


def test_call_of_an_offered_function_is_fast(team: Path, root: Path, server: ModelServer) -> None:
    def query() -> str:
        """Look."""
        return "seen"

    calling(server, *[ToolCall("query", {})] * 20)
    run = finish(begin(team, root, query))
    assert min(each.seconds for each in finished(run)) <= 0.3


def test_model_receives_the_errors_of_failed_and_wrong_calls(
    team: Path, root: Path, server: ModelServer
) -> None:
    def query(name: str) -> str:
        """Look."""
        raise LookupError(f"no {name} here")

    calling(server, ToolCall("query", {"name": "x"}), ToolCall("query", {}))
    run = finish(begin(team, root, query))
    assert results(run) == [
        ("error", "Error: LookupError: no x here"),
        ("error", "Error: invalid arguments for query: name: Field required."),
    ]
    assert "LookupError: no x here" in server.requests[1].prompt
    assert run.result == "the answer"


def test_unsuitable_function_is_rejected_before_the_start(team: Path, root: Path) -> None:
    def vote() -> None: ...

    before = {*offers(root)}  # those of runs that have just ended may still be there
    with pytest.raises(UserError, match="There is already a tool 'vote'"):
        begin(team, root, vote)
    assert not root.exists() and {*offers(root)} <= before


def test_offer_to_a_run_that_cannot_start_is_withdrawn(tmp_path: Path, root: Path) -> None:
    def query() -> None: ...

    before = {*offers(root)}
    with pytest.raises(UserError, match=r"missing\.yaml"):
        begin(tmp_path / "missing.yaml", root, query)
    assert {*offers(root)} <= before


def test_keys_are_in_no_call_file_or_answer(
    team: Path, root: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def query(name: str) -> str:
        """Look."""
        given.append(name)
        return f"{canaries.KEY} and {os.environ['CANARY_TOKEN']} and more"

    written: list[bytes] = []
    write = offer.CallInbox._write
    monkeypatch.setattr(
        offer.CallInbox,
        "_write",
        lambda self, name, data: [written.append(data), write(self, name, data)],
    )
    calling(server, ToolCall("query", {"name": canaries.KEY}))
    run = finish(begin(team, root, query))
    assert given == ["[key]"]
    assert results(run) == [("ok", "[key] and [key] and more")]
    assert len(written) == 1 and canaries.KEY.encode() not in written[0]


# Stopping


class FullDisk:
    """A disk that has no space for the result of a function."""

    def __init__(self) -> None:
        self.refused = 0
        self.has_room = False
        self._write = offer.write_private

    def write(self, path: Path, data: str | bytes) -> None:
        if path.suffix == ".answer" and not self.has_room:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    full = FullDisk()
    monkeypatch.setattr(offer, "write_private", full.write)
    return full


def test_result_of_a_function_is_sent_once_the_disk_has_space(
    team: Path, root: Path, server: ModelServer, disk: FullDisk
) -> None:
    called: list[int] = []

    def query() -> str:
        """Look."""
        called.append(1)
        return "found"

    calling(server, ToolCall("query"))
    run = begin(team, root, query)
    wait_until(lambda: disk.refused > 1, WAIT_S)
    disk.has_room = True
    finish(run)
    assert (results(run), called) == ([("ok", "found")], [1])


def test_run_with_a_function_result_that_cannot_be_sent_can_be_stopped(
    team: Path, root: Path, server: ModelServer, disk: FullDisk
) -> None:
    def query() -> str:
        """Look."""
        return "found"

    calling(server, ToolCall("query"))
    run = begin(team, root, query)
    wait_until(lambda: disk.refused, WAIT_S)
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    wait_until(lambda: not offers(root), WAIT_S, "the offer's end", lambda: offers(root))


@pytest.mark.parametrize("now", [False, True], ids=["graceful", "at once"])
def test_stop_reaches_a_function_that_checks_for_it(
    team: Path, root: Path, server: ModelServer, now: bool
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def crunch() -> str:
        """Crunch."""
        begun.set()
        try:
            while True:
                nb_agents.checkpoint()
        finally:
            stopped.set()

    calling(server, ToolCall("crunch", {}))
    run = begin(team, root, crunch)
    assert begun.wait(WAIT_S)
    assert run.stop(now).changed
    assert stopped.wait(WAIT_S)
    finish(run)
    assert run.status == "cancelled"
    assert [each.outcome for each in finished(run)] == ["cut"]


def test_immediate_stop_cancels_an_async_function(
    team: Path, root: Path, server: ModelServer
) -> None:
    query, begun, cancelled = endless_function()
    calling(server, ToolCall("query", {}))
    run = begin(team, root, query)
    assert begun.wait(WAIT_S)
    run.stop(True)
    assert cancelled.wait(WAIT_S)
    finish(run)
    assert run.status == "cancelled"
    assert [each.outcome for each in finished(run)] == ["cut"]


def test_graceful_stop_lets_a_call_finish(team: Path, root: Path, server: ModelServer) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def query() -> str:
        """Look."""
        begun.set()
        goes_on.wait(WAIT_S)
        return "seen"

    calling(server, ToolCall("query", {}))
    run = begin(team, root, query)
    assert begun.wait(WAIT_S)
    run.stop()
    wait_until(lambda: run.view.stop, WAIT_S)
    goes_on.set()
    finish(run)
    assert run.status == "cancelled"
    assert results(run) == [("ok", "seen")]


# Who offers them


OFFERING = """
import nb_agents, pathlib, signal, sys, time
from nb_agents.options import RunOptions

def query() -> str:
    "Look."
    pathlib.Path("begun").touch()
    while {hangs} and pathlib.Path("begun").exists():
        time.sleep(0.01)
    return "seen by {name}"

run = nb_agents.start(
    "the task", {team!r}, tools=[query], session={name!r}, options=RunOptions(detach=True)
)
print(run.path, flush=True)
signal.pause()
"""


def test_model_is_informed_if_the_process_of_a_function_dies(
    tmp_path: Path, team: Path, root: Path, server: ModelServer
) -> None:
    calling(server, ToolCall("query", {}), ToolCall("query", {}))
    source = OFFERING.format(hangs=True, name="one", team=str(team))
    with script(source, tmp_path) as process:
        path = Path(read_line(process).strip())
        wait_until((tmp_path / "begun").exists, WAIT_S, "the call")
        process.kill()
    run = finish(attach(path))
    told = "Error: the notebook that offers `query` is not running"
    assert results(run) == [("error", told), ("error", told)]
    assert told in server.requests[1].prompt
    assert run.result == "the answer"


def test_offers_of_two_processes_under_one_name_are_separate(
    tmp_path: Path, team: Path, root: Path, server: ModelServer
) -> None:
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "the answer"}),))
    query = Reply(tool_calls=(ToolCall("query", {}),))
    server.default = lambda request: answer if "seen by" in request.prompt else query
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (OFFERING.format(hangs=False, name=n, team=str(team)) for n in ("one", "two"))
    with script(first, tmp_path / "one") as one, script(second, tmp_path / "two") as two:
        runs = [finish(attach(Path(read_line(each).strip()))) for each in (one, two)]
    assert [results(run) for run in runs] == [[("ok", "seen by one")], [("ok", "seen by two")]]


def test_later_process_offers_the_functions_again(
    tmp_path: Path, team: Path, root: Path, server: ModelServer
) -> None:
    def query() -> str:
        """Look."""
        return "seen by another"

    def others() -> None: ...

    calling(server, ToolCall("query", {}), ToolCall("query", {}))
    server.hold(after=0)
    with script(OFFERING.format(hangs=False, name="one", team=str(team)), tmp_path) as process:
        run = attach(Path(read_line(process).strip()))
        process.kill()
    with pytest.raises(UserError, match="without a tool 'others'. Its notebook tools are: query"):
        run.offer([others])
    with pytest.raises(UserError, match="Invalid tool offer id"):
        run._turn.send(ev.OfferTools("../../elsewhere", ("query",), "somebody"))
    run.offer([query])
    server.release()
    finish(run)
    assert results(run) == [("ok", "seen by another")] * 2
    assert f"(pid {os.getpid()})." in run.view.notices[-1]
    with pytest.raises(UserError, match="is over"):
        run.offer([query])


def test_call_is_cancelled_when_the_process_of_its_run_dies(
    team: Path, root: Path, server: ModelServer
) -> None:
    query, begun, cancelled = endless_function()
    calling(server, ToolCall("query", {}))
    run = begin(team, root, query)
    [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
    assert begun.wait(WAIT_S)
    os.kill(turn.pid, signal.SIGKILL)
    assert cancelled.wait(WAIT_S)
    run.wait(WAIT_S, raise_on_stop=False)


DIES = """
import os
from pathlib import Path
from nb_agents.tools.offer import CallInbox
print(CallInbox.make(Path(os.environ["NB_AGENTS_SESSIONS"])).id, flush=True)
os._exit(0)
"""


def test_next_offer_removes_offers_of_dead_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sessions"
    with script(DIES, tmp_path) as process:
        left = read_line(process).strip()
        process.wait()
    alive = offer.CallInbox.make(root)
    assert left in offers(root)
    monkeypatch.setattr(offer, "STALE_S", 0.0)
    offer.CallInbox.make(root).withdraw()
    assert left not in offers(root) and f"{left}.lock" not in offers(root)
    assert alive.id in offers(root) and alive.is_live()
    alive.withdraw()
    assert not alive.is_live()


def test_resumed_detached_run_is_detached_again_with_its_tools(
    team: Path, root: Path, server: ModelServer
) -> None:
    begun = threading.Event()

    async def query() -> str:
        """Look."""
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "seen"

    calling(server, ToolCall("query", {}), ToolCall("query", {}))
    run = begin(team, root, query)
    assert begun.wait(WAIT_S)
    run.stop(True)
    run.wait(WAIT_S, raise_on_stop=False)
    again = run.resume()
    assert again.where and again.turn == 2
    assert again.wait(WAIT_S) == "the answer"
    assert ("ok", "seen") in results(again)


def test_notebook_functions_of_a_detached_run_cannot_ask_the_user(
    team: Path, root: Path, server: ModelServer
) -> None:
    def choose() -> str:
        """Let a user choose."""
        return nb_agents.ask("Which?")

    calling(server, ToolCall("choose", {}))
    run = finish(begin(team, root, choose))
    assert [(o, "can't ask the user" in text) for o, text in results(run)] == [("error", True)]
