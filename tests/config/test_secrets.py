"""Which values of a process, a team and its tool servers are secret."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from nb_agents.config.secrets import (
    has_secret_argument,
    secrets_of_environment,
    secrets_of_server,
    secrets_of_team,
)
from tests.kit.teams import TeamSpec
from tests.kit.tools import McpServerSpec

KEY = "tk-1f9Qz7LmX02p"


def server(**keys: Any) -> McpServerSpec:
    given = {"name": "s", "url": "http://h/mcp"} if "url" in keys else {"name": "s", "command": "c"}
    return McpServerSpec.model_validate({**given, **keys})


def values(*found: Any) -> dict[str, tuple[str, ...]]:
    return {secret.value: secret.names for secret in found}


def test_variables_with_a_secrets_name_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", KEY)
    monkeypatch.setenv("OTHER", "not-this-1f9Qz7")
    found = values(*secrets_of_environment())
    assert found[KEY] == ("MY_TOKEN",) and "not-this-1f9Qz7" not in found


def test_password_in_a_variables_url_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgres://ann:{KEY}%2B@db/x")
    monkeypatch.setenv("BROKEN_URL", "http://[::1")
    found = values(*secrets_of_environment())
    assert found[f"{KEY}+"] == ("password", "ann")
    assert base64.b64encode(f"ann:{KEY}+".encode()).decode() in found


def test_api_key_has_the_names_used_in_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert {"OPENAI_API_KEY", "api_key", "authorization"} <= {
        *values(*secrets_of_environment())["k"]
    }


def test_secrets_of_callable_agents_are_included() -> None:
    def agent(name: str, **keys: Any) -> dict[str, Any]:
        return {"id": name, "backend": {"type": "openai", "model": "m", **keys}}

    team = TeamSpec.model_validate(
        {
            "agents": [agent("a", api_key="ka", mcp_servers=[server(env={"T": "kt"})])],
            "callable_agents": [agent("b", base_url=f"https://ann:{KEY}@h/v1?api_key=kq&x=1")],
        }
    )
    found = values(*secrets_of_team(team))
    basic = base64.b64encode(f"ann:{KEY}".encode()).decode()
    assert found.keys() == {"ka", "kt", KEY, "kq", basic}


@pytest.mark.parametrize(
    "keys, found",
    [
        ({"env": {"A": "${IT}", "B": "plain"}}, {KEY: ("A",), "plain": ("B",)}),
        ({"url": "http://h/mcp", "headers": {"X-Team": "${IT}"}}, {KEY: ("X-Team",)}),
        (
            {"url": "http://h/mcp", "headers": {"Authorization": "Token ${IT}"}},
            {f"Token {KEY}": ("Authorization",), KEY: ("Authorization",)},
        ),
        ({"url": "http://h/mcp", "authorization": "${IT}"}, {KEY: ("Authorization",)}),
        ({"url": "http://h/mcp?key=${IT}"}, {KEY: ("key",)}),
        ({"args": ["--dsn", "${IT}"]}, {KEY: ("IT",)}),
        ({"args": ["--api-key", KEY]}, {KEY: ("api-key",)}),
        ({"args": [f"--api-key={KEY}", "--port=80"]}, {KEY: ("api-key",)}),
        ({"args": ["-e", f"A_TOKEN={KEY}"]}, {KEY: ("A_TOKEN",)}),
        ({"args": ["--header", f"Authorization: Bearer {KEY}"]}, {KEY: ("Authorization",)}),
        ({"args": [f"https://h/sse?token={KEY}"]}, {KEY: ("token",)}),
        ({"command": ["run", "--quiet", "file"]}, {}),
    ],
)
def test_values_of_a_tool_server_are_secret(
    keys: dict[str, Any], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IT", KEY)
    told = {(secret.value, secret.names) for secret in secrets_of_server(server(**keys))}
    assert found.items() <= told
    assert {value.removeprefix("Bearer ") for value, _ in told} == found.keys()


def test_basic_authentication_password_is_secret() -> None:
    basic = base64.b64encode(f"ann:{KEY}".encode()).decode()
    it = server(url="http://h", headers={"Authorization": f"Basic {basic}"})
    assert {KEY, basic} <= values(*secrets_of_server(it)).keys()


def test_server_variables_without_a_secrets_name_are_not_masked_for_models() -> None:
    it = server(env={"A_TOKEN": "t", "DATABASE": "d"})
    assert values(*secrets_of_server(it, named=True)).keys() == {"t"}


@pytest.mark.parametrize(
    "args, written",
    [
        (["--token", KEY], True),
        ([f"--token={KEY}"], True),
        ([f"TOKEN={KEY}"], True),
        ([f"https://ann:{KEY}@h/"], True),
        (["--token", "${IT}"], False),
        (["--token=${IT}", "https://h/x", "--port", "80"], False),
    ],
)
def test_token_in_arguments_is_never_stored(args: list[str], written: bool) -> None:
    it = server(args=args)
    assert has_secret_argument(it) == written


def test_secret_repr_hides_the_value() -> None:
    assert KEY not in repr(list(secrets_of_server(server(env={"A": KEY}))))
