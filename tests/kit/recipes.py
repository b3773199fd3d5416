"""Recipe files, plans and steps."""

from nb_agents.config.template import FENCED, render
from nb_agents.extensions.recipes import recipe_values
from nb_agents.extensions.recipes.agents import models_of, resolve_agent
from nb_agents.extensions.recipes.check import check, find_recipe
from nb_agents.extensions.recipes.diagram import MAX_SHOWN
from nb_agents.extensions.recipes.executor import Executor
from nb_agents.extensions.recipes.output import JSON_PROMPT_SUFFIX, ResultUse, usage_of_results
from nb_agents.extensions.recipes.plan import Planner, plan
from nb_agents.extensions.recipes.progress import PROGRESS, Progress, apply, fold
from nb_agents.extensions.recipes.rate_limiter import SubRecipeTimeouts
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_launch import fold_turns
from nb_agents.extensions.recipes.recipe_step import Step
from nb_agents.extensions.recipes.recipe_values import (
    Backoff,
    Range,
    RateLimiting,
    StepRetry,
)
from nb_agents.extensions.recipes.shell_values import render_command
from nb_agents.extensions.recipes.tasks import (
    AgentWork,
    CommandWork,
    Completed,
    Denied,
    Failed,
    GateWork,
    Limit,
    LoadWork,
    Plan,
    Work,
)
from nb_agents.extensions.recipes.units import MAX_PLANNED, is_within, planned
from nb_agents.launch.work_kind import StepsPreview
from nb_agents.recipes import CancellationRequestedError, CancellationStatus

__all__ = [
    "AgentWork",
    "Backoff",
    "CancellationRequestedError",
    "CancellationStatus",
    "CommandWork",
    "Completed",
    "Denied",
    "Executor",
    "FENCED",
    "Failed",
    "GateWork",
    "JSON_PROMPT_SUFFIX",
    "Limit",
    "LoadWork",
    "MAX_PLANNED",
    "MAX_SHOWN",
    "PROGRESS",
    "Plan",
    "Planner",
    "Progress",
    "Range",
    "RateLimiting",
    "Recipe",
    "ResultUse",
    "Step",
    "StepRetry",
    "StepsPreview",
    "SubRecipeTimeouts",
    "Work",
    "apply",
    "check",
    "find_recipe",
    "fold",
    "fold_turns",
    "is_within",
    "plan",
    "planned",
    "recipe_values",
    "render",
    "render_command",
    "models_of",
    "resolve_agent",
    "usage_of_results",
]
