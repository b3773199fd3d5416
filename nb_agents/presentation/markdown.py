"""Markdown that models wrote as harmless HTML and Markdown, and a turn's plots in its card.

Plots are embedded, as an image elsewhere would be a request to somebody's server. An agent may have
put any file in a plot's place, or a link or a pipe: nothing outside its workspace is read, and
nothing but a PNG is shown.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.disk.directory import Directory
from nb_agents.masking import Mask
from nb_agents.presentation.renderer import renderer
from nb_agents.tools.python import FOLDER
from nb_agents.unicode import without_controls
from nb_agents.view.run_view import RunView

MAX_PLOTS = 6
MAX_BYTES = 300_000

_PNG = b"\x89PNG\r\n\x1a\n"

_BEGINNING = re.compile(r"(\\*)(<|!\[)")

_LINE_END = re.compile(r"\r\n?")
_TICKS = re.compile("`+")
_OPENER = re.compile(r"\\.|`+", re.DOTALL)


@dataclass(frozen=True)
class PlotImage:
    """A plot as an image.

    Attributes:
        about: The agent and the file.
        src: A data URI.
    """

    about: str
    src: str


def plots_of(view: RunView, path: Path) -> list[PlotImage]:
    """Return the first plots in the turn's workspaces that are not too large.

    Args:
        view: The turn; only files that it lists are read.
        path: Its directory.
    """
    return list(islice(_images(view, path), MAX_PLOTS))


def _images(view: RunView, turn: Path) -> Iterator[PlotImage]:
    for file in view.files:
        folder, _, name = file.path.rpartition("/")
        if folder != FOLDER or not name.endswith(".png") or file.size > MAX_BYTES:
            continue
        data = b""
        with (
            suppress(OSError, ValueError),
            Directory.at(turn / "workspaces" / file.agent) as workspace,
        ):
            data = workspace.read(f"{FOLDER}/{name}", MAX_BYTES)
        if data.startswith(_PNG):
            src = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            yield PlotImage(f"{file.agent}: {file.path}", src)


def as_html(words: str) -> Markup:
    """Render Markdown as HTML, with raw HTML in it shown as text."""
    return Markup(renderer().render(words))


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
