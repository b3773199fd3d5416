"""A copy of nb_agents without an extension, and processes that import it.

They are forked from one that has imported the core, because each would take seconds to start.
"""

from __future__ import annotations

import json
import os
import pkgutil
import runpy
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests import processes

__all__ = ["LeanCopy", "copy_without", "lean_copy"]

_ROOT = Path(__file__).parent.parent


def copy_without(extension: str, folder: Path, *others: str) -> Path:
    """Copy nb_agents, and other directories of the repository, without an extension's directory.

    The copies of compiled modules remain valid, because files keep their times.
    """
    ignored = shutil.ignore_patterns("golden", "labextension", "node_modules")
    for name in ("nb_agents", *others):
        shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
    shutil.rmtree(folder / "nb_agents" / "extensions" / extension)
    return folder


class LeanCopy:
    """Runs Python in the directory of a copy.

    Attributes:
        path: The directory.
    """

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self._process = process

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `python *args` to its end. The arguments begin with ``-c CODE`` or ``-m MODULE``."""
        processes.tell(self._process, json.dumps(args))
        code = int(processes.line(self._process))
        out, errors = (self.path / name for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(args, code, out.read_text(), errors.read_text())


@contextmanager
def lean_copy(extension: str, folder: Path) -> Iterator[LeanCopy]:
    """Copy nb_agents without an extension, and start the process that others are forked from."""
    path = copy_without(extension, folder)
    env = {**os.environ, "NB_AGENTS_SESSIONS": str(path / "sessions")}
    # The copy comes first: it hides this nb_agents.
    env["PYTHONPATH"] = os.pathsep.join([str(path), str(_ROOT)])
    command = [sys.executable, "-c", "from tests.lean_copy import serve; serve()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=path, env=env, stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield LeanCopy(path, process)
        finally:
            process.kill()


# In the process that others are forked from -------------------------------------------------------


def serve() -> None:
    """Fork a process for each line of stdin, and print its exit code."""
    import nb_agents

    import_module("pydantic_ai.models.test")  # which each run imports
    for module in pkgutil.walk_packages(nb_agents.__path__, "nb_agents."):
        if not module.name.startswith("nb_agents.extensions"):
            with suppress(ImportError):  # a library is missing
                import_module(module.name)
    assert Path(nb_agents.__file__).is_relative_to(Path.cwd())
    assert threading.active_count() == 1
    for text in sys.stdin:
        child = os.fork()
        if not child:
            _run(json.loads(text))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(args: list[str]) -> None:
    code: object = 1
    sys.stdin = open(os.devnull)
    for number, name in enumerate(("stdout", "stderr"), 1):
        os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
    try:
        kind, what, *rest = args
        sys.argv = [kind, *rest]
        if kind == "-c":
            exec(what, {"__name__": "__main__"})
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exc:
        code = exc.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
