"""Tests of recordings of whole sweeps and comparisons."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import ReplayError, RunOptions, Sweep, TeamSpec
from nb_agents.errors import NotYoursError
from tests.cli.calls import call_here, told_here
from tests.kit.replays import replayed_run
from tests.magics import magics
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.replays.kinds import KEY

pytest_plugins = ["pytester"]
TASK = "What does {{item}} cost?"
ROWS = [{"item": "tea, as in " + "a long list " * 20, "n": 1}, {"item": "milk", "n": 2}]


def reply(request: Request) -> Reply:
    """Ask a tool for the price, then answer."""
    item = "milk" if "does milk cost" in request.prompt else "tea"
    if "costs 3 EUR" not in request.prompt:
        return Reply("I look.", (ToolCall("price", {"item": item}),))
    return Reply(f"{item} costs 3 EUR.")


def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Its name.
    """
    return f"{item} costs 3 EUR. Key: {KEY}"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(reply) as running:
        yield running


def team_of(server: ModelServer) -> TeamSpec:
    backend = server.backend("openai", model="gpt-5-mini")
    return TeamSpec.model_validate({"agents": [{"id": "ada", "backend": backend}]})


def swept(root: Path, server: ModelServer, **more: Any) -> Sweep:
    more = {"source": ROWS, "task": TASK, "tools": [price], "name": "prices", **more}
    return nb_agents.map(config=team_of(server), options=RunOptions(session_root=root), **more)


def recorded(root: Path, server: ModelServer, **more: Any) -> tuple[Sweep, Path]:
    sweep, path = swept(root / "recorded", server, **more), root / "prices.nbar"
    sweep.wait()
    call_here("record", str(sweep.path), "-o", str(path))
    return sweep, path


def table_of(sweep: Any) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k not in ("seconds", "session")} for row in sweep.table()
    ]


def test_sweep_replays_in_another_directory_without_requests(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user records a sweep in a notebook and replays it in a terminal and in Python."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sweep = swept(tmp_path / "here", server, score=lambda task, answer: len(answer))
    sweep.wait()
    magics().agents_line(f"record prices -o ../prices.nbar --session-root {tmp_path / 'here'}")
    path = tmp_path / "prices.nbar"
    assert KEY not in gzip.decompress(path.read_bytes()).decode()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("OPENAI_API_KEY")
    count = server.count()
    shown = told_here("replay", str(path), "--session-root", "sessions")
    assert [row["answer"] for row in shown["rows"]] == ["tea costs 3 EUR.", "milk costs 3 EUR."]
    again = nb_agents.replay(path, options=RunOptions(session_root="sessions"))
    again.wait()
    assert isinstance(again, Sweep)
    assert table_of(again) == table_of(sweep)
    assert [row["score"] for row in again.table()] == [16.0, 17.0]
    assert "2 complete" in str(again._repr_mimebundle_())
    assert server.count() == count


def test_stopped_and_resumed_sweep_is_recorded_with_both_turns_of_a_row(
    tmp_path: Path, server: ModelServer
) -> None:
    server.default = lambda request: Reply("Slow. " * 200, words_per_second=50)
    first = swept(tmp_path / "recorded", server)
    wait_until(lambda: len(first.runs) == len(ROWS) and server.count() == len(ROWS))
    first.stop(now=True)
    first.wait()
    server.default = reply
    sweep, path = recorded(tmp_path, server)
    count = server.count()
    again = nb_agents.replay(path, options=RunOptions(session_root=tmp_path / "again"))
    again.wait()
    assert table_of(again) == table_of(sweep)
    assert [*again.path.glob("*/turn_2/answer.txt")]
    assert server.count() == count


def test_difference_names_its_row_and_message(tmp_path: Path, server: ModelServer) -> None:
    _, path = recorded(tmp_path, server)
    count, options = server.count(), RunOptions(session_root=tmp_path / "again")
    team = team_of(server)
    french = team.agents[0].model_copy(update={"system_message": "Answer in French."})
    team = team.model_copy(update={"agents": (french,)})
    with pytest.raises(ReplayError, match=r"(?s)^Row (milk|tea)-.*: Request 1 of ada .*message 1"):
        nb_agents.replay(path, config=team, options=options).wait()
    with pytest.raises(ReplayError, match=r"(?s)-What does .*\n\+What did "):
        task = TASK.replace("does", "did")
        nb_agents.replay(path, task, source=ROWS, options=options).wait()
    nb_agents.replay(path, TASK, source=ROWS, options=options).wait()
    with pytest.raises(ReplayError, match="not contain 1 row of the recording, such as 'milk-"):
        nb_agents.replay(path, TASK, source=[ROWS[0], {"item": "rum", "n": 2}], options=options)
    with pytest.raises(ReplayError, match="The source has 3 rows, and the recording 2"):
        nb_agents.replay(path, source=[*ROWS, {"item": "rum", "n": 3}], options=options)
    with pytest.raises(ReplayError, match="contains a sweep.*pass its rows"):
        nb_agents.replay(path, TASK, options=options)
    assert server.count() == count


def test_cell_compares_its_rows_and_task_with_the_recording(
    tmp_path: Path, server: ModelServer
) -> None:
    sweep, path = recorded(tmp_path, server)
    count, shell = server.count(), magics()
    shell.shell.user_ns["rows"] = ROWS
    line = f"--over rows --replay {path} --session-root {tmp_path / 'again'} --out again"
    shell.agents(line, TASK)
    assert table_of(shell.shell.user_ns["again"]) == table_of(sweep)
    with pytest.raises(ReplayError, match=r"(?s)Row .*\+What is the price of"):
        shell.agents(line, "What is the price of {{item}}?")
    shell.shell.user_ns["rows"] = ROWS[:1]
    with pytest.raises(ReplayError, match="such as 'milk-"):
        shell.agents(line, TASK)
    assert server.count() == count


def test_fixture_replays_the_sweep_that_it_recorded(
    pytester: pytest.Pytester, server: ModelServer
) -> None:
    team = pytester.path / "team.json"
    team.write_text(team_of(server).model_dump_json(exclude_unset=True))
    pytester.makepyfile(
        f"""
        def price(item: str) -> str:
            '''Return a price.'''
            return item + " costs 3 EUR"

        def test_prices(agents_replay):
            sweep = agents_replay(
                "prices.nbar", {TASK!r}, {str(team)!r}, source=[{{"item": "milk"}}], tools=[price]
            )
            assert [row["answer"] for row in sweep.table()] == ["milk costs 3 EUR."]
        """
    )
    plugin = "nb_agents.extensions.replays.pytest_plugin"  # under its module's name only
    arguments = ("-p", "no:nb_agents", "-p", plugin, "-p", "no:cacheprovider")
    pytester.runpytest_inprocess(*arguments, "--agents-record=once").assert_outcomes(passed=1)
    count = server.count()
    pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=1)
    [test] = pytester.path.glob("test_*.py")
    test.write_text(test.read_text().replace("What does", "What did"))
    result = pytester.runpytest_inprocess(*arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Row milk-*", "*-What does milk*", "*+What did milk*"])
    assert server.count() == count


def test_row_that_cannot_be_replayed_is_left_out_with_its_reason(
    tmp_path: Path, server: ModelServer
) -> None:
    sweep = swept(tmp_path / "recorded", server)
    sweep.wait()
    [milk] = sweep.path.glob("milk-*")
    journal = milk / "turn_1" / "events.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]))
    path = tmp_path / "prices.nbar"
    told = told_here("record", str(sweep.path), "-o", str(path))
    assert told["rows"] == 1 and "Its process died" in told["left_out"][milk.name]
    again = nb_agents.replay(path, options=RunOptions(session_root=tmp_path / "again"))
    again.wait()
    assert [row["answer"] for row in table_of(again)] == ["tea costs 3 EUR."]


def test_live_sweep_is_not_recorded(tmp_path: Path, server: ModelServer) -> None:
    server.default = lambda request: Reply("Slow. " * 1000, words_per_second=1)
    sweep = swept(tmp_path, server)
    with pytest.raises(ReplayError, match="prices is still running. Wait until it ends, or stop"):
        call_here("record", str(sweep.path))
    sweep.stop(now=True)
    sweep.wait()


def test_replayed_rows_need_trust_and_their_names_are_confined(
    tmp_path: Path, server: ModelServer
) -> None:
    """A stranger's recording names programs, tools and directories."""
    _, path = recorded(tmp_path, server)
    options = RunOptions(session_root=tmp_path / "again")
    again = nb_agents.replay(path, options=options)
    again.wait()
    row = Path(again.table()[0]["session"])
    with pytest.raises(NotYoursError):
        nb_agents.start("And rum?", team_of(server), session=row, continue_=True)
    head, *lines = gzip.decompress(path.read_bytes()).split(b"\n")
    header = json.loads(head)
    header["runs"] = {"../../outside": next(iter(header["runs"].values()))}
    bad = tmp_path / "bad.nbar"
    bad.write_bytes(gzip.compress(b"\n".join([json.dumps(header).encode(), *lines])))
    with pytest.raises(ReplayError, match="is not a recording"):
        replayed_run(bad, None, None, tmp_path / "again")
    with pytest.raises(ReplayError, match="contains a turn, not a sweep"):
        call_here("record", str(row), "-o", str(tmp_path / "row.nbar"))
        nb_agents.replay(tmp_path / "row.nbar", source=ROWS, options=options)
