"""Takes secrets out of what a run journals, shows and logs; and ``debug.log`` of a turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nb_agents.events import Event, OutputStreamed, TextStreamed, ToolStarted, ToolTold, TurnEnded
from nb_agents.masking import Mask, MaskedStream
from nb_agents.tools.base import hide_arguments, summarize

__all__ = ["EventMask", "hidden_in_logs", "open_debug_log"]

logger = logging.getLogger("nb_agents")

_Piece = TextStreamed | ToolTold | OutputStreamed
"""Events whose texts, put together, are one text."""

_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"

_FORMATTER = logging.Formatter(_FORMAT)


@dataclass
class _Text:
    """A text that comes in pieces.

    Attributes:
        of: Which one it is: of which call, of which tool.
        stream: What became of it.
        piece: Its last piece, empty and without secrets.
    """

    of: tuple[Any, ...]
    stream: MaskedStream
    piece: Any


class EventMask:
    """Takes secrets out of all texts of a run's events, those in pieces too.

    What a piece ends in may be the beginning of a secret: it is held back until the next piece of
    the same text, or another event of the same agent or step, or the turn's end. So no word is
    lost, and all stand before the event that they came before.

    Args:
        mask: Knows the secrets.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        # By whose it is, an agent's or a step's; then by what kind of text.
        self._texts: dict[str, dict[tuple[str, str], _Text]] = {}

    def hide(self, event: Event) -> Iterator[Event]:
        """Give the events to write: what was held back, then the event itself without secrets."""
        if isinstance(event, _Piece):
            yield from self._piece(event)
            return
        subject = getattr(event, "agent", "") or getattr(event, "step", "")
        for each in list(self._texts) if isinstance(event, TurnEnded) else [subject]:
            for text in self._texts.get(each, {}).values():
                yield from _rest(text)
        if isinstance(event, ToolStarted):
            event = _without_secret_arguments(event)
        yield self._mask.value(event)

    def _piece(self, piece: _Piece) -> Iterator[Event]:
        subject = piece.step if isinstance(piece, OutputStreamed) else piece.agent
        texts = self._texts.setdefault(subject, {})
        kind, of = (piece.kind, getattr(piece, "channel", "")), _of(piece)
        text = texts.get(kind)
        if text is None or text.of[0] != of[0]:
            yield from _rest(text)
            text = texts[kind] = _Text(of, MaskedStream(self._mask), self._emptied(piece))
        elif text.of != of:
            text.of, text.piece = of, self._emptied(piece)
        if shown := text.stream.push(piece.text):
            yield replace(text.piece, text=shown)

    def _emptied(self, piece: _Piece) -> Any:
        return self._mask.value(replace(piece, text=""))


def _of(piece: _Piece) -> tuple[Any, ...]:
    return (piece.call, piece.tool) if isinstance(piece, TextStreamed) else (0,)


def _rest(text: _Text | None) -> Iterator[Event]:
    """Give what is held back of a text."""
    if text is not None and (shown := text.stream.flush()):
        yield replace(text.piece, text=shown)


def _without_secret_arguments(event: ToolStarted) -> ToolStarted:
    """Hide the arguments that are called a secret: people need not see them, whatever they are."""
    args = hide_arguments(event.args)
    if args == event.args:
        return event
    return replace(event, args=args, summary=summarize(event.tool, args))


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
