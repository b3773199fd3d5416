"""What a program tells while it works, out of JSON that may hold anything.

Source: https://agentclientprotocol.com/protocol/prompt-turn, version 1 (`session/update`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from nb_agents.config.programs import TEAM
from nb_agents.events import Channel, EndChecked, Usage

MAX_TEXT = 20_000
"""Limit of a call's arguments and of its result in its event, characters."""
_MAX_ID = 200
_MAX_TITLE = 200
_MAX_TOKENS = 10**12
_MAX_ENDS = 100

Kind = Literal["execute", "edit", "delete", "move", "read", "search", "fetch", "think", "other"]
_KINDS = frozenset(Kind.__args__)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Words:
    """Words of its answer, or of its thoughts."""

    channel: Channel
    text: str


@dataclass(frozen=True)
class OwnCall:
    """The state of a tool call of its own; what an update leaves out is empty.

    Attributes:
        id: The program's id of the call.
        kind: What it does.
        title: What it is about, for people.
        args: What the tool is given.
        paths: The files that it concerns.
        status: "completed" and "failed" are its end.
        result: What it gave.
    """

    id: str
    kind: str = ""
    title: str = ""
    args: Any = None
    paths: tuple[str, ...] = ()
    status: str = ""
    result: str = ""

    def merged(self, newer: OwnCall) -> OwnCall:
        """Return the call with what a newer update says of it."""
        return replace(self, **{name: told for name, told in vars(newer).items() if told})


@dataclass(frozen=True)
class PlanTold:
    """Its plan, one step a line."""

    text: str


@dataclass(frozen=True)
class CostTold:
    """What its session has cost so far, US dollars."""

    dollars: float


@dataclass(frozen=True)
class PromptEnded:
    """The last update of each prompt.

    Attributes:
        reason: The protocol's stop reason; "failed" when there is none.
        usage: What it used, if it says so.
        error: Why it failed, for people.
        ends: What a team of ours says of the ends of its own programs and servers.
    """

    reason: str
    usage: Usage | None = None
    error: str = ""
    ends: tuple[EndChecked, ...] = ()


Update = Words | OwnCall | PlanTold | CostTold | PromptEnded


def read_update(update: Any) -> Update | None:
    """Return what an update says; None if it is of no kind that is known, or malformed."""
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


def _words(channel: Channel, content: Any) -> Words | None:
    text = content.get("text") if isinstance(content, dict) else None
    return Words(channel, text) if isinstance(text, str) and text else None


def read_call_update(update: Any) -> OwnCall | None:
    """Return the state of a tool call, or None if it has no id."""
    id = update.get("toolCallId")
    if not isinstance(id, str) or not id:
        return None
    kind = update.get("kind")
    return OwnCall(
        id[:_MAX_ID],
        kind if kind in _KINDS else "",
        _text(update.get("title"), _MAX_TITLE),
        _bounded(update.get("rawInput")),
        _paths(update.get("locations")),
        _text(update.get("status"), _MAX_ID),
        _result(update),
    )


def _text(value: Any, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""


def _bounded(value: Any) -> Any:
    if value in (None, {}, [], ""):
        return None
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [cut: {len(text)} characters]"


def _paths(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    paths = (each.get("path") for each in found[:20] if isinstance(each, dict))
    return tuple(path[:4096] for path in paths if isinstance(path, str))


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
        whole if len(whole) <= MAX_TEXT else f"{whole[:MAX_TEXT]}\n[cut: {len(whole)} characters]"
    )


def _plan(entries: Any) -> PlanTold | None:
    found = entries if isinstance(entries, list) else []
    lines = [
        f"[{_text(each.get('status'), 20) or 'pending'}] {_text(each.get('content'), 500)}"
        for each in found[:100]
        if isinstance(each, dict)
    ]
    return PlanTold("\n".join(lines)) if lines else None


def _cost(cost: Any) -> CostTold | None:
    if not isinstance(cost, dict) or cost.get("currency") != "USD":
        return None
    amount: Any = cost.get("amount")
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    return CostTold(float(amount)) if is_number and 0 <= amount < 10**9 else None


def read_usage(answer: dict[str, Any]) -> Usage | None:
    """Return what a prompt's answer says of its tokens; None if it says nothing."""
    meta = answer.get("_meta")
    quota = meta.get("quota") if isinstance(meta, dict) else None
    counts = quota.get("token_count") if isinstance(quota, dict) else None
    given, taken = _count(counts, "input_tokens"), _count(counts, "output_tokens")
    if usage := answer.get("usage"):
        given, taken = _count(usage, "inputTokens"), _count(usage, "outputTokens")
        given += _count(usage, "cachedReadTokens") + _count(usage, "cachedWriteTokens")
    return Usage(input_tokens=given, output_tokens=taken) if given or taken else None


def read_ends(meta: Any) -> tuple[EndChecked, ...]:
    """Return what a prompt's answer says of the ends of what a team of ours had at work.

    Args:
        meta: The ``_meta`` of the answer.
    """
    told = meta.get(TEAM) if isinstance(meta, dict) else None
    found = told.get("ends") if isinstance(told, dict) else None
    return tuple(
        EndChecked(what=_line(end[0]), is_confirmed=end[1] is True, how=_line(end[2]))
        for end in (found if isinstance(found, list) else [])[:_MAX_ENDS]
        if isinstance(end, list) and len(end) == 3
    )


def _line(value: Any) -> str:
    return " ".join(_text(value, _MAX_TITLE).split())


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and 0 <= value < _MAX_TOKENS else 0
