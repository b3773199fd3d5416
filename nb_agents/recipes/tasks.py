"""What a plan says: the work that there is to do, and how a recipe ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.config.recipe_step import Step

__all__ = [
    "AgentWork",
    "CommandWork",
    "Completed",
    "Denied",
    "Failed",
    "GateWork",
    "Limit",
    "LoadWork",
    "Plan",
    "Work",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork:
    """Let an agent do a step.

    Attributes:
        address: The step's.
        step: As the recipe has it.
        prompt: What the agent is asked, rendered.
        attempt: From 1.
        attempts: How many there may be.
        delay_s: Seconds to wait before.
        retry_s: Seconds until the next attempt should this one fail; None when it is the last.
        timeout_s: Seconds that it may take.
    """

    address: str
    step: Step
    prompt: str
    attempt: int
    attempts: int
    delay_s: float
    retry_s: float | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWork:
    """Run a command.

    Attributes:
        address: The step's.
        command: A script for bash, rendered.
        cwd: Where, or "" for the run's workspace.
        env: Variables besides those of the run.
        attempt: From 1.
        attempts: How many there may be.
        delay_s: Seconds to wait before.
        retry_s: Seconds until the next attempt should this one fail; None when it is the last.
        timeout_s: Seconds that it may take.
        tolerates: Whether a code other than 0 is a result like any other.
    """

    address: str
    command: str
    cwd: str
    env: Mapping[str, str]
    attempt: int
    attempts: int
    delay_s: float
    retry_s: float | None
    timeout_s: float
    tolerates: bool


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
    """A gate was denied."""

    address: str
    message: str


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
