"""The conversation of a round, whose older parts can be folded to fit a context window.

A fold changes only what requests contain. The journal keeps the full text, and a fold is an event
(`ContextFolded`), so a resume continues with the same folded conversation, and a rewind to a point
before the fold has the full one. `History.shown` is the only function that turns exchanges and
folds into messages. New, resumed and rewound rounds all use it.

There are two levels of folding. The first one replaces each old tool result with a line that
describes it. The second one replaces whole exchanges with a ledger of their calls and a summary.
The opening (system prompt and task), notes (the user's messages, other agents' answers), the latest
exchanges, and calls without a result are never folded. All of this is pure.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nb_agents import events as ev

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart

MIN_FOLDED_CHARS = 400
"""Results up to this length are not folded, because a line about them would be as long."""

EXCERPT_CHARS = 1000
"""Characters shown from the beginning and the end of a large result that was folded early."""

MAX_LEDGER_CHARS = 12_000
"""Maximum length of the ledger in the conversation, in characters.

`read_back` returns all of it.
"""

MAX_ARGUMENT_CHARS = 120
"""Maximum length of a call's arguments in the ledger, in characters."""

LEDGER = "ledger"
"""The reference with which `read_back` returns the whole ledger."""


@dataclass(frozen=True)
class Segment:
    """A finished exchange in the conversation.

    Attributes:
        number: Its number in the round, starting at 1. Unlike the number of the model request, it
            does not depend on repeated requests.
        messages: The response, the results of its tool calls, and notes, in this order.
        notes: The notes, which are never folded.
    """

    number: int
    messages: tuple[ModelMessage, ...]
    notes: tuple[str, ...] = ()

    @property
    def response(self) -> ModelResponse:
        """The model's response."""
        response = self.messages[0]
        assert response.kind == "response"
        return response

    @property
    def results(self) -> dict[str, ToolReturnPart]:
        """The results of the tool calls by reference, such as "7.1" for the first one."""
        parts = (part for message in self.messages[1:] for part in message.parts)
        returned = (part for part in parts if part.part_kind == "tool-return")
        return {f"{self.number}.{n}": part for n, part in enumerate(returned, 1)}

    @property
    def text(self) -> str:
        """The text of the response."""
        return (self.response.text or "").strip()


class History:
    """The conversation of a round.

    Args:
        opening: The first messages: the system prompt, the task, and notes before the first reply.
        folds: The folds of the interrupted part of the round, in order.
    """

    def __init__(
        self, opening: Iterable[ModelMessage], folds: Iterable[ev.ContextFolded] = ()
    ) -> None:
        self._opening = list(opening)
        self._segments: list[Segment] = []
        self._folds = list(folds)
        self.paused: ModelResponse | None = None

    @property
    def segments(self) -> Sequence[Segment]:
        """The finished exchanges, unfolded."""
        return self._segments

    @property
    def unfoldable(self) -> list[ModelMessage]:
        """The messages that are never folded: the system prompt, the task, and notes."""
        notes = (note for each in self._segments for note in each.notes)
        return [*self._opening, *map(user_message, notes)]

    @property
    def is_folded(self) -> bool:
        """Whether any part of the conversation is folded."""
        return bool(self._folds)

    @property
    def folds(self) -> Sequence[ev.ContextFolded]:
        """All folds of the conversation, in order."""
        return self._folds

    def add(self, messages: Iterable[ModelMessage], notes: Iterable[str]) -> None:
        """Append a finished exchange.

        Args:
            messages: The response and the results of its tool calls.
            notes: Notes for the next request.
        """
        self.paused = None
        self._segments.append(Segment(len(self._segments) + 1, tuple(messages)))
        for note in filter(None, notes):
            self.add_note(note)

    def add_note(self, note: str) -> None:
        """Append text to the next request."""
        message = user_message(note)
        if not self._segments:
            self._opening.append(message)
            return
        last = self._segments[-1]
        self._segments[-1] = replace(
            last, messages=(*last.messages, message), notes=(*last.notes, note)
        )

    def fold(self, event: ev.ContextFolded) -> None:
        """Fold a part of the conversation according to an event."""
        self._folds.append(event)

    def shown(self, more: Iterable[ev.ContextFolded] = ()) -> list[ModelMessage]:
        """Return the messages of the next request.

        Args:
            more: Additional folds to apply, to find out their effect.
        """
        folds = [*self._folds, *more]
        last = next((each for each in reversed(folds) if each.level == "summary"), None)
        until = last.until if last else 0
        folded = {each for fold in folds for each in fold.references}
        excerpts = {each for fold in folds for each in fold.excerpts}
        messages = list(self._opening)
        if last is not None:
            messages.append(user_message(_summary_text(last)))
            notes = (note for each in self._segments if each.number <= until for note in each.notes)
            messages += map(user_message, notes)
        for segment in self._segments:
            if segment.number > until:
                messages += _without_results(segment, folded, excerpts)
        return [*messages, self.paused] if self.paused is not None else messages

    def read_back(self, reference: str) -> str | None:
        """Return the full text of a folded part, or None if there is no such part.

        Args:
            reference: A tool call such as "7.1", a reply such as "7", or "ledger".
        """
        if reference == LEDGER:
            return "\n".join(ledger_lines(self._segments))
        for segment in self._segments:
            if reference == str(segment.number):
                return segment.text or "(The reply has no text.)"
            if (result := segment.results.get(reference)) is not None:
                return result.model_response_str()
        return None


@dataclass(frozen=True)
class FoldPlan:
    """A plan for a fold: the parts that it would replace.

    Attributes:
        level: "results" folds tool results, "summary" whole exchanges.
        until: The number of the last exchange that is folded as a whole, or 0.
        references: The tool results to fold.
        excerpts: Those results whose beginning and end stay visible.
        ledger: The calls of the folded exchanges, one per line.
    """

    level: Literal["results", "summary"]
    until: int = 0
    references: tuple[str, ...] = ()
    excerpts: tuple[str, ...] = ()
    ledger: str = ""


def plan_results(history: History, keep: int) -> FoldPlan | None:
    """Return a plan to fold the tool results of all but the latest exchanges.

    Args:
        history: The conversation.
        keep: The number of latest exchanges whose results are not folded.

    Returns:
        The plan, or None if there is nothing to fold.
    """
    old = history.segments[: max(0, len(history.segments) - keep)]
    references = tuple(_foldable(history, old))
    return FoldPlan("results", references=references) if references else None


def plan_large_results(history: History, limit_bytes: int) -> FoldPlan | None:
    """Return a plan to fold single results that are too large, even if they are recent.

    Args:
        history: The conversation.
        limit_bytes: The size in bytes above which a result is folded.
    """
    references = tuple(
        reference
        for reference in _foldable(history, history.segments)
        if len((history.read_back(reference) or "").encode()) > limit_bytes
    )
    if not references:
        return None
    return FoldPlan("results", references=references, excerpts=references)


def plan_summary(
    history: History, keep: int, ledger_chars: int = MAX_LEDGER_CHARS
) -> FoldPlan | None:
    """Return a plan to replace all but the latest exchanges with a ledger and a summary.

    Args:
        history: The conversation.
        keep: The number of latest exchanges that are not folded.
        ledger_chars: Maximum length of the ledger in characters.

    Returns:
        The plan, or None if there is nothing more to fold.
    """
    old = history.segments[: max(0, len(history.segments) - keep)]
    done = max((fold.until for fold in history.folds), default=0)
    if not old or old[-1].number <= done:
        return None
    references = tuple(_foldable(history, old))
    return FoldPlan("summary", old[-1].number, references, ledger=_ledger(old, ledger_chars))


def _foldable(history: History, segments: Iterable[Segment]) -> Iterator[str]:
    """Yield the references of long results that are not folded yet."""
    folded = {each for fold in history.folds for each in fold.references}
    for segment in segments:
        for reference, result in segment.results.items():
            if reference not in folded and len(result.model_response_str()) > MIN_FOLDED_CHARS:
                yield reference


def ledger_lines(segments: Iterable[Segment]) -> list[str]:
    """Return the lines of a ledger: one for each tool call and each text written by the agent."""
    return [line for segment in segments for line in _lines_of(segment)]


def result_lines(segments: Iterable[Segment], references: Container[str], limit: int) -> str:
    """Return the lines of a ledger for these tool results, of limited length."""
    calls = (each for segment in segments for each in _call_lines(segment))
    return _limited([line for line in calls if line.partition(" ")[0] in references], limit)


def _lines_of(segment: Segment) -> Iterator[str]:
    if text := " ".join(segment.text.split()):
        yield f"{segment.number} you wrote: {shorten(text, 2 * MAX_ARGUMENT_CHARS)}"
    yield from _call_lines(segment)


def _call_lines(segment: Segment) -> Iterator[str]:
    results = segment.results
    for number, call in enumerate(segment.response.tool_calls, 1):
        reference = f"{segment.number}.{number}"
        args = call.args if isinstance(call.args, str) else json.dumps(call.args or {})
        returned = results.get(reference)
        size = len(returned.model_response_str()) if returned else 0
        args = _without_middle(" ".join(args.split()), MAX_ARGUMENT_CHARS)
        yield f"{reference} {call.tool_name} {args}: {size:,} characters"


def _ledger(segments: Iterable[Segment], limit: int) -> str:
    """Return a ledger of limited length. The latest lines are complete."""
    return _limited(ledger_lines(segments), limit)


def _limited(lines: list[str], limit: int) -> str:
    size, first = 0, len(lines)
    while first and (size := size + len(lines[first - 1]) + 1) <= limit:
        first -= 1
    head = [f'({first} earlier lines: read_back("{LEDGER}"))'] if first else []
    return "\n".join([*head, *lines[first:]])


def shorten(text: str, limit: int) -> str:
    """Return the beginning of a text that is longer than a limit."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _without_middle(text: str, limit: int) -> str:
    """Shorten arguments in the middle, because paths often differ only at the end."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[: limit - half - 1]}…{text[-half:]}"


def _summary_text(fold: ev.ContextFolded) -> str:
    parts = [
        "Earlier parts of this conversation were folded to save space. Your work so far, one line "
        "for each tool call. To see a full result, call read_back with the reference at the start "
        "of its line.",
        fold.ledger,
    ]
    if fold.summary:
        parts += ["Your summary of that work:", fold.summary]
    return "\n\n".join(parts)


def _without_results(
    segment: Segment, folded: set[str], excerpts: set[str]
) -> Iterator[ModelMessage]:
    """Yield the messages of a segment, with each folded result replaced with a line."""
    numbered = segment.results
    if folded.isdisjoint(numbered):
        yield from segment.messages
        return
    by_id = {
        part.tool_call_id: _folded_result(reference, part, reference in excerpts)
        for reference, part in numbered.items()
        if reference in folded
    }
    for message in segment.messages:
        if message.kind == "request":
            parts = [
                by_id.get(part.tool_call_id, part) if part.part_kind == "tool-return" else part
                for part in message.parts
            ]
            yield replace(message, parts=parts)
        else:
            yield message


def _folded_result(reference: str, result: ToolReturnPart, has_excerpt: bool) -> ToolReturnPart:
    text = result.model_response_str()
    line = f'[Folded: {len(text):,} characters. read_back("{reference}") returns them.]'
    if has_excerpt and len(text) > 2 * EXCERPT_CHARS:
        line = f"{text[:EXCERPT_CHARS]}\n{line}\n{text[-EXCERPT_CHARS:]}"
    return replace(result, content=line, metadata=None)


def user_message(text: str) -> ModelMessage:
    """Return a user message with this text."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    return ModelRequest(parts=[UserPromptPart(content=text)])
