"""Fixtures for tests of tools: an agent's session, with and without a sandbox."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.processes import bubblewrap
from tests.kit.tools import Sandbox, ToolContext, ToolKeys, confinement

# If bubblewrap works but does not confine, tests must fail and not be skipped.
WHY_NOT = "" if "does not keep" in (found := confinement().why_not) else found
# With CI set, they run anyway and fail.
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
    """A session with one agent. The output that its tools send to the panel is in ``heard``."""

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
        """Create the agent's sandbox, confined or not."""
        keys = {"sandbox": self.is_sandboxed, **keys}
        return Sandbox(context or self.context, ToolKeys.model_validate(keys))

    def hear(self, text: str) -> None:
        self.heard += text

    def kept(self) -> list[Path]:
        return sorted(self.context.kept.rglob("*.txt"))


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Return a session; the parameter decides whether it has a sandbox."""
    return Place(tmp_path, getattr(request, "param", False))


SOMEBODY = 65_534
"""Id of a user without files or processes."""


class User:
    """A user who runs commands in their own workspace."""

    def __init__(self, number: int, workspace: Path) -> None:
        self.number = number
        self.workspace = workspace

    def command(self, script: str, tmp_bytes: int = 50_000_000) -> list[str]:
        """Return the command that runs a script in bubblewrap as this user."""
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
        """Return the command that runs a script unconfined as this user."""
        return [*self._as_them(), "bash", "-c", script]

    def _as_them(self) -> list[str]:
        if self.number == os.getuid():
            return []
        ids = [f"--reuid={self.number}", f"--regid={self.number}", "--clear-groups"]
        return ["setpriv", *ids, "--"]


@pytest.fixture(params=["root", "somebody"])
def user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """Return root and an ordinary user, if this process may run as them."""
    is_root = os.getuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("Only root can be root.")
    number = 0 if request.param == "root" else SOMEBODY if is_root else os.getuid()
    # Other users can enter it, unlike pytest's own directories.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        workspace = Path(folder).resolve() / "workspace"
        workspace.mkdir()
        os.chown(workspace, number, -1)
        if number != os.getuid():
            monkeypatch.setattr(os, "geteuid", lambda: number)
            # The Python of root's home is not for others.
            monkeypatch.setattr(bubblewrap, "_python_directories", lambda: [])
        yield User(number, workspace)
