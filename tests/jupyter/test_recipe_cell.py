"""The values below `%%agents --recipe`: YAML with variables of the notebook."""

from __future__ import annotations

from typing import Any

import pytest

from nb_agents.errors import TaskError
from tests.kit.cards import recipe_context

NAMES: dict[str, Any] = {
    "files": ["a.md", "b.md"],
    "limits": {"deep": 2, "wide": None},
    "half": 0.5,
    "on": True,
    "nothing": None,
    "city": "Oslo",
    "evil": 'x: {{files}} # "\n- y: &a *a !!python/object:os.system',
}


@pytest.mark.parametrize(
    "cell, wanted",
    [
        ("", {}),
        ("\n\n", {}),
        ("# nothing to say", {}),
        ("depth: 2\ntopic: iced tea", {"depth": 2, "topic": "iced tea"}),
        ("list:\n  - 1\n  - a: b", {"list": [1, {"a": "b"}]}),
        ("2: two", {"2": "two"}),
        # A variable alone keeps its type, quoted or not.
        ("x: {{files}}", {"x": ["a.md", "b.md"]}),
        ('x: "{{files}}"', {"x": ["a.md", "b.md"]}),
        ("x: {{ limits }}", {"x": {"deep": 2, "wide": None}}),
        ("x: {{half}}\ny: {{on}}\nz: {{nothing}}", {"x": 0.5, "y": True, "z": None}),
        ("x: [{{city}}, {in: {{half}}}]", {"x": ["Oslo", {"in": 0.5}]}),
        # Within other text, it is inserted as text.
        ("x: parks of {{city}} and {{half}}", {"x": "parks of Oslo and 0.5"}),
        ("x: |\n  To {{city}}\n  at once", {"x": "To Oslo\nat once"}),
        ("{{city}}: 1", {"Oslo": 1}),
        # Its value is not parsed as YAML and not searched for variables.
        ("x: {{evil}}\ny: 1", {"x": NAMES["evil"], "y": 1}),
        ("x: said {{evil}}!", {"x": f"said {NAMES['evil']}!"}),
        # Literal braces.
        (r"x: \{{city}}", {"x": "{{city}}"}),
        (r'x: "\{{city}} is {{city}}"', {"x": "{{city}} is Oslo"}),
        (r"x: '{city} $city \{{city.name}} {{ }}'", {"x": "{city} $city {{city.name}} {{ }}"}),
        ("# {{unknown}}\nx: 1", {"x": 1}),
    ],
)
def test_cell_contains_recipe_values(cell: str, wanted: dict[str, Any]) -> None:
    assert recipe_context(cell, [], NAMES) == wanted


def test_variable_is_not_copied() -> None:
    assert recipe_context("x: {{files}}", [], NAMES)["x"] is NAMES["files"]


@pytest.mark.parametrize(
    "settings, wanted",
    [
        (["depth=3"], {"depth": 3, "topic": "tea"}),
        (["depth=3", "depth=4"], {"depth": 4, "topic": "tea"}),
        (["new=a=b"], {"depth": 2, "topic": "tea", "new": "a=b"}),
        (["topic=[a, b]"], {"depth": 2, "topic": ["a", "b"]}),
        (["topic="], {"depth": 2, "topic": None}),
        (["topic=iced tea"], {"depth": 2, "topic": "iced tea"}),
    ],
)
def test_set_overrides_the_cell(settings: list[str], wanted: dict[str, Any]) -> None:
    assert recipe_context("depth: 2\ntopic: tea", settings, NAMES) == wanted


@pytest.mark.parametrize(
    "cell, settings, wanted",
    [
        ("Write a poem.", [], "contains the recipe's values, one `name: value` per line"),
        ("- a\n- b", [], "contains the recipe's values, one `name: value` per line"),
        ("a: 1\nb: c: d", [], "are not valid YAML (line 2). Write `name: value`"),
        ("a: [1", [], "are not valid YAML (line 1)"),
        ("a: !!python/name:os.system", [], "are not valid YAML (line 1)"),
        ("[" * 5000, [], "are not valid YAML"),
        ("a: 2026-99-99", [], "are not valid YAML"),
        ("a: !!bool maybe", [], "are not valid YAML"),
        ("", ["a=!!timestamp soon"], "are not valid YAML"),
        ("a: {{unknown}}", [], "The cell uses {{unknown}}, but variable 'unknown' is not defined."),
        ("{{unknown}}: 1", [], "variable 'unknown' is not defined"),
        ("a: '{{user-id}}'", [], "uses {{user-id}}, but that is not a valid variable name"),
        ("", ["depth"], "--set depth is not NAME=VALUE."),
        ("", ["=3"], "--set =3 is not NAME=VALUE."),
        ("", ["a.b=3"], "--set a.b=3 is not NAME=VALUE."),
        ("", ["a=[1"], "are not valid YAML"),
    ],
)
def test_invalid_values_are_reported_in_a_sentence(
    cell: str, settings: list[str], wanted: str
) -> None:
    with pytest.raises(TaskError) as caught:
        recipe_context(cell, settings, NAMES)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)
