"""Texts and comments of Python code: a value in one is data, once it is written with escapes.

Python's own tokenizer tells where they are. What is cut by a value, or would be by an empty one, is
no text, and neither is anything of code that this Python and others may read differently.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import accumulate
from typing import NamedTuple

__all__ = ["NOT_RAW", "escaped", "find_texts"]

# A prefix of texts that have escapes. Without one, a text may join the one before it: `""r"b"` is
# two texts, `"""b"` the beginning of a longer one.
NOT_RAW = "u"

_KINDS = (tokenize.STRING, tokenize.COMMENT)
_PLAIN = re.compile(r"[^A-Za-z0-9_./:,@+ -]")


class _Token(NamedTuple):
    """A text or a comment, or what is neither."""

    is_text: bool
    source: str
    at: range


def find_texts(
    code: bytes | bytearray, slots: Sequence[range]
) -> Mapping[range, range | None] | None:
    """Find the texts in which values stand.

    Args:
        code: Python code, with a name in the place of each value.
        slots: Where these stand in it, in order.

    Returns:
        For each slot the bytes of an ``r`` that must become `NOT_RAW`, as a raw text has no
        escapes; None for a slot without one. None when a value stands elsewhere, or the code can't
        be read.
    """
    source = code.decode("latin-1")  # a character for each byte
    empty = list(_pieces(source, range(len(source)), slots))
    try:
        tokens = list(_tokens(source))
        emptied = [(token.is_text, token.source) for token in _tokens("".join(empty))]
    except (SyntaxError, tokenize.TokenError):
        return None
    without = [(t.is_text, "".join(_pieces(source, t.at, slots))) for t in tokens]
    is_behind = any(source[: slot.start].endswith("\\") for slot in slots)
    if "\r" in source or is_behind or without != emptied:
        return None
    found = {slot: _text_of(slot, tokens) for slot in slots}
    if any(text is None or _is_unsure(text, slots) for text in found.values()):
        return None
    return {slot: _raw_mark(text) for slot, text in found.items() if text is not None}


def escaped(text: str) -> str:
    """Write a value as a part of a text or a comment of Python, in ASCII and on one line."""
    return _PLAIN.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _tokens(source: str) -> Iterator[_Token]:
    lines = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]
    formatted: list[int] = []  # since Python 3.12 these are tokens of their own
    for kind, text, (row, column), (last, end), _ in tokenize.generate_tokens(
        StringIO(source, newline="\n").readline
    ):
        name = tokenize.tok_name[kind]
        at = range(lines[row - 1] + column, lines[last - 1] + end)
        if name.endswith("STRING_START"):
            formatted.append(at.start)
        elif name.endswith("STRING_END"):
            at = range(formatted.pop(), at.stop)
            text, kind = source[at.start : at.stop], tokenize.STRING
        if kind == tokenize.ERRORTOKEN or (kind == tokenize.STRING and not _ends_alike(text)):
            raise tokenize.TokenError("it can't be read, or not alike by each Python")
        if not formatted:
            yield _Token(kind in _KINDS, text, at)


def _pieces(source: str, at: range, slots: Sequence[range]) -> Iterator[str]:
    """Yield a part of the source, without what stands in slots."""
    start = at.start
    for slot in slots:
        if at.start <= slot.start and slot.stop <= at.stop:
            yield source[start : slot.start]
            start = slot.stop
    yield source[start : at.stop]


def _text_of(slot: range, tokens: Sequence[_Token]) -> _Token | None:
    around = (t for t in tokens if t.at.start <= slot.start and slot.stop <= t.at.stop)
    return next((token for token in around if token.is_text), None)


def _prefix(text: str) -> str:
    return re.split("['\"]", text, maxsplit=1)[0].lower()


def _is_unsure(text: _Token, slots: Sequence[range]) -> bool:
    """Return whether escapes in a text may be read as something else."""
    prefix = "" if text.source.startswith("#") else _prefix(text.source)
    if prefix == "f":
        depths = _depths(text.source)
        return any(slot.start in text.at and depths[slot.start - text.at.start] for slot in slots)
    return prefix not in ("", "u", "r") or (prefix == "r" and "\\" in text.source)


def _ends_alike(text: str) -> bool:
    """Return whether Python 3.12 and earlier versions see a text's quotes at the same places."""
    if {*"ft"}.isdisjoint(_prefix(text)):
        return True
    depths = _depths(text)
    fields = "".join(char if depth else " " for char, depth in zip(text, depths, strict=True))
    quotes = (re.search("'{3}|\"{3}|['\"]", text) or [""])[0]
    return min(depths) == depths[-1] == 0 and quotes not in fields and "\\" not in fields


def _depths(text: str) -> list[int]:
    """Count the braces around each character of a formatted text; two for one count as two."""
    return list(accumulate((char == "{") - (char == "}") for char in text))


def _raw_mark(text: _Token) -> range | None:
    is_raw = _prefix(text.source) == "r"
    return range(text.at.start, text.at.start + 1) if is_raw else None
