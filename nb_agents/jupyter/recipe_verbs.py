"""What ``%agents VERB`` does with recipes and gates, and the values that a cell gives them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from nb_agents.errors import TaskError, UserError
from nb_agents.jupyter.ipython import argument, arguments, display
from nb_agents.jupyter.rows import asked_for
from nb_agents.runs import registry

__all__ = ["RECIPE_VERBS", "WITH_MESSAGE", "context_of"]

_NAME = re.compile(r"(\\?)(\{\{\s*([A-Za-z_]\w*)\s*\}\})")

WITH_MESSAGE = frozenset({"answer", "approve", "deny"})
"""Verbs whose line is one word and a text."""


def context_of(cell: str, settings: Sequence[str], names: Mapping[str, Any]) -> dict[str, Any]:
    r"""Read the values.

    Args:
        cell: The cell's text: YAML, ``name: value`` a line. ``{{variable}}`` takes a variable of
            the notebook as it is, a list as a list; within other text it is put in as text.
            ``\{{variable}}`` stays ``{{variable}}``.
        settings: ``name=value`` of the cell's line, values as YAML; they win.
        names: The notebook's variables.

    Returns:
        By name.

    Raises:
        TaskError: The text is no such YAML, or a variable is not defined.

    Example:
        >>> context_of("files: {{found}}", ["depth=2"], {"found": ["a.md"]})
        {'files': ['a.md'], 'depth': 2}
    """
    marks = _Marks(names)
    read = _yaml(marks.put_into(cell))
    if not isinstance(read, dict | None):
        raise TaskError(
            "Below --recipe the cell holds the recipe's values, one `name: value` a line."
        )
    given = {marks.text(name): marks.value(value) for name, value in (read or {}).items()}
    return given | dict(map(_setting, settings))


class _Marks:
    """Words that stand for variables while the YAML around them is read.

    So no variable's value, whatever is in it, is read as YAML.

    Args:
        names: The notebook's variables.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._stem = f"nb{secrets.token_hex(8)}"
        self._mark = re.compile(rf"{self._stem}_(\d+)_")
        self._found: list[re.Match[str]] = []

    def put_into(self, cell: str) -> str:
        def mark(found: re.Match[str]) -> str:
            self._found.append(found)
            return f"{self._stem}_{len(self._found) - 1}_"

        return _NAME.sub(mark, cell)

    def value(self, value: Any) -> Any:
        """Return a value of the YAML with its variables filled in."""
        if isinstance(value, dict):
            return {self.text(k): self.value(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if isinstance(value, str) and (whole := self._mark.fullmatch(value)):
            return self._meant(whole)
        return self.text(value) if isinstance(value, str) else value

    def text(self, value: Any) -> str:
        return self._mark.sub(lambda mark: str(self._meant(mark)), str(value))

    def _meant(self, mark: re.Match[str]) -> Any:
        escaped, braces, name = self._found[int(mark[1])].groups()
        if escaped:
            return braces
        if name not in self._names:
            raise TaskError(
                f"The cell uses {{{{{name}}}}}, and no variable {name!r} is defined. Define it in "
                f"a cell before, or write \\{{{{{name}}}}} for the braces themselves."
            )
        return self._names[name]


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise TaskError(f"--set {text} is not NAME=VALUE. Write, for example, --set depth=2.")
    return name.strip(), _yaml(value)


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        place = getattr(exc, "problem_mark", None)
        where = f" (line {place.line + 1} of it)" if place else ""
        raise TaskError(
            f"The recipe's values are not valid YAML{where}: write `name: value`, and text with "
            "a colon or a `#` in quotes."
        ) from None


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
    registry.find_known(args.run).answer(args.message)
    _say(f"Run {args.run} has its answer.")


def _decide(args: Any, approved: bool) -> None:
    run = registry.find_known(args.run)
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
}
