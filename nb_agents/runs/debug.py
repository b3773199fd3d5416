"""``--debug``: what the drivers log, into ``debug.log`` of the turn, without any key."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.team import TeamSpec

__all__ = ["open_debug_log", "secrets_of"]

_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"


class _Redacting(logging.Formatter):
    """Formats a record, tracebacks included, and blots out what is secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__(_FORMAT)
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text


def open_debug_log(path: Path, secrets: Iterable[str]) -> Callable[[], None]:
    """Write the package's log into a file from now on.

    Args:
        path: The file.
        secrets: Keys; wherever they turn up, "[key]" is written.

    Returns:
        A function that ends it.
    """
    logger = logging.getLogger("nb_agents")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Redacting(s for s in secrets if s))
    handler.setLevel(logging.DEBUG)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    def close() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()

    return close


def secrets_of(spec: TeamSpec) -> list[str]:
    """Collect the keys that a team may use: its own and those of the environment."""
    own = [a.backend.api_key.get_secret_value() for a in spec.everyone if a.backend.api_key]
    variables = {name for row in BACKEND_TYPES.values() for name in row.variables}
    return own + [os.environ.get(name, "") for name in variables]
