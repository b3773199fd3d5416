"""The outline of a recipe before it begins, and the addresses of its units."""

from __future__ import annotations

from nb_agents.events import EVENT, PlannedUnit, RecipeLoaded
from tests.kit.recipes import MAX_PLANNED, Recipe, planned

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


def test_outline_lists_stages_and_steps_in_order_and_each_loop_once() -> None:
    body = STAGES.replace("a/b", "ab")
    assert [tuple(unit) for unit in planned(read("context: {xs: []}" + body))] == [
        ("gather", "stage", "needs approval at its end"),
        ("gather/draft", "agent", "agent worker"),
        ("gather/ab", "foreach", "bash"),
        ("work", "stage", ""),
        ("work/loop", "while", "1 step"),
        ("work/sub", "recipe", "recipe sub.yaml"),
    ]


def test_called_recipe_is_listed_below_its_step() -> None:
    steps = read("steps: [{id: one, type: bash, command: x}]")
    assert planned(steps, "work/sub") == (PlannedUnit("work/sub/one", "bash", "bash"),)


def test_outline_of_a_long_recipe_is_shortened() -> None:
    many = "".join(f"- {{id: s{n}, type: bash, command: x}}\n" for n in range(MAX_PLANNED + 9))
    assert len(planned(read(f"steps:\n{many}"))) == MAX_PLANNED


def test_journal_has_the_outline_and_old_journals_load_without() -> None:
    outline = (PlannedUnit("a", "stage", "x"), PlannedUnit("a/b", "bash", "bash"))
    loaded = RecipeLoaded(step="", path="", text="t", outline=outline)
    assert EVENT.validate_json(EVENT.dump_json(loaded)) == loaded
    older = '{"kind": "recipe_loaded", "step": "", "path": "", "text": "t"}'
    assert EVENT.validate_json(older) == RecipeLoaded(step="", path="", text="t")
