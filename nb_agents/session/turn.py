"""The files of a turn, made from its view: for people, for MassGen's reader, for later turns.

Each is replaced atomically (temp → fsync → rename) and carries, where it is JSON, the journal
position that it shows, so that a stale or missing one is told and made again. Keys are MassGen's;
ours come after them. A turn is incomplete from its first moment and becomes complete only by the
last write of all.

Source: MassGen `session/_state.py` (save_partial_turn) and `cli/run.py` (complete turns).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from nb_agents.receipt import receipt
from nb_agents.session.layout import TurnPaths
from nb_agents.view import RunView

__all__ = ["answer_text", "metadata", "partial_answers", "write_atomic", "write_views"]

_RULE = "=" * 80
_TURN_LINE = re.compile(r"TURN ([0-9]+)\b")


def metadata(view: RunView, paths: TurnPaths, owner: str = "") -> dict[str, Any]:
    """Make the content of ``metadata.json``.

    Args:
        view: The turn.
        paths: Where it is.
        owner: Who runs it, in words.

    Returns:
        MassGen's keys, then ours. There is a ``status`` only while the turn is not complete.
    """
    complete = view.status == "completed"
    data: dict[str, Any] = {
        "turn": view.turn,
        "timestamp": _time(view.ended_at or view.last_at or view.started_at),
        "task": view.task,
        "session_id": view.session,
        "models": {a.id: a.model for a in view.agents.values()},
    }
    if view.winner:
        data["winning_agent"] = view.winner
    if not complete:
        data["status"] = "incomplete"
        data["phase"] = view.phase
        data["voting_complete"] = view.phase == "presenting"
        data["reason"] = _reason(view)
    data["run_status"] = view.status
    if view.said:
        data["said"] = list(view.said)
    data["journal_seq"] = view.seq
    data["owner"] = owner
    if view.is_over:
        data["duration_seconds"] = round((view.ended_at or 0) - view.started_at, 3)
        data["receipt"] = asdict(receipt(view, str(paths.path)))
    if view.file_count is not None:
        data["file_count"], data["file_bytes"] = view.file_count, view.file_bytes
        data["files"] = [asdict(f) for f in view.files]
    return data


def partial_answers(view: RunView) -> dict[str, dict[str, Any]]:
    """Make the content of ``partial_answers.json``.

    Returns:
        For each agent that has an answer, a vote or streamed words: MassGen's keys (a vote as
        ``agent_id`` and ``voted_for`` both, because its documents and its code differ), and
        ``partial_text`` with ``partial: true`` for words that were never submitted.
    """
    return {a.id: entry for a in view.agents.values() if (entry := _partial(view, a.id))}


def _partial(view: RunView, agent_id: str) -> dict[str, Any]:
    agent = view.agents[agent_id]
    if not (agent.answers or agent.vote or agent.partial or agent.partial_call):
        return {}
    vote = agent.vote
    entry: dict[str, Any] = {
        "answer": agent.answer,
        "has_voted": vote is not None,
        "votes": {"agent_id": vote.target, "voted_for": vote.target, "reason": vote.reason}
        if vote
        else None,
        "answer_count": len(agent.answers),
    }
    if agent.partial or agent.partial_call:
        entry["partial"] = True
        entry["partial_text"] = agent.partial
        if agent.partial_call:
            entry["partial_call"] = {"tool": agent.tool, "arguments": agent.partial_call}
    return entry


def answer_text(view: RunView) -> str:
    """Make the content of ``answer.txt``.

    Returns:
        The final answer of a complete turn; else the best available answer under MassGen's three
        header lines; "" when no agent has written anything.
    """
    if view.status == "completed":
        return view.answer
    best = view.best_agent or _longest_partial(view)
    if not best:
        return ""
    agent = view.agents[best]
    text = agent.answer or agent.partial
    return (
        f"[PARTIAL ANSWER - Session was cancelled during {view.phase} phase]\n"
        f"[Best answer from: {best}]\n{'=' * 60}\n\n{text}"
    )


def write_views(view: RunView, paths: TurnPaths, owner: str = "") -> None:
    """Bring a turn's files up to date; ``metadata.json`` last.

    Args:
        view: The turn.
        paths: Where it is.
        owner: Who runs it, in words.

    Raises:
        OSError: The disk refused; whatever was written before is whole, and calling again later
            finishes the rest.
    """
    if view.is_over:
        partial = partial_answers(view) if view.status != "completed" else {}
        if partial:
            _write_json(paths.partial_answers, partial)
        if text := answer_text(view):
            write_atomic(paths.answer, text)
        if view.winner and view.status == "completed":
            _link_workspace(paths, view.winner)
            _append_winner(paths, view)
        write_summary(view, paths)
    _write_json(paths.metadata, metadata(view, paths, owner))


def write_summary(view: RunView, paths: TurnPaths) -> None:
    """Put the turn's block into SESSION_SUMMARY.txt, once, replacing an older one of its own."""
    blocks = _summary_blocks(paths.summary)
    blocks[view.turn] = _summary_block(view, paths)
    head = f"{_RULE}\nMulti-Turn Session: {view.session}\n{_RULE}\n"
    write_atomic(paths.summary, head + "".join(blocks[n] for n in sorted(blocks)))


def write_atomic(path: Path, text: str) -> None:
    """Replace a file as a whole: temp → fsync → rename.

    Args:
        path: The file.
        text: Its new content; half surrogate pairs become question marks.

    Raises:
        OSError: The disk refused; the old file stands.
    """
    # One fixed name a target: a killed process leaves at most one stray file, not one a try.
    temp = path.with_name(f".{path.name}.tmp")
    try:
        with open(temp, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
    except OSError:
        temp.unlink(missing_ok=True)
        raise


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _reason(view: RunView) -> str:
    if view.stop is None:
        return "failed" if view.status == "failed" else _reason_unasked(view)
    # MassGen's word for a stop is "cancelled"; limits say which they were.
    return view.stop.source if view.stop.source in ("timeout", "budget") else "cancelled"


def _reason_unasked(view: RunView) -> str:
    return "kernel died" if view.is_over else "running"


def _longest_partial(view: RunView) -> str:
    agents = [a for a in view.agents.values() if a.partial.strip() and not a.caller]
    return max(agents, key=lambda a: len(a.partial)).id if agents else ""


def _link_workspace(paths: TurnPaths, winner: str) -> None:
    target = Path("workspaces", winner)
    if paths.workspace.is_symlink():
        paths.workspace.unlink()
    if paths.workspace.exists():
        return
    try:
        paths.workspace.symlink_to(target, target_is_directory=True)
    except OSError:  # Windows without the right to, FAT, some network drives
        shutil.copytree(paths.path / target, paths.workspace, symlinks=True)


def _append_winner(paths: TurnPaths, view: RunView) -> None:
    file = paths.path.parent / "winning_agents_history.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = []
    entry = {"agent_id": view.winner, "turn": view.turn}
    if isinstance(known, list) and entry not in known:
        write_atomic(file, json.dumps([*known, entry], indent=2) + "\n")


def _summary_blocks(path: Path) -> dict[int, str]:
    """Read the blocks that are there, by turn number."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    lines = text.splitlines(keepends=True)
    starts = [
        (i, int(turn[1]))
        for i, line in enumerate(lines)
        if (turn := _TURN_LINE.match(line)) and i and lines[i - 1].strip() == _RULE
    ]
    ends = [i - 2 for i, _ in starts[1:]] + [len(lines)]
    return {
        number: "".join(lines[max(0, start - 2) : end])
        for (start, number), end in zip(starts, ends, strict=True)
    }


def _summary_block(view: RunView, paths: TurnPaths) -> str:
    complete = view.status == "completed"
    marker = "" if complete else f" [INCOMPLETE - {_marker(view)}]"
    lines = ["", _RULE, f"TURN {view.turn}{marker}", _RULE]
    lines.append(f"Timestamp: {_time(view.ended_at or view.last_at)}")
    task = " ".join(view.task.split())
    if complete:
        lines += [f"Winning Agent: {view.winner}", f"Task: {task}"]
        lines += [f"Workspace: {paths.workspace}", f"Answer: See {paths.answer}"]
    else:
        lines += [f"Phase when cancelled: {view.phase}", f"Task: {task}"]
        lines += _incomplete_lines(view, paths)
    return "\n".join(lines) + "\n"


def _incomplete_lines(view: RunView, paths: TurnPaths) -> list[str]:
    answered = [a.id for a in view.agents.values() if a.answers]
    others = sorted({f.agent for f in view.files} - set(answered))
    lines = [f"Selected Agent: {view.winner}"] if view.winner else []
    lines.append(f"Agents with answers: {', '.join(answered) or 'None'}")
    if others:
        lines.append(f"Agents with workspace only (no answer): {', '.join(others)}")
    if partial_answers(view):
        lines.append(f"Partial answers saved: {paths.partial_answers}")
    lines.append(f"Workspaces saved: {paths.workspaces}")
    return lines


def _marker(view: RunView) -> str:
    if view.status == "failed":
        return "FAILED"
    if view.stop is None:
        return "KERNEL DIED"
    return "TIMEOUT" if view.stop.source == "timeout" else "CANCELLED"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat()
