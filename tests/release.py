"""Builds the release and tests it as a user would install it: ``make release``.

An sdist and, from it, a wheel go to ``dist/``. The wheel is installed into an empty environment in
which no node is to be found; the quick start runs there. Nothing is published.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"


def main() -> int:
    """Build, install and run. Return the exit status."""
    shutil.rmtree(DIST, ignore_errors=True)
    # The wheel is made from the sdist, in an environment of its own.
    run(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", str(DIST), str(ROOT))
    [wheel] = DIST.glob("*.whl")
    [sdist] = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as place:
        python = empty_environment(Path(place))
        run(
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            f"--python={python}",
            f"{wheel}[headless]",
        )
        try_out(python, Path(place))
    for made in (sdist, wheel):
        print(f"{made.relative_to(ROOT)}: {made.stat().st_size:,} bytes")
    return 0


def empty_environment(place: Path) -> Path:
    """Create an environment without packages. Return its interpreter."""
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(place / "e"))
    return place / "e" / "bin" / "python"


def try_out(python: Path, place: Path) -> None:
    """Run the quick start, and a run from the terminal, without Node.js and without a checkout."""
    shutil.copy(QUICKSTART, place)
    shutil.copy(ROOT / "tests" / "run_demo.py", place)
    bare = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(place)}
    bare |= {k: v for k, v in os.environ.items() if k in ("LANG", "TZ")}
    found = shutil.which("node", path=str(python.parent))
    assert found is None, f"There is a node: {found}"
    run(str(python), "run_demo.py", QUICKSTART.name, "quickstart.html", cwd=place, env=bare)
    command = str(python.parent / "nb-agents")
    run(command, "run", "--json", "Name two caches.", cwd=place, env=bare)


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command; a failure ends the script."""
    print("$", " ".join(command), flush=True)
    subprocess.run(command, cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    sys.exit(main())
