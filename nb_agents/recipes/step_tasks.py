"""What an agent or a command is to do for a step, as it stands: the next attempt at it."""

from __future__ import annotations

from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe_step import Step
from nb_agents.errors import RecipeError
from nb_agents.recipes import values
from nb_agents.recipes.output import JSON_RIDER
from nb_agents.recipes.output_schema import Wanted
from nb_agents.recipes.progress import Unit
from nb_agents.recipes.scope import Scope
from nb_agents.recipes.shell_values import render_command
from nb_agents.recipes.tasks import AgentWork, CommandWork
from nb_agents.recipes.values import FailedError

__all__ = ["step_task"]

_MOST = 131_072
"""Bytes of ``NAME=value`` and its end that Linux gives a program. Source: execve(2)."""


def step_task(
    step: Step, unit: Unit, wanted: Wanted, scope: Scope, address: str
) -> AgentWork | CommandWork:
    """Make the work of a step.

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
    most = values.number(ranges.ATTEMPTS, step.retry.max_attempts, scope, address)
    if unit.failures >= most:
        raise FailedError((address,), unit.why)
    attempt = unit.failures + 1
    delay_s = values.delay_s(step.retry, unit.failures, scope, address)
    is_last = attempt >= most
    retry_s = None if is_last else values.delay_s(step.retry, attempt, scope, address)
    timeout_s = values.number(ranges.TIMEOUT, step.timeout, scope, address)
    if step.type == "agent":
        return AgentWork(
            address=address,
            step=step,
            prompt=_prompt(step, wanted, scope, address),
            attempt=attempt,
            attempts=int(most),
            delay_s=delay_s,
            retry_s=retry_s,
            timeout_s=timeout_s,
        )
    return CommandWork(
        address=address,
        command=_command(step, scope, address),
        cwd=values.text(step.cwd, scope, address),
        env={name: _variable(step, name, scope, address) for name in step.env},
        attempt=attempt,
        attempts=int(most),
        delay_s=delay_s,
        retry_s=retry_s,
        timeout_s=timeout_s,
        tolerates=step.on_error == "continue" and is_last,
    )


def _prompt(step: Step, wanted: Wanted, scope: Scope, address: str) -> str:
    mode = f"MODE: {step.mode}\n\n" if step.mode else ""
    rider = JSON_RIDER if step.parse_json or wanted.is_json else ""
    return mode + values.text(step.prompt, scope, address) + rider + wanted.rider


def _command(step: Step, scope: Scope, address: str) -> str:
    try:
        return render_command(step.command, scope.values)
    except RecipeError as exc:
        raise FailedError((address,), str(exc)) from exc


def _variable(step: Step, name: str, scope: Scope, address: str) -> str:
    """Fill in a variable of a command's environment."""
    value = values.text(step.env[name], scope, address)
    if "\0" in value:
        why = f"{name} in env holds a NUL, which no program can be given. Remove it before."
        raise FailedError((address,), why)
    size, most = len(value.encode("utf-8", "surrogatepass")), _MOST - len(name.encode()) - 2
    if size > most:
        why = (
            f"{name} in env has {size} bytes, and a program's variable takes {most} at most. "
            "Insert the value into the command, as in printf %s {{name}} > file."
        )
        raise FailedError((address,), why)
    return value
