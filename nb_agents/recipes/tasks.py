"""What a plan says: the work that there is to do, as it stands, and how a recipe ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from nb_agents import events as ev
from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe_step import ProviderPreference, Step
from nb_agents.errors import RecipeError
from nb_agents.recipes import units
from nb_agents.recipes.output import JSON_RIDER, Wanted
from nb_agents.recipes.progress import Unit
from nb_agents.recipes.shell_values import render_command
from nb_agents.recipes.units import FailedError, FaultyError, Scope

_MOST = 131_072
"""Bytes of ``NAME=value`` and its end that Linux gives a program. Source: execve(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """An attempt at a step.

    Attributes:
        address: The step's.
        attempt: From 1.
        attempts: How many there may be.
        delay_s: Seconds to wait before.
        retry_s: Seconds until the next attempt should this one fail; None when it is the last.
        timeout_s: Seconds that it may take.
    """

    address: str
    attempt: int
    attempts: int
    delay_s: float
    retry_s: float | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork(StepWork):
    """Ask an agent.

    Attributes:
        step: As the recipe has it, with the names of who does it filled in.
        prompt: What the agent is asked, rendered.
        needs_json: Whether an answer in words has failed: the step promises JSON, whose fields
            later steps read.
    """

    step: Step
    prompt: str
    needs_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWork(StepWork):
    """Run a command.

    Attributes:
        command: A script for bash, rendered.
        cwd: Where, or "" for the run's workspace.
        env: Variables besides those of the run.
        tolerates: Whether a code other than 0 is a result like any other.
        was_cut: Whether it had begun before, and all or a part of it may have happened.
        is_repeatable: Whether it is run again then without asking.
    """

    command: str
    cwd: str
    env: Mapping[str, str]
    tolerates: bool
    was_cut: bool = False
    is_repeatable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWork:
    """Read the recipe that a step calls.

    Attributes:
        address: The step's.
        path: As the step has it, rendered.
        beside: Path of the recipe that calls it, or None.
    """

    address: str
    path: str
    beside: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWork:
    """Wait until a person decides a gate, or its time does.

    Attributes:
        address: The stage's.
        timeout_s: Seconds; 0 means for ever.
        default: What the time decides.
    """

    address: str
    timeout_s: float
    default: Literal["approve", "deny"]


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a recipe that a step calls may take, counted from where the step begins.

    Attributes:
        address: The step's, or its iteration's: what is in it stands under this limit.
        timeout_s: Seconds.
    """

    address: str
    timeout_s: float


Work = AgentWork | CommandWork | LoadWork | GateWork


@dataclass(frozen=True, slots=True)
class Completed:
    """The recipe came to its end; its outputs by name, in the order in which they were set."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Steps failed and nothing says to go on without them."""

    addresses: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Denied:
    """A gate was denied; ``by`` is who did."""

    address: str
    message: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is next.

    Attributes:
        events: What is so by now: units that begin, end or are skipped without any work.
        work: What there is to do, in order, without what is under way already.
        ended: How the recipe ended, or None.
        limits: Those of the called recipes that are under way, the outer ones first.
    """

    events: tuple[ev.Event, ...]
    work: tuple[Work, ...]
    ended: Completed | Failed | Denied | None
    limits: tuple[Limit, ...] = ()


def step_task(
    step: Step, unit: Unit, wanted: Wanted, scope: Scope, address: str
) -> AgentWork | CommandWork:
    """Return the work of a step.

    Args:
        step: As the recipe has it.
        unit: What became of it so far.
        wanted: What the recipe reads of its result.
        scope: What it sees.
        address: Where it is.

    Returns:
        The next attempt.

    Raises:
        FailedError: None is left, or what the step says can't be filled in.
    """
    most = units.number(ranges.ATTEMPTS, step.retry.max_attempts, scope, address)
    if unit.failures >= most:
        raise FailedError((address,), unit.why)
    attempt = unit.failures + 1
    delay_s = units.delay_s(step.retry, unit.failures, scope, address)
    is_last = attempt >= most
    retry_s = None if is_last else units.delay_s(step.retry, attempt, scope, address)
    timeout_s = units.number(ranges.TIMEOUT, step.timeout, scope, address)
    if step.type == "agent":
        return AgentWork(
            address=address,
            step=_with_names(step, scope, address),
            prompt=_prompt(step, wanted, scope, address),
            attempt=attempt,
            attempts=int(most),
            delay_s=delay_s,
            retry_s=retry_s,
            timeout_s=timeout_s,
            needs_json=step.parse_json and wanted.is_json,
        )
    return CommandWork(
        address=address,
        command=_command(step, scope, address),
        cwd=units.text(step.cwd, scope, address),
        env={name: _variable(step, name, scope, address) for name in step.env},
        attempt=attempt,
        attempts=int(most),
        delay_s=delay_s,
        retry_s=retry_s,
        timeout_s=timeout_s,
        tolerates=step.on_error == "continue" and is_last,
        was_cut=unit.has_begun,
        is_repeatable=step.repeatable,
    )


def _with_names(step: Step, scope: Scope, address: str) -> Step:
    """Fill in which agent and which model a step names."""
    if not step.is_named_by_values:
        return step
    keys = ("provider", "model")
    wishes = (_filled(each, keys, scope, address) for each in step.provider_preferences)
    filled = _filled(step, ("agent", *keys), scope, address)
    return filled.model_copy(update={"provider_preferences": tuple(wishes)})


_Named = TypeVar("_Named", Step, ProviderPreference)


def _filled(spec: _Named, keys: tuple[str, ...], scope: Scope, address: str) -> _Named:
    filled = {key: units.text(getattr(spec, key), scope, address) for key in keys}
    return spec.model_copy(update=filled)


def _prompt(step: Step, wanted: Wanted, scope: Scope, address: str) -> str:
    mode = f"MODE: {step.mode}\n\n" if step.mode else ""
    rider = JSON_RIDER if step.parse_json or wanted.is_json else ""
    return mode + units.text(step.prompt, scope, address) + rider + wanted.rider


def _command(step: Step, scope: Scope, address: str) -> str:
    try:
        return render_command(step.command, scope.values, scope.trusted)
    except RecipeError as exc:
        raise FaultyError((address,), str(exc)) from exc


def _variable(step: Step, name: str, scope: Scope, address: str) -> str:
    """Fill in a variable of a command's environment."""
    value = units.text(step.env[name], scope, address)
    if "\0" in value:
        why = f"{name} in env holds a NUL, which no program can be given. Remove it before."
        raise FaultyError((address,), why)
    size, most = len(value.encode("utf-8", "surrogatepass")), _MOST - len(name.encode()) - 2
    if size > most:
        why = (
            f"{name} in env has {size} bytes, and a program's variable takes {most} at most. "
            "Insert the value into the command, as in printf %s {{name}} > file."
        )
        raise FaultyError((address,), why)
    return value
