"""Wording that panels, cards and lists share. Pure functions."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nb_agents.nouns import count
from nb_agents.session.history import Session
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import AgentView, RunView
from nb_agents.view.steps import GateView

if TYPE_CHECKING:
    from nb_agents.sweeps.prune import Pruned, PruneSpec

_SOURCES = {
    "widget": "you",
    "interrupt": "you (interrupt)",
    "notebook": "the program that ran the notebook (its time limit, or an interrupt)",
    "api": "you (run.stop)",
    "magic": "you (%agents stop)",
    "rest": "the HTTP interface",
    "cli": "the command line",
    "budget": "the budget",
    "approval": "an approval gate",
}

STOPPING = "Stopping… (after current LLM call completes)"
STOPPING_RECIPE = "Stopping… (after the steps in hand)"
STOPPING_NOW = "Stopping now…"


def chip(view: RunView) -> str:
    """Return the text of the status chip."""
    if view.state == "stopping" and view.stop:
        if view.stop.level == "immediate":
            return STOPPING_NOW
        return STOPPING_RECIPE if view.recipe else STOPPING
    if view.is_paused:
        return "paused"
    if view.status == "awaiting":
        wanted = {gate.wants for gate in view.gates.values()}
        return "awaiting an answer" if wanted == {"input"} else "awaiting approval"
    is_presenting = view.state == "running" and view.phase == "presenting"
    return "presenting" if is_presenting else view.state


def waits_for(view: RunView) -> str:
    """Return what a stopping run waits for, and until when; "" for any other."""
    stop = view.stop
    if view.state != "stopping" or stop is None:
        return ""
    if stop.level == "immediate":
        return "Stopping now: what is in flight is cut, and what it wrote is kept."
    why = f"{stop.reason[:1].upper()}{stop.reason[1:]}" if stop.source == "timeout" else "Stopping"
    until = ""
    if stop.grace_s is not None:
        at = datetime.fromtimestamp(stop.requested_at + stop.grace_s)
        until = f" until {at:%H:%M:%S}; what is left then is cut"
    return f"{clip(why, 120)}: waits for {_in_hand(view)}{until}. All is kept."


def _in_hand(view: RunView) -> str:
    """Return the calls, tools and steps that a graceful stop lets come to their end."""
    busy = [
        step.address
        for step in view.steps.values()
        if step.unit == "bash" and step.status == "running"
    ]
    busy += [a.id for a in view.agents.values() if a.in_flight or a.phase == "tool"]
    return clip(", ".join(busy), 120) if busy else "its files to be written"


def elapsed(view: RunView, now: float) -> tuple[str, float]:
    """Return the time used in MassGen's wording, and the fraction of the timeout (0 to 1)."""
    used = max(0.0, (view.ended_at or now) - view.started_at)
    if not view.timeout_s:
        return f"Elapsed: {used:.0f}s", 0.0
    fraction = min(1.0, used / view.timeout_s)
    return f"Elapsed: {used:.0f}s / {view.timeout_s:.0f}s ({fraction:.0%})", fraction


def progress(view: RunView) -> str:
    """Return how far the turn is: a team's round, the step of a recipe."""
    if not view.recipe:
        attempt = f" · attempt {view.attempt}" if view.attempt > 1 else ""
        return f"Round: {view.round}/∞{attempt}"
    steps = _outermost(view)
    if not steps:
        return view.current_step
    begun = sum(1 for step in steps if step in view.steps)
    return f"Step {max(begun, 1)} of {len(steps)}"


def done(view: RunView) -> float:
    """Return the fraction of a recipe's own steps that are over (0 to 1)."""
    steps = _outermost(view)
    over = sum(1 for step in steps if step in view.steps and view.steps[step].is_over)
    return over / len(steps) if steps else 0.0


def _outermost(view: RunView) -> list[str]:
    return [unit.address for unit in view.outlines.get("", ()) if unit.unit != "stage"]


def countdown(gate: GateView, now: float) -> str:
    """Return what happens to an open gate when nobody decides."""
    if not gate.timeout_s:
        return f"waits until it is {'answered' if gate.wants == 'input' else 'decided'}"
    left = max(0.0, gate.asked_at + gate.timeout_s - now)
    return f"{seconds(left)}, then {'approved' if gate.default == 'approve' else 'denied'}"


def duration(view: RunView) -> str:
    """Return how long the turn took, in words, or ""."""
    if not view.started_at:
        return ""
    return seconds(max(0.0, (view.ended_at or view.last_at) - view.started_at))


def seconds(duration_s: float) -> str:
    """Return a time in words."""
    minutes, rest = divmod(round(duration_s), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def when(at: float) -> str:
    """Return a moment in local time; "" when it is unknown or out of range."""
    try:
        return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}" if at else ""
    except (ValueError, OverflowError, OSError):
        return ""


def tokens(number: int) -> str:
    """Return a number of tokens, digits in groups of three."""
    return f"{number:,}".replace(",", "\N{NO-BREAK SPACE}") + " tok"


def cost(dollars: float | None) -> str:
    """Return a price, or "" when it is unknown: an unknown price is never shown as 0."""
    if dollars is None:
        return ""
    return "<$0.001" if 0 < dollars < 0.0005 else f"${dollars:.3f}"


def spent(view: RunView) -> str:
    """Return the tokens and price of a turn; "" when no journal or receipt has them."""
    used = view.tokens
    if not view.seq and not used:
        return ""
    price = cost(total_cost(view)) if used else ""
    cut = any(a.outcome == "killed" for a in view.agents.values())
    return " · ".join(p for p in (tokens(used), price) if p) + (
        " (calls that were cut not counted)" if cut else ""
    )


def size(size_bytes: float) -> str:
    """Return a file's size in words."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    units = iter(("kB", "MB", "GB", "TB"))
    while size_bytes >= 1000 and (unit := next(units, "")):
        size_bytes, named = size_bytes / 1000, unit
    return f"{size_bytes:.1f} {named}"


def older(number: int) -> str:
    """Return a sentence about the sessions that a list leaves out, or ""."""
    return f"{count(number, 'older session')} not listed: --all lists all." if number else ""


def pruned(done: Pruned, spec: PruneSpec) -> str:
    """Return what pruning removed, or would remove, and what it kept and why."""
    what = f"{count(done.sessions, 'session')} and {count(done.rows, 'row')} of sweeps"
    if spec.keep_answers:
        what = f"all but the answers of {what}"
    verb = "Would remove" if spec.is_dry_run else "Removed"
    said = [f"{verb} {what} ({count(done.files, 'file')}, {size(done.size_bytes)})."]
    if done.incomplete:
        said.append(
            f"Left: {done.incomplete} incomplete, as they can be resumed; --incomplete takes them."
        )
    if done.live:
        said.append(f"Left: {done.live} at work.")
    if done.not_noted:
        rows = count(done.not_noted, "row")
        said.append(f"Left: {rows} whose sweep has not noted the end; the same sweep again does.")
    said += done.unread
    if spec.is_dry_run and done.files:
        said.append("Nothing is removed yet: add --yes.")
    return "\n".join(said)


def count_any(number: int, noun: str) -> str:
    """Return a number with its noun, or "" for none."""
    return count(number, noun) if number else ""


def clip(text: str, limit: int, *, tail: bool = False) -> str:
    """Cut a text to one line of ``limit`` characters, keeping its head or its tail."""
    text = " ".join(text[-2 * limit :].split() if tail else text[: 2 * limit].split())
    if len(text) <= limit:
        return text
    return "…" + text[-limit:] if tail else text[:limit] + "…"


def cut(text: str, limit: int) -> str:
    """Cut a text of many lines to ``limit`` characters."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def votes(view: RunView) -> str:
    """Return the tally, such as "3 votes (critic 2, researcher 1)"."""
    tally = view.votes
    total = sum(tally.values())
    who = ", ".join(f"{a} {n}" for a, n in sorted(tally.items(), key=lambda i: -i[1]))
    return count(total, "vote") + (f" ({who})" if who else "")


def stopped_by(view: RunView, writer: str = "kernel") -> str:
    """Return who stopped the turn, which a `writer` wrote, for the card's first sentence."""
    if view.ending == "killed":
        return f"Cut off when the {writer} died"
    if view.stop is None:
        return "Stopped"
    reason = f" ({clip(view.stop.given_reason, 120)})" if view.stop.given_reason else ""
    if view.stop.source == "timeout":
        return f"Timed out{reason}"
    sources = {**_SOURCES, "parent": f"the end of the {writer}"}
    return f"Stopped by {sources.get(view.stop.source, view.stop.source)}{reason}"


def agent_state(agent: AgentView) -> str:
    """Return an agent's state: answered, voted for whom, partial text, no answer yet."""
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
    if agent.vote:
        parts.append(f"voted for {agent.vote.target}")
    elif agent.answers:
        parts.append("no vote yet")
    if words := len(agent.unsubmitted.split()):
        kept = count(words, "word")
        was_cut = (agent.partial + agent.partial_call).strip()
        parts.append(f"was writing ({kept} kept)" if was_cut else f"{kept} in no answer")
    return " · ".join(parts)


def listed(session: Session) -> tuple[str, ...]:
    """Return the row of a session: its name, turns, state, last use, tokens, cost and task."""
    last = session.turns[-1].view
    agents = [a for turn in session.turns for a in turn.view.agents.values()]
    # A turn without a journal and a receipt has neither.
    is_known = any(turn.view.seq for turn in session.turns) or any(a.tokens for a in agents)
    costs = [total_cost(turn.view) for turn in session.turns]
    known = [c for c in costs if c is not None]
    return (
        session.path.name,
        _turns(session),
        session.turns[-1].state,
        when(last.last_at or last.ended_at or 0.0),
        tokens(sum(a.tokens for a in agents)) if is_known else "unknown",
        cost(sum(known)) if len(known) == len(costs) and any(known) else "unknown",
        clip(last.task, 60),
    )


def _turns(session: Session) -> str:
    """Return how many turns there are, and which of them went back to which."""
    went_back = (
        f"{turn.paths.number}↩{turn.view.resumes}@{turn.view.point}"
        for turn in session.turns
        if turn.view.point
    )
    return " ".join([str(len(session.turns)), *went_back])


def shown_path(path: Path) -> str:
    """Return a directory's path, relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
