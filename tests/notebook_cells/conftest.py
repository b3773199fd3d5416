"""Runs of these tests start in a notebook, whose page the tests play."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.notebook_cells import with_origin


@pytest.fixture(autouse=True)
def _in_a_notebook() -> Iterator[None]:
    with with_origin("notebook:a.ipynb"):
        yield
