"""Decide which tool calls are made, which need a person's approval, and which are denied.

The team's ``tool_policy`` and MassGen's ``permissions`` decide. A call that matches no rule of the
latter is made if it reads or writes files that the agent may access anyway, or runs read-only
commands; a person decides on any other. A denial is returned to the model, or stops the run.
`ApprovalConfig` also applies to approvals that code asks for, and to a recipe's gates.

Source: MassGen 0.1.97, `permissions/rules.py` (`classify_action_target`) and
`permissions/risk_classifier.py`. Stricter than there: a command is taken apart, a file is known by
all of its names, and a tool is not harmless because of its name.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anyio import to_thread

from nb_agents.config.permissions import Act, Names, PermissionSpec, Verdict
from nb_agents.config.tools import ToolKeys, rule_for
from nb_agents.errors import UserError
from nb_agents.process.writable import WriteAccess
from nb_agents.tools.base import (
    BUILT_IN,
    Tool,
    ToolError,
    ToolPlace,
    current_call,
    hide_arguments,
    summarize,
)
from nb_agents.tools.command_guard import read_commands

# None of these runs another program, as git may by its configuration, or writes a file.
_LOOKS = frozenset("ls cat head tail pwd echo which whoami wc grep stat true".split())

_COMMANDS = ("execute_command", "bash", "shell", "exec", "run_command", "terminal")
_NETWORK = ("fetch", "read_url", "websearch", "web_search", "browse")
_WRITES = tuple("write edit create move copy apply_patch notebook delete remove".split())
_READS = tuple("read grep glob list view search cat".split())
_FILE_SERVERS = ("filesystem", "workspace_tools", "workspace_copy")
_PATHS = ("path", "file_path", "destination", "destination_path", "target", "notebook_path")

_UNREADABLE = "\0"
"""The target of a command line that can't be parsed: only ``*`` allows it."""

MAX_ASKED_CHARS = 4_000

# What shows the rest of a line in another order. Source: Unicode's UAX #9, and CVE-2021-42574.
_TURNS_TEXT = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_STRICTNESS: tuple[Verdict, ...] = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True)
class ApprovalConfig:
    """Who approves tool calls, `Run.wait_for_approval` and recipes' gates, and within which time.

    A gate with its own timeout and default keeps them.

    Attributes:
        timeout: Seconds to wait for a decision; None means no limit.
        auto_approve_on_timeout: Whether that approves; else it denies.
        approvers: Who may decide; empty means everybody.
        required_approvals: How many of them must approve. One denial is enough to deny.

    Raises:
        UserError: No approval would be possible.
    """

    timeout: float | None = None
    auto_approve_on_timeout: bool = False
    approvers: Sequence[str] = ()
    required_approvals: int = 1

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise UserError(f"The approval's timeout is {self.timeout!r} s; give a number over 0.")
        most = len(set(self.approvers)) or math.inf
        if isinstance(self.approvers, str) or not 1 <= self.required_approvals <= most:
            raise UserError(
                f"{self.required_approvals} approvals are required of {self.approvers!r}: list at "
                "least as many approvers, and require at least one."
            )

    @property
    def default(self) -> Literal["approve", "deny"]:
        """The decision after the timeout."""
        return "approve" if self.auto_approve_on_timeout else "deny"


class ApprovalDecision(NamedTuple):
    """What was decided, what was said with it, and by whom; "timeout" when the time was over."""

    approved: bool
    message: str = ""
    by: str = ""

    def __str__(self) -> str:
        """Return how it was decided, by whom and why."""
        how = "approved" if self.approved else "denied"
        who = f" by {self.by}" if self.by else ""
        who = {"timeout": " when its time was over", "auto_approve_if": " by its condition"}.get(
            self.by, who
        )
        return f"{how}{who}{f': {self.message}' if self.message else ''}"


@dataclass
class Tally:
    """Counts the approvals of one thing.

    It is kept in memory only: if the process ends or the run is stopped before the decision,
    everybody is asked again.

    Attributes:
        config: Who may decide, and how many must approve.
        messages: The messages of approvals, by name.

    Example:
        >>> tally = Tally(ApprovalConfig(required_approvals=2))
        >>> tally.take(True, "fine", "ann"), str(tally)
        (None, '1 of 2 approvals (ann)')
        >>> tally.take(True, "go", "bob")
        ApprovalDecision(approved=True, message='fine; go', by='ann, bob')
    """

    config: ApprovalConfig
    messages: dict[str, str] = field(default_factory=dict)

    def take(self, approved: bool, message: str, by: str) -> ApprovalDecision | None:
        """Record a person's decision; the same person counts once.

        Args:
            approved: Whether they approve.
            message: What they say with it.
            by: Their name.

        Returns:
            The decision, or None while others must approve, too.

        Raises:
            UserError: This person is not among the approvers.
        """
        config = self.config
        if config.approvers and by not in config.approvers:
            named = ", ".join(config.approvers)
            raise UserError(f"{by!r} is not an approver of this run. They are: {named}.")
        if not approved:
            return ApprovalDecision(False, message, by)
        self.messages[by] = message
        if len(self.messages) < config.required_approvals:
            return None
        said = "; ".join(filter(None, self.messages.values()))
        return ApprovalDecision(True, said, ", ".join(self.messages))

    def __str__(self) -> str:
        """Return how many have approved, and who."""
        named = ", ".join(self.messages)
        return f"{len(self.messages)} of {self.config.required_approvals} approvals ({named})"


def judge(permissions: PermissionSpec, tool: str, args: dict[str, Any], workspace: Path) -> Verdict:
    """Decide on a call.

    Args:
        permissions: The rules, which are in force.
        tool: The tool's name.
        args: The model's arguments, of any kind.
        workspace: The agent's directory, real.
    """
    declared = BUILT_IN.get(tool)
    if declared is None or not declared.action:
        return permissions.decide([_acts(tool, args)]) or "ask"
    about = _text(args, declared.target)
    match declared.action:
        case "command":
            return _judge_commands(permissions, about)
        case "code":
            whole = Act("command", f"python -c {about}")
            return permissions.decide([[whole], [Act("command", _UNREADABLE)]]) or "ask"
        case action:
            names = _names(declared.file or about or ".", workspace)
            acts = [Act(action, name) for name in names]
            return permissions.decide([acts]) or ("ask" if declared.is_asked else "allow")


def _judge_commands(permissions: PermissionSpec, line: str) -> Verdict:
    commands, whole = read_commands(line), Act("command", line.strip())
    if commands is None:
        return permissions.decide([[Act("command", _UNREADABLE)]], [whole]) or "ask"
    parts = [[Act("command", command.text)] for command in commands]
    # A denied command may be run by its full path, or behind another: `env git push`.
    others = [
        Act("command", " ".join([program.rpartition("/")[2], *rest]))
        for command in commands
        for number in range(len(command.words))
        for program, *rest in [command.words[number:]]
    ]
    only_looks = all(c.words[0] in _LOOKS and not c.writes for c in commands)
    return permissions.decide(parts, [whole, *others]) or ("allow" if only_looks else "ask")


def _names(path: str, workspace: Path) -> list[str]:
    """Return a file's names: as written, from the workspace, and absolute, links followed."""
    absolute = os.path.normpath(workspace / path)
    found = [path]
    try:
        real = os.path.realpath(absolute)
    except ValueError:  # no file can be named so
        return found
    for each in dict.fromkeys([absolute, real]):
        found.append(each)
        if Path(each).is_relative_to(workspace):
            inner = os.path.relpath(each, workspace)
            found += [inner, f"./{inner}"]
    return found


def _acts(tool: str, args: dict[str, Any]) -> Names:
    """Return what a tool does that is not one of ours, by MassGen's hints in its name."""
    full, name, server = tool, tool.removeprefix("custom_tool__"), ""
    if tool.startswith("mcp__"):
        server, _, name = tool.removeprefix("mcp__").partition("__")
    acts = [Act("mcp", f"{server}/{name}" if server else name), Act("mcp", full)]
    lower = name.lower()
    if any(hint in lower for hint in _COMMANDS):
        acts.append(Act("command", _text(args, "command") or _text(args, "cmd")))
    if any(hint in lower for hint in _NETWORK):
        acts.append(Act("read_url", _text(args, "url") or _text(args, "domain")))
    if not server or server in _FILE_SERVERS:
        action = "write_file" if any(hint in lower for hint in _WRITES) else "read_file"
        if action == "write_file" or any(hint in lower for hint in _READS):
            acts += [Act(action, path) for path in _paths(args)]
    return acts


def _paths(args: dict[str, Any]) -> Sequence[str]:
    return [text for key in _PATHS if (text := _text(args, key))] or [""]


def _text(args: dict[str, Any], name: str) -> str:
    value = args.get(name)
    return value if isinstance(value, str) else ""


Ask = Callable[[str, str, str, bool], Awaitable[ApprovalDecision]]
"""Asks a person whether an agent's call of a tool may be made.

Given the agent, the tool, the arguments in short, and whether a denial stops the run.
"""


@dataclass(frozen=True)
class AgentTools:
    """An agent's tools without its file tools, which are created for each round.

    Attributes:
        others: Its other tools.
        rule: Does with tools what the agent's configuration says of them; see `Policy.take`.
        access: Paths that it may write outside its workspace, and whether it may now.
        keeps_images: Whether images that its model makes become files of its workspace.
        place: Where it works, and the rules of its calls: what an agent needs that is a program.
    """

    others: Sequence[Tool] = ()
    rule: Callable[[Iterable[Tool]], Sequence[Tool]] = tuple
    access: WriteAccess = field(default_factory=WriteAccess)
    keeps_images: bool = True
    place: ToolPlace | None = None

    def with_files(self, files: Iterable[Tool]) -> list[Tool]:
        """Add the agent's file tools, under the same rules.

        Args:
            files: Those tools.
        """
        return [*self.rule(files), *self.others]


class Policy:
    """The rules of an agent's configuration for its tools and their calls.

    Args:
        keys: The configuration.
        workspace: The agent's directory, real where ``permissions`` are given.
        ask: Asks a person: the tool, its arguments in short, whether a denial stops the run.
    """

    def __init__(
        self,
        keys: ToolKeys,
        workspace: Path,
        ask: Callable[[str, str, bool], Awaitable[ApprovalDecision]],
    ) -> None:
        self._keys = keys
        self._workspace = workspace
        self._ask = ask

    def take(self, tools: Iterable[Tool]) -> tuple[Tool, ...]:
        """Drop the tools that the agent may not have, and guard the others.

        Args:
            tools: All tools.
        """
        return tuple(self.guarded(tool) for tool in tools if self._keys.takes(tool.name))

    def guarded(self, tool: Tool) -> Tool:
        """Put a tool under the rules.

        The first rule of ``tool_policy`` that matches its name decides, and ``permissions`` decide
        on each call; the stricter of the two applies.

        Args:
            tool: The tool.

        Returns:
            The tool, itself when there is no rule for it.
        """
        if self._action(tool.name) == "allow" and self._keys.rules is None:
            return tool

        async def call(args: dict[str, Any]) -> str:
            await self.check(tool.name, args)
            result = await tool.call(args)
            if result.is_error:
                raise ToolError(result.removeprefix("Error: "))
            return result

        return Tool.from_definition(tool.definition, call, is_repeatable=tool.is_repeatable)

    async def check(self, name: str, args: dict[str, Any]) -> None:
        """Return when a call may be made; a person is asked where the rules want it.

        Args:
            name: The tool's name.
            args: The model's arguments.

        Raises:
            ToolError: The rules or a person deny it.
        """
        action, permissions = self._action(name), self._keys.rules
        if action == "deny":
            raise ToolError(f"the team's file denies {name}.")
        verdict: Verdict = action
        if permissions is not None:
            by_rules = await to_thread.run_sync(judge, permissions, name, args, self._workspace)
            verdict = max(action, by_rules, key=_STRICTNESS.index)
        if verdict == "deny":
            raise ToolError(f"`permissions` of the team's file deny this call of {name}.")
        if verdict == "ask":
            rule = rule_for(name, self._keys.tool_policy)
            stops = rule is not None and rule.action == "ask" and rule.on_denial == "stop"
            await self._asked(name, args, stops)

    def _action(self, name: str) -> Verdict:
        rule = rule_for(name, self._keys.tool_policy)
        return rule.action if rule else "allow"

    async def _asked(self, name: str, args: dict[str, Any], stops: bool) -> None:
        with current_call().waiting():
            said = await self._ask(name, _about(name, args), stops)
        if not said.approved:
            why = f": {said.message}" if said.message else "."
            raise ToolError(f"a person denied this call of {name}{why}")


def _about(name: str, args: dict[str, Any]) -> str:
    """Describe a call to the person who decides on it, with all arguments up to a limit."""
    declared = BUILT_IN.get(name)
    is_code = declared is not None and declared.action in ("command", "code")
    whole = args.get(declared.target) if declared and is_code else None
    if not isinstance(whole, str):
        first = "path" if "path" in args else next(iter(args), "")
        others = {key: value for key, value in args.items() if key != first}
        rest = json.dumps(hide_arguments(others), ensure_ascii=False, default=str)
        whole = f"{summarize(name, args)} {rest}" if others else summarize(name, args)
    left_out = len(whole) - MAX_ASKED_CHARS
    shown = whole if left_out <= 0 else f"{whole[:MAX_ASKED_CHARS]} [{left_out} characters more]"
    return _TURNS_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
