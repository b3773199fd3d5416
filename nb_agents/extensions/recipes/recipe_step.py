"""Specs of the steps and stages of a recipe, and of the gate at the end of a stage.

`nb_agents.extensions.recipes.recipe_rules` checks which keys may be combined.

Source: amplifier-bundle-recipes, `models.py` (keys, defaults), `executor.py` (the gate comes after
the steps).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from nb_agents.config.spec import Spec, Texts
from nb_agents.extensions.recipes import recipe_values as v
from nb_agents.extensions.recipes.recipe_values import (
    LoopVariable,
    Name,
    Number,
    Plain,
    PlainMap,
    Recursion,
    StepRetry,
    Text,
    VariableName,
)

StepType = Literal["agent", "bash", "recipe"]
StepKind = Literal["agent", "bash", "recipe", "group"]
OnError = Literal["fail", "continue", "skip_remaining"]

_STAGE_NAME = re.compile(r"[\w -]*[^\W_][\w -]*")


class ProviderPreference(Spec):
    """A model that a step prefers. The first available one is used.

    Attributes:
        provider: The provider, or "" if only a class of models is given.
        model: The model's name, which may contain ``*``.
        class_: A class of models, such as ``reasoning`` (the key is ``class``).
        required: Whether the step fails without this model.
    """

    provider: str = ""
    model: str = ""
    class_: str = Field(default="", alias="class")
    required: bool = False


def _parallel(value: object) -> object:
    return value if isinstance(value, bool) else v.PARALLEL.written(value)


class Step(Spec):
    """A step of a recipe.

    Attributes:
        id: The step's name, unique in the recipe.
        type: Whether the step asks an agent, runs a command or runs a recipe. It has no effect on
            a step with nested steps.
        agent: The agent's name.
        prompt: The agent's prompt.
        mode: Text that precedes the prompt.
        agent_config: Accepted without effect.
        provider: The provider of the model.
        model: The model's name.
        provider_preferences: Models in order of preference, instead of `provider` and `model`.
        model_role: The kind of model to use, instead of `provider` and `model`.
        spawn_mode: Accepted without effect: every agent has its own session.
        recipe: The file of a sub-recipe, relative to this file's directory.
        context: The initial variables of the sub-recipe.
        recursion: Limits of the sub-recipe's own calls of recipes.
        command: A bash command.
        cwd: The command's working directory, relative to the workspace.
        env: Additional environment variables of the command.
        output_exit_code: The variable that receives the command's exit code, as text.
        repeatable: Whether a resume runs an interrupted command again. If not, a user is asked
            first, because the command may have taken effect.
        output: The variable that receives the step's result.
        condition: The step runs only if this condition is true.
        timeout: Time limit in seconds. A step that calls a recipe has no limit by default.
        on_error: How the recipe continues when the step fails.
        depends_on: Steps that must come earlier.
        parse_json: Whether JSON inside the result is extracted.
        retry: How many times a failed step is tried, and how soon.
        foreach: The list of items for which the step runs, as a single ``{{name}}``.
        as_: The variable that contains the current item (the key is ``as``).
        collect: The variable that receives the results of all items.
        max_iterations: Maximum number of items.
        parallel: Whether items run at the same time. A number sets the maximum.
        checkpoint_iterations: Whether a stopped loop continues at the same item.
        while_condition: The step repeats as long as this condition is true.
        max_while_iterations: Maximum number of repetitions.
        break_when: A loop ends when this condition is true after a repetition.
        update_context: Variables to set after each repetition.
        steps: The nested steps of each iteration, instead of a single agent, command or recipe.
            Amplifier's name ``while_steps`` is also accepted.
    """

    id: Name
    type: StepType = "agent"
    agent: str = ""
    prompt: str = ""
    mode: str = ""
    agent_config: Any = None
    provider: str = ""
    model: str = ""
    provider_preferences: tuple[ProviderPreference, ...] = ()
    model_role: str = ""
    spawn_mode: Literal["subprocess"] | None = None
    recipe: str = ""
    context: PlainMap = Field(default_factory=dict)
    recursion: Recursion | None = None
    command: str = ""
    cwd: str = ""
    env: dict[str, Text] = Field(default_factory=dict)
    output_exit_code: VariableName | None = None
    repeatable: bool = True
    output: VariableName | None = None
    condition: Text = ""
    timeout: Annotated[Number, BeforeValidator(v.TIMEOUT.written)] = 600
    on_error: OnError = "fail"
    depends_on: Texts = ()
    parse_json: bool = False
    retry: StepRetry = StepRetry()
    foreach: str = ""
    as_: LoopVariable = Field(default="item", alias="as")
    collect: VariableName | None = None
    max_iterations: Annotated[Number, BeforeValidator(v.ITERATIONS.written)] = 100
    parallel: Annotated[bool | int | float | str, BeforeValidator(_parallel)] = False
    checkpoint_iterations: bool = False
    while_condition: Text = ""
    max_while_iterations: Annotated[Number, BeforeValidator(v.WHILE_ITERATIONS.written)] = 100
    break_when: Text = ""
    update_context: dict[str, Plain] = Field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    @property
    def kind(self) -> StepKind:
        """``group`` for a step with nested steps, otherwise its `type`."""
        return "group" if self.steps else self.type

    @property
    def is_named_by_values(self) -> bool:
        """Whether the step's agent or model depends on a variable of the run."""
        preferred = [
            name for each in self.provider_preferences for name in (each.provider, each.model)
        ]
        return any(map(v.is_template, (self.agent, self.provider, self.model, *preferred)))

    @property
    def recipe_timeout(self) -> Number | None:
        """Time limit of a called recipe in seconds.

        None, meaning no limit, if the file does not set `timeout`. In Amplifier, called recipes
        have no time limit, so the default of `timeout` does not apply.
        """
        return self.timeout if "timeout" in self.model_fields_set else None

    @property
    def is_loop(self) -> bool:
        """Whether the step may run more than once."""
        return bool(self.foreach or self.while_condition)

    def walk(self) -> Iterator[Step]:
        """Yield the step, followed by its nested steps."""
        yield self
        for step in self.steps:
            yield from step.walk()


class Approval(Spec):
    """A gate. The recipe continues when a user approves.

    Attributes:
        required: Whether the stage has a gate.
        prompt: The question to the user.
        timeout: Seconds to wait. 0 means no limit.
        default: The decision after the timeout.
    """

    required: bool = False
    prompt: str = ""
    timeout: Annotated[Number, BeforeValidator(v.APPROVAL_TIMEOUT.written)] = 0
    default: Literal["deny", "approve"] = "deny"


def _stage_name(name: str) -> str:
    if not _STAGE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a stage name: use letters, digits, '-', '_' and spaces")
    return name


def _gate(value: Any) -> Any:
    if isinstance(value, Approval | dict):
        return value
    if not value:
        return Approval()
    raise ValueError("write a gate as `approval: {required: true, prompt: Your question}`")


class Stage(Spec):
    """A group of steps with an optional gate at its end.

    Attributes:
        name: The stage's name, or "" in a recipe without stages.
        description: A description for users.
        condition: The stage runs only if this condition is true.
        steps: The steps.
        approval: The gate.
        approval_required: Whether the stage has a gate. A short form of `approval`.
        approval_message: The gate's question. A short form of `approval`.
        auto_approve_if: Conditions. If all are true, the gate opens without a question.
    """

    name: Annotated[str, AfterValidator(_stage_name)]
    description: str = ""
    condition: Text = ""
    steps: tuple[Step, ...] = ()
    approval: Annotated[Approval, BeforeValidator(_gate)] = Approval()
    approval_required: bool = False
    approval_message: str = ""
    auto_approve_if: Texts = ()

    @property
    def gate(self) -> Approval | None:
        """The gate at the end of the stage, or None. Both forms of its keys are considered."""
        if not (self.approval.required or self.approval_required):
            return None
        prompt = self.approval.prompt or self.approval_message
        return self.approval.model_copy(update={"required": True, "prompt": prompt})
