"""The commands of `make demo` in a new checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commands(folder: Path, *words: str) -> list[str]:
    """Return the commands that make would run in a new checkout."""
    (folder / "js").mkdir()
    for name in ("Makefile", "pyproject.toml", "js/package.json", "js/package-lock.json"):
        shutil.copy(ROOT / name, folder / name)
    dry = ["make", "--dry-run", "--no-print-directory", "PYTHON=python3", *words]
    done = subprocess.run(dry, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_demo_installs_and_builds_silently_and_prints_the_time_of_all(tmp_path: Path) -> None:
    lines = commands(tmp_path, "demo", "HEADLESS=1")
    npm = [line for line in lines if re.search(r"(^|&& )npm ", line)]
    assert len(npm) == 2
    assert all("--silent" in line for line in npm)
    assert lines[-1].startswith('echo "In all, with what make installed and built before: ')
