"""What an editor is told of a team file or a recipe while it is typed; nothing of it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nb_agents.launch.findings import TextFinding, findings

RECIPE = """name: look
description: Looks at a file.
version: 1.0.0
steps:
  - id: see
    type: bash
    command: echo {{who}} > ran
"""


def of(text: str, folder: Path) -> list[TextFinding]:
    return findings(text, str(folder / "team.yaml"))


def test_a_misspelled_key_is_an_error_at_its_place(tmp_path: Path) -> None:
    [found] = of("agents:\n  - id: a\n    backend: {type: demo, temprature: 1}\n", tmp_path)
    assert found.severity == "error" and "did you mean 'temperature'" in found.what
    assert (found.line, found.column) == (3, 27)


def test_a_key_that_is_not_set_is_a_warning_at_the_agents_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = "agents:\n  - id: a\n    backend:\n      type: openai\n      model: gpt-5-mini\n"
    [found] = of(text, tmp_path)
    assert found.severity == "warning" and "OPENAI_API_KEY" in found.what
    assert found.line == 4


def test_what_has_no_place_is_said_at_the_first_line(tmp_path: Path) -> None:
    [found] = of("agents:\n  - {id: a, backend: {type: demo, temperature: 1}}\n", tmp_path)
    assert (found.severity, found.line) == ("info", 1)


def test_text_that_is_no_yaml_is_one_error(tmp_path: Path) -> None:
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


def test_a_key_in_the_environment_is_in_no_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-1234567890abcdefghij"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    text = "agents:\n  - {id: '${OPENAI_API_KEY}', backend: {type: openia, model: m}}\n"
    found = of(text, tmp_path)
    assert found and not any(secret in each.what for each in found)
