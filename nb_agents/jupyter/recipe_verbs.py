"""What ``%agents VERB`` does with recipes and their gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nb_agents.config.faults import Finding
from nb_agents.config.recipe import Recipe
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.jupyter.ipython import argument, arguments, display
from nb_agents.jupyter.recipe_rows import asked_for
from nb_agents.recipes.check import check
from nb_agents.recipes.diagram import mermaid
from nb_agents.runs import registry

__all__ = ["RECIPE_VERBS", "WITH_MESSAGE", "check_recipe"]

_run = argument("run", metavar="RUN", help="run id, such as r1")
_message = argument(
    "message", nargs="?", default="", metavar="MESSAGE", help="what to say about it"
)


@arguments("agents approve")
@_run
@_message
def approve(ip: Any, args: Any) -> None:
    """Approve what a run waits with: a recipe goes on at its gate, and steps get the message."""
    _decide(args, True)


@arguments("agents deny")
@_run
@_message
def deny(ip: Any, args: Any) -> None:
    """Deny what a run waits with: a recipe stops at its gate, and a resume asks again."""
    _decide(args, False)


@arguments("agents answer")
@_run
@argument("message", metavar="TEXT", help="the answer")
def answer(ip: Any, args: Any) -> None:
    """Answer the question that a run asks for a text."""
    registry.find_run(args.run).answer(args.message)
    _say(f"Run {args.run} has its answer.")


def _decide(args: Any, approved: bool) -> None:
    run = registry.find_run(args.run)
    # A stopped run keeps its gates for a resume.
    gates = () if run.is_over else run.view.gates.values()
    asked = {gate.address: asked_for(gate, run.view) for gate in gates}
    # A question for a text that has waited longer is no matter of yes or no.
    gate = next((each for each, what in asked.items() if what != "text"), "")
    if asked and not gate and approved:
        raise UserError(f"Run {run.id} asks for a text. `%agents answer {run.id} TEXT` gives it.")
    gate = gate or next(iter(asked), "")
    run.decide(approved, args.message, gate=gate)
    said = "approved" if approved else "denied"
    if asked[gate] == "stage":
        said += ": the recipe goes on" if approved else ": the recipe stops"
    if gate in run.view.gates:
        said = "not decided yet: it waits for more approvals"
    _say(f"Gate {gate!r} of run {run.id} is {said}.")


@arguments("agents plan")
@argument("file", metavar="RECIPE", help="recipe file")
def plan(ip: Any, args: Any) -> None:
    """Draw a recipe, without running it."""
    recipe = Recipe.from_file(args.file)
    drawn = f"```mermaid\n{mermaid(recipe)}\n```"
    text = "\n".join(check(recipe).plan)
    display({"text/markdown": drawn, "text/plain": text})


def check_recipe(file: str, team: TeamSpec | None) -> None:
    """Show what a recipe would do and what is wrong with it, without running it.

    Args:
        file: The recipe's file.
        team: Whose agents would work; None leaves their names unchecked.
    """
    recipe = Recipe.from_file(file)
    report = check(recipe, team)
    lines = [
        f"{file}: {recipe.name} {recipe.version}",
        *report.plan,
        *(_said("Fault", finding) for finding in report.faults),
        *(_said("Note", finding) for finding in (*recipe.warnings, *report.warnings)),
        "It can't run." if report.faults else "It can run.",
    ]
    _say("\n".join(dict.fromkeys(lines)))


def _said(kind: str, finding: Finding) -> str:
    parts = (finding.file, finding.line, finding.column)
    place = ":".join(str(part) for part in parts if part is not None)
    return f"{kind} {place}: {finding.what}"


def _say(text: str) -> None:
    display({"text/plain": text})


WITH_MESSAGE = frozenset({"answer", "approve", "deny"})
"""Verbs whose line is one word and a text."""

RECIPE_VERBS: dict[str, Callable[[Any, Any], None]] = {
    "answer": answer,
    "approve": approve,
    "deny": deny,
    "plan": plan,
}
