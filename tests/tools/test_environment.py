"""The environment of processes: listed variables for agents, all but secrets for the user."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.process.environment import ORDINARY, agent_env, user_env
from tests.kit.processes import run_bash

# Agents' processes

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True) | st.sampled_from(sorted(ORDINARY))
VALUES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))


@given(set_=st.dictionaries(NAMES, VALUES), named=st.lists(NAMES), secret=VALUES)
def test_agent_process_gets_default_and_named_variables(
    set_: dict[str, str], named: list[str], secret: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", set_)
        env = agent_env({"MORE": "1"}, named, [secret])
    assert env.keys() <= ORDINARY | {*named, "MORE"}
    assert all(env[name] == set_[name] for name in named if name in set_)
    assert secret not in {v for name, v in env.items() if name not in {*named, "MORE"}}


@pytest.mark.parametrize(
    "name",
    ["DATABASE_URL", "JWT", "PIP_INDEX_URL", "HTTPS_PROXY", "https_proxy", "LC_MY_SECRET", "DSN"]
    + ["DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "OPENAI_API_KEY", "BASH_ENV", "JPY_PARENT_PID"],
)
def test_agent_process_gets_no_other_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in agent_env({})
    assert agent_env({}, [name])[name] == "x"


def test_unset_name_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    assert "NOT_SET" not in agent_env({}, ["NOT_SET"])


# The user's commands


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "NGC_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_TOKEN",
        "GITHUB_PAT",
        "HF_TOKEN",
        "CLIENT_SECRET",
        "PGPASSWORD",
        "MYSQL_PWD",
        "my_api_key",
        "OPENAI_APIKEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
async def test_keys_are_passed_only_to_commands_that_name_them(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "sk-1")
    script = f'echo "${{{name}-none}}"'
    assert (await run_bash(script, cwd=tmp_path, env=user_env({}))).output == "none\n"
    given = user_env({name: "named"})
    assert (await run_bash(script, cwd=tmp_path, env=given)).output == "named\n"


@pytest.mark.parametrize(
    "name", ["PATH", "PWD", "OLDPWD", "HOME", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD"]
)
def test_other_variables_are_inherited(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert user_env({"A": "1"})[name] == "x"
    assert user_env({"A": "1"})["A"] == "1"


def test_key_is_recognized_by_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_LLM", "sk-1")
    monkeypatch.setenv("EMPTY", "")
    env = user_env({}, secrets=["sk-1", ""])
    assert "MY_LLM" not in env and env["EMPTY"] == ""
