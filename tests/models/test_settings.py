"""Each key of a backend, compared with the bytes that the real SDKs send to strict servers."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from pydantic.alias_generators import to_camel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart
from pydantic_ai.tools import ToolDefinition

from nb_agents import TeamSpec
from nb_agents.errors import ConfigError
from nb_agents.models.settings import settings_of
from tests.kit.models import (
    BACKEND_TYPES,
    MODEL_KEYS,
    PROVIDERS,
    ModelKeys,
    backend_for,
    check_fit,
    http_client,
)
from tests.kit.programs import ACP_TYPES
from tests.kit.teams import report_on
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.strict_bodies import fault_of

ROOT = Path(__file__).parents[2]
ROOTS = ("claude", "gemini", "azure_openai")
DONE = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))

SAMPLING = frozenset({"top_k", "min_p", "repetition_penalty"})
ENGINE = SAMPLING | {"chat_template_kwargs"}
BESIDES: dict[str, frozenset[str]] = {
    "openrouter": SAMPLING | {"reasoning"},
    "zai": frozenset({"thinking"}),
    "together": SAMPLING,
    "fireworks": SAMPLING,
    "qwen": frozenset({"top_k"}),
    "lmstudio": SAMPLING,
    "vllm": ENGINE,
    "sglang": ENGINE | {"separate_reasoning"},
    "inference": ENGINE,
}
"""What servers of OpenAI's protocol take in a body besides what OpenAI's own do."""

MAX = {
    "openai chat": "max_tokens",
    "openai responses": "max_output_tokens",
    "anthropic": "max_tokens",
    "google": "generationConfig.maxOutputTokens",
}
ANYWHERE = ("openai chat", "openai responses", "anthropic", "google")
FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
Places = dict[str, tuple[str, Any]]


def everywhere(value: Any, **places: str) -> Places:
    return {name.replace("_", " "): (place, value) for name, place in places.items()}


def at(formats: str, place: str, value: Any) -> Places:
    return dict.fromkeys(formats.split(", "), (place, value))


def thinking(key: str) -> dict[str, tuple[Any, Places]]:
    """Return the test cases of a thinking section for Anthropic and Google."""
    budget = {
        **at("anthropic", "thinking.budget_tokens", 2048),
        **at("google", "generationConfig.thinkingConfig.thinkingBudget", 2048),
    }
    return {
        f"{key}.type": (
            "disabled",
            {
                **at("anthropic", "thinking.type", "disabled"),
                **at("google", "generationConfig.thinkingConfig.thinkingBudget", 0),
            },
        ),
        f"{key}.budget_tokens": (2048, budget),
        f"{key}.thinking_budget": (2048, budget),
        f"{key}.display": ("omitted", at("anthropic", "thinking.display", "omitted")),
        f"{key}.thinking_level": (
            "low",
            at("google", "generationConfig.thinkingConfig.thinkingLevel", "LOW"),
        ),
        f"{key}.include_thoughts": (
            True,
            at("google", "generationConfig.thinkingConfig.includeThoughts", True),
        ),
    }


EFFORT: tuple[Any, Places] = (
    "high",
    {
        **at("openai chat", "reasoning_effort", "high"),
        **at("openai responses", "reasoning.effort", "high"),
        **at("anthropic", "output_config.effort", "high"),
        **at("google", "generationConfig.thinkingConfig.thinkingLevel", "HIGH"),
    },
)
STOP: tuple[Any, Places] = (
    ["END"],
    {
        **at("openai chat", "stop", ["END"]),
        **at("anthropic", "stop_sequences", ["END"]),
        **at("google", "generationConfig.stopSequences", ["END"]),
    },
)
VERBOSITY: tuple[Any, Places] = (
    "low",
    {**at("openai chat", "verbosity", "low"), **at("openai responses", "text.verbosity", "low")},
)
LIMIT: tuple[Any, Places] = (4000, {name: (place, 4000) for name, place in MAX.items()})


def sampling(key: str, google: str, value: Any, formats: tuple[str, ...]) -> tuple[Any, Places]:
    names = dict.fromkeys(ANYWHERE[:3], key) | {"google": f"generationConfig.{google}"}
    return value, {name: (names[name], value) for name in formats}


CHAT_GOOGLE = ("openai chat", "google")
SENT: dict[str, tuple[Any, Places]] = {
    "temperature": sampling("temperature", "temperature", 0.5, ANYWHERE),
    "top_p": sampling("top_p", "topP", 0.5, ANYWHERE),
    "top_k": sampling("top_k", "topK", 7, ("anthropic", "google")),
    "min_p": (0.1, {}),
    "seed": sampling("seed", "seed", 7, CHAT_GOOGLE),
    "frequency_penalty": sampling("frequency_penalty", "frequencyPenalty", 0.5, CHAT_GOOGLE),
    "presence_penalty": sampling("presence_penalty", "presencePenalty", 0.5, CHAT_GOOGLE),
    "repetition_penalty": (1.1, {}),
    "logit_bias": ({"50256": -100}, at("openai chat", "logit_bias", {"50256": -100})),
    "max_tokens": LIMIT,
    "max_completion_tokens": LIMIT,
    "max_output_tokens": LIMIT,
    "stop": STOP,
    "stop_sequences": STOP,
    "reasoning.effort": EFFORT,
    "reasoning.summary": ("auto", at("openai responses", "reasoning.summary", "auto")),
    "reasoning.max_tokens": (2000, {}),
    "reasoning.enabled": (True, {}),
    "reasoning.exclude": (True, {}),
    "reasoning_effort": EFFORT,
    "effort": EFFORT,
    **thinking("thinking"),
    **thinking("thinking_config"),
    "include_thoughts": (
        True,
        at("google", "generationConfig.thinkingConfig.includeThoughts", True),
    ),
    "text.verbosity": VERBOSITY,
    "text.format": (FORMAT, at("openai responses", "text.format", FORMAT)),
    "verbosity": VERBOSITY,
    "response_format": (
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        {
            **at(
                "openai chat",
                "response_format",
                {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
            ),
            **at(
                "openai responses",
                "text.format",
                {"type": "json_schema", "name": "n", "schema": {}, "strict": True},
            ),
        },
    ),
    "parallel_tool_calls": (
        False,
        {
            **at("openai chat, openai responses", "parallel_tool_calls", False),
            **at("anthropic", "tool_choice.disable_parallel_tool_use", True),
        },
    ),
    "tool_choice": (
        "required",
        {
            **at("openai chat, openai responses", "tool_choice", "required"),
            **at("anthropic", "tool_choice.type", "any"),
            **at("google", "toolConfig.functionCallingConfig.mode", "ANY"),
        },
    ),
    "service_tier": (
        "flex",
        {
            **at("openai chat, openai responses", "service_tier", "flex"),
            **at("google", "serviceTier", "flex"),
        },
    ),
    "user": (
        "ada",
        {
            **at("openai chat, openai responses", "user", "ada"),
            **at("anthropic", "metadata.user_id", "ada"),
        },
    ),
    "store": (True, at("openai chat, openai responses", "store", True)),
    "truncation": ("auto", at("openai responses", "truncation", "auto")),
    "prompt_cache_key": (
        "team",
        at("openai chat, openai responses", "prompt_cache_key", "team"),
    ),
    "cache_control": (
        {"type": "ephemeral", "ttl": "1h"},
        at("anthropic", "system.0.cache_control.ttl", "1h"),
    ),
    "safety_settings": (
        [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        at(
            "google",
            "safetySettings",
            [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        ),
    ),
    "betas": (
        ["context-1m-2025-08-07"],
        at("anthropic", "headers.anthropic-beta", "context-1m-2025-08-07"),
    ),
    "chat_template_kwargs": ({"enable_thinking": True}, {}),
    "separate_reasoning": (True, {}),
    "extra_body": (
        {"metadata": {"user_id": "ada"}},
        at("openai chat, openai responses, anthropic", "metadata.user_id", "ada"),
    ),
    "extra_headers": ({"X-Team": "blue"}, dict.fromkeys(ANYWHERE, ("headers.x-team", "blue"))),
}
"""For each key a value, and per wire format where in a request it is, and as what.

`tests/models/test_providers.py` tells by which name each provider's own server knows `max_tokens`.
"""

ENABLED = {"type": "enabled", "budget_tokens": 2048}
NEEDED: dict[str, dict[str, Any]] = {
    "thinking.display": {"thinking": ENABLED},
    "thinking.budget_tokens": {"thinking": ENABLED},
    "thinking.thinking_budget": {"thinking": {"type": "enabled"}},
}
"""What Anthropic wants besides a key."""

TYPES = sorted([*PROVIDERS, "openai responses"])
_ALIKE = (
    "cerebras",
    "chatcompletion",
    "grok",
    "groq",
    "moonshot",
    "nebius",
    "nvidia_nim",
    "ollama",
)
SPEAKERS: dict[str, tuple[str, ...]] = {
    "openai": (*_ALIKE, "poe"),
    "openai responses": (),
    "azure_openai": (),
    "claude": (),
    "gemini": (),
    "openrouter": (),
    "zai": (),
    "together": ("fireworks", "lmstudio"),
    "qwen": (),
    "vllm": ("inference",),
    "sglang": (),
}
"""A type for each way to speak, and the others that speak so."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ModelServer]]:
    """Start a strict server for each backend type."""
    made = {
        kind: ModelServer(DONE, strict=True, besides=BESIDES.get(kind, frozenset()))
        for kind in TYPES
    }
    for each in made.values():
        each.start()
    yield made
    for each in made.values():
        each.stop()


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def team_of(kind: str, server: ModelServer, **backend: Any) -> TeamSpec:
    given = {"api": "responses"} if kind == "openai responses" else {}
    kind = kind.partition(" ")[0]
    url = server.base if kind in ROOTS else server.url
    base = {"type": kind, "model": "m", "base_url": url, "api_key": "k", **given}
    return TeamSpec.model_validate({"agents": [{"id": "ann", "backend": {**base, **backend}}]})


async def ask(team: TeamSpec) -> None:
    """Send a request of a team's first agent, and raise if the server rejects it."""
    asked = [ModelRequest(parts=[SystemPromptPart("You help."), UserPromptPart("Help.")])]
    async with http_client() as client:
        backend = backend_for(team.agents[0], lambda: client)
        tools = [ToolDefinition(name="new_answer", kind="output")]
        async with backend.stream(asked, tools) as stream:
            async for _ in stream:
                pass


def found(request: Request, place: str) -> Any:
    """Return the value at a path of a request, or None."""
    value: Any = {**request.body, "headers": request.headers}
    for part in place.split("."):
        if isinstance(value, list):
            value = value[int(part)]
        elif isinstance(value, dict):
            # Google accepts both spellings, and its SDK mixes them.
            value = {to_camel(k): v for k, v in value.items()} | value
            value = value.get(part)
    return value


def told(team: TeamSpec) -> list[str]:
    """Return the keys that a check reports as not sent."""
    lines = [line for line in report_on(team).lines if line.startswith(("Not sent", "Sent to"))]
    return [key for line in lines for key in line.rpartition(": ")[2].split(", ")]


def place_of(kind: str, key: str, team: TeamSpec) -> tuple[str, Any]:
    """Return the path and value of a key in a type's request; "" if it is not sent."""
    value, places = SENT[key]
    outer = key.partition(".")[0]
    if outer in BESIDES.get(kind, ()):
        return outer, nested(key, value)[outer]
    if kind == "azure_openai" and value == 4000:
        return "max_completion_tokens", value
    return places.get(str(team.agents[0].backend.wire_format), ("", None))


def test_every_key_has_a_row() -> None:
    rows = [key.partition(".")[0] for key in MODEL_KEYS]
    assert {*rows} == {*ModelKeys.model_fields}
    assert SENT.keys() == MODEL_KEYS.keys()
    for name, field in ModelKeys.model_fields.items():
        inner = [
            arg for arg in getattr(field.annotation, "__args__", ()) if hasattr(arg, "model_fields")
        ]
        for kind in inner:
            assert {f"{name}.{part}" for part in kind.model_fields} <= MODEL_KEYS.keys()
    assert {key for keys in BESIDES.values() for key in keys} <= {*ModelKeys.model_fields}
    assert {*BACKEND_TYPES} - {"demo", "python", *ACP_TYPES} == {*PROVIDERS}
    assert sorted([*SPEAKERS, *(each for kinds in SPEAKERS.values() for each in kinds)]) == TYPES


def given_by(kind: str, key: str) -> dict[str, Any]:
    """Return the keys of a file that tests a key, with those that Anthropic requires for it."""
    given = nested(key, SENT[key][0])
    if kind == "claude" and (needed := NEEDED.get(key.replace("thinking_config", "thinking"))):
        outer = key.partition(".")[0]
        given = {outer: {**needed["thinking"], **given[outer]}, "max_tokens": 8000}
    return given


@pytest.mark.parametrize("kind", SPEAKERS)
def test_each_key_is_sent_or_reported(kind: str, servers: dict[str, ModelServer]) -> None:
    for key in MODEL_KEYS:
        team = team_of(kind, servers[kind], **given_by(kind, key))
        place, wanted = place_of(kind, key, team)
        verdict = report_on(team).verdict
        if not place and MODEL_KEYS[key].restricts:
            assert f"`agents.backend.{key}` restricts" in verdict
            assert not told(team), key
            continue
        assert (verdict, told(team)) == ("Can start.", [] if place else [key]), key
        anyio.run(ask, team)
        assert not place or found(servers[kind].requests[-1], place) == wanted, key


@pytest.mark.parametrize(
    ("kind", "speaker"), [(kind, by) for by, kinds in SPEAKERS.items() for kind in kinds]
)
def test_types_with_a_shared_format_get_the_same_request(
    kind: str, speaker: str, servers: dict[str, ModelServer]
) -> None:
    assert PROVIDERS[kind] == PROVIDERS[speaker]
    for key in MODEL_KEYS:
        team, other = (
            team_of(each, servers[each], **given_by(each, key)) for each in (kind, speaker)
        )
        mine, its = (each.agents[0].backend for each in (team, other))
        assert mine.wire_format == its.wire_format
        assert settings_of(mine) == settings_of(its), key
        assert told(team) == told(other), key
        verdicts = [report_on(each).verdict for each in (team, other)]
        assert verdicts[0] == verdicts[1], key
    server = servers[kind]
    anyio.run(ask, team_of(kind, server, temperature=0.5))
    assert found(server.requests[-1], "temperature") == 0.5


REAL = [
    ("openai", "gpt-4o"),
    ("openai", "gpt-5"),
    ("openai", "gpt-5.1"),
    ("openai responses", "o3"),
    ("azure_openai", "o3-mini"),
    ("claude", "claude-haiku-4-5"),
    ("claude", "claude-opus-4-7"),
    ("gemini", "gemini-2.0-flash"),
    ("gemini", "gemini-3-pro-preview"),
]
"""Models that differ in what they take."""


@pytest.mark.parametrize("effort", ["", "high"])
@pytest.mark.parametrize(("kind", "model"), REAL)
def test_unsupported_settings_are_reported_and_not_sent(
    kind: str, model: str, effort: str, servers: dict[str, ModelServer]
) -> None:
    """Test each key alone and with an effort: only the reported keys are missing in the bytes."""
    for key in MODEL_KEYS:
        if key.startswith(("thinking", "max_")) or MODEL_KEYS[key].restricts:
            continue
        given = nested(key, SENT[key][0])
        if effort and not {"reasoning", "effort"} & {*key.replace("_", ".").split(".")}:
            given["reasoning_effort"] = effort
        team = team_of(kind, servers[kind], **given, **{"model": model})
        place, wanted = place_of(kind, key, team)
        anyio.run(ask, team)
        is_sent = bool(place) and found(servers[kind].requests[-1], place) == wanted
        assert is_sent == (key not in told(team)), key


def test_unsupported_settings_of_a_reasoning_model_are_reported(
    servers: dict[str, ModelServer],
) -> None:
    team = team_of("openai", servers["openai"], model="gpt-5", temperature=0.2, top_p=0.5, seed=3)
    line = "Not sent to gpt-5, which does not support it while it reasons: temperature, top_p"
    assert line in report_on(team).lines


def test_team_with_impossible_settings_does_not_start(
    servers: dict[str, ModelServer],
) -> None:
    team = team_of("claude", servers["claude"], model="claude-opus-4-7", thinking=ENABLED)
    told = report_on(team).verdict
    assert "Agent 'ann' can't send requests with these settings: 'claude-opus-4-7'" in told
    with pytest.raises(ConfigError, match="claude-opus-4-7"):
        check_fit(team)


def test_retired_anthropic_model_is_reported(
    servers: dict[str, ModelServer],
) -> None:
    from anthropic.resources.messages import DEPRECATED_MODELS

    model, date = next(iter(DEPRECATED_MODELS.items()))
    old = team_of("claude", servers["claude"], model=model)
    (line,) = [line for line in report_on(old).lines if "retires" in line]
    assert line == f"Anthropic retires {model} on {date}. Use a newer model."
    assert check_fit(old) == (line,)
    with pytest.warns(DeprecationWarning, match=model):
        anyio.run(ask, old)


def test_documented_models_are_not_retired(servers: dict[str, ModelServer]) -> None:
    pages = [
        ROOT / "README.md",
        *(ROOT / "notebooks").glob("*.ipynb"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    text = " ".join(page.read_text("utf-8") for page in pages)
    named = {*re.findall(r"claude-[a-z]+-\d[\d-]*", text)}
    assert named
    for name in named:
        assert not check_fit(team_of("claude", servers["claude"], model=name))


# Servers at their own addresses


class _Sent(Exception):
    """Raised when a request was recorded instead of sent."""


async def body_of(**backend: Any) -> dict[str, Any]:
    """Return the body of a request to a provider's real address."""
    sent: list[dict[str, Any]] = []

    async def look(request: httpx2.Request) -> None:
        sent.append(json.loads(await request.aread()))
        raise _Sent

    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    asked = [ModelRequest(parts=[SystemPromptPart("You help."), UserPromptPart("Help.")])]
    async with http_client() as client:
        client.event_hooks["request"].append(look)
        # The SDKs have their own exceptions for a failed request.
        with suppress(Exception):
            tools = [ToolDefinition(name="new_answer", kind="output")]
            async with backend_for(team.agents[0], lambda: client).stream(asked, tools):
                pass
    return sent[0]


@pytest.mark.anyio
async def test_openrouter_gets_its_own_keys_and_caching_for_anthropic_models() -> None:
    backend = {"type": "openrouter", "model": "anthropic/claude-opus-4.6", "api_key": "k"}
    body = await body_of(**backend, reasoning={"effort": "high", "exclude": True}, top_k=5)
    assert body["reasoning"] == {"effort": "high", "exclude": True}
    assert body["top_k"] == 5
    assert json.dumps(body["messages"]).count("cache_control") == 2
    assert "cache_control" in body["tools"][-1]


@pytest.mark.anyio
async def test_caching_is_not_requested_where_it_is_automatic() -> None:
    for model in ("openai/gpt-5-mini", "google/gemini-3-pro-preview"):
        body = await body_of(type="openrouter", model=model, api_key="k")
        assert "cache_control" not in json.dumps(body)


# The strict servers


@pytest.mark.parametrize("kind", ["openai", "openai responses", "claude", "gemini"])
def test_strict_server_rejects_unknown_keys(kind: str, servers: dict[str, ModelServer]) -> None:
    server = servers[kind]
    anyio.run(ask, team_of(kind, server))
    taken = server.requests[-1]
    for wrong in ({"colour": "red"}, {"tools": [{"colour": "red"}]}):
        body = {**taken.body, **wrong}
        fault = fault_of(taken.protocol, body, frozenset())
        assert fault and not fault_of(taken.protocol, taken.body, frozenset())


@pytest.mark.parametrize("kind", ["openai", "openai responses", "claude"])
def test_rejection_by_a_strict_server_is_reported(
    kind: str, servers: dict[str, ModelServer]
) -> None:
    team = team_of(kind, servers[kind], extra_body={"colour": "red"})
    with pytest.raises(ModelHTTPError, match="Unrecognized request argument supplied: colour"):
        anyio.run(ask, team)
