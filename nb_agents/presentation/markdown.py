"""Converts Markdown from models to safe HTML and safe Markdown."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.masking import Mask
from nb_agents.presentation.renderer import IMAGES, renderer
from nb_agents.unicode import without_controls

_BEGINNING = re.compile(r"(\\*)(<|!\[)")

_LINE_END = re.compile(r"\r\n?")
_TICKS = re.compile("`+")
_OPENER = re.compile(r"\\.|`+", re.DOTALL)


def as_html(words: str, image: Callable[[str], str] | None = None) -> Markup:
    """Render Markdown as HTML, with raw HTML shown as text.

    Args:
        words: The Markdown.
        image: Returns the data URI for the address of an image, or "" to not show it. By default,
            no images are shown.
    """
    return Markup(renderer().render(words, {IMAGES: image} if image else {}))


def marked(words: str, mark: str) -> str:
    """Return text between marks that locate it in a document. Unchanged if `mark` is ""."""
    return f"{mark}\n\n{words}\n\n{mark}" if mark and words else words


def without_html(markdown: str) -> str:
    """Return Markdown in which no renderer will find raw HTML or images.

    Args:
        markdown: The whole document, because an open code block changes everything after it.

    Returns:
        The Markdown with ``<`` as ``&lt;`` and images as their source, outside of code. Where
        renderers may disagree about what is code, the code is escaped as well.
    """
    lines = _LINE_END.sub("\n", markdown).split("\n")
    safe: list[str] = []
    done = 0
    for token in _blocks().parse(markdown):
        if token.map is None or token.type not in ("fence", "code_block", "inline"):
            continue
        start, end = token.map
        safe += map(_escape, lines[done:start])
        block = "\n".join(lines[start:end])
        safe.append(_escape_text(block) if token.type == "inline" else block)
        done = end
    text = "\n".join([*safe, *map(_escape, lines[done:])])
    return text if all(_is_clean(text, reader) for reader in _readers()) else _escape(markdown)


def _escape(text: str) -> str:
    """Escape the start of HTML or an image, unless a backslash already escapes it."""

    def escaped(match: re.Match[str]) -> str:
        backslashes, start = match[1], match[2]
        is_escaped = len(backslashes) % 2 == 1
        if start == "<":
            return backslashes[: len(backslashes) - is_escaped] + "&lt;"
        return match[0] if is_escaped else f"{backslashes}!\\["

    return _BEGINNING.sub(escaped, text)


def _escape_text(text: str) -> str:
    """Escape a paragraph except its code."""
    parts, done = [], 0
    for start, end in _code_spans(text):
        code = text[start:end]
        # A line break can start HTML, and a "|" can end a table's cell, inside of a code span.
        if "\n" not in code and "|" not in code:
            parts += [_escape(text[done:start]), code]
            done = end
    return "".join([*parts, _escape(text[done:])])


def _code_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of inline code. Code ends with as many backticks as it starts with.

    Source: https://spec.commonmark.org/0.31.2/#code-spans
    """
    closers: dict[int, list[int]] = {}
    for ticks in _TICKS.finditer(text):
        closers.setdefault(len(ticks[0]), []).append(ticks.start())
    position = 0
    while opener := _OPENER.search(text, position):
        position = opener.end()
        ends = closers.get(len(opener[0]), []) if opener[0][0] == "`" else []
        if (nearest := bisect_left(ends, position)) < len(ends):
            position = ends[nearest] + len(opener[0])
            yield opener.start(), position


def _is_clean(markdown: str, reader: MarkdownIt) -> bool:
    """Return whether a parser that accepts raw HTML finds neither HTML nor images."""
    if "<" not in markdown and "![" not in markdown:
        return True
    tokens = reader.parse(markdown)
    every = (each for token in tokens for each in (token, *(token.children or ())))
    return not any(each.type in ("html_block", "html_inline", "image") for each in every)


@cache
def _blocks() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).disable("inline")


@cache
def _readers() -> tuple[MarkdownIt, ...]:
    plain = MarkdownIt("commonmark", {"html": True})
    return plain, MarkdownIt("gfm-like", {"html": True, "linkify": False})


def sanitize(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mime bundle without secrets, terminal controls, or raw HTML in its Markdown."""
    safe = Mask(secrets_of_environment()).value(dict(bundle))
    for mime in safe.keys() & {"text/plain", "text/markdown"}:
        safe[mime] = without_controls(safe[mime])
    if "text/markdown" in safe:
        safe["text/markdown"] = without_html(safe["text/markdown"])
    return safe
