"""Trust in values: those of the author and the user may be code, those of steps and rows may not.

The step ``run`` evaluates ``{{x}}``. With an untrusted value, the step fails and runs nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.errors import RecipeError
from nb_agents.options import RunOptions
from nb_agents.testing import ScriptedModel, Turn
from tests.kit.recipes import FENCED, render_command
from tests.recipes.live import begin, write
from tests.recipes.play import Approve, Play, recipe
from tests.recipes.test_shell_values import bash
from tests.sweeps.test_sweep import answering
from tests.team_kit import WAIT_S, finish

CODE = "echo code"
RUN = "- {id: run, type: bash, command: 'sh -c {{x}}'}\n"
SUB = recipe("context: {x: ''}\nsteps:\n" + RUN, "sub")


def commands(text: str, context: Mapping[str, Any] | None = None, **outcomes: Any) -> list[str]:
    """Return the commands that were run in place of `RUN`'s."""
    play = Play(recipe(text), outcomes, recipes={"sub.yaml": SUB}, context=context).run()
    return [asked for address, asked in play.asked if address.rpartition("/")[2][:3] == "run"]


TRUSTED = {
    "the recipe's": f"context: {{x: {CODE}}}\nsteps:\n{RUN}",
    "an item of the recipe's": f"context: {{l: [{CODE}]}}\nsteps:\n"
    + RUN.replace("}'}", "}', foreach: '{{l}}', as: x}"),
    "an item in parallel": f"context: {{l: [{CODE}]}}\nsteps:\n"
    + RUN.replace("}'}", "}', foreach: '{{l}}', as: x, parallel: true}"),
    "made of the recipe's": f"context: {{c: {CODE}}}\nsteps:\n"
    + RUN.replace(
        "}'}",
        "{{#if _loop_index}}{{x}}{{else}}true{{/if}}', while_condition: '{{_loop_index}} < 2', "
        "update_context: {x: '{{c}} {{_loop_index}}'}}",
    ).replace("{{x}}{{#if", "{{#if"),
    "a caller's": f"context: {{c: {CODE}}}\nsteps:\n"
    "- {id: s, type: recipe, recipe: sub.yaml, context: {x: '{{c}}'}}\n",
    "the run's own": "steps:\n" + RUN.replace("x}}", "recipe.name}} {{step.id}} {{session.id}}"),
}
MADE = "steps:\n- {id: m, type: bash, command: ls, output: y}\n"
FENCED_ONES = {
    "a command's": MADE.replace("y}", "x}") + RUN,
    "a model's": "steps:\n- {id: m, agent: a, prompt: p, output: x}\n" + RUN,
    "a field of a command's": "steps:\n- {id: m, type: bash, command: ls, output: y}\n"
    + RUN.replace("{{x}}", "{{y.z}}"),
    "a command's under a name of the recipe's": "context: {x: true}\n"
    + MADE.replace("y}", "x}")
    + RUN,
    "an item of a command's": MADE + RUN.replace("}'}", "}', foreach: '{{y}}', as: x}"),
    "an item in parallel": MADE
    + RUN.replace("}'}", "}', foreach: '{{y}}', as: x, parallel: true}"),
    "made of a command's": "context: {x: 'true'}\n"
    + MADE
    + RUN.replace("}'}", "}', max_while_iterations: 2, while_condition: 'true', ")
    + "  update_context: {x: 'a {{y.z}}'}}\n",
    "a caller's, of a command's": MADE
    + "- {id: s, type: recipe, recipe: sub.yaml, context: {x: 'ls {{y.z}}'}}\n",
    "collected": "context: {l: [1]}\nsteps:\n"
    "- {id: m, type: bash, command: ls, foreach: '{{l}}', collect: x}\n" + RUN,
    "a called recipe's": "steps:\n"
    "- {id: s, type: recipe, recipe: sub.yaml, context: {x: 'true'}, output: x}\n" + RUN,
    "a loop's variable after the loop": MADE
    + "- {id: l, foreach: '{{y}}', as: x, steps: [{id: n, agent: a, prompt: p, output: x}]}\n"
    + RUN.replace("x}}", "y}}"),
}
GIVES = f'["{CODE}; b"]'


@pytest.mark.parametrize("text", TRUSTED.values(), ids=TRUSTED)
def test_authors_value_and_values_derived_from_it_may_be_code(text: str) -> None:
    assert "sh -c" in commands(text)[-1]


@pytest.mark.parametrize("text", FENCED_ONES.values(), ids=FENCED_ONES)
def test_step_value_and_values_derived_from_it_are_never_code(text: str) -> None:
    gives = '{"z": "a; b"}' if "y.z" in text else GIVES
    ran = commands(text, m=gives, **{"s/run": "a; b", "l[0]/n": "a; b"})
    assert all("a; b" not in each and CODE not in each for each in ran)
    assert len(ran) < 2 or "made of" in text


def test_users_value_may_be_code_unless_it_comes_from_a_row() -> None:
    text = "context: {x: ''}\nsteps:\n" + RUN
    assert commands(text, {"x": CODE}) != []
    assert commands(text, {"x": CODE, FENCED: ["x"]}) == []
    assert commands(text, {"x": CODE, FENCED: ["other"]}) != []


def test_approval_message_is_never_code() -> None:
    step = RUN.replace("x}}", "_approval_message}}").strip("- \n")
    stages = "stages:\n- {name: s, steps: [{id: m, type: bash, command: ls}], "
    stages += "approval: {required: true, prompt: p}}\n- {name: t, steps: [" + step + "]}\n"
    assert commands(stages, s=Approve("a; b")) == []


def test_row_of_a_sweep_is_never_code(tmp_path: Path) -> None:
    body = "context: {p: printf}\nsteps:\n"
    body += "- {id: own, type: bash, command: '{{p}} %s {{x}}', output: said}\n" + RUN
    path, options = write(tmp_path, body), RunOptions(session_root=tmp_path / "s")
    sweep = nb_agents.map([{"x": "a; b"}], recipe=path, config=answering(), options=options)
    assert sweep.wait(WAIT_S).failed == 1
    (row,) = sweep.table()
    assert "{{x}}, which comes from a step or a row, is used" in str(row)


def test_trusted_value_is_code_as_a_command_and_quoted_as_text(tmp_path: Path) -> None:
    body = 'context: {tool: printf %s-, text: "it\'s $HOME; a"}\nsteps:\n'
    body += "- {id: a, type: bash, command: '{{tool}} {{text}} \"{{text}}\"', output: said}\n"
    run = finish(begin(write(tmp_path, body), ScriptedModel(Turn(text="x"))))
    assert run.result["said"] == "it's $HOME; a-it's $HOME; a-"


@pytest.mark.parametrize(
    "command, said",
    [
        ("{{tool}} a", "a"),
        ("{{name}}=b; printf %s $v", "b"),
        ("for {{name}} in c; do printf %s $v; done", "c"),
        ("echo $(( {{sum}} * 2 ))", "5\n"),
        ('sh -c "{{tool}} d"', "d"),
        ("eval {{tool}} e", "e"),
        ("python3 -c \"print('{{it}}')\"", "f g\n"),
        ("printf '%s' {{dash}}", "-n"),
        ("env Y=1 {{tool}} h", "h"),
        ("{{empty}} printf i", "i"),
        ('{{tool}} "{{tool}}"', "printf %s"),
    ],
)
def test_trusted_value_is_allowed_anywhere(command: str, said: str, tmp_path: Path) -> None:
    values = {
        "tool": "printf %s",
        "name": "v",
        "sum": "3+1",
        "it": "f g",
        "dash": "-n",
        "empty": "",
    }
    script = render_command(command, values, trusted=values)
    assert bash(script, tmp_path).stdout.decode() == said


def test_code_in_a_trusted_value_restricts_the_values_next_to_it() -> None:
    assert render_command("{{tool}} {{x}}", {"tool": "cat", "x": "a b"}, {"tool"})
    for tool in ("eval", "sh -c", "y=$(cat); $y", "sudo"):
        with pytest.raises(RecipeError, match="a step or a row"):
            render_command("{{tool}} {{x}}", {"tool": tool, "x": "a b"}, {"tool"})


def test_empty_value_of_the_author_does_not_prevent_the_start(tmp_path: Path) -> None:
    body = "context: {ids: ''}\nsteps:\n- id: a\n  type: bash\n  command: |\n"
    body += "    echo uv run python3 -c \"print('{{ids}}')\" {{ids}}\n"
    assert finish(begin(write(tmp_path, body), ScriptedModel(Turn(text="x")))).status == "completed"
