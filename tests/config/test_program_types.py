"""External agents: their command lines, environment and files, and why they can't be started."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nb_agents import TeamSpec
from nb_agents.extensions.external_agents import program_types
from nb_agents.extensions.external_agents.program_types import ACP_TYPES, PROGRAM_TYPES, start_fault
from tests.kit.models import BackendSpec, start_errors
from tests.kit.programs import prepare
from tests.kit.secrets import snapshot
from tests.kit.tools import ToolError

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
def test_external_agents_key_is_only_in_its_environment(
    tmp_path: Path, kind: str, url: str | None
) -> None:
    given = prepare(backend(kind, base_url=url), KEY, tmp_path / "home")
    assert (given.env["HOME"], given.writable) == (str(tmp_path / "home"), (tmp_path / "home",))
    assert (KEY in given.env.values()) == (kind != "acp")
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in written if KEY in text]


HOME = "session/programs/ada"
SETTINGS = {
    "codex": ".codex/config.toml",
    "gemini_cli": ".gemini/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "qwen_code": ".qwen/settings.json",
}


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def link_inside(path: Path, outside: Path) -> None:
    path.with_name("other").mkdir()
    path.symlink_to("other")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def file(path: Path, outside: Path) -> None:
    path.write_text("no directory")


PLANTS = [
    *((kind, f"{HOME}/{name}", plant) for kind, name in SETTINGS.items() for plant in (link, pipe)),
    *(
        ("codex", place, plant)
        for place in (f"{HOME}/.codex", HOME, "session/programs")
        for plant in (link, link_inside, pipe, file)
    ),
]


@pytest.mark.parametrize(
    ("kind", "place", "plant"), [pytest.param(*p, id=f"{p[1]}-{p[2].__name__}") for p in PLANTS]
)
def test_settings_are_not_written_through_an_agents_symlinks(
    tmp_path: Path, kind: str, place: str, plant: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside"
    is_file = place.endswith(SETTINGS[kind])
    outside.write_text("mine") if is_file else outside.mkdir()
    (tmp_path / place).parent.mkdir(parents=True)
    plant(tmp_path / place, outside)
    with pytest.raises(ToolError) as caught:
        prepare(backend(kind), KEY, tmp_path / HOME)
    assert str(tmp_path / HOME) in str(caught.value)
    assert outside.read_text() == "mine" if is_file else not [*outside.iterdir()]
    assert not [*tmp_path.glob("session/**/other/*")]


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_settings_are_written_again_at_each_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / HOME / SETTINGS[kind]
    (tmp_path / "session").mkdir()
    prepare(backend(kind), KEY, tmp_path / HOME)
    first = path.read_text()
    path.write_text("changed by the agent")
    prepare(backend(kind), KEY, tmp_path / HOME)
    assert path.read_text() == first
    assert stat.S_IMODE((tmp_path / HOME).stat().st_mode) == 0o700


@pytest.mark.parametrize("word", ["x" * 5_000, "a\0b"])
def test_argument_that_is_no_file_name_is_unchanged(word: str) -> None:
    assert backend("acp", args=[word]).args == (word,)


@pytest.mark.parametrize("kind", sorted(PROGRAM_TYPES))
def test_user_settings_are_used_on_request_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / PROGRAM_TYPES[kind].settings[0]).mkdir(parents=True)
    given = prepare(backend(kind, use_my_settings=True), "", tmp_path / "home")
    assert given.env["HOME"] == str(tmp_path)
    assert given.writable == (tmp_path / PROGRAM_TYPES[kind].settings[0],)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", sorted(PROGRAM_TYPES))
def test_missing_program_message_has_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    known = PROGRAM_TYPES[kind]
    told = start_fault(kind, backend(kind))
    assert told == f"{known.command[0]!r} is not installed. Install it: {known.install}."


def test_too_old_node_is_reported_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    install(tmp_path, "qwen", "#!/usr/bin/env node\n")
    install(tmp_path, "node", "#!/bin/sh\necho v20.11.0\n")
    told = start_fault("qwen_code", backend("qwen_code"))
    assert told.startswith("'qwen' needs Node 22 or later, but Node is version 20. Install a ")


def test_missing_acp_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "Install it: `pip install 'nb_agents[acp]'`."
    monkeypatch.setattr(program_types, "missing_extra", lambda extra: remedy)
    assert start_fault("acp", backend("acp")) == f"External agents need a library. {remedy}"


def test_external_agent_without_a_key_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    install(tmp_path, "claude-agent-acp", "#!/bin/sh\n")
    spec = TeamSpec.model_validate({"agent": {"backend": {"type": "claude_code"}}})
    [told] = map(str, start_errors(spec))
    assert "ANTHROPIC_API_KEY is not set" in told
    mine = {"type": "claude_code", "use_my_settings": True}
    assert [*start_errors(TeamSpec.model_validate({"agent": {"backend": mine}}))] == []


def test_team_with_a_literal_variable_is_not_journalled() -> None:
    def kept(value: str) -> Any:
        keys = {"type": "acp", "command": "true", "env": {"TOKEN": value}}
        return snapshot(TeamSpec.model_validate({"agent": {"backend": keys}}))

    assert kept(KEY) is None
    assert kept("${TOKEN}")["agents"][0]["backend"]["env"] == {"TOKEN": "${TOKEN}"}
