"""The search for canary keys, and its effect on the test run."""

from __future__ import annotations

import base64
import json
import os
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.canaries import KEY, found_in, found_on_disk

PASSWORD = os.environ.get("CANARY_PASSWORD", "")
ODD = "CANARY_PASSWORD"


@pytest.mark.parametrize(
    "written",
    [
        PASSWORD,
        json.dumps(json.dumps(PASSWORD)),
        quote(PASSWORD, safe=""),
        base64.b64encode(f"a:{PASSWORD}".encode()).decode(),
        base64.b64encode(f"ab:{PASSWORD}".encode()).decode(),
        base64.b64encode(f"abc:{PASSWORD}".encode()).decode(),
    ],
)
def test_canary_is_found_in_all_encodings(written: str) -> None:
    assert found_in(f"<{written}>".encode()) == [ODD]


def test_canaries_are_searched_in_files_of_runs(tmp_path: Path) -> None:
    turn = tmp_path / "sessions" / "s" / "turn_1"
    left = [
        turn / "events.jsonl",
        turn / "workspaces" / "a" / "notes.md",
        turn.parent / "SESSION_SUMMARY.txt",
        tmp_path / "elsewhere" / "debug.log",
        tmp_path / "lab" / "saved.ipynb",
    ]
    for file in [*left, tmp_path / "team.yaml", tmp_path / "sessions" / "given.txt"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"api_key: {KEY}")
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("turn_1/events.jsonl", f"api_key: {KEY}")
    os.mkfifo(turn / "pipe")
    (turn / "link").symlink_to(tmp_path / "team.yaml")
    found = [*found_on_disk(tmp_path)]
    for file in [*left, tmp_path / "export.zip"]:
        file.unlink()
    assert sorted(found) == sorted(
        f"{file} holds the key of models" for file in [*left, tmp_path / "export.zip"]
    )
    assert [*found_on_disk(tmp_path)] == []
