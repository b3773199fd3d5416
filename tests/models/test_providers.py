"""All backend types of a team file, end to end with a server for their protocol."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError, MissingKeyError
from nb_agents.models import providers
from nb_agents.models.providers import (
    PROVIDERS,
    SharedClient,
    backend_for,
    find_key,
    http_client,
    load,
)
from nb_agents.testing import Answer, ScriptedModel, scripted_team
from tests.kit.models import check_start
from tests.kit.teams import prices_of
from tests.model_server import ModelServer, Reply, ToolCall
from tests.team_kit import events, finish, outcome

SECRET = "sk-very-secret-0123456789"
ROOTS = ("claude", "gemini", "azure_openai")
"""Types whose SDK adds the version to the address itself."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def _team(kind: str, server: ModelServer | None = None, **backend: Any) -> TeamSpec:
    if server is not None:
        backend = {"base_url": server.base if kind in ROOTS else server.url, **backend}
    backend = {"type": kind, "model": "m", **backend}
    return TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})


@pytest.mark.parametrize("kind", sorted(PROVIDERS))
def test_a_round_with_text_a_tool_call_and_an_answer_works(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    write = ToolCall("write_file", {"path": "n.md", "content": "a “note” 😀"})
    answer = ToolCall("new_answer", {"content": "the “answer” 😀"})
    server.script("m", Reply("I take a note.", (write,)), Reply("Now.", (answer,)))
    team = _team(kind, server, api_key=SECRET, temperature=0.5, max_tokens=99)
    run = finish(nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "the “answer” 😀"
    assert (run.path / "workspaces" / "ann" / "n.md").read_text() == "a “note” 😀"
    first, second = server.requests
    assert "new_answer" in first.tool_names and "write_file" in first.tool_names
    assert "the task" in first.prompt
    assert "Wrote n.md" in second.prompt
    assert "99" in str(first.body) and "0.5" in str(first.body)
    assert SECRET in str(first.headers)
    words = [(e.channel, e.text) for e in events(run, ev.TextStreamed)]
    assert "".join(text for channel, text in words if channel == "text") == "I take a note.Now."
    assert "".join(text for channel, text in words if channel == "answer") == run.result
    assert run.view.agents["ann"].tokens > 0


@pytest.mark.parametrize("kind", sorted(PROVIDERS))
def test_key_is_only_in_the_request(
    tmp_path: Path, server: ModelServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="nb_agents")
    server.script("m", Reply(status=401, error=f"Incorrect API key provided: {SECRET}"))
    team = _team(kind, server, api_key=SECRET)
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path, debug=True)))
    error = outcome(run)
    assert "refused the key" in str(error)
    assert SECRET in str(server.requests[0].headers)
    said = [str(error), repr(error), repr(run), repr(run.view), repr(run.receipt), repr(team)]
    said += [r.getMessage() for r in caplog.records]
    saved = [p.read_text(errors="replace") for p in tmp_path.rglob("*") if p.is_file()]
    assert not [text for text in said + saved if SECRET in text]
    assert any("debug.log" in p.name for p in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("openai", "OPENAI_API_KEY"),
        ("chatcompletion", "OPENAI_API_KEY"),
        ("claude", "ANTHROPIC_API_KEY"),
        ("gemini", "GEMINI_API_KEY"),
        ("grok", "XAI_API_KEY"),
        ("openrouter", "OPENROUTER_API_KEY"),
        ("zai", "ZAI_API_KEY"),
        ("cerebras", "CEREBRAS_API_KEY"),
        ("together", "TOGETHER_API_KEY"),
        ("fireworks", "FIREWORKS_API_KEY"),
        ("groq", "GROQ_API_KEY"),
        ("moonshot", "MOONSHOT_API_KEY"),
        ("nvidia_nim", "NGC_API_KEY"),
        ("nebius", "NEBIUS_API_KEY"),
        ("poe", "POE_API_KEY"),
        ("qwen", "QWEN_API_KEY"),
        ("azure_openai", "AZURE_OPENAI_API_KEY"),
    ],
)
def test_a_missing_key_names_its_variable_and_the_agent(
    tmp_path: Path, kind: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "azure_openai":
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "http://localhost:1")
    with pytest.raises(MissingKeyError) as caught:
        nb_agents.start("t", _team(kind), options=RunOptions(session_root=tmp_path))
    assert (caught.value.agent, caught.value.variable) == ("ann", variable)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(variable, "k")
    check_start(_team(kind))


@pytest.mark.parametrize("kind", ["lmstudio", "vllm", "sglang", "inference", "ollama"])
def test_local_servers_need_no_key(kind: str) -> None:
    check_start(_team(kind))


def test_gemini_accepts_a_second_key_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    check_start(_team("gemini"))


def test_unset_variable_in_a_key_is_named() -> None:
    with pytest.raises(MissingKeyError, match="MY_KEY is not set"):
        check_start(_team("openai", api_key="${MY_KEY}"))


def test_empty_key_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        check_start(_team("openai", api_key=""))


def test_unset_variable_in_an_address_is_named() -> None:
    with pytest.raises(MissingKeyError, match="needs an address, but MY_SERVER is not set"):
        check_start(_team("vllm", base_url="${MY_SERVER}/v1"))


def test_azure_requires_an_endpoint() -> None:
    with pytest.raises(MissingKeyError, match="an address, but AZURE_OPENAI_ENDPOINT is not set"):
        check_start(_team("azure_openai", api_key="k"))


def test_unknown_type_error_lists_nearest_and_all_types(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'opnai', which is not supported. Did you mean 'openai'"):
        nb_agents.start("t", _team("opnai"), options=RunOptions(session_root=tmp_path))
    with pytest.raises(ConfigError) as caught:
        check_start(_team("telepathy"))
    assert "Did you mean" not in str(caught.value)
    assert all(kind in str(caught.value) for kind in PROVIDERS)
    assert list(tmp_path.iterdir()) == []


def test_generic_backend_gets_the_key_of_its_addresss_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openai's")
    team = _team("chatcompletion", base_url="https://api.groq.com/openai/v1")
    with pytest.raises(MissingKeyError, match="GROQ_API_KEY is not set"):
        check_start(team)
    monkeypatch.setenv("GROQ_API_KEY", "groq's")
    assert find_key(team.agents[0]) == ("groq's", "GROQ_API_KEY is set")


def test_explicit_provider_address_still_requires_its_key() -> None:
    with pytest.raises(MissingKeyError, match="ZAI_API_KEY"):
        check_start(_team("zai", base_url="https://api.z.ai/api/paas/v4/"))
    check_start(_team("zai", base_url="http://localhost:1/v1"))


@pytest.mark.parametrize("url", ["not a url", "localhost:8000/v1", "htp://user:secret@x/v1"])
def test_address_without_http_is_refused_before_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="must begin with http:// or https://") as caught:
        check_start(_team("vllm", base_url=url))
    assert "secret" not in str(caught.value)
    check_start(_team("vllm", base_url="HTTPS://x/v1"))


def test_unsupported_agents_are_named_with_a_position(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text(
        "agents:\n- {id: ann, backend: {type: demo}}\n"
        "- id: coder\n  backend:\n    type: antigravity_cli\n- backend: {type: uitars}\n"
    )
    with pytest.raises(ConfigError) as caught:
        check_start(TeamSpec.from_file(path))
    first, second = caught.value.others
    assert (first.line, first.column, second.line) == (5, 11, 6)
    assert "'coder' has backend type 'antigravity_cli'" in first.message
    assert "'agent3' has backend type 'uitars'" in second.message
    assert "--skip-unsupported" in first.remedy


def test_unsupported_agents_are_grouped_by_reason() -> None:
    coders = [{"id": name, "backend": {"type": "uitars"}} for name in ("ann", "ben")]
    team = TeamSpec.model_validate({"agents": [*coders, {"backend": {"type": "demo"}}]})
    with pytest.raises(ConfigError) as caught:
        check_start(team)
    told = "Agents 'ann', 'ben' have backend type 'uitars', which is not supported. "
    assert caught.value.message.startswith(told)
    assert caught.value.message.count("is not supported") == 1


def test_skipping_is_not_suggested_if_no_agent_would_remain() -> None:
    with pytest.raises(ConfigError) as caught:
        check_start(_team("uitars"))
    assert "--skip-unsupported" not in caught.value.message


def test_rate_limit_table_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("gemini: {pro: {rpm: 2}}")
    with pytest.raises(ConfigError, match="no agents"):
        check_start(TeamSpec.from_file(tmp_path / "limits.yaml"))


def test_backend_without_a_model_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has no model"):
        check_start(_team("openai", model="", api_key="k"))


def test_missing_usage_leaves_only_the_cost_unknown(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import model_server

    monkeypatch.setattr(model_server._OpenAIWire, "end", lambda self: b"data: [DONE]\n\n")
    server.script("m", Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),)))
    run = finish(
        nb_agents.start("t", _team("vllm", server), options=RunOptions(session_root=tmp_path))
    )
    assert (run.result, run.receipt.cost) == ("done", None)


def test_cost_of_a_known_model_is_summed(tmp_path: Path, server: ModelServer) -> None:
    done = ToolCall("new_answer", {"content": "done"})
    server.script("gpt-4o", Reply(tool_calls=(done,), input_tokens=1000, output_tokens=100))
    team = _team("openai", server, model="gpt-4o", api_key="k")
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.receipt.tokens == 1100
    assert run.receipt.cost is None or run.receipt.cost == pytest.approx(0.0035)


@pytest.mark.parametrize(
    ("kind", "model"),
    [("openai", "gpt-5-mini"), ("responses", "gpt-5-mini"), ("gemini", "gemini-2.5-flash")],
)
def test_flex_calls_cost_half_as_much(
    tmp_path: Path, server: ModelServer, kind: str, model: str
) -> None:
    done = ToolCall("new_answer", {"content": "done"})
    costs, prices = [], []
    for tier in ("default", "flex"):
        # OpenAI repeats the tier in the reply's body; Google reports it in a header.
        header = {"x-gemini-service-tier": tier}
        reply = Reply(tool_calls=(done,), input_tokens=1000, output_tokens=100, headers=header)
        server.script(model, reply)
        backend = server.backend(kind, model=model, service_tier=tier)
        team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
        run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
        costs.append(run.receipt.cost)
        price = prices_of(team.agents)[model]
        assert price is not None
        prices.append(price)
    assert costs[0]
    assert costs[1] == pytest.approx(costs[0] / 2)
    assert prices[1] == pytest.approx([each / 2 for each in prices[0]])


LIMIT_FIELDS = {
    "openai": "max_completion_tokens",
    "chatcompletion": "max_completion_tokens",
    "azure_openai": "max_completion_tokens",
    "gemini": "generationConfig.maxOutputTokens",
    **dict.fromkeys(["claude", "openrouter", "grok", "zai", "cerebras", "together"], "max_tokens"),
    **dict.fromkeys(["fireworks", "groq", "moonshot", "nvidia_nim", "nebius"], "max_tokens"),
    **dict.fromkeys(["poe", "qwen", "lmstudio", "vllm", "sglang", "inference"], "max_tokens"),
    "ollama": "max_tokens",
}
"""Where each type's own servers look for `max_tokens`."""


class _Sent(Exception):
    """Raised when a request was recorded instead of sent."""


async def _sent_by(team: TeamSpec) -> dict[str, Any]:
    """Return the numbers in the body of a team's first request, by path."""
    return dict(_numbers(json.loads((await _request_of(team)).content)))


async def _request_of(team: TeamSpec) -> httpx2.Request:
    """Return the first request that a team's first agent sends."""
    sent: list[httpx2.Request] = []

    async def look(request: httpx2.Request) -> None:
        await request.aread()
        sent.append(request)
        raise _Sent

    async with http_client() as client:
        client.event_hooks["request"].append(look)
        backend = backend_for(team.agents[0], lambda: client)
        asked = [ModelRequest(parts=[UserPromptPart("hi")])]
        with suppress(Exception):  # each SDK has its own exception for a failed request
            async with backend.stream(asked, []):
                pass
    return sent[0]


@pytest.mark.anyio
async def test_shared_client_is_created_once_on_demand() -> None:
    shared = SharedClient()
    await shared.aclose()
    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(lambda _: shared.get(), range(8))
    assert all(each is first for each in others)
    await shared.aclose()
    assert first.is_closed


def test_run_without_provider_models_creates_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[None] = []
    monkeypatch.setattr(providers, "http_client", lambda: created.append(None))
    team = scripted_team(None, ann=ScriptedModel(Answer("done"), "done"))
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert (run.status, created) == ("completed", [])


def _numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "variable", "version"),
    [
        ({"api_version": "2025-01-01"}, "2025-02-02", "2025-01-01"),
        ({}, "2025-02-02", "2025-02-02"),
        ({}, "", "2024-10-21"),
    ],
)
async def test_azure_api_version_is_in_the_request_url(
    given: dict[str, str], variable: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", variable)
    url = "https://example.openai.azure.com"
    sent = await _request_of(_team("azure_openai", base_url=url, api_key="k", **given))
    path = f"/openai/deployments/m/chat/completions?api-version={version}"
    assert str(sent.url) == f"{url}{path}"


@pytest.mark.anyio
async def test_max_tokens_is_sent_under_the_name_of_the_types_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://example.openai.azure.com")
    for kind in PROVIDERS:
        model = "openai/gpt-4o" if kind == "openrouter" else "m"
        numbers = await _sent_by(_team(kind, model=model, api_key="k", max_tokens=40))
        assert numbers == {LIMIT_FIELDS[kind]: 40}, kind


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("qwen3-8b", "max_tokens"),
        ("gpt-oss-20b", "max_tokens"),
        ("gpt-4o", "max_tokens"),
        ("gpt-5-mini", "max_completion_tokens"),
        ("o3", "max_completion_tokens"),
    ],
)
async def test_other_servers_get_max_tokens_except_for_reasoning_models(
    model: str, field: str
) -> None:
    for kind in PROVIDERS.keys() - {"azure_openai", "claude", "gemini"}:
        team = _team(kind, model=model, base_url="http://localhost:8080/v1", max_tokens=40)
        assert await _sent_by(team) == {field: 40}, kind


def test_all_provider_modules_can_be_imported() -> None:
    load(PROVIDERS)
    load(["demo", "python", "no such type"])


def test_load_prepares_what_would_block_the_loop() -> None:
    code = (
        "from nb_agents.models.providers import load; load()\n"
        "from pydantic_ai.messages import ModelMessagesTypeAdapter as adapter\n"
        "print(adapter.pydantic_complete)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


BESIDE = """
import sys, tempfile, threading, time
import nb_agents
from nb_agents.models.providers import load_in_background

may_go_on = threading.Event()
importers = set()

def hold(event, args):
    if event == "import" and args[0].partition(".")[0] in ("pydantic_ai", "openai"):
        importers.add(threading.current_thread().name)
        may_go_on.wait()

sys.addaudithook(hold)
backend = {"type": "openai", "model": "m", "base_url": sys.argv[1], "api_key": "k"}
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
load_in_background(["openai"])
while not importers:
    time.sleep(0.01)
with tempfile.TemporaryDirectory() as root:
    options = nb_agents.RunOptions(session_root=root)
    stopped, run = (nb_agents.start("Answer.", team, options=options) for _ in "12")
    stopped.stop(now=True)
    stopped.wait(raise_on_stop=False)
    print(stopped.status, importers)
    may_go_on.set()
    run.wait()
    print(run.status, run.view.answer)
"""


def test_runs_start_and_stop_during_background_imports(
    server: ModelServer,
) -> None:
    server.default = Reply(tool_calls=(ToolCall("new_answer", {"content": "an answer"}),))
    command = [sys.executable, "-c", BESIDE, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "cancelled {'nb_agents imports'}\ncompleted an answer\n"
