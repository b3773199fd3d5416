"""Reads an agent's transcript from the journal: text, reasoning, calls, answers and votes.

A page that shows a transcript requests the parts after a journal position. So the server keeps no
state per reader, and only reads transcripts that somebody opens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby

from nb_agents import events as ev
from nb_agents.presentation import text
from nb_agents.presentation.markdown import sanitize
from nb_agents.presentation.panel_types import Piece, PieceKind, Transcript
from nb_agents.session.history import with_resumed_events
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.view.fold import fold_view

MAX_RESULT = 20_000
"""Maximum length of a tool's arguments and result, in characters. The journal has all of it."""


def read_transcript(paths: TurnPaths, agent: str, after: int = 0) -> Transcript:
    """Return the parts of an agent's transcript after a journal position. Blocks.

    Args:
        agent: The agent's id, or the address of a recipe's step.
        after: The `end` of the previous transcript, in bytes. 0 starts at the beginning, with the
            turns that this turn resumed.

    Returns:
        The parts from at most about a megabyte of the journal.
    """
    reader = JournalReader(paths.journal, at=after)
    events: list[ev.Event] = []
    with suppress(OSError):  # the journal may have been deleted
        if after == 0:
            events = _of_past_turns(paths)
        events += reader.read_about(json.dumps(agent).encode())
    own = (e for e in events if agent in (getattr(e, "agent", ""), getattr(e, "step", "")))
    safe = sanitize({"pieces": pieces(own)})
    return {"pieces": safe["pieces"], "end": reader.at, "more": reader.has_news()}


def _of_past_turns(paths: TurnPaths) -> list[ev.Event]:
    first = JournalReader(paths.journal).read_about(b'"turn_started"')[:1]
    return with_resumed_events(paths, first)[:-1] if first else []


Pieces = tuple[Piece, ...]
TRANSCRIPT: ev.Fold[Pieces] = ev.Fold("transcript")
"""The parts that an event adds to its agent's transcript."""


def pieces(events: Iterable[ev.Event]) -> list[Piece]:
    """Return the transcript parts of an agent's events.

    Consecutive parts with the same id are joined.
    """
    transcript = (piece for event in events for piece in TRANSCRIPT.apply((), event))
    same = (list(each) for _, each in groupby(transcript, lambda piece: piece["id"]))
    # Appending one by one would take quadratic time for long texts.
    return [{**parts[0], "text": "".join(part["text"] for part in parts)} for parts in same]


def _piece(kind: PieceKind, key: object, title: str = "", words: str = "") -> Piece:
    return {"id": f"{kind} {key}", "kind": kind, "title": title, "text": words}


_CHANNELS: dict[ev.Channel, PieceKind] = {
    "text": "text",
    "thinking": "thought",
    "answer": "writing",
    "call": "call",
}


@TRANSCRIPT.on(ev.RoundStarted)
def _round_started(_: Pieces, e: ev.RoundStarted) -> Pieces:
    return _note(e, f"Round {e.number}")


@TRANSCRIPT.on(ev.TextStreamed)
def _text_streamed(_: Pieces, e: ev.TextStreamed) -> Pieces:
    return (_piece(_CHANNELS[e.channel], e.call, e.tool, e.text),)


@TRANSCRIPT.on(ev.ModelFailed)
def _model_failed(_: Pieces, e: ev.ModelFailed) -> Pieces:
    return _note(e, "The model call failed", e.error)


@TRANSCRIPT.on(ev.ModelCut)
def _model_cut(_: Pieces, e: ev.ModelCut) -> Pieces:
    return _note(e, "The model call was interrupted")


@TRANSCRIPT.on(ev.ModelBatched)
def _model_batched(_: Pieces, e: ev.ModelBatched) -> Pieces:
    return _note(e, f"Sent in batch {e.batch}") if e.batch else ()


@TRANSCRIPT.on(ev.ContextFolded)
def _context_folded(_: Pieces, e: ev.ContextFolded) -> Pieces:
    fold = fold_view(e)
    # Folds of results had no ledger in earlier versions.
    references = f"Folded tool results: {', '.join(e.references)}." if e.references else ""
    parts = filter(None, [e.summary, e.ledger or references])
    title = f"Conversation folded: {text.fold_line(fold)}"
    return (_piece("output", f"fold {e.seq}", title, text.cut("\n\n".join(parts), MAX_RESULT)),)


@TRANSCRIPT.on(ev.ToolStarted)
def _tool_started(_: Pieces, e: ev.ToolStarted) -> Pieces:
    args = "" if e.args in (None, {}) else json.dumps(e.args, indent=1, ensure_ascii=False)
    title = " ".join(filter(None, [e.tool, e.summary]))
    return (_piece("tool", e.call_id, title, text.cut(args, MAX_RESULT)),)


@TRANSCRIPT.on(ev.ToolNotice, ev.OutputStreamed)
def _output(_: Pieces, e: ev.ToolNotice | ev.OutputStreamed) -> Pieces:
    return (_piece("output", "told", "", e.text),)


@TRANSCRIPT.on(ev.ToolFinished)
def _tool_finished(_: Pieces, e: ev.ToolFinished) -> Pieces:
    took = f" · {text.seconds(e.seconds)}" if e.seconds >= 1 else ""
    title = f"{e.tool}: {e.outcome}{took}"
    return (_piece("output", f"{e.call_id} result", title, text.cut(e.result, MAX_RESULT)),)


@TRANSCRIPT.on(ev.AnswerGiven)
def _answer_given(_: Pieces, e: ev.AnswerGiven) -> Pieces:
    return (_piece("answer", e.seq, "Answer", e.answer),)


@TRANSCRIPT.on(ev.FinalAnswerGiven)
def _final_answer_given(_: Pieces, e: ev.FinalAnswerGiven) -> Pieces:
    return (_piece("answer", e.seq, "Final answer", e.answer),)


@TRANSCRIPT.on(ev.VoteCast)
def _vote_cast(_: Pieces, e: ev.VoteCast) -> Pieces:
    return (_piece("vote", e.seq, f"Voted for {e.target}", e.reason),)


@TRANSCRIPT.on(ev.VoteIgnored)
def _vote_ignored(_: Pieces, e: ev.VoteIgnored) -> Pieces:
    return _note(e, f"Its vote for {e.target} did not count")


@TRANSCRIPT.on(ev.TurnRejected)
def _turn_rejected(_: Pieces, e: ev.TurnRejected) -> Pieces:
    return _note(e, "Asked to try again", e.fault or e.why)


@TRANSCRIPT.on(ev.RoundTimedOut)
def _round_timed_out(_: Pieces, e: ev.RoundTimedOut) -> Pieces:
    return _note(e, f"The round timed out after {e.limit_s:g} s")


@TRANSCRIPT.on(ev.AgentFailed, ev.StepFailed)
def _failed(_: Pieces, e: ev.AgentFailed | ev.StepFailed) -> Pieces:
    return _note(e, "Failed", e.error)


@TRANSCRIPT.on(ev.AgentEnded)
def _agent_ended(_: Pieces, e: ev.AgentEnded) -> Pieces:
    if e.outcome == "finished":
        return (_piece("answer", e.seq, "Result", e.text),)
    return _note(e, e.outcome)


@TRANSCRIPT.on(ev.PresentationStarted)
def _presentation_started(_: Pieces, e: ev.PresentationStarted) -> Pieces:
    return _note(e, "Presents the team's answer")


@TRANSCRIPT.on(ev.StepFinished)
def _step_finished(_: Pieces, e: ev.StepFinished) -> Pieces:
    output = e.output if isinstance(e.output, str) else json.dumps(e.output, default=str)
    return (_piece("answer", e.seq, f"Step {e.outcome}", e.why or output or ""),)


def _note(e: ev.Event, title: str, words: str = "") -> Pieces:
    return (_piece("note", e.seq, title, words),)


TRANSCRIPT.ignore(
    ev.Abstained,
    ev.AgentCalled,
    ev.ApprovalAsked,
    ev.ApprovalGiven,
    ev.CommandAnswered,
    ev.ContextChanged,
    ev.Continued,
    ev.ProcessExitChecked,
    ev.FilesSaved,
    ev.FilesListed,
    ev.FoldRequested,
    ev.ModelFinished,
    ev.ModelStarted,
    ev.Noticed,
    ev.OrchestrationRestarted,
    ev.UserFilesSaved,
    ev.Paused,
    ev.AgentStateSaved,
    ev.RecipeLoaded,
    ev.ReplyCut,
    ev.UserMessage,
    ev.SessionBound,
    ev.StepStarted,
    ev.StopRequested,
    ev.NoteSent,
    ev.TurnEnded,
    ev.TurnStarted,
    ev.UsageUpdated,
    ev.WorktreeBased,
)
TRANSCRIPT.check()
