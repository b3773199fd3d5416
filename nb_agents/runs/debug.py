"""What the package logs: without secrets, and with ``--debug`` into ``debug.log`` of the turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nb_agents.masking import Mask

__all__ = ["hidden_in_logs", "open_debug_log"]

_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"

logger = logging.getLogger("nb_agents")


class _Hiding(logging.Filter):
    """Takes the secrets of all live runs out of each record, tracebacks included."""

    def __init__(self) -> None:
        super().__init__()
        # Replaced, never changed: other threads log meanwhile.
        self.masks: tuple[Mask, ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, as it may be written."""
        if self.masks:
            record.msg, record.args = self._hidden(record.getMessage()), ()
            if record.exc_info:
                record.exc_text = self._hidden(_FORMATTER.formatException(record.exc_info))
                # A handler of somebody else's would write the traceback by itself.
                record.exc_info = None
        return True

    def _hidden(self, text: str) -> str:
        for mask in self.masks:
            text = mask.text(text)
        return text


_FORMATTER = logging.Formatter(_FORMAT)
# On the logger and not on handlers, so that every handler gets records without secrets.
_hiding = _Hiding()
logger.addFilter(_hiding)


@contextmanager
def hidden_in_logs(mask: Mask) -> Iterator[None]:
    """Take secrets out of what the package logs within the block, in any thread.

    Args:
        mask: Knows them.
    """
    _hiding.masks = (*_hiding.masks, mask)
    try:
        yield
    finally:
        _hiding.masks = tuple(each for each in _hiding.masks if each is not mask)


def open_debug_log(path: Path) -> Callable[[], None]:
    """Write the package's log into a file from now on.

    Args:
        path: The file.

    Returns:
        A function that ends it.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_FORMATTER)
    handler.setLevel(logging.DEBUG)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    def close() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()

    return close
