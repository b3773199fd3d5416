"""Recipes: their files, their units, and the questions to a person."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from nb_agents.events.base_event import Count, Event, ExitCode, Seconds

StepKind = Literal["stage", "agent", "bash", "recipe", "foreach", "while", "group", "iteration"]
"""What a unit of a recipe is."""


class PlannedUnit(NamedTuple):
    """A unit of a recipe as it is known before it begins.

    Attributes:
        address: Where it will be.
        unit: What it is.
        label: What it does, in a few words.
    """

    address: str
    unit: StepKind
    label: str = ""


class UnitEvent(Event, is_kind=False):
    """Something that happened to a unit of a recipe.

    Attributes:
        step: Its address: names joined by "/", an iteration as ``[n]`` from 0, such as
            ``checks/review[2]/summarize``.
    """

    step: str


class RecipeLoaded(UnitEvent):
    """A recipe file was read: the run's own (``step`` is "") or one that a step calls.

    Attributes:
        step: Address of the step that calls it, or "".
        path: Where it was read, or "".
        text: The file, whole: a resume goes on with this one, whatever the disk has by then.
        outline: Its first units, in order; none in an older journal.
    """

    path: str
    text: str
    outline: tuple[PlannedUnit, ...] = ()


class StepStarted(UnitEvent):
    """A unit of a recipe began, or an attempt at one.

    Attributes:
        unit: What it is.
        attempt: From 1.
        total: Iterations of a foreach; None when it is not known.
        worker: For an agent step, who does it and why that one, such as "critic".
        model: For an agent step, its model's name.
        asks: The prompt or the command as it was sent.
    """

    unit: StepKind
    attempt: Count = 1
    total: Count | None = None
    worker: str = ""
    model: str = ""
    asks: str = ""


class OutputStreamed(UnitEvent):
    """What a command wrote since the last such event of its step."""

    text: str


class StepFailed(UnitEvent):
    """An attempt at a step failed; another one follows, or the step is over as failed.

    Attributes:
        attempt: From 1.
        error: Why.
        attempts: How many there may be.
        retry_in_s: Seconds until the next one; None when it was the last.
    """

    attempt: Count
    error: str
    attempts: Count = 1
    retry_in_s: Seconds | None = None


class StepFinished(UnitEvent):
    """A unit of a recipe is over.

    Attributes:
        outcome: How it ended; "failed" is final, and a cut one does not end.
        output: What it gave, as JSON, whole; None for a unit that holds others: its value follows
            from theirs.
        exit_code: Of a command, else None.
        why: Why it failed or was skipped, or "".
    """

    outcome: Literal["ok", "failed", "skipped"]
    output: Any = None
    exit_code: ExitCode | None = None
    why: str = ""


class ApprovalAsked(UnitEvent):
    """A recipe waits for a person at the gate of a stage.

    Attributes:
        prompt: The question.
        timeout_s: Seconds after which ``default`` decides; 0 means never.
        default: What happens then.
        wants: A decision, or a text: then the message of who approves is the answer.
        caller, call_id: The agent's tool call that begins once it is approved, if it is one.
    """

    prompt: str
    timeout_s: Seconds = 0.0
    default: Literal["approve", "deny"] = "deny"
    wants: Literal["approval", "input"] = "approval"
    caller: str = ""
    call_id: str = ""


class ApprovalGiven(UnitEvent):
    """A gate was decided.

    Attributes:
        approved: Whether the recipe goes on.
        message: What the person said, for the steps that follow.
        by: Who decided: a person's name, "timeout", or "auto_approve_if".
        caller, call_id: As in `ApprovalAsked`.
    """

    approved: bool
    message: str = ""
    by: str = ""
    caller: str = ""
    call_id: str = ""
