"""An agent's transcript: what it wrote, thought, called, answered and voted, from the journal.

A page that shows one asks for what has come since, by the place in the journal where it stands. So
nothing is kept for those who read, and what nobody has opened costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from typing import Any

from nb_agents import events as ev
from nb_agents.presentation import text
from nb_agents.presentation.markdown import harmless
from nb_agents.presentation.panel_types import Piece, PieceKind, Transcript
from nb_agents.session.history import with_past
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths

MAX_RESULT = 20_000
"""Characters of a tool's arguments and of its result; the journal has all of them."""


def read_transcript(paths: TurnPaths, agent: str, after: int = 0) -> Transcript:
    """Return what an agent wrote and did since a place in its turn's journal, blocking.

    Args:
        paths: The turn.
        agent: The agent's id, or the address of a recipe's step.
        after: Where the last answer ended, in bytes; 0 is the beginning, which has also what the
            turns that this one resumed hold.

    Returns:
        About a megabyte of the journal at most.
    """
    reader = JournalReader(paths.journal, at=after)
    events: list[ev.Event] = []
    with suppress(OSError):  # it was deleted
        if not paths.journal.is_file():  # a link may lead to a device
            return {"pieces": [], "end": after, "more": False}
        if after == 0:
            events = _of_past_turns(paths)
        events += reader.read_about(json.dumps(agent).encode())
    own = (e for e in events if agent in (getattr(e, "agent", ""), getattr(e, "step", "")))
    made = harmless({"pieces": pieces(own)})
    return {"pieces": made["pieces"], "end": reader.at, "more": reader.has_news()}


def _of_past_turns(paths: TurnPaths) -> list[ev.Event]:
    first = JournalReader(paths.journal).read_about(b'"turn_started"')[:1]
    return with_past(paths, first)[:-1] if first else []


def pieces(events: Iterable[ev.Event]) -> list[Piece]:
    """Return the pieces of one agent's events, those that continue one another as one."""
    shown = (tell(event) for event in events if (tell := _PIECES.get(type(event))))
    same = (list(each) for _, each in groupby(shown, lambda piece: piece["id"]))
    # Joined at once: added one by one, a long text costs its square.
    return [{**parts[0], "text": "".join(part["text"] for part in parts)} for parts in same]


def _piece(kind: PieceKind, key: object, title: str = "", words: str = "") -> Piece:
    return {"id": f"{kind} {key}", "kind": kind, "title": title, "text": words}


_CHANNELS: dict[ev.Channel, PieceKind] = {
    "text": "text",
    "thinking": "thought",
    "answer": "writing",
    "call": "call",
}


def _tool_started(e: ev.ToolStarted) -> Piece:
    asked = "" if e.args in (None, {}) else json.dumps(e.args, indent=1, ensure_ascii=False)
    title = " ".join(filter(None, [e.tool, e.summary]))
    return _piece("tool", e.call_id, title, text.cut(asked, MAX_RESULT))


def _tool_finished(e: ev.ToolFinished) -> Piece:
    took = f" · {text.seconds(e.seconds)}" if e.seconds >= 1 else ""
    title = f"{e.tool}: {e.outcome}{took}"
    return _piece("output", f"{e.call_id} result", title, text.cut(e.result, MAX_RESULT))


def _ended(e: ev.AgentEnded) -> Piece:
    if e.outcome == "finished":
        return _piece("answer", e.seq, "Result", e.text)
    return _piece("note", e.seq, e.outcome)


def _step_finished(e: ev.StepFinished) -> Piece:
    output = e.output if isinstance(e.output, str) else json.dumps(e.output, default=str)
    return _piece("answer", e.seq, f"Step {e.outcome}", e.why or output or "")


_PIECES: dict[type[ev.Event], Callable[[Any], Piece]] = {
    ev.RoundStarted: lambda e: _piece("note", e.seq, f"Round {e.number}"),
    ev.TextStreamed: lambda e: _piece(_CHANNELS[e.channel], e.call, e.tool, e.text),
    ev.ModelFailed: lambda e: _piece("note", e.seq, "The model call failed", e.error),
    ev.ModelCut: lambda e: _piece("note", e.seq, "The model call was cut"),
    ev.ToolStarted: _tool_started,
    ev.ToolTold: lambda e: _piece("output", "told", "", e.text),
    ev.ToolFinished: _tool_finished,
    ev.AnswerGiven: lambda e: _piece("answer", e.seq, "Answer", e.answer),
    ev.FinalAnswerGiven: lambda e: _piece("answer", e.seq, "Final answer", e.answer),
    ev.VoteCast: lambda e: _piece("vote", e.seq, f"Voted for {e.target}", e.reason),
    ev.VoteIgnored: lambda e: _piece("note", e.seq, f"Its vote for {e.target} did not count"),
    ev.TurnRejected: lambda e: _piece("note", e.seq, "Asked to try again", e.fault or e.why),
    ev.RoundTimedOut: lambda e: _piece("note", e.seq, f"Its round's {e.limit_s:g} s were over"),
    ev.AgentFailed: lambda e: _piece("note", e.seq, "Failed", e.error),
    ev.AgentEnded: _ended,
    ev.PresentationStarted: lambda e: _piece("note", e.seq, "Presents the team's answer"),
    ev.OutputStreamed: lambda e: _piece("output", "told", "", e.text),
    ev.StepFailed: lambda e: _piece("note", e.seq, "Failed", e.error),
    ev.StepFinished: _step_finished,
}
