"""Which calls a person decides on. A denial is told to the model, or stops the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nb_agents.config.tools import ToolRule, rule_for
from nb_agents.tools.base import Tool, ToolError, not_yet, summarize

__all__ = ["AgentTools", "Answer", "Ask", "guarded", "ruled"]


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


@dataclass(frozen=True)
class AgentTools:
    """An agent's tools, but for those of its files, which each of its turns makes anew.

    Attributes:
        others: What it has besides.
        rule: Does with tools what the agent's configuration says of them; see `ruled`.
    """

    others: Sequence[Tool] = ()
    rule: Callable[[Iterable[Tool]], Sequence[Tool]] = tuple

    def with_files(self, files: Iterable[Tool]) -> list[Tool]:
        """Give it the tools of its files, too, under the same rules.

        Args:
            files: Those tools.
        """
        return [*self.rule(files), *self.others]


def ruled(
    tools: Iterable[Tool],
    exclude: Sequence[str],
    rules: Sequence[ToolRule],
    ask: Callable[[str, str, bool], Awaitable[Answer]],
) -> tuple[Tool, ...]:
    """Leave out the tools that an agent does not get, and guard the others.

    Args:
        tools: All tools.
        exclude: Names of those that are left out.
        rules: In order: the first that matches decides.
        ask: Asks a person: the tool, its arguments in short, whether a denial stops the run.
    """
    return tuple(guarded(tool, rules, ask) for tool in tools if tool.name not in exclude)


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
