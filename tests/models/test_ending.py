"""Finish reasons of each provider's replies."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from nb_agents import TeamSpec
from tests.kit.models import ReplyEnding, backend_for, ending_of, http_client
from tests.model_server import ModelServer, Reply

pytestmark = pytest.mark.anyio

LIMIT = "at its token limit (max_tokens)"
ENDINGS = [
    ("vllm", "stop", "whole"),
    ("vllm", "tool_calls", "whole"),
    ("vllm", "eos", "whole"),
    ("vllm", "length", "cut"),
    ("vllm", "abort", "cut"),
    ("vllm", "guardrail_intervened", "cut"),
    ("vllm", "content_filter", "refused"),
    ("responses", "max_output_tokens", "cut"),
    ("responses", "content_filter", "refused"),
    ("claude", "end_turn", "whole"),
    ("claude", "stop_sequence", "whole"),
    ("claude", "tool_use", "whole"),
    ("claude", "max_tokens", "cut"),
    ("claude", "model_context_window_exceeded", "cut"),
    ("claude", "pause_turn", "whole"),
    ("claude", "something_new", "cut"),
    ("claude", "refusal", "refused"),
    ("gemini", "STOP", "whole"),
    ("gemini", "MAX_TOKENS", "cut"),
    ("gemini", "OTHER", "cut"),
    ("gemini", "SAFETY", "refused"),
    ("gemini", "RECITATION", "refused"),
    ("gemini", "PROHIBITED_CONTENT", "refused"),
    ("gemini", "MALFORMED_FUNCTION_CALL", "broken"),
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


async def _reply(server: ModelServer, kind: str, reply: Reply) -> ModelResponse:
    server.script("m", reply)
    backend = server.backend(kind, model="m")
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    async with http_client() as client:
        model, asked = backend_for(team.agents[0], lambda: client), [UserPromptPart("hi")]
        async with model.stream([ModelRequest(parts=asked)], []) as stream:
            async for _ in stream:
                pass
            return stream.get()


@pytest.mark.parametrize(("kind", "reason", "ending"), ENDINGS)
async def test_finish_reasons_of_each_provider_are_recognized(
    server: ModelServer, kind: str, reason: str, ending: str
) -> None:
    found = ending_of(await _reply(server, kind, Reply("some words", finish=reason)))
    assert (found.kind, found.reason) == (ending, reason)
    is_length = "max_" in reason.lower() or reason == "length"
    full = {"model_context_window_exceeded": "at the end of the model's context window"}
    assert found.by == full.get(reason, LIMIT if is_length else f"by its server ({reason})")


@pytest.mark.parametrize("kind", ["vllm", "responses", "claude", "gemini"])
async def test_token_limit_cuts_off_a_reply(server: ModelServer, kind: str) -> None:
    response = await _reply(server, kind, Reply("one two three", stop_after=2))
    assert response.text == "one two"
    assert ending_of(response).by == LIMIT


@pytest.mark.parametrize("kind", ["vllm", "responses"])
async def test_refusal_has_its_text(server: ModelServer, kind: str) -> None:
    response = await _reply(server, kind, Reply(refusal="I can't help with that."))
    assert ending_of(response) == ReplyEnding("refused", "", "I can't help with that.")
    assert response.parts == []


async def test_blocked_prompt_is_a_refusal(server: ModelServer) -> None:
    body = b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\n\n'
    response = await _reply(server, "gemini", Reply(body=lambda: [body]))
    assert ending_of(response) == ReplyEnding("refused", "SAFETY")


@pytest.mark.parametrize("more", [{}, {"provider_details": {"timestamp": 1}}])
async def test_reply_without_a_finish_reason_is_whole(more: dict[str, Any]) -> None:
    assert ending_of(ModelResponse(parts=[TextPart("x")], **more)).kind == "whole"
