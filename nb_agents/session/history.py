"""Reading sessions back: what is on disk, and what the next turn sees of it.

A turn that has a journal is what its journal says; one without (MassGen's) is what its files say.
Nothing that can't be read stops the rest from being read: it becomes a warning.

Source: MassGen's "Graceful Cancellation" document (the texts), `session/_state.py` (the keys).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nb_agents.events import Event, FileInfo, FilesListed, TurnStarted
from nb_agents.fold import apply, fold
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.turn import answer_text, partial_answers, write_views
from nb_agents.tools.workspace import list_files
from nb_agents.view import AgentView, RunView, VoteView

__all__ = [
    "Message",
    "PastTurn",
    "Session",
    "load_session",
    "load_turn",
    "past_events",
    "workspace_files",
]

LISTED = 500
"""Files of a workspace that are named; the others are counted. One journal line holds them all."""

_LEAVES = ("agent", "bash")
TOLD_STEPS = 20
"""Finished steps of an incomplete recipe that the next turn is told: the last ones."""
TOLD_CHARS = 2_000
"""Characters of what each of them gave."""

_PARTIAL_HEADER = "[PARTIAL TEXT - written by agents before the stop, never submitted as an answer]"


_BEST_ANSWER = re.compile(r"\[PARTIAL ANSWER - [^\n]*\]\n\[Best answer from: ([^\n]+)\]\n=+\n\n")


@dataclass(frozen=True)
class Message:
    """One message of the conversation so far; ``role`` is "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True)
class PastTurn:
    """A turn on disk.

    Attributes:
        paths: Where it is.
        view: What it holds.
        is_live: Whether a process runs it now.
        warnings: What could not be read.
    """

    paths: TurnPaths
    view: RunView
    is_live: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether it ended with an answer; never inferred."""
        return self.view.status == "completed"

    @property
    def state(self) -> str:
        """How it stands, in a person's words."""
        if self.is_complete:
            return "complete"
        if self.is_live:
            return "running"
        if self.view.status == "failed":
            return "failed"
        if self.view.stop is None:
            return "incomplete (the kernel died)" if not self.view.is_over else "incomplete"
        return (
            "incomplete (timeout)" if self.view.stop.source == "timeout" else "incomplete (stopped)"
        )


@dataclass(frozen=True)
class Session:
    """A session on disk.

    Attributes:
        path: Its directory.
        turns: In order.
    """

    path: Path
    turns: tuple[PastTurn, ...] = field(default=())

    @property
    def told(self) -> tuple[PastTurn, ...]:
        """The turns that count: one that a later turn resumed is told by that one."""
        resumed = {turn.view.resumes for turn in self.turns}
        return tuple(turn for turn in self.turns if turn.paths.number not in resumed)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that the next turn sees."""
        return tuple(m for turn in self.told for m in _messages(turn))

    def before(self, number: int) -> Session:
        """The session as it was when a turn began; for a resumed one, when the first of them did.

        Args:
            number: The turn's number.

        Returns:
            The turns before it.
        """
        turn = next((t for t in self.turns if t.paths.number == number), None)
        if turn is not None and 0 < turn.view.resumes < number:
            return self.before(turn.view.resumes)
        return Session(self.path, tuple(t for t in self.turns if t.paths.number < number))

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """What the next turn may read: the incomplete turns' workspaces, the others' winners'."""
        paths: list[Path] = []
        for turn in self.told:
            if turn.is_complete:
                paths += [turn.paths.workspace] if turn.paths.workspace.exists() else []
            else:
                paths += _workspaces(turn)
        return tuple(paths)

    def restored(self) -> tuple[str, ...]:
        """The lines that a person is shown when a session goes on, as the document words them."""
        count = len(self.turns)
        if not count:
            return ()
        lines = [
            f"📚 Restored session with {count} previous turn(s)",
            f"   Starting turn {self.turns[-1].paths.number + 1}",
        ]
        last = self.turns[-1]
        if not last.is_complete:
            lines += ["", *_incomplete_lines(last.view)]
        warnings = [w for turn in self.turns for w in turn.warnings]
        return (*lines, *(f"   Not read: {w}" for w in warnings))


def _incomplete_lines(view: RunView) -> list[str]:
    if view.recipe:
        where, kept = f"at {view.current_step or 'no step'}", "Finished steps saved"
        saved = [s.address for s in view.steps.values() if s.status == "ok"]
    else:
        where, kept = f"during {view.phase} phase", "Partial answers saved from"
        saved = [a.id for a in view.agents.values() if a.answers]
    return [
        f"⚠️  Previous turn was incomplete (cancelled {where})",
        f"   Task: {view.task}",
        f"   {kept}: {', '.join(saved[:20]) or 'none'}",
        "   The incomplete turn's partial progress is saved in the session directory.",
    ]


def load_session(path: Path) -> Session:
    """Read a session.

    Args:
        path: Its directory.

    Returns:
        All its turns, whatever state their files are in.
    """
    return Session(path, tuple(load_turn(paths) for paths in turns_of(path)))


def load_turn(paths: TurnPaths) -> PastTurn:
    """Read a turn, and mend the files of one whose process died.

    Args:
        paths: Where it is.

    Returns:
        The turn. A view that could not be mended (a read-only disk) is a warning.
    """
    live = paths.is_live()
    recovered = read_journal(paths.journal) if paths.journal.exists() else None
    unread = recovered.warnings if recovered else ()
    if recovered is None or not any(isinstance(e, TurnStarted) for e in recovered.events):
        view, warnings = _from_files(paths)
        return PastTurn(paths, view, live, unread + warnings)
    # A renamed or forked session is called what its directory is called.
    view = replace(fold(_with_past(paths, recovered.events)), session=paths.session)
    if not live:
        view = view if view.is_over else _as_died(view)
        if view.file_count is None:
            view = apply(view, workspace_files(paths, view.workspaces))
        unread += _mend(view, paths)
    return PastTurn(paths, view, live, unread)


def past_events(paths: TurnPaths) -> list[Event]:
    """Read all events that led to a turn's state: those of the turns that it resumed come first.

    Args:
        paths: The turn.

    Returns:
        The events; what can't be read is left out.
    """
    return _with_past(paths, read_journal(paths.journal).events)


def _with_past(paths: TurnPaths, events: Sequence[Event]) -> list[Event]:
    resumes = next((e.resumes for e in events if isinstance(e, TurnStarted)), 0)
    if not 0 < resumes < paths.number:
        return list(events)
    return [*past_events(TurnPaths(paths.path.with_name(f"turn_{resumes}"))), *events]


def workspace_files(paths: TurnPaths, agents: Iterable[str]) -> FilesListed:
    """List what the workspaces of a turn hold.

    Args:
        paths: The turn.
        agents: Whose workspaces.

    Returns:
        The first `LISTED` files of each, and how many and how large they are in all.
    """
    found = {agent: list_files(paths.workspaces / agent) for agent in agents}
    named = tuple(
        FileInfo(agent=agent, path=name, size=size)
        for agent, files in found.items()
        for name, size in files[:LISTED]
    )
    sizes = [size for files in found.values() for _, size in files]
    return FilesListed(files=named, count=len(sizes), size=sum(sizes))


def _as_died(view: RunView) -> RunView:
    """Show a turn whose process ended without a word as what it is: cut where it was."""
    agents = {
        k: replace(
            a,
            in_flight=False,
            was_cut=a.was_cut or a.in_flight,
            phase="stopped" if a.outcome is None else a.phase,
        )
        for k, a in view.agents.items()
    }
    return replace(view, agents=agents, status="cancelled")


def _mend(view: RunView, paths: TurnPaths) -> tuple[str, ...]:
    view = view if view.is_over else replace(view, ended_at=view.last_at)
    if _is_up_to_date(view, paths):
        return ()
    try:
        write_views(view, paths)
    except OSError as exc:
        return (f"{paths.metadata} can't be brought up to date: {exc.strerror}",)
    return ()


def _is_up_to_date(view: RunView, paths: TurnPaths) -> bool:
    """Whether the files show all of the journal and of the workspaces, as an ended turn's do."""
    known = _read_json(paths.metadata)
    needed = [paths.answer] if answer_text(view) else []
    if view.status != "completed" and partial_answers(view):
        needed.append(paths.partial_answers)
    whole = known.get("journal_seq") == view.seq and {"receipt", "files"} <= known.keys()
    return whole and all(path.exists() for path in needed)


def _messages(turn: PastTurn) -> list[Message]:
    messages = [Message("user", text) for text in (turn.view.task, *turn.view.said) if text]
    if turn.is_complete:
        return messages + ([Message("assistant", turn.view.answer)] if turn.view.answer else [])
    if text := incomplete_text(turn):
        messages.append(Message("assistant", text))
    if text := _unsubmitted(turn.view):
        messages.append(Message("assistant", text))
    return messages


def incomplete_text(turn: PastTurn) -> str:
    """Word an incomplete turn for the next one, exactly as MassGen's document does.

    Args:
        turn: The turn.

    Returns:
        One message, or "" when no agent had an answer or a workspace.
    """
    if turn.view.recipe:
        return _incomplete_recipe(turn)
    view, spaces = turn.view, {p.name: p for p in _workspaces(turn)}
    called = _called(view, spaces)
    names = {a.id for a in view.agents.values() if a.answers} | spaces.keys() - called.keys()
    if not names | called.keys():
        return ""
    lines = [
        "[INCOMPLETE TURN - Session was cancelled before completion]",
        f"[Phase when cancelled: {view.phase}]",
        "",
    ]
    for agent_id in sorted(names):
        lines += _agent_lines(view.agents.get(agent_id, AgentView(agent_id)), spaces.get(agent_id))
    for name, agent in called.items():
        lines += _called_lines(agent, spaces.get(name))
    return "\n".join(lines)


def _called(view: RunView, spaces: Iterable[str]) -> dict[str, AgentView]:
    """Give the agents that others called, by workspace: they are no members, and don't answer."""
    called = {a.workspace: a for a in view.agents.values() if a.caller}
    # Of those of a turn that this one resumed, the workspaces alone are left.
    earlier = {n: AgentView(n) for n in spaces if "+" in n and n not in {*view.agents, *called}}
    return {**earlier, **called}


def _called_lines(agent: AgentView, workspace: Path | None) -> list[str]:
    by = f" (called by {agent.caller})" if agent.caller else " (called by another agent)"
    told = [_start(agent.returned)] if agent.returned else []
    if agent.caller and not agent.returned:
        told = [f"[It failed: {agent.error}]" if agent.error else "[It returned nothing]"]
    where = [f"[Workspace available at: {workspace}]"] if workspace else []
    return [f"## {agent.id}{by}:", *told, *where, ""]


def _incomplete_recipe(turn: PastTurn) -> str:
    """Word an incomplete recipe: what its steps gave, what was cut, what waits."""
    view = turn.view
    done = [s for s in view.steps.values() if s.unit in _LEAVES and s.status == "ok"]
    left = [
        s for s in view.steps.values() if s.unit in _LEAVES and s.status not in ("ok", "skipped")
    ]
    where = f" at {view.current_step}" if view.current_step else ""
    lines = [
        "[INCOMPLETE TURN - Session was cancelled before completion]",
        f"[Recipe {view.recipe}: {view.status}{where}]",
        "",
    ]
    if len(done) > TOLD_STEPS:
        lines += [f"[{len(done) - TOLD_STEPS} earlier finished steps are left out]", ""]
    for step in done[-TOLD_STEPS:]:
        lines += [f"## {step.address} (finished):", _start(str(step.output)), ""]
    for step in left:
        what = "agent" if step.unit == "agent" else "command"
        how = f"failed: {_start(step.why)}" if step.status == "failed" else "not finished"
        lines += [f"## {step.address} ({what}, {how})", ""]
    for gate in view.gates.values():
        lines += [f"## {gate.address} waits for approval:", _start(gate.prompt), ""]
    lines += [f"[Workspace available at: {path}]" for path in _workspaces(turn)]
    return "\n".join(lines)


def _start(text: str) -> str:
    text = text.strip()
    return text if len(text) <= TOLD_CHARS else f"{text[:TOLD_CHARS]} […]"


def _agent_lines(agent: AgentView, workspace: Path | None) -> list[str]:
    if agent.answers:
        voted = f" (voted for: {agent.vote.target})" if agent.vote else ""
        where = [f"[Workspace available at: {workspace}]"] if workspace else []
        return [f"## {agent.id}'s answer{voted}:", agent.answer, *where, ""]
    return [
        f"## {agent.id}:",
        "[No answer submitted - agent was still working]",
        f"[View workspace for current progress: {workspace}]",
        "",
    ]


def _unsubmitted(view: RunView) -> str:
    """Word what was streamed and never submitted; the document has no place for it."""
    cut = [a for a in view.agents.values() if a.partial.strip()]
    if not cut:
        return ""
    return "\n\n".join([_PARTIAL_HEADER, *(f"## {a.id} was writing:\n{a.partial}" for a in cut)])


def _workspaces(turn: PastTurn) -> list[Path]:
    return _folders(turn.paths.workspaces)


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []


def _from_files(paths: TurnPaths) -> tuple[RunView, tuple[str, ...]]:
    """Read a turn without a journal: MassGen's own, or one whose journal is lost."""
    data = _read_json(paths.metadata)
    warnings: list[str] = []
    if not data:
        warnings.append(f"{paths.metadata} is missing or can't be read")
    if (partial := _read_json(paths.partial_answers)) == {} and paths.partial_answers.exists():
        warnings.append(f"{paths.partial_answers} can't be read")
    # MassGen says complete by leaving the status out; other JSON that lacks one is no metadata.
    complete = "status" not in data and not data.keys().isdisjoint({"task", "winning_agent"})
    try:
        answer = paths.answer.read_text(encoding="utf-8", errors="replace")
    except OSError:
        answer = ""
    # MassGen leaves a cancelled turn's partial answers beside the complete one that replaced it.
    partial = {} if complete else partial or _best_answer(answer)
    spaces = [p.name for p in _folders(paths.workspaces)]
    agents = {a: _agent_from(a, partial.get(a)) for a in dict.fromkeys([*partial, *spaces])}
    phase, said = data.get("phase"), data.get("said")
    view = RunView(
        session=paths.session,
        turn=paths.number,
        task=str(data.get("task") or ""),
        status="completed" if complete else "cancelled",
        phase=phase if phase in ("coordinating", "presenting") else "coordinating",
        agents=agents,
        winner=str(data.get("winning_agent") or ""),
        answer=answer if complete else "",
        said=tuple(map(str, said)) if isinstance(said, list) else (),
        ended_at=paths.path.stat().st_mtime,
    )
    return apply(view, workspace_files(paths, agents)), tuple(warnings)


def _best_answer(text: str) -> dict[str, Any]:
    """Take the one answer that ``answer.txt`` still has when partial_answers.json is lost."""
    head = _BEST_ANSWER.match(text)
    return {head[1]: {"answer": text[head.end() :]}} if head else {}


def _agent_from(agent_id: str, entry: object) -> AgentView:
    known: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    votes = known.get("votes")
    votes = votes if isinstance(votes, dict) else {}
    target = votes.get("voted_for") or votes.get("agent_id")
    answer = str(known.get("answer") or "")
    return AgentView(
        agent_id,
        answers=(answer,) if answer else (),
        vote=VoteView(str(target), str(votes.get("reason", ""))) if target else None,
        partial=str(known.get("partial_text") or ""),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
