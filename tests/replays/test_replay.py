"""Tests of recordings: a recorded turn replays without requests, and differences are found."""

import gzip
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from pydantic_ai.messages import ModelRequest, UserPromptPart

import nb_agents
from nb_agents import Recipe, ReplayError, RunOptions, TeamSpec
from nb_agents.errors import NotYoursError
from tests.cli.calls import call_here
from tests.kit.replays import (
    DEFAULT_RULES,
    first_difference,
    read_recording,
    replayed_run,
    script_of,
    start_recorded,
)
from tests.kit.runs import Run
from tests.kit.secrets import Mask, Secret
from tests.magics import magics
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.replays.kinds import KEY, KINDS
from tests.replays.mutations import difference_after_change
from tests.replays.plays import play, tree_of
from tests.team_kit import events

CALLS: list[str] = []
pytest_plugins = ["pytester"]


def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Its name.
    """
    CALLS.append(item)
    return f"{item} costs 3 EUR. Key: {KEY}"


def reply(request: Request) -> Reply:
    """Use two tools, then answer; vote for the first agent once there are answers."""
    done = request.prompt
    if "<ANSWER from=" in done and "vote" in request.tool_names:
        return Reply("I vote.", (ToolCall("vote", {"agent_id": "agent1", "reason": "best"}),))
    if "costs 3 EUR" not in done:
        note = ToolCall("write_file", {"path": "note.md", "content": "tea"})
        return Reply("I look.", (ToolCall("price", {"item": "tea"}), note))
    if "new_answer" in request.tool_names:
        return Reply("", (ToolCall("new_answer", {"content": "Tea costs 3 EUR."}),))
    return Reply("Tea costs 3 EUR.")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(reply) as running:
        yield running


def team_of(server: ModelServer, kind: str, agents: int = 3, **more: Any) -> TeamSpec:
    backend = server.backend(kind, model="m1", **more)
    return TeamSpec.model_validate(
        {
            "agents": [{"id": f"a{n}", "backend": backend} for n in range(agents)],
            "orchestrator": {"defer_voting_until_all_answered": True},
        }
    )


def recorded(
    root: Path, server: ModelServer, kind: str = "openai", **more: Any
) -> tuple[Run, Path]:
    options = RunOptions(session_root=root)
    team = team_of(server, kind, **more)
    run = nb_agents.start("What does tea cost?", team, tools=[price], options=options)
    run.wait()
    path = root / "tea.nbar"
    call_here("record", str(run.path), "-o", str(path))
    return run, path


@pytest.mark.parametrize("kind", ["openai", "claude", "gemini", "ollama"])
def test_replay_does_the_same_without_requests_and_tools(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    run, path = recorded(tmp_path, server, kind)
    before = server.count(), len(CALLS)
    again = nb_agents.replay(path, options=RunOptions(session_root=tmp_path / "replays"))
    again.wait()
    assert (server.count(), len(CALLS)) == before
    assert again.result == run.result == "Tea costs 3 EUR."
    assert tree_of(again) == tree_of(run)
    assert path.stat().st_size <= 30_000
    assert [*again.path.glob("**/note.md")]


def test_session_of_a_replay_needs_trust_to_run_on(tmp_path: Path, server: ModelServer) -> None:
    """A stranger's recording names programs and tools. A replay must not make them the user's."""
    _, path = recorded(tmp_path, server, agents=1)
    options = RunOptions(session_root=tmp_path / "replays")
    again = nb_agents.replay(path, options=options)
    again.wait()
    team, name = team_of(server, "openai"), again.session
    with pytest.raises(NotYoursError):
        nb_agents.start("And coffee?", team, session=name, continue_=True, options=options)
    with pytest.raises(NotYoursError):
        nb_agents.rewind(again.path, "the start", team, options=options)


def test_recording_contains_no_key(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    _, path = recorded(tmp_path, server, agents=1)
    data = gzip.decompress(path.read_bytes()).decode()
    assert "costs 3 EUR" in data
    assert KEY not in data


def test_changed_prompt_is_found_at_its_message(tmp_path: Path, server: ModelServer) -> None:
    _, path = recorded(tmp_path, server, agents=1)
    count = server.count()
    team = team_of(server, "openai", agents=1)
    changed = team.agents[0].model_copy(update={"system_message": "Answer in French."})
    team = team.model_copy(update={"agents": (changed,)})
    with pytest.raises(ReplayError, match="Request 1 of a0.*message 1 of 1") as caught:
        replayed_run(path, None, team, tmp_path)
    assert "+Answer in French." in str(caught.value)
    with pytest.raises(ReplayError, match=r"-What does tea cost\?\n\+What does milk cost\?"):
        replayed_run(path, "What does milk cost?", None, tmp_path)
    assert server.count() == count


def test_cell_replays_and_fails_at_a_difference(tmp_path: Path, server: ModelServer) -> None:
    run, path = recorded(tmp_path, server, agents=1)
    count, shell = server.count(), magics()
    line = f"--replay {path} --session-root {tmp_path} --out again"
    shell.agents(line, "What does tea cost?")
    again = shell.shell.user_ns["again"]
    assert (again.status, again.result) == ("completed", run.result)
    with pytest.raises(ReplayError, match=r"-What does tea cost\?\n\+What does rum cost\?"):
        shell.agents(line, "What does rum cost?")
    for option in ("--session s", "--continue"):
        with pytest.raises(UsageError, match=f"{option.split()[0]} can't be combined with"):
            shell.agents(f"{line} {option}", "What does tea cost?")
    assert server.count() == count


def test_changed_recipe_is_found(tmp_path: Path, server: ModelServer) -> None:
    server.default = lambda request: Reply("Fine.")
    options, team = RunOptions(session_root=tmp_path), team_of(server, "openai", 1)
    text = (
        "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n- {id: s, agent: a0, prompt: 'Hi {{x}}.'}"
    )
    run = nb_agents.start(
        "", team, recipe=Recipe.from_text(text, "r"), context={"x": 1}, options=options
    )
    run.wait()
    path = tmp_path / "r.nbar"
    call_here("record", str(run.path), "-o", str(path))
    assert nb_agents.replay(path, options=options).wait() == "Fine."
    changed = Recipe.from_text(text.replace("Hi", "Hello"), "r")
    with pytest.raises(ReplayError, match=r"(?s)Request 1 of s .*-Hi 1.\n\+Hello 1."):
        nb_agents.replay(path, recipe=changed, options=options).wait()
    with pytest.raises(ReplayError, match=r"(?s)-Hi 1.\n\+Hi 2."):
        nb_agents.replay(path, context={"x": 2}, options=options).wait()


def test_turn_that_cannot_be_replayed_is_refused_with_a_remedy(
    tmp_path: Path, server: ModelServer
) -> None:
    options = RunOptions(session_root=tmp_path, context_paths=[tmp_path])
    run = nb_agents.start("Tea?", team_of(server, "openai", 1), tools=[price], options=options)
    run.wait()
    with pytest.raises(ReplayError, match="outside of their workspaces. Run it without context"):
        call_here("record", str(run.path))
    killed = tmp_path / "killed" / "turn_1"
    killed.mkdir(parents=True)
    lines = (run.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (killed / "events.jsonl").write_bytes(b"".join(lines[:4]))
    with pytest.raises(ReplayError, match="killed/1 was killed. Resume it with `nb-agents resume"):
        call_here("record", str(killed))


def test_damaged_file_and_unsupported_turn_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.nbar").write_bytes(b"no")
    with pytest.raises(ReplayError, match="is not a recording"):
        nb_agents.replay(tmp_path / "bad.nbar")
    with pytest.raises(ReplayError, match="does not exist.*--agents-record=once"):
        replayed_run(tmp_path / "missing.nbar", None, None, tmp_path)


def test_file_tool_that_ended_after_a_stop_ends_in_the_replay(
    tmp_path: Path, server: ModelServer
) -> None:
    note = ToolCall("write_file", {"path": "note.md", "content": "tea"})
    replies = iter([Reply("", (note,)), Reply("Slow. " * 1000, words_per_second=1)])
    server.default = lambda request: next(replies)
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("Tea?", team_of(server, "openai", 1), options=options)
    wait_until(lambda: server.count() == 2)
    run.stop(now=True)
    run.wait(raise_on_stop=False)
    call_here("record", str(run.path), "-o", str(tmp_path / "tea.nbar"))
    recording = read_recording(tmp_path / "tea.nbar")
    # As if the stop had come while the tool wrote its file.
    second = [e for e in recording.events if getattr(e, "call", 0) == 2]
    kept = [e for e in recording.events if e not in second]
    [stop] = [e for e in kept if e.kind == "stop_requested"]
    kept.remove(stop)
    kept.insert([e.kind for e in kept].index("tool_finished"), stop)
    again = start_recorded(replace(recording, turns=(tuple(kept),)), options=options)
    again.run.wait(raise_on_stop=False)
    [finished] = [e for e in events(again.run) if e.kind == "tool_finished"]
    assert (finished.outcome, again.difference) == ("ok", "")
    assert [*again.run.path.glob("**/note.md")]


def test_fixture_replays_what_it_recorded(
    pytester: pytest.Pytester, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = pytester.path / "team.json"
    team.write_text(team_of(server, "ollama", agents=1).model_dump_json(exclude_unset=True))
    pytester.makepyfile(
        """
        def price(item: str) -> str:
            '''Return a price.'''
            return "tea costs 3 EUR"

        def test_tea(agents_replay):
            run = agents_replay("tea.nbar", "Tea?", "team.json", tools=[price])
            assert run.result == "Tea costs 3 EUR."
        """
    )
    plugin = "nb_agents.extensions.replays.pytest_plugin"  # under its module's name only
    arguments = ("-p", "no:nb_agents", "-p", plugin, "-p", "no:cacheprovider", str(pytester.path))
    monkeypatch.chdir(pytester.mkdir("elsewhere"))
    pytester.runpytest_inprocess(*arguments).assert_outcomes(failed=1)
    pytester.runpytest_inprocess(*arguments, "--agents-record=once").assert_outcomes(passed=1)
    count = server.count()
    assert count
    pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=1)
    pytester.runpytest_inprocess(*arguments, "--agents-record=once").assert_outcomes(passed=1)
    assert server.count() == count
    pytester.runpytest_inprocess(*arguments, "--agents-record=all").assert_outcomes(passed=1)
    assert server.count() == 2 * count
    # As with VCR, "once" does not replace a recording that differs.
    recording, [test] = pytester.path / "tea.nbar", pytester.path.glob("test_*.py")
    before = recording.read_bytes()
    test.write_text(test.read_text().replace('"Tea?"', '"Rum?"'))
    result = pytester.runpytest_inprocess(*arguments, "--agents-record=once")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*-Tea[?]*", "*+Rum[?]*"])
    assert "replay_fixture.py" not in result.stdout.str(), "the traceback ends in the test"
    assert (recording.read_bytes(), server.count()) == (before, 2 * count)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_turn_replays_with_equal_events(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    figures = play(server, tmp_path, kind, 5)
    assert (figures["first"], figures["difference"], figures["requests"]) == (None, "", 0)
    assert figures["equal"] and not figures["leaks"]


@pytest.mark.parametrize("kind", ["recipe", "external agents", "whole sweep"])
def test_changed_message_is_reported_in_each_kind_of_turn(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    difference, wanted = difference_after_change(server, tmp_path, kind, 3)
    assert wanted and difference.startswith(wanted)


def requests_with(*texts: str) -> list[list[Any]]:
    return [[ModelRequest([UserPromptPart(text)])] for text in texts]


@pytest.mark.parametrize(
    ("recorded", "sent", "is_equal"),
    [
        ("Use [key].", "Use sk-1f9Qz7LmX02p.", True),
        ("[key] and [key]", "sk-1f9Qz7LmX02p and other-secret-1", True),
        ("[key]", "[key]", True),
        ("Use [key].", "Use .", False),
        ("Use [key].", "Use two words.", False),
        ("Use [key] now.", "Use sk-1f9Qz7LmX02p later.", False),
        ("[key] and [key]", "sk-1f9Qz7LmX02p and ", False),
        ("Use sk-1f9Qz7LmX02p.", "Use [key].", False),
    ],
)
def test_masked_key_equals_a_key_in_the_request(recorded: str, sent: str, is_equal: bool) -> None:
    difference = first_difference(*requests_with(recorded, sent), DEFAULT_RULES)
    assert (difference is None) is is_equal


@pytest.mark.parametrize(("before", "after"), [(0, 5000), (2500, 2500), (5000, 0), (150, 150)])
def test_difference_in_a_long_line_is_shown(before: int, after: int) -> None:
    recorded, sent = (f"{'a' * before}{word}{'b' * after}" for word in ("[tea]", "[rum]"))
    difference = first_difference(*requests_with(recorded, sent), DEFAULT_RULES)
    assert difference is not None
    lines = difference.text.splitlines()
    [old, new] = [[line for line in lines[2:] if line[0] == mark] for mark in "-+"]
    assert "[tea]" in old[0] and "[rum]" in new[0]
    assert max(map(len, lines)) <= 300


def test_difference_shows_no_key() -> None:
    recorded, sent = requests_with("Use [key].", "Take sk-1f9Qz7LmX02p.")
    hide = Mask([Secret("sk-1f9Qz7LmX02p", ())]).text
    difference = first_difference(recorded, sent, DEFAULT_RULES, hide)
    assert difference is not None and difference.text.endswith("-Use [key].\n+Take [key].")


def test_difference_at_the_end_of_a_text_is_shown() -> None:
    difference = first_difference(*requests_with("one", "one\n"), DEFAULT_RULES)
    assert difference is not None and difference.text.endswith("\n+")


def test_each_changed_message_of_each_request_is_found(tmp_path: Path, server: ModelServer) -> None:
    run, _ = recorded(tmp_path, server)
    requests = script_of(events(run)).requests
    found = 0
    for messages in requests.values():
        assert first_difference(messages, messages, DEFAULT_RULES) is None
        for number in range(len(messages)):
            changed = deepcopy(messages)
            part = changed[number].parts[0]
            if hasattr(part, "content"):
                part.content = f"{part.content} please"
            else:
                part.args = {"other": 1}
            difference = first_difference(messages, changed, DEFAULT_RULES)
            assert difference is not None and difference.message == number + 1
            found += 1
    assert found >= 20
