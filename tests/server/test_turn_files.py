"""The files of a turn over HTTP, which browsers may show or save but not run."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from tests.server.conftest import JupyterServer
from tests.server.test_reading import over

FILES = {
    "plot.png": b"\x89PNG\r\n\x1a\n",
    "data.csv": b"a,b\n1,2\n",
    "page.html": b"<script>alert(1)</script>",
    "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
    "notes.md": b"# Notes\n",
    "tool.bin": b"\0\1\2",
}
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "a",
            "execution_count": 1,
            "metadata": {"trusted": True},
            "source": "1",
            "outputs": [],
        }
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def turn(jupyter: JupyterServer) -> Path:
    path = over(jupyter.sessions).path
    folder = path / "workspaces" / "ada"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "run.ipynb").write_text(json.dumps(NOTEBOOK))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "is_saved"),
    [
        ("plot.png", "image/png", False),
        ("data.csv", "text/plain; charset=utf-8", False),
        ("notes.md", "text/plain; charset=utf-8", False),
        ("drawing.svg", "image/svg+xml", False),
        ("page.html", "application/octet-stream", True),
        ("tool.bin", "application/octet-stream", True),
        ("run.ipynb", "application/octet-stream", True),
    ],
)
def test_files_are_sent_with_safe_content_types(
    jupyter: JupyterServer, turn: Path, name: str, kind: str, is_saved: bool
) -> None:
    at = f"{jupyter.url}/files/{jupyter.name(turn)}/workspaces/ada/{name}"
    answer = jupyter.client.get(at)
    assert answer.status_code == 200
    assert answer.content == (turn / "workspaces" / "ada" / name).read_bytes()
    assert answer.headers["Content-Type"] == kind
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert ("attachment" in answer.headers.get("Content-Disposition", "")) == is_saved


def test_contents_of_a_turn_can_be_browsed(jupyter: JupyterServer, turn: Path) -> None:
    name = jupyter.name(turn)
    listed = jupyter.get(f"contents/{name}/workspaces/ada")
    assert {each["name"] for each in listed["content"]} >= {*FILES, "run.ipynb"}
    assert not any(each["writable"] for each in listed["content"])
    table = jupyter.get(f"contents/{name}/workspaces/ada/data.csv")
    assert (table["type"], table["format"], table["content"]) == ("file", "text", "a,b\n1,2\n")
    image = jupyter.get(f"contents/{name}/workspaces/ada/plot.png")
    assert (image["mimetype"], image["format"]) == ("image/png", "base64")
    assert jupyter.get("contents/")["content"] == []
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        at = f"{jupyter.url}/contents/{name}/workspaces/ada/data.csv"
        assert jupyter.client.request(method, at, json={}).status_code == 405


def test_notebooks_of_agents_have_no_trusted_cells(jupyter: JupyterServer, turn: Path) -> None:
    found = jupyter.get(f"contents/{jupyter.name(turn)}/workspaces/ada/run.ipynb")
    assert found["type"] == "notebook"
    assert "trusted" not in found["content"]["cells"][0]["metadata"]


def test_files_outside_the_turn_are_not_opened(
    jupyter: JupyterServer, turn: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (jupyter.root / "mine.txt").write_text("mine")
    folder = turn / "workspaces" / "ada"
    (folder / "link.txt").unlink(missing_ok=True)
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    name = jupyter.name(turn)
    above = "/".join([".."] * 6)
    for path in (
        f"{name}/workspaces/ada/link.txt",
        f"{name}/workspaces/ada/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/mine.txt",
        f"{name}/workspaces/ada/{above}/mine.txt".replace("/", "%2F"),
        "mine.txt",
        f"{name}/gone.txt",
    ):
        for route in ("files", "contents"):
            answer = jupyter.client.get(f"{jupyter.url}/{route}/{path}")
            assert answer.status_code == 404, (route, path, answer.text[:200])


def test_files_need_a_token(jupyter: JupyterServer, turn: Path) -> None:
    at = f"{jupyter.url}/files/{jupyter.name(turn)}/workspaces/ada/data.csv"
    assert httpx2.get(at).status_code == 403
