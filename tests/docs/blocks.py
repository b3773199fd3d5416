"""The fenced blocks of README and docs: cells, command lines, YAML and Python."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt

__all__ = ["PAGES", "ROOT", "Block", "blocks"]

ROOT = Path(__file__).parents[2]
_DOCS = ROOT / "docs"
_TOP = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")
PAGES = [
    *(path for name in _TOP if (path := ROOT / name).exists()),
    *sorted(p for part in ("start", "howto", "explain") for p in (_DOCS / part).glob("*.md")),
    _DOCS / "index.md",
]
"""The hand-written pages. The reference is generated from the code."""

Kind = Literal["cell", "shell", "yaml", "python", "other"]
_KINDS: dict[str, Kind] = {"sh": "shell", "yaml": "yaml", "python": "python"}
_PROGRAMS = ("pip ", "make ", "nb-agents ")


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        page: The page's path, relative to the checkout.
        line: The line of the opening fence, starting at 1.
        kind: The language. A block without one is a cell if it begins with ``%``.
        text: The content.
    """

    page: str
    line: int
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*kinds: Kind, pages: list[Path] = PAGES) -> Iterator[Block]:
    """Yield the blocks of the given kinds, page by page."""
    for page in pages:
        yield from (block for block in _blocks_of(page) if block.kind in kinds)


@cache
def _blocks_of(page: Path) -> list[Block]:
    name = page.relative_to(ROOT).as_posix()
    tokens = MarkdownIt().parse(page.read_text("utf-8"))
    return [
        Block(name, token.map[0] + 1, _kind(token.info.strip(), token.content), token.content)
        for token in tokens
        if token.type == "fence" and token.map
    ]


def _kind(language: str, text: str) -> Kind:
    if language:
        return _KINDS.get(language, "other")
    if text.startswith("%"):
        return "cell"
    return "shell" if text.startswith(_PROGRAMS) else "other"
