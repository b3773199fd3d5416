"""Loads a turn that has no journal, because another program wrote it or the journal was lost.

Source of MassGen's keys: its `session/_state.py`. nb_agents's keys are in
`nb_agents.session.views`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nb_agents.disk.directory import read_file
from nb_agents.events.base_event import LAST_MOMENT
from nb_agents.session.layout import TurnPaths
from nb_agents.session.views import MAX_BYTES, read_json
from nb_agents.view.run_view import AgentView, RunStatus, RunView, StopView, VoteView

_BEST_ANSWER = re.compile(r"\[PARTIAL ANSWER - [^\n]*\]\n\[Best answer from: ([^\n]+)\]\n=+\n\n")
_PARTIAL_TEXT = re.compile(
    r"\[PARTIAL TEXT - [^\n]*\]\n\[Written by ([^\n]+), never [^\n]*\]\n=+\n\n"
)

_NOTHING = 0, 0.0

MAX_COUNT = 10**15
"""Maximum number of tokens and of dollars. nb_agents never writes a larger one."""


def read_files(paths: TurnPaths, spaces: list[str]) -> tuple[RunView, tuple[str, ...]]:
    """Load a turn from its files.

    Args:
        paths: The turn's paths.
        spaces: The names of its workspaces.

    Returns:
        The turn, and a warning for each unreadable file. Data that was not saved is missing.
        MassGen does not save times and tokens.
    """
    data, warnings = read_json(paths.metadata), list[str]()
    if not data:
        warnings.append(f"{paths.metadata} is missing or can't be read")
    partial = read_json(paths.partial_answers)
    if not partial and os.path.lexists(paths.partial_answers):
        warnings.append(f"{paths.partial_answers} can't be read")
    # MassGen marks a complete turn by omitting the status. Other JSON without it is not metadata.
    complete = "status" not in data and not data.keys().isdisjoint({"task", "winning_agent"})
    answer = _text(paths.answer)
    # In MassGen, the partial answers of a cancelled turn remain in the complete turn that replaced
    # it.
    partial = {} if complete else partial or _best_answer(answer)
    spent = _usage_by_agent(data)
    names = dict.fromkeys([*spent, *partial, *spaces])
    agents = {a: _agent(a, partial.get(a), spent.get(a, _NOTHING)) for a in names}
    phase, reported_status = data.get("phase"), data.get("said")
    view = replace(
        _view_with_times(data, paths, complete),
        session=paths.session,
        turn=paths.number,
        task=str(data.get("task") or ""),
        phase=phase if phase in ("coordinating", "presenting") else "coordinating",
        agents=agents,
        winner=str(data.get("winning_agent") or ""),
        answer=answer if complete else "",
        said=tuple(map(str, reported_status)) if isinstance(reported_status, list) else (),
    )
    return view, tuple(warnings)


def _text(path: Path) -> str:
    try:
        return read_file(path, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _best_answer(text: str) -> dict[str, Any]:
    """Return the partial answer in ``answer.txt``, in case partial_answers.json is missing."""
    for head, key in ((_BEST_ANSWER, "answer"), (_PARTIAL_TEXT, "partial_text")):
        if match := head.match(text):
            return {match[1]: {key: text[match.end() :]}}
    return {}


def _usage_by_agent(data: Mapping[str, Any]) -> dict[str, tuple[int, float | None]]:
    """Return each agent's tokens and cost from nb_agents's receipt. MassGen does not save them."""
    agents = _mapping(_mapping(data.get("receipt")).get("agents"))
    entries = {name: _mapping(entry) for name, entry in agents.items()}
    return {
        name: (_tokens(entry.get("tokens")), _cost(entry.get("cost")))
        for name, entry in entries.items()
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(value: object) -> int:
    return min(value, MAX_COUNT) if isinstance(value, int) and value > 0 else 0


def _cost(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= MAX_COUNT else None


def _agent(agent_id: str, entry: object, spent: tuple[int, float | None]) -> AgentView:
    saved = _mapping(entry)
    votes = _mapping(saved.get("votes"))
    target = votes.get("voted_for") or votes.get("agent_id")
    answer = str(saved.get("answer") or "")
    return AgentView(
        agent_id,
        answers=(answer,) if answer.strip() else (),
        vote=VoteView(str(target), str(votes.get("reason", ""))) if target else None,
        partial=str(saved.get("partial_text") or ""),
        input_tokens=spent[0],  # a receipt has only the total
        cost=spent[1],
    )


def _view_with_times(data: Mapping[str, Any], paths: TurnPaths, complete: bool) -> RunView:
    """Return a view with the status and times from a turn's metadata."""
    at = _end_time(data, paths)
    took = data.get("duration_seconds")
    started = at - took if isinstance(took, int | float) and 0 <= took <= at else 0.0
    reason = data.get("reason")
    if complete:
        return RunView(status="completed", started_at=started, ended_at=at, last_at=at)
    if reason in ("kernel died", "running"):  # "running" means that no end was recorded
        return RunView(status="cancelled", started_at=started, last_at=at)
    status: RunStatus = "failed" if data.get("run_status") == "failed" else "cancelled"
    stop = _stop(data, at)
    return RunView(status=status, stop=stop, started_at=started, ended_at=at, last_at=at)


def _stop(data: Mapping[str, Any], at: float) -> StopView | None:
    """Return the stop recorded in nb_agents's receipt. MassGen's metadata only has the reason."""
    receipt = _mapping(data.get("receipt"))
    source = receipt.get("source")
    if not source or not isinstance(source, str):
        source = data.get("reason")
        if source not in ("timeout", "budget"):
            return None
    return StopView("requested", str(source), str(receipt.get("reason") or ""), at, None)


def _end_time(data: Mapping[str, Any], paths: TurnPaths) -> float:
    """Return when the turn ended: its timestamp or, if missing, when its directory changed."""
    try:
        at = datetime.fromisoformat(str(data.get("timestamp"))).timestamp()
    except (ValueError, OverflowError, OSError):
        at = paths.path.stat().st_mtime
    return min(max(at, 0.0), LAST_MOMENT)
