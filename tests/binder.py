"""Builds this checkout as Binder would, and checks the result: ``make binder``.

The steps of repo2docker: an environment, `binder/requirements.txt` in a copy of the checkout, then
`binder/postBuild`. In it JupyterLab must find the extension, and the quick start must run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Do the steps. Return the exit status."""
    with tempfile.TemporaryDirectory() as place:
        checkout, environment = Path(place, "checkout"), Path(place, "environment")
        # What git has: a clone holds nothing that was built here.
        run("git", "clone", "--quiet", str(ROOT), str(checkout), cwd=ROOT)
        python = environment / "bin" / "python"
        uv = (sys.executable, "-m", "uv")
        run(*uv, "venv", "--quiet", "--python", sys.executable, str(environment), cwd=checkout)
        requirements = ("--requirement", "binder/requirements.txt")
        run(*uv, "pip", "install", "--quiet", f"--python={python}", *requirements, cwd=checkout)
        env = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": place}
        run("bash", "binder/postBuild", cwd=checkout, env=env)
        notebook = checkout / "notebooks" / "quickstart.ipynb"
        command = ("jupyter", "execute", "--timeout=120", "--inplace", str(notebook))
        run(*command, cwd=checkout, env=env)
    return 0


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command; a failure ends the script."""
    print("$", " ".join(command), flush=True)
    program = shutil.which(command[0], path=(env or os.environ)["PATH"]) or command[0]
    subprocess.run((program, *command[1:]), cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    sys.exit(main())
