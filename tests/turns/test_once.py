"""`nb_agents.once`: the same request again."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import RunNotFinished
from nb_agents.events import TurnStarted
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.kit.teams import TeamSpec
from tests.model_server import wait_until
from tests.processes import line, python, tell
from tests.team_kit import WAIT_S, events, finish, metadata, start

CALLERS = 4

# A process that makes a request when it is told to, and holds its model until it is told again.
CALLER = """
import sys, threading
import nb_agents
from nb_agents import RunOptions
from nb_agents.models import providers
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team

providers.load(())
gate = Gate()
team = scripted_team(None, a=ScriptedModel(Answer("paid", gate=gate)))
print("ready", flush=True)
sys.stdin.readline()
run = nb_agents.once("the task", team, options=RunOptions(session_root=sys.argv[1]))
print(run.path, flush=True)
sys.stdin.readline()
gate.open()
print(run.wait(), flush=True)
"""


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_same_request_returns_its_earlier_turn(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("first"), Answer("second"), Answer("third"), Answer("fourth"))
    options = RunOptions(session_root=tmp_path)
    team = scripted_team(None, a=model)
    first = nb_agents.once("the task", team, options=options)
    assert first.wait() == "first"
    again = nb_agents.once("the task ", team, options=options)
    assert (again.path, again.wait(), again.result) == (first.path, "first", "first")
    assert nb_agents.once("another task", team, options=options).wait() == "second"
    with_tool = nb_agents.once("the task", team, tools=[double], options=options)
    assert with_tool.wait() == "third"
    assert nb_agents.once("the task", team, options=options, fresh=True).wait() == "fourth"
    assert nb_agents.once("the task", team, options=options).wait() == "fourth"


def test_changed_team_is_another_request(tmp_path: Path) -> None:
    options = RunOptions(session_root=tmp_path)
    slow = "agents:\n  - id: solo\n    backend: {type: demo, words_per_second: 2000}\n"
    file = tmp_path / "team.yaml"
    file.write_text(slow)
    first = finish(nb_agents.once("the task", file, options=options))
    file.write_text(f"# a comment\n{slow}")
    assert nb_agents.once("the task", file, options=options).path == first.path
    assert nb_agents.once("the task", TeamSpec.from_file(file), options=options).path == first.path
    file.write_text(slow.replace("solo", "duo"))
    assert finish(nb_agents.once("the task", file, options=options)).path != first.path


def test_turn_of_another_user_is_not_returned_for_the_same_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = (
        ScriptedModel(Answer("theirs"), Answer("mine")),
        RunOptions(session_root=tmp_path),
    )
    team = scripted_team(None, a=model)
    with monkeypatch.context() as as_another:
        as_another.setenv("XDG_STATE_HOME", str(tmp_path / "home of another"))
        assert nb_agents.once("the task", team, options=options).wait() == "theirs"
    assert nb_agents.once("the task", team, options=options).wait() == "mine"
    assert nb_agents.once("the task", team, options=options).wait() == "mine"


def test_the_journal_and_not_the_metadata_names_the_request(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("of cats"), Answer("of dogs"), Answer("paid twice"))
    options, team = RunOptions(session_root=tmp_path), scripted_team(None, a=model)
    cats = finish(nb_agents.once("cats", team, options=options))
    dogs = finish(nb_agents.once("dogs", team, options=options))
    [of_cats], [of_dogs] = (events(run, TurnStarted) for run in (cats, dogs))
    forged = metadata(cats) | {"digest": of_dogs.digest, "run_status": "completed"}
    (cats.path / "metadata.json").write_text(json.dumps(forged))
    (dogs.path / "metadata.json").write_text(json.dumps({"digest": of_cats.digest}))
    assert nb_agents.once("cats", team, options=options).wait() == "of cats"
    assert nb_agents.once("dogs", team, options=options).wait() == "of dogs"


def test_journal_with_a_modified_request_is_not_reused(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("of cats"), Answer("of dogs"), Answer("of dogs, again"))
    options, team = RunOptions(session_root=tmp_path), scripted_team(None, a=model)
    cats = finish(nb_agents.once("cats", team, options=options))
    dogs = finish(nb_agents.once("dogs", team, options=options))
    [of_cats], [of_dogs] = (events(run, TurnStarted) for run in (cats, dogs))
    shutil.rmtree(dogs.path.parent)
    journal = cats.path / "events.jsonl"
    journal.write_text(journal.read_text().replace(of_cats.digest, of_dogs.digest))
    assert nb_agents.once("dogs", team, options=options).wait() == "of dogs, again"


def test_a_status_in_the_metadata_does_not_complete_a_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(Answer("cut", gate=gate), Answer("whole"))
    options, team = RunOptions(session_root=tmp_path), scripted_team(None, a=model)
    stopped = nb_agents.once("the task", team, options=options)
    gate.wait_reached()
    stopped.stop(now=True)
    finish(stopped)
    forged = metadata(stopped) | {"run_status": "completed"}
    (stopped.path / "metadata.json").write_text(json.dumps(forged))
    again = nb_agents.once("the task", team, options=options)
    assert (finish(again).result, again.path.name) == ("whole", "turn_2")


def test_turn_rewound_with_a_message_counts_as_another_request(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("plain"), Answer("with a hint"))
    options, team = RunOptions(session_root=tmp_path), scripted_team(None, a=model)
    first = finish(nb_agents.once("the task", team, options=options))
    changed = finish(nb_agents.rewind(first.path, 1, team, say="a hint", options=options))
    assert changed.result == "with a hint"
    assert nb_agents.once("the task", team, options=options).path == first.path


def test_concurrent_identical_requests_of_threads_share_one_run(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(*[Answer("paid", gate=gate)] * CALLERS)
    options, team = RunOptions(session_root=tmp_path), scripted_team(None, a=model)
    with ThreadPoolExecutor(CALLERS) as pool:
        asked = [
            pool.submit(nb_agents.once, "the task", team, options=options) for _ in range(CALLERS)
        ]
        runs = [each.result(WAIT_S) for each in asked]
    gate.open()
    assert len({run.path for run in runs}) == 1
    assert [run.wait(WAIT_S) for run in runs] == ["paid"] * CALLERS
    assert len(model.requests) == 1


@contextmanager
def callers(root: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that are about to make the same request."""
    with ExitStack() as stack:
        started = [stack.enter_context(python(CALLER, root)) for _ in range(CALLERS)]
        assert [line(each) for each in started] == ["ready"] * CALLERS
        yield started


def test_concurrent_identical_requests_of_processes_share_one_run(tmp_path: Path) -> None:
    with callers(tmp_path) as processes:
        for each in processes:
            tell(each)
        paths = {line(each) for each in processes}
        for each in processes:
            tell(each)
        assert [line(each) for each in processes] == ["paid"] * CALLERS
    assert len(paths) == 1
    assert [str(path) for path in tmp_path.glob("*/turn_*")] == [*paths]


def test_request_of_a_killed_process_is_resumed_by_another(
    tmp_path: Path,
) -> None:
    with callers(tmp_path) as (first, *others):
        tell(first)
        cut = Path(line(first))
        wait_until(lambda: (cut / "events.jsonl").read_bytes().count(b"model_started"), WAIT_S)
        first.kill()
        first.wait()
        for each in others:
            tell(each)
        paths = {line(each) for each in others}
        for each in others:
            tell(each)
        assert [line(each) for each in others] == ["paid"] * len(others)
    assert paths == {str(cut.with_name("turn_2"))}


def test_result_of_a_live_run_raises_an_error(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    with pytest.raises(RunNotFinished, match=f"^{run.id} is still running"):
        run.result  # noqa: B018
    gate.open()
    assert finish(run).result == "A's"


def test_a_timeline_is_a_sequence_of_its_entries(tmp_path: Path) -> None:
    timeline = finish(start(tmp_path, a=ScriptedModel(Answer("A's")))).timeline
    assert timeline[:2] == timeline.entries[:2]
    assert timeline[-1] is timeline.entries[-1]
    assert (len(timeline), [*timeline]) == (len(timeline.entries), [*timeline.entries])
