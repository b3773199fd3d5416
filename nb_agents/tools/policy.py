"""Which calls a person decides on. A denial is told to the model, or stops the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nb_agents.config.tools import ToolRule, rule_for
from nb_agents.tools.base import Tool, ToolError, not_yet, summarize

__all__ = ["Answer", "Ask", "guarded"]


@dataclass(frozen=True)
class Answer:
    """What a person said to a call: whether it may be made, and why."""

    approved: bool
    message: str = ""


class Ask(Protocol):
    """Asks a person."""

    def __call__(self, agent: str, tool: str, about: str, stops: bool) -> Awaitable[Answer]:
        """Ask whether a call may be made; ``stops`` says that a denial stops the run."""
        ...


def guarded(
    tool: Tool,
    rules: Sequence[ToolRule],
    ask: Callable[[str, str, bool], Awaitable[Answer]],
) -> Tool:
    """Put a tool under the rules that fit its name.

    Args:
        tool: The tool.
        rules: Read in order; a call that none fits is allowed.
        ask: Asks a person: about the tool, with its arguments, whether a denial stops the run.

    Returns:
        The tool, itself when no rule says otherwise.
    """
    rule = rule_for(tool.name, rules)
    if rule is None or rule.action == "allow":
        return tool

    async def call(args: dict[str, Any]) -> str:
        if rule.action == "deny":
            raise ToolError(f"the team's file denies {tool.name}.")
        with not_yet():
            said = await ask(tool.name, summarize(tool.name, args), rule.on_denial == "stop")
        if not said.approved:
            why = f": {said.message}" if said.message else "."
            raise ToolError(f"a person denied this call of {tool.name}{why}")
        result = await tool.call(args)
        if result.is_error:
            raise ToolError(result.removeprefix("Error: "))
        return result

    return Tool.from_definition(tool.definition, call)
