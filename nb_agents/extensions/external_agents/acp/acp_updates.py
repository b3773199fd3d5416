"""Parses the updates that an external agent sends while it works. Their JSON may be malformed.

Source: https://agentclientprotocol.com/protocol/prompt-turn, version 1 (`session/update`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from nb_agents.config.mcp_servers import TEAM
from nb_agents.events import Channel, ProcessExitChecked, Usage
from nb_agents.models.retry import AgentRefusedError

MAX_TEXT = 20_000
"""Maximum length of a call's arguments and of its result in an event, in characters each."""
_MAX_ID = 200
_MAX_TITLE = 20_000
_MAX_LINE = 200
_MAX_PATHS = 1_000
_MAX_PATH = 4_096
_MAX_RULED = 100_000
"""Maximum length of shortened arguments, in which only the values that rules check are complete."""
_MAX_VALUE = 500
"""Maximum length of any other value in shortened arguments, in characters."""

COMMANDS = ("command", "cmd")
PATHS = (
    "absolute_path",
    "destination",
    "destination_path",
    "filePath",
    "file_path",
    "notebook_path",
    "path",
    "source",
    "target",
)
URLS = ("url", "domain")
"""COMMANDS, PATHS and URLS are the names of arguments that rules check."""
_RULED = frozenset({*COMMANDS, *PATHS, *URLS})
_MAX_TOKENS = 10**12
_MAX_ENDS = 100

Kind = Literal["execute", "edit", "delete", "move", "read", "search", "fetch", "think", "other"]
_KINDS = frozenset(Kind.__args__)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class TextUpdate:
    """A chunk of the agent's answer or thoughts."""

    channel: Channel
    text: str


@dataclass(frozen=True)
class OwnCall:
    """The state of a call to one of the agent's own tools. Fields missing in an update are empty.

    Attributes:
        id: The id that the agent gave the call.
        kind: The kind of the call, such as "edit".
        title: The title to show to the user.
        tool: The tool's name, if the agent reports it separately from the title.
        args: The arguments.
        paths: The files that the call reads or changes.
        status: The status. "completed" and "failed" end the call.
        is_cut: Whether a value that rules check was too long and is incomplete.
    """

    id: str
    kind: str = ""
    title: str = ""
    tool: str = ""
    args: Any = None
    paths: tuple[str, ...] = ()
    status: str = ""
    result: str = ""
    is_cut: bool = False

    def merged(self, newer: OwnCall) -> OwnCall:
        """Return the call with the fields of a newer update."""
        return replace(self, **{name: value for name, value in vars(newer).items() if value})


@dataclass(frozen=True)
class PlanUpdate:
    """The agent's plan, one step per line."""

    text: str


@dataclass(frozen=True)
class CostUpdate:
    """The total cost of the agent's session in US dollars."""

    dollars: float


@dataclass(frozen=True)
class PromptEnded:
    """The last update of each prompt.

    Attributes:
        reason: The protocol's stop reason, or "failed" if there is none.
        usage: The tokens used, or None if the agent does not report them.
        error: The error message for the user, or "".
        refusal: The error, if it means that the agent's provider refuses calls. None otherwise.
        ends: For an nb_agents team, whether its own processes and servers have ended.
    """

    reason: str
    usage: Usage | None = None
    error: str = ""
    refusal: AgentRefusedError | None = None
    ends: tuple[ProcessExitChecked, ...] = ()


Update = TextUpdate | OwnCall | PlanUpdate | CostUpdate | PromptEnded


def read_update(update: Any) -> Update | None:
    """Parse an update. Returns None if its kind is unknown or it is malformed."""
    if not isinstance(update, dict):
        return None
    match update.get("sessionUpdate"):
        case "agent_message_chunk":
            return _words("text", update.get("content"))
        case "agent_thought_chunk":
            return _words("thinking", update.get("content"))
        case "tool_call" | "tool_call_update":
            return read_call_update(update)
        case "plan":
            return _plan(update.get("entries"))
        case "usage_update":
            return _cost(update.get("cost"))
    return None


def _words(channel: Channel, content: Any) -> TextUpdate | None:
    text = content.get("text") if isinstance(content, dict) else None
    return TextUpdate(channel, text) if isinstance(text, str) and text else None


def read_call_update(update: Any) -> OwnCall | None:
    """Parse the state of a tool call. Returns None if it has no id."""
    id = update.get("toolCallId")
    if not isinstance(id, str) or not id:
        return None
    kind, title, args = update.get("kind"), update.get("title"), update.get("rawInput")
    locations, shown_args = _locations(update.get("locations")), _bounded(args)
    return OwnCall(
        id[:_MAX_ID],
        kind if isinstance(kind, str) and kind in _KINDS else "",
        _text(title, _MAX_TITLE),
        _text(_tool_name(update), _MAX_LINE),
        shown_args,
        tuple(path[:_MAX_PATH] for path in locations[:_MAX_PATHS]),
        _text(update.get("status"), _MAX_ID),
        _result(update),
        is_cut=(isinstance(args, dict) and isinstance(shown_args, str))
        or (isinstance(title, str) and len(title) > _MAX_TITLE)
        or len(locations) > _MAX_PATHS
        or any(len(path) > _MAX_PATH for path in locations),
    )


def _tool_name(update: dict[str, Any]) -> Any:
    """Return the agent's name of the tool. Most agents report it only as the title."""
    meta = update.get("_meta")
    if isinstance(meta, dict):
        claude = meta.get("claudeCode")
        if name := meta.get("toolName") or (isinstance(claude, dict) and claude.get("toolName")):
            return name
    return update.get("title") if update.get("sessionUpdate") == "tool_call" else ""


def _text(value: Any, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""


def _bounded(value: Any) -> Any:
    """Return a call's arguments, shortened if too long, except for values that rules check."""
    if value in (None, {}, [], ""):
        return None
    for shortened in (value, _shortened(value)):
        text = json.dumps(shortened, ensure_ascii=False)
        if len(text) <= (MAX_TEXT if shortened is value else _MAX_RULED):
            return shortened
    return f"{text[:MAX_TEXT]} [truncated: {len(text)} characters]"


def _shortened(value: Any, name: str = "") -> Any:
    if name in _RULED:
        return value
    if isinstance(value, dict):
        return {key: _shortened(each, key) for key, each in value.items()}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}… [{len(text)} characters]"


def texts_in(value: Any, names: Collection[str]) -> Iterator[str]:
    """Yield the strings with certain keys in a mapping and its nested mappings.

    Args:
        value: Any JSON value.
        names: The keys. A command given as a list of words is yielded as one string.
    """
    for name, each in value.items() if isinstance(value, dict) else ():
        if name not in names or isinstance(each, dict):
            yield from texts_in(each, names)
        elif isinstance(each, list):
            words = [*map(str, each)]
            yield from [shlex.join(words)] if name in COMMANDS else words
        elif isinstance(each, str):
            yield each


def _locations(value: Any) -> list[str]:
    entries = value if isinstance(value, list) else []
    paths = (each.get("path") for each in entries if isinstance(each, dict))
    return [path for path in paths if isinstance(path, str)]


def _result(update: dict[str, Any]) -> str:
    blocks = update.get("content")
    texts = []
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and block.get("type") == "content":
            words = _words("text", block.get("content"))
            texts += [words.text] if words else []
        elif isinstance(block, dict) and block.get("type") == "diff":
            texts.append(f"[changed: {_text(block.get('path'), 4096)}]")
    if not texts and update.get("rawOutput") is not None:
        raw = update["rawOutput"]
        texts = [raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)]
    whole = "\n".join(texts)
    return (
        whole
        if len(whole) <= MAX_TEXT
        else f"{whole[:MAX_TEXT]}\n[truncated: {len(whole)} characters]"
    )


def _plan(entries: Any) -> PlanUpdate | None:
    steps = entries if isinstance(entries, list) else []
    lines = [
        f"[{_text(each.get('status'), 20) or 'pending'}] {_text(each.get('content'), 500)}"
        for each in steps[:100]
        if isinstance(each, dict)
    ]
    return PlanUpdate("\n".join(lines)) if lines else None


def _cost(cost: Any) -> CostUpdate | None:
    if not isinstance(cost, dict) or cost.get("currency") != "USD":
        return None
    amount: Any = cost.get("amount")
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    return CostUpdate(float(amount)) if is_number and 0 <= amount < 10**9 else None


def read_usage(answer: dict[str, Any]) -> Usage | None:
    """Return the token counts in a prompt's answer, or None if there are none."""
    meta = answer.get("_meta")
    quota = meta.get("quota") if isinstance(meta, dict) else None
    counts = quota.get("token_count") if isinstance(quota, dict) else None
    sent, received = _count(counts, "input_tokens"), _count(counts, "output_tokens")
    if usage := answer.get("usage"):
        sent, received = _count(usage, "inputTokens"), _count(usage, "outputTokens")
        sent += _count(usage, "cachedReadTokens") + _count(usage, "cachedWriteTokens")
    return Usage(input_tokens=sent, output_tokens=received) if sent or received else None


def read_ends(meta: Any) -> tuple[ProcessExitChecked, ...]:
    """Return whether the processes of an nb_agents team have ended, as its answer reports.

    Args:
        meta: The ``_meta`` of the answer.
    """
    report = meta.get(TEAM) if isinstance(meta, dict) else None
    ends = report.get("ends") if isinstance(report, dict) else None
    return tuple(
        ProcessExitChecked(what=_line(end[0]), is_confirmed=end[1] is True, how=_line(end[2]))
        for end in (ends if isinstance(ends, list) else [])[:_MAX_ENDS]
        if isinstance(end, list) and len(end) == 3
    )


def _line(value: Any) -> str:
    return " ".join(_text(value, _MAX_LINE).split())


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and 0 <= value < _MAX_TOKENS else 0
