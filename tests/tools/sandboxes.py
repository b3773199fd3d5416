"""An agent's place for the tests of its tools, with a sandbox and without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nb_agents.tools import sandbox
from nb_agents.tools.context import ToolContext
from nb_agents.tools.sandbox import why_not

WHY_NOT = why_not()
needs_sandbox = pytest.mark.skipif(WHY_NOT is not None, reason=f"No sandbox: {WHY_NOT}")
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

    def hear(self, text: str) -> None:
        self.heard += text

    def kept(self) -> list[Path]:
        return sorted(self.context.kept.rglob("*.txt"))


@pytest.fixture
def place(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """Give a place; its parameter says whether it has a sandbox."""
    is_sandboxed = getattr(request, "param", False)
    if not is_sandboxed:
        monkeypatch.setattr(sandbox, "why_not", lambda: "turned off by the test")
    yield Place(tmp_path, is_sandboxed)
