"""The magics in a test's own process, which is no notebook."""

from __future__ import annotations

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.kit.cells import AgentsMagics

__all__ = ["magics"]


def magics() -> AgentsMagics:
    """Return nb_agents's magics in a new shell.

    The shell replaces ``__main__`` by a module with `get_ipython`, which is put back: otherwise
    later tests of this process would run in a notebook, whose session root stays the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        return AgentsMagics(InteractiveShell())
