"""Tries a Python with the oldest, or the newest, dependencies that are allowed: ``make compat``.

    python -m tests.compat python3.12 lowest-direct

The quick start runs there, and the tests that need nothing beside the package and pytest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/view", "tests/disk", "tests/test_cancel.py", "tests/test_errors.py")
PYTEST = ("pytest>=9.0", "pytest-timeout>=2.4", "hypothesis>=6.140", "pandas>=2.2.3")


def main(python: str, versions: str) -> int:
    """Install, run, and return the exit status.

    Args:
        python: Its name or path, such as "python3.12".
        versions: What uv calls it: "lowest-direct" or "highest".
    """
    print(f"=== Python {python}, {versions}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        own = f"{place}/bin/python"
        uv = (sys.executable, "-m", "uv")
        resolution = (f"--resolution={versions}", f"--python={own}")
        steps: tuple[tuple[str, ...], ...] = (
            (*uv, "venv", "--quiet", "--clear", "--python", python, place),
            (*uv, "pip", "install", "--quiet", *resolution, "--editable", ".[headless]", *PYTEST),
            (own, "tests/run_demo.py", "notebooks/quickstart.ipynb", "build/compat.html"),
            (own, "-m", "pytest", "-q", "-o", f"cache_dir={place}/cache", *TESTS),
        )
        return next((code for step in steps if (code := _run(step))), 0)


def _run(command: tuple[str, ...]) -> int:
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
