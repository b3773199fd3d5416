"""Markdown that models wrote, without HTML of theirs; and a turn's plots as images for its card.

Raw HTML is text here, and images are off: an image is a request to somebody's server. The plots lie
inside of the card for the same reason. An agent may have put any file in their place, and a link or
a pipe by that name: none leads out of its workspace, nothing but a PNG is shown.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markupsafe import Markup

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.disk.directory import Directory
from nb_agents.masking import Mask
from nb_agents.tools.python import FOLDER
from nb_agents.unicode import without_controls
from nb_agents.view.run_view import RunView

__all__ = ["MAX_BYTES", "MAX_PLOTS", "PlotImage", "as_html", "harmless", "plots_of", "without_html"]

MAX_PLOTS = 6
MAX_BYTES = 300_000

_PNG = b"\x89PNG\r\n\x1a\n"

_MARGINS = {
    "paragraph_open": "6px 0",
    "bullet_list_open": "6px 0",
    "ordered_list_open": "6px 0",
    "table_open": "8px 0",
    "heading_open": "10px 0 4px",
}

_BEGINNING = re.compile(r"(\\*)(<|!\[)")

_LINE_END = re.compile(r"\r\n?")
_TICKS = re.compile("`+")
_OPENER = re.compile(r"\\.|`+", re.DOTALL)


@dataclass(frozen=True)
class PlotImage:
    """An image of a plot.

    Attributes:
        about: Whose it is, and its file.
        src: A data URI.
    """

    about: str
    src: str


def plots_of(view: RunView, path: Path) -> list[PlotImage]:
    """Read the plots that the turn's workspaces have, the first few that are not too large.

    Args:
        view: The turn; only files that it lists are read.
        path: Its directory.
    """
    return list(_images(view, path))


def _images(view: RunView, turn: Path) -> Iterator[PlotImage]:
    count = 0
    for file in view.files:
        folder, _, name = file.path.rpartition("/")
        if folder != FOLDER or not name.endswith(".png") or file.size > MAX_BYTES:
            continue
        data = _read(turn / "workspaces" / file.agent, f"{FOLDER}/{name}")
        if data is None:
            continue
        src = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        yield PlotImage(f"{file.agent}: {file.path}", src)
        count += 1
        if count == MAX_PLOTS:
            return


def _read(workspace: Path, name: str) -> bytes | None:
    """Return a PNG of a workspace, or None."""
    with suppress(OSError, ValueError), Directory.at(workspace) as directory:
        data = directory.read(name, MAX_BYTES)
        return data if data.startswith(_PNG) else None
    return None


def as_html(words: str) -> Markup:
    """Render Markdown; what looks like HTML in it is shown as the text that it is."""
    return Markup(_renderer().render(words))


def without_html(markdown: str) -> str:
    """Return Markdown in which a reader finds neither raw HTML nor an image.

    Args:
        markdown: Whole: a piece that leaves a code block open changes what comes behind it.

    Returns:
        The same to read: outside of code, ``<`` is ``&lt;`` and an image is its source. Where
        readers may not agree about what is code, it is so in there, too.
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
    """Escape what may begin HTML or an image, unless a backslash does it already."""

    def escaped(found: re.Match[str]) -> str:
        before, what = found[1], found[2]
        is_escaped = len(before) % 2 == 1
        if what == "<":
            return before[: len(before) - is_escaped] + "&lt;"
        return found[0] if is_escaped else f"{before}!\\["

    return _BEGINNING.sub(escaped, text)


def _escape_text(text: str) -> str:
    """Escape a paragraph, but for its code."""
    parts, done = [], 0
    for start, end in _code_spans(text):
        code = text[start:end]
        # HTML may begin on a new line, and a table's cells end, within what would be code.
        if "\n" not in code and "|" not in code:
            parts += [_escape(text[done:start]), code]
            done = end
    return "".join([*parts, _escape(text[done:])])


def _code_spans(text: str) -> Iterator[tuple[int, int]]:
    """Find code: it ends with as many backticks as it begins with.

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


@cache
def _renderer() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    made.core.ruler.push("blocks", _set_blocks)
    return made


def _set_blocks(state: StateCore) -> None:
    """Set blocks as close as the rest of the card, and in the direction of their words.

    A page's own margins are made for documents, and its direction is that of its menus.
    """
    for token in state.tokens:
        if margin := _MARGINS.get(token.type):
            token.attrSet("style", f"margin:{margin};text-align:start")
            token.attrSet("dir", "auto")


def harmless(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mime bundle without secrets, terminal's controls, and raw HTML in its Markdown."""
    made = Mask(secrets_of_environment()).value(dict(bundle))
    for mime in made.keys() & {"text/plain", "text/markdown"}:
        made[mime] = without_controls(made[mime])
    if "text/markdown" in made:
        made["text/markdown"] = without_html(made["text/markdown"])
    return made
