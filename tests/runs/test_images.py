"""Images that OpenAI's own tool makes: files of the agent's workspace, paid for once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.jupyter.cards import card_bundle
from nb_agents.runs.run import Run
from nb_agents.runs.team_report import report_on
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import WAIT_S

PNG = b"\x89PNG\r\n\x1a\n" + os.urandom(2_000_000)
DONE = Reply(tool_calls=(ToolCall("new_answer", {"content": "see the picture"}),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(DONE) as made:
        yield made


def team(server: ModelServer, **backend: Any) -> TeamSpec:
    base = {"type": "openai", "api": "responses", "model": "gpt-5", "base_url": server.url}
    keys = {**base, "api_key": "k" * 20, "enable_image_generation": True, **backend}
    return TeamSpec.model_validate({"agents": [{"id": "ann", "backend": keys}]})


def start(root: Path, spec: TeamSpec) -> Run:
    return nb_agents.start("Draw a cat.", spec, "s", options=RunOptions(session_root=root))


def picture(run: Run, name: str = "images/1_1.png") -> bytes:
    return (run.path / "workspaces" / "ann" / name).read_bytes()


def test_an_image_is_a_file_of_the_workspace_and_named_to_the_model_and_the_person(
    tmp_path: Path, server: ModelServer
) -> None:
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script("gpt-5", look, DONE)
    run = start(tmp_path, team(server))
    assert run.wait(WAIT_S) == "see the picture"
    assert picture(run) == PNG
    told = f"file images/1_1.png of the workspace, {len(PNG)} bytes"
    assert told in str(server.requests[1].messages)
    assert "images/1_1.png" in str(card_bundle(run.view, str(run.path)))
    assert run.view.tools[0].tool == "image_generation"
    assert (run.path / "events.jsonl").stat().st_size < 100_000


def test_an_image_that_comes_with_the_answer_is_kept_too(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("gpt-5", Reply(image=PNG, tool_calls=DONE.tool_calls))
    run = start(tmp_path, team(server))
    assert run.wait(WAIT_S) == "see the picture" and picture(run) == PNG


def test_a_resumed_run_has_the_image_and_asks_for_none_again(
    tmp_path: Path, server: ModelServer
) -> None:
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script("gpt-5", look, Reply("hm", hang_after=0), DONE)
    spec = team(server)
    run = start(tmp_path, spec)
    wait_until(lambda: len(server.requests) == 2, WAIT_S)
    run.stop(True)
    run.wait(WAIT_S, raise_on_stop=False)
    again = nb_agents.resume("s", spec, options=RunOptions(session_root=tmp_path))
    assert again.wait(WAIT_S) == "see the picture"
    assert picture(run) == picture(again) == PNG
    _, cut, resumed = server.requests
    assert resumed.messages == cut.messages


def test_an_image_that_can_not_be_written_is_told(tmp_path: Path, server: ModelServer) -> None:
    block = Reply(tool_calls=(ToolCall("write_file", {"path": "images", "content": "x"}),))
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script("gpt-5", block, look, DONE)
    assert start(tmp_path, team(server)).wait(WAIT_S) == "see the picture"
    assert "An image was made, and is not kept" in str(server.requests[2].messages)


def test_an_image_beyond_a_size_ends_the_call(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_agents.models.response_limits.MAX_IMAGE_EVENT_BYTES", 1_000_000)
    server.script("gpt-5", Reply(image=PNG, tool_calls=DONE.tool_calls))
    run = start(tmp_path, team(server))
    run.wait(WAIT_S, raise_on_stop=False)
    assert "1000000 bytes" in str(run.view.agents["ann"].error)


@pytest.mark.parametrize(
    "backend, why",
    [
        ({"type": "claude", "api": None}, "claude has none"),
        ({"type": "gemini", "api": None, "model": "gemini-3-pro"}, "gemini has none"),
        ({"exclude_tools": ["image_generation"]}, "list of tools leaves it out"),
        ({"permissions": {"role": "read-only"}}, "`permissions` can't be kept"),
    ],
)
def test_who_has_no_such_tool_or_may_not_have_it_is_told(
    backend: dict[str, Any], why: str, server: ModelServer
) -> None:
    spec = team(server, **backend)
    assert not spec.agents[0].backend.native_tools
    [line] = [text for text in report_on(spec).lines if text.startswith("No image_generation")]
    assert why in line
