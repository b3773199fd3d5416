"""What ``%agents VERB`` does with recipes, gates, and texts for a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nb_agents.jupyter.ipython import argument, arguments, display, root_option
from nb_agents.presentation.asking import decide
from nb_agents.runs.finding import find_known

WITH_MESSAGE = frozenset({"answer", "approve", "deny", "say"})
"""Verbs whose line is one word and a text."""


def _run(function: Any) -> Any:
    """Declare what names a run, and its session root."""
    return argument("run", metavar="RUN", help="run id, such as r1")(root_option(function))


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
    find_known(args.run, args.session_root).answer(args.message)
    _say(f"Run {args.run} has its answer.")


@arguments("agents say")
@_run
@argument("message", metavar="TEXT", help="what its agents are to know")
def say(ip: Any, args: Any) -> None:
    """Add a text to a run's task while it works."""
    find_known(args.run, args.session_root).say(args.message)
    _say("Its agents read it with their next request.")


def _decide(args: Any, approved: bool) -> None:
    _say(decide(find_known(args.run, args.session_root), approved, args.message))


@arguments("agents plan")
@argument("file", metavar="RECIPE", help="recipe file")
def plan(ip: Any, args: Any) -> None:
    """Draw a recipe, without running it."""
    from nb_agents.config.recipe import Recipe
    from nb_agents.recipes.check import check
    from nb_agents.recipes.diagram import mermaid

    recipe = Recipe.from_file(args.file)
    drawn = f"```mermaid\n{mermaid(recipe)}\n```"
    text = "\n".join(check(recipe).plan)
    display({"text/markdown": drawn, "text/plain": text})


def _say(text: str) -> None:
    display({"text/plain": text})


RECIPE_VERBS: dict[str, Callable[[Any, Any], None]] = {
    "answer": answer,
    "approve": approve,
    "deny": deny,
    "plan": plan,
    "say": say,
}
