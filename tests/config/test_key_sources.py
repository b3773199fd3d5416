"""API keys from the ``env_file`` or ``keyring`` of a team."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import NoKeyringError

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.config.key_sources import read_variables
from nb_agents.errors import ConfigError, MissingKeyError
from tests.canaries import KEY, found_on_disk
from tests.kit.models import find_key
from tests.kit.secrets import snapshot
from tests.model_server import ModelServer, Reply
from tests.team_kit import finish

VARIABLE = "OPENAI_API_KEY"
OPENAI = "{type: openai, model: gpt-5-mini}"


class Passwords(KeyringBackend):
    """A system keyring with entries."""

    priority = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.is_locked:
            raise NoKeyringError(KEY)
        return self.known.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.known[service, username] = password


@pytest.fixture
def passwords() -> Iterator[Passwords]:
    before, made = keyring.get_keyring(), Passwords()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def team(folder: Path, keys: str = "env_file: .env", backend: str = OPENAI) -> TeamSpec:
    path = folder / "team.yaml"
    path.write_text(f"agents:\n  - {{id: a, backend: {backend}}}\n{keys}\n")
    return TeamSpec.from_file(path)


def key_of(found: TeamSpec) -> str:
    return find_key(found.agents[0]).value


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"{VARIABLE}=sk-1", "sk-1"),
        (f"export {VARIABLE} = sk-1", "sk-1"),
        (f"{VARIABLE}='sk 1'  # mine", "sk 1"),
        (f'{VARIABLE}="sk#1"', "sk#1"),
        (f"{VARIABLE}=sk#1 # mine", "sk#1"),
        (f"{VARIABLE}=$(touch owned)`touch owned`${{HOME}}", "$(touch owned)`touch owned`${HOME}"),
        (f"\ufeff{VARIABLE}=sk-1\r\nOTHER=2\r", "sk-1"),
        (f"# {VARIABLE}=old\n\nno line\n{VARIABLE}=sk-1", "sk-1"),
        (f"{VARIABLE}=old\n{VARIABLE}=sk-1", "sk-1"),
    ],
)
def test_env_file_is_parsed_and_not_evaluated(tmp_path: Path, line: str, value: str) -> None:
    path = tmp_path / ".env"
    path.write_bytes(line.encode())
    assert read_variables(str(path))[VARIABLE] == value
    assert [each.name for each in tmp_path.iterdir()] == [".env"]


def test_key_comes_from_the_env_file_next_to_the_team_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(f"{VARIABLE}={KEY}\nHTTPS_PROXY=http://elsewhere\n")
    assert key_of(team(tmp_path)) == KEY
    assert VARIABLE not in os.environ and os.environ.get("HTTPS_PROXY") != "http://elsewhere"
    monkeypatch.setenv(VARIABLE, "the environment's")
    assert key_of(team(tmp_path)) == "the environment's"


def test_env_file_resolves_a_named_variable_and_own_server_gets_no_key(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").write_text(f"{VARIABLE}={KEY}\nHOUSE_KEY=house\n")
    url = 'base_url: "http://localhost:1/v1"'
    named = f'{{type: openai, model: m, {url}, api_key: "${{HOUSE_KEY}}"}}'
    assert key_of(team(tmp_path, backend=named)) == "house"
    assert key_of(team(tmp_path, backend=f"{{type: openai, model: m, {url}}}")) == "no-key-needed"


def test_key_comes_from_the_keyring_last(tmp_path: Path, passwords: Passwords) -> None:
    passwords.set_password("house", VARIABLE, KEY)
    assert key_of(team(tmp_path, "keyring: house")) == KEY
    (tmp_path / ".env").write_text(f"{VARIABLE}=of the file\n")
    assert key_of(team(tmp_path, "keyring: house\nenv_file: .env")) == "of the file"
    with pytest.raises(MissingKeyError):
        key_of(team(tmp_path, "keyring: another"))


def test_keyring_is_not_read_for_an_existing_key(
    tmp_path: Path, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords.is_locked = True
    monkeypatch.setenv(VARIABLE, "k")
    assert key_of(team(tmp_path, "keyring: house\nenv_file: missing.env")) == "k"


def test_locked_or_missing_keyring_is_a_clear_error(
    tmp_path: Path, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords.is_locked = True
    with pytest.raises(ConfigError, match="can't be read for OPENAI_API_KEY of 'house'") as told:
        team(tmp_path, "keyring: house")
    assert KEY not in str(told.value)
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match=r"pip install 'nb_agents\[keyring\]'"):
        team(tmp_path, "keyring: house")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Not a file"),
        (lambda path: path.write_bytes(b"A=" + b"x" * 2_000_001), "Larger than"),
        (lambda path: path.write_bytes(f"{VARIABLE}={KEY}\xff".encode("latin-1")), "Not UTF-8"),
    ],
)
def test_unreadable_env_file_error_does_not_reveal_its_content(
    tmp_path: Path, made: Callable[[Path], object], said: str
) -> None:
    made(tmp_path / ".env")
    with pytest.raises(ConfigError, match=said) as told:
        team(tmp_path)
    assert ".env" in str(told.value) and KEY not in str(told.value)


def test_env_file_key_reaches_only_its_server(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"HOUSE_KEY={KEY}\n")
    with ModelServer(Reply(f"The key is {KEY}, they say.")) as server:
        url = f'base_url: "{server.url}", api_key: "${{HOUSE_KEY}}"'
        found = team(tmp_path, backend=f"{{type: openai, model: m, {url}}}")
        root = tmp_path / "sessions"
        run = finish(nb_agents.start("Why?", found, options=RunOptions(session_root=root)))
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert run.result == "The key is [key], they say."
    assert list(found_on_disk(root)) == []


def test_journal_has_the_keys_source_but_not_the_key(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"{VARIABLE}={KEY}\n")
    kept = snapshot(team(tmp_path))
    assert kept is not None and KEY not in str(kept)
    assert key_of(TeamSpec.model_validate(kept)) == KEY


def test_missing_key_message_suggests_sources_outside_the_notebook() -> None:
    told = str(MissingKeyError("a", VARIABLE, "openai"))
    for way in ("before Jupyter starts", "env_file: .env", "keyring: nb_agents", "getpass()"):
        assert way in told
    assert "%env" not in told
