"""A stage of a recipe, and the gate at its end.

Source: amplifier-bundle-recipes, `models.py` (keys, defaults); the gate comes after the steps,
as in its `executor.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from nb_agents.config import recipe_values as v
from nb_agents.config.recipe_step import Step
from nb_agents.config.recipe_values import Number, Text, Texts
from nb_agents.config.spec import Spec

__all__ = ["Approval", "Stage"]

_STAGE_NAME = re.compile(r"[\w -]*[^\W_][\w -]*")


class Approval(Spec):
    """A gate: a person must agree before the recipe goes on.

    Attributes:
        required: Whether there is one.
        prompt: What the person is asked.
        timeout: Seconds to wait; 0 waits for ever.
        default: What happens when they are over.
    """

    required: bool = False
    prompt: str = ""
    timeout: Annotated[Number, BeforeValidator(v.APPROVAL_TIMEOUT.written)] = 0
    default: Literal["deny", "approve"] = "deny"


def _stage_name(name: str) -> str:
    if not _STAGE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no stage name: use letters, digits, '-', '_' and spaces")
    return name


class Stage(Spec):
    """Some steps, and perhaps a gate after them.

    Attributes:
        name: Names it; "" for the one stage of a recipe without stages.
        description: Told to people.
        condition: The stage runs only when this holds.
        steps: What it does.
        approval: Its gate.
        approval_required: Whether it has one, in a stage without `approval`.
        approval_message: What that one asks.
        auto_approve_if: Conditions: when all hold, nobody is asked.
    """

    name: Annotated[str, AfterValidator(_stage_name)]
    description: str = ""
    condition: Text = ""
    steps: tuple[Step, ...] = ()
    approval: Approval = Approval()
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
