"""Images from models and providers' tools: saved in the workspace and paid for once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from tests.kit.cards import card_bundle
from tests.kit.models import response_limits
from tests.kit.runs import Run
from tests.kit.teams import report_on
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


def gemini(server: ModelServer, model: str = "gemini-3-pro", **backend: Any) -> TeamSpec:
    """One of Gemini's, whose own code interpreter draws."""
    keys = {"enable_code_execution": True, "enable_image_generation": False, "api": None}
    base = {"type": "gemini", "base_url": server.base, "model": model}
    return team(server, **base | keys | backend)


def start(root: Path, spec: TeamSpec) -> Run:
    return nb_agents.start("Draw a cat.", spec, "s", options=RunOptions(session_root=root))


def picture(run: Run, name: str = "images/1_1.png") -> bytes:
    return (run.path / "workspaces" / "ann" / name).read_bytes()


EACH = pytest.mark.parametrize(
    ("make", "model"), [(team, "gpt-5"), (gemini, "gemini-3-pro")], ids=["openai", "gemini"]
)


@EACH
def test_image_is_saved_in_the_workspace_and_named(
    tmp_path: Path, server: ModelServer, make: Callable[..., TeamSpec], model: str
) -> None:
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script(model, look, DONE)
    run = start(tmp_path, make(server))
    assert run.wait(WAIT_S) == "see the picture"
    assert picture(run) == PNG
    told = f"images/1_1.png in the workspace, {len(PNG)} bytes"
    assert told in str(server.requests[1].messages)
    assert "images/1_1.png" in str(card_bundle(run.view, str(run.path)))
    own = ["image_generation"] if make is team else []
    assert [each.tool for each in run.view.tools] == [*own, "list_files"]
    assert (run.path / "events.jsonl").stat().st_size < 100_000


def test_image_sent_with_the_answer_is_saved(tmp_path: Path, server: ModelServer) -> None:
    server.script("gpt-5", Reply(image=PNG, tool_calls=DONE.tool_calls))
    run = start(tmp_path, team(server))
    assert run.wait(WAIT_S) == "see the picture" and picture(run) == PNG


@EACH
def test_resumed_run_has_the_image_without_a_new_request(
    tmp_path: Path, server: ModelServer, make: Callable[..., TeamSpec], model: str
) -> None:
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script(model, look, Reply("hm", hang_after=0), DONE)
    spec = make(server)
    run = start(tmp_path, spec)
    wait_until(lambda: len(server.requests) == 2, WAIT_S)
    run.stop(True)
    run.wait(WAIT_S, raise_on_stop=False)
    again = nb_agents.resume("s", spec, options=RunOptions(session_root=tmp_path))
    assert again.wait(WAIT_S) == "see the picture"
    assert picture(run) == picture(again) == PNG
    _, cut, resumed = server.requests
    assert resumed.messages == cut.messages


PAINTER = "gemini-3-pro-image-preview"


def painter(server: ModelServer, **backend: Any) -> TeamSpec:
    """A model of Gemini's that makes images itself, and calls no tools."""
    return gemini(server, PAINTER, **{"enable_code_execution": False, **backend})


def test_image_model_answers_with_text_and_image(tmp_path: Path, server: ModelServer) -> None:
    server.script(PAINTER, Reply("A cat.", image=PNG))
    spec = painter(server)
    run = start(tmp_path, spec)
    answer = run.wait(WAIT_S)
    assert "A cat." in answer and "images/1_1.png in the workspace" in answer
    assert picture(run) == PNG and "images/1_1.png" in str(card_bundle(run.view, str(run.path)))
    [request] = server.requests
    assert "tools" not in request.body and "toolConfig" not in request.body
    assert request.body["generationConfig"]["responseModalities"] == ["TEXT", "IMAGE"]
    told = f"ann: {PAINTER} generates images and calls no tools"
    assert any(line.startswith(told) for line in report_on(spec).lines)


def test_image_model_works_in_a_team_with_the_fewest_requests(
    tmp_path: Path, server: ModelServer
) -> None:
    """It answers with its text immediately, and abstains once another agent has answered."""
    vote = ToolCall("vote", {"agent_id": "agent1", "reason": "a cat"})
    server.script(PAINTER, Reply("A cat.", image=PNG))
    server.script("gemini-3-pro", lambda r: Reply("", (vote,)))
    spec = painter(server)
    judge = gemini(server).agents[0].model_copy(update={"id": "bob"})
    rules = {"orchestrator": {"skip_final_presentation": True, "max_new_answers_per_agent": 1}}
    both = TeamSpec.model_validate(
        {"agents": [a.model_dump(exclude_none=True) for a in (*spec.agents, judge)], **rules}
    )
    run = start(tmp_path, both)
    assert "A cat." in run.wait(WAIT_S)
    assert sum(r.model == PAINTER for r in server.requests) == 2


def test_stopped_image_model_is_called_again_and_keeps_its_images(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script(PAINTER, Reply("A cat.", image=PNG, hang_after=1), Reply("A cat.", image=PNG))
    spec = painter(server)
    run = start(tmp_path, spec)
    wait_until(lambda: run.view.agents["ann"].partial, WAIT_S)
    run.stop(True)
    run.wait(WAIT_S, raise_on_stop=False)
    again = nb_agents.resume("s", spec, options=RunOptions(session_root=tmp_path))
    assert "A cat." in again.wait(WAIT_S)
    assert len([*again.path.rglob("*.png")]) == 1


@pytest.mark.parametrize(
    "keys",
    [
        {"permissions": {"rules": {"deny": ["write_file(*)"]}}},
        {"tool_policy": [{"match": "image_generation", "action": "ask"}]},
        {"exclude_tools": ["image_generation"]},
    ],
)
def test_image_of_an_agent_without_write_access_is_not_saved(
    tmp_path: Path, server: ModelServer, keys: dict[str, Any]
) -> None:
    server.script(PAINTER, Reply("A cat.", image=PNG))
    run = start(tmp_path, painter(server, **keys))
    assert "The model created a file of type image/png. It is not saved" in run.wait(WAIT_S)
    assert not [*run.path.rglob("*.png")]


def test_image_model_cannot_be_forced_to_call_a_tool(server: ModelServer) -> None:
    verdict = report_on(painter(server, tool_choice=["list_files"])).verdict
    assert "it calls no tools; remove `tool_choice`" in verdict


def test_image_that_cannot_be_written_is_reported(tmp_path: Path, server: ModelServer) -> None:
    block = Reply(tool_calls=(ToolCall("write_file", {"path": "images", "content": "x"}),))
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script("gpt-5", block, look, DONE)
    assert start(tmp_path, team(server)).wait(WAIT_S) == "see the picture"
    assert "The model created an image. It is not saved" in str(server.requests[2].messages)


def test_too_large_image_ends_the_call(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_limits, "MAX_IMAGE_EVENT_BYTES", 1_000_000)
    server.script("gpt-5", Reply(image=PNG, tool_calls=DONE.tool_calls))
    run = start(tmp_path, team(server))
    run.wait(WAIT_S, raise_on_stop=False)
    assert "1000000 bytes" in str(run.view.agents["ann"].error)


@pytest.mark.parametrize(
    "backend, why",
    [
        ({"type": "claude", "api": None}, "claude has none"),
        ({"type": "gemini", "api": None, "model": "gemini-3-pro"}, "gemini has none"),
        ({"exclude_tools": ["image_generation"]}, "list of tools excludes it"),
        ({"permissions": {"role": "read-only"}}, "`permissions` can't be enforced"),
    ],
)
def test_agent_without_image_generation_is_reported(
    backend: dict[str, Any], why: str, server: ModelServer
) -> None:
    spec = team(server, **backend)
    assert not spec.agents[0].backend.native_tools
    [line] = [text for text in report_on(spec).lines if text.startswith("No image_generation")]
    assert why in line


@EACH
def test_image_does_not_exist_before_its_call(
    tmp_path: Path, server: ModelServer, make: Callable[..., TeamSpec], model: str
) -> None:
    note = Reply(tool_calls=(ToolCall("write_file", {"path": "note", "content": "x"}),))
    look = Reply(image=PNG, tool_calls=(ToolCall("list_files", {}),))
    server.script(model, note, look, note, DONE)
    run = start(tmp_path, make(server))
    assert run.wait(WAIT_S) == "see the picture"
    first = run.preview_rewind("before ann's 2nd model call")
    assert [(each.what, each.path) for each in first.files] == [
        ("gone", "ann/images"),
        ("gone", "ann/images/2_1.png"),
    ]
    assert run.preview_rewind("ann's 2nd model call").files == ()
