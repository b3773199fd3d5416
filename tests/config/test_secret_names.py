from __future__ import annotations

import secrets
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from nb_agents.config.secret_names import (
    MIN_SECRET_CHARS,
    is_distinctive,
    is_existing_path,
    is_secret_name,
)
from nb_agents.events import KINDS
from tests.kit.models import BACKEND_TYPES


@pytest.mark.parametrize(
    "name", sorted({name for row in BACKEND_TYPES.values() for name in row.variables})
)
def test_api_key_variables_are_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["OPENAI_APIKEY", "AWS_ACCESS_KEY_ID", "GITHUB_PAT", "MYSQL_PWD", "DB_PASS", "JWT", "my_jwt"],
)
def test_password_and_token_variables_are_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["PATH", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "COMPASS", "BYPASSED"]
)
def test_other_variables_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value",
    [
        "sk-test-0123456789abcdef0123456789abcdef",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOHcbrzqgy",
        "550e8400-e29b-41d4-a716-446655440000",
        "JBSWY3DPEHPK3PXP",
        "abcdefghijklmnop",
        "correcthorsebatterystaple",
        "Tr0ub4dor&3xy",
        "s3cret-token",
        "1234-5678-9012-3456",
        "пароль-очень-секретный",
    ],
)
def test_keys_are_distinctive(value: str) -> None:
    assert is_distinctive(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "k",
        "none",
        "lm-studio",
        "sk-12345678",
        "no-key-needed",
        "not-needed-here",
        "noKeyNeededHere",
        "password12345",
        "research_assistant",
        "correct horse battery staple",
        "https://auth.example.com/oauth2/token",
        "/home/ann/.config/tokens.json",
        "localhost:8888/v1",
        "production-eu-west-1",
        "x" * 40,
        "-" * 40,
        "************ab",
    ],
)
def test_words_and_short_values_are_not_distinctive(value: str) -> None:
    assert not is_distinctive(value)


def test_random_keys_are_distinctive() -> None:
    shapes = (lambda: secrets.token_hex(16), lambda: f"sk-{secrets.token_urlsafe(24)}")
    assert all(is_distinctive(shape()) for shape in shapes for _ in range(500))


def test_event_names_are_not_distinctive() -> None:
    words = {
        word
        for kind in KINDS.values()
        for hint in get_type_hints(kind).values()
        for word in get_args(hint)
        if isinstance(word, str)
    }
    assert {"model_finished", "coordinating", "never started"} <= words
    assert [word for word in words if is_distinctive(word)] == []


def test_existing_path_is_a_place(tmp_path: Path) -> None:
    assert is_existing_path(str(tmp_path)) and not is_existing_path(str(tmp_path / "none"))
    assert (
        not is_existing_path("")
        and not is_existing_path("/\0")
        and not is_existing_path(tmp_path.name)
    )


def test_minimum_length_of_a_key() -> None:
    key = "a1B2c3D4e5F6"
    assert len(key) == MIN_SECRET_CHARS
    assert is_distinctive(key) and not is_distinctive(key[1:])
