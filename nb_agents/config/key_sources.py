"""Providers' keys from a file of variables or the system's keyring, where a team says so.

The file is read and not evaluated, and nothing of it goes into this process's environment: a key
becomes its agent's, is masked as one from a team's file, and is not written down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from nb_agents.config.document import FileKind, read_source
from nb_agents.errors import ConfigError

_ENV_FILE = FileKind("file of variables", "NAME=value", expands=False)
_LINE = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=[ \t]*
    (?:'([^'\n]*)'|"([^"\n]*)"|([^\n]*?))[ \t]*(?:(?<=\s)\#[^\n]*)?$""",
    re.MULTILINE | re.VERBOSE,
)


def find_key_elsewhere(variables: Sequence[str], env_file: str | None, keyring: str | None) -> str:
    """Return a key that the environment does not have, or "".

    Args:
        variables: The names that it may have; the first that is there counts.
        env_file: A file of lines as ``NAME=value``.
        keyring: The service whose entries in the keyring have these names; asked after the file.

    Raises:
        ConfigError: The file or the keyring can't be read.
    """
    known = read_variables(env_file) if env_file else {}
    found = (known.get(name) for name in variables)
    if key := next(filter(None, found), ""):
        return key
    asked = (_ask_keyring(keyring, name) for name in variables) if keyring else iter(())
    return next(filter(None, asked), "")


def read_variables(path: str) -> Mapping[str, str]:
    """Return the variables in a file of lines as ``NAME=value``, values as they stand there.

    Comments, ``export`` and one pair of quotes around a value are left out; other lines count for
    nothing.

    Args:
        path: The file.

    Raises:
        ConfigError: It is missing, no regular file, too large, or not UTF-8.
    """
    text = read_source(path, _ENV_FILE).removeprefix("\ufeff").replace("\r\n", "\n")
    return {name: a or b or c for name, a, b, c in _LINE.findall(text)}


def _ask_keyring(service: str, name: str) -> str:
    try:
        keyring: Any = import_module("keyring")
        errors: Any = import_module("keyring.errors")
    except ImportError:
        raise ConfigError(
            "`keyring` needs the package of that name: `pip install 'nb_agents[keyring]'`."
        ) from None
    try:
        return keyring.get_password(service, name) or ""
    except errors.KeyringError as exc:
        raise ConfigError(
            f"The keyring can't be asked for {name} of {service!r} ({type(exc).__name__}). Unlock "
            "it, or remove `keyring`."
        ) from None
