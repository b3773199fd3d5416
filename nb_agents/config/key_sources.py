"""Reads API keys of providers from the ``env_file`` or ``keyring`` of a team.

The file is parsed and not evaluated, and this process's environment does not change. A key is used
only for its agent, is masked like one from a team file, and is not stored.
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
    """Find an API key that is not in the environment. Returns "" if it is not found.

    Args:
        variables: Names of the key, in order of preference.
        env_file: A file with lines such as ``NAME=value``. None skips it.
        keyring: A service of the system keyring, which is used after the file. None skips it.

    Raises:
        ConfigError: The file or the keyring can't be read.
    """
    values = read_variables(env_file) if env_file else {}
    from_file = (values.get(name) for name in variables)
    if key := next(filter(None, from_file), ""):
        return key
    from_keyring = (_read_keyring(keyring, name) for name in variables) if keyring else iter(())
    return next(filter(None, from_keyring), "")


def read_variables(path: str) -> Mapping[str, str]:
    """Read a file with lines such as ``NAME=value``. Values are not expanded.

    Comments, ``export`` and a pair of quotes around a value are removed. Other lines are ignored.

    Raises:
        ConfigError: The file is missing, not a regular file, too large, or not UTF-8.
    """
    text = read_source(path, _ENV_FILE).removeprefix("\ufeff").replace("\r\n", "\n")
    return {name: a or b or c for name, a, b, c in _LINE.findall(text)}


def _read_keyring(service: str, name: str) -> str:
    try:
        keyring: Any = import_module("keyring")
        errors: Any = import_module("keyring.errors")
    except ImportError:
        raise ConfigError(
            "The key `keyring` needs a package: `pip install 'nb_agents[keyring]'`."
        ) from None
    try:
        return keyring.get_password(service, name) or ""
    except errors.KeyringError as exc:
        raise ConfigError(
            f"The keyring can't be read for {name} of {service!r} ({type(exc).__name__}). Unlock "
            "it, or remove `keyring`."
        ) from None
