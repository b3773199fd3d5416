"""Recipe files: parsing, errors with their positions, and warnings."""

import copy
import json
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nb_agents.errors import ConfigError
from nb_agents.extensions.recipes.recipe import Recipe
from tests.kit.recipes import Backoff, Range, Step, StepRetry, recipe_values

HEAD = "name: r\ndescription: d\nversion: 1.0.0\n"
AGENT = "- {id: a, agent: x, prompt: p}\n"


def load(text: str) -> Recipe:
    return Recipe.from_text(text, "r.yaml")


def step(keys: str) -> Step:
    return load(f"{HEAD}steps:\n- {{id: a, {keys}}}\n").stages[0].steps[0]


def faults(text: str) -> list[ConfigError]:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return [caught.value, *caught.value.others]


def step_faults(keys: str) -> list[ConfigError]:
    return faults(f"{HEAD}steps:\n- {{id: a, {keys}}}\n")


def stage_faults(keys: str) -> list[ConfigError]:
    return faults(f"{HEAD}stages:\n- {{name: s, steps: [{{id: a, agent: x, prompt: p}}], {keys}}}")


# Parsing ----------


def test_flat_recipe_has_one_unnamed_stage() -> None:
    recipe = load(f"{HEAD}steps:\n{AGENT}")
    assert [(stage.name, [s.id for s in stage.steps]) for stage in recipe.stages] == [("", ["a"])]
    assert not recipe.is_staged
    assert [placed.path for placed in recipe.placed_stages] == [()]


def test_stages_have_their_positions() -> None:
    recipe = load(f"{HEAD}stages:\n- name: one two\n  steps:\n  {AGENT}")
    assert recipe.is_staged
    assert [(p.stage.name, p.path) for p in recipe.placed_stages] == [("one two", ("stages", 0))]


def test_defaults_match_amplifier() -> None:
    it = step("agent: x, prompt: p")
    assert (it.type, it.timeout, it.on_error, it.parse_json) == ("agent", 600, "fail", False)
    assert it.retry == StepRetry(
        max_attempts=1, backoff="exponential", initial_delay=5, max_delay=300
    )
    assert (it.as_, it.max_iterations, it.parallel) == ("item", 100, False)
    assert (it.max_while_iterations, it.checkpoint_iterations) == (100, False)
    recipe = load(f"{HEAD}rate_limiting: {{}}\nsteps:\n{AGENT}")
    assert (recipe.recursion.max_depth, recipe.recursion.max_total_steps) == (5, 100)
    assert recipe.rate_limiting is not None
    assert recipe.rate_limiting.max_concurrent_llm is None
    assert recipe.rate_limiting.backoff == Backoff(
        enabled=True,
        initial_delay_ms=1000,
        max_delay_ms=60000,
        multiplier=2.0,
        reset_after_success=3,
    )
    gate = load(f"{HEAD}stages: [{{name: s, approval: {{}}, steps: [{AGENT[2:-1]}]}}]").stages[0]
    assert (gate.approval.required, gate.approval.timeout, gate.approval.default) == (
        False,
        0,
        "deny",
    )
    assert gate.gate is None


def test_every_kind_of_step_and_loop_is_parsed() -> None:
    recipe = load(
        HEAD
        + """\
steps:
- {id: ask, agent: x, prompt: p, provider_preferences: [{class: reasoning, required: true}]}
- {id: run, type: bash, command: ls, cwd: /tmp, env: {PORT: 80, FLAG: true}, output_exit_code: c}
- {id: call, type: recipe, recipe: other.yaml, context: {a: [1]}, recursion: {max_depth: 2}}
- id: each
  foreach: "{{ files.all }}"
  as: file
  parallel: 3
  collect: done
  steps:
  - {id: inner, agent: x, prompt: "{{file}}", depends_on: run}
- {id: again, agent: x, prompt: p, while_condition: true, break_when: "{{n}} > 3",
   update_context: {n: "{{_loop_index}}"}, depends_on: [ask, each], on_error: skip_remaining}
"""
    )
    ask, run, call, each, again = recipe.stages[0].steps
    assert [s.kind for s in recipe.steps] == ["agent", "bash", "recipe", "group", "agent"]
    assert (ask.provider_preferences[0].class_, ask.provider_preferences[0].required) == (
        "reasoning",
        True,
    )
    assert run.env == {"PORT": "80", "FLAG": "true"}
    assert call.recursion is not None and call.recursion.max_depth == 2
    assert (each.as_, each.parallel, each.is_loop) == ("file", 3, True)
    assert each.steps[0].depends_on == ("run",)
    assert (again.while_condition, again.depends_on) == ("true", ("ask", "each"))


@pytest.mark.parametrize(
    "keys, name",
    [
        ("timeout: '{{t}}'", "timeout"),
        ("foreach: '{{x}}', max_iterations: '{{t}}'", "max_iterations"),
        ("foreach: '{{x}}', parallel: '{{t}}'", "parallel"),
        ("while_condition: '{{x}}', max_while_iterations: '{{t}}'", "max_while_iterations"),
    ],
)
def test_number_may_be_a_template(keys: str, name: str) -> None:
    assert getattr(step(f"agent: x, prompt: p, {keys}"), name) == "{{t}}"


def test_number_of_attempts_may_be_a_template() -> None:
    assert step("agent: x, prompt: p, retry: {max_attempts: '{{t}}'}").retry.max_attempts == "{{t}}"


@pytest.mark.parametrize(
    "keys, asks",
    [
        ("approval: {required: true, prompt: Go}", "Go"),
        ("approval_required: true, approval_message: Go on", "Go on"),
        ("approval: {timeout: 9, prompt: Go}, approval_required: true", "Go"),
        ("approval: {prompt: Go}", None),
        ("approval_required: false, approval_message: Go", None),
    ],
)
def test_gate_has_two_forms(keys: str, asks: str | None) -> None:
    text = f"{HEAD}stages:\n- {{name: s, steps: [{{id: a, agent: x, prompt: p}}], {keys}}}"
    gate = load(text).stages[0].gate
    assert (gate.prompt if gate else None) == asks


def test_stage_keys_that_amplifier_ignores_are_parsed() -> None:
    keys = "condition: '{{x}}', approval_required: true, approval_message: m"
    for written, kept in (("'{{a}}'", ("{{a}}",)), ("['{{a}}', '{{b}}']", ("{{a}}", "{{b}}"))):
        more = f"{keys}, auto_approve_if: {written}"
        stage = load(f"{HEAD}stages:\n- {{name: s, {more}, steps: [{AGENT[2:-1]}]}}").stages[0]
        assert (stage.condition, stage.auto_approve_if) == ("{{x}}", kept)


def test_declared_variables_have_defaults_or_are_required() -> None:
    recipe = load(
        HEAD
        + """\
context:
  topic: {type: string, required: true, description: What about}
  rounds: {type: integer, default: 5}
  label: {type: string, description: No default}
  plain: {type: string}
  other: {type: string, default: x, size: 3}
  day: 2026-01-02
steps:
"""
        + AGENT
    )
    assert recipe.required == ("topic",)
    assert recipe.context == {
        "rounds": 5,
        "label": "",
        "plain": {"type": "string"},
        "other": {"type": "string", "default": "x", "size": 3},
        "day": "2026-01-02",
    }


def test_recipe_has_its_source_and_path(tmp_path: Path) -> None:
    source = f"# über\r\n{HEAD}steps:\n{AGENT}# end\n"
    path = tmp_path / "r.yaml"
    path.write_bytes(source.encode())
    recipe = Recipe.from_file(path)
    assert (recipe.text, recipe.path) == (source, path)
    again = Recipe.from_text(recipe.text, "turn", path=recipe.path)
    assert again.stages == recipe.stages
    assert load(source).path is None


def test_a_recipe_is_frozen_and_can_be_copied_and_pickled() -> None:
    recipe = load(f"{HEAD}unknown: 1\nsteps:\n{AGENT}")
    with pytest.raises(ValidationError):
        recipe.name = "other"  # type: ignore[misc]
    for other in (copy.deepcopy(recipe), pickle.loads(pickle.dumps(recipe))):
        assert (other.text, other.stages) == (recipe.text, recipe.stages)
        assert [*map(str, other.warnings)] == [*map(str, recipe.warnings)]


def test_shell_variables_are_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    recipe = load(HEAD + "steps:\n- {id: a, type: bash, command: 'echo ${SECRET_KEY}'}\n")
    assert recipe.steps[0].command == "echo ${SECRET_KEY}"


def test_a_recipe_may_be_json() -> None:
    data = {"name": "r", "description": "d", "version": "1.0.0"}
    steps = [{"id": "a", "agent": "x", "prompt": "p\ttab"}]
    assert load(json.dumps({**data, "steps": steps})).steps[0].prompt == "p\ttab"


def test_yaml_merge_keys_work() -> None:
    recipe = load(f"{HEAD}steps:\n- &one {{id: a, agent: x, prompt: p}}\n- {{<<: *one, id: b}}\n")
    assert [s.agent for s in recipe.steps] == ["x", "x"]
    assert recipe.warnings == ()


# Errors ----------


def test_all_errors_are_reported_with_their_positions() -> None:
    text = """\
name: bad name!
descripton: d
version: 1.0
steps:
- {id: a, agent: x, prompt: p, timout: 3}
- {id: a, type: bash, command: ls, agent: x}
- {id: c, agent: x, prompt: p, depends_on: [d], timeout: -1}
- {id: d, agent: x, prompt: p, on_error: Continue}
"""
    told = [(e.line, e.column, e.message) for e in faults(text)]
    expected = [
        (1, 7, "not a recipe name"),
        (2, 1, "'description' is missing; did you write 'descripton' instead?"),
        (3, 10, 'write text with three parts, such as "1.0.0"'),
        (5, 32, "Unknown key 'steps.0.timout'; did you mean 'timeout'?"),
        (6, 8, "Two steps have the id 'a'."),
        (6, 36, "Step 'a' has type bash and can't have `agent`."),
        (7, 45, "Step 'd' does not come earlier"),
        (7, 58, "-1 is not a number of seconds above 0"),
        (8, 42, "(nearest: 'continue')"),
    ]
    assert [t[:2] for t in told] == [e[:2] for e in expected]
    for (_, _, message), (_, _, part) in zip(told, expected, strict=True):
        assert part in message


@pytest.mark.parametrize(
    "keys, said",
    [
        ("prompt: p", "Step 'a' has no `agent`. Add the name of an agent."),
        ("agent: x", "Step 'a' has no `prompt`. Add the agent's task."),
        ("type: bash", "Step 'a' has no `command`."),
        ("type: bash, command: '  '", "Step 'a' has no `command`."),
        ("type: recipe", "Step 'a' has no `recipe`."),
        ("agent: x, prompt: p, command: ls", "can't have `command`. Remove it, or set `type: bash"),
        ("agent: x, prompt: p, recipe: r", "can't have `recipe`"),
        ("agent: x, prompt: p, context: {a: 1}", "can't have `context`"),
        ("type: bash, command: ls, prompt: p", "can't have `prompt`"),
        ("type: bash, command: ls, mode: m", "can't have `mode`"),
        ("type: bash, command: ls, agent_config: {a: 1}", "can't have `agent_config`"),
        ("type: bash, command: ls, recursion: {max_depth: 2}", "can't have `recursion`"),
        ("type: recipe, recipe: r, agent: x", "can't have `agent`"),
        ("type: recipe, recipe: r, command: ls", "can't have `command`"),
        ("type: bsh, command: ls", "(nearest: 'bash')"),
        ("agent: x, prompt: p, output: a-b", "'a-b' can't be a variable"),
        ("agent: x, prompt: p, output: session", "'session' is set by the run itself"),
        ("type: bash, command: ls, output_exit_code: step", "'step' is set by the run itself"),
        ("agent: x, prompt: p, foreach: '{{f}}', as: a b", "'a b' can't be a variable"),
        ("agent: x, prompt: p, foreach: '{{f}}', collect: recipe", "set by the run itself"),
        ("agent: x, prompt: p, timeout: 0", "0 is not a number of seconds above 0"),
        ("agent: x, prompt: p, timeout: soon", "write a number of seconds above 0 or a {{var"),
        ("agent: x, prompt: p, timeout: .inf", "inf is not a number of seconds"),
        ("agent: x, prompt: p, timeout: true", "True is not a number"),
        ("agent: x, prompt: p, retry: {max_attempts: 0}", "0 is not a whole number >= 1"),
        ("agent: x, prompt: p, retry: {max_attempts: 1.5}", "1.5 is not a whole number"),
        ("agent: x, prompt: p, retry: {backoff: linaer}", "(nearest: 'linear')"),
        ("agent: x, prompt: p, retry: 3", "steps.0.retry"),
        ("agent: x, prompt: p, foreach: files", "`foreach` must be a single variable"),
        ("agent: x, prompt: p, foreach: '{{a}} {{b}}'", "`foreach` must be a single variable"),
        ("agent: x, prompt: p, foreach: '{{a}}', parallel: 0", "0 is not a whole number >= 1"),
        (
            "agent: x, prompt: p, foreach: '{{a}}', while_condition: true",
            "can't have both `foreach`",
        ),
        ("agent: x, prompt: p, parallel: true", "`parallel` needs `foreach`"),
        ("agent: x, prompt: p, checkpoint_iterations: true", "needs `foreach`"),
        (
            "agent: x, prompt: p, foreach: '{{a}}', parallel: 2, checkpoint_iterations: true",
            "can't be combined",
        ),
        (
            "agent: x, prompt: p, while_condition: 'yes'",
            "`while_condition` must contain a {{variable}}",
        ),
        (
            "agent: x, prompt: p, while_condition: false",
            "`while_condition` must contain a {{variable}}",
        ),
        (
            "agent: x, prompt: p, while_condition: true, max_while_iterations: 1001",
            "1001 is not a whole number from 1 to 1000",
        ),
        ("agent: x, prompt: p, break_when: '{{a}}'", "`break_when` needs `while_condition` or"),
        ("agent: x, prompt: p, update_context: {a: 1}", "`update_context` needs"),
        ("steps: [{id: b, agent: x, prompt: p}]", "Nested `steps` need `foreach`"),
        ("foreach: '{{a}}', steps: [{id: a, agent: x, prompt: p}]", "Two steps have the id 'a'"),
        ("foreach: '{{a}}', steps: [no]", "steps.0: it is not a mapping of keys."),
        ("agent: x, prompt: p, provider: o, model_role: fast", "Keep one of the three"),
        (
            "agent: x, prompt: p, model_role: fast, provider_preferences: [{class: c}]",
            "Keep one of the three",
        ),
        ("agent: x, prompt: p, provider_preferences: [{model: m}]", "needs a `provider` or"),
        ("agent: x, prompt: p, depends_on: a", "does not come earlier"),
        ("agent: x, prompt: p, depends_on: zzz", "There is no earlier step 'zzz'."),
        ("agent: x, prompt: p, approval: {required: true}", "only a stage can have a gate"),
        (
            "agent: x, prompt: p, requires_approval: true",
            "for a gate, write `approval_requi",
        ),
        ("agent: x, prompt: p, spawn_mode: thread", "spawn_mode"),
    ],
)
def test_invalid_step_error_has_its_line(keys: str, said: str) -> None:
    found = step_faults(keys)
    assert said in found[0].message
    assert found[0].line == 5 and found[0].column is not None
    assert len(found) == 1 or "type: bsh" in keys


@pytest.mark.parametrize(
    "text, said",
    [
        ("- a list\n", "The file contains a list; a recipe is a mapping with `name:`"),
        (HEAD, "A recipe needs `steps` or `stages`"),
        (f"{HEAD}steps: []\n", "A recipe needs `steps` or `stages`"),
        (f"{HEAD}stesp:\n{AGENT}", "did you mean 'steps'?"),
        (f"{HEAD}steps:\n{AGENT}stages: [{{name: s, steps: []}}]", "Keep one."),
        (f"{HEAD}steps: [no]\n", "steps.0: it is not a mapping of keys."),
        (f"{HEAD}steps: {{a: 1}}\n", "steps: it is not a list; begin each item of it with `- `."),
        (f"{HEAD}steps:\n- id: a\n  agent: x\n  prompt: {{{{name}}}}\n", "Put the value in quotes"),
        (f"{HEAD}steps:\n- id: a\n  prompt: {{{{a}}}} and {{{{b}}}}\n", "Put the value in quotes"),
        (f"{HEAD}stages: [no]\n", "stages.0: it is not a mapping of keys."),
        (f"{HEAD}approval_required: true\nsteps:\n{AGENT}", "only a stage can have a gate"),
        (f"{HEAD}context: [1]\nsteps:\n{AGENT}", "context: "),
        (f"{HEAD}context: {{a: .nan}}\nsteps:\n{AGENT}", "it is not plain data"),
        (f"{HEAD}context: {{a: !!binary aGk=}}\nsteps:\n{AGENT}", "it is not plain data"),
        (f"{HEAD}recursion: {{max_depth: 21}}\nsteps:\n{AGENT}", "from 1 to 20"),
        (f"{HEAD}recursion: {{max_total_steps: 0}}\nsteps:\n{AGENT}", "from 1 to 1000"),
        (f"{HEAD}rate_limiting: {{max_concurrent_llm: 101}}\nsteps:\n{AGENT}", "from 1 to 100"),
        (f"{HEAD}rate_limiting: {{min_delay_ms: 60001}}\nsteps:\n{AGENT}", "from 0 to 60000"),
        (
            f"{HEAD}rate_limiting: {{backoff: {{max_delay_ms: 500}}}}\nsteps:\n{AGENT}",
            "max_delay_ms 500 is below initial_delay_ms 1000",
        ),
        (f"{HEAD}rate_limiting: {{backoff: {{multiplier: 0.5}}}}\nsteps:\n{AGENT}", ">= 1"),
        (HEAD.replace("1.0.0", "v1.0.0") + f"steps:\n{AGENT}", "'v1.0.0' is not a version"),
        (HEAD.replace("1.0.0", "1.0.0-rc1") + f"steps:\n{AGENT}", "is not a version"),
        (HEAD.replace("1.0.0", "1") + f"steps:\n{AGENT}", "1 is a number"),
        (HEAD.replace(": d", ": ''") + f"steps:\n{AGENT}", "it is blank"),
        (HEAD.replace(": r", ": a/b") + f"steps:\n{AGENT}", "not a recipe name"),
        (f'{HEAD}steps: [{{id: "a\\nb", agent: x, prompt: p}}]', "is not a name"),
    ],
)
def test_invalid_recipe_is_an_error(text: str, said: str) -> None:
    assert any(said in each.message for each in faults(text))


@pytest.mark.parametrize(
    "keys, said",
    [
        ("approval: {required: true}", "The gate of stage 's' has no question."),
        ("approval_required: true", "The gate of stage 's' has no question."),
        ("approval: {required: true, prompt: ' '}", "The gate of stage 's' has no question."),
        ("approval: {timeout: -1}", "-1 is not a number of seconds >= 0"),
        ("approval: {default: aprove}", "(nearest: 'approve')"),
        ("aproval: {required: true}", "did you mean 'approval'?"),
        ("approval: true", "write a gate as `approval: {required: true, prompt: Your question}`"),
        ("approval: Go on?", "write a gate as `approval: {required: true, prompt: Your"),
        (
            "approval_required: true, approval_prompt: Go?",
            "the question of a gate is `approval_message`",
        ),
        ("approval: {required: true, message: Go?}", "the question of a gate is `prompt`"),
        ("requires_approval: true", "write `approval_required: true` and `approval_message: …`"),
        ("confirm: Go on?", "for a gate, write `approval_required: true` and"),
        ("human_gate: true", "for a gate, write"),
    ],
)
def test_invalid_gate_is_an_error(keys: str, said: str) -> None:
    assert [said in each.message for each in stage_faults(keys)] == [True]


@pytest.mark.parametrize("key", ["on", "no", "12", "1.5", "~", "2026-11-27"])
def test_non_string_yaml_key_becomes_text(key: str) -> None:
    (told,) = load(f"{HEAD}{key}: push\nsteps:\n{AGENT}").warnings
    assert (told.message, told.line) == (f"Unknown key {key!r} is ignored.", 4)


def test_duplicate_stage_and_step_names_are_errors() -> None:
    stage = "- {name: s, steps: [{id: a, agent: x, prompt: p}]}\n"
    found = [each.message for each in faults(f"{HEAD}stages:\n{stage}{stage}")]
    assert found == [
        "Two stages have the name 's'. Rename one.",
        "Two steps have the id 'a'. Rename one.",
    ]
    assert "needs at least one step" in faults(f"{HEAD}stages: [{{name: s}}]")[0].message
    assert (
        "not a stage name"
        in faults(f"{HEAD}stages: [{{name: '', steps: [{AGENT[2:-1]}]}}]")[0].message
    )


NESTED = """\
- {id: a, agent: x, prompt: p}
- id: g
  foreach: "{{l}}"
  steps:
  - {id: b, agent: x, prompt: p, depends_on: a}
  - {id: c, agent: x, prompt: p, depends_on: DEEP}
- {id: d, agent: x, prompt: p, depends_on: FLAT}
"""


@pytest.mark.parametrize(
    "deep, flat, is_fine",
    [
        ("b", "g", True),
        ("[a, b]", "[a, g]", True),
        ("g", "a", False),
        ("d", "a", False),
        ("a", "b", False),
        ("a", "gg", False),
    ],
)
def test_step_can_depend_only_on_earlier_steps_in_scope(
    deep: str, flat: str, is_fine: bool
) -> None:
    text = HEAD + "steps:\n" + NESTED.replace("DEEP", deep).replace("FLAT", flat)
    if is_fine:
        load(text)
    else:
        assert len(faults(text)) == 1


def test_step_can_depend_on_an_earlier_stage() -> None:
    one = "- {name: s, steps: [{id: a, agent: x, prompt: p}]}\n"
    load(f"{HEAD}stages:\n{one}{one.replace('s,', 't,').replace('a,', 'b, depends_on: a,')}")


def test_missing_file_or_other_content_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Recipe.from_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Pass the path of a recipe"):
        Recipe.from_file(tmp_path)
    with pytest.raises(ConfigError, match="Nested too deeply for a recipe"):
        load("{a: " * 4000 + "}" * 4000)


# Warnings ----------


@pytest.mark.parametrize(
    "text, line, column, said",
    [
        (f"{HEAD}metadata: 1\nsteps:\n{AGENT}", 4, 1, "Unknown key 'metadata' is ignored."),
        (
            HEAD + "steps:\n- {id: a, agent: x, prompt: p, substeps: 1}",
            5,
            32,
            "Unknown key 'steps.0.substeps' is ignored. The nearest key is 'steps'.",
        ),
        (
            HEAD + "steps:\n- {id: a, type: bash, command: l, working_dir: /}",
            5,
            35,
            "Unknown key 'steps.0.working_dir' is ignored. The nearest key is 'cwd'.",
        ),
        (HEAD + "steps:\n- {id: a, agent: x, prompt: p, agent_config: {t: 1}}", 5, 32, "not used"),
        (HEAD + "steps:\n- {id: a, agent: x, prompt: p, spawn_mode: subprocess}", 5, 32, "own"),
        (HEAD + "steps:\n- {id: a, agent: x, prompt: p, collect: c}", 5, 32, "is not a loop"),
        (HEAD + "steps:\n- {id: a, agent: x, prompt: p, cwd: /}", 5, 32, "has type agent"),
        (HEAD + "steps:\n- {id: a, type: bash, command: l, model: m}", 5, 35, "has type bash"),
        (
            HEAD
            + "steps:\n- {id: a, foreach: '{{l}}', prompt: p, steps:\n  "
            + f"[{AGENT[2:-1]}]}}",
            5,
            29,
            "nested",
        ),
        (
            HEAD + f"stages:\n- {{name: s, auto_approve_if: a, steps: [{AGENT[2:-1]}]}}",
            5,
            13,
            "the stage has no gate",
        ),
        (
            HEAD + f"stages:\n- {{name: s, approval_message: a, steps: [{AGENT[2:-1]}]}}",
            5,
            13,
            "`approval_required` is not set",
        ),
    ],
)
def test_keys_without_effect_are_reported_with_their_position(
    text: str, line: int, column: int, said: str
) -> None:
    if "nested" in said:
        text = text.replace("[{id: a", "[{id: b")
    (found,) = load(text).warnings
    assert (found.line, found.column) == (line, column)
    assert said in found.message
    assert str(found).startswith(f"r.yaml:{line}:{column}: ")


def test_descriptive_keys_have_no_warning() -> None:
    head = "author: a\ncreated: 2026-01-01\nupdated: 2026-01-02\ntags: [a]\n"
    config = "orchestrator: {config: {min_delay_between_calls_ms: 5}}\n"
    recipe = load(f"{HEAD}{head}{config}steps:\n{AGENT}")
    assert recipe.warnings == ()
    assert recipe.orchestrator.config.min_delay_between_calls_ms == 5


# Numbers ----------


@pytest.mark.parametrize(
    "range_, value, number",
    [
        (recipe_values.TIMEOUT, "30", 30),
        (recipe_values.TIMEOUT, " 0.5 ", 0.5),
        (recipe_values.TIMEOUT, 0, None),
        (recipe_values.TIMEOUT, "nan", None),
        (recipe_values.TIMEOUT, "inf", None),
        (recipe_values.TIMEOUT, [3], None),
        (recipe_values.APPROVAL_TIMEOUT, 0, 0),
        (recipe_values.PARALLEL, "2.0", 2),
        (recipe_values.PARALLEL, 2.5, None),
        (recipe_values.PARALLEL, True, None),
        (recipe_values.WHILE_ITERATIONS, 1000, 1000),
        (recipe_values.WHILE_ITERATIONS, 1001, None),
        (recipe_values.WHILE_ITERATIONS, "9" * 9000, None),
    ],
)
def test_range_parses_numbers_and_template_results(
    range_: Range, value: object, number: float | None
) -> None:
    if number is None:
        with pytest.raises(ValueError, match=" is not a "):
            range_.number(value)
    else:
        assert range_.number(value) == number


# Many steps ----------

MANY = {
    "in order": "- {{id: s{n}, type: bash, command: 'echo'}}",
    "with unknown keys": "- {{id: s{n}, type: bash, command: 'echo', zzz: 1}}",
    "that lack a key": "- {{id: s{n}, type: bash}}",
    "without an id": "- {{type: bash, command: 'echo'}}",
    "of one name": "- {{id: s, type: bash, command: 'echo'}}",
    "that depend on others": "- {{id: s{n}, type: bash, command: 'echo', depends_on: [s{before}]}}",
    "that depend on nobody": "- {{id: s{n}, type: bash, command: 'echo', depends_on: [q{n}]}}",
    "with a slip": "- {{id: s{n}, type: bash, comand: 'echo'}}",
}


def _many(kind: str, count: int) -> str:
    steps = [MANY[kind].format(n=n, before=n - 1) for n in range(1, count + 1)]
    return "\n".join(["name: r", "description: d", "version: 1.0.0", "steps:", *steps])


def _lines_run(text: str) -> int:
    """Return how many lines of Python run while a recipe is loaded."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        with suppress(ConfigError):
            load(text)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("kind", MANY)
def test_loading_time_is_linear_in_the_number_of_steps(kind: str) -> None:
    some, more = _lines_run(_many(kind, 60)), _lines_run(_many(kind, 240))
    assert more < 5 * some


def test_five_thousand_steps_load_and_twenty_thousand_exceed_the_limit() -> None:
    assert len(load(_many("in order", 5000)).steps) == 5000
    with pytest.raises(
        ConfigError, match="The file has more than 40000 keys and values. Split it."
    ):
        load(_many("in order", 20_000))


def test_many_errors_are_reported_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        load(_many("that lack a key", 500))
    assert len(caught.value.others) == 10
    assert str(caught.value.others[-1]).endswith("At least 90 more errors.")


# Arbitrary content ----------

KEYS = [*Step.model_fields, "as", "class", "name", "stages", "approval", "version", "zzz", ""]
TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2000)
    | st.sampled_from(["", "a", "bash", "agent", "recipe", "{{a}}", "1.0.0", "fail", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=8))
def test_any_content_is_a_recipe_or_errors_with_positions(
    data: dict[str, Any],
) -> None:
    try:
        recipe = load(json.dumps({"description": "d", "name": "r", "version": "1.0.0"} | data))
    except ConfigError as exc:
        assert exc.line is not None
    else:
        assert recipe.stages
