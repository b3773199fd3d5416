"""Kernels are shared within a module if tests leave no trace; servers and sessions never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.driver import Kernel
from tests.kernel.notebook import Notebook, play
from tests.model_server import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(default=play) as server:
        yield server


@pytest.fixture(scope="module")
def loaded() -> Iterator[Kernel]:
    """One kernel for the module, with nb_agents loaded."""
    with Kernel() as kernel:
        assert kernel.run("%load_ext nb_agents").status == "ok"
        yield kernel


@pytest.fixture
def notebook(loaded: Kernel, server: ModelServer, tmp_path: Path) -> Iterator[Notebook]:
    """The module's kernel, with the test's own server and session root."""
    notebook = Notebook(loaded, server, tmp_path)
    yield notebook
    notebook.end_all()


@pytest.fixture
def open_notebook(server: ModelServer, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Return a function that opens a notebook in its own kernel, for tests that end kernels."""
    with ExitStack() as stack:

        def open_one(load: bool = True, headless: bool = False, cold: bool = False) -> Notebook:
            kernel = stack.enter_context(Kernel(cwd=tmp_path, headless=headless, cold=cold))
            notebook = Notebook(kernel, server, tmp_path)
            if load:
                assert kernel.run("%load_ext nb_agents").status == "ok"
            return notebook

        yield open_one
