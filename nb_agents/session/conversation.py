"""What is told of a past turn: to the models of the next one, and to the person who goes on.

Source: MassGen's "Graceful Cancellation" document (the texts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nb_agents.view.run_view import AgentView, RunView

__all__ = ["Message", "messages_of", "restored_lines"]

_LEAVES = ("agent", "bash")
TOLD_STEPS = 20
"""Finished steps of an incomplete recipe that the next turn is told: the last ones."""
TOLD_CHARS = 2_000
"""Characters of what each of them gave, and of an agent's reasoning."""
TOLD_WORDS = 20_000
"""Characters of what an agent wrote and never submitted: the last ones."""

_VERBS = {"stopped": "cancelled"}
"""As MassGen's document has it."""
_PARTIAL_HEADER = "[PARTIAL TEXT - written by agents before the stop, never submitted as an answer]"


@dataclass(frozen=True)
class Message:
    """One message of the conversation so far; ``role`` is "user" or "assistant"."""

    role: str
    content: str


def messages_of(view: RunView, spaces: Sequence[Path], resumed: Sequence[RunView]) -> list[Message]:
    """Word a turn for the next one.

    Args:
        view: The turn.
        spaces: Its workspaces.
        resumed: The turns that it went on with, in order.

    Returns:
        What was asked and said, and what came of it.
    """
    messages = [Message("user", text) for text in (view.task, *view.said) if text]
    if view.status == "completed":
        return messages + ([Message("assistant", view.answer)] if view.answer else [])
    told = _incomplete_recipe(view, spaces) if view.recipe else _incomplete_team(view, spaces)
    if told:
        messages.append(Message("assistant", told))
    if text := _unsubmitted([*resumed, view]):
        messages.append(Message("assistant", text))
    return messages


def _incomplete_team(view: RunView, folders: Sequence[Path]) -> str:
    """Word an incomplete turn exactly as MassGen's document does; "" when nobody left anything."""
    spaces = {path.name: path for path in folders}
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


def _incomplete_recipe(view: RunView, folders: Sequence[Path]) -> str:
    """Word an incomplete recipe: what its steps gave, what was cut, what waits."""
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
    lines += [f"[Workspace available at: {path}]" for path in folders]
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


def _unsubmitted(views: Sequence[RunView]) -> str:
    """Word what was streamed and never submitted; the document has no place for it.

    Args:
        views: The turns of one task, in order.
    """
    blocks: list[str] = []
    for name in dict.fromkeys(name for view in views for name in view.agents):
        agents = [view.agents[name] for view in views if name in view.agents]
        # What was cut is often written again after a resume.
        answers = agents[-1].answers
        texts = [t for a in agents for t in a.texts if not any(t in answer for answer in answers)]
        if texts:
            blocks.append(f"## {name} was writing:\n{_end(_joined(texts), TOLD_WORDS)}")
        if thoughts := _joined(a.thoughts for a in agents):
            blocks.append(f"## {name} was thinking:\n{_end(thoughts, TOLD_CHARS)}")
    return _joined([_PARTIAL_HEADER, *blocks]) if blocks else ""


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _end(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[…] {text[-limit:]}"


def restored_lines(view: RunView) -> list[str]:
    """Say what is left of an incomplete turn, to the person who goes on with its session."""
    if view.recipe:
        where, kept = f"at {view.current_step or 'no step'}", "Finished steps saved"
        saved = [s.address for s in view.steps.values() if s.status == "ok"]
    else:
        where, kept = f"during {view.phase} phase", "Partial answers saved from"
        saved = [a.id for a in view.agents.values() if a.answers]
    return [
        f"⚠️  Previous turn was incomplete ({_VERBS.get(view.ending, view.ending)} {where})",
        f"   Task: {view.task}",
        f"   {kept}: {', '.join(saved[:20]) or 'none'}",
        "   The incomplete turn's partial progress is saved in the session directory.",
        *_stopped_line(view),
    ]


def _stopped_line(view: RunView) -> list[str]:
    """Say that somebody stopped it, and why: the document's "cancelled" says less."""
    if view.ending != "stopped" or view.stop is None:
        return []
    reason = " ".join(view.stop.reason.split())
    return [f"   It was stopped{f': {reason}' if reason else '.'}"]
