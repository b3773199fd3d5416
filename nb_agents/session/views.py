"""Writes the files of a turn that are derived from its view, for users, MassGen and later turns.

Each file is replaced atomically by renaming a temporary one. Only the journal is synced to disk.
The journal position in ``metadata.json`` tells whether the files are current or must be written
again. MassGen's keys come first, followed by additional ones. A turn is marked as incomplete from
the start, and as complete only by the last write.

SESSION_SUMMARY.txt has a block for each turn. Users and other programs may edit, empty or replace
the file, so a turn changes only its own block.

Source: MassGen `session/_state.py` (save_partial_turn) and `cli/run.py` (complete turns; the
blocks' wording).
"""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from pydantic_core import from_json, to_json

from nb_agents.disk.directory import read_file
from nb_agents.disk.entry import RefusedError
from nb_agents.disk.private import open_private
from nb_agents.session.copying import copy_tree
from nb_agents.session.layout import TurnPaths
from nb_agents.unicode import well_formed, without_controls
from nb_agents.view.receipt import receipt
from nb_agents.view.run_view import Ending, RunView

MAX_SUMMARY_BYTES = 16_000_000
"""A larger SESSION_SUMMARY.txt is left unchanged."""

_RULE = "=" * 80
_HEAD = re.compile(rf"{_RULE}\nMulti-Turn Session: [^\n]*\n{_RULE}\n")
_BLOCK = re.compile(rf"\n?^{_RULE}\nTURN ([0-9]{{1,18}})\b", re.MULTILINE)
_MARKERS: dict[Ending, str] = {
    "failed": "FAILED",
    "killed": "KERNEL DIED",
    "timed out": "TIMEOUT",
    "stopped": "CANCELLED",
    "cancelled": "CANCELLED",
}

MAX_BYTES = 64_000_000
"""Maximum size of a JSON file in bytes. nb_agents never writes a larger one."""


class _TurnBlock(NamedTuple):
    turn: int
    text: str


def summary(view: RunView, paths: TurnPaths) -> str:
    """Return the session's summary with a turn's block added or replaced.

    Args:
        view: The turn.
        paths: The turn's paths.

    Raises:
        OSError: The existing file can't be read, or is too large.
    """
    before, blocks = _read_summary(paths)
    other_blocks = [block for block in blocks if block.turn != view.turn]
    new = _TurnBlock(view.turn, _block(view, paths))
    ordered = sorted([*other_blocks, new], key=lambda block: block.turn)
    head = f"{_RULE}\nMulti-Turn Session: {view.session}\n{_RULE}\n"
    return head + before + "".join(block.text for block in ordered)


def _read_summary(paths: TurnPaths) -> tuple[str, Sequence[_TurnBlock]]:
    """Return the text between the heading and the first block, and the blocks."""
    try:
        text = read_file(paths.summary, MAX_SUMMARY_BYTES).decode("utf-8", "replace")
        text = _HEAD.sub("", text.replace("\r\n", "\n"), count=1)
    except FileNotFoundError:
        return "", ()
    except RefusedError:
        if paths.summary.is_file():
            raise
        return "", ()  # a link or pipe with that name is replaced
    starts = [(match.start(), int(match[1])) for match in _BLOCK.finditer(text)]
    ends = [*(start for start, _ in starts[1:]), len(text)]
    first = starts[0][0] if starts else len(text)
    blocks = [_TurnBlock(n, text[start:end]) for (start, n), end in zip(starts, ends, strict=False)]
    return text[:first], blocks


def _block(view: RunView, paths: TurnPaths) -> str:
    marker = f" [INCOMPLETE - {_MARKERS[view.ending]}]" if view.ending in _MARKERS else ""
    lines = ["", _RULE, f"TURN {view.turn}{marker}", _RULE]
    lines.append(f"Timestamp: {_time(view.ended_at or view.last_at)}")
    task = " ".join(view.task.split())
    if marker:
        lines += [f"Phase when cancelled: {view.phase}", f"Task: {task}"]
        lines.append("\n".join(_incomplete_lines(view, paths)))
    else:
        lines += [f"Winning Agent: {view.winner}", f"Task: {task}"]
        lines += [f"Workspace: {paths.workspace}", f"Answer: See {paths.answer}"]
    return "".join(f"{without_controls(line)}\n" for line in lines)


def metadata(view: RunView, paths: TurnPaths, owner: str = "") -> dict[str, Any]:
    """Return the content of ``metadata.json``.

    Args:
        view: The turn.
        paths: The turn's paths.
        owner: A description of the process that runs the turn.

    Returns:
        MassGen's keys, followed by additional ones. A complete turn has no ``status``.
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
        if view.too_long:
            data["too_long"] = view.too_long
    data["run_status"] = view.status
    if view.point:
        data["rewinds"], data["at"] = view.resumes, view.point
    if view.said:
        data["said"] = list(view.said)
    data["journal_seq"] = view.seq
    data["owner"] = owner
    data["origin"] = view.origin
    if view.ending:
        if view.started_at:
            took = (view.ended_at or view.last_at) - view.started_at
            data["duration_seconds"] = round(max(0.0, took), 3)
        data["receipt"] = receipt(view, str(paths.path))
    if view.file_count is not None:
        data["file_count"], data["file_bytes"] = view.file_count, view.file_bytes
        data["files"] = view.files
    return data


def partial_answers(view: RunView) -> dict[str, dict[str, Any]]:
    """Return the content of ``partial_answers.json``.

    Returns:
        An entry for each agent with an answer, a vote or streamed text. It has MassGen's keys,
        ``thinking`` and, if some text was not submitted, ``partial_text`` and ``partial: true``. A
        vote is in both ``agent_id`` and ``voted_for``, because MassGen's documents and code differ.
    """
    return {a.id: entry for a in view.agents.values() if (entry := _partial(view, a.id))}


def _partial(view: RunView, agent_id: str) -> dict[str, Any]:
    agent = view.agents[agent_id]
    text = agent.unsubmitted
    if not (agent.answer.strip() or agent.vote or text or agent.partial_call or agent.thoughts):
        return {}
    vote = agent.vote
    # For MassGen's reader, the presence of an answer means that the agent submitted one.
    entry: dict[str, Any] = {"answer": agent.answer} if agent.answer.strip() else {}
    entry |= {
        "has_voted": vote is not None,
        "votes": {"agent_id": vote.target, "voted_for": vote.target, "reason": vote.reason}
        if vote
        else None,
        "answer_count": len(agent.answers),
    }
    if text or agent.partial_call:
        entry["partial"] = True
        if text:
            entry["partial_text"] = text
        if agent.partial_call:
            entry["partial_call"] = {"tool": agent.tool, "arguments": agent.partial_call}
    if agent.thoughts:
        entry["thinking"] = agent.thoughts
    return entry


def answer_text(view: RunView) -> str:
    """Return the content of ``answer.txt``.

    Returns:
        For a complete turn, the final answer. Otherwise the best answer so far with MassGen's
        three header lines, or else the longest text that was not submitted, with a similar header.
        "" if no agent has written anything.
    """
    if view.status == "completed":
        return view.answer
    if best := view.best_agent:
        return (
            f"[PARTIAL ANSWER - Session was cancelled during {view.phase} phase]\n"
            f"[Best answer from: {best}]\n{'=' * 60}\n\n{view.agents[best].answer}"
        )
    if longest := _longest_partial(view):
        return (
            f"[PARTIAL TEXT - {view.ending.capitalize()} during {view.phase} phase]\n"
            f"[Written by {longest}, never submitted as an answer]\n{'=' * 60}\n\n"
            f"{view.agents[longest].unsubmitted}"
        )
    return ""


def write_views(view: RunView, paths: TurnPaths, owner: str = "") -> tuple[str, ...]:
    """Update a turn's files, ``metadata.json`` last.

    Args:
        view: The turn.
        paths: The turn's paths.
        owner: A description of the process that runs the turn.

    Returns:
        A sentence for each session-wide file that could not be written because its path is
        blocked, such as by a directory. The turn's own files are complete.

    Raises:
        OSError: A write failed. No file is partially written, and a later call writes the rest.
    """
    notices: tuple[str, ...] = ()
    if view.ending:
        partial = partial_answers(view) if view.status != "completed" else {}
        if partial:
            _write_json(paths.partial_answers, partial)
        if text := answer_text(view):
            write_atomic(paths.answer, text)
        if view.winner and view.status == "completed":
            _link_workspace(paths, view.winner)
            notices += _unless_blocked(paths.winners, lambda: _append_winner(paths, view))
        notices += _unless_blocked(
            paths.summary, lambda: write_atomic(paths.summary, summary(view, paths))
        )
    _write_json(paths.metadata, metadata(view, paths, owner))
    return notices


def _unless_blocked(path: Path, write: Callable[[], None]) -> tuple[str, ...]:
    """Write a session-wide file. Returns a notice if its path is blocked."""
    try:
        write()
    except (RefusedError, IsADirectoryError, PermissionError) as exc:
        why = exc.strerror if isinstance(exc, RefusedError) else f"can't be written: {exc.strerror}"
        return (f"{path.name} {why}. It was not changed.",)
    return ()


def write_atomic(path: Path, text: str) -> None:
    """Replace a file atomically, by renaming a temporary one.

    Args:
        path: The file.
        text: The new content. Lone surrogates become question marks.

    Raises:
        OSError: The write failed. The old file is unchanged.
    """
    # The temporary name is fixed, so that killed processes leave at most one such file per target.
    temp = path.with_name(f".{path.name}.tmp")
    try:
        with _create(temp) as file:
            file.write(text.encode("utf-8", "replace"))
        os.replace(temp, path)
    except OSError:
        temp.unlink(missing_ok=True)
        raise


def _create(path: Path) -> IO[bytes]:
    """Create a file, replacing an existing one, so that a link is not followed."""
    try:
        return open_private(path, "xb")
    except FileExistsError:
        path.unlink(missing_ok=True)
        return open_private(path, "xb")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file is missing or contains anything else."""
    data = _read(path)
    return data if isinstance(data, dict) else {}


def _read(path: Path) -> Any:
    try:
        data = read_file(path, MAX_BYTES).removeprefix(BOM_UTF8)
        return from_json(data, allow_inf_nan=False)
    except (OSError, ValueError):
        return None


def _write_json(path: Path, data: Any) -> None:
    # A stop waits for these files, and indentation in `json` is slow, because it is done in Python.
    dump = partial(to_json, indent=2, inf_nan_mode="strings")
    try:
        text = dump(data)
    except ValueError:  # a lone surrogate, such as in a directory's name
        text = dump(well_formed(data))
    write_atomic(path, f"{text.decode()}\n")


def _reason(view: RunView) -> str:
    if view.ending == "killed":
        return "kernel died"
    if view.stop is None:
        return view.ending or "running"
    # MassGen calls every stop "cancelled". nb_agents distinguishes timeouts and budgets.
    return view.stop.source if view.stop.source in ("timeout", "budget") else "cancelled"


def _longest_partial(view: RunView) -> str:
    agents = [a for a in view.agents.values() if a.unsubmitted and not a.caller]
    return max(agents, key=lambda a: len(a.unsubmitted)).id if agents else ""


def _link_workspace(paths: TurnPaths, winner: str) -> None:
    target = Path("workspaces", winner)
    if paths.workspace.is_symlink():
        paths.workspace.unlink()
    if paths.workspace.exists():
        return
    try:
        paths.workspace.symlink_to(target, target_is_directory=True)
    except OSError:  # FAT, some network drives
        copy_tree(paths.path / target, paths.workspace)


def _append_winner(paths: TurnPaths, view: RunView) -> None:
    winners = _read(paths.winners)
    entry = {"agent_id": view.winner, "turn": view.turn}
    if not isinstance(winners, list):
        winners = []
    if entry not in winners:
        _write_json(paths.winners, [*winners, entry])


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


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat()
