"""A recipe as lines of text: what it would do, in which order, and where it waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_stage import Stage
from nb_agents.config.recipe_step import Step

__all__ = ["Outline", "does", "one_line", "only_when", "repeats"]

MAX_SHOWN = 80
"""Characters of one text of a file that are shown."""

_SHORT = "…"


def one_line(text: str) -> str:
    """Put a text on one line and cut it; what can't be printed becomes a space."""
    flat = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_SHOWN])
    words = " ".join(flat.split())
    return words if len(words) <= MAX_SHOWN else words[: MAX_SHOWN - 1].rstrip() + _SHORT


def does(step: Step) -> str:
    """Say who or what a step runs."""
    told = {
        "agent": f"agent {step.agent}",
        "bash": "bash",
        "recipe": f"recipe {step.recipe}",
        "group": f"{len(step.steps)} step{'' if len(step.steps) == 1 else 's'}",
    }
    return one_line(told[step.kind])


def repeats(step: Step) -> str:
    """Say how a step repeats, or ""."""
    if step.foreach:
        limit = "" if isinstance(step.parallel, bool) else f" {step.parallel} at a time"
        pace = f", in parallel{limit}" if step.parallel else ""
        return one_line(f"for each {step.as_} of {step.foreach}{pace}")
    if step.while_condition:
        until = f" until {step.break_when}" if step.break_when else ""
        most = f", at most {step.max_while_iterations} times"
        return one_line(f"while {step.while_condition}{until}") + one_line(most)
    return ""


def only_when(step: Step | Stage) -> str:
    """Say when a step or stage runs at all, or ""."""
    return one_line(f"if {step.condition}") if step.condition else ""


@dataclass
class Outline:
    """Lines that grow.

    Attributes:
        lines: So far.
    """

    lines: list[str] = field(default_factory=list)
    _depth: int = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Put the lines of the block further in."""
        self._depth += 1
        yield
        self._depth -= 1

    def recipe(self, recipe: Recipe) -> None:
        """Begin a recipe."""
        self._add(f"recipe {recipe.name} {recipe.version}: {one_line(recipe.description)}")
        self._depth += 1
        if recipe.required:
            self._add(f"needs: {one_line(', '.join(recipe.required))}")
        if recipe.context:
            self._add(f"variables: {one_line(', '.join(recipe.context))}")
        self._depth -= 1

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Begin a stage; its steps go further in, those of the one without a name don't."""
        if not stage.name:
            yield
            return
        self._add(" · ".join(filter(None, [f"stage {stage.name}", only_when(stage)])))
        with self.inside():
            yield

    def gate(self, stage: Stage) -> None:
        """Add the gate after a stage."""
        gate = stage.gate
        if gate is None:
            return
        waits = f"{gate.default} after {gate.timeout} s" if gate.timeout else "waits for ever"
        parts = [f"gate after {stage.name}: a person must approve", one_line(waits)]
        if stage.auto_approve_if:
            parts.append(one_line("not asked if " + " and ".join(stage.auto_approve_if)))
        self._add(" · ".join(parts))

    def step(self, step: Step, worker: str = "") -> None:
        """Add a step, with who of a team would do it."""
        done = f"{does(step)} = {one_line(worker)}" if worker else does(step)
        parts = [f"{one_line(step.id)}: {done}", only_when(step), repeats(step)]
        if step.depends_on:
            parts.append(one_line("after " + ", ".join(step.depends_on)))
        if step.retry.max_attempts != 1:
            parts.append(one_line(f"tried {step.retry.max_attempts} times"))
        if step.on_error != "fail":
            parts.append(f"on error {step.on_error.replace('_', ' ')}")
        given = [n for n in (step.output, step.output_exit_code, step.collect) if n]
        if given:
            parts.append("→ " + one_line(", ".join(given)))
        self._add(" · ".join(filter(None, parts)))

    def _add(self, line: str) -> None:
        self.lines.append("  " * self._depth + line)
