"""Runs the named benchmarks, or all: `python -m tests.bench [--keep] [name ...]`.

The figures are written to ``build/bench`` as JSON; those that have changed since are printed.
``--keep`` writes them to ``docs/bench``, too: the site has a page of what is kept there.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module

from tests import canaries
from tests.bench.kept import FOLDER, KEPT, keep
from tests.bench.server import BenchServer
from tests.bench.table import PRINTED, print_machine

BENCHMARKS = (
    "cell",
    "cold",
    "stop",
    "doors",
    "idle",
    "tokens",
    "round_trip",
    "panel",
    "disk",
    "rewind",
    "recipes",
    "tools",
    "scenario",
    "peers",
    "tree",
    "sweeps",
    "scale",
    "cluster",
)


def main(args: list[str]) -> int:
    """Run them one after the other, each beside a model server in a process of its own."""
    names = [arg for arg in args if arg != "--keep"]
    if unknown := set(names) - set(BENCHMARKS):
        print(f"No benchmark {', '.join(sorted(unknown))}. There are: {', '.join(BENCHMARKS)}.")
        return 2
    # The live runs of whoever measures are no part of it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state:
        os.environ["XDG_STATE_HOME"] = state
        canaries.plant(os.environ)  # a kernel's driver looks for them
        print_machine()
        for name in names or BENCHMARKS:
            with BenchServer() as server:
                import_module(f"tests.bench.{name}").main(server)
    for change in keep(PRINTED, KEPT if "--keep" in args else FOLDER):
        print(change)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
