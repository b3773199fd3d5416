"""The environment of what becomes a process: an agent's, or a person's own command.

An agent's processes get what is listed here and what the team's file names, and nothing else: of
the other variables nobody can tell which are secrets. A proxy's address may hold a password, and an
index's a token, so those are named or left out, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from nb_agents.config.secret_names import is_secret_name

__all__ = ["ORDINARY", "agents_env", "persons_env"]

ORDINARY = frozenset(
    {"HOME", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER"}
    # One by one: LC_ANYTHING is what people send a secret by through ssh.
    | {"LANG", "LANGUAGE", "LC_ADDRESS", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION"}
    | {"LC_MEASUREMENT", "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER"}
    | {"LC_TELEPHONE", "LC_TIME"}
    # Where the notebook's Python and its libraries are.
    | {"CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)
"""The variables that an agent's processes get unasked, as far as they are set."""


def agents_env(
    extra: Mapping[str, str], named: Iterable[str] = (), secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Make the environment of a process that works for an agent.

    Args:
        extra: Variables to add.
        named: Names of variables that it gets besides, whatever their values; they go before all.
        secrets: Values that must not leak, such as the keys of a team.

    Returns:
        The environment.
    """
    hidden = set(secrets)
    kept = {name: value for name in ORDINARY if (value := os.environ.get(name)) is not None}
    kept = {name: value for name, value in kept.items() if value not in hidden}
    return kept | dict(extra) | {n: os.environ[n] for n in named if n in os.environ}


def persons_env(extra: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Make the environment of a command that a recipe's author wrote: this process's own.

    Such a command is the person's own, as if typed into their terminal, and Amplifier's recipes
    count on its variables. Left out are those with a secret's name (`is_secret_name`) and those
    whose value is one of ``secrets``; a step that needs one of them names it in its ``env``.

    Args:
        extra: Variables to add, or to pass on in spite of this.
        secrets: Values that must not leak, such as the keys of a team.

    Returns:
        The environment.
    """
    hidden = set(secrets) - {""}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not is_secret_name(name) and value not in hidden
    }
    return kept | dict(extra)
