"""How a reply ended, by each provider's own words for it."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from nb_agents import TeamSpec
from nb_agents.models.backend import ReplyEnding, ending_of
from nb_agents.models.providers import backend_for, http_client
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
async def test_each_providers_reason_is_understood(
    server: ModelServer, kind: str, reason: str, ending: str
) -> None:
    found = ending_of(await _reply(server, kind, Reply("some words", finish=reason)))
    assert (found.kind, found.reason) == (ending, reason)
    is_length = "max_" in reason.lower() or reason in ("length", "model_context_window_exceeded")
    assert found.by == (LIMIT if is_length else f"by its server ({reason})")


@pytest.mark.parametrize("kind", ["vllm", "responses", "claude", "gemini"])
async def test_a_limit_of_tokens_cuts_a_reply(server: ModelServer, kind: str) -> None:
    response = await _reply(server, kind, Reply("one two three", stop_after=2))
    assert response.text == "one two"
    assert ending_of(response).by == LIMIT


@pytest.mark.parametrize("kind", ["vllm", "responses"])
async def test_a_refusal_comes_with_its_words(server: ModelServer, kind: str) -> None:
    response = await _reply(server, kind, Reply(refusal="I can't help with that."))
    assert ending_of(response) == ReplyEnding("refused", "", "I can't help with that.")
    assert response.parts == []


async def test_a_prompt_that_is_blocked_is_refused(server: ModelServer) -> None:
    body = b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\n\n'
    response = await _reply(server, "gemini", Reply(body=lambda: [body]))
    assert ending_of(response) == ReplyEnding("refused", "SAFETY")


@pytest.mark.parametrize("more", [{}, {"provider_details": {"timestamp": 1}}])
async def test_a_reply_without_a_reason_is_whole(more: dict[str, Any]) -> None:
    assert ending_of(ModelResponse(parts=[TextPart("x")], **more)).kind == "whole"
