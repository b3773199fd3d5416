"""``%agents check``, ``--model`` and ``--skip-unsupported``, in a live kernel."""

from __future__ import annotations

import re

import pytest

from tests.kernel.notebook import Notebook
from tests.kernel.test_bad_input import NO_RUNS, sentence

TEAM = """\
agents:
  - id: ada
    backend: {type: openai, model: gpt-5, cwd: w}
  - id: coder
    backend: {type: antigravity_cli, model: opus}
timeout_settings: {orchestrator_timeout_seconds: 90}
"""


def test_check_shows_the_report_and_runs_nothing(notebook: Notebook) -> None:
    notebook.team.write_text(TEAM)
    before = notebook.kernel.eval(NO_RUNS)
    result = notebook.kernel.run(f"%agents check {notebook.team}")
    assert result.status == "ok"
    table, report = (display.data["text/plain"] for display in result.displays)
    assert re.search(r"ada +openai +gpt-5 +OPENAI_API_KEY is not set", table)
    assert re.search(r"coder +antigravity_cli +opus", table)
    for part in (
        f"{notebook.team}\nTimeouts: turn 90 s",
        "Ignored keys: agents.backend.cwd",
        "'coder' has backend type 'antigravity_cli', which is not supported. It runs",
        "Agent 'ada' uses 'openai', which needs a key, but OPENAI_API_KEY is not set.",
    ):
        assert part in report
    assert notebook.kernel.eval(NO_RUNS) == before
    assert not list(notebook.root.glob("*"))
    assert notebook.server.count() == 0


MISTAKES = {
    "a missing file": ("%agents check gone.yaml", r"gone\.yaml: No such file"),
    "no file": ("%agents check", r"FILE"),
    "no provider": ("%%agents --model llama-3\nCount.", r"Use 'provider:llama-3'"),
    "unknown provider": ("%%agents -m opnai:gpt-5\nCount.", r"Did you mean 'openai'"),
    "both": ("%%agents -m demo: --config t.yaml\nCount.", r"Remove --model or --config"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_reported_in_a_sentence(notebook: Notebook, name: str) -> None:
    source, pattern = MISTAKES[name]
    told = sentence(notebook.kernel.run(source))
    assert re.search(pattern, told), told


def test_check_reports_every_fault_of_a_file(notebook: Notebook) -> None:
    notebook.team.write_text("agents:\n- id: a\n- backend: {type: demo, modle: x}\n")
    told = notebook.kernel.run(f"%agents check {notebook.team}").stderr
    assert "team.yaml:2:3: 'agents.0.backend' is missing" in told
    assert "team.yaml:3:25: Unknown key" in told
    assert "Traceback" not in told


def test_model_runs_without_a_team_file(notebook: Notebook) -> None:
    root = f"--session-root {notebook.root}"
    result = notebook.kernel.run(f"%%agents --model demo: --wait --out run {root}\nCount.")
    assert result.status == "ok"
    assert notebook.kernel.eval("list(run.view.agents)") == ["agent1"]


def test_other_agents_run_when_unsupported_ones_are_skipped(notebook: Notebook) -> None:
    notebook.team.write_text(TEAM.replace("openai, model: gpt-5", "demo"))
    root = f"--config {notebook.team} --session-root {notebook.root}"
    told = sentence(notebook.kernel.run(f"%%agents {root}\nCount."))
    assert "'coder' has backend type 'antigravity_cli'" in told
    line = f"%%agents --skip-unsupported --wait --out run {root}\nCount."
    assert notebook.kernel.run(line).status == "ok"
    assert notebook.kernel.eval("list(run.view.agents)") == ["ada"]
