"""Converts past turns to text: messages for the models of the next turn, and lines for the user.

Source: MassGen's "Graceful Cancellation" document (the wording).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nb_agents.view.run_view import AgentView, ReceivedResult, RunView
from nb_agents.view.steps import gate_title

_LEAVES = ("agent", "bash")
MAX_STEPS = 20
"""Maximum number of finished steps of an incomplete recipe in a message: the latest ones."""
MAX_STEP_CHARS = 2_000
"""Maximum number of characters of a step's output or an agent's reasoning in a message."""
MAX_PARTIAL_CHARS = 20_000
"""Maximum number of characters of unsubmitted text in a message, taken from its end."""

_LEARNED_HEADER = "[TOOL RESULTS - received by agents before the stop, not in an answer yet]"

_PARTIAL_HEADER = "[PARTIAL TEXT - written by agents before the stop, never submitted as an answer]"


@dataclass(frozen=True)
class PastMessage:
    """One message of the conversation so far.

    Attributes:
        role: "user" or "assistant".
        content: The text.
        turn: The number of its turn. 0 if unknown.
    """

    role: str
    content: str
    turn: int = field(default=0, compare=False)


def messages_of(
    view: RunView, spaces: Sequence[Path], resumed: Sequence[RunView]
) -> list[PastMessage]:
    """Return the messages that represent a past turn in the conversation of the next one.

    Args:
        view: The past turn.
        spaces: The directories of its workspaces.
        resumed: The turns that it resumed, oldest first.

    Returns:
        The user's messages, followed by the answer or the partial results.
    """
    messages = [PastMessage("user", text) for text in (view.task, *view.said) if text]
    if view.status == "completed":
        return messages + ([PastMessage("assistant", view.answer)] if view.answer else [])
    text = _incomplete_steps(view, spaces) if view.has_steps else _incomplete_team(view, spaces)
    if text:
        messages.append(PastMessage("assistant", text))
    for text in (_unsubmitted([*resumed, view]), _unused_results([*resumed, view])):
        if text:
            messages.append(PastMessage("assistant", text))
    return messages


def _incomplete_team(view: RunView, folders: Sequence[Path]) -> str:
    """Describe an incomplete turn in the exact format of MassGen's document.

    "" if it has no results.
    """
    spaces = {path.name: path for path in folders}
    sub_agents = _sub_agents(view, spaces)
    names = {a.id for a in view.agents.values() if a.answers} | spaces.keys() - sub_agents.keys()
    if not names | sub_agents.keys():
        return ""
    lines = [
        "[INCOMPLETE TURN - Session was cancelled before completion]",
        f"[Phase when cancelled: {view.phase}]",
        "",
    ]
    for agent_id in sorted(names):
        lines += _agent_lines(view.agents.get(agent_id, AgentView(agent_id)), spaces.get(agent_id))
    for name, agent in sub_agents.items():
        lines += _sub_agent_lines(agent, spaces.get(name))
    return "\n".join(lines)


def _sub_agents(view: RunView, spaces: Iterable[str]) -> dict[str, AgentView]:
    """Return the sub-agents by workspace. They are not team members and submit no answers."""
    sub_agents = {a.workspace: a for a in view.agents.values() if a.caller}
    # Sub-agents of a resumed turn are not in the view, but their workspaces exist.
    earlier = {n: AgentView(n) for n in spaces if "+" in n and n not in {*view.agents, *sub_agents}}
    return {**earlier, **sub_agents}


def _sub_agent_lines(agent: AgentView, workspace: Path | None) -> list[str]:
    by = f" (called by {agent.caller})" if agent.caller else " (called by another agent)"
    result = [_head(agent.returned)] if agent.returned else []
    if agent.caller and not agent.returned:
        result = [f"[It failed: {agent.error}]" if agent.error else "[It returned nothing]"]
    where = [f"[Workspace available at: {workspace}]"] if workspace else []
    return [f"## {agent.id}{by}:", *result, *where, ""]


def _incomplete_steps(view: RunView, folders: Sequence[Path]) -> str:
    """Describe an incomplete recipe: finished and unfinished steps, and pending approvals."""
    done = [s for s in view.steps.values() if s.unit in _LEAVES and s.status == "ok"]
    unfinished = [
        s for s in view.steps.values() if s.unit in _LEAVES and s.status not in ("ok", "skipped")
    ]
    where = f" at {view.current_step}" if view.current_step else ""
    lines = [
        "[INCOMPLETE TURN - Session was cancelled before completion]",
        f"[Recipe {view.recipe}: {view.state}{where}]",
        "",
    ]
    if len(done) > MAX_STEPS:
        lines += [f"[{len(done) - MAX_STEPS} earlier finished steps are left out]", ""]
    for step in done[-MAX_STEPS:]:
        lines += [f"## {step.address} (finished):", _head(str(step.output)), ""]
    for step in unfinished:
        unit_name = "agent" if step.unit == "agent" else "command"
        how = f"failed: {_head(step.why)}" if step.status == "failed" else "not finished"
        lines += [f"## {step.address} ({unit_name}, {how})", ""]
    for gate in view.gates.values():
        lines += [f"## {gate_title(gate.address)} waits for approval:", _head(gate.prompt), ""]
    lines += [f"[Workspace available at: {path}]" for path in folders]
    return "\n".join(lines)


def _head(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_STEP_CHARS else f"{text[:MAX_STEP_CHARS]} […]"


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
    """Return the text that agents streamed but never submitted, in the turns of a task."""
    blocks: list[str] = []
    for name in dict.fromkeys(name for view in views for name in view.agents):
        agents = [view.agents[name] for view in views if name in view.agents]
        # Interrupted text is often written again after a resume, and is then in an answer.
        answers = agents[-1].answers
        texts = [t for a in agents for t in a.texts if not any(t in answer for answer in answers)]
        if texts:
            blocks.append(f"## {name} was writing:\n{_tail(_join(texts), MAX_PARTIAL_CHARS)}")
        if thoughts := _join(a.thoughts for a in agents):
            blocks.append(f"## {name} was thinking:\n{_tail(thoughts, MAX_STEP_CHARS)}")
    return _join([_PARTIAL_HEADER, *blocks]) if blocks else ""


def _unused_results(views: Sequence[RunView]) -> str:
    """Return the tool results that agents received after their last answers in a task."""
    blocks: list[str] = []
    for name in dict.fromkeys(name for view in views for name in view.agents):
        results: list[ReceivedResult] = []
        answers = 0
        for agent in (view.agents[name] for view in views if name in view.agents):
            results = [*(results if len(agent.answers) <= answers else ()), *agent.learned]
            answers = len(agent.answers)
        if not agent.returned:
            blocks += [f"## {name} called {each.call}:\n{each.result}" for each in results]
    return _join([_LEARNED_HEADER, *blocks]) if blocks else ""


def _join(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[…] {text[-limit:]}"


def restored_lines(view: RunView) -> list[str]:
    """Return lines that describe an incomplete turn, for the user who continues its session."""
    if view.has_steps:
        where, results = f"at {view.current_step or 'no step'}", "outputs of"
        saved = [s.address for s in view.steps.values() if s.status == "ok"]
    else:
        where, results = f"while {view.phase}", "answers of"
        saved = [a.id for a in view.agents.values() if a.answers]
    why = " ".join(view.stop.given_reason.split()) if view.stop else ""
    why = "its process ended" if view.ending == "killed" else why
    state = f"was {view.state}" if view.state == "stopped" else view.state
    return [
        f"Turn {view.turn} {state} {where}{f' ({why})' if why else ''}: {view.task}",
        f"Saved: {results} {', '.join(saved[:20])}." if saved else "It has no saved answers.",
    ]
