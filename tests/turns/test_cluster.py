"""Runs on a cluster's workers, with a scheduler and workers as real processes."""

import asyncio
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster
from platformdirs import user_state_path

import nb_agents
from nb_agents.errors import ClusterLostError, UserError
from nb_agents.launch import cluster as cluster_module
from nb_agents.launch.cluster import ask, connect
from nb_agents.options import CancelPolicy, Cluster, Retry, RunOptions
from tests import canaries, processes
from tests.dask_cluster import Dask, dask
from tests.kit.clusters import Ticket
from tests.kit.runs import Run, attach, find_live, live_turns
from tests.kit.sessions import read_json
from tests.kit.sweeps import LiveRow, fold_notes
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.recipes.live import commands_alive
from tests.samples import some_or_all
from tests.team_kit import read_line, script

WAIT_S = 120


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    """A shared cluster of two workers with ten slots each."""
    with dask(tmp_path_factory.mktemp("dask")) as made:
        yield made


def team_of(server: ModelServer) -> TeamSpec:
    backend = {"type": "vllm", "model": "m", "base_url": server.url, "api_key": "k"}
    return TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})


def team_file(folder: Path, server: ModelServer, key: str) -> Path:
    path = folder / "team.yaml"
    backend = f'{{type: vllm, model: m, base_url: "{server.url}", api_key: {key}}}'
    path.write_text(f"agents: [{{id: a, backend: {backend}}}]")
    return path


@pytest.fixture
def begin(server: ModelServer, root: Path) -> Callable[..., Run]:
    def begin(where: object, *tools: Callable[..., Any], task: str = "the task") -> Run:
        options = RunOptions(session_root=root, cluster=where)
        return nb_agents.start(task, team_of(server), tools=tools, options=options)

    return begin


Begin = Callable[..., Run]


def has_said(run: Run, word: str) -> None:
    wait_until(lambda: word in run.view.agents["a"].partial, WAIT_S, word)


def place_of(run: Run) -> str:
    """The address of the worker that has a run."""
    return run.where.removeprefix("worker ")


def test_run_on_a_worker_is_known_to_all_entry_points(
    two: Dask, begin: Begin, server: ModelServer
) -> None:
    server.script("m", Reply("words that come", hang_after=2))
    run = begin(two.client)
    assert place_of(run) in two.pids
    [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
    assert (turn.pid, turn.place) == (two.pids[place_of(run)], run.where)
    has_said(run, "that")
    assert find_live(run.session).stop(True, reason="seen enough").changed
    run.wait(WAIT_S, raise_on_stop=False)
    assert (run.status, run.view.stop and run.view.stop.reason) == ("cancelled", "seen enough")
    assert run.view.agents["a"].unsubmitted.strip().startswith("words that")

    server.script("m", Reply("So."))
    again = run.resume()
    assert again.where.startswith("worker ") and again.wait(WAIT_S) == "So."


def test_graceful_stop_lets_an_open_answer_finish(
    two: Dask, begin: Begin, server: ModelServer
) -> None:
    server.script("m", Reply("words that come"))
    server.hold(after=2)
    run = begin(two.address)
    has_said(run, "words")
    assert run.stop().changed
    server.release()
    run.wait(WAIT_S, raise_on_stop=False)
    assert "words that come" in str(run.view.agents["a"])


def test_run_on_a_worker_gets_messages_and_can_be_paused(
    two: Dask, begin: Begin, server: ModelServer
) -> None:
    server.script("m", Reply("words that come"), Reply("So."))
    server.hold(after=1)
    run = begin(two.client)
    has_said(run, "words")
    run.say("in verse, please")
    run.pause()
    server.release()
    wait_until(lambda: server.requests[0].closed_by == "server", WAIT_S)
    wait_until(lambda: run.status == "awaiting", WAIT_S)
    assert len(server.requests) == 1
    assert run.resume() is run
    assert run.wait(WAIT_S) == "So."
    assert "in verse, please" in server.requests[1].prompt and len(server.requests) == 2


GATED = """\
name: asks
description: d
version: 1.0.0
stages:
- name: look
  steps: [{id: see, type: bash, command: echo blue}]
  approval: {required: true, prompt: "Buy it?"}
- name: tell
  steps: [{id: say, type: bash, command: "echo {{_approval_message}}", output: said}]
"""


def test_recipe_on_a_worker_waits_at_its_gate_for_the_user(
    two: Dask, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "asks.yaml").write_text(GATED)
    options = RunOptions(session_root=root, cluster=two.client)
    run = nb_agents.start(recipe=tmp_path / "asks.yaml", options=options)
    wait_until(lambda: [gate.prompt for gate in run.view.gates.values()] == ["Buy it?"], WAIT_S)
    run.approve("the matt one", by="ann")
    run.wait(WAIT_S, raise_on_stop=False)
    assert run.result["said"].strip() == "the matt one"
    assert [(given.approved, given.by) for given in run.view.approvals] == [(True, "ann")]


def test_error_names_the_worker(two: Dask, root: Path) -> None:
    options = RunOptions(session_root=root, cluster=two.client)
    with pytest.raises(UserError, match=r"Worker tcp://127.0.0.1:\d+: .*OPENAI_API_KEY"):
        nb_agents.start("t", TeamSpec.from_model("openai:gpt-5-mini"), options=options)


def test_error_without_a_scheduler(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "CONNECT_S", 0.1)
    options = RunOptions(session_root=root, cluster="tcp://127.0.0.1:9")
    with pytest.raises(UserError, match="No Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        nb_agents.start("t", options=options)


def test_rows_that_wait_for_a_lost_scheduler_share_one_attempt_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[str] = []
    has_five = threading.Barrier(5)

    class Lock:
        """Lets a thread in when five of them wait."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            has_five.wait(WAIT_S)
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def fail(address: str) -> Client:
        attempts.append(address)
        raise ClusterLostError(address, "refused")

    monkeypatch.setattr(cluster_module, "_connecting", Lock())
    monkeypatch.setattr(cluster_module, "_open", fail)
    with ThreadPoolExecutor(5) as threads:
        for _ in range(2):  # who asks later is tried for again
            asked = [threads.submit(connect, Cluster("tcp://127.0.0.1:9")) for _ in range(5)]
            assert all(isinstance(each.exception(), ClusterLostError) for each in asked)
    assert len(attempts) == 2


def test_forwarded_keys_reach_the_model_but_never_the_disk(
    two: Dask, root: Path, tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_API_KEY", canaries.KEY)
    server.script("m", Reply(f"Your key is {canaries.KEY}."))
    options = RunOptions(session_root=root, cluster=Cluster(two.client, ("FORWARDED_API_KEY",)))
    team = team_file(tmp_path, server, "'${FORWARDED_API_KEY}'")
    run = nb_agents.start("t", team, options=options)
    assert "Your key is" in run.wait(WAIT_S)
    assert server.requests[0].headers["authorization"] == f"Bearer {canaries.KEY}"
    assert not [*canaries.found_on_disk(root)]
    dasks = [path for path in two.folder.rglob("*") if path.is_file()]
    assert dasks and not [path for path in dasks if canaries.found_in(path.read_bytes())]
    with pytest.raises(UserError, match="names 'MISSING', which is not set"):
        nb_agents.start("t", options=RunOptions(cluster=Cluster(two.client, ("MISSING",))))


@pytest.mark.parametrize("ship", [False, True])
def test_tool_is_called_in_the_notebook_or_sent_to_the_worker(
    two: Dask, root: Path, server: ModelServer, ship: bool
) -> None:
    here = os.getpid()

    def place(x: int) -> str:
        """Say where this is."""
        return f"{x}: {'here' if os.getpid() == here else 'there'}"

    server.script("m", Reply(tool_calls=(ToolCall("place", {"x": 7}),)), Reply("So."))
    options = RunOptions(session_root=root, cluster=Cluster(two.client, ship=ship))
    run = nb_agents.start("t", team_of(server), tools=[place], options=options)
    run.wait(WAIT_S)
    assert ("7: there" if ship else "7: here") in server.requests[1].prompt


def test_unsendable_tool_is_refused_with_a_clear_message(
    two: Dask, root: Path, server: ModelServer
) -> None:
    lock = threading.Lock()

    def locked() -> bool:
        """Look."""
        return lock.locked()

    options = RunOptions(session_root=root, cluster=Cluster(two.client, ship=True))
    with pytest.raises(UserError, match="can't be sent to a worker .* Without ship=True"):
        nb_agents.start("t", team_of(server), tools=[locked], options=options)
    assert not server.requests and not root.exists()


def tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no worker's answer arrive."""
    monkeypatch.setattr(cluster_module, "_submitters", {})
    monkeypatch.setattr(cluster_module._Submitter, "_on_answer", lambda submitter, event: None)


def test_run_that_starts_after_its_caller_gave_up_is_stopped(
    two: Dask, begin: Begin, server: ModelServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script("m", Reply("words that come", hang_after=2))

    def give_up(waiting: Any, workers: object) -> None:
        if waiting.ticket.answer is not None:
            raise KeyboardInterrupt

    waits = cluster_module._Waiting
    monkeypatch.setattr(cluster_module, "MOVE_S", 0.001)
    tell_nothing(monkeypatch)
    monkeypatch.setattr(waits, "check_worker", give_up)
    with pytest.raises(KeyboardInterrupt):
        begin(two.client)
    [path] = root.glob("session_*/turn_1")
    run = attach(path)
    run.wait(WAIT_S, raise_on_stop=False)
    assert run.view.stop and run.view.stop.reason == "its caller stopped waiting"
    assert not os.listdir(root / ".tickets")


def test_run_is_found_if_its_worker_could_not_report_it(
    two: Dask, begin: Begin, server: ModelServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script("m", Reply("So."))
    server.hold(after=1)
    tell_nothing(monkeypatch)
    run = begin(two.client)
    assert place_of(run) in two.pids and not os.listdir(root / ".tickets")
    server.release()
    assert run.wait(WAIT_S) == "So."


class Deadly:
    """Ends the worker that loads it, so many times."""

    def __init__(self, place: Path, times: int) -> None:
        self.place, self.times = place, times

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self.place.mkdir(exist_ok=True)
        if (count := len(os.listdir(self.place))) < self.times:
            (self.place / str(count)).touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("allowed", [0, 3], ids=["once", "and tried again by Dask itself"])
def test_row_is_resubmitted_if_its_worker_died_before_the_start(
    tmp_path: Path,
    server: ModelServer,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", str(allowed))
    server.script("m", lambda request: Reply(f"So: {_task(request)}."))
    too_many = ["3 workers were lost while starting the run."]
    with dask(tmp_path / "dask", 2, places=1) as made:
        for times, (completed, errors) in {1: (2, []), 3: (1, too_many)}.items():
            deadly = Deadly(tmp_path / f"deaths-{times}", times)

            def look() -> str:
                """Look."""
                return str(deadly)  # noqa: B023

            where = Cluster(made.client, ship=True)
            options = RunOptions(session_root=root / str(times), cluster=where)
            sweep = nb_agents.map(
                rows(2), "{{q}}", team_of(server), limit=1, tools=[look], options=options
            )
            view = sweep.wait(WAIT_S)
            assert (view.completed, [each.error for each in view.failures]) == (completed, errors)
            assert len(os.listdir(deadly.place)) == times
            assert not os.listdir(sweep.path / ".tickets")
    assert Counter(map(_task, server.requests)) == {"0": 1, "1": 2}


def test_run_that_lost_its_workers_is_not_started_again(tmp_path: Path) -> None:
    waiting = cluster_module._Waiting(Ticket.new(tmp_path, "nb_agents-1"))
    for _ in range(cluster_module.MAX_LOST):
        assert waiting.ticket.take("tcp://127.0.0.1:1")
        waiting.recover()
    assert "3 workers were lost" in waiting.answer.result()["error"]
    assert not waiting.ticket.take("tcp://127.0.0.1:2")


@pytest.mark.parametrize("is_blind", [False, True])
def test_duplicate_task_without_a_ticket_counts_only_if_no_worker_has_it(
    tmp_path: Path, is_blind: bool
) -> None:
    waiting = cluster_module._Waiting(Ticket.new(tmp_path, "nb_agents-1"))
    said = {"key": waiting.key, "untaken": "yes"} | ({"error": "blind"} if is_blind else {})
    waiting.future = task = SimpleNamespace(status="finished", result=lambda: said)
    waiting.ticket.take("tcp://127.0.0.1:1")
    cluster_module._on_task_end(waiting, task)
    assert waiting.sent_back is None and not waiting.answer.done()
    waiting.ticket.put_back()
    cluster_module._on_task_end(waiting, task)
    assert waiting.answer.done() is is_blind
    assert waiting.sent_back is (None if is_blind else task)


def test_session_root_that_a_worker_cannot_read_is_reported_before_the_start(
    tmp_path: Path, begin: Begin, server: ModelServer, root: Path
) -> None:
    root.mkdir()
    blind = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(root)]
    with dask(tmp_path / "dask", 1, before=blind) as made:
        with pytest.raises(UserError, match="can't see the session root"):
            begin(made.client)
    assert not server.requests


PROJECT_RECIPE = """\
name: here
description: works in the directory that it is started in
version: 1.0.0
workspace: project
steps:
- {id: note, type: bash, command: "pwd > where.txt; cat where.txt", output: place}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user directory with a recipe, outside the workers' directories."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "here.yaml").write_text(PROJECT_RECIPE)
    monkeypatch.chdir(place)
    return place


def test_recipe_on_a_worker_runs_in_its_start_directory(
    two: Dask, root: Path, project: Path
) -> None:
    options = RunOptions(session_root=root, cluster=two.client)
    run = nb_agents.start("", recipe="here.yaml", options=options)
    run.wait(WAIT_S, raise_on_stop=False)
    assert run.status == "completed" and run.where.startswith("worker ")
    assert (project / "where.txt").read_text() == f"{project}\n"
    assert {each.name for each in project.iterdir()} == {"here.yaml", "where.txt"}


def test_team_on_a_worker_has_its_start_directory(
    two: Dask, root: Path, project: Path, server: ModelServer
) -> None:
    server.script("m", Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),)))
    path = team_file(project, server, "k")
    path.write_text(f"{path.read_text()}\nworkspace: project\n")
    run = nb_agents.start(
        "t", "team.yaml", options=RunOptions(session_root=root, cluster=two.client)
    )
    assert run.wait(WAIT_S) == "done"
    assert str(project) in server.requests[0].prompt


def test_team_on_a_worker_reads_paths_from_its_start_directory(
    two: Dask, root: Path, project: Path, server: ModelServer
) -> None:
    server.script("m", Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),)))
    path = team_file(project, server, "k")
    path.write_text(f"{path.read_text()}\norchestrator: {{context_paths: [notes]}}\n")
    for name in ("notes", "more"):
        (project / name).mkdir()
    options = RunOptions(session_root=root, cluster=two.client, context_paths=["more"])
    assert nb_agents.start("t", "team.yaml", options=options).wait(WAIT_S) == "done"
    for name in ("notes", "more"):
        assert str(project / name) in server.requests[0].prompt


def test_project_that_a_worker_cannot_read_is_reported_before_the_start(
    tmp_path: Path, root: Path, project: Path, server: ModelServer
) -> None:
    path = team_file(project, server, "k")
    path.write_text(f"{path.read_text()}\nworkspace: project\n")
    blind = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(project)]
    with dask(tmp_path / "dask", 1, before=blind) as made:
        options = RunOptions(session_root=root, cluster=made.client)
        told = f"can't see {str(project)!r}, the working directory of the run"
        for given in ({"config": "team.yaml"}, {"recipe": "here.yaml"}):
            task = "" if "recipe" in given else "t"
            with pytest.raises(UserError, match=re.escape(told)):
                nb_agents.start(task, **given, options=options)
    assert not server.requests and not [*root.glob("session_*")]
    assert {each.name for each in project.iterdir()} == {"here.yaml", "team.yaml"}


def test_run_on_another_machine_is_listed_by_other_local_processes(
    tmp_path: Path, begin: Begin, server: ModelServer, root: Path
) -> None:
    server.script("m", Reply("words that come", hang_after=2))
    state = user_state_path("nb_agents")
    state.mkdir(parents=True, exist_ok=True)
    # By another name, and without what its user's processes tell each other here.
    away = ["bwrap", "--dev-bind", "/", "/", "--unshare-uts", "--hostname", "elsewhere"]
    with dask(tmp_path / "dask", 1, before=[*away, "--tmpfs", str(state)]) as made:
        run = begin(made.client)
        has_said(run, "words")
        [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
        assert turn.host == "elsewhere" and turn.where.endswith(f"(pid {turn.pid} on elsewhere)")
        door = [sys.executable, "-m", "nb_agents.cli"]
        listed = processes.run([*door, "runs"])
        assert run.session in listed.stdout and "on elsewhere" in listed.stdout.replace("\n", " ")
        processes.run([*door, "stop", run.session, "--now"])
        run.wait(WAIT_S, raise_on_stop=False)
    assert run.status == "cancelled"


def test_session_written_without_a_user_key_belongs_to_the_user(
    tmp_path: Path, server: ModelServer, root: Path
) -> None:
    said = Reply(tool_calls=(ToolCall("new_answer", {"content": "So."}),))
    server.script("m", *[said] * 4)
    state = tmp_path / "state of the worker"
    here = RunOptions(session_root=root)
    with dask(tmp_path / "dask", 1, state=state) as made:
        there = replace(here, cluster=made.client)
        first = nb_agents.start("the task", team_of(server), options=there)
        first.wait(WAIT_S)
        for options in (there, here, there):
            go_on = partial(nb_agents.start, "And?", team_of(server), first.session, True)
            assert go_on(options=options).wait(WAIT_S) == "So."
    assert (state / "nb_agents" / "live").exists()
    assert not (state / "nb_agents" / "owner.key").exists()


def test_cancelled_wait_for_a_worker_starts_nothing(
    tmp_path: Path, begin: Begin, server: ModelServer, root: Path
) -> None:
    server.script("m", Reply("words that come", hang_after=2))
    with dask(tmp_path, 1, places=1) as made:
        first = begin(made.client)
        has_said(first, "words")
        refused: list[str] = []

        def second() -> None:
            with pytest.raises(UserError) as told:
                begin(made.client)
            refused.append(str(told.value))

        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: len(os.listdir(root / ".tickets")) == 1, WAIT_S)
        # Its ticket is there a moment before it can be withdrawn: a sweep asks again, too.
        wait_until(lambda: cluster_module.withdraw(root) or not thread.is_alive(), WAIT_S)
        thread.join(WAIT_S)
        assert "stopped before a worker started it" in refused[0]
        first.stop(True)
        first.wait(WAIT_S, raise_on_stop=False)
        server.script("m", Reply("So."))
        assert begin(made.client).wait(WAIT_S) == "So."
    listed = nb_agents.runs()
    assert len(listed) == len({run.path for run in listed})
    assert len(server.requests) == 2 and not os.listdir(root / ".tickets")


def test_dead_or_suspended_worker_leaves_no_process_behind(
    tmp_path: Path, server: ModelServer, root: Path
) -> None:
    away = {"command": "setsid sleep 1000"}
    server.script("m", Reply("words that come", tool_calls=(ToolCall("run_command", away),)))
    backend = {"type": "vllm", "model": "m", "base_url": server.url, "api_key": "k"}
    backend["enable_mcp_command_line"] = True
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    policy = CancelPolicy(grace_timeout_s=1)

    def stop(run: Run, now: bool) -> None:
        assert run.stop(now).status == "asked"

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    endings: list[tuple[Callable[[int], None], Callable[[Run], object]]] = [
        (processes.suspend, lambda run: stop(run, now=True)),
        (processes.suspend, lambda run: stop(run, now=False)),  # ended when its grace time is over
        (kill, lambda run: None),
    ]
    with dask(tmp_path / "dask", 1) as made:
        options = RunOptions(session_root=root, cluster=made.client, cancel=policy)
        for how, ask in endings:
            run = nb_agents.start("the task", team, options=options)
            wait_until(lambda: commands_alive(root), WAIT_S)
            [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
            how(turn.pid)
            ask(run)
            run.wait(WAIT_S, raise_on_stop=False)
            assert run.view.ending == "killed"
            wait_until(lambda: not Path(f"/proc/{turn.pid}").exists(), WAIT_S)  # noqa: B023
            wait_until(lambda: not commands_alive(root), WAIT_S)


KERNEL = """
import sys, signal, nb_agents
from nb_agents.options import RunOptions
address = sys.stdin.readline().strip()
run = nb_agents.start("the task", "team.yaml", options=RunOptions(cluster=address))
print(run.path, flush=True)
signal.pause()
"""


def test_many_runs_survive_stops_and_deaths_of_worker_kernel_and_scheduler(
    tmp_path: Path, begin: Begin, server: ModelServer, root: Path
) -> None:
    count = some_or_all(16, 40)
    early, is_open = {str(number) for number in range(count // 5)}, threading.Event()
    cuts: Counter[str] = Counter()

    def reply(request: Request) -> Reply:
        is_whole = _task(request) in early or is_open.is_set()
        return Reply(f"So: {_task(request)}.", hang_after=None if is_whole else 1)

    def cut(*runs: Run) -> None:
        """Wait until runs that were writing an answer have ended, and count them."""
        for run in runs:
            run.wait(WAIT_S, raise_on_stop=False)
            assert run.status == "cancelled" and "So" in run.view.agents["a"].unsubmitted
            cuts[_number(run.view.task)] += 1

    team_file(tmp_path, server, "k")
    server.script("m", reply)
    with dask(tmp_path / "dask", 4) as made:
        tasks = [f"task-{number}-" for number in range(count - 1)]
        with ThreadPoolExecutor(8) as pool:
            runs = [*pool.map(lambda task: begin(made.client, task=task), tasks)]
        with script(KERNEL, tmp_path) as kernel:
            assert kernel.stdin is not None
            kernel.stdin.write(made.address + "\n")
            kernel.stdin.flush()
            path = Path(read_line(kernel).strip())
            kernel.kill()
        done, going = runs[: len(early)], runs[len(early) :]
        going.append(find_live(path.parent.name, path.parents[1]))
        assert {run.wait(WAIT_S) for run in done} == {f"So: {number}." for number in early}
        for run in going:
            has_said(run, "So")
        assert len({place_of(run) for run in runs}) == 4 and len(server.requests) == count

        # One is stopped; the others continue.
        assert going[0].stop(True).changed
        cut(going[0])
        assert not any(run.is_over for run in going[1:])

        # A worker dies: its runs are incomplete, and Dask's own second try begins nothing.
        died = place_of(going[1])
        os.kill(made.pids[died], signal.SIGKILL)
        lost = [run for run in going[1:] if died in run.where]
        cut(*lost)
        assert {run.view.ending for run in lost} == {"killed"}
        made.client.wait_for_workers(4, timeout=WAIT_S)
        resumed = [run.resume(options=RunOptions(cluster=made.client)) for run in lost]
        for run in resumed:
            has_said(run, "So")
        assert len(server.requests) == count + len(lost)

        # All live runs are stopped, as a user stops the listed runs.
        live = [run for run in nb_agents.runs(root) if not run.is_over]
        assert len(live) == len(going) - 1
        for run in live:
            run.stop(True)
        cut(*live)

        # Some go on, and the scheduler dies, and with it the workers.
        again = [run.resume(options=RunOptions(cluster=made.client)) for run in live[:8]]
        for run in again:
            has_said(run, "So")
        workers = made.pids.values()
        made.scheduler.kill()
        cut(*again)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), WAIT_S)
    is_open.set()
    here = RunOptions(session_root=root)
    for run in going:
        answer = nb_agents.resume(run.session, team_of(server), options=here).wait(WAIT_S)
        assert answer == f"So: {_number(run.view.task)}."
    # Who was cut is asked once more for each cut, and who had answered is not.
    asked = Counter(_task(request) for request in server.requests)
    assert asked == Counter(early) + cuts + Counter(_number(run.view.task) for run in going)


def _task(request: Request) -> str:
    return _number(request.prompt)


def _number(text: str) -> str:
    at = text.rfind("task-")
    return text[at:].split("-")[1] if at >= 0 else "orphan"


def rows(count: int) -> list[dict[str, str]]:
    return [{"q": f"task-{number}-"} for number in range(count)]


def test_sweep_continues_after_a_worker_died_without_paying_twice(
    tmp_path: Path, server: ModelServer, root: Path
) -> None:
    server.script("m", lambda request: Reply(f"So: {_task(request)}."))
    server.hold(after=1)
    with dask(tmp_path / "dask", places=4) as made:
        options = RunOptions(session_root=root, cluster=made.client)
        sweep = nb_agents.map(rows(24), "{{q}}", team_of(server), limit=8, options=options)
        wait_until(lambda: len(server.requests) == 8, WAIT_S)
        os.kill(min(made.pids.values()), signal.SIGKILL)
        wait_until(lambda: len(server.requests) == 12, WAIT_S)  # 4 are asked again
        server.release()
        assert sweep.wait(WAIT_S).completed == 24
    assert {record["answer"] for record in sweep.table()} == {f"So: {n}." for n in range(24)}
    asked = Counter(_task(request) for request in server.requests)
    assert sorted(asked.values()) == [1] * 20 + [2] * 4


SWEEPING = """
import sys, signal, nb_agents
from nb_agents.options import RunOptions
address = sys.stdin.readline().strip()
rows = [{"q": f"task-{number}-"} for number in range(6)]
nb_agents.map(
    rows, "{{q}}", "team.yaml", name="killed", limit=4, options=RunOptions(cluster=address)
)
signal.pause()
"""


def test_rows_that_outlive_a_killed_kernel_are_followed_by_the_same_call(
    two: Dask, tmp_path: Path, server: ModelServer, root: Path
) -> None:
    server.script("m", lambda request: Reply(f"So: {_task(request)}."))
    server.hold(after=1)
    team = team_file(tmp_path, server, "k")
    with script(SWEEPING, tmp_path) as kernel:
        assert kernel.stdin is not None
        kernel.stdin.write(two.address + "\n")
        kernel.stdin.flush()
        wait_until(lambda: len(fold_notes(root / "killed").at_work) == 4, WAIT_S)
        wait_until(lambda: len(server.requests) == 4, WAIT_S)
        kernel.kill()
    options = RunOptions(session_root=root, cluster=two.client)
    sweep = nb_agents.map(rows(6), "{{q}}", team, name="killed", limit=4, options=options)
    wait_until(lambda: len(sweep.runs) == 4, WAIT_S)
    assert {run.where.partition(" ")[0] for run in sweep.runs.values()} == {"worker"}
    server.release()
    view = sweep.wait(WAIT_S)
    assert (view.completed, view.failed) == (6, 0)
    assert Counter(map(_task, server.requests)) == {str(number): 1 for number in range(6)}


def test_stopped_sweep_starts_no_waiting_row(two: Dask, server: ModelServer, root: Path) -> None:
    server.script("m", Reply("words that come", hang_after=2))
    options = RunOptions(session_root=root, cluster=two.client)
    sweep = nb_agents.map(rows(30), "{{q}}", team_of(server), limit=24, options=options)
    wait_until(lambda: len(server.requests) == 20, WAIT_S)
    assert sweep.stop(True).changed
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert Counter(record["status"] for record in sweep.table()) == {"stopped": 20, "waiting": 10}
    assert len(server.requests) == 20 and not os.listdir(sweep.path / ".tickets")

    server.script("m", Reply("So."))
    assert sweep.resume().wait(WAIT_S).completed == 30


def test_judge_runs_on_the_cluster_like_rows(two: Dask, server: ModelServer, root: Path) -> None:
    backend = {"type": "vllm", "base_url": server.url, "api_key": "k"}
    agents = [{"id": name, "backend": {**backend, "model": name}} for name in ("m", "judge")]
    team = TeamSpec.model_validate({"agents": agents[:1], "callable_agents": agents[1:]})
    server.script("m", lambda request: Reply(f"So: {_task(request)}."))
    server.script("judge", lambda request: Reply(f"Score: {_task(request)}"))
    options = RunOptions(session_root=root, cluster=two.client)
    sweep = nb_agents.map(rows(3), "{{q}}", team, score="judge", options=options)
    assert sweep.wait(WAIT_S).completed == 3
    assert [record["score"] for record in sweep.table()] == [0.0, 1.0, 2.0]
    assert (server.count("m"), server.count("judge")) == (3, 3)
    told = [read_json(path) for path in root.glob("*/*/judge/turn_1/metadata.json")]
    owners = {int(each["owner"].split()[1]) for each in told}
    assert len(told) == 3 and owners <= {*two.pids.values()}


def test_rate_limit_error_on_one_worker_delays_rows_on_all(
    two: Dask, server: ModelServer, root: Path
) -> None:
    has_room = threading.Event()

    def reply(request: Request) -> Reply:
        number = _task(request)
        if number == "0" and not has_room.is_set():
            return Reply(status=429, error="slow down")
        return Reply(f"So: {number}.")

    def throttled() -> int:
        return sum(_task(request) == "0" for request in server.requests)

    server.script("m", reply)
    server.hold(after=1)
    options = RunOptions(
        session_root=root, cluster=two.client, retry=Retry(attempts=1000, delay=0.1)
    )
    sweep = nb_agents.map(rows(4), "{{q}}", team_of(server), limit=2, options=options)
    wait_until(lambda: [*map(_is_throttled, sweep.view.live)].count(True) == 1, WAIT_S)
    server.release()
    wait_until(lambda: sweep.view.completed == 1, WAIT_S)
    before = throttled()
    wait_until(lambda: throttled() > before + 2, WAIT_S)
    assert {_task(request) for request in server.requests} == {"0", "1"}
    has_room.set()
    assert sweep.wait(WAIT_S).completed == 4


def _is_throttled(row: LiveRow) -> bool:
    return any(agent.is_throttled for agent in row.view.agents.values())


def test_row_that_kills_its_workers_fails_without_delaying_others(
    tmp_path: Path, server: ModelServer, root: Path
) -> None:
    @nb_agents.tool(repeatable=True)
    def deadly(q: str) -> str:
        """Look."""
        if q == "task-0-":
            os.kill(os.getpid(), signal.SIGKILL)
        return "seen"

    def reply(request: Request) -> Reply:
        if len(request.messages) > 2:
            return Reply("So.")
        return Reply(tool_calls=(ToolCall("deadly", {"q": f"task-{_task(request)}-"}),))

    server.script("m", reply)
    with dask(tmp_path / "dask", 1, places=1) as made:
        cluster = Cluster(made.client, ship=True)
        options = RunOptions(session_root=root, cluster=cluster)
        sweep = nb_agents.map(
            rows(3), "{{q}}", team_of(server), limit=1, tools=[deadly], options=options
        )
        view = sweep.wait(WAIT_S)
    assert (view.completed, view.failed) == (2, 1)
    assert view.failures[0].error == "3 workers died while running this row"


def test_closed_client_is_not_reused(tmp_path: Path) -> None:
    with dask(tmp_path / "dask", 1) as made:
        with Client(made.client.scheduler.address) as gone:
            cluster_module._submitter(gone)
        cluster_module._submitter(made.client)
        known = cluster_module._submitters
        assert gone not in known and made.client in known


def test_no_request_outlives_the_connection_to_the_scheduler(tmp_path: Path) -> None:
    with dask(tmp_path / "dask", 1) as made, ThreadPoolExecutor() as threads:
        sent = threading.Event()

        async def never() -> None:
            sent.set()
            await asyncio.Event().wait()

        asked = threads.submit(ask, made.client, never, WAIT_S)
        assert sent.wait(WAIT_S)
        made.scheduler.kill()
        for late in (asked, threads.submit(ask, made.client, never, WAIT_S)):
            with pytest.raises(ClusterLostError, match="its client is connecting"):
                late.result(WAIT_S)


def test_sweep_with_a_dead_scheduler_leaves_its_rows_incomplete(
    tmp_path: Path, server: ModelServer, root: Path
) -> None:
    server.script("m", lambda request: Reply(f"So: {_task(request)}."))
    server.hold(after=1)
    with dask(tmp_path / "dask", 1, places=2) as made:
        options = RunOptions(session_root=root, cluster=made.client)
        sweep = nb_agents.map(rows(6), "{{q}}", team_of(server), limit=4, options=options)
        wait_until(lambda: len(server.requests) >= 2, WAIT_S)
        made.scheduler.kill()
        view = sweep.wait(WAIT_S)
    assert view.status == "cancelled" and "No Dask scheduler answers" in view.reason
    assert not view.failures

    server.release()
    here = RunOptions(session_root=root)
    again = nb_agents.map(rows(6), "{{q}}", team_of(server), options=here)
    assert again.path == sweep.path and again.wait(WAIT_S).completed == 6
    asked = Counter(_task(request) for request in server.requests)
    assert len(asked) == 6 and max(asked.values()) == 2


def test_adaptive_cluster_gets_its_first_worker_for_a_run(
    begin: Begin, server: ModelServer
) -> None:
    server.script("m", Reply("So."))
    with LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        resources={"nb_agents": 5},
        dashboard_address="127.0.0.1:0",
    ) as grows:
        grows.adapt(minimum=0, maximum=1, interval="100ms")
        with Client(grows) as client:
            assert not client.scheduler_info()["workers"]
            assert begin(client).wait(WAIT_S) == "So."


def test_late_worker_takes_only_as_many_runs_as_it_has_slots(
    begin: Begin, server: ModelServer, root: Path
) -> None:
    server.script("m", lambda request: Reply("So."))
    server.hold(after=1)
    runs: list[Run] = []
    with (
        LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            resources={"nb_agents": 2},
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        threads = [
            threading.Thread(target=lambda: runs.append(begin(client)), daemon=True)
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(_tasks(client, bool)) == 5, WAIT_S)
        assert not client.scheduler_info()["workers"]
        cluster.scale(1)
        # Those that came before its places were known have come again, for a place.
        wait_until(lambda: len(_tasks(client, _wants_place)) == 5, WAIT_S)
        wait_until(lambda: len(server.requests) == 2, WAIT_S)
        assert len(os.listdir(root / ".tickets")) == 3
        server.release()
        for thread in threads:
            thread.join(WAIT_S)
        assert [run.wait(WAIT_S) for run in runs] == ["So."] * 5


def _wants_place(task: Any) -> bool:
    return bool(task.resource_restrictions)


def _tasks(client: Client, are_meant: Callable[[Any], object]) -> list[str]:
    def names(dask_scheduler: Any) -> list[str]:
        return [str(task.key) for task in dask_scheduler.tasks.values() if are_meant(task)]

    found: list[str] = client.run_on_scheduler(names)
    return [name for name in found if name.startswith("nb_agents-")]


def test_local_cluster_requires_its_keys(begin: Begin, server: ModelServer) -> None:
    server.script("m", Reply("So."))
    assert begin("local:1").wait(WAIT_S) == "So."
    client = connect(Cluster("local:1"))
    assert client.run(os.getpid)
    with pytest.raises(OSError), Client(client.scheduler.address.replace("tls", "tcp"), timeout=2):
        pass
    cluster = client.cluster
    client.close()
    cluster.close()
