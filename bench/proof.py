"""The proof: a stop, a kill -9 and a resume, here and in other libraries: ``make proof``.

It plays scenario S for each library that is installed, stops and kills turns of each shape at each
of their events, and loads the team files of MassGen's wheels. `docs/explain/proof.md` is written
from what it finds.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tempfile
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

from bench import peers, scenario
from bench.server import BenchServer
from bench.table import PRINTED, Table, machine, print_machine, print_table
from tests import canaries, check_massgen_configs
from tests.kills import __main__ as kills

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explain" / "proof.md"


def main() -> int:
    """Measure all, print it, and write the page; return the exit status."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state:
        os.environ["XDG_STATE_HOME"] = state
        canaries.plant(os.environ)
        print_machine()
        with BenchServer() as server:
            for measure in (peers.main, scenario.main, _kill, _load_others_files):
                measure(server)
                PAGE.write_text(page(PRINTED), "utf-8")
    print(f"\n{PAGE.relative_to(ROOT)} is written.")
    return 0


def _kill(server: BenchServer) -> None:
    kills.main([])


def _load_others_files(server: BenchServer) -> None:
    places = sorted(ROOT.glob(".venv/massgen-*/massgen/configs"))
    print_table(
        "MassGen's team files: all team files in MassGen's wheels",
        ("wheel", "result"),
        [[place.parents[1].name, _loaded(place)] for place in places],
    )


def _loaded(place: Path) -> str:
    with redirect_stdout(io.StringIO()) as said:
        check_massgen_configs.main(place)
    return next(line for line in said.getvalue().splitlines() if " files: " in line)


def page(tables: list[Table]) -> str:
    """Return the page of the site.

    Args:
        tables: What was measured.
    """
    where, versions = machine()
    return (
        "# The proof\n\nThis page compares what nb_agents and other libraries lose, leave running "
        "and pay for twice when agents are stopped or killed. `make proof` measures this on your "
        "machine and writes this page.\n\n"
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {where}; {versions}.\n\n"
        + "\n".join([*map(_section, tables), _drivers()])
    )


def _drivers() -> str:
    """Describe how each library is used, from the first line of its module."""
    modules = [Path(__file__).parent / "libraries" / f"{lib.module}.py" for lib in peers.LIBRARIES]
    said = [ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "" for file in modules]
    lines = "".join(f"- {each.splitlines()[0]}\n" for each in said)
    return f"## How each library is used\n\nThe code is in `bench/libraries`.\n\n{lines}"


def _section(table: Table) -> str:
    title, *notes = table.title.split("\n")
    name, _, rest = title.partition(": ")
    about = [rest, *notes, f"load of the machine: {table.load}"]
    text = f"## {name[0].upper()}{name[1:]}\n\n"
    text += "".join(f"- {each}\n" for each in about if each)
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return text + "\n" + "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "\\<")


if __name__ == "__main__":
    sys.exit(main())
