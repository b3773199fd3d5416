"""Findings for an editor about a team file or recipe, without running anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import ConfigError
from nb_agents.launch.findings import Finding, findings

RECIPE = """name: look
description: Looks at a file.
version: 1.0.0
steps:
  - id: see
    type: bash
    command: echo {{who}} > ran
"""


def of(text: str, folder: Path) -> list[Finding]:
    return findings(text, str(folder / "team.yaml"))


def test_misspelled_key_is_an_error_at_its_position(tmp_path: Path) -> None:
    [found] = of("agents:\n  - id: a\n    backend: {type: demo, temprature: 1}\n", tmp_path)
    assert found.severity == "error" and "did you mean 'temperature'" in found.what
    assert (found.line, found.column) == (3, 27)


def test_missing_api_key_is_a_warning_at_the_agents_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = "agents:\n  - id: a\n    backend:\n      type: openai\n      model: gpt-5-mini\n"
    [found] = of(text, tmp_path)
    assert found.severity == "warning" and "OPENAI_API_KEY" in found.what
    assert found.line == 4


def test_finding_without_a_position_is_at_the_first_line(tmp_path: Path) -> None:
    [found] = of("agents:\n  - {id: a, backend: {type: demo, temperature: 1}}\n", tmp_path)
    assert (found.severity, found.line) == ("info", None)


def test_all_faults_are_reported_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those for which the other agents of an invalid file can't start."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    text = (
        "agents:\n"
        "- {id: a, backend: {type: demo, temprature: 1}}\n"
        "- {id: b, backend: {type: openai, model: m}}\n"
        "- {id: c, backend: {type: claude, model: m}}\n"
        "- {id: d, backend: {type: opnai, model: m}}\n"
    )
    found = {(each.code, each.line) for each in of(text, tmp_path)}
    assert found == {
        ("unknown-key", 2),
        ("missing-key", 3),
        ("missing-key", 4),
        ("unsupported-type", 5),
    }
    file = tmp_path / "team.yaml"
    for given in (text, text.replace("temprature", "temperature")):
        file.write_text(given)
        with pytest.raises(ConfigError) as refused:
            nb_agents.start("t", file, options=RunOptions(session_root=tmp_path / "sessions"))
        assert [each.line for each in refused.value.others] == [5, 3, 4]


def test_finding_has_a_separate_remedy(tmp_path: Path) -> None:
    text = "agents: [{backend: {type: demo}}]\norchestrator: {context_paths: [/no/such/path]}\n"
    [found] = of(text, tmp_path)
    assert found.code == "missing-path"
    assert found.message == "Context path '/no/such/path' does not exist."
    assert found.what == f"{found.message} Correct or remove it."


def test_invalid_yaml_is_one_error(tmp_path: Path) -> None:
    [found] = of("agents:\n  - id: [\n", tmp_path)
    assert found.severity == "error" and "Not valid YAML" in found.what


def test_a_recipe_is_checked_and_its_commands_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [found] = of(RECIPE, tmp_path)
    assert found.severity == "warning" and "{{who}}" in found.what and found.line == 7
    assert not (tmp_path / "ran").exists()


def test_an_agents_object_and_its_tools_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "typed_object.py").write_text("raise SystemExit('it was imported')")
    tool = "{name: [f], path: typed_object.py, function: [f]}"
    text = (
        "agents:\n  - {id: a, backend: {type: python, object: 'typed_object:x'}}\n"
        f"  - {{id: b, backend: {{type: demo, custom_tools: [{tool}]}}}}\n"
    )
    assert not any(found.severity == "error" for found in of(text, tmp_path))
    assert "typed_object" not in sys.modules


def test_key_from_the_environment_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-1234567890abcdefghij"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    text = "agents:\n  - {id: '${OPENAI_API_KEY}', backend: {type: openia, model: m}}\n"
    found = of(text, tmp_path)
    assert found and not any(secret in each.what for each in found)
