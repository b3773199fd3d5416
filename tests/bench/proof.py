"""The proof: a stop, a kill -9 and a resume, here and in other libraries: ``make proof``.

    python -m tests.bench.proof [KILLS]

It plays scenario S for each library that is installed, kills turns of each shape at their events,
and loads the team files of MassGen's wheel. `docs/explain/proof.md` is written from what it finds.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

from tests import canaries, check_massgen_configs
from tests.bench import peers
from tests.bench.server import BenchServer
from tests.bench.table import PRINTED, Table, machine, print_machine
from tests.kills import __main__ as kills

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explain" / "proof.md"
OTHERS_FILES = ROOT / ".venv" / "massgen-0.1.97" / "massgen" / "configs"


def main(count: int = kills.COUNT) -> int:
    """Measure all, print it, and write the page; return the exit status.

    Args:
        count: How many kills each shape of work gets.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state:
        os.environ["XDG_STATE_HOME"] = state
        canaries.plant(os.environ)
        print_machine()
        with BenchServer() as server:
            peers.main(server)
        kills.main([str(count)])
        files = _others_files()
    PAGE.write_text(page(PRINTED, files), "utf-8")
    print(f"\n{PAGE.relative_to(ROOT)} is written.")
    return 0


def _others_files() -> str:
    if not OTHERS_FILES.is_dir():
        return "MassGen's wheel is not here: `make readers` fetches it."
    with redirect_stdout(io.StringIO()) as said:
        check_massgen_configs.main(OTHERS_FILES)
    first = said.getvalue().partition("\n")[0]
    print(f"\nMassGen 0.1.97's own team files: {first}")
    return first


def page(tables: list[Table], files: str) -> str:
    """Return the page of the site.

    Args:
        tables: What was measured.
        files: What became of other people's team files.
    """
    where, versions = machine()
    text = "# The proof\n\n`make proof` measures this on your machine and writes this page. "
    text += f"Written {datetime.now(UTC):%Y-%m-%d}: {where}; {versions}.\n\n"
    for table in tables:
        title, _, rest = table.title.partition(":" if ":" in table.title else "\n")
        text += f"## {title.strip().capitalize()}\n\n{' '.join(rest.split())}\n\n"
        lines = [table.head, ["---"] * len(table.head), *table.rows]
        text += "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines) + "\n"
    return f"{text}## Team files of other people\n\nMassGen 0.1.97's own: {files}\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "\\<")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
