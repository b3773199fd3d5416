"""What a person is told of a call that failed: the server's own sentence, and what to change."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.models.failures import MAX_SAID, describe
from tests.canaries import KEY
from tests.model_server import ModelServer, Reply
from tests.team_kit import finish, script

KINDS = ("openai", "responses", "claude", "gemini")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def team_of(kind: str, server: ModelServer) -> dict[str, Any]:
    backend = server.backend(kind, model="m", api_key=KEY)
    retry = {"attempts": 1, "delay": 0}
    return {"agents": [{"id": "ann", "backend": backend}], "retry": retry}


def error_of(kind: str, server: ModelServer, root: Path) -> str:
    team = TeamSpec.model_validate(team_of(kind, server))
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=root)))
    assert run.status == "failed"
    return str(run.view.agents["ann"].error)


# What real servers say
REFUSALS = [
    (400, "Unsupported value: 'tool_choice' does not support 'auto'.", "a model that calls tools"),
    (400, "registry.ollama.ai/library/gemma does not support tools", "a model that calls tools"),
    (
        400,
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "Start the server with both",
    ),
    (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
        " 'max_completion_tokens' instead.",
        "`extra_body: {max_completion_tokens: N}`",
    ),
    (
        400,
        "max_tokens is too large: 1000000. This model supports at most 16384 completion tokens",
        "Write another `max_tokens`",
    ),
    (
        400,
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for m",
        "Write another `max_tokens`",
    ),
    (
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in"
        " 150000 tokens.",
        "take one that reads more",
    ),
    (400, "prompt is too long: 210000 tokens > 200000 maximum", "take one that reads more"),
    (
        400,
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "take one that reads more",
    ),
    (404, "The model `gpt-99` does not exist or you do not have access to it.", "this model or"),
    (403, "You have no access to this model.", "may not use this model"),
]


@pytest.mark.parametrize(("status", "words", "remedy"), REFUSALS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_told_in_the_servers_words_with_what_to_change(
    tmp_path: Path, server: ModelServer, kind: str, status: int, words: str, remedy: str
) -> None:
    server.default = Reply(status=status, error=words)
    told = error_of(kind, server, tmp_path)
    assert f"(HTTP {status})" in told and words.rstrip(".") in told and remedy in told
    # The server repeats its key.
    assert "[key]" in told and KEY not in told
    assert server.count() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_key_is_never_repeated(tmp_path: Path, server: ModelServer, kind: str) -> None:
    server.default = Reply(status=401, error="Incorrect API key provided: Zq-c4******89ab.")
    assert error_of(kind, server, tmp_path) == (
        "m: The server refused the key; check it (HTTP 401)."
    )


def test_googles_refusal_of_a_key_is_known_by_its_reason(
    tmp_path: Path, server: ModelServer
) -> None:
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}
    body = json.dumps({"error": {**error, "details": [reason]}}).encode()
    json_type = {"Content-Type": "application/json"}
    server.default = Reply(status=400, body=lambda: [body], headers=json_type)
    told = error_of("gemini", server, tmp_path)
    assert told == "m: The server refused the key; check it (HTTP 400)."


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": "No."}, "It said: No."),
        ({"error": {"message": "No"}}, "It said: No."),
        ([{"error": {"message": "No"}}], "It said: No."),
        ({"detail": [{"loc": ["body", "x"], "msg": "Extra inputs"}]}, "It said: Extra inputs."),
        ({"message": "No", "param": "temperature"}, "Change or remove `temperature`"),
        ({"error": "two\nlines \x1b[31mred"}, "It said: two lines"),
    ],
)
def test_the_sentence_is_found_in_each_servers_body(body: Any, said: str) -> None:
    told = describe(ModelHTTPError(400, "m", body))
    assert said in told and "\x1b" not in told and "\n" not in told


@pytest.mark.parametrize("body", [None, {}, [], 5, {"error": {"error": {"error": {"error": {}}}}}])
def test_a_body_without_a_sentence_adds_none(body: Any) -> None:
    told = describe(ModelHTTPError(400, "m", body))
    assert told == "The server says that the request is wrong (HTTP 400)."


def test_a_long_sentence_is_cut_between_words_so_that_no_half_key_is_left() -> None:
    words = "x" * (MAX_SAID - 10)
    told = describe(ModelHTTPError(400, "m", {"message": f"{words} {KEY} and more"}))
    assert words in told and KEY[:8] not in told
    assert describe(ModelHTTPError(400, "m", {"message": "x" * 5000})).endswith("(HTTP 400).")


# In the stream


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_mid_stream_is_told_and_the_words_so_far_are_kept(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.default = Reply("one two three", error="The engine burst.")
    team = TeamSpec.model_validate(team_of(kind, server))
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    agent = run.view.agents["ann"]
    assert "The engine burst." in str(agent.error)
    assert agent.partial == "one two three"
    assert server.count() == 2


SCRIPT = """
import gc
import nb_agents
run = nb_agents.start("t", "team.yaml", "s")
try:
    run.wait(200)
except nb_agents.errors.RunFailed as exc:
    print(exc)
del run
gc.collect()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_mid_stream_leaves_no_traceback_in_any_log(
    tmp_path: Path, server: ModelServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.default = Reply("one two three", error="The engine burst.")
    (tmp_path / "team.yaml").write_text(json.dumps(team_of(kind, server)))
    with script(SCRIPT, tmp_path) as process:
        printed, logged = process.communicate()
    assert "The engine burst." in printed
    assert logged == ""


def test_settings_that_exclude_each_other_are_told(tmp_path: Path, server: ModelServer) -> None:
    keys = {"thinking": {"type": "disabled"}, "effort": "max", "model": "claude-opus-5"}
    backend = server.backend("claude", **keys)
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    told = str(run.view.agents["ann"].error)
    assert "The request can't be made: " in told and "while thinking is disabled" in told
    assert server.count() == 0
