"""Plots and images on a card: a limited number of files of the workspaces, and no other files."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from nb_agents import events as ev
from nb_agents.presentation.workspace_images import (
    MAX_BYTES,
    MAX_IMAGES,
    WorkspaceImage,
    WorkspaceImages,
)
from tests.kit.cards import card_bundle
from tests.kit.views import RunView, fold

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workspaces" / "ada" / "plots"
    folder.mkdir(parents=True)
    return folder


def view_of(*paths: str, size: int = len(PNG)) -> RunView:
    agents = (ev.AgentInfo(id="ada", model="m"),)
    files = tuple(ev.FileInfo(agent="ada", path=path, size=size) for path in paths)
    return fold(
        [
            ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=1, at=1000.0),
            ev.TurnEnded(status="completed", phase="presenting", winner="ada", answer="a", at=1.0),
            ev.FilesListed(files=files, count=len(files), size=size * len(files)),
        ]
    )


def plots_of(view: RunView, turn: Path) -> list[WorkspaceImage]:
    return list(WorkspaceImages(view, turn).plots())


def test_plot_is_on_the_card_with_alternative_text(folder: Path) -> None:
    (folder / 'a"b.png').write_bytes(PNG)
    root = folder.parents[2]
    html = card_bundle(view_of('plots/a"b.png'), str(root))["text/html"]
    encoded = base64.b64encode(PNG).decode().replace("+", "&#43;")
    assert f"data:image/png;base64,{encoded}" in html.replace("+", "&#43;")
    assert 'alt="Plot of ada: plots/a&#34;b.png"' in html


def test_number_of_plots_is_limited(folder: Path) -> None:
    names = [f"{n}.png" for n in range(MAX_IMAGES + 2)]
    for name in names:
        (folder / name).write_bytes(PNG)
    shown = list(
        WorkspaceImages(view_of(*(f"plots/{name}" for name in names)), folder.parents[2]).plots()
    )
    assert [image.about for image in shown] == [f"ada: plots/{n}" for n in names[:MAX_IMAGES]]


def test_only_small_png_files_of_the_folder_are_shown(folder: Path, tmp_path: Path) -> None:
    (folder / "text.png").write_text("<script>")
    (folder / "grown.png").write_bytes(PNG + bytes(MAX_BYTES))
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(folder / "pipe.png")
    (folder / "inner.png").mkdir()
    (folder / "plot.svg").write_bytes(PNG)
    (folder.parent / "outside.png").write_bytes(PNG)
    names = ["text", "grown", "link", "pipe", "inner", "gone", "../outside", "nul\0"]
    paths = [*(f"plots/{name}.png" for name in names), "plots/plot.svg", "outside.png"]
    assert plots_of(view_of(*paths), tmp_path) == []
    (folder / "large.png").write_bytes(PNG)
    assert plots_of(view_of("plots/large.png", size=MAX_BYTES + 1), tmp_path) == []


def test_linked_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    (elsewhere / "a.png").write_bytes(PNG)
    folder.symlink_to(elsewhere)
    assert plots_of(view_of("plots/a.png"), tmp_path) == []


def test_answer_shows_only_images_of_its_workspace(tmp_path: Path) -> None:
    for agent in ("ada", "ben"):
        (tmp_path / "workspaces" / agent).mkdir(parents=True)
    (tmp_path / "workspaces" / "ada" / "a b.png").write_bytes(PNG)
    (tmp_path / "workspaces" / "ada" / "a.svg").write_text("<svg onload='x()'></svg>")
    (tmp_path / "workspaces" / "ada" / "a.jpg").write_text("<script>")
    (tmp_path / "workspaces" / "ben" / "b.png").write_bytes(PNG)
    view = view_of("a b.png", "a.svg", "a.jpg", "../ben/b.png")
    image = WorkspaceImages(view, tmp_path).in_answer("ada")
    assert image("a%20b.png").startswith("data:image/png;base64,")
    assert image("./a.svg").startswith("data:image/svg+xml;base64,")
    for other in (
        "a.jpg",
        "b.png",
        "../ben/b.png",
        "gone.png",
        "http://e/a.png",
        "/a.svg",
        "nul\0",
    ):
        assert image(other) == ""


def test_repeated_image_in_an_answer_is_limited(tmp_path: Path) -> None:
    (tmp_path / "workspaces" / "ada").mkdir(parents=True)
    (tmp_path / "workspaces" / "ada" / "a.png").write_bytes(PNG)
    image = WorkspaceImages(view_of("a.png"), tmp_path).in_answer("ada")
    assert [bool(image("a.png")) for _ in range(MAX_IMAGES + 2)] == [True] * MAX_IMAGES + [
        False
    ] * 2


def test_answer_shows_images_within_its_text_up_to_the_limits(tmp_path: Path) -> None:
    images = WorkspaceImages(view_of(), tmp_path)
    image = images.in_answer("ada")

    def address(kind: str, data: bytes) -> str:
        return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"

    for kind, data in (
        ("svg+xml", b"<svg></svg>"),
        ("png", b"<script>"),
        ("png", PNG + bytes(MAX_BYTES)),
    ):
        assert image(address(kind, data)) == ""
    assert image("data:image/png;base64,#") == image("data:text/html;base64,PHA+") == ""
    gif = address("gif", b"GIF89a" + bytes(9))
    assert [image(gif) for _ in range(MAX_IMAGES + 1)] == [gif] * MAX_IMAGES + [""]
