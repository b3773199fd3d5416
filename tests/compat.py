"""Tests a Python version with the oldest or newest supported dependencies: ``make compat``.

    python -m tests.compat python3.12 lowest-direct
    python -m tests.compat python3.12 oldest-lab

It runs the quick start, and the tests that need only the package and pytest. With "oldest-lab" it
runs tests of the page, in the oldest JupyterLab that the extension supports: hubs lag behind.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/view", "tests/disk", "tests/test_cancel.py", "tests/test_errors.py")
PYTEST = ("pytest>=9.0.3", "pytest-timeout>=2.4", "hypothesis>=6.140", "pandas>=2.2.3")
LAB_TESTS = ("tests/browser/test_cells.py", "tests/browser/test_notebook_7.py")
LAB = ("jupyterlab>=4.2,<4.3", "notebook>=7.2,<7.3", "playwright>=1.55")


def main(python: str, versions: str) -> int:
    """Install, run, and return the exit status.

    Args:
        python: Its name or path, such as "python3.12".
        versions: "lowest-direct" or "highest", as uv calls them, or "oldest-lab".
    """
    print(f"=== Python {python}, {versions}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        own = f"{place}/bin/python"
        uv = (sys.executable, "-m", "uv")
        is_lab = versions == "oldest-lab"
        resolution = "highest" if is_lab else versions
        requirements = (*PYTEST, *(LAB if is_lab else ()))
        install = ("pip", "install", "--quiet", f"--resolution={resolution}", f"--python={own}")
        tests = (own, "-m", "pytest", "-q", "-o", f"cache_dir={place}/cache")
        steps: tuple[tuple[str, ...], ...] = (
            (*uv, "venv", "--quiet", "--clear", "--python", python, place),
            (*uv, *install, "--editable", ".[all,headless]", *requirements),
            (own, "tests/run_demo.py", "notebooks/quickstart.ipynb", "build/compat.html"),
            (*tests, *(LAB_TESTS if is_lab else TESTS)),
        )
        return next((code for step in steps if (code := _run(step))), 0)


def _run(command: tuple[str, ...]) -> int:
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
