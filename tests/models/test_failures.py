"""Messages for failed calls: the server's message and advice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.models.failures import MAX_QUOTE, describe, is_too_long
from tests.canaries import KEY
from tests.model_server import ModelServer, Reply
from tests.team_kit import events, finish, script

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


# Error messages of real servers
REFUSALS = [
    (
        400,
        "Unsupported value: 'tool_choice' does not support 'auto'.",
        "a model that can call tools",
    ),
    (400, "registry.ollama.ai/library/gemma does not support tools", "a model that can call tools"),
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
        "Change `max_tokens`",
    ),
    (
        400,
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for m",
        "Change `max_tokens`",
    ),
    (
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in"
        " 150000 tokens.",
        "Use a model with a larger context window",
    ),
    (
        400,
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Use a model with a larger context window",
    ),
    (
        400,
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Use a model with a larger context window",
    ),
    (404, "The model `gpt-99` does not exist or you do not have access to it.", "this model or"),
    (403, "You have no access to this model.", "has no access to this model"),
]


@pytest.mark.parametrize(("status", "words", "remedy"), REFUSALS)
@pytest.mark.parametrize("kind", KINDS)
def test_error_message_quotes_the_server_and_has_advice(
    tmp_path: Path, server: ModelServer, kind: str, status: int, words: str, remedy: str
) -> None:
    server.default = Reply(status=status, error=words)
    told = error_of(kind, server, tmp_path)
    assert f"(HTTP {status})" in told and words.rstrip(".") in told and remedy in told
    # The test server repeats the API key.
    assert "[key]" in told and KEY not in told
    assert server.count() == 1


class TooLong(NamedTuple):
    """A server's error for a conversation that is too long."""

    kind: str
    status: int
    error: dict[str, Any]


def openai(message: str, code: Any = None, type: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def anthropic(message: str, type: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": type, "message": message}}


_SIZES = {"n_prompt_tokens": 5000, "n_ctx": 4096}
_LLAMA = "exceeds the available context size"
TOO_LONG = {
    "OpenAI": TooLong(
        "openai", 400, openai("Your input exceeds the window.", "context_length_exceeded")
    ),
    "OpenAI, Responses": TooLong(
        "responses", 400, openai("Your input exceeds the window.", "context_length_exceeded")
    ),
    "OpenRouter": TooLong(
        "openai", 400, openai("This endpoint's maximum context length is 8192 tokens.", 400)
    ),
    "vLLM": TooLong(
        "openai", 400, openai("This model's maximum context length is 8192 tokens.", 400)
    ),
    "vLLM, no room for a reply": TooLong(
        "openai", 400, openai("max_tokens must be at least 1, got -1234.", 400, "BadRequestError")
    ),
    "vLLM, no room, quoted": TooLong(
        "openai", 400, openai("'max_completion_tokens' must be at least 1, got 0.", 400)
    ),
    "Groq": TooLong(
        "openai", 400, openai("Please reduce the length of the messages or completion.")
    ),
    "Anthropic": TooLong(
        "claude", 400, anthropic("prompt is too long: 210000 tokens > 200000 maximum")
    ),
    "Anthropic, with max_tokens": TooLong(
        "claude",
        400,
        anthropic(
            "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease"
            " input length or `max_tokens` and try again"
        ),
    ),
    "Anthropic, bytes": TooLong(
        "claude", 413, anthropic("Request exceeds the maximum size", "request_too_large")
    ),
    "Gemini": TooLong(
        "gemini",
        400,
        {
            "error": {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "The input token count (1200000) exceeds the maximum number of tokens"
                " allowed (1048576).",
            }
        },
    ),
    "Bedrock": TooLong("openai", 400, openai("Input is too long for requested model.")),
    "Mistral": TooLong(
        "openai",
        400,
        {
            "object": "error",
            "type": "invalid_request_prompt",
            "code": "3051",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with"
            " 32768 maximum context length",
        },
    ),
    "Cohere": TooLong(
        "openai", 400, {"message": "too many tokens: size limit exceeded by 500 tokens."}
    ),
    "SGLang": TooLong(
        "openai",
        400,
        openai("The input (9000 tokens) is longer than the model's context length (8192 tokens)."),
    ),
    "LM Studio": TooLong(
        "openai",
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, the"
            " model is loaded with context length of only 4096 tokens."
        },
    ),
    "Ollama": TooLong("openai", 400, openai("the input length exceeds the context length")),
    "llama.cpp": TooLong(
        "openai",
        400,
        {
            "error": {
                "code": 400,
                "type": "exceed_context_size_error",
                "message": f"request (5000 tokens) {_LLAMA} (4096 tokens), try increasing it",
                **_SIZES,
            }
        },
    ),
    "llama.cpp, older": TooLong(
        "openai",
        500,
        {
            "error": {
                "code": 500,
                "type": "server_error",
                "message": f"the request {_LLAMA}. try increasing the context size or enable"
                " context shift",
            }
        },
    ),
    "a proxy": TooLong("openai", 413, {"error": "Request Entity Too Large"}),
}


def answering(status: int, error: Any, **headers: str) -> Reply:
    body = json.dumps(error).encode()
    return Reply(
        status=status, body=lambda: [body], headers={"Content-Type": "application/json", **headers}
    )


@pytest.mark.parametrize("server_of", TOO_LONG)
def test_too_long_conversation_is_recognized(
    tmp_path: Path, server: ModelServer, server_of: str
) -> None:
    said = TOO_LONG[server_of]
    server.default = answering(said.status, said.error)
    told = error_of(said.kind, server, tmp_path)
    assert "The conversation is too long for this model" in told
    assert f"(HTTP {said.status})" in told and "max_tokens` in the agent's backend" not in told
    assert server.count() == 1


def test_openais_length_error_in_a_stream_is_recognized(
    tmp_path: Path, server: ModelServer
) -> None:
    error = {"code": "context_length_exceeded", "message": "Your input exceeds the window."}
    event = {"type": "error", "sequence_number": 1, "param": None, **error}
    frames = f"event: error\ndata: {json.dumps(event)}\n\n".encode()
    server.default = Reply(body=lambda: [frames])
    told = error_of("responses", server, tmp_path)
    assert "The conversation is too long for this model" in told
    assert server.count() == 1


GROQ = openai(
    "Request too large for model `m` in organization `o` service tier `on_demand` on tokens per"
    " minute (TPM): Limit 12000, Requested 15000, please reduce your message size and try again.",
    "rate_limit_exceeded",
    "tokens",
)


def test_groqs_token_limit_is_a_rate_limit(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", answering(413, GROQ, **{"Retry-After": "1"}), Reply("done"))
    team = TeamSpec.model_validate(team_of("openai", server))
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "done"
    (failed,) = events(run, ev.ModelFailed)
    assert failed.is_throttled and failed.retry_in_s == 1
    assert "too many requests (HTTP 413)" in failed.error and "tokens per minute" in failed.error


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Too many tokens per minute for the context window."),
        (401, "context length"),
        (500, "The engine lost its context window."),
        (400, "max_tokens must be at least 16."),
        (400, "max_tokens is too large: 1000000."),
        (422, "Input should be a valid string"),
    ],
)
def test_other_errors_do_not_mean_too_long(status: int, message: str) -> None:
    assert not is_too_long(ModelHTTPError(status, "m", openai(message)))


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_key_is_never_repeated(tmp_path: Path, server: ModelServer, kind: str) -> None:
    server.default = Reply(status=401, error="Incorrect API key provided: Zq-c4******89ab.")
    assert error_of(kind, server, tmp_path) == (
        "m: The server refused the key; check it (HTTP 401)."
    )


def test_googles_invalid_key_error_is_recognized(tmp_path: Path, server: ModelServer) -> None:
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
def test_error_message_is_found_in_each_servers_body(body: Any, said: str) -> None:
    told = describe(ModelHTTPError(400, "m", body))
    assert said in told and "\x1b" not in told and "\n" not in told


@pytest.mark.parametrize("body", [None, {}, [], 5, {"error": {"error": {"error": {"error": {}}}}}])
def test_body_without_a_message_adds_no_quote(body: Any) -> None:
    told = describe(ModelHTTPError(400, "m", body))
    assert told == "The server rejected the request as invalid (HTTP 400)."


def test_long_quote_is_cut_between_words() -> None:
    words = "x" * (MAX_QUOTE - 10)
    told = describe(ModelHTTPError(400, "m", {"message": f"{words} {KEY} and more"}))
    assert words in told and KEY[:8] not in told
    assert describe(ModelHTTPError(400, "m", {"message": "x" * 5000})).endswith("(HTTP 400).")


# Errors in a stream


@pytest.mark.parametrize("kind", KINDS)
def test_error_in_a_stream_is_reported_and_keeps_the_text(
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
def test_error_in_a_stream_logs_no_traceback(
    tmp_path: Path, server: ModelServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.default = Reply("one two three", error="The engine burst.")
    (tmp_path / "team.yaml").write_text(json.dumps(team_of(kind, server)))
    with script(SCRIPT, tmp_path) as process:
        printed, logged = process.communicate()
    assert "The engine burst." in printed
    assert logged == ""


def test_incompatible_settings_are_reported(tmp_path: Path, server: ModelServer) -> None:
    keys = {"thinking": {"type": "disabled"}, "effort": "max", "model": "claude-opus-5"}
    backend = server.backend("claude", **keys)
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    told = str(run.view.agents["ann"].error)
    assert "The request can't be made: " in told and "while thinking is disabled" in told
    assert server.count() == 0
