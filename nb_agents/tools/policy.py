"""Decides whether a tool call is allowed, needs the user's approval, or is denied.

The rules are the team's ``tool_policy`` and MassGen's ``permissions``. A call that matches no rule
of ``permissions`` is allowed if it reads or writes files that the agent may access anyway, or runs
read-only commands. All other calls need the user's approval. A denial is returned to the model, or
stops the run. `ApprovalConfig` also applies to approvals requested in code and to the gates of
recipes.

Source: MassGen 0.1.97, `permissions/rules.py` (`classify_action_target`) and
`permissions/risk_classifier.py`. This module is stricter: it checks each command of a line and all
names of a file, and does not treat a tool as harmless because of its name.
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
from nb_agents.config.tools import ToolKeys, ToolRule, rule_for
from nb_agents.errors import UserError
from nb_agents.process.writable import WriteAccess
from nb_agents.tools.base import (
    BUILT_IN,
    Tool,
    ToolEnvironment,
    ToolError,
    current_call,
    mask_arguments,
)
from nb_agents.tools.command_guard import read_commands

# These never write a file or run another program. Git may, depending on its configuration.
_READ_ONLY = frozenset("ls cat head tail pwd echo which whoami wc grep stat true".split())

_COMMANDS = ("execute_command", "bash", "shell", "exec", "run_command", "terminal")
_NETWORK = ("fetch", "read_url", "websearch", "web_search", "browse")
_WRITES = tuple("write edit create move copy apply_patch notebook delete remove".split())
_READS = tuple("read grep glob list view search cat".split())
_FILE_SERVERS = ("filesystem", "workspace_tools", "workspace_copy")
_PATHS = ("path", "file_path", "destination", "destination_path", "target", "notebook_path")

_UNREADABLE = "\0"
"""Target for a command line that can't be parsed. Only the pattern ``*`` allows it."""

MAX_SHOWN_CHARS = 4_000

# Characters that change the direction of the text after them. Source: Unicode's UAX #9 and
# CVE-2021-42574.
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_STRICTNESS: tuple[Verdict, ...] = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True)
class ApprovalConfig:
    """Who decides on tool calls, `Run.wait_for_approval` and the gates of recipes, and how fast.

    A gate's own timeout and default take precedence.

    Attributes:
        timeout: Seconds to wait for a decision. None means no limit.
        auto_approve_on_timeout: Whether a timeout approves instead of denying.
        approvers: Names of the users who may decide; empty means everybody.
        required_approvals: Number of approvals needed. A single denial denies.

    Raises:
        UserError: The settings make an approval impossible.
    """

    timeout: float | None = None
    auto_approve_on_timeout: bool = False
    approvers: Sequence[str] = ()
    required_approvals: int = 1

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise UserError(
                f"The approval timeout is {self.timeout!r} s, but it must be greater than 0."
            )
        most = len(set(self.approvers)) or math.inf
        if isinstance(self.approvers, str) or not 1 <= self.required_approvals <= most:
            raise UserError(
                f"{self.required_approvals} approvals are required from {self.approvers!r}. List "
                "at least as many approvers, and require at least one approval."
            )

    @property
    def default(self) -> Literal["approve", "deny"]:
        """The decision after the timeout."""
        return "approve" if self.auto_approve_on_timeout else "deny"


class ApprovalDecision(NamedTuple):
    """The decision on an approval.

    Attributes:
        message: What the users wrote with their decisions.
        by: Names of the users who decided, "timeout", or "auto_approve_if".
    """

    approved: bool
    message: str = ""
    by: str = ""

    def __str__(self) -> str:
        """Describe the decision, who made it, and the message."""
        how = "approved" if self.approved else "denied"
        who = f" by {self.by}" if self.by else ""
        who = {"timeout": " by timeout", "auto_approve_if": " by its condition"}.get(self.by, who)
        return f"{how}{who}{f': {self.message}' if self.message else ''}"


@dataclass
class Tally:
    """Counts the approvals of one request.

    The count is only in memory. If the process ends or the run is stopped before the decision, all
    approvers are asked again.

    Attributes:
        config: The approvers and the required number of approvals.
        messages: The messages of the approvals so far, by the approver's name.

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
        """Record a user's decision. Several approvals by the same user count once.

        Args:
            approved: Whether the user approves.
            message: The user's message.
            by: The user's name.

        Returns:
            The final decision, or None while more approvals are needed.

        Raises:
            UserError: The user is not an approver.
        """
        config = self.config
        if config.approvers and by not in config.approvers:
            named = ", ".join(config.approvers)
            raise UserError(f"{by!r} is not an approver of this run. Approvers: {named}.")
        if not approved:
            return ApprovalDecision(False, message, by)
        self.messages[by] = message
        if len(self.messages) < config.required_approvals:
            return None
        text = "; ".join(filter(None, self.messages.values()))
        return ApprovalDecision(True, text, ", ".join(self.messages))

    def __str__(self) -> str:
        """Return the number and names of the users who have approved."""
        named = ", ".join(self.messages)
        return f"{len(self.messages)} of {self.config.required_approvals} approvals ({named})"


def judge(
    permissions: PermissionSpec,
    tool: str,
    args: dict[str, Any],
    workspace: Path,
    other_name: str = "",
) -> Verdict:
    """Apply ``permissions`` to a call and return the verdict.

    Args:
        permissions: The rules.
        tool: The tool's name.
        args: The model's arguments, which may be invalid.
        workspace: The agent's directory, with links resolved.
        other_name: A second name that rules may use for the tool, or "".
    """
    declared = BUILT_IN.get(tool)
    if declared is None or not declared.action:
        acts = [act for name in (tool, other_name) if name for act in _acts(name, args)]
        return permissions.decide([acts]) or "ask"
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
    # A denied command could be run by its full path, or through another command: `env git push`.
    other_commands = [
        Act("command", " ".join([program.rpartition("/")[2], *rest]))
        for command in commands
        for number in range(len(command.words))
        for program, *rest in [command.words[number:]]
    ]
    is_read_only = all(c.words[0] in _READ_ONLY and not c.writes for c in commands)
    return permissions.decide(parts, [whole, *other_commands]) or (
        "allow" if is_read_only else "ask"
    )


def _names(path: str, workspace: Path) -> list[str]:
    """Return all names of a file: as written, relative to the workspace, absolute, and resolved."""
    absolute = os.path.normpath(workspace / path)
    names = [path]
    try:
        real = os.path.realpath(absolute)
    except ValueError:  # an invalid file name
        return names
    for each in dict.fromkeys([absolute, real]):
        names.append(each)
        if Path(each).is_relative_to(workspace):
            inner = os.path.relpath(each, workspace)
            names += [inner, f"./{inner}"]
    return names


def _acts(tool: str, args: dict[str, Any]) -> Names:
    """Guess the actions of a tool that is not built in from its name, with MassGen's hints."""
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
"""Asks the user to approve a tool call.

Called with the agent, the tool, the call as text, and whether a denial stops the run.
"""

WriteImage = Callable[[str, bytes], Awaitable[None]]
"""Writes a file to the agent's workspace. Raises ToolError if that fails."""


@dataclass(frozen=True)
class AgentTools:
    """An agent's tools, except the file tools, which are created for each round.

    Attributes:
        others: The tools other than file tools.
        rule: Applies the agent's configuration to tools; see `Policy.take`.
        access: Paths outside the workspace that the agent may write to, and whether it may do so
            now.
        keeps_images: Whether images from the agent's model are saved in its workspace.
        place: The environment that external agents call the tools in, with its checks.
    """

    others: Sequence[Tool] = ()
    rule: Callable[[Iterable[Tool]], Sequence[Tool]] = tuple
    access: WriteAccess = field(default_factory=WriteAccess)
    keeps_images: bool = True
    place: ToolEnvironment | None = None

    def with_files(self, files: Iterable[Tool]) -> list[Tool]:
        """Return all tools of the agent, given its file tools, to which its rules are applied."""
        return [*self.rule(files), *self.others]

    def image_writer(self, write: WriteImage) -> WriteImage | None:
        """Return a function that saves images in the workspace, or None if the agent may not.

        Args:
            write: Writes a file to the workspace. The returned function snapshots the workspace
                before it calls this.
        """
        environment = self.place
        if not self.keeps_images:
            return None
        if environment is None or environment.keep is None:
            return write
        keep = environment.keep

        async def write_saved(path: str, data: bytes) -> None:
            async with keep([path]):
                await write(path, data)

        return write_saved


class Policy:
    """The rules of an agent's configuration for its tools and their calls.

    Args:
        keys: The configuration.
        workspace: The agent's directory, with links resolved if there are ``permissions``.
        ask: Asks the user to approve a call. The arguments are the tool, the call as text, and
            whether a denial stops the run.
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
        """Return the tools that the agent may have, with its rules applied to their calls."""
        return tuple(self.guarded(tool) for tool in tools if self._keys.takes(tool.name))

    def guarded(self, tool: Tool) -> Tool:
        """Return a tool that checks the rules before each call, or the same tool if none can apply.

        ``tool_policy`` decides by the tool's name, with the first rule that matches, and
        ``permissions`` by the call. The stricter verdict applies.
        """
        is_allowed = self._action(*tool.definition.names) == "allow"
        if is_allowed and self._keys.rules is None and not tool.asks:
            return tool

        async def call(args: dict[str, Any]) -> str:
            await self.check(tool.name, args, tool.definition.other_name, asks=tool.asks)
            result = await tool.call(args)
            if result.is_error:
                raise ToolError(result.removeprefix("Error: "))
            return result

        return Tool.from_definition(tool.definition, call, is_repeatable=tool.is_repeatable)

    async def check(
        self, name: str, args: dict[str, Any], other_name: str = "", *, asks: bool = False
    ) -> None:
        """Check a call and, where the rules require it, wait for the user's approval.

        Args:
            name: The tool's name.
            args: The model's arguments.
            other_name: A second name that rules may use for the tool, or "".
            asks: Whether the user must approve the call if no rule of ``tool_policy`` matches.

        Raises:
            ToolError: The rules or the user deny the call.
        """
        names = tuple(filter(None, (name, other_name)))
        action, permissions = self._action(*names), self._keys.rules
        if action == "deny":
            raise ToolError(f"the team file denies {name}.")
        verdict: Verdict = "ask" if asks and self._rule(*names) is None else action
        if permissions is not None:
            by_rules = await to_thread.run_sync(
                judge, permissions, name, args, self._workspace, other_name
            )
            verdict = max(verdict, by_rules, key=_STRICTNESS.index)
        if verdict == "deny":
            raise ToolError(f"this call to {name} is denied by the team file's `permissions`.")
        declared = BUILT_IN.get(name)
        if verdict == "ask" and not (declared and declared.asks_itself):
            rule = self._rule(*names)
            stops = rule is not None and rule.action == "ask" and rule.on_denial == "stop"
            await self._ask_user(name, args, stops)

    def _action(self, *names: str) -> Verdict:
        rule = self._rule(*names)
        return rule.action if rule else "allow"

    def _rule(self, *names: str) -> ToolRule | None:
        """Return the first rule that matches one of a tool's names."""
        rules = self._keys.tool_policy
        matches = [rule for name in names if (rule := rule_for(name, rules)) is not None]
        return min(matches, key=rules.index, default=None)

    async def _ask_user(self, name: str, args: dict[str, Any], stops: bool) -> None:
        with current_call().waiting():
            decision = await self._ask(name, _describe_call(name, args), stops)
        if not decision.approved:
            why = f": {decision.message}" if decision.message else "."
            raise ToolError(f"the user denied this call to {name}{why}")


def _describe_call(name: str, args: dict[str, Any]) -> str:
    """Describe a call for the user who decides on it, with all arguments up to a limit."""
    declared = BUILT_IN.get(name)
    is_code = declared is not None and declared.action in ("command", "code")
    code = args.get(declared.target) if declared and is_code else None
    if isinstance(code, str):
        whole = f"{name}: {code}"
    else:
        named = (f"{key}={_literal(value)}" for key, value in mask_arguments(args).items())
        whole = f"{name.removeprefix('custom_tool__')}({', '.join(named)})"
    left_out = len(whole) - MAX_SHOWN_CHARS
    description = (
        whole if left_out <= 0 else f"{whole[:MAX_SHOWN_CHARS]} [{left_out} more characters]"
    )
    return with_visible_direction(description)


def with_visible_direction(text: str) -> str:
    """Return text with escapes for the characters that change the direction of what follows."""
    return _DIRECTION.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _literal(value: Any) -> str:
    """Return an argument as JSON; text in single quotes. Quotes in text are not escaped."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    # A secret with an escaped quote would not be recognised by the masking.
    return (
        f"'{written[1:-1].replace(chr(92) + chr(34), chr(34))}'"
        if isinstance(value, str)
        else written
    )
