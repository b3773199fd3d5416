"""Masks secrets in a run's events and logs, and writes a turn's ``debug.log``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from nb_agents.context import within
from nb_agents.disk.private import open_private
from nb_agents.events import Event, OutputStreamed, TextStreamed, ToolNotice, ToolStarted, TurnEnded
from nb_agents.masking import Mask, MaskedStream
from nb_agents.tools.base import mask_arguments, summarize

logger = logging.getLogger("nb_agents")

_Piece = TextStreamed | ToolNotice | OutputStreamed
"""Events that contain consecutive chunks of one text."""

_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"

_FORMATTER = logging.Formatter(_FORMAT)


@dataclass
class _Text:
    """A text that arrives in chunks.

    Attributes:
        of: The call and tool that the text belongs to.
        stream: The masked text.
        piece: The last event of the text, masked and without its text.
    """

    of: tuple[Any, ...]
    stream: MaskedStream
    piece: Any


class EventMask:
    """Masks secrets in all text of a run's events, including text that arrives in chunks.

    The end of a chunk may be the start of a secret. It is held back until the next chunk of the
    same text, another event of the same agent or step, or the end of the turn. No text is lost, and
    the order of events does not change.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        # By agent or step, then by the kind of text.
        self._texts: dict[str, dict[tuple[str, str], _Text]] = {}

    def hide(self, event: Event) -> Iterator[Event]:
        """Yield the events to write: text that was held back, then the masked event itself."""
        if isinstance(event, _Piece):
            yield from self._piece(event)
            return
        subject = getattr(event, "agent", "") or getattr(event, "step", "")
        for each in list(self._texts) if isinstance(event, TurnEnded) else [subject]:
            for text in self._texts.get(each, {}).values():
                yield from _flush(text)
        if isinstance(event, ToolStarted):
            event = _without_secret_arguments(event)
        yield self._mask.value(event)

    def _piece(self, piece: _Piece) -> Iterator[Event]:
        subject = piece.step if isinstance(piece, OutputStreamed) else piece.agent
        texts = self._texts.setdefault(subject, {})
        kind, of = (piece.kind, getattr(piece, "channel", "")), _of(piece)
        text = texts.get(kind)
        if text is None or text.of[0] != of[0]:
            yield from _flush(text)
            text = texts[kind] = _Text(of, MaskedStream(self._mask), self._emptied(piece))
        elif text.of != of:
            text.of, text.piece = of, self._emptied(piece)
        if visible_text := text.stream.push(piece.text):
            yield replace(text.piece, text=visible_text)

    def _emptied(self, piece: _Piece) -> Any:
        return self._mask.value(replace(piece, text=""))


def _of(piece: _Piece) -> tuple[Any, ...]:
    return (piece.call, piece.tool) if isinstance(piece, TextStreamed) else (0,)


def _flush(text: _Text | None) -> Iterator[Event]:
    """Yield an event with the text that is still held back, if any."""
    if text is not None and (visible_text := text.stream.flush()):
        yield replace(text.piece, text=visible_text)


def _without_secret_arguments(event: ToolStarted) -> ToolStarted:
    """Hide arguments with secret-looking names, regardless of their values."""
    args = mask_arguments(event.args)
    if args == event.args:
        return event
    return replace(event, args=args, summary=summarize(event.tool, args))


class _MaskingFilter(logging.Filter):
    """Log filter that masks the secrets of all live runs in messages and tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        # Replaced, never modified, because other threads may be logging at the same time.
        self.masks: tuple[Mask, ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record and return True."""
        if self.masks:
            record.msg, record.args = self._hidden(record.getMessage()), ()
            if record.exc_info:
                record.exc_text = self._hidden(_FORMATTER.formatException(record.exc_info))
                # Otherwise another library's handler would format the unmasked traceback.
                record.exc_info = None
        return True

    def _hidden(self, text: str) -> str:
        for mask in self.masks:
            text = mask.text(text)
        return text


# On the logger and not on handlers, so that every handler gets masked records.
_filter = _MaskingFilter()
logger.addFilter(_filter)


_logged: ContextVar[Path | None] = ContextVar("nb_agents_logged_turn", default=None)


@contextmanager
def mask_logs(mask: Mask, turn: Path | None = None) -> Iterator[None]:
    """Mask secrets in all log records of the package within the block, in any thread.

    Args:
        turn: The turn that the block works for. Records logged in the block are written only to the
            ``debug.log`` of this turn.
    """
    _filter.masks = (*_filter.masks, mask)
    try:
        with within(_logged, turn or _logged.get()):
            yield
    finally:
        _filter.masks = tuple(each for each in _filter.masks if each is not mask)


class _DebugLog(logging.FileHandler):
    """A turn's ``debug.log``, with all log records of the package except those of other turns."""

    def __init__(self, turn: Path) -> None:
        super().__init__(turn / "debug.log", encoding="utf-8")
        self.setFormatter(_FORMATTER)
        self._turn = turn

    def _open(self) -> TextIOWrapper:
        return cast(TextIOWrapper, open_private(self.baseFilename, self.mode, encoding="utf-8"))

    def filter(self, record: logging.LogRecord) -> bool:
        # Records of events carry their turn, because a command runs in the context of its sender.
        return getattr(record, "turn", _logged.get()) in (None, self._turn)


# Logs are opened in threads that start runs, and closed on the loop thread.
_opening = threading.Lock()
_open_logs: set[_DebugLog] = set()
_level_before = logging.NOTSET


def open_debug_log(turn: Path) -> Callable[[], None]:
    """Start writing a turn's ``debug.log``. Returns a function that closes it."""
    global _level_before
    log = _DebugLog(turn)
    with _opening:
        if not _open_logs:
            _level_before = logger.level
        _open_logs.add(log)
        logger.addHandler(log)
        logger.setLevel(logging.DEBUG)

    def close() -> None:
        with _opening:
            _open_logs.discard(log)
            logger.removeHandler(log)
            if not _open_logs:
                logger.setLevel(_level_before)
        log.close()

    return close
