"""Which calls a person decides on. A denial is told to the model, or stops the run."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from anyio import to_thread

from nb_agents.config.permissions import Verdict
from nb_agents.config.tools import ToolKeys, rule_for
from nb_agents.tools.access import WriteAccess
from nb_agents.tools.base import Tool, ToolError, hide_arguments, summarize
from nb_agents.tools.call import current_call
from nb_agents.tools.call_permissions import judge

__all__ = ["AgentTools", "Answer", "Ask", "Policy"]

MAX_ASKED_CHARS = 4_000

# What shows the rest of a line in another order. Source: Unicode's UAX #9, and CVE-2021-42574.
_TURNS_TEXT = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_STRICTNESS: tuple[Verdict, ...] = ("allow", "ask", "deny")


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
        rule: Does with tools what the agent's configuration says of them; see `Policy.take`.
        access: What it may write outside its workspace, and whether now.
    """

    others: Sequence[Tool] = ()
    rule: Callable[[Iterable[Tool]], Sequence[Tool]] = tuple
    access: WriteAccess = field(default_factory=WriteAccess)

    def with_files(self, files: Iterable[Tool]) -> list[Tool]:
        """Give it the tools of its files, too, under the same rules.

        Args:
            files: Those tools.
        """
        return [*self.rule(files), *self.others]


class Policy:
    """What an agent's configuration says of its tools and their calls.

    Args:
        keys: The configuration.
        workspace: The agent's directory.
        ask: Asks a person: the tool, its arguments in short, whether a denial stops the run.
    """

    def __init__(
        self,
        keys: ToolKeys,
        workspace: Path,
        ask: Callable[[str, str, bool], Awaitable[Answer]],
    ) -> None:
        self._keys = keys
        self._workspace = workspace
        self._ask = ask

    def take(self, tools: Iterable[Tool]) -> tuple[Tool, ...]:
        """Leave out the tools that the agent does not get, and guard the others.

        Args:
            tools: All tools.
        """
        return tuple(self.guarded(tool) for tool in tools if self._keys.takes(tool.name))

    def guarded(self, tool: Tool) -> Tool:
        """Put a tool under the rules.

        The first rule of ``tool_policy`` that fits its name decides, and ``permissions`` decide on
        each call; of the two the stricter holds.

        Args:
            tool: The tool.

        Returns:
            The tool, itself when there is no rule for it.
        """
        rule, permissions = rule_for(tool.name, self._keys.tool_policy), self._keys.rules
        action: Verdict = rule.action if rule else "allow"
        if action == "allow" and permissions is None:
            return tool

        async def call(args: dict[str, Any]) -> str:
            if action == "deny":
                raise ToolError(f"the team's file denies {tool.name}.")
            verdict: Verdict = action
            if permissions is not None:
                by_rules = await to_thread.run_sync(
                    judge, permissions, tool.name, args, self._workspace
                )
                verdict = max(action, by_rules, key=_STRICTNESS.index)
            if verdict == "deny":
                raise ToolError(f"`permissions` of the team's file deny this call of {tool.name}.")
            if verdict == "ask":
                stops = rule is not None and rule.action == "ask" and rule.on_denial == "stop"
                await self._asked(tool.name, args, stops)
            result = await tool.call(args)
            if result.is_error:
                raise ToolError(result.removeprefix("Error: "))
            return result

        return Tool.from_definition(tool.definition, call)

    async def _asked(self, name: str, args: dict[str, Any], stops: bool) -> None:
        with current_call().waiting():
            said = await self._ask(name, _about(name, args), stops)
        if not said.approved:
            why = f": {said.message}" if said.message else "."
            raise ToolError(f"a person denied this call of {name}{why}")


def _about(name: str, args: dict[str, Any]) -> str:
    """Say what a call is about, for a person who decides: all of it, up to a limit."""
    whole = args.get({"run_command": "command", "run_python": "code"}.get(name, ""))
    if not isinstance(whole, str):
        first = "path" if "path" in args else next(iter(args), "")
        others = {key: value for key, value in args.items() if key != first}
        rest = json.dumps(hide_arguments(others), ensure_ascii=False, default=str)
        whole = f"{summarize(name, args)} {rest}" if others else summarize(name, args)
    left_out = len(whole) - MAX_ASKED_CHARS
    shown = whole if left_out <= 0 else f"{whole[:MAX_ASKED_CHARS]} [{left_out} characters more]"
    return _TURNS_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
