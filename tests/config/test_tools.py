"""Tools in a team file: servers, secrets, custom functions, rules and command limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from nb_agents import TeamSpec
from nb_agents.config.tools import CustomFunction, ToolRule, rule_for
from nb_agents.errors import ConfigError
from tests.kit.models import BackendSpec
from tests.kit.secrets import snapshot
from tests.kit.tools import CommandLimits, McpServerSpec, is_storable

TOKEN = "s3cret-token"


def backend(**keys: Any) -> BackendSpec:
    return BackendSpec.model_validate({"type": "demo", **keys})


def server(**keys: Any) -> McpServerSpec:
    return McpServerSpec.model_validate({"name": "s", "command": "server", **keys})


def team_file(folder: Path, keys: str) -> Path:
    path = folder / "team.yaml"
    path.write_text(f"agents:\n  - id: a\n    backend:\n      type: demo\n{keys}")
    return path


# Servers


@pytest.mark.parametrize(
    "given",
    [
        [{"name": "s", "type": "stdio", "command": "npx", "args": ["-y", "x"]}],
        {"s": {"type": "stdio", "command": "npx", "args": ["-y", "x"]}},
        {"s": {"command": "npx -y x"}},
        {"name": "s", "command": ["npx", "-y"], "args": ["x"]},
    ],
)
def test_servers_are_a_list_or_a_mapping(given: object) -> None:
    (found,) = backend(mcp_servers=given).mcp_servers
    assert (found.name, found.type) == ("s", "stdio")
    assert (*found.command, *found.args) == ("npx", "-y", "x")


def test_url_alone_means_a_streamable_http_server() -> None:
    assert McpServerSpec.model_validate({"name": "s", "url": "http://h/mcp"}).type != "stdio"


def test_yaml_scalars_become_text_again() -> None:
    env = server(env={"PORT": 80, "ON": True}, args=["-n", 3]).env
    assert {name: value.get_secret_value() for name, value in env.items()} == {
        "PORT": "80",
        "ON": "true",
    }


@pytest.mark.parametrize(
    "keys, told",
    [
        ("{name: s, type: stdio}", "needs the key `command`"),
        ("{name: s, type: streamable-http}", "needs the key `url`"),
        ('{name: s, command: "a \'b"}', "a closing quote is missing"),
        ("{name: s, type: sse, url: x}", "'stdio' or 'streamable-http'"),
        ("{command: x}", "'agents.0.backend.mcp_servers.0.name' is missing"),
    ],
)
def test_invalid_server_error_has_its_position(tmp_path: Path, keys: str, told: str) -> None:
    path = team_file(tmp_path, f"      mcp_servers:\n        - {keys}\n")
    with pytest.raises(ConfigError, match=r"team\.yaml:6:") as caught:
        TeamSpec.from_file(path)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "level, told",
    [
        ({}, "does not allow the program 'docker'"),
        ({"level": "high"}, "does not allow the program 'docker'"),
        ({"level": "permissive"}, ""),
        ({"allowed_executables": ["docker"]}, ""),
        ({"level": "permissive", "env": {"denied_vars": ["a"]}}, "denies the variable 'A'"),
        (
            {"level": "permissive", "env": {"mode": "allowlist", "allowed_vars": "B"}},
            "not allow the variable",
        ),
        ({"level": "permissive", "resolve_dns": True}, "`security.resolve_dns` can't be enforced"),
        ({"level": "permissive", "signed_only": 1}, "`security.signed_only` can't be enforced"),
    ],
)
def test_security_restricts_programs_and_variables(level: dict[str, Any], told: str) -> None:
    found = server(command="/usr/bin/docker", env={"A": "1"}, security=level)
    assert told in found.fault and bool(told) == bool(found.fault)


@pytest.mark.parametrize(
    "url, security, is_allowed",
    [
        ("https://shop.example/mcp", {}, True),
        ("https://shop.example/mcp", {"allowed_hostnames": ["other.example"]}, False),
        ("http://localhost:80/mcp", {}, False),
        ("http://localhost:80/mcp", {"allow_localhost": True}, True),
        ("http://127.0.0.1/mcp", {}, False),
        ("http://10.0.0.1/mcp", {"allow_private_ips": True}, True),
        ("http://[::1", {}, False),
    ],
)
def test_security_restricts_hosts(url: str, security: dict[str, Any], is_allowed: bool) -> None:
    found = McpServerSpec.model_validate({"name": "s", "url": url, "security": security})
    assert (found.fault == "") == is_allowed


@pytest.mark.parametrize("keys", [{"disabled": True}, {"enabled": False}, {"read_only_mode": 1}])
def test_server_with_an_unenforceable_restriction_is_withheld(keys: dict[str, Any]) -> None:
    assert "can't be enforced here" in server(**keys).fault
    assert server(disabled=False, enabled=True, colour="red").fault == ""


@pytest.mark.parametrize(
    "keys, names, is_taken",
    [
        ({}, ["anything"], True),
        ({"exclude_tools": "x"}, ["x", "mcp__s__x"], False),
        ({"exclude_tools": ["mcp__s__x"]}, ["x", "mcp__s__x"], False),
        ({"allowed_tools": ["read_file"]}, ["read_file"], True),
        ({"allowed_tools": ["read_file"]}, ["write_file"], False),
        ({"allowed_tools": []}, ["read_file"], False),
        # MassGen's names of our tools.
        ({"exclude_tools": ["execute_command"]}, ["run_command"], False),
        ({"exclude_tools": ["execute_command"]}, ["run_python"], False),
        ({"exclude_tools": ["mcp__filesystem__write_file"]}, ["write_file"], False),
        ({"allowed_tools": ["read_text_file"]}, ["read_file"], True),
        ({"allowed_tools": ["execute_command"]}, ["run_command"], True),
        ({"exclude_file_operation_mcps": True}, ["read_file"], False),
        ({"exclude_file_operation_mcps": True}, ["delete_file"], False),
        ({"exclude_file_operation_mcps": True}, ["write_file"], True),
    ],
)
def test_tools_match_by_any_of_their_names(
    keys: dict[str, Any], names: list[str], is_taken: bool
) -> None:
    assert backend(**keys).takes(*names) is is_taken


def test_servers_tool_list_overrides_the_agents() -> None:
    shop = server(allowed_tools=["a", "mcp__s__b"], exclude_tools="c")
    agent = backend(allowed_tools=["z"], exclude_tools=["a"])
    assert agent.takes("b", "mcp__s__b", server=shop)
    for name in "acd":
        assert not agent.takes(name, f"mcp__s__{name}", server=shop)
    assert agent.takes("z", "mcp__t__z", server=server()) and not agent.takes("y", server=server())


# Secrets


def test_server_variables_are_not_expanded_when_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    given = '{name: s, command: x, args: ["${MY_TOKEN}"], env: {T: "${MY_TOKEN}"}}'
    lines = f"      mcp_servers: [{given}]\n"
    team = TeamSpec.from_file(team_file(tmp_path, lines))
    stored = snapshot(team)
    assert stored is not None and TOKEN not in json.dumps(stored)
    again = TeamSpec.model_validate(stored).agents[0].backend.mcp_servers
    assert again == team.agents[0].backend.mcp_servers


@pytest.mark.parametrize(
    "keys, storable",
    [
        ({"env": {"A": "${A}", "BANNER": "false", "PORT": 8000, "E": ""}}, True),
        ({"headers": {"X": "Bearer ${A}"}, "authorization": "${A}"}, True),
        ({"env": {"A": TOKEN}}, False),
        ({"headers": {"X": TOKEN}}, False),
        ({"authorization": TOKEN}, False),
        ({"url": f"https://h/mcp?key={TOKEN}"}, False),
        ({"url": "https://h/mcp?key=${A}"}, True),
        ({"url": f"https://u:{TOKEN}@h/mcp"}, False),
        ({"url": "http://[::1"}, False),
    ],
)
def test_literal_token_is_never_stored(keys: dict[str, Any], storable: bool) -> None:
    it = server(**keys)
    assert is_storable(it) == storable
    agents = [{"id": "a", "backend": {"type": "demo", "mcp_servers": [it]}}]
    stored = snapshot(TeamSpec.model_validate({"agents": agents}))
    assert (stored is not None) == storable and TOKEN not in json.dumps(stored)
    if "url" not in keys:
        assert TOKEN not in repr(it)


# Functions of files


@pytest.mark.parametrize(
    "given, read",
    [
        ({"function": "f"}, [("f", "f", "")]),
        ({"function": ["f"], "name": ["n"], "description": ["d"]}, [("f", "n", "d")]),
        ({"function": ["f", "g"], "description": "d"}, [("f", "f", "d"), ("g", "g", "d")]),
        ({"function": ["f", "g"], "name": "n"}, [("f", "f", ""), ("g", "g", "")]),
    ],
)
def test_custom_functions_are_a_string_or_a_list(
    given: dict[str, Any], read: list[tuple[str, str, str]]
) -> None:
    (found,) = backend(custom_tools=[{"path": "t.py", **given}]).custom_tools
    assert list(found.functions) == [CustomFunction(*each) for each in read]


@pytest.mark.parametrize(
    "keys, told",
    [
        ("{path: t.py, func: f}", "function' is missing; did you write 'func' instead?"),
        ("{path: t.py, functoin: f}", "function' is missing; did you write 'functoin' instead?"),
        ("{path: t.py, function: f, nmae: n}", "did you mean 'name'?"),
    ],
)
def test_invalid_custom_tool_error_has_its_position(tmp_path: Path, keys: str, told: str) -> None:
    path = team_file(tmp_path, f"      custom_tools:\n        - {keys}\n")
    with pytest.raises(ConfigError, match=r"team\.yaml:6:") as caught:
        TeamSpec.from_file(path)
    assert told in str(caught.value)


# Commands and rules


def test_first_matching_rule_applies_and_default_is_allow() -> None:
    rules = [
        ToolRule(match="mcp__shop__list", action="allow"),
        ToolRule(match="mcp__shop__*", action="ask"),
        ToolRule(match="MCP__*", action="deny"),
    ]
    chosen = {name: rule_for(name, rules) for name in ("mcp__shop__list", "mcp__shop__buy")}
    assert list(chosen.values()) == rules[:2]
    assert rule_for("mcp__other__x", rules) is None  # patterns are case-sensitive
    assert rule_for("write_file", rules) is None
    everything = ToolRule(match="*", action="deny")
    assert rule_for("anything", [everything, *rules]) == everything


def test_denial_goes_to_the_model_by_default() -> None:
    assert ToolRule(match="*", action="ask").on_denial == "tell"
    with pytest.raises(ValueError, match="on_denial"):
        ToolRule.model_validate({"match": "*", "action": "ask", "on_denial": "explode"})


def test_rule_with_an_unknown_action_is_an_error(tmp_path: Path) -> None:
    lines = '      tool_policy: [{match: "mcp__*", action: alow}]\n'
    with pytest.raises(ConfigError, match="nearest: 'allow'"):
        TeamSpec.from_file(team_file(tmp_path, lines))


def test_only_unsupported_server_keys_are_ignored() -> None:
    keys = {
        "mcp_servers": [{"name": "s", "command": "x", "security": {"level": "high"}}],
        "enable_mcp_command_line": True,
        "data_store": True,
        "exclude_tools": ["x"],
        "tool_policy": [{"match": "*", "action": "ask"}],
        "custom_tools": [{"path": "t.py", "function": "f", "category": "math"}],
    }
    agents = [{"id": "a", "backend": {"type": "demo", **keys}}]
    ignored = TeamSpec.model_validate({"agents": agents}).ignored
    assert ignored == ("agents.backend.custom_tools.category",)


# Commands


@pytest.mark.parametrize("text, confined", [("off", False), ("false", False), ("on", True)])
def test_sandbox_can_be_turned_off_in_the_file(tmp_path: Path, text: str, confined: bool) -> None:
    team = TeamSpec.from_file(team_file(tmp_path, f"      sandbox: {text}\n"))
    assert team.agents[0].backend.sandbox is confined
    assert backend().sandbox


def test_command_limits_are_set_individually_and_survive_a_resume(tmp_path: Path) -> None:
    keys = "      limits: {processes: 20, memory_mb: 300}\n      pass_env: [PIP_INDEX_URL]\n"
    team = TeamSpec.from_file(team_file(tmp_path, keys))
    stored = json.loads(json.dumps(snapshot(team)))
    for spec in (team, TeamSpec.model_validate(stored)):
        keys_of = spec.agents[0].backend
        assert (keys_of.limits.processes, keys_of.limits.memory_mb) == (20, 300)
        assert keys_of.limits.open_files == CommandLimits().open_files
        assert keys_of.pass_env == ("PIP_INDEX_URL",)
        assert not spec.ignored


@pytest.mark.parametrize(
    "keys, told",
    [
        ("limits: {proceses: 20}", "Unknown key 'agents.0.backend.limits.proceses'; did you mean"),
        ("limits: {cpus: 2}", "agents.0.backend.limits.cpus: Extra inputs are not permitted."),
        ("limits: {memory_mb: 0}", "agents.0.backend.limits.memory_mb: Input should be greater"),
        ("sandbox: docker", "agents.0.backend.sandbox: Input should be a valid boolean"),
        (
            "pass_env: [A=s3cret-token]",
            "agents.0.backend.pass_env.0: it must be the name of an environment variable",
        ),
    ],
)
def test_unknown_or_invalid_limit_is_an_error(tmp_path: Path, keys: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TeamSpec.from_file(team_file(tmp_path, f"      {keys}\n"))
    assert told in str(refused.value) and TOKEN not in str(refused.value)
