"""Programs that are agents: what starts each, what it is given, and why it can't be started."""

from pathlib import Path
from typing import Any

import pytest

from nb_agents import TeamSpec
from nb_agents.agents.acp.agent_programs import prepare
from nb_agents.config import programs
from nb_agents.config.backends import BackendSpec
from nb_agents.config.programs import ACP_TYPES, PROGRAM_TYPES, why_not_startable
from nb_agents.config.secrets import snapshot
from nb_agents.models.providers import refusals

KEY = "sk-canary-0123456789"


def backend(kind: str, **keys: Any) -> BackendSpec:
    given = {"command": "true"} if kind == "acp" else {}
    return BackendSpec.model_validate({"type": kind, "model": "m", **given, **keys})


def install(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("kind", sorted(ACP_TYPES))
@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1/v1"])
def test_a_programs_key_is_in_its_environment_and_in_no_file(
    tmp_path: Path, kind: str, url: str | None
) -> None:
    given = prepare(backend(kind, base_url=url), KEY, tmp_path / "home")
    assert (given.env["HOME"], given.writable) == (str(tmp_path / "home"), (tmp_path / "home",))
    assert (KEY in given.env.values()) == (kind != "acp")
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in written if KEY in text]


@pytest.mark.parametrize("kind", sorted(PROGRAM_TYPES))
def test_your_own_settings_are_used_where_you_say_so_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / PROGRAM_TYPES[kind].settings[0]).mkdir(parents=True)
    given = prepare(backend(kind, use_my_settings=True), "", tmp_path / "home")
    assert given.env["HOME"] == str(tmp_path)
    assert given.writable == (tmp_path / PROGRAM_TYPES[kind].settings[0],)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", sorted(PROGRAM_TYPES))
def test_a_program_that_is_missing_is_told_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    known = PROGRAM_TYPES[kind]
    told = why_not_startable(kind, backend(kind))
    assert told == f"{known.command[0]!r} is not installed. Install it: {known.install}."


def test_a_node_that_is_too_old_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    install(tmp_path, "qwen", "#!/usr/bin/env node\n")
    install(tmp_path, "node", "#!/bin/sh\necho v20.11.0\n")
    told = why_not_startable("qwen_code", backend("qwen_code"))
    assert told.startswith("'qwen' needs Node 22 or later, and Node is version 20 here. Install a ")


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    assert why_not_startable("acp", backend("acp")) == programs.NO_LIBRARY


def test_a_program_without_a_key_is_told_which_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    install(tmp_path, "claude-agent-acp", "#!/bin/sh\n")
    spec = TeamSpec.model_validate({"agent": {"backend": {"type": "claude_code"}}})
    [told] = map(str, refusals(spec))
    assert "ANTHROPIC_API_KEY is not set" in told
    mine = {"type": "claude_code", "use_my_settings": True}
    assert [*refusals(TeamSpec.model_validate({"agent": {"backend": mine}}))] == []


def test_a_variable_that_is_written_out_keeps_a_team_out_of_the_journal() -> None:
    def kept(value: str) -> Any:
        keys = {"type": "acp", "command": "true", "env": {"TOKEN": value}}
        return snapshot(TeamSpec.model_validate({"agent": {"backend": keys}}))

    assert kept(KEY) is None
    assert kept("${TOKEN}")["agents"][0]["backend"]["env"] == {"TOKEN": "${TOKEN}"}
