"""Tools in a team file: MassGen's servers are read, tokens stay variables, the first rule wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from nb_agents import ConfigError, TeamSpec
from nb_agents.config.backends import BackendSpec
from nb_agents.config.snapshot import snapshot
from nb_agents.config.tools import CustomFunction, McpServerSpec, ToolRule, is_storable, rule_for

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


def test_tools_are_taken_by_any_of_their_names() -> None:
    chosen = server(allowed_tools=["a", "mcp__s__b"], exclude_tools="c")
    assert chosen.takes("a", "mcp__s__a") and chosen.takes("b", "mcp__s__b")
    assert not chosen.takes("c", "mcp__s__c") and not chosen.takes("d")
    assert server().takes("anything") and not server(exclude_tools=["x"]).takes("x")


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


@pytest.mark.parametrize(
    "keys, runs, notices",
    [
        ({}, False, 0),
        ({"command_line_execution_mode": "docker"}, False, 0),
        ({"enable_mcp_command_line": True}, True, 0),
        ({"enable_mcp_command_line": True, "command_line_execution_mode": "docker"}, False, 1),
    ],
)
def test_commands_run_on_this_machine_or_not_at_all(
    keys: dict[str, Any], runs: bool, notices: int
) -> None:
    it = backend(**keys)
    assert (it.runs_commands, len(it.tool_notices)) == (runs, notices)


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
    assert ignored == (
        "agents.backend.mcp_servers.security",
        "agents.backend.custom_tools.category",
    )
