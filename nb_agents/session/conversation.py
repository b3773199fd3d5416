"""Past turns as text: messages for the next turn's models, and lines for the user who continues.

Source: MassGen's "Graceful Cancellation" document (the texts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nb_agents.view.run_view import AgentView, Learned, RunView

_LEAVES = ("agent", "bash")
MAX_STEPS = 20
"""Finished steps of an incomplete recipe that the messages include: the last ones."""
MAX_STEP_CHARS = 2_000
"""Characters included of each step's output, and of an agent's reasoning."""
MAX_PARTIAL_CHARS = 20_000
"""Characters included of the text that an agent never submitted: the last ones."""

_LEARNED_HEADER = "[TOOL RESULTS - told to agents before the stop, in no answer yet]"

_PARTIAL_HEADER = "[PARTIAL TEXT - written by agents before the stop, never submitted as an answer]"


@dataclass(frozen=True)
class PastMessage:
    """One message of the conversation so far; ``role`` is "user" or "assistant"."""

    role: str
    content: str


def messages_of(
    view: RunView, spaces: Sequence[Path], resumed: Sequence[RunView]
) -> list[PastMessage]:
    """Return the messages that represent a past turn in the next one's conversation.

    Args:
        view: The turn.
        spaces: Its workspaces.
        resumed: The turns that it resumed, in order.

    Returns:
        The user's messages, then the answer or the partial results.
    """
    messages = [PastMessage("user", text) for text in (view.task, *view.said) if text]
    if view.status == "completed":
        return messages + ([PastMessage("assistant", view.answer)] if view.answer else [])
    text = _incomplete_recipe(view, spaces) if view.recipe else _incomplete_team(view, spaces)
    if text:
        messages.append(PastMessage("assistant", text))
    for text in (_unsubmitted([*resumed, view]), _learned([*resumed, view])):
        if text:
            messages.append(PastMessage("assistant", text))
    return messages


def _incomplete_team(view: RunView, folders: Sequence[Path]) -> str:
    """Describe an incomplete turn in the exact words of MassGen's document; "" for no results."""
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
    """Return sub-agents by workspace: they are not team members and submit no answers."""
    called = {a.workspace: a for a in view.agents.values() if a.caller}
    # Of sub-agents in a resumed turn, only the workspaces are left.
    earlier = {n: AgentView(n) for n in spaces if "+" in n and n not in {*view.agents, *called}}
    return {**earlier, **called}


def _called_lines(agent: AgentView, workspace: Path | None) -> list[str]:
    by = f" (called by {agent.caller})" if agent.caller else " (called by another agent)"
    result = [_head(agent.returned)] if agent.returned else []
    if agent.caller and not agent.returned:
        result = [f"[It failed: {agent.error}]" if agent.error else "[It returned nothing]"]
    where = [f"[Workspace available at: {workspace}]"] if workspace else []
    return [f"## {agent.id}{by}:", *result, *where, ""]


def _incomplete_recipe(view: RunView, folders: Sequence[Path]) -> str:
    """Describe an incomplete recipe: finished and unfinished steps, and pending approvals."""
    done = [s for s in view.steps.values() if s.unit in _LEAVES and s.status == "ok"]
    left = [
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
    for step in left:
        what = "agent" if step.unit == "agent" else "command"
        how = f"failed: {_head(step.why)}" if step.status == "failed" else "not finished"
        lines += [f"## {step.address} ({what}, {how})", ""]
    for gate in view.gates.values():
        lines += [f"## {gate.address} waits for approval:", _head(gate.prompt), ""]
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
    """Return the text that agents streamed and never submitted in the turns of one task."""
    blocks: list[str] = []
    for name in dict.fromkeys(name for view in views for name in view.agents):
        agents = [view.agents[name] for view in views if name in view.agents]
        # Text that was cut off is often written again after a resume.
        answers = agents[-1].answers
        texts = [t for a in agents for t in a.texts if not any(t in answer for answer in answers)]
        if texts:
            blocks.append(f"## {name} was writing:\n{_tail(_joined(texts), MAX_PARTIAL_CHARS)}")
        if thoughts := _joined(a.thoughts for a in agents):
            blocks.append(f"## {name} was thinking:\n{_tail(thoughts, MAX_STEP_CHARS)}")
    return _joined([_PARTIAL_HEADER, *blocks]) if blocks else ""


def _learned(views: Sequence[RunView]) -> str:
    """Return the tool results that agents got in the turns of one task since their last answers."""
    blocks: list[str] = []
    for name in dict.fromkeys(name for view in views for name in view.agents):
        results: list[Learned] = []
        answers = 0
        for agent in (view.agents[name] for view in views if name in view.agents):
            results = [*(results if len(agent.answers) <= answers else ()), *agent.learned]
            answers = len(agent.answers)
        if not agent.returned:
            blocks += [f"## {name} called {each.call}:\n{each.result}" for each in results]
    return _joined([_LEARNED_HEADER, *blocks]) if blocks else ""


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[…] {text[-limit:]}"


def restored_lines(view: RunView) -> list[str]:
    """Return lines about an incomplete last turn, for the user who continues its session."""
    if view.recipe:
        where, kept = f"at {view.current_step or 'no step'}", "outputs of"
        saved = [s.address for s in view.steps.values() if s.status == "ok"]
    else:
        where, kept = f"while {view.phase}", "answers of"
        saved = [a.id for a in view.agents.values() if a.answers]
    why = " ".join(view.stop.given_reason.split()) if view.stop else ""
    why = "its process ended" if view.ending == "killed" else why
    state = f"was {view.state}" if view.state == "stopped" else view.state
    return [
        f"Turn {view.turn} {state} {where}{f' ({why})' if why else ''}: {view.task}",
        f"Kept of it: {kept} {', '.join(saved[:20])}." if saved else "No answer of it is there.",
    ]
