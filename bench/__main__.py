"""Runs the named benchmarks, or all: `python -m bench [--keep] [name ...]`.

The figures are written to ``build/bench`` as JSON. Figures that have changed since the last run are
printed. ``--keep`` also writes them to ``docs/bench``, from which a page of the site is made.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module

from bench.kept import FOLDER, KEPT, keep
from bench.server import BenchServer
from bench.table import PRINTED, print_machine
from tests import canaries

BENCHMARKS = (
    "cell",
    "cold",
    "stop",
    "doors",
    "idle",
    "tokens",
    "context",
    "overspend",
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
    """Run them one after the other, each next to a model server in its own process."""
    names = [arg for arg in args if arg != "--keep"]
    if unknown := set(names) - set(BENCHMARKS):
        print(f"No benchmark {', '.join(sorted(unknown))}. There are: {', '.join(BENCHMARKS)}.")
        return 2
    # The user's own live runs must not be included.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state:
        os.environ["XDG_STATE_HOME"] = state
        canaries.plant(os.environ)  # a kernel's driver looks for them
        print_machine()
        for name in names or BENCHMARKS:
            with BenchServer() as server:
                import_module(f"bench.{name}").main(server)
    for change in keep(PRINTED, KEPT if "--keep" in args else FOLDER):
        print(change)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
