"""Recipes: workflows of steps in YAML, a documented superset of Amplifier's language."""

from nb_agents.plugins import Extension

EXTENSION = Extension(
    name="recipes",
    work_kinds={"recipe": "nb_agents.extensions.recipes.recipe_kind:RECIPE"},
    public_names={"Recipe": "nb_agents.extensions.recipes.recipe:Recipe"},
    member_tools={"recipes": "nb_agents.extensions.recipes.recipe_tool:RecipeTool"},
)
