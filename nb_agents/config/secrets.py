"""Finds the secret values of a team, and returns the team without them for the journal.

Secrets are API keys, headers, values in a request's body with a secret-looking name, values passed
to tool servers, and environment variables with a secret-looking name. A resume reads the team from
the journal and does not need the file. `nb_agents.masking` removes the secrets from text.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from nb_agents.config.backends import BACKEND_TYPES, BackendSpec
from nb_agents.config.document import VARIABLE, Keys, expand
from nb_agents.config.massgen_keys import own_foreign_keys
from nb_agents.config.mcp_servers import (
    McpServerSpec,
    is_reference_or_harmless,
    is_storable,
)
from nb_agents.config.secret_names import is_secret_name
from nb_agents.config.team import TeamSpec

API_KEY_NAMES = ("api_key", "authorization", "x-api-key", "x-goog-api-key")
"""Names of a model's key in files, SDKs and requests."""

# "--token=x", "TOKEN=x", and "Authorization: x" as the value of an option.
_ASSIGNED = re.compile(r"-{0,2}([A-Za-z][\w-]*)(?:=|: *)(.+)", re.DOTALL)
_OPTION = re.compile(r"-{1,2}([A-Za-z][\w-]*)")
_WITH_SCHEME = re.compile(r"([A-Za-z]+) +(\S+)")

_LEFT_OUT = {"api_key", "instance"}


@dataclass(frozen=True)
class Secret:
    """A value that must not be written down.

    Attributes:
        names: The names of its variable, header or key.
    """

    value: str = field(repr=False)
    names: tuple[str, ...] = ()


def secrets_of_environment() -> list[Secret]:
    """Return environment variables with secret-looking names, and passwords in URLs."""
    keys = {name for row in BACKEND_TYPES.all().values() for name in row.variables}
    secrets = []
    for name, value in os.environ.items():
        if is_secret_name(name):
            secrets.append(Secret(value, (name, *API_KEY_NAMES) if name in keys else (name,)))
        secrets += _of_address(value)
    return secrets


def secrets_of_team(team: TeamSpec) -> list[Secret]:
    """Return the secrets of a team's members and callable agents.

    These are API keys, headers, passwords in URLs, and secrets of tool servers.
    """
    return [secret for agent in team.everyone for secret in _of_backend(agent.backend)]


def _of_backend(backend: BackendSpec) -> Iterator[Secret]:
    if backend.api_key is not None:
        yield Secret(backend.api_key.get_secret_value(), API_KEY_NAMES)
    yield from _of_address(backend.base_url or "")
    for name, value in (backend.extra_headers or {}).items():
        yield from _of_header(name, expand(value.get_secret_value()))
    for name, text in _secrets_within(backend.extra_body):
        yield from _of_header(name, expand(text))
    for name, value in backend.env.items():
        yield Secret(expand(value.get_secret_value()), (name,))
    for server in backend.mcp_servers:
        yield from secrets_of_server(server)


def secrets_of_server(server: McpServerSpec, *, named: bool = False) -> Iterator[Secret]:
    """Yield the secret values that a tool server gets, with ``${VAR}`` expanded.

    These are the values of its variables and headers, of each ``${VAR}`` in its command, and of
    arguments and URL parameters with a secret-looking name.

    Args:
        server: The server's spec.
        named: Whether to leave out variables whose name does not suggest a secret. A model may need
            such a value, for example the name of a database.
    """
    for name, value in server.env.items():
        if not named or is_secret_name(name):
            yield Secret(expand(value.get_secret_value()), (name,))
    for name, value in server.headers.items():
        yield from _of_header(name, expand(value.get_secret_value()))
    if server.authorization is not None:
        yield from _of_header("Authorization", expand(server.authorization.get_secret_value()))
    words = (*server.command, *server.args)
    for name in VARIABLE.findall(" ".join((*words, server.url))):
        if not named or is_secret_name(name):
            yield Secret(os.environ.get(name, ""), (name,))
    for name, argument in _secret_arguments(words):
        yield from _of_header(name, expand(argument))
    for word in (*words, server.url):
        yield from _of_address(expand(word))


def has_secret_argument(server: McpServerSpec) -> bool:
    """Return whether a server's command contains a literal secret instead of a ``${VAR}``."""
    words = (*server.command, *server.args)
    has_literal = any(not VARIABLE.search(value) for _, value in _secret_arguments(words))
    return has_literal or any(_of_address(word) for word in words if not VARIABLE.search(word))


def _secret_arguments(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for a command's options and assignments with a secret-looking name."""
    option = ""
    for word in words:
        if option and not word.startswith("-"):
            yield option, word
        option = ""
        if match := _ASSIGNED.fullmatch(word):
            if _is_secret(match[1]):
                yield match[1], match[2]
        elif (match := _OPTION.fullmatch(word)) and _is_secret(match[1]):
            option = match[1]


def _secrets_within(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the strings in a nested value with a secret-looking name."""
    if isinstance(value, str) and _is_secret(name):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _secrets_within(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _secrets_within(each, name)


def _is_secret(name: str) -> bool:
    return is_secret_name(name.replace("-", "_"))


def _of_header(name: str, value: str) -> Iterator[Secret]:
    yield Secret(value, (name,))
    if match := _WITH_SCHEME.fullmatch(value):
        scheme, credentials = match.groups()
        yield Secret(credentials, (name,))
        if scheme.lower() == "basic":
            yield from _of_basic(credentials)


def _of_basic(credentials: str) -> Iterator[Secret]:
    """Yield the password in credentials of HTTP basic authentication (RFC 7617)."""
    try:
        user, _, password = base64.b64decode(credentials).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return
    yield Secret(password, ("password", user) if user else ("password",))


def _of_address(text: str) -> list[Secret]:
    """Return a URL's secret parameters, and its password as text and as basic authentication."""
    if ":" not in text:  # a fast exit, because this runs for each environment variable
        return []
    try:
        url = urlsplit(text)
        user, password = unquote(url.username or ""), unquote(url.password or "")
        query = parse_qsl(url.query) if url.scheme else []
    except ValueError:  # a malformed IPv6 address
        return []
    if not url.scheme or not url.netloc:
        return []
    secrets = [Secret(value, (name,)) for name, value in query if _is_secret(name)]
    if password:
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        secrets += [Secret(password, ("password", user or "password")), Secret(basic)]
    elif user:  # a token, as in https://TOKEN@host
        secrets.append(Secret(user))
    return secrets


def snapshot(team: TeamSpec) -> dict[str, Any] | None:
    """Return a team without secrets as plain data for the journal, or None if that is impossible.

    `TeamSpec.model_validate` accepts the data. Unknown keys are left out, because they may contain
    a token. A key that withholds a tool is still recorded as withholding it. API keys are left out.
    A resume reads them from the providers' environment variables.

    The result is None for an agent that is an object without an importable name, for a ``base_url``
    with a password, and for a header or tool server with a literal token instead of a ``${VAR}``.
    """
    for agent in team.everyone:
        url = urlsplit(agent.backend.base_url or "")
        is_unnamed = agent.backend.type == "python" and agent.backend.object is None
        if is_unnamed or url.username or url.password:
            return None
        if not _has_only_references(agent.backend):
            return None
        for server in agent.backend.mcp_servers:
            if has_secret_argument(server) or not is_storable(server):
                return None
    data: dict[str, Any] = _plain(team)
    return data


def _has_only_references(backend: BackendSpec) -> bool:
    secrets = (*(backend.extra_headers or {}).values(), *backend.env.values())
    values = (each.get_secret_value() for each in secrets)
    in_body = (text for _, text in _secrets_within(backend.extra_body))
    return all(map(is_reference_or_harmless, (*values, *in_body)))


def _plain(value: Any, path: Keys = ()) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _plain(field, (*path, name))
            for name in type(value).model_fields
            if name not in _LEFT_OUT and (field := getattr(value, name)) is not None
        } | _restrictions(value, path)
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, SecretStr):  # a reference or harmless; others are in `_LEFT_OUT`
        return value.get_secret_value()
    items = value if isinstance(value, tuple | list) else None
    return value if items is None else [_plain(v, (*path, "*")) for v in items]


def _restrictions(spec: BaseModel, path: Keys) -> dict[str, bool]:
    """Return the keys that withhold a tool, with booleans instead of their values."""
    return {
        foreign_key.key: foreign_key.value is not False
        for foreign_key in own_foreign_keys(spec, path)
        if foreign_key.sort == "withheld" and foreign_key.path[:-1] == path
    }
