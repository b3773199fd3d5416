"""Checks of recipes without running them."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_agents.errors import ConfigError, RecipeError
from nb_agents.extensions.recipes.check import CheckedRecipe, check, find_recipe
from tests.kit.recipes import MAX_SHOWN, Recipe
from tests.kit.teams import TeamSpec, team_from_options

HEAD = "name: r\ndescription: d\nversion: 1.0.0\n"


def checked(text: str) -> CheckedRecipe:
    return check(Recipe.from_text(HEAD + text, "r.yaml"))


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"name: {path.stem}\ndescription: d\nversion: 1.0.0\n{text}")
    return path


def unset(report: CheckedRecipe) -> list[str]:
    """Return the variables that warnings name, with their step or stage."""
    parts = (w.message.split(" uses {{") for w in report.warnings if " uses {{" in w.message)
    return [f"{who}: {rest.partition('}}')[0]}" for who, rest in parts]


# Values in commands ----------------------------------------------------------------------------

MADE = "context: {given: ''}\nsteps:\n- {id: m, type: bash, command: ls, output: x}\n"
STEP = MADE + "- id: a\n  type: bash\n  command: |\n    true\n"
UNREAD = "exec 3<>f;"
NOWHERE = [
    "eval {{x}}",
    "bash <(echo {{x}})",
    "{{x}} --version",
    "find . -exec {{x}} ';'",
    "export {{x}}",
    "echo ${{{x}}}",
    "cat <<EOF\n`{{x}}`\nEOF",
    "{{#if given}}echo a{{else}}eval {{x}}{{/if}}",
]
NUMBER = [
    "find . -exec sh -c 'echo {{x}}' ';'",
    "sudo -n env A=1 sh -c 'ls {{x}}'",
    'bash -euo pipefail -c "echo {{x}}"',
    '$SHELL -c "{{x}}"',
    "sudo -n sh -c 'cd; {{x}}'",
    "bash <<'EOF'\n{{x}}\nEOF",
    "sed {{x}} f",
    "script -qc {{x}} /dev/null",
    "git -c alias.a={{x}} a",
    "ssh host ls {{x}}",
    "python3 -c 'print({{x}})'",
    "python3 <<'EOF'\nprint({{x}})\nEOF",
    "awk '{print {{x}}}' f",
    "sed s/a/{{x}}/ f",
    "jq .a[{{x}}] f",
    "make A={{x}}",
    "cat <<EOF | sh\n{{x}}\nEOF",
]
HARMLESS = [
    "echo {{x}} | bash",
    'y={{x}}/run.sh; "$y"',
    'y={{x}}; eval "$y"',
    "y={{x}}; echo $((y))",
    "echo {{x}} > f; sh f",
]
ALLOWED_TEXT = {
    "no such value": NOWHERE,
    "only a number": NUMBER,
    "only letters, digits and _./:,@+-": HARMLESS,
}
IN_CODE = [(text, command) for text, commands in ALLOWED_TEXT.items() for command in commands]


def indented(command: str) -> str:
    return "".join(f"    {line}\n" for line in command.splitlines())


@pytest.mark.parametrize("allowed, command", IN_CODE)
def test_step_value_in_code_is_reported_with_line_and_advice(allowed: str, command: str) -> None:
    report = checked(STEP + indented(command))
    faults, others = report.faults, report.warnings
    (found,), none = (faults, others) if command in NOWHERE else (others, faults)
    before = command[: command.rindex("{{x}}")].count("\n")
    assert (found.line, none) == (11 + before, ())
    assert found.message.startswith("Step 'a': {{x}}, which comes from a step or a row, is used ")
    assert "env: {X:" in found.message and "{{x | raw}}" in found.message
    assert f": {allowed} can be inserted there." in found.message


@pytest.mark.parametrize("command", [command for _, command in IN_CODE])
def test_authors_value_is_allowed_in_code(command: str) -> None:
    report = checked(
        STEP.replace("given: ''", "x: '', given: ''").replace(", output: x", "") + indented(command)
    )
    assert (report.faults, report.warnings) == ((), ())


@pytest.mark.parametrize(
    "command",
    [
        "echo {{x}} '{{x}}' > {{x}}",
        "./run.sh {{x}} --title={{x}}",
        "python3 - {{x}} <<'EOF'\nimport sys\nEOF",
        "echo $(( {{x}} + 1 ))",
        "echo {{x | raw}} | bash",
        "eval '{{ jinja }}'",
    ],
)
def test_data_number_or_raw_value_is_accepted(command: str) -> None:
    report = checked(STEP + indented(command))
    assert report.faults == ()
    assert [w.message for w in report.warnings if "stands" in w.message] == []


def test_invalid_bash_is_a_fault_with_bashs_message() -> None:
    (fault,) = checked(STEP + indented("echo {{x}} )\nls")).faults
    assert fault.message.startswith("Step 'a': Invalid bash command: ") and "`)'" in fault.message


@pytest.mark.parametrize("command", ["echo {{x}} ${T//]/}", UNREAD + " {{x}}", UNREAD + "\n{{x}}"])
def test_valid_bash_that_the_grammar_rejects_is_accepted(command: str) -> None:
    report = checked(STEP + indented(command))
    assert report.faults == ()
    assert report.warnings != ()


OWN = "context: {x: a b, other: []}\nsteps:\n- {id: a, type: bash, command: 'eval {{x}}'%s}\n"


@pytest.mark.parametrize(
    "more, is_fault",
    [
        ("", False),
        (", output: other", False),
        (", output: x", True),
        (", collect: x, foreach: '{{other}}'", True),
        (", while_condition: 'true', update_context: {x: 1}", False),
        (", while_condition: 'true', update_context: {x: '{{y}}'}, output: y", True),
        (", foreach: '{{other}}', as: x", False),
        (", foreach: '{{other}}', as: x, output: other", True),
    ],
)
def test_value_derived_from_a_step_value_is_untrusted(more: str, is_fault: bool) -> None:
    assert bool(checked(OWN % more).faults) is is_fault


def test_untrusted_value_stays_untrusted_in_a_called_recipe(
    tmp_path: Path,
) -> None:
    written(tmp_path, "sub.yaml", OWN % "")
    call = "steps:\n- {id: b, type: bash, command: ls, output: made}\n"
    call += "- {id: s, type: recipe, recipe: sub.yaml, context: {x: 'ls {{%s}}'}}\n"
    own = check(Recipe.from_file(written(tmp_path, "one.yaml", call % "recipe.name")))
    given = check(Recipe.from_file(written(tmp_path, "two.yaml", call % "made")))
    assert (own.faults, len(given.faults)) == ((), 1)
    assert str(given.faults[0].file).endswith("sub.yaml")


# Variables -----------------------------------------------------------------------------------

SETS = """\
context: {given: 1}
steps:
- {id: one, type: bash, command: ls, output: made, output_exit_code: code}
"""


@pytest.mark.parametrize(
    "keys",
    [
        "agent: x, prompt: '{{given}} {{made}} {{code}}'",
        "agent: x, prompt: '{{recipe.name}} {{session.id}} {{step.index}} {{_loop_index}}'",
        "agent: x, prompt: '{{made.deep.key}}'",
        "agent: x, prompt: '{{item}}', foreach: '{{made}}'",
        "agent: x, prompt: '{{f.name}}', foreach: '{{made}}', as: f",
        "agent: x, prompt: '{{#if made}}{{given}}{{else}}no{{/if}}'",
        "agent: x, prompt: p, output: late, while_condition: true, break_when: '{{late}}'",
        "agent: x, prompt: p, while_condition: true, update_context: {n: 1}, break_when: '{{n}}'",
        "agent: x, prompt: p, timeout: '{{given}}', retry: {max_attempts: '{{given}}'}",
        "type: bash, command: 'a {{given}}', cwd: '{{made}}', env: {A: '{{code}}'}",
        'type: bash, command: \'echo ${HOME} ${{ github.sha }} {"a": {"b": 1}}\'',
    ],
)
def test_variable_that_is_set_before_is_accepted(keys: str) -> None:
    report = checked(f"{SETS}- {{id: two, {keys}}}\n")
    assert (report.faults, report.warnings) == ((), ())


@pytest.mark.parametrize(
    "keys, names",
    [
        ("agent: x, prompt: '{{nope}}'", ["nope"]),
        ("agent: x, prompt: '{{own}}', output: own", ["own"]),
        ("agent: x, prompt: '{{later}}'", ["later"]),
        ("agent: x, prompt: '{{session.nope}}'", ["session.nope"]),
        ("agent: x, prompt: p, condition: \"{{nope}} == 'a'\"", ["nope"]),
        ("agent: x, prompt: p, condition: \"nope == 'a'\"", ["nope"]),
        ("agent: x, prompt: p, foreach: '{{nope}}'", ["nope"]),
        ("agent: x, prompt: p, foreach: '{{made}}', condition: '{{item}}'", ["item"]),
        ("agent: x, prompt: p, while_condition: '{{nope}}'", ["nope"]),
        ("agent: x, prompt: p, while_condition: true, break_when: '{{nope}}'", ["nope"]),
        ("agent: x, prompt: p, timeout: '{{nope}}'", ["nope"]),
        ("agent: x, prompt: p, retry: {max_attempts: '{{nope}}'}", ["nope"]),
        ("type: bash, command: '{{a}}', cwd: '{{b}}', env: {A: '{{c}}'}", ["a", "b", "c"]),
        ("agent: x, prompt: '{{#if nope}}{{a}}{{/if}}'", ["nope", "a"]),
    ],
)
def test_variable_that_is_never_set_before_is_reported(keys: str, names: list[str]) -> None:
    report = checked(
        f"{SETS}- {{id: two, {keys}}}\n- {{id: z, agent: x, prompt: p, output: later}}"
    )
    assert sorted(unset(report)) == sorted(f"Step 'two': {name}" for name in names)
    assert all(w.line == 7 for w in report.warnings)


def test_loop_variable_ends_with_its_loop_but_results_remain() -> None:
    report = checked(
        """\
context: {l: []}
steps:
- id: g
  foreach: "{{l}}"
  collect: all
  steps:
  - {id: a, agent: x, prompt: "{{item}} {{b}}", output: a}
  - {id: b, agent: x, prompt: "{{a}}", output: b}
- {id: c, agent: x, prompt: "{{all}} {{b}} {{item}}"}
"""
    )
    assert unset(report) == ["Step 'a': b", "Step 'c': item"]


def test_gate_sees_outputs_of_its_stage_and_its_condition_those_before() -> None:
    report = checked(
        """\
stages:
- name: s
  condition: "{{out}}"
  approval_required: true
  approval_message: "{{out}} {{nope}}"
  auto_approve_if: ["{{out}} == 'x'", "{{never}}"]
  steps: [{id: a, agent: x, prompt: p, output: out}]
"""
    )
    gate = "The gate of stage 's'"
    assert unset(report) == ["Stage 's': out", f"{gate}: nope", f"{gate}: never"]


def test_variable_in_a_long_prompt_is_reported_with_its_line_and_the_nearest_name() -> None:
    report = checked(
        "context: {topic: x}\nsteps:\n- id: a\n  agent: x\n  prompt: |\n    one\n    on {{topik}}\n"
    )
    (found,) = report.warnings
    assert (found.line, found.column) == (10, 10)
    assert found.message.endswith("Did you mean {{topic}}?")


def test_required_variable_counts_as_set() -> None:
    text = (
        "context: {t: {type: string, required: true}}\nsteps: [{id: a, agent: x, prompt: '{{t}}'}]"
    )
    assert checked(text).warnings == ()


@pytest.mark.parametrize(
    "braces", ["{{a-b}}", "{% if x %}", "{{a[0]}}", "{{steps.a-b.result}}", "{{ a | upper }}"]
)
def test_unsupported_braces_are_reported_once_per_text(braces: str) -> None:
    report = checked(f"steps: [{{id: a, agent: x, prompt: 'p {braces} and {braces}'}}]")
    (found,) = report.warnings
    assert f"has {braces} and 1 more, which is not a supported template" in found.message


@pytest.mark.parametrize(
    "keys",
    [
        'condition: "{{a}} == \'x"',
        "condition: '{{a}} =='",
        "prompt: '{{#if a}}'",
        "mode: '{{/if}}'",
    ],
)
def test_invalid_template_or_condition_is_a_fault(keys: str) -> None:
    prompt = "" if "prompt" in keys else "prompt: p, "
    report = checked(f"context: {{a: 1}}\nsteps: [{{id: a, agent: x, {prompt}{keys}}}]")
    (fault,) = report.faults
    assert fault.message.startswith("Step 'a': Invalid `") and fault.line == 5


def test_warnings_of_the_file_are_in_the_report() -> None:
    report = checked("metadata: 1\nsteps: [{id: a, agent: x, prompt: p}]")
    assert [w.message for w in report.warnings] == ["Unknown key 'metadata' is ignored."]


# Sub-recipes ---------------------------------------------------------------------------------

CALLS = "steps: [{id: a, type: recipe, recipe: %s, context: {x: 1}}]\n"


def test_called_recipe_next_to_its_caller_is_checked_too(tmp_path: Path) -> None:
    written(tmp_path, "sub/b.yaml", CALLS % "../c.yaml")
    inner = written(tmp_path, "c.yaml", "steps: [{id: c, agent: x, prompt: '{{x}} {{y}}'}]\n")
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", CALLS % "./sub/b.yaml")))
    assert report.faults == ()
    assert [(Path(w.file or "").name, w.line) for w in report.warnings] == [(inner.name, 4)]
    assert unset(report) == ["Step 'c': y"]
    assert [line.strip().split(":")[0] for line in report.plan] == [
        "recipe a 1.0.0",
        "a",
        "recipe b 1.0.0",
        "a",
        "recipe c 1.0.0",
        "c",
    ]


def test_missing_recipe_is_a_fault_but_a_template_is_not(tmp_path: Path) -> None:
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", CALLS % "gone.yaml")))
    (fault,) = report.faults
    assert "No recipe 'gone.yaml'" in fault.message
    assert (fault.line, fault.column) == (4, 39)
    text = "context: {f: x}\n" + CALLS % "'{{f}}.yaml'"
    assert check(Recipe.from_file(written(tmp_path, "b.yaml", text))).faults == ()


def test_all_faults_of_a_called_recipe_are_faults(tmp_path: Path) -> None:
    written(tmp_path, "b.yaml", "steps: [{id: a, agent: x}, {id: a, type: bash}]\n")
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", CALLS % "b.yaml")))
    assert [(Path(f.file or "").name, f.line) for f in report.faults] == [("b.yaml", 4)] * 3


FAULTS = {
    "not YAML": ("steps: [", 4),
    "an unknown key": ("steps:\n- {id: a, agent: x, prompt: p, timout: 3}", 5),
    "a missing key": ("steps: [{id: a, type: bash}]", 4),
    "a key of another kind of step": ("steps:\n- {id: a, type: bash, command: ls, mode: m}", 5),
    "a wrong type": ("steps: 3", 4),
    "a wrong choice": ("steps:\n- {id: a, agent: x, prompt: p, on_error: contniue}", 5),
    "a number out of range": (
        "recursion: {max_depth: 99}\nsteps: [{id: a, agent: x, prompt: p}]",
        4,
    ),
    "two of a name": ("steps:\n- &s {id: a, agent: x, prompt: p}\n- *s", 5),
    "an unknown step": ("steps:\n- {id: a, agent: x, prompt: p, depends_on: [z]}", 5),
    "no prompt at a gate": ("stages:\n- name: s\n  approval: {required: true}\n  steps: []", 5),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_has_file_and_line(tmp_path: Path, kind: str) -> None:
    text, line = FAULTS[kind]
    path = written(tmp_path, "a.yaml", text)
    with pytest.raises(ConfigError) as caught:
        Recipe.from_file(path)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert str(caught.value).startswith(f"{path}:{line}:")


def test_recursive_recipes_are_reported_and_read_once(tmp_path: Path) -> None:
    written(tmp_path, "b.yaml", CALLS % "a.yaml")
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", CALLS % "b.yaml")))
    assert [f.message for f in report.faults] == [
        "Step 'a' makes a recipe call itself. Add a condition. Nothing else ends this recursion."
    ]
    twice = (
        "steps:\n- {id: a, type: recipe, recipe: c.yaml}\n- {id: b, type: recipe, recipe: c.yaml}\n"
    )
    written(tmp_path, "c.yaml", "steps: [{id: c, agent: x, prompt: '{{y}}'}]\n")
    assert len(check(Recipe.from_file(written(tmp_path, "d.yaml", twice))).warnings) == 1


@pytest.mark.parametrize(
    "way_out",
    ["condition: '{{n}} > 1'", "foreach: '{{xs}}'", "while_condition: '{{n}}'"],
)
@pytest.mark.parametrize("in_first", [True, False])
def test_conditional_recursion_is_only_a_warning(
    tmp_path: Path, way_out: str, in_first: bool
) -> None:
    free = CALLS.replace("context: {x: 1}", f"context: {{x: 1}}, {way_out}")
    first, second = (free, CALLS) if in_first else (CALLS, free)
    written(tmp_path, "b.yaml", second % "a.yaml")
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", first % "b.yaml")))
    assert not report.faults
    told = "Step 'a' makes a recipe call itself. Only a condition or `recursion` ends this."
    assert [w.message for w in report.warnings if "call itself" in w.message] == [told]


def test_recursion_in_a_skippable_stage_or_group_is_only_a_warning(
    tmp_path: Path,
) -> None:
    step = "{id: a, type: recipe, recipe: a.yaml}"
    for body in (
        f"stages: [{{name: s, condition: '{{{{n}}}}', steps: [{step}]}}]\n",
        f"steps: [{{id: g, while_condition: '{{{{n}}}}', steps: [{step}]}}]\n",
        f"steps: [{step[:-1]}, on_error: continue}}]\n",
    ):
        report = check(Recipe.from_file(written(tmp_path, "a.yaml", body)))
        assert not report.faults, body
        assert any("call itself" in w.message for w in report.warnings)


LOOP = "context: {xs: %s}\nsteps: [{id: a, agent: x, prompt: '{{item}}', foreach: %s}]\n"


@pytest.mark.parametrize(
    "xs, loop", [("a b", "'{{xs}}'"), ("{a: 1}", "'{{xs}}'"), ("5", "'{{ xs }}'")]
)
def test_loop_over_text_is_reported_with_advice(tmp_path: Path, xs: str, loop: str) -> None:
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", LOOP % (xs, loop))))
    (told,) = (w for w in report.warnings if "foreach" in w.message)
    assert told.message == (
        "Step 'a' needs a list for `foreach`, but 'xs' of the recipe's `context` is not a list. "
        "Write `[a, b]`, or let a step return one with `parse_json: true`."
    )
    assert told.line == 5 and not report.faults  # a run may be given another value


@pytest.mark.parametrize(
    "xs, loop", [("[1]", "'{{xs}}'"), ("'[1, 2]'", "'{{xs}}'"), ("''", "'{{xs}}'")]
)
def test_loop_over_a_list_or_an_unset_value_is_accepted(tmp_path: Path, xs: str, loop: str) -> None:
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", LOOP % (xs, loop))))
    assert not [f for f in (*report.faults, *report.warnings) if "foreach" in f.message]


def test_missing_required_variable_of_a_call_is_reported(tmp_path: Path) -> None:
    needs = "context: {x: {type: string, required: true}, y: {type: string, required: true}}\n"
    written(tmp_path, "b.yaml", needs + "steps: [{id: b, agent: x, prompt: p}]\n")
    report = check(Recipe.from_file(written(tmp_path, "a.yaml", CALLS % "b.yaml")))
    assert [w.message for w in report.warnings] == [
        "Recipe 'b' requires 'y', which step 'a' does not set."
    ]


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_recipe_without_suffix_gets_a_hint(tmp_path: Path, suffix: str) -> None:
    written(tmp_path, f"default-workflow{suffix}", "steps: [{id: b, agent: x, prompt: p}]\n")
    near = f"Did you mean 'default-workflow{suffix}'?"
    with pytest.raises(RecipeError) as refused:
        find_recipe("default-workflow", tmp_path / "a.yaml", {})
    assert str(refused.value).endswith(near)
    with pytest.raises(RecipeError) as refused:
        find_recipe("@b:default-workflow", None, {"b": str(tmp_path)})
    assert str(refused.value).endswith(near)


@pytest.mark.parametrize("name", ["\0", "x" * 5000, "/", "..", ""])
def test_invalid_path_is_not_a_recipe(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="No recipe .* next to this one or in"):
        find_recipe(name, tmp_path / "a.yaml", {})


TEAM = {"agents": [{"id": "a", "backend": {"type": "demo"}}]}


def in_bundle(folder: Path, path: str) -> str:
    """Return the finding for a step that calls a recipe of the bundle in ``folder``."""
    team = TeamSpec.model_validate({**TEAM, "bundles": {"kit": str(folder)}})
    text = f"{HEAD}steps:\n- {{id: a, type: recipe, recipe: '{path}'}}\n"
    return "\n".join(str(each) for each in check(Recipe.from_text(text, "r.yaml"), team).faults)


def test_bundled_recipe_is_found_in_its_directory(tmp_path: Path) -> None:
    written(tmp_path, "deep/sub.yaml", "steps:\n- {id: b, agent: x, prompt: p}\n")
    assert in_bundle(tmp_path, "@kit:deep/sub.yaml") == ""
    assert in_bundle(tmp_path, "@kit:gone.yaml") == (
        f"r.yaml:5:33: The bundle 'kit' has no file 'gone.yaml' in {tmp_path}."
    )
    assert in_bundle(tmp_path, "@kti:deep/sub.yaml") == (
        "r.yaml:5:33: Unknown bundle 'kti'. Did you mean 'kit'? Set its directory with "
        "`bundles: {kti: DIR}` in the team file, or with --bundle kti=DIR."
    )


@pytest.mark.parametrize(
    "path, hint",
    [
        ("kit:deep/sub.yaml", " Did you mean '@kit:deep/sub.yaml', of the bundle 'kit'?"),
        ("kti:sub.yaml", " Did you mean '@kti:sub.yaml', of a bundle 'kti'?"),
        ("c:/sub.yaml", ""),
        ("https://example.org/sub.yaml", ""),
    ],
)
def test_bundle_without_at_sign_gets_a_hint(tmp_path: Path, path: str, hint: str) -> None:
    said = in_bundle(tmp_path, path)
    assert said.endswith(f"next to this one or in {Path.cwd()}.{hint}")


def test_bundles_of_the_command_line_override_the_team_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(json.dumps({**TEAM, "bundles": {"a": "x", "b": "/y"}}))
    assert TeamSpec.from_file(file).bundles == {"a": str(tmp_path / "x"), "b": "/y"}
    team = team_from_options(str(file), None, [f"b={tmp_path}"])
    assert isinstance(team, TeamSpec)
    assert team.bundles == {"a": str(tmp_path / "x"), "b": str(tmp_path)}
    demo = team_from_options(None, None, ["c=/z"])
    assert isinstance(demo, TeamSpec)
    assert (demo.agents[0].backend.type, demo.bundles) == ("demo", {"c": "/z"})


@pytest.mark.parametrize("said", ["kit", "=dir", "kit="])
def test_malformed_bundle_option_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match=f"--bundle {said} is not NAME=DIR"):
        team_from_options(None, None, [said])


# The plan ------------------------------------------------------------------------------------


def test_plan_lists_stages_steps_agents_gates_and_loops() -> None:
    report = checked(
        """\
context: {files: [], t: {type: string, required: true}}
stages:
- name: look
  condition: "{{files}}"
  approval: {required: true, prompt: Go, timeout: 60, default: approve}
  auto_approve_if: "{{t}}"
  steps:
  - {id: read, agent: "foundation:explorer", prompt: p, foreach: "{{files}}", as: f, parallel: 3,
     collect: all, retry: {max_attempts: 2}}
  - id: again
    while_condition: "{{t}}"
    break_when: "{{t}} == 'x'"
    steps: [{id: run, type: bash, command: ls, on_error: continue, output: o}]
- name: end
  approval_required: true
  approval_message: Done
  steps: [{id: last, agent: x, prompt: p, condition: "{{all}}", depends_on: [read, again]}]
"""
    )
    assert report.plan == (
        "recipe r 1.0.0: d",
        "  needs: t",
        "  variables: files",
        "  stage look · if {{files}}",
        "    read: agent foundation:explorer · for each f of {{files}}, in parallel 3 at a time"
        " · up to 2 attempts · → all",
        "    again: 1 step · while {{t}} until {{t}} == 'x', at most 100 times",
        "      run: bash · on error continue · → o",
        "  gate after look: needs approval · approve after 60 s · approved automatically if {{t}}",
        "  stage end",
        "    last: agent x · if {{all}} · after read, again",
        "  gate after end: needs approval · no time limit",
    )


def test_plan_names_the_agents_of_a_team() -> None:
    team = TeamSpec.model_validate(
        {
            "agents": [
                {"id": "ada", "backend": {"type": "demo"}},
                {"id": "ben", "backend": {"type": "demo"}},
            ]
        }
    )
    recipe = Recipe.from_text(HEAD + "steps: [{id: a, agent: 'team:ben', prompt: p}]", "r.yaml")
    assert "agent team:ben = ben (" in check(recipe, team).plan[1]


def test_texts_of_a_recipe_stay_on_one_short_line() -> None:
    long = "x\\n\\e[31m" * 200
    report = checked(f'steps: [{{id: a, agent: "{long}", prompt: p, condition: "{{{{step}}}}"}}]')
    assert len(report.plan) == 2
    assert report.plan[1].isprintable()
    assert len(report.plan[1]) < 2 * MAX_SHOWN


# Any text ------------------------------------------------------------------------------------

PIECES = ["{{a}}", "{{#if a}}", "{{else}}", "{{/if}}", "{{", "}}", "{% x %}", "| raw", "'", "\n"]
TEXT = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join).filter(str.strip)
STEPS = st.fixed_dictionaries(
    {"agent": TEXT, "prompt": TEXT},
    optional={
        "condition": TEXT,
        "mode": TEXT,
        "output": st.just("a"),
        "on_error": st.just("continue"),
    },
)


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=4), TEXT)
def test_check_of_any_texts_returns_findings_with_positions(
    steps: list[dict[str, str]], asked: str
) -> None:
    numbered = [{"id": f"s{n}", **step} for n, step in enumerate(steps)]
    gate = {"approval_required": True, "approval_message": asked, "auto_approve_if": asked}
    data = {"name": "r", "description": "d", "version": "1.0.0"}
    data |= {"stages": [{"name": "s", "steps": numbered, **gate}]}
    report = check(Recipe.from_text(json.dumps(data), "r"))
    assert all(f.line and f.column and f.message for f in report.faults + report.warnings)
    assert len(report.plan) == len(steps) + 3
