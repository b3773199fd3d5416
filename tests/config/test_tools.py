"""Tools in a team file: MassGen's servers are read, tokens stay variables, the first rule wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from nb_agents import TeamSpec
from nb_agents.config.backends import BackendSpec
from nb_agents.config.mcp_servers import McpServerSpec, is_storable
from nb_agents.config.permissions import CommandLimits
from nb_agents.config.secrets import snapshot
from nb_agents.config.tools import CustomFunction, ToolRule, rule_for
from nb_agents.errors import ConfigError

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


def test_an_address_alone_is_a_streamable_http_server() -> None:
    assert McpServerSpec.model_validate({"name": "s", "url": "http://h/mcp"}).type != "stdio"


def test_values_that_yaml_made_of_texts_are_texts_again() -> None:
    env = server(env={"PORT": 80, "ON": True}, args=["-n", 3]).env
    assert {name: value.get_secret_value() for name, value in env.items()} == {
        "PORT": "80",
        "ON": "true",
    }


@pytest.mark.parametrize(
    "keys, told",
    [
        ("{name: s, type: stdio}", "needs a `command`"),
        ("{name: s, type: streamable-http}", "needs a `url`"),
        ('{name: s, command: "a \'b"}', "a quote is open"),
        ("{name: s, type: sse, url: x}", "'stdio' or 'streamable-http'"),
        ("{command: x}", "'agents.0.backend.mcp_servers.0.name' is missing"),
    ],
)
def test_a_faulty_server_is_told_with_its_place(tmp_path: Path, keys: str, told: str) -> None:
    path = team_file(tmp_path, f"      mcp_servers:\n        - {keys}\n")
    with pytest.raises(ConfigError, match=r"team\.yaml:6:") as caught:
        TeamSpec.from_file(path)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "level, told",
    [
        ({}, "allows no program 'docker'"),
        ({"level": "high"}, "allows no program 'docker'"),
        ({"level": "permissive"}, ""),
        ({"allowed_executables": ["docker"]}, ""),
        ({"level": "permissive", "env": {"denied_vars": ["a"]}}, "denies the variable 'A'"),
        ({"level": "permissive", "env": {"mode": "allowlist", "allowed_vars": "B"}}, "no variable"),
        ({"level": "permissive", "resolve_dns": True}, "`security.resolve_dns` can't be kept"),
        ({"level": "permissive", "signed_only": 1}, "`security.signed_only` can't be kept"),
    ],
)
def test_a_server_is_what_its_security_allows(level: dict[str, Any], told: str) -> None:
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
def test_a_server_lives_where_its_security_allows(
    url: str, security: dict[str, Any], is_allowed: bool
) -> None:
    found = McpServerSpec.model_validate({"name": "s", "url": url, "security": security})
    assert (found.fault == "") == is_allowed


@pytest.mark.parametrize("keys", [{"disabled": True}, {"enabled": False}, {"read_only_mode": 1}])
def test_a_server_with_a_restriction_that_nobody_keeps_is_left_out(keys: dict[str, Any]) -> None:
    assert "can't be kept here" in server(**keys).fault
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
        # MassGen's names for what ours do.
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
def test_tools_are_given_by_any_of_their_names(
    keys: dict[str, Any], names: list[str], is_taken: bool
) -> None:
    assert backend(**keys).takes(*names) is is_taken


def test_a_servers_list_goes_before_the_agents_and_both_leave_out() -> None:
    shop = server(allowed_tools=["a", "mcp__s__b"], exclude_tools="c")
    agent = backend(allowed_tools=["z"], exclude_tools=["a"])
    assert agent.takes("b", "mcp__s__b", server=shop)
    for name in "acd":
        assert not agent.takes(name, f"mcp__s__{name}", server=shop)
    assert agent.takes("z", "mcp__t__z", server=server()) and not agent.takes("y", server=server())


# Secrets


def test_a_servers_variables_stay_variables_when_a_file_is_read(
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
def test_a_token_that_is_written_out_is_never_stored(keys: dict[str, Any], storable: bool) -> None:
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
def test_functions_of_files_are_named_by_a_text_or_a_list(
    given: dict[str, Any], read: list[tuple[str, str, str]]
) -> None:
    (found,) = backend(custom_tools=[{"path": "t.py", **given}]).custom_tools
    assert list(found.functions) == [CustomFunction(*each) for each in read]


@pytest.mark.parametrize(
    "keys, told",
    [
        ("{path: t.py, func: f}", "function' is missing; is 'func' meant for it?"),
        ("{path: t.py, functoin: f}", "function' is missing; is 'functoin' meant for it?"),
        ("{path: t.py, function: f, nmae: n}", "did you mean 'name'?"),
    ],
)
def test_a_faulty_custom_tool_is_told_with_its_place(tmp_path: Path, keys: str, told: str) -> None:
    path = team_file(tmp_path, f"      custom_tools:\n        - {keys}\n")
    with pytest.raises(ConfigError, match=r"team\.yaml:6:") as caught:
        TeamSpec.from_file(path)
    assert told in str(caught.value)


# Commands and rules


def test_the_first_rule_that_fits_decides_and_without_one_a_call_is_allowed() -> None:
    rules = [
        ToolRule(match="mcp__shop__list", action="allow"),
        ToolRule(match="mcp__shop__*", action="ask"),
        ToolRule(match="MCP__*", action="deny"),
    ]
    chosen = {name: rule_for(name, rules) for name in ("mcp__shop__list", "mcp__shop__buy")}
    assert list(chosen.values()) == rules[:2]
    assert rule_for("mcp__other__x", rules) is None  # patterns heed case, as names do
    assert rule_for("write_file", rules) is None
    everything = ToolRule(match="*", action="deny")
    assert rule_for("anything", [everything, *rules]) == everything


def test_a_denial_is_told_to_the_model_unless_the_file_says_that_it_stops() -> None:
    assert ToolRule(match="*", action="ask").on_denial == "tell"
    with pytest.raises(ValueError, match="on_denial"):
        ToolRule.model_validate({"match": "*", "action": "ask", "on_denial": "explode"})


def test_a_rule_with_an_unknown_action_is_refused(tmp_path: Path) -> None:
    lines = '      tool_policy: [{match: "mcp__*", action: alow}]\n'
    with pytest.raises(ConfigError, match="nearest: 'allow'"):
        TeamSpec.from_file(team_file(tmp_path, lines))


def test_keys_that_are_honoured_are_not_ignored_and_a_servers_own_others_are() -> None:
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
def test_a_person_turns_the_sandbox_off_in_the_file(
    tmp_path: Path, text: str, confined: bool
) -> None:
    team = TeamSpec.from_file(team_file(tmp_path, f"      sandbox: {text}\n"))
    assert team.agents[0].backend.sandbox is confined
    assert backend().sandbox


def test_limits_of_commands_are_set_one_by_one_and_kept_for_a_resume(tmp_path: Path) -> None:
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
        ("pass_env: [A=s3cret-token]", "agents.0.backend.pass_env.0: it must be a variable's name"),
    ],
)
def test_a_limit_that_would_not_hold_is_refused(tmp_path: Path, keys: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TeamSpec.from_file(team_file(tmp_path, f"      {keys}\n"))
    assert told in str(refused.value) and TOKEN not in str(refused.value)
