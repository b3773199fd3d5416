"""Detached runs, which outlive the process that started them."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from platformdirs import user_state_path

import nb_agents
from nb_agents.errors import UserError
from nb_agents.options import CancelPolicy, Retry, RunOptions, Timeout
from nb_agents.testing import ScriptedModel, scripted_team
from tests import canaries
from tests.kit.runs import Loaded, Run, StartRequest, detach, find_live, live_turns, runs
from tests.kit.sessions import new_mark
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import read_line, script

TEAM = """
agents:
  - id: a
    backend: {{type: vllm, model: m, base_url: "{url}", api_key: k}}
"""


@pytest.fixture
def team(tmp_path: Path, server: ModelServer) -> Path:
    path = tmp_path / "team.yaml"
    path.write_text(TEAM.format(url=server.url))
    return path


@pytest.fixture
def cold_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the processes of detached runs as users do."""
    monkeypatch.setattr(detach, "subprocess", subprocess)


def begin(team: Path, root: Path) -> Run:
    return nb_agents.start("the task", team, options=RunOptions(session_root=root, detach=True))


@pytest.mark.usefixtures("cold_host")
def test_process_of_a_detached_run_ends_with_the_run(
    team: Path, root: Path, server: ModelServer
) -> None:
    server.script("m", Reply(tool_calls=(ToolCall("new_answer", {"content": "the answer"}),)))
    server.hold(after=0)
    run = begin(team, root)
    [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
    assert turn.place == "detached" and turn.pid != os.getpid()
    server.release()
    assert run.wait(200) == "the answer"
    wait_until(lambda: not Path(f"/proc/{turn.pid}").exists())


class _Blocking:
    """Blocks who unpickles it."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._pipe, "rb")


def _group(leader: int) -> list[int]:
    """The processes that live in a group, but its leader."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return [pid for pid in found if pid != leader]


@pytest.mark.parametrize("end", [subprocess.TimeoutExpired("host", 1), KeyboardInterrupt()])
def test_forked_process_without_a_run_ends_when_the_start_fails(
    team: Path, root: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Host(subprocess.Popen[bytes]):
        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            if self not in started:
                started.append(self)
                while not _group(self.pid):  # its fork reads the job
                    try:
                        return super().communicate(input, 0.05)
                    except subprocess.TimeoutExpired:
                        input = None
                raise end
            return super().communicate(input, timeout)

    monkeypatch.setattr(
        detach, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Host})
    )
    os.mkfifo(root.parent / "pipe")
    request = StartRequest(
        task=_Blocking(root.parent / "pipe"),  # type: ignore[arg-type]
        config=team,
        options=RunOptions(session_root=root, detach=True),
    )
    loaded = Loaded(TeamSpec.from_file(team), None, new_mark(), Mock())
    with pytest.raises((UserError, KeyboardInterrupt)) as told:
        detach.begin_elsewhere(request, loaded, Run)
    assert isinstance(told.value, KeyboardInterrupt) or "its process was ended" in str(told.value)
    wait_until(lambda: not _group(started[0].pid))


def test_answer_counts_if_another_process_has_its_pipe_open(
    team: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b'{"path": "/there"}'
    late = subprocess.TimeoutExpired("host", 1, output=answer)
    process = SimpleNamespace(communicate=Mock(side_effect=late))
    assert detach._wait_for_reply(process, b"") == answer  # type: ignore[arg-type]


def test_starting_process_lists_the_run_after_its_end(
    team: Path, root: Path, server: ModelServer
) -> None:
    server.script("m", Reply("words", hang_after=1))
    run = begin(team, root)
    assert find_live(run.session) is run  # with what only this process knows of it
    run.stop(True)
    run.wait(200, raise_on_stop=False)
    assert find_live() is run and find_live(run.id) is run and run in runs()
    again = run.resume()
    assert find_live(again.id) is again
    again.stop(True)
    again.wait(200, raise_on_stop=False)
    assert find_live() is again


KILLED = """
import nb_agents, os, signal, sys
from nb_agents.options import RunOptions
run = nb_agents.start("the task", sys.argv[1], options=RunOptions(detach=True))
print(run.path, flush=True)
signal.pause()
"""


def test_detached_run_outlives_its_starter_and_can_be_stopped_later(
    tmp_path: Path, team: Path, root: Path, server: ModelServer
) -> None:
    server.script("m", Reply("words that come", hang_after=3))
    with script(KILLED.replace("sys.argv[1]", repr(str(team))), tmp_path) as process:
        path = Path(read_line(process).strip())
        process.kill()
    run = find_live(path.parent.name, path.parents[1])
    wait_until(lambda: "come" in run.view.agents["a"].partial)
    assert run.stop(True).changed
    run.wait(200, raise_on_stop=False)
    assert run.status == "cancelled"
    assert run.view.agents["a"].unsubmitted.strip() == "words that come"


@pytest.mark.usefixtures("cold_host")
def test_key_reaches_its_process_only_through_the_environment(
    team: Path, root: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_MODEL_API_KEY", canaries.KEY)
    team.write_text(team.read_text().replace("api_key: k", "api_key: '${OF_THE_MODEL_API_KEY}'"))
    server.script("m", Reply(f"Your key is {canaries.KEY}.", hang_after=4))
    run = begin(team, root)
    server.wait_chunks(4)
    assert server.requests[0].headers["authorization"] == f"Bearer {canaries.KEY}"
    [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
    process = Path(f"/proc/{turn.pid}")
    streams = [os.readlink(process / "fd" / str(stream)) for stream in (0, 1, 2)]
    assert streams == [os.devnull] * 3
    held = [file for file in (process / "fd").iterdir() if file.is_file()]
    entries = [file for file in user_state_path("nb_agents").rglob("*") if file.is_file()]
    assert any(str(run.path).encode() in entry.read_bytes() for entry in entries)
    for file in (process / "cmdline", *held, *entries):
        assert canaries.found_in(file.read_bytes()) == [], file
    run.stop(True)
    run.wait(200, raise_on_stop=False)


def test_unpicklable_object_is_rejected_before_the_start(root: Path) -> None:
    def hook(*_: object) -> None: ...

    where: dict[str, Any] = {"session_root": root, "detach": True}
    given: dict[str, dict[str, Any]] = {
        "the agent 'a', an object of this process,": {"config": scripted_team(a=ScriptedModel())},
    }
    options: dict[str, dict[str, Any]] = {
        "on_complete": {"on_complete": hook},
        "cancel.before_cancel": {"cancel": CancelPolicy(before_cancel=hook)},
        "timeout.callback": {"timeout": Timeout(9, callback=hook)},
        "retry.on_retry": {"retry": Retry(on_retry=hook)},
    }
    for name, option in options.items():
        given[f"the function {name}"] = {"options": RunOptions(**option, **where)}
    for what, arguments in given.items():
        with pytest.raises(UserError, match=f"but {what}"):
            nb_agents.start("t", **{"options": RunOptions(**where), **arguments})
    assert not root.exists()


def test_detached_start_reports_the_same_errors(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.yaml"):
        begin(tmp_path / "missing.yaml", root)


@pytest.mark.usefixtures("cold_host")
def test_error_contains_the_log_of_a_process_that_did_not_start(
    team: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [canaries.KEY, os.environ["CANARY_TOKEN"]]
    team.write_text(team.read_text().replace("api_key: k", f"api_key: {canaries.KEY}"))
    (tmp_path / "pydantic.py").write_text(f"raise SystemError('no such thing as', {secrets})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match="ended before the run began. Its log:\n") as told:
        begin(team, root)
    assert "no such thing as" in str(told.value)
    assert not any(secret in str(told.value) for secret in secrets)


def test_team_file_detaches_runs_unless_the_option_overrides_it(
    team: Path, root: Path, server: ModelServer
) -> None:
    server.script("m", Reply("words", hang_after=1))
    team.write_text(f"detach: true\n{team.read_text()}")

    def lives(run: Run) -> bool:
        """Whether it lives in this process; it is stopped."""
        [turn] = [turn for turn in live_turns() if turn.paths.path == run.path]
        run.stop(True)
        run.wait(200, raise_on_stop=False)
        return turn.pid == os.getpid()

    def start(detach: bool | None) -> Run:
        options = RunOptions(session_root=root, detach=detach)
        return nb_agents.start("the task", team, options=options)

    run = start(None)
    assert not lives(run) and run.where
    assert lives(start(False))
    session = run.session
    resumed = nb_agents.resume(session, options=RunOptions(session_root=root))
    assert not lives(resumed)
    assert lives(nb_agents.resume(session, options=RunOptions(session_root=root, detach=False)))
