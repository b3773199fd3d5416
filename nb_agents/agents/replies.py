"""Turn the replies of one agent in one round into a decision, or another request.

Replies that decide nothing are counted, and limited: refused ones, and truncated ones, whose
partial answer is kept until it is complete. A reply that its provider paused, while its own tools
run long, is sent back unchanged to be continued. Images that a provider made become files of the
workspace, and the conversation holds their names: the journal holds no image, and a resumed run
requests none again.

Source: https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (`pause_turn`);
pydantic-ai's agents join such replies in the same way (`models/_continuation.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import CancelScope

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.decisions import (
    Abstention,
    Answered,
    Offer,
    Reading,
    RoundContext,
    judged,
    read_call,
    read_plain,
)
from nb_agents.agents.stream_buffer import Cut, cut_message, cut_of, join, marked
from nb_agents.agents.voting import MAX_REJECTED_TURNS
from nb_agents.config.decision_tools import ANSWER
from nb_agents.errors import ModelCallError
from nb_agents.models.backend import ending_of
from nb_agents.tools.base import ToolError

if TYPE_CHECKING:
    from pydantic_ai.messages import FilePart, ModelMessage, ModelResponse, ModelResponsePart

    from nb_agents.agents.replay import Exchange
    from nb_agents.agents.runner import Round

MAX_CUTS = 10
"""Replies of one round that may be cut off: with so many pieces an answer is taken as it is."""
MAX_EMPTY_CUTS = 3
"""Limit of consecutive replies without any part of an answer."""
MAX_PLAIN = 2
"""Times that plain text is refused to a model that calls no tool."""


class Replies:
    """The replies of one agent in one round.

    Args:
        round: The round.
        model: The model's name.
        calls_tools: Whether the model can call a tool; else its text is taken at once.
    """

    def __init__(self, round: Round, model: str, *, calls_tools: bool) -> None:
        self._agent = round.agent
        self._model = model
        self._context = round.context
        self._emit = round.emit
        self._rejected = 0
        self._plain = 0 if calls_tools else MAX_PLAIN
        self._cuts = 0
        self._empty_cuts = 0
        self._kept = ""

    def read(self, exchange: Exchange, offer: Offer) -> Reading:
        """Read what a reply decides; one that decided nothing before stays so.

        Args:
            exchange: The reply.
            offer: What the agent was offered.
        """
        if exchange.is_known:
            return Reading(None, exchange.complaint)
        offer = replace(offer, text_counts=self._takes_text(offer))
        if cut := cut_of(exchange.response, text_counts=offer.text_counts):
            return self._read_cut(cut, offer)
        reading = read_response(exchange.response, self._context, offer, self._kept)
        if not _is_plain(exchange.response) or reading.decision is not None:
            return reading
        if offer.text_stands_for == "no vote" and self._plain >= MAX_PLAIN:
            return Reading(Abstention())
        if offer.text_stands_for == "answer" and self._plain == MAX_PLAIN - 1:
            return reading._replace(complaint=f"{reading.complaint} {prompts.TAKEN_AS_TEXT}")
        return reading

    def _takes_text(self, offer: Offer) -> bool:
        stands = offer.text_stands_for == "answer" and self._plain >= MAX_PLAIN
        return offer.text_counts or stands or bool(self._kept)

    def _read_cut(self, cut: Cut, offer: Offer) -> Reading:
        kept = join(self._kept, cut.text)
        if cut.text and self._cuts + 1 >= MAX_CUTS:
            answer = marked(kept, cut)
            if not self._context.judge_answer(answer):
                return Reading(Answered(answer), cut=cut)
        # A call's result tells it itself.
        complaint = "" if cut.call >= 0 else cut_message(cut, kept, offer.names)
        return Reading(None, complaint, cut=cut, kept=kept)

    def refuse(self, response: ModelResponse) -> None:
        """Raise if the reply is a refusal to answer.

        Raises:
            ModelCallError: It is.
        """
        end = ending_of(response)
        if end.kind == "refused":
            reason = f" ({end.reason})" if end.reason else ""
            words = f" It said: {end.words}" if end.words else ""
            raise ModelCallError(self._model, f"It refused to answer{reason}.{words}")

    def recall(self, exchange: Exchange) -> None:
        """Count a reply from before a resume."""
        if exchange.kept is not None:
            self._count_cut(exchange.kept)
        elif exchange.complaint:
            self._count_rejected(exchange.response)
        else:
            self._empty_cuts = 0

    def settle(self, exchange: Exchange, reading: Reading, offer: Offer) -> None:
        """Record the outcome of a reply.

        Args:
            exchange: The reply.
            reading: What `read` said of it.
            offer: What the agent was offered.

        Raises:
            ModelCallError: Too many replies decided nothing.
        """
        if reading.decision is not None:
            self._tell_people(exchange.response, reading, offer)
        elif exchange.is_known:
            self.recall(exchange)
        elif reading.cut is not None:
            self._count_cut(reading.kept)
            self._tell_cut(exchange.call, reading, reading.cut)
        elif reading.complaint:
            self._count_rejected(exchange.response)
            self._tell_rejected(reading)
        else:
            self._empty_cuts = 0
        self._check(reading)

    def _count_cut(self, kept: str) -> None:
        self._cuts += 1
        self._empty_cuts = self._empty_cuts + 1 if kept == self._kept else 0
        self._kept = kept

    def _count_rejected(self, response: ModelResponse) -> None:
        self._rejected += 1
        self._plain += _is_plain(response)

    def _tell_cut(self, call: int, reading: Reading, cut: Cut) -> None:
        self._emit(
            ev.ReplyCut(
                agent=self._agent, call=call, told=reading.complaint, kept=reading.kept, by=cut.by
            )
        )
        if self._cuts == 1:
            self._notice(f"{self._agent}'s reply was cut off {cut.by}; it goes on.")

    def _tell_rejected(self, reading: Reading) -> None:
        why, fault = reading.complaint, reading.fault
        self._emit(ev.TurnRejected(agent=self._agent, why=why, attempt=self._rejected, fault=fault))

    def _tell_people(self, response: ModelResponse, reading: Reading, offer: Offer) -> None:
        """Emit a notice about a reply that is not as expected."""
        if reading.cut is not None:
            self._notice(f"{self._agent}'s answer is not whole: it was cut off {reading.cut.by}.")
        elif _is_plain(response) and isinstance(reading.decision, Abstention):
            self._notice(f"{self._agent} calls no tool, and so does not vote. Its answer stands.")
        elif _is_plain(response) and not offer.text_counts and self._plain >= MAX_PLAIN:
            self._notice(f"{self._agent} calls no tool: its text was taken as its answer.")

    def _notice(self, text: str) -> None:
        self._emit(ev.Noticed(text=text))

    def _check(self, reading: Reading) -> None:
        if reading.decision is not None:
            return
        if self._empty_cuts >= MAX_EMPTY_CUTS or self._cuts >= MAX_CUTS:
            by = f" {reading.cut.by}" if reading.cut else ""
            raise ModelCallError(
                self._model,
                f"{self._cuts} of its replies were cut off{by}, before an answer.",
            )
        if self._rejected >= MAX_REJECTED_TURNS:
            last = f" The last time {reading.fault}." if reading.fault else ""
            raise ModelCallError(
                self._model, f"It gave no answer that counts in {self._rejected} tries.{last}"
            )


def _is_plain(response: ModelResponse) -> bool:
    return not response.tool_calls and bool((response.text or "").strip())


MAX_PAUSES = 10
"""In one reply: a model that never ends it must end somewhere. As pydantic-ai's agents have it."""


def is_paused(message: ModelMessage) -> bool:
    """Return whether a message is a reply that its provider paused."""
    return message.kind == "response" and message.state == "suspended"


def joined(messages: list[ModelMessage], response: ModelResponse) -> ModelResponse:
    """Join a reply to the paused one that it continues, which is removed from the conversation.

    Args:
        messages: The conversation.
        response: The reply.

    Returns:
        The reply from its beginning; its usage is that of its last part.
    """
    before = messages[-1]
    if before.kind != "response" or not is_paused(before):
        return response
    messages.pop()
    details = {**(before.provider_details or {}), **(response.provider_details or {})}
    parts = [*before.parts, *response.parts]
    return replace(response, parts=parts, provider_details=details or None)


Keep = Callable[[str, bytes], Awaitable[None]]
"""Writes a file into the agent's workspace, or raises ToolError."""

FOLDER = "images"
_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


async def with_images_kept(response: ModelResponse, call: int, keep: Keep | None) -> ModelResponse:
    """Write the images of a reply into files, and put their names in their place.

    Args:
        response: The reply.
        call: The agent's number of the request, for the names.
        keep: Writes a file; None without a workspace.
    """
    from pydantic_ai.messages import FilePart, TextPart

    if not response.files:
        return response
    parts: list[ModelResponsePart] = []
    number = 0
    for part in response.parts:
        if not isinstance(part, FilePart):
            parts.append(part)
            continue
        number += 1
        with CancelScope(shield=True):  # it is paid for
            parts.append(TextPart(await _kept(part, f"{call}_{number}", keep)))
    return replace(response, parts=parts)


async def _kept(part: FilePart, name: str, keep: Keep | None) -> str:
    kind, data = part.content.media_type, part.content.data
    if keep is None or kind not in _ENDINGS:
        return f"[A file of type {kind[:50]} was made, and is not kept.]"
    path = f"{FOLDER}/{name}.{_ENDINGS[kind]}"
    try:
        await keep(path, data)
    except ToolError as exc:
        return f"[An image was made, and is not kept: {exc}.]"
    return f"[The image that was made is the file {path} of the workspace, {len(data)} bytes.]"


def read_response(
    response: ModelResponse, context: RoundContext, offer: Offer, kept: str = ""
) -> Reading:
    """Read the answer or vote out of a response.

    Args:
        response: The model's message; of several answers or votes the last one counts.
        context: Judges it.
        offer: What the model was offered.
        kept: The answer so far, of replies that were cut off.

    Returns:
        The decision, or why there is none.
    """
    deciding = [c for c in response.tool_calls if c.tool_name in offer.decisions]
    if len({call.tool_name for call in deciding}) > 1 and not offer.judges:
        return Reading(None, prompts.BOTH, "it answered and voted at once")
    if deciding:
        return read_call(deciding[-1].tool_name, deciding[-1].args, context, kept)
    if offer.judges:
        return Reading(None) if response.tool_calls else read_plain(response.text or "", offer)
    if response.tool_calls:
        return Reading(None)
    text = response.text or ""
    if offer.text_counts and text.strip():
        return judged(join(kept, text).strip(), context)
    return read_plain(text, offer)


def has_refused_answer(response: ModelResponse, complaint: str) -> bool:
    """Return whether a response holds a complete answer that was refused with ``complaint``."""
    answered = any(call.tool_name == ANSWER.name for call in response.tool_calls)
    malformed = ("", prompts.BOTH, prompts.UNREADABLE, prompts.EMPTY)
    return answered and complaint not in malformed
