"""Tests of external agents from npm: a stop and a kill leave nothing behind.

A few cases of the table run each time; `make acp` plays all, and writes their page.
"""

import os
from pathlib import Path

import pytest

from tests.acp.real_agents import VENV, Case, place_of, play

FEW = [
    Case("gemini_cli", "stream", "at once"),
    Case("qwen_code", "tool", "at once"),
    Case("gemini_cli", "question", "at once"),
    Case("qwen_code", "stream", "kill"),
]


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_stop_leaves_no_process_and_resume_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    if not place_of(case.kind):
        pytest.skip(f"{case.kind} is not installed (npm).")
    monkeypatch.setenv("PATH", f"{VENV / 'bin'}:{os.environ['PATH']}")
    is_cut = (case.at, case.how) == ("stream", "at once")
    seen = play(case, tmp_path, 20 if is_cut else None)
    assert seen.left == []
    assert seen.resumed == "completed"
    assert seen.status == ("killed" if case.how == "kill" else "cancelled")
    if case.at == "stream":
        assert seen.is_in_order and seen.is_told
    if is_cut:
        assert seen.journalled == seen.sent == 20
    if case.at == "tool":
        assert seen.keeps_files
