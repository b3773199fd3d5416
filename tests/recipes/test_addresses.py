"""What is known of a recipe before it begins, and where its units will be."""

from __future__ import annotations

from nb_agents.config.recipe import Recipe
from nb_agents.events import EVENT, PlannedUnit, RecipeLoaded
from nb_agents.recipes.units import MAX_PLANNED, planned

HEAD = "name: a\ndescription: d\nversion: 1.0.0\n"
STAGES = """
stages:
- name: gather
  steps:
  - {id: draft, agent: worker, prompt: x}
  - {id: a/b, type: bash, command: "true", foreach: "{{xs}}"}
  approval: {required: true, prompt: "?"}
- name: work
  steps:
  - {id: loop, while_condition: "{{xs}}", steps: [{id: in, agent: worker, prompt: x}]}
  - {id: sub, type: recipe, recipe: sub.yaml}
"""


def read(body: str) -> Recipe:
    return Recipe.from_text(HEAD + body, "a.yaml")


def test_stages_and_steps_are_planned_in_order_and_loops_as_one() -> None:
    body = STAGES.replace("a/b", "ab")
    assert [tuple(unit) for unit in planned(read("context: {xs: []}" + body))] == [
        ("gather", "stage", "a person must approve its end"),
        ("gather/draft", "agent", "agent worker"),
        ("gather/ab", "foreach", "bash"),
        ("work", "stage", ""),
        ("work/loop", "while", "1 step"),
        ("work/sub", "recipe", "recipe sub.yaml"),
    ]


def test_a_recipe_that_a_step_calls_is_planned_below_the_step() -> None:
    steps = read("steps: [{id: one, type: bash, command: x}]")
    assert planned(steps, "work/sub") == (PlannedUnit("work/sub/one", "bash", "bash"),)


def test_a_long_recipe_is_planned_in_part() -> None:
    many = "".join(f"- {{id: s{n}, type: bash, command: x}}\n" for n in range(MAX_PLANNED + 9))
    assert len(planned(read(f"steps:\n{many}"))) == MAX_PLANNED


def test_the_journal_keeps_the_outline_and_older_ones_had_none() -> None:
    outline = (PlannedUnit("a", "stage", "x"), PlannedUnit("a/b", "bash", "bash"))
    loaded = RecipeLoaded(step="", path="", text="t", outline=outline)
    assert EVENT.validate_json(EVENT.dump_json(loaded)) == loaded
    older = '{"kind": "recipe_loaded", "step": "", "path": "", "text": "t"}'
    assert EVENT.validate_json(older) == RecipeLoaded(step="", path="", text="t")
