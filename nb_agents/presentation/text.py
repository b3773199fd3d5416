"""Text shared by panels, cards and lists. Pure functions."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nb_agents.nouns import count, dollars, price, token_count
from nb_agents.session.archive import Verification
from nb_agents.session.history import Session
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import AgentView, FoldView, RunView
from nb_agents.view.steps import GateView

if TYPE_CHECKING:
    from nb_agents.session.prune import Pruned, PruneSpec

_SOURCES = {
    "widget": "you",
    "interrupt": "you (interrupt)",
    "notebook": "the program that ran the notebook (its time limit, or an interrupt)",
    "api": "you (run.stop)",
    "magic": "you (%agents stop)",
    "rest": "the HTTP interface",
    "mcp": "an MCP client",
    "acp": "an ACP client",
    "cli": "the command line",
    "budget": "the budget",
    "approval": "an approval gate",
}

STOPPING = "Stopping… (after current LLM call completes)"
STOPPING_STEPS = "Stopping… (after the current steps)"
STOPPING_NOW = "Stopping now…"


def chip(view: RunView) -> str:
    """Return the text of a turn's status chip."""
    if view.state == "stopping" and view.stop:
        if view.stop.level == "immediate":
            return STOPPING_NOW
        return STOPPING_STEPS if view.has_steps else STOPPING
    if view.is_paused:
        return "paused"
    if view.status != "awaiting" and view.wait is not None:
        return view.wait.describe(time.time())
    if view.status == "awaiting":
        kinds = {gate.wants for gate in view.gates.values()}
        return awaits("input" if kinds == {"input"} else "approval")
    is_presenting = view.state == "running" and view.phase == "presenting"
    return "presenting" if is_presenting else view.state


def waits_for_providers(view: RunView) -> bool:
    """Return whether all agents of a running turn wait for their providers."""
    return view.state == "running" and view.wait is not None


def awaits(wants: Literal["approval", "input"]) -> str:
    """Return the state of a run or an agent that waits at a gate, by what the gate wants."""
    return "awaiting an answer" if wants == "input" else "awaiting approval"


def waits_for(view: RunView) -> str:
    """Return a sentence that says what a stopping run waits for and until when, or ""."""
    stop = view.stop
    if view.state != "stopping" or stop is None:
        return ""
    if stop.level == "immediate":
        return "Stopping now: calls in flight are interrupted, and their text is saved."
    why = f"{stop.reason[:1].upper()}{stop.reason[1:]}" if stop.source == "timeout" else "Stopping"
    until = ""
    if stop.grace_s is not None:
        at = datetime.fromtimestamp(stop.requested_at + stop.grace_s)
        until = f" until {at:%H:%M:%S}, then interrupts the rest"
    return f"{clip(why, 120)}: waiting for {_unfinished(view)}{until}. Everything is saved."


def _unfinished(view: RunView) -> str:
    """Return the agents and commands that may finish after a graceful stop."""
    busy = [
        step.address
        for step in view.steps.values()
        if step.unit == "bash" and step.status == "running"
    ]
    phases = ("thinking", "tool", "writing")
    busy += [a.id for a in view.agents.values() if a.in_flight or a.phase in phases]
    return clip(", ".join(busy), 120) if busy else "its files to be written"


def elapsed(view: RunView, now: float) -> tuple[str, float]:
    """Return the elapsed time in MassGen's wording, and the fraction of the timeout (0 to 1)."""
    used = max(0.0, (view.ended_at or now) - view.started_at)
    if not view.timeout_s:
        return f"Elapsed: {used:.0f}s", 0.0
    fraction = min(1.0, used / view.timeout_s)
    return f"Elapsed: {used:.0f}s / {view.timeout_s:.0f}s ({fraction:.0%})", fraction


def progress(view: RunView) -> str:
    """Return the progress of a turn: a team's round, or the step of a recipe."""
    if not view.has_steps:
        attempt = f" · attempt {view.attempt}" if view.attempt > 1 else ""
        return f"Round: {view.round}/∞{attempt}"
    steps = _outermost(view)
    if not steps:
        return view.current_step
    started = sum(1 for step in steps if step in view.steps)
    return f"Step {max(started, 1)} of {len(steps)}"


def done(view: RunView) -> float:
    """Return the fraction of a recipe's top-level steps that have ended, from 0 to 1."""
    steps = _outermost(view)
    over = sum(1 for step in steps if step in view.steps and view.steps[step].is_over)
    return over / len(steps) if steps else 0.0


def _outermost(view: RunView) -> list[str]:
    return [unit.address for unit in view.outlines.get("", ()) if unit.unit != "stage"]


def countdown(gate: GateView, now: float) -> str:
    """Return what happens to an open gate if nobody decides."""
    if not gate.timeout_s:
        return f"waits until it is {'answered' if gate.wants == 'input' else 'decided'}"
    remaining_s = max(0.0, gate.asked_at + gate.timeout_s - now)
    return f"{seconds(remaining_s)}, then {'approved' if gate.default == 'approve' else 'denied'}"


def duration(view: RunView) -> str:
    """Return a turn's duration as text, or "" if unknown."""
    if not view.started_at:
        return ""
    return seconds(max(0.0, (view.ended_at or view.last_at) - view.started_at))


def seconds(duration_s: float) -> str:
    """Return a duration as text, such as "2 min 5 s"."""
    minutes, rest = divmod(round(duration_s), 60)
    if minutes:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{rest} s"


def when(at: float) -> str:
    """Return a Unix time as local date and time, or "" if it is unknown or out of range."""
    try:
        return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}" if at else ""
    except (ValueError, OverflowError, OSError):
        return ""


def spent(view: RunView) -> str:
    """Return the tokens and cost of a turn, or "" if they are not recorded."""
    used = view.tokens
    if not view.seq and not used:
        return ""
    paid = price(used, total_cost(view))
    note = " (including an estimate of interrupted calls)" if view.is_estimated else ""
    if any(agent.uncounted_calls for agent in view.agents.values()):
        note = " (without interrupted calls)"
    return " · ".join(p for p in (token_count(used, view.is_estimated), paid) if p) + note


def size(size_bytes: float) -> str:
    """Return a file's size as text, such as "1.2 MB"."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    units = iter(("kB", "MB", "GB", "TB"))
    while size_bytes >= 1000 and (unit := next(units, "")):
        size_bytes, unit_name = size_bytes / 1000, unit
    return f"{size_bytes:.1f} {unit_name}"


def verification(verified: Verification) -> str:
    """Describe what was found in an exported session, and what that proves."""
    manifest = verified.manifest
    held = f"{count(verified.entries, 'file')} and {count(verified.events, 'event')}"
    if verified.changes:
        first = f"Changed since the export: {count(len(verified.changes), 'change')} in {held}."
    else:
        first = f"Nothing was changed since the export: {held}."
    if manifest.is_own:
        origin = "You exported it: the manifest has the MAC of your key."
    elif manifest.mac:
        origin = (
            "It has no MAC of your key: another user exported it, or its manifest was rewritten. "
            "Compare the fingerprint with the exporter's."
        )
    else:
        origin = (
            "It has no MAC, because its exporter had not written or trusted all of its turns. "
            "Compare the fingerprint with the exporter's."
        )
    return f"{first}\nFingerprint: {manifest.fingerprint}\n{origin}"


def older_sessions_note(number: int) -> str:
    """Return a sentence about the sessions that a list leaves out, or ""."""
    return f"{count(number, 'older session')} not listed. --all lists all." if number else ""


def prune_summary(done: Pruned, spec: PruneSpec) -> str:
    """Describe what a prune removed or would remove, what it skipped, and why."""
    removed = f"{count(done.sessions, 'session')} and {count(done.rows, 'row')} of sweeps"
    if spec.keep_answers:
        removed = f"all but the answers of {removed}"
    if done.ledgers:
        verb = "is" if done.ledgers == 1 else "are"
        removed += f", and {count(done.ledgers, 'budget ledger')} that {verb} no longer needed"
    verb = "Would remove" if spec.is_dry_run else "Removed"
    lines = [f"{verb} {removed} ({count(done.files, 'file')}, {size(done.size_bytes)})."]
    if done.incomplete:
        lines.append(
            f"Skipped {done.incomplete} incomplete that can be resumed; --incomplete removes them."
        )
    if done.live:
        lines.append(f"Skipped {done.live} that are running.")
    if done.not_noted:
        rows = count(done.not_noted, "row")
        lines.append(f"Skipped {rows} whose end is not recorded. Run the sweep again to record it.")
    lines += done.unread
    if spec.is_dry_run and done.files:
        lines.append("Nothing was removed yet. Add --yes to remove them.")
    return "\n".join(lines)


def count_any(number: int, noun: str) -> str:
    """Return a number with its noun, or "" for 0."""
    return count(number, noun) if number else ""


def clip(text: str, limit: int, *, tail: bool = False) -> str:
    """Shorten text to one line of at most ``limit`` characters: its beginning or its end."""
    text = " ".join(text[-2 * limit :].split() if tail else text[: 2 * limit].split())
    if len(text) <= limit:
        return text
    return "…" + text[-limit:] if tail else text[:limit] + "…"


_MARKDOWN = re.compile(
    r"^\s{0,3}(?:#{1,6}\s+|>\s?|```\w*)"  # headings, quotes and fences
    r"|^[\s|:]*-{3,}[\s|:-]*$"  # rules, and the second lines of tables
    r"|^\s*\|\s?|\s?\|\s*$"  # the first and last bars of a table's line
    r"|(?<![\w*_])(?:\*{1,3}|_{1,2})(?![\s*_])"  # the start and the end of emphasis
    r"|(?<![\s*_])(?:\*{1,3}|_{1,2})(?![\w*_])"
    r"|`+",
    re.MULTILINE,
)


def without_markdown(text: str, limit: int, *, tail: bool = False) -> str:
    """Shorten Markdown to one line, like `clip`, and remove the signs of its formatting."""
    part = text[-4 * limit :] if tail else text[: 4 * limit]
    return clip(_MARKDOWN.sub("", part), limit, tail=tail)


def cut(text: str, limit: int) -> str:
    """Shorten text to ``limit`` characters, and append the number of removed characters."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def votes(view: RunView) -> str:
    """Return the votes as text, such as "3 votes (critic 2, researcher 1)"."""
    tally = view.votes
    total = sum(tally.values())
    who = ", ".join(f"{a} {n}" for a, n in sorted(tally.items(), key=lambda i: -i[1]))
    return count(total, "vote") + (f" ({who})" if who else "")


REQUESTED_BY = "requested by "
"""How the reason of a stop begins that names the user, who is signed in to the Jupyter server."""


def stopped_by(view: RunView, writer: str = "kernel") -> str:
    """Describe who stopped a turn, for the card's first sentence.

    Args:
        view: The view of the turn.
        writer: The kind of process that ran the turn.
    """
    if view.ending == "killed":
        return f"Cut off when the {writer} died"
    if view.stop is None:
        return "Stopped"
    if view.stop.given_reason.startswith(REQUESTED_BY):
        return f"Stopped by {clip(view.stop.given_reason.removeprefix(REQUESTED_BY), 120)}"
    reason = f" ({clip(view.stop.given_reason, 120)})" if view.stop.given_reason else ""
    if view.stop.source == "timeout":
        return f"Timed out{reason}"
    sources = {**_SOURCES, "parent": f"the end of the {writer}"}
    return f"Stopped by {sources.get(view.stop.source, view.stop.source)}{reason}"


def folds(agent: AgentView) -> str:
    """Return how many times an agent's conversation was folded, such as "folded ×2", or ""."""
    number = len(agent.folds)
    return "" if not number else "folded" if number == 1 else f"folded ×{number}"


def fold_line(fold: FoldView) -> str:
    """Return how much a fold replaced and what it cost."""
    written = f"summary {dollars(fold.cost)}".strip() if fold.summary else "no summary"
    parts = [
        f"{fold.before:,} → {token_count(fold.after)}",
        count_any(fold.parts, "tool result"),
        "no model call" if fold.level == "results" else written,
    ]
    return " · ".join(filter(None, parts))


def agent_state(agent: AgentView) -> str:
    """Return an agent's state as text, such as "answered · voted for ben"."""
    if agent.outcome == "never started" and not agent.answers:
        return "never started"
    if agent.caller and agent.outcome == "finished":
        return "complete"
    parts = []
    if agent.answers:
        number = len(agent.answers)
        parts.append("answered" if number == 1 else f"answered ×{number}")
    else:
        parts.append("no answer yet")
    if agent.error:
        parts.append("failed")
    if agent.folds:
        parts.append(folds(agent))
    if agent.vote:
        parts.append(f"voted for {agent.vote.target}")
    elif agent.answers:
        parts.append("no vote yet")
    if words := len(agent.unsubmitted.split()):
        length = count(words, "word")
        was_cut = (agent.partial + agent.partial_call).strip()
        parts.append(f"was writing ({length} so far)" if was_cut else f"{length} not submitted")
    return " · ".join(parts)


def session_row(session: Session) -> tuple[str, ...]:
    """Return a session's row: name, turns, state, last use, tokens, cost and task."""
    last = session.turns[-1].view
    agents = [a for turn in session.turns for a in turn.view.agents.values()]
    # A turn without a journal and a receipt has neither tokens nor cost.
    is_known = any(turn.view.seq for turn in session.turns) or any(a.tokens for a in agents)
    costs = [total_cost(turn.view) for turn in session.turns]
    known_costs = [c for c in costs if c is not None]
    return (
        session.path.name,
        _turns(session),
        session.turns[-1].state,
        when(last.last_at or last.ended_at or 0.0),
        token_count(sum(a.tokens for a in agents)) if is_known else "unknown",
        dollars(sum(known_costs)) if is_known and len(known_costs) == len(costs) else "unknown",
        clip(last.task, 60),
    )


def _turns(session: Session) -> str:
    """Return the number of turns, and the rewinds as ``TURN↩TURN@EVENT``."""
    rewinds = (
        f"{turn.paths.number}↩{turn.view.resumes}@{turn.view.point}"
        for turn in session.turns
        if turn.view.point
    )
    return " ".join([str(len(session.turns)), *rewinds])


def shown_path(path: Path) -> str:
    """Return a path, relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
