"""The fenced blocks of README and docs: cells, command lines, YAML and Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = ["PAGES", "ROOT", "Block", "blocks"]

ROOT = Path(__file__).parents[2]
_DOCS = ROOT / "docs"
_TOP = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")
PAGES = [
    *(path for name in _TOP if (path := ROOT / name).exists()),
    *sorted(p for part in ("start", "howto", "explain") for p in (_DOCS / part).glob("*.md")),
    _DOCS / "index.md",
]
"""The pages that people write; those of the reference are made from the code."""

_FENCE = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Kind = Literal["cell", "shell", "yaml", "python", "other"]
_KINDS: dict[str, Kind] = {"sh": "shell", "yaml": "yaml", "python": "python"}


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        page: The page, from the checkout's top.
        line: Where it begins.
        kind: What it is; a block without a language that begins with ``%`` is a cell.
        text: What it holds.
    """

    page: str
    line: int
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*kinds: Kind, pages: list[Path] = PAGES) -> Iterator[Block]:
    """Yield the blocks of some kinds, page by page."""
    for page in pages:
        text = page.read_text("utf-8")
        for found in _FENCE.finditer(text):
            kind = _KINDS.get(found[1], "other")
            if not found[1] and found[2].startswith("%"):
                kind = "cell"
            elif not found[1] and found[2].startswith(("pip ", "make ", "nb-agents ")):
                kind = "shell"
            if kind in kinds:
                line = text.count("\n", 0, found.start()) + 1
                yield Block(page.relative_to(ROOT).as_posix(), line, kind, found[2])
