"""Text that a terminal may show.

Models, tools and files can write what moves a terminal's cursor, clears it or fills its clipboard.
Whatever prints goes through here: `nb_agents.jupyter.ipython.display`, the errors' sentences, the
log. Data (an answer, a journal, a tool's result) stays what was written.

This module imports nothing of nb_agents.
"""

from __future__ import annotations

import logging
import re

__all__ = ["WithoutControls", "without_controls"]

# Source: ECMA-48, https://ecma-international.org/publications-and-standards/standards/ecma-48/
_SEQUENCE = re.compile(
    r"""
    (?: \x1b\[ | \x9b ) [0-?]* [ -/]* [@-~]              # CSI: cursor, colours, clearing
    | (?: \x1b[\]PX^_] | [\x90\x98\x9d-\x9f] )           # OSC and other strings: clipboard, title
      [^\x07\x1b\x80-\x9f]* (?: \x07 | \x1b\\ | \x9c )   #   ... up to their end, when there is one
    | \x1b [ -/]* [0-~]
    """,
    re.VERBOSE,
)
_LINE_END = re.compile(r"\r\n?|\x85")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


def without_controls(text: str) -> str:
    r"""Return a text as a terminal may show it.

    Args:
        text: Any text.

    Returns:
        The text without control sequences and characters, but for line ends and tabs: a carriage
        return is a line end, half a surrogate pair is U+FFFD.

    Example:
        >>> without_controls("\x1b]52;c;cm0gLXJm\x07done\x1b[2J\x9b1m!")
        'done!'
    """
    text = _LINE_END.sub("\n", _SEQUENCE.sub("", text))
    # Whatever is left of a sequence that never ends can't begin one any more.
    return _HALF_PAIR.sub("\ufffd", _CONTROL.sub("", text))


class WithoutControls(logging.Filter):
    """Takes control sequences out of log records, tracebacks included, before any handler."""

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; all are let through."""
        try:
            record.msg = without_controls(record.getMessage())
        except Exception:  # arguments that can't be formatted: the handler tells about those
            return True
        record.args = ()
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = without_controls(record.exc_text)
        return True
