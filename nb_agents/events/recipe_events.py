"""The events of recipes: their files, units and gates."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from nb_agents.events.base_event import Count, Event, ExitCode, Seconds

StepKind = Literal["stage", "agent", "bash", "recipe", "foreach", "while", "group", "iteration"]
"""The kind of a unit of a recipe."""


class PlannedUnit(NamedTuple):
    """A unit of a recipe that has not started.

    Attributes:
        address: The address that it will have.
        unit: The kind of unit.
        label: A short description of its work.
    """

    address: str
    unit: StepKind
    label: str = ""


class UnitEvent(Event, is_kind=False):
    """The base class of events about a unit of a recipe.

    Attributes:
        step: The unit's address: names joined by "/", with iterations as ``[n]`` starting at 0,
            such as ``checks/review[2]/summarize``.
    """

    step: str


class RecipeLoaded(UnitEvent):
    """A recipe file was read: the run's recipe or one that a step calls.

    Attributes:
        step: Address of the step that calls it. "" for the run's recipe.
        path: The file's path, or "".
        text: The complete text of the file. A resume uses it, even if the file has changed.
        outline: Its first units, in order. Empty in older journals.
    """

    path: str
    text: str
    outline: tuple[PlannedUnit, ...] = ()


class StepStarted(UnitEvent):
    """A unit of a recipe began, or an attempt at one.

    Attributes:
        unit: The kind of unit.
        attempt: The number of the attempt, starting at 1.
        total: The number of iterations of a foreach. None means unknown.
        worker: For an agent step, the agent and the reason for its choice, such as "critic".
        model: For an agent step, the name of the model.
        asks: The prompt or command.
    """

    unit: StepKind
    attempt: Count = 1
    total: Count | None = None
    worker: str = ""
    model: str = ""
    asks: str = ""


class OutputStreamed(UnitEvent):
    """New output of a command since the last such event of its step."""

    text: str


class StepFailed(UnitEvent):
    """An attempt at a step failed. Another attempt follows, or the step fails.

    Attributes:
        attempt: The number of the attempt, starting at 1.
        error: The error message.
        attempts: The maximum number of attempts.
        retry_in_s: Seconds until the next attempt. None after the last one.
    """

    attempt: Count
    error: str
    attempts: Count = 1
    retry_in_s: Seconds | None = None


class StepFinished(UnitEvent):
    """A unit of a recipe ended. An interrupted unit has no such event.

    Attributes:
        outcome: The outcome. "failed" is final, without further attempts.
        output: The complete output as a JSON value. None for a unit that contains other units,
            whose outputs determine its output.
        exit_code: The exit code of a command, or None.
        why: Why it failed or was skipped, or "".
    """

    outcome: Literal["ok", "failed", "skipped"]
    output: Any = None
    exit_code: ExitCode | None = None
    why: str = ""


class ApprovalAsked(UnitEvent):
    """A gate waits for the user's decision.

    Attributes:
        prompt: The question.
        timeout_s: Seconds after which ``default`` is applied. 0 means never.
        default: The decision after the timeout.
        wants: Whether the gate asks for a decision, or for text, which becomes the message of an
            approval.
        caller, call_id: The agent and id of the tool call that waits for approval, or "".
        about: "budget" if the gate asks whether to raise the budget of the task.
    """

    prompt: str
    timeout_s: Seconds = 0.0
    default: Literal["approve", "deny"] = "deny"
    wants: Literal["approval", "input"] = "approval"
    caller: str = ""
    call_id: str = ""
    about: Literal["", "budget"] = ""


class ApprovalGiven(UnitEvent):
    """A gate was decided.

    Attributes:
        approved: Whether the gate was approved.
        message: The user's message, for the following steps.
        by: The name of the user who decided, "timeout", or "auto_approve_if".
        caller, call_id: As in `ApprovalAsked`.
    """

    approved: bool
    message: str = ""
    by: str = ""
    caller: str = ""
    call_id: str = ""
