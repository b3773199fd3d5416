"""An agent's place for the tests of its tools, with a sandbox and without, and who may run one."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nb_agents.config.tools import ToolKeys
from nb_agents.process import bubblewrap
from nb_agents.tools.base import ToolContext
from nb_agents.tools.sandbox import Sandbox, confinement

# A sandbox that can be had and does not hold is a failure, and no reason to test nothing.
WHY_NOT = "" if "does not keep" in (found := confinement().why_not) else found
# With CI set they run all the same, and fail.
needs_sandbox = pytest.mark.skipif(
    bool(WHY_NOT) and not os.environ.get("CI"), reason=f"No sandbox: {WHY_NOT}"
)
both = pytest.mark.parametrize(
    "place", [pytest.param(True, marks=needs_sandbox, id="sandboxed"), False], indirect=True
)
sandboxed = pytest.mark.parametrize(
    "place", [pytest.param(True, marks=needs_sandbox, id="sandboxed")], indirect=True
)


class Place:
    """A session with one agent at work; what its tools tell the panel is in ``heard``."""

    def __init__(self, root: Path, is_sandboxed: bool) -> None:
        self.root = root
        self.is_sandboxed = is_sandboxed
        self.heard = ""
        self.workspace = root / "session" / "workspaces" / "a"
        self.peer = root / "session" / "workspaces" / "b"
        self.given = root / "given"
        for folder in (self.workspace, self.peer, self.given):
            folder.mkdir(parents=True)
        (self.peer / "private.txt").write_text("private")
        (self.given / "data.txt").write_text("data")
        self.context = ToolContext(
            agent="a/b[0]",
            workspace=self.workspace,
            readable=[self.given],
            session=root / "session",
            kept=root / "session" / "kept",
            secrets=["sk-1"],
            tell=self.hear,
        )

    def sandbox(self, context: ToolContext | None = None, **keys: Any) -> Sandbox:
        """Make the agent's sandbox, or one that is none."""
        keys = {"sandbox": self.is_sandboxed, **keys}
        return Sandbox(context or self.context, ToolKeys.model_validate(keys))

    def hear(self, text: str) -> None:
        self.heard += text

    def kept(self) -> list[Path]:
        return sorted(self.context.kept.rglob("*.txt"))


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Give a place; its parameter says whether it has a sandbox."""
    return Place(tmp_path, getattr(request, "param", False))


SOMEBODY = 65_534
"""The number of an ordinary user who has no file and no process."""


class User:
    """Who runs commands, in a workspace of their own."""

    def __init__(self, number: int, workspace: Path) -> None:
        self.number = number
        self.workspace = workspace

    def command(self, script: str, tmp_bytes: int = 50_000_000) -> list[str]:
        """Give what runs a script in bubblewrap, as this user."""
        program = bubblewrap.installed()
        assert program is not None
        argv = bubblewrap.argv(
            program,
            ["bash", "-c", script],
            tmp_bytes=tmp_bytes,
            cwd=self.workspace,
            writable=[self.workspace],
        )
        return [*self._as_them(), *argv]

    def plain_command(self, script: str) -> list[str]:
        """Give what runs a script unconfined, as this user."""
        return [*self._as_them(), "bash", "-c", script]

    def _as_them(self) -> list[str]:
        if self.number == os.getuid():
            return []
        ids = [f"--reuid={self.number}", f"--regid={self.number}", "--clear-groups"]
        return ["setpriv", *ids, "--"]


@pytest.fixture(params=["root", "somebody"])
def user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """Give root and an ordinary user, as far as this process may be them."""
    is_root = os.getuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("Only root can be root.")
    number = 0 if request.param == "root" else SOMEBODY if is_root else os.getuid()
    # Anybody can reach it, which pytest's own directories are not for.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        workspace = Path(folder).resolve() / "workspace"
        workspace.mkdir()
        os.chown(workspace, number, -1)
        if number != os.getuid():
            monkeypatch.setattr(os, "geteuid", lambda: number)
            # The Python of root's home is not for others.
            monkeypatch.setattr(bubblewrap, "_python_places", lambda: [])
        yield User(number, workspace)
