"""The steps and stages of a recipe, and the gate at a stage's end.

What their keys may be together is in `nb_agents.config.recipe_rules`.

Source: amplifier-bundle-recipes, `models.py` (keys, defaults); the gate comes after the steps,
as in its `executor.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from nb_agents.config import recipe_values as v
from nb_agents.config.recipe_values import (
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
from nb_agents.config.spec import Spec, Texts

StepType = Literal["agent", "bash", "recipe"]
StepKind = Literal["agent", "bash", "recipe", "group"]
OnError = Literal["fail", "continue", "skip_remaining"]

_STAGE_NAME = re.compile(r"[\w -]*[^\W_][\w -]*")


class ProviderPreference(Spec):
    """A model that a step prefers; the first usable one is taken.

    Attributes:
        provider: Its provider, or "" when only a class is asked for.
        model: Its name, which may have ``*``.
        class_: The class of models that will do, as ``reasoning`` (the key is ``class``).
        required: Whether the step can't do without it.
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
        id: Names it in the whole recipe.
        type: What it does, as the file says it; `kind` knows of nested steps.
        agent: The agent.
        prompt: The agent's prompt.
        mode: Put before the prompt.
        agent_config: Kept, and not used.
        provider: The provider of the model.
        model: Which one.
        provider_preferences: Which ones would do, in order, instead of `provider` and `model`.
        model_role: The kind of model that answers, instead of provider and model.
        spawn_mode: Kept: every agent has a session of its own here.
        recipe: The sub-recipe's file, from this file's directory.
        context: The variables that the sub-recipe starts with.
        recursion: How far it may go.
        command: The bash command.
        cwd: Where, from the workspace.
        env: Variables of its environment.
        output_exit_code: The variable for its exit code, as text.
        repeatable: Whether a resume runs its command again when that was cut; else a person is
            asked first, as all or a part of it may have happened.
        output: The variable for the step's result.
        condition: The step runs only when this holds.
        timeout: Seconds that it may take; of a step that calls a recipe, see `recipe_timeout`.
        on_error: How the recipe continues when the step fails.
        depends_on: Steps that must come earlier.
        parse_json: Whether JSON is looked for inside the result.
        retry: How often it is tried.
        foreach: The list that it runs for, as one ``{{name}}``.
        as_: The variable for each item (the key is ``as``).
        collect: The variable for all results.
        max_iterations: Items that a list may have.
        parallel: Whether items run at the same time, or how many.
        checkpoint_iterations: Whether a stopped loop continues at the same item.
        while_condition: The step repeats as long as this holds.
        max_while_iterations: Repetitions at most.
        break_when: A loop ends when this holds after a repetition.
        update_context: Variables to set after each repetition.
        steps: What one iteration does, instead of a single agent, command or recipe.
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
        """What it does: ``group`` when it has nested steps, else its `type`."""
        return "group" if self.steps else self.type

    @property
    def is_named_by_values(self) -> bool:
        """Whether a value of the run says which agent or which model does it."""
        wishes = [
            name for each in self.provider_preferences for name in (each.provider, each.model)
        ]
        return any(map(v.is_template, (self.agent, self.provider, self.model, *wishes)))

    @property
    def recipe_timeout(self) -> Number | None:
        """Seconds that the recipe that it calls may take: None, for ever, unless the file says it.

        Amplifier lets no time end a called recipe, so that the default is nobody's wish there.
        """
        return self.timeout if "timeout" in self.model_fields_set else None

    @property
    def is_loop(self) -> bool:
        """Whether it may run more than once."""
        return bool(self.foreach or self.while_condition)

    def walk(self) -> Iterator[Step]:
        """Yield the step, and then those within it."""
        yield self
        for step in self.steps:
            yield from step.walk()


class Approval(Spec):
    """A gate: a person must approve before the recipe continues.

    Attributes:
        required: Whether there is one.
        prompt: The question to the person.
        timeout: Seconds to wait; 0 waits for ever.
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
    raise ValueError("a gate is written `approval: {required: true, prompt: What it asks}`")


class Stage(Spec):
    """Some steps, and perhaps a gate after them.

    Attributes:
        name: Names it; "" for the one stage of a recipe without stages.
        description: A description for people.
        condition: The stage runs only when this holds.
        steps: What it does.
        approval: Its gate.
        approval_required: Whether it has one, in a stage without `approval`.
        approval_message: What that one asks.
        auto_approve_if: Conditions: if all hold, the gate opens without a question.
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
        """The gate after its steps, however the file writes it, or None."""
        if not (self.approval.required or self.approval_required):
            return None
        prompt = self.approval.prompt or self.approval_message
        return self.approval.model_copy(update={"required": True, "prompt": prompt})
