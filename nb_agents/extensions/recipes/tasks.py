"""The types that plans use for the work to do and for how a recipe ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from nb_agents import events as ev
from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes import recipe_values as ranges
from nb_agents.extensions.recipes import units
from nb_agents.extensions.recipes.output import JSON_PROMPT_SUFFIX, ResultUse
from nb_agents.extensions.recipes.progress import Unit
from nb_agents.extensions.recipes.recipe_step import ProviderPreference, Step
from nb_agents.extensions.recipes.shell_values import render_command
from nb_agents.extensions.recipes.units import FailedError, FaultyError, Scope

_MAX_VARIABLE_BYTES = 131_072
"""The size limit of ``NAME=value`` in bytes, with its NUL, on Linux. Source: execve(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """An attempt at a step.

    Attributes:
        address: The address of the step.
        attempt: The number of the attempt, starting at 1.
        attempts: The maximum number of attempts.
        delay_s: Seconds to wait before this attempt.
        retry_s: Seconds until the next attempt if this one fails, or None if it is the last.
        timeout_s: Time limit in seconds.
    """

    address: str
    attempt: int
    attempts: int
    delay_s: float
    retry_s: float | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork(StepWork):
    """A prompt for an agent.

    Attributes:
        step: The step, with its agent and model filled in.
        prompt: The rendered prompt.
        needs_json: Whether an answer without JSON is a failure: the step sets ``parse_json``, and
            later steps read fields of its result.
    """

    step: Step
    prompt: str
    needs_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWork(StepWork):
    """A command to run.

    Attributes:
        command: The rendered bash script.
        cwd: The working directory, or "" for the run's workspace.
        env: Additional environment variables.
        tolerates: Whether a nonzero exit code is a normal result.
        was_cut: Whether an earlier attempt was interrupted, so that its effects are unknown.
        is_repeatable: Whether to run it again in that case without asking.
    """

    command: str
    cwd: str
    env: Mapping[str, str]
    tolerates: bool
    was_cut: bool = False
    is_repeatable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWork:
    """A recipe to load, because a step calls it.

    Attributes:
        address: The address of the step.
        path: The rendered path of the recipe.
        caller_path: The path of the calling recipe, or None.
    """

    address: str
    path: str
    caller_path: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWork:
    """A gate to wait for, until a user or its timeout decides.

    Attributes:
        address: The address of the stage.
        timeout_s: Seconds to wait. 0 means no limit.
        default: The decision on timeout.
    """

    address: str
    timeout_s: float
    default: Literal["approve", "deny"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The time limit of a called recipe, counted from the start of the calling step.

    Attributes:
        address: The address of the step or iteration. The limit applies to everything inside.
        timeout_s: The limit in seconds.
    """

    address: str
    timeout_s: float


Work = AgentWork | CommandWork | LoadWork | GateWork


@dataclass(frozen=True, slots=True)
class Completed:
    """The recipe completed, with its outputs by name in the order in which they were set."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Steps failed, and the recipe does not tolerate that."""

    addresses: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Denied:
    """A gate was denied. ``by`` is the user who denied it, or "timeout"."""

    address: str
    message: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next work of a recipe.

    Attributes:
        events: Events of units that start, end or are skipped without any work.
        work: The work to start, in order.
        ended: How the recipe ended, or None.
        limits: Time limits of the running called recipes, outer ones first.
    """

    events: tuple[ev.Event, ...]
    work: tuple[Work, ...]
    ended: Completed | Failed | Denied | None
    limits: tuple[Limit, ...] = ()


def step_task(
    step: Step, unit: Unit, result_use: ResultUse, scope: Scope, address: str
) -> AgentWork | CommandWork:
    """Return the next attempt at a step.

    Args:
        unit: The state of the step so far.
        result_use: How the recipe uses the step's result.
        scope: The variables of the step.
        address: The address of the step.

    Raises:
        FailedError: No attempts are left, or a template can't be filled in.
    """
    max_attempts = units.number(ranges.ATTEMPTS, step.retry.max_attempts, scope, address)
    if unit.failures >= max_attempts:
        raise FailedError((address,), unit.why)
    attempt = unit.failures + 1
    delay_s = units.delay_s(step.retry, unit.failures, scope, address)
    is_last = attempt >= max_attempts
    retry_s = None if is_last else units.delay_s(step.retry, attempt, scope, address)
    timeout_s = units.number(ranges.TIMEOUT, step.timeout, scope, address)
    if step.type == "agent":
        return AgentWork(
            address=address,
            step=_with_names(step, scope, address),
            prompt=_prompt(step, result_use, scope, address),
            attempt=attempt,
            attempts=int(max_attempts),
            delay_s=delay_s,
            retry_s=retry_s,
            timeout_s=timeout_s,
            needs_json=step.parse_json and result_use.is_json,
        )
    return CommandWork(
        address=address,
        command=_command(step, scope, address),
        cwd=units.text(step.cwd, scope, address),
        env={name: _variable(step, name, scope, address) for name in step.env},
        attempt=attempt,
        attempts=int(max_attempts),
        delay_s=delay_s,
        retry_s=retry_s,
        timeout_s=timeout_s,
        tolerates=step.on_error == "continue" and is_last,
        was_cut=unit.has_begun,
        is_repeatable=step.repeatable,
    )


def _with_names(step: Step, scope: Scope, address: str) -> Step:
    """Fill in the names of a step's agent, provider and model."""
    if not step.is_named_by_values:
        return step
    keys = ("provider", "model")
    preferences = (_fill_in(each, keys, scope, address) for each in step.provider_preferences)
    filled = _fill_in(step, ("agent", *keys), scope, address)
    return filled.model_copy(update={"provider_preferences": tuple(preferences)})


_Named = TypeVar("_Named", Step, ProviderPreference)


def _fill_in(spec: _Named, keys: tuple[str, ...], scope: Scope, address: str) -> _Named:
    filled = {key: units.text(getattr(spec, key), scope, address) for key in keys}
    return spec.model_copy(update=filled)


def _prompt(step: Step, result_use: ResultUse, scope: Scope, address: str) -> str:
    mode = f"MODE: {step.mode}\n\n" if step.mode else ""
    rider = JSON_PROMPT_SUFFIX if step.parse_json or result_use.is_json else ""
    return mode + units.text(step.prompt, scope, address) + rider + result_use.rider


def _command(step: Step, scope: Scope, address: str) -> str:
    try:
        return render_command(step.command, scope.values, scope.trusted)
    except RecipeError as exc:
        raise FaultyError((address,), str(exc)) from exc


def _variable(step: Step, name: str, scope: Scope, address: str) -> str:
    """Fill in one environment variable of a command."""
    value = units.text(step.env[name], scope, address)
    if "\0" in value:
        why = f"{name} in env contains a NUL, which can't be passed to a program. Remove it first."
        raise FaultyError((address,), why)
    size, max_size = (
        len(value.encode("utf-8", "surrogatepass")),
        _MAX_VARIABLE_BYTES - len(name.encode()) - 2,
    )
    if size > max_size:
        why = (
            f"{name} in env has {size} bytes, but the limit is {max_size} bytes. "
            "Insert the value into the command, as in printf %s {{name}} > file."
        )
        raise FaultyError((address,), why)
    return value
