"""Which values of a team are secret, and the team without them, as a journal may hold it.

Secret are keys, headers, what a request's body calls so, what tool servers are given, and
variables with a secret's name; the team in the journal lets a resume do without the file.
`nb_agents.masking` takes them out of texts.
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
"""What a model's key is called in a file, by the SDKs, and in requests."""

# "--token=x", "TOKEN=x", and "Authorization: x" as the value of an option.
_ASSIGNED = re.compile(r"-{0,2}([A-Za-z][\w-]*)(?:=|: *)(.+)", re.DOTALL)
_OPTION = re.compile(r"-{1,2}([A-Za-z][\w-]*)")
_WITH_SCHEME = re.compile(r"([A-Za-z]+) +(\S+)")

_LEFT_OUT = {"api_key", "instance"}


@dataclass(frozen=True)
class Secret:
    """A value that must not be written down.

    Attributes:
        value: The value.
        names: What it is called where it came from: its variable, header or key.
    """

    value: str = field(repr=False)
    names: tuple[str, ...] = ()


def secrets_of_environment() -> list[Secret]:
    """Collect this process's: its variables with a secret's name, and passwords in addresses."""
    keys = {name for row in BACKEND_TYPES.values() for name in row.variables}
    found = []
    for name, value in os.environ.items():
        if is_secret_name(name):
            found.append(Secret(value, (name, *API_KEY_NAMES) if name in keys else (name,)))
        found += _of_address(value)
    return found


def secrets_of_team(team: TeamSpec) -> list[Secret]:
    """Collect a team's: keys, passwords in addresses, and what its tool servers are given.

    Args:
        team: The team; those that it may call and its recipes' agents count, too.
    """
    return [secret for agent in team.everyone for secret in _of_backend(agent.backend)]


def _of_backend(backend: BackendSpec) -> Iterator[Secret]:
    if backend.api_key is not None:
        yield Secret(backend.api_key.get_secret_value(), API_KEY_NAMES)
    yield from _of_address(backend.base_url or "")
    for name, given in (backend.extra_headers or {}).items():
        yield from _of_header(name, expand(given.get_secret_value()))
    for name, text in _secrets_within(backend.extra_body):
        yield from _of_header(name, expand(text))
    for name, given in backend.env.items():
        yield Secret(expand(given.get_secret_value()), (name,))
    for server in backend.mcp_servers:
        yield from secrets_of_server(server)


def secrets_of_server(server: McpServerSpec, *, named: bool = False) -> Iterator[Secret]:
    """Collect what a tool server is told in confidence.

    That is the value of each of its variables and headers, of each ``${VAR}`` in its command, and
    of arguments and parts of its address that are called a secret.

    Args:
        server: Its spec; variables of the environment are filled in.
        named: Whether to leave out variables that are not called a secret: a model must be told
            the name of a database, but it is not written down.
    """
    for name, given in server.env.items():
        if not named or is_secret_name(name):
            yield Secret(expand(given.get_secret_value()), (name,))
    for name, given in server.headers.items():
        yield from _of_header(name, expand(given.get_secret_value()))
    if server.authorization is not None:
        yield from _of_header("Authorization", expand(server.authorization.get_secret_value()))
    words = (*server.command, *server.args)
    for name in VARIABLE.findall(" ".join((*words, server.url))):
        if not named or is_secret_name(name):
            yield Secret(os.environ.get(name, ""), (name,))
    for name, value in _secret_arguments(words):
        yield from _of_header(name, expand(value))
    for word in (*words, server.url):
        yield from _of_address(expand(word))


def has_secret_argument(server: McpServerSpec) -> bool:
    """Return whether a server's command has a secret written out, where a ``${VAR}`` could stand.

    Args:
        server: Its spec.
    """
    words = (*server.command, *server.args)
    written = any(not VARIABLE.search(value) for _, value in _secret_arguments(words))
    return written or any(_of_address(word) for word in words if not VARIABLE.search(word))


def _secret_arguments(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a command that are named as secrets, with their names."""
    option = ""
    for word in words:
        if option and not word.startswith("-"):
            yield option, word
        option = ""
        if found := _ASSIGNED.fullmatch(word):
            if _is_secret(found[1]):
                yield found[1], found[2]
        elif (found := _OPTION.fullmatch(word)) and _is_secret(found[1]):
            option = found[1]


def _secrets_within(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in a nested value that are named as secrets, with their names."""
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
    if found := _WITH_SCHEME.fullmatch(value):
        scheme, credentials = found.groups()
        yield Secret(credentials, (name,))
        if scheme.lower() == "basic":
            yield from _of_basic(credentials)


def _of_basic(credentials: str) -> Iterator[Secret]:
    """Yield the password of HTTP basic authentication: base64 of ``user:password`` (RFC 7617)."""
    try:
        user, _, password = base64.b64decode(credentials).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return
    yield Secret(password, ("password", user) if user else ("password",))


def _of_address(text: str) -> list[Secret]:
    """Return the password of a URL, also as HTTP clients send it, and its secret parameters."""
    if ":" not in text:  # most variables of an environment are none, and are gone through often
        return []
    try:
        url = urlsplit(text)
        user, password = unquote(url.username or ""), unquote(url.password or "")
        query = parse_qsl(url.query) if url.scheme else []
    except ValueError:  # half an IPv6 address
        return []
    if not url.scheme or not url.netloc:
        return []
    found = [Secret(value, (name,)) for name, value in query if _is_secret(name)]
    if password:
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        found += [Secret(password, ("password", user or "password")), Secret(basic)]
    elif user:  # a token, as of https://TOKEN@host
        found.append(Secret(user))
    return found


def snapshot(team: TeamSpec) -> dict[str, Any] | None:
    """Return a team as plain data that `TeamSpec.model_validate` accepts.

    Only fields that we know go in: a foreign key may hold a token. Of one that withholds a tool it
    is kept that it does. Keys are left out; the provider's environment variable must give them
    again.

    Args:
        team: The team.

    Returns:
        The data, or None when a file can't say it: an agent that is an object without a
        name, a base_url with a password in it, or a tool server or a header whose token is written
        out where a ``${VAR}`` could stand.
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
    given = (*(backend.extra_headers or {}).values(), *backend.env.values())
    headers = (each.get_secret_value() for each in given)
    named = (text for _, text in _secrets_within(backend.extra_body))
    return all(map(is_reference_or_harmless, (*headers, *named)))


def _plain(value: Any, path: Keys = ()) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _plain(field, (*path, name))
            for name in type(value).model_fields
            if name not in _LEFT_OUT and (field := getattr(value, name)) is not None
        } | _restrictions(value, path)
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, SecretStr):  # a reference or harmless; `_LEFT_OUT` has the others
        return value.get_secret_value()
    items = value if isinstance(value, tuple | list) else None
    return value if items is None else [_plain(v, (*path, "*")) for v in items]


def _restrictions(spec: BaseModel, path: Keys) -> dict[str, bool]:
    """Keep that a tool is withheld, and not by which words."""
    return {
        found.key: found.value is not False
        for found in own_foreign_keys(spec, path)
        if found.sort == "withheld" and found.path[:-1] == path
    }
