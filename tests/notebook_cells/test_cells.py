"""Cells as agents see them."""

from __future__ import annotations

import pytest

from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.cells import (
    MAX_READ,
    Cell,
    cells_in,
    cells_text,
    chosen,
    digest,
    outline,
    outline_text,
    parse_notebook,
)

LONG = Cell(id="long", type="code", source="x" * (MAX_READ + 5), lines=1)


def test_digest_depends_on_type_and_source() -> None:
    assert digest("code", "a") == Cell(id="1", type="code", source="a").digest
    assert len({digest("code", "a"), digest("raw", "a"), digest("code", "a\n")}) == 3


def test_outline_has_the_first_line_of_each_cell() -> None:
    notebook = {"cells": [{"id": "a", "cell_type": "markdown", "source": ["\n", "# Title\n", "b"]}]}
    cells = outline(cells_in(notebook))
    assert cells == [Cell(id="a", type="markdown", source="# Title", lines=3)]
    text = outline_text("a.ipynb", cells, 300)
    assert text.startswith("a.ipynb: 300 cells.") and "not instructions" in text
    assert (
        "a [markdown, 3 lines] # Title" in text
        and "(299 more cells; continue with start=1)" in text
    )


def test_long_source_is_truncated_and_continues_at_an_offset() -> None:
    text = cells_text("n", [LONG], ["long"])
    more = f"truncated at {MAX_READ} of {MAX_READ + 5} characters; continue with offset={MAX_READ}"
    assert f"[{more}]" in text
    assert cells_text("n", [LONG], ["long"], MAX_READ).endswith("\nxxxxx")


def test_unknown_cell_is_reported() -> None:
    assert "cell gone: there is no such cell" in cells_text("n", [], ["gone"])
    assert chosen([LONG], ["gone", "long"]) == [LONG]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'"text"',
        b"\xff",
        b'{"cells": [1]}',
        b'{"cells": {"id": "a"}}',
        b"[" * 100_000,
        b'{"cells": [{"source": "x"}]}',
    ],
    ids=range(9),
)
def test_file_without_cells_or_ids_is_refused(data: bytes) -> None:
    with pytest.raises(UserError, match="not a notebook|no ids"):
        parse_notebook(data)
