"""Markdown that models wrote as harmless HTML and Markdown."""

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
    """Render Markdown as HTML, with raw HTML in it shown as text.

    Args:
        words: The Markdown.
        image: Returns the data URI of an image's address, or "" for one that is not shown; by
            default none is.
    """
    return Markup(renderer().render(words, {IMAGES: image} if image else {}))


def marked(words: str, mark: str) -> str:
    """Return words between marks, by which they are found in a document; without a mark, as is."""
    return f"{mark}\n\n{words}\n\n{mark}" if mark and words else words


def without_html(markdown: str) -> str:
    """Return Markdown in which no renderer finds raw HTML or an image.

    Args:
        markdown: The whole document, as an open code block changes everything after it.

    Returns:
        The Markdown with ``<`` as ``&lt;`` and images as their source, outside of code. Where
        renderers may disagree about what is code, the code is escaped too.
    """
    lines = _LINE_END.sub("\n", markdown).split("\n")
    made: list[str] = []
    done = 0
    for token in _blocks().parse(markdown):
        if token.map is None or token.type not in ("fence", "code_block", "inline"):
            continue
        start, end = token.map
        made += map(_escape, lines[done:start])
        held = "\n".join(lines[start:end])
        made.append(_escape_text(held) if token.type == "inline" else held)
        done = end
    text = "\n".join([*made, *map(_escape, lines[done:])])
    return text if all(_is_clean(text, reader) for reader in _readers()) else _escape(markdown)


def _escape(text: str) -> str:
    """Escape the start of HTML or an image, unless a backslash escapes it already."""

    def escaped(found: re.Match[str]) -> str:
        before, what = found[1], found[2]
        is_escaped = len(before) % 2 == 1
        if what == "<":
            return before[: len(before) - is_escaped] + "&lt;"
        return found[0] if is_escaped else f"{before}!\\["

    return _BEGINNING.sub(escaped, text)


def _escape_text(text: str) -> str:
    """Escape a paragraph except its code."""
    parts, done = [], 0
    for start, end in _code_spans(text):
        code = text[start:end]
        # HTML may begin on a new line, and a table's cells end, within what would be code.
        if "\n" not in code and "|" not in code:
            parts += [_escape(text[done:start]), code]
            done = end
    return "".join([*parts, _escape(text[done:])])


def _code_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of inline code, which ends with as many backticks as it starts with.

    Source: https://spec.commonmark.org/0.31.2/#code-spans
    """
    closers: dict[int, list[int]] = {}
    for ticks in _TICKS.finditer(text):
        closers.setdefault(len(ticks[0]), []).append(ticks.start())
    place = 0
    while found := _OPENER.search(text, place):
        place = found.end()
        ends = closers.get(len(found[0]), []) if found[0][0] == "`" else []
        if (nth := bisect_left(ends, place)) < len(ends):
            place = ends[nth] + len(found[0])
            yield found.start(), place


def _is_clean(markdown: str, reader: MarkdownIt) -> bool:
    """Return whether a reader that accepts raw HTML finds none, and no image."""
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


def harmless(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mime bundle without secrets, terminal controls, or raw HTML in its Markdown."""
    made = Mask(secrets_of_environment()).value(dict(bundle))
    for mime in made.keys() & {"text/plain", "text/markdown"}:
        made[mime] = without_controls(made[mime])
    if "text/markdown" in made:
        made["text/markdown"] = without_html(made["text/markdown"])
    return made
