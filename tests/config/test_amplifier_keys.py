"""Keys of Amplifier's recipes: all are parsed or reported, and none with work is ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.errors import ConfigError
from nb_agents.events import RecipeLoaded
from tests.kit.recipes import Recipe, fold
from tests.kit.teams import Spec

LISTED = yaml.safe_load((Path(__file__).parent / "amplifier_keys.yaml").read_text())
STEP = {"id": "a", "agent": "x", "prompt": "p"}
WORK = {"id": "inner", "type": "bash", "command": "echo ran"}
LOOP = {"id": "loop", "foreach": "{{xs}}"}


class Key(NamedTuple):
    """An Amplifier key and a part of a recipe that contains it."""

    section: str
    name: str
    part: Mapping[str, Any]


def keys() -> Iterator[Key]:
    for section, listed in LISTED.items():
        for name, (_, value, *more) in listed.items():
            yield Key(section, name, {**(more[0] if more else {}), name: value})


KEYS = list(keys())


def recipe_with(section: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with these keys in a section."""
    step = {"id": "a", **part} if section == "step" else dict(STEP)
    stage = {"name": "s", "steps": [step]}
    top: dict[str, Any] = {"name": "r", "description": "d", "version": "1.0.0"}
    top |= {"context": {"xs": ["a"]}}
    match section:
        case "recipe":
            top |= part
        case "recursion" | "rate_limiting" | "orchestrator":
            top[section] = part
        case "backoff":
            top["rate_limiting"] = {"backoff": part}
        case "config":
            top["orchestrator"] = {"config": part}
        case "stage":
            top["stages"] = [stage | part]
        case "approval":
            top["stages"] = [stage | {"approval": part}]
        case "retry":
            step["retry"] = part
        case "provider_preference":
            step["provider_preferences"] = [part]
    if "stages" not in top:
        top.setdefault("steps", [step])
    return top


def load(data: Mapping[str, Any]) -> Recipe:
    return Recipe.from_text(yaml.safe_dump(dict(data)), "r.yaml")


def unread(spec: object) -> Iterator[str]:
    """Yield the keys of a file that no spec has as a field."""
    if isinstance(spec, Spec):
        yield from spec.model_extra or ()
        for name in type(spec).model_fields:
            yield from unread(getattr(spec, name))
    elif isinstance(spec, tuple):
        for each in spec:
            yield from unread(each)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.section}.{key.name}")
def test_every_amplifier_key_is_parsed(key: Key) -> None:
    recipe = load(recipe_with(key.section, key.part))
    assert not list(unread(recipe))
    assert not [str(each) for each in recipe.warnings if "Unknown key" in str(each)]


def test_loop_body_accepts_amplifiers_key_name() -> None:
    by_either = [
        load(recipe_with("step", {**LOOP, key: [WORK, {**WORK, "id": "second"}]}))
        for key in ("steps", "while_steps")
    ]
    bodies = [[step.id for step in recipe.walk()] for recipe in by_either]
    assert bodies == [["loop", "inner", "second"]] * 2


def test_nested_loop_body_accepts_amplifiers_key_name() -> None:
    inner = {**LOOP, "id": "inner", "while_steps": [{**WORK, "id": "deep"}]}
    recipe = load(recipe_with("step", {**LOOP, "while_steps": [inner]}))
    assert [step.id for step in recipe.walk()] == ["loop", "inner", "deep"]


@pytest.mark.parametrize(
    "key, ours", [("while_steps", "steps"), ("as_var", "as"), ("step_context", "context")]
)
def test_key_under_both_names_is_an_error(key: str, ours: str) -> None:
    values = {"steps": [WORK], "as": "each", "context": {"a": 1}}
    more = {"type": "recipe", "recipe": "s.yaml"} if ours == "context" else LOOP
    with pytest.raises(ConfigError, match=rf"has both `{ours}` and `{key}`. Keep one\."):
        load(recipe_with("step", {**more, ours: values[ours], key: values[ours]}))


def test_error_in_aliased_body_has_its_position() -> None:
    text = (
        "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n"
        "- id: loop\n  foreach: '{{xs}}'\n  while_steps:\n  - {id: a, agent: x, timeout: 0}\n"
    )
    with pytest.raises(ConfigError) as caught:
        Recipe.from_text(text, "r.yaml")
    assert {(e.line, e.column) for e in (caught.value, *caught.value.others)} == {(8, 5), (8, 32)}


NESTED = st.recursive(
    st.just(WORK),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner)
    ).filter(bool),
    max_leaves=4,
)


@given(
    section=st.sampled_from(["recipe", "stage", "step"]),
    key=st.sampled_from(["do", "finally", "tasks", "else_steps", "body", "branches"]),
    value=NESTED,
)
def test_unknown_key_with_steps_is_an_error(section: str, key: str, value: Any) -> None:
    part = {**STEP, key: value} if section == "step" else {key: value}
    with pytest.raises(ConfigError, match=rf"{key}' contains steps, which would never run"):
        load(recipe_with(section, part))


@pytest.mark.parametrize(
    "section, key, meant",
    [
        ("step", "when", "condition"),
        ("step", "if", "condition"),
        ("step", "run", "command"),
        ("step", "for_each", "foreach"),
        ("stage", "when", "condition"),
        ("step", "guard", ""),
    ],
)
def test_unknown_key_with_template_is_an_error(section: str, key: str, meant: str) -> None:
    part = {**STEP, key: "{{xs}} == 'a'"} if section == "step" else {key: "{{xs}} == 'a'"}
    with pytest.raises(ConfigError) as caught:
        load(recipe_with(section, part))
    assert f"{key}'" in str(caught.value)
    assert (f"{meant!r}" in str(caught.value)) if meant else "has no effect" in str(caught.value)


@pytest.mark.parametrize(
    "section, part",
    [
        ("recipe", {"metadata": {"agents": ["x"], "command": "ls"}}),
        ("recipe", {"output": {"report": "{{xs}}"}}),
        ("recipe", {"x-review": {"agent": "x", "prompt": "Look at {{xs}}"}}),
        ("step", {**STEP, "description": "Looks at {{xs}}"}),
        ("step", {**STEP, "notes": ["a", "b"]}),
    ],
)
def test_harmless_unknown_key_is_only_a_warning(section: str, part: dict[str, Any]) -> None:
    (warning,) = load(recipe_with(section, part)).warnings
    assert "is ignored" in str(warning)


@pytest.mark.parametrize("lost", [{"when": "{{xs}}"}, {"do": [WORK]}])
def test_journalled_recipe_may_have_an_ignored_key(lost: dict[str, Any]) -> None:
    text = yaml.safe_dump(recipe_with("step", {**STEP, **lost}))
    with pytest.raises(ConfigError):
        Recipe.from_text(text, "r.yaml")
    assert fold([RecipeLoaded(step="", path="", text=text)]).recipes[""].steps
