"""The fields that a recipe reads of a step's result, and the prompt that asks for them."""

import json
from typing import Any

import pytest

from tests.kit.recipes import JSON_PROMPT_SUFFIX, Recipe, ResultUse, usage_of_results
from tests.recipes.play import Play, recipe

A = "{id: a, agent: x, prompt: p, output: out}"


def _wanted(body: str, step: str = "a") -> ResultUse:
    return usage_of_results(Recipe.from_text(recipe(body), "r.yaml")).get(step, ResultUse())


def _reading(step: str) -> str:
    """Return a recipe with step `a`, whose output is `out`, and a step after it."""
    return f"steps:\n- {A}\n- {{id: b, {step}}}\n"


def says(text: str) -> str:
    """Return the keys of a bash step that prints a text."""
    return f"type: bash, command: {json.dumps(f'echo {text}')}"


@pytest.mark.parametrize(
    "step, example",
    [
        (says("{{out.title}}"), {"title": "…"}),
        (says("{{ out.a.b | raw }} {{out.a.c}}"), {"a": {"b": "…", "c": "…"}}),
        (says("{{#if out.is}}{{out.a}}{{else}}{{out.b}}{{/if}}"), {"is": "…", "a": "…", "b": "…"}),
        ("type: bash, command: c, env: {X: '{{out.x}}'}, cwd: '{{out.y}}'", {"x": "…", "y": "…"}),
        ("type: recipe, recipe: r.yaml, context: {a: {b: ['{{out.deep}}']}}", {"deep": "…"}),
        ("type: bash, command: c, retry: {max_attempts: '{{out.tries}}'}", {"tries": "…"}),
        ("foreach: '{{out.files}}', " + says("{{item}}"), {"files": ["…"]}),
        ("foreach: '{{out.files}}', as: f, " + says("{{f.path}}"), {"files": [{"path": "…"}]}),
        ("foreach: '{{out}}', " + says("c"), ["…"]),
        ("foreach: '{{out}}', as: o, steps: [{id: c, foreach: '{{o.in}}', as: i, "
         + says("{{i.x}} {{o.y}}") + "}]", [{"in": [{"x": "…"}], "y": "…"}]),
        ("foreach: '{{out.files}}', " + says("{{item.x}} {{out.files}}"), {"files": [{"x": "…"}]}),
    ],
)  # fmt: skip
def test_all_reads_of_a_field_are_found(step: str, example: Any) -> None:
    found = _wanted(_reading(step))
    assert found.example == example
    assert found.is_json


@pytest.mark.parametrize(
    "condition, value",
    [
        ("{{out.x}} == 'ok'", "ok"),
        ("'ok' == {{out.x}}", "ok"),
        ("{{out.x}} == 'true'", True),
        ("{{out.x}} == 3", 3),
        ("{{out.x}} == '0.5'", 0.5),
        ("{{out.x}} == '1.50'", "1.50"),
        ("{{out.x}} != 'none'", "…"),
        ("{{out.x}} != 'none' or {{out.x}} == 'bad'", "bad"),
        ("not {{out.x}} != 'none'", "none"),
        ("{{out.x}} >= 8", 8),
        ("{{out.x}} > 8", 9),
        ("{{out.x}} < 8", 7),
        ("not {{out.x}} <= 8", 9),
        ("{{out.x}} > 'b'", "b"),
        ("{{out.x}}", True),
        ("not {{out.x}}", False),
        ("{{out.x}} contains 'PASS'", "PASS"),
        ("not {{out.x}} contains 'PASS'", "…"),
        ("{{out.x}} == {{out.y}}", "…"),
    ],
)
def test_example_makes_conditions_true(condition: str, value: Any) -> None:
    for step in (
        f'condition: "{condition}", {says("c")}',
        f'while_condition: "true", break_when: "{condition}", {says("c")}',
    ):
        example = _wanted(_reading(step)).example
        assert (example["x"], type(example["x"])) == (value, type(value))


@pytest.mark.parametrize(
    "condition, value",
    [
        ("{{out.x}} != 'done'", "done"),
        ("{{out.x}} == 'open'", "…"),
        ("{{out.x}} < 8", 8),
        ("{{out.x}} >= 8", 7),
        ("{{out.x}}", False),
    ],
)
def test_example_ends_loops(condition: str, value: Any) -> None:
    body = f'while_condition: "{condition}", {says("c")}'
    assert _wanted(_reading(body)).example == {"x": value}


def test_reads_in_stages_and_gates_are_found() -> None:
    body = f"""stages:
- {{name: one, steps: [{A}], approval: {{required: true, prompt: "{{{{out.why}}}}?"}},
   auto_approve_if: ["{{{{out.risk}}}} == 'low'"]}}
- {{name: two, condition: "{{{{out.go}}}}", steps: [{{id: b, {says("c")}}}],
   approval_required: true, approval_message: "{{{{out.more}}}}?"}}
"""
    assert _wanted(body).example == {"why": "…", "risk": "low", "go": True, "more": "…"}


def test_value_is_followed_under_its_other_names() -> None:
    loop = """steps:
- id: l
  while_condition: "{{score}} < 8"
  update_context: {score: "{{out.score}}", files: "{{out.files}}", note: "so {{out.why}}"}
  steps: [{id: a, agent: x, prompt: p, output: out}]
- {id: b, foreach: "{{files}}", as: file, type: bash, command: "{{file.path}}"}
"""
    assert _wanted(loop).example == {"score": 8, "files": [{"path": "…"}], "why": "…"}


def test_cyclic_copies_of_variables_end() -> None:
    loop = """steps:
- id: l
  while_condition: "true"
  update_context: {b: "{{c.x}}", c: "{{b.y}}"}
  steps: [{id: a, agent: x, prompt: p, output: b}]
"""
    assert _wanted(loop).example == {"y": {"x": {"y": "…"}}}


@pytest.mark.parametrize(
    "loop",
    [
        "- {id: a, agent: x, prompt: p, foreach: '{{list}}', collect: all}",
        "- {id: l, foreach: '{{list}}', collect: all, steps: [{id: a, agent: x, prompt: p}]}",
        "- {id: a, agent: x, prompt: p, while_condition: 'true', collect: all}",
    ],
)
def test_collected_result_is_that_of_the_last_step(loop: str) -> None:
    read = "- {id: b, foreach: '{{all}}', type: bash, command: '{{item.name}} {{all.x}}'}"
    body = f"context: {{list: [1]}}\nsteps:\n{loop}\n{read}\n"
    assert _wanted(body).example == {"name": "…"}


@pytest.mark.parametrize(
    "step",
    [
        says("{{out}} {{outer.x}} {{other.out.x}} {{steps.a-b.out.x}} {% out.x %} ${{ out.x }}"),
        says(r"\{{out.x}}"),
        f"condition: \"{{{{out}}}} contains 'x'\", {says('c')}",
        f'condition: "{{{{out}}}}", {says("c")}',
        f"condition: \"{{{{out}}}} != 'x'\", {says('c')}",
        f"condition: \"{{{{out}}}} == ''\", {says('c')}",
    ],
)
def test_no_suffix_if_any_text_is_fine(step: str) -> None:
    assert _wanted(_reading(step)).rider == ""


def test_whole_result_is_requested_by_its_literals() -> None:
    body = f"""steps:
- {A}
- {{id: b, condition: "{{{{out}}}} != 'none'", {says("c")}}}
- {{id: c, condition: "{{{{out}}}} == 'high' or {{{{out}}}} == 'low'", {says("c")}}}
"""
    found = _wanted(body)
    assert found.rider == (
        '\n\nLater steps compare your whole result with "high" or "low" or "none".'
    )
    assert not found.is_json


def test_prompt_ends_with_fields_and_comparisons() -> None:
    step = "condition: \"{{out.s}} == 'ok' or {{out.s}} == 'bad' and {{out.n}} > 2\", "
    said = _wanted(_reading(step + says("{{out.list}}"))).rider
    assert said == (
        "\n\nLater steps read these fields of your result; the values here are examples:\n\n"
        '```json\n{"s": "ok", "n": 3, "list": "…"}\n```\n\n'
        'They compare `s` with "ok" or "bad"; `n` with 2.'
    )


@pytest.mark.parametrize("more", ["", ", parse_json: true"])
def test_step_with_read_fields_must_return_json(more: str) -> None:
    body = f"steps:\n- {{id: a, agent: x, prompt: p, output: out{more}}}\n"
    body += f"- {{id: b, output: got, {says('{{out.x}}')}}}\n"
    play = Play(recipe(body), {"a": 'Here:\n```json\n{"x": 5}\n```\n'}).run()
    asked = dict(play.asked)
    assert asked["a"].startswith(f"p{JSON_PROMPT_SUFFIX}\n\nLater steps read")
    assert asked["b"].endswith('"${nb_value_0}"')
    assert play.outputs["out"] == {"x": 5}


def test_step_without_read_fields_keeps_its_text() -> None:
    body = f"steps:\n- {A}\n- {{id: b, {says('{{out}}')}}}\n"
    text = 'Here:\n```json\n{"x": 5}\n```'
    play = Play(recipe(body), {"a": text}).run()
    assert play.asked[0] == ("a", "p")
    assert play.outputs["out"] == text


def test_called_recipe_gets_the_reads_of_its_caller() -> None:
    main = f"""context: {{list: [1]}}
steps:
- {{id: c, type: recipe, recipe: sub.yaml, foreach: "{{{{list}}}}", collect: all}}
- {{id: d, foreach: "{{{{all}}}}", {says("{{item.out.grade}}")}}}
"""
    play = Play(recipe(main), {"c[0]/a": '{"grade": 1}'}, {"sub.yaml": recipe(f"steps: [{A}]")})
    assert '{"grade": "…"}' in play.run().asked[0][1]
    assert play.outputs["all"] == [{"out": {"grade": 1}}]


def test_invalid_condition_is_ignored_here() -> None:
    text = recipe(_reading(says("{{out.x}}")))
    broken = Recipe.from_text(text.replace("{{out.x}}", "{{out.x}} {{#if x"), "r.yaml")
    step = broken.stages[0].steps[1].model_copy(update={"condition": "{{out.y}} =="})
    stage = broken.stages[0].model_copy(update={"steps": (broken.stages[0].steps[0], step)})
    found = usage_of_results(broken.model_copy(update={"stages": (stage,)}))
    assert found["a"].example == {"x": "…"}
