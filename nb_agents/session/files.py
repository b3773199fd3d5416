"""A turn read from its files alone: another program's, or one whose journal is lost.

Source: MassGen's `session/_state.py` (the keys; ours are those of `nb_agents.session.views`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.disk.directory import read_file
from nb_agents.events.base_event import LAST_MOMENT
from nb_agents.session.layout import TurnPaths
from nb_agents.session.views import MAX_BYTES, read_json
from nb_agents.view.run_view import AgentView, RunStatus, RunView, StopView, VoteView

__all__ = ["read_files"]

_BEST_ANSWER = re.compile(r"\[PARTIAL ANSWER - [^\n]*\]\n\[Best answer from: ([^\n]+)\]\n=+\n\n")
_WORDS = re.compile(r"\[PARTIAL TEXT - [^\n]*\]\n\[Written by ([^\n]+), never [^\n]*\]\n=+\n\n")

_NOTHING = 0, 0.0

MAX_COUNT = 10**15
"""Tokens or dollars; a larger number is none of ours."""


class _Ending(NamedTuple):
    """How a turn ended, as far as its metadata tells."""

    status: RunStatus
    stop: StopView | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    last_at: float = 0.0


def read_files(paths: TurnPaths, spaces: list[str]) -> tuple[RunView, tuple[str, ...]]:
    """Read a turn from its files.

    Args:
        paths: Where it is.
        spaces: Names of its workspaces.

    Returns:
        The turn, without what nobody has written down (MassGen: times, tokens); and what can't be
        read.
    """
    data, warnings = read_json(paths.metadata), list[str]()
    if not data:
        warnings.append(f"{paths.metadata} is missing or can't be read")
    partial = read_json(paths.partial_answers)
    if not partial and os.path.lexists(paths.partial_answers):
        warnings.append(f"{paths.partial_answers} can't be read")
    # MassGen says complete by leaving the status out; other JSON that lacks one is no metadata.
    complete = "status" not in data and not data.keys().isdisjoint({"task", "winning_agent"})
    answer = _text(paths.answer)
    # MassGen leaves a cancelled turn's partial answers beside the complete one that replaced it.
    partial = {} if complete else partial or _best_answer(answer)
    spent = _spent(data)
    names = dict.fromkeys([*spent, *partial, *spaces])
    agents = {a: _agent(a, partial.get(a), spent.get(a, _NOTHING)) for a in names}
    phase, said = data.get("phase"), data.get("said")
    ending = _ending(data, paths, complete)
    view = RunView(
        session=paths.session,
        turn=paths.number,
        task=str(data.get("task") or ""),
        phase=phase if phase in ("coordinating", "presenting") else "coordinating",
        agents=agents,
        winner=str(data.get("winning_agent") or ""),
        answer=answer if complete else "",
        said=tuple(map(str, said)) if isinstance(said, list) else (),
        **ending._asdict(),
    )
    return view, tuple(warnings)


def _text(path: Path) -> str:
    try:
        return read_file(path, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _best_answer(text: str) -> dict[str, Any]:
    """Take the one text that ``answer.txt`` still has when partial_answers.json is lost."""
    for head, key in ((_BEST_ANSWER, "answer"), (_WORDS, "partial_text")):
        if found := head.match(text):
            return {found[1]: {key: text[found.end() :]}}
    return {}


def _spent(data: Mapping[str, Any]) -> dict[str, tuple[int, float | None]]:
    """Find the tokens and the cost of each agent: our receipt tells, MassGen does not."""
    agents = _mapping(_mapping(data.get("receipt")).get("agents"))
    told = {name: _mapping(entry) for name, entry in agents.items()}
    return {
        name: (_tokens(each.get("tokens")), _cost(each.get("cost"))) for name, each in told.items()
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(value: object) -> int:
    return min(value, MAX_COUNT) if isinstance(value, int) and value > 0 else 0


def _cost(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= MAX_COUNT else None


def _agent(agent_id: str, entry: object, spent: tuple[int, float | None]) -> AgentView:
    known = _mapping(entry)
    votes = _mapping(known.get("votes"))
    target = votes.get("voted_for") or votes.get("agent_id")
    answer = str(known.get("answer") or "")
    return AgentView(
        agent_id,
        answers=(answer,) if answer.strip() else (),
        vote=VoteView(str(target), str(votes.get("reason", ""))) if target else None,
        partial=str(known.get("partial_text") or ""),
        input_tokens=spent[0],  # a receipt tells the sum alone
        cost=spent[1],
    )


def _ending(data: Mapping[str, Any], paths: TurnPaths, complete: bool) -> _Ending:
    at = _moment(data, paths)
    took = data.get("duration_seconds")
    started = at - took if isinstance(took, int | float) and 0 <= took <= at else 0.0
    reason = data.get("reason")
    if complete:
        return _Ending("completed", None, started, at, at)
    if reason in ("kernel died", "running"):  # while it ran, its last word was that it runs
        return _Ending("cancelled", None, started, None, at)
    status: RunStatus = "failed" if data.get("run_status") == "failed" else "cancelled"
    return _Ending(status, _stop(data, at), started, at, at)


def _stop(data: Mapping[str, Any], at: float) -> StopView | None:
    """Find who stopped it: our receipt tells, MassGen does not."""
    known = _mapping(data.get("receipt"))
    source = known.get("source")
    if not source or not isinstance(source, str):
        source = data.get("reason")
        if source not in ("timeout", "budget"):
            return None
    return StopView("requested", str(source), str(known.get("reason") or ""), at, None)


def _moment(data: Mapping[str, Any], paths: TurnPaths) -> float:
    """Find when it ended: by its own word, else by its directory's time."""
    try:
        at = datetime.fromisoformat(str(data.get("timestamp"))).timestamp()
    except (ValueError, OverflowError, OSError):
        at = paths.path.stat().st_mtime
    return min(max(at, 0.0), LAST_MOMENT)
