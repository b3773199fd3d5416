"""Turns the replies of one agent in one round into a decision or another request.

The number of replies without a decision is limited. These are rejected replies and truncated ones.
The partial answer in a truncated reply is saved until it is complete. A provider may pause a reply
while its built-in tools run. The paused reply is sent back unchanged to be continued. Generated
images are saved as files in the workspace, and the conversation contains only their names. So the
journal stores no image data, and a resume requests no image twice.

Source: https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (`pause_turn`);
pydantic-ai's agents join such replies in the same way (`models/_continuation.py`).
"""

from __future__ import annotations

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
    read_answer,
    read_call,
    read_plain,
)
from nb_agents.agents.stream_buffer import Cut, cut_message, cut_of, join, mark_incomplete
from nb_agents.agents.voting import MAX_REJECTED_TURNS
from nb_agents.agents.written_calls import written_call
from nb_agents.config.decision_tools import ANSWER, OF_JUDGES, OF_MEMBERS
from nb_agents.errors import ModelCallError
from nb_agents.models.backend import ending_of
from nb_agents.tools.base import ToolError
from nb_agents.tools.policy import WriteImage

if TYPE_CHECKING:
    from pydantic_ai.messages import FilePart, ModelMessage, ModelResponse, ModelResponsePart

    from nb_agents.agents.replay import Exchange
    from nb_agents.agents.runner import Round

MAX_CUTS = 10
"""Maximum number of truncated replies in a round.

After that, the answer is submitted incomplete.
"""
MAX_EMPTY_CUTS = 3
"""Maximum number of consecutive truncated replies that add nothing to the answer."""
MAX_PLAIN = 2
"""How many times plain text is rejected before it counts, if a model calls no tools."""
WRITTEN = "it wrote a tool call as text, which its server should have parsed"


class Replies:
    """The replies of one agent in one round.

    Args:
        model: The model's name.
        calls_tools: Whether the model can call tools. Otherwise, its first plain text counts.
    """

    def __init__(self, round: Round, model: str, *, calls_tools: bool) -> None:
        self._agent = round.agent
        self._model = model
        self._context = round.context
        self._emit = round.emit
        self._rejected = 0
        self._calls_tools = calls_tools
        tools = (tool.name for tool in round.toolbox.tools)
        self._tools = frozenset([*tools, *OF_MEMBERS, *OF_JUDGES])
        self._plain_responses = 0 if calls_tools else MAX_PLAIN
        self._cuts = 0
        self._empty_cuts = 0
        self._answer_so_far = ""

    def read(self, exchange: Exchange, offer: Offer) -> Reading:
        """Parse a reply into a decision. A reply that was rejected earlier is rejected again.

        Args:
            exchange: The exchange with the reply.
            offer: The decisions that the request offered.
        """
        if exchange.is_known:
            return Reading(None, exchange.complaint)
        offer = replace(offer, text_counts=self._takes_text(offer))
        written = self._written_call(exchange.response)
        cut = cut_of(exchange.response, text_counts=offer.text_counts)
        if cut and not written:
            return self._read_cut(cut, offer)
        reading = read_response(exchange.response, self._context, offer, self._answer_so_far)
        if written:
            message = prompts.WRITTEN_CALL if self._calls_tools else prompts.WRITTEN_WITHOUT_TOOLS
            reading = Reading(None, message.format(tool=written), WRITTEN)
        if not _is_plain(exchange.response) or reading.decision is not None:
            return reading
        if offer.text_stands_for == "no vote" and self._plain_responses >= MAX_PLAIN:
            return Reading(Abstention())
        if offer.text_stands_for == "answer" and self._plain_responses == MAX_PLAIN - 1:
            return reading._replace(complaint=f"{reading.complaint} {prompts.TEXT_COUNTS_NOTE}")
        return reading

    def _written_call(self, response: ModelResponse) -> str:
        """Return the name of a tool that the reply calls only as text, or ""."""
        if response.tool_calls:
            return ""
        return written_call(join(self._answer_so_far, response.text or ""), self._tools)

    def _takes_text(self, offer: Offer) -> bool:
        stands = offer.text_stands_for == "answer" and self._plain_responses >= MAX_PLAIN
        return offer.text_counts or stands or bool(self._answer_so_far)

    def _read_cut(self, cut: Cut, offer: Offer) -> Reading:
        answer_so_far = join(self._answer_so_far, cut.text)
        if cut.text and self._cuts + 1 >= MAX_CUTS:
            answer = mark_incomplete(answer_so_far, cut)
            if not self._context.judge_answer(answer):
                return Reading(Answered(answer), cut=cut)
        # A truncated tool call gets the message as its result.
        complaint = "" if cut.call >= 0 else cut_message(cut, answer_so_far, offer.names)
        return Reading(None, complaint, cut=cut, kept=answer_so_far)

    def refuse(self, response: ModelResponse) -> None:
        """Raise if the model refused to answer.

        Raises:
            ModelCallError: The provider marked the reply as a refusal.
        """
        end = ending_of(response)
        if end.kind == "refused":
            reason = f" ({end.reason})" if end.reason else ""
            words = f" It said: {end.words}" if end.words else ""
            raise ModelCallError(self._model, f"It refused to answer{reason}.{words}")

    def recall(self, exchange: Exchange) -> None:
        """Count a reply from the interrupted round."""
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
            reading: The result of `read`.
            offer: The decisions that the request offered.

        Raises:
            ModelCallError: Too many replies had no decision.
        """
        if reading.decision is not None:
            self._notify_user(exchange.response, reading, offer)
        elif exchange.is_known:
            self.recall(exchange)
        elif reading.cut is not None:
            self._count_cut(reading.kept)
            self._emit_cut(exchange.call, reading, reading.cut)
        elif reading.complaint:
            self._count_rejected(exchange.response)
            self._emit_rejection(reading)
        else:
            self._empty_cuts = 0
        self._check(reading)

    def _count_cut(self, answer_so_far: str) -> None:
        self._cuts += 1
        self._empty_cuts = self._empty_cuts + 1 if answer_so_far == self._answer_so_far else 0
        self._answer_so_far = answer_so_far

    def _count_rejected(self, response: ModelResponse) -> None:
        self._rejected += 1
        self._plain_responses += _is_plain(response)
        if self._written_call(response):
            self._answer_so_far = ""

    def _emit_cut(self, call: int, reading: Reading, cut: Cut) -> None:
        self._emit(
            ev.ReplyCut(
                agent=self._agent, call=call, told=reading.complaint, kept=reading.kept, by=cut.by
            )
        )
        if self._cuts == 1:
            self._notice(f"{self._agent}'s reply was cut off {cut.by}. The agent continues it.")

    def _emit_rejection(self, reading: Reading) -> None:
        why, fault = reading.complaint, reading.fault
        self._emit(ev.TurnRejected(agent=self._agent, why=why, attempt=self._rejected, fault=fault))

    def _notify_user(self, response: ModelResponse, reading: Reading, offer: Offer) -> None:
        """Emit a notice about an incomplete answer, or about a model that calls no tools."""
        if reading.cut is not None:
            self._notice(f"{self._agent}'s answer is incomplete: it was cut off {reading.cut.by}.")
        elif _is_plain(response) and isinstance(reading.decision, Abstention):
            self._notice(
                f"The model of {self._agent} calls no tools, so it does not vote. Its answer "
                f"still counts."
            )
        elif _is_plain(response) and not offer.text_counts and self._plain_responses >= MAX_PLAIN:
            self._notice(
                f"The model of {self._agent} calls no tools. Its text counts as its answer."
            )

    def _notice(self, text: str) -> None:
        self._emit(ev.Noticed(text=text))

    def _check(self, reading: Reading) -> None:
        if reading.decision is not None:
            return
        if self._empty_cuts >= MAX_EMPTY_CUTS or self._cuts >= MAX_CUTS:
            by = f" {reading.cut.by}" if reading.cut else ""
            raise ModelCallError(
                self._model,
                f"{self._cuts} of its replies were cut off{by} before it answered.",
            )
        if self._rejected >= MAX_REJECTED_TURNS:
            last = f" The last time {reading.fault}." if reading.fault else ""
            raise ModelCallError(
                self._model, f"It submitted no valid answer in {self._rejected} attempts.{last}"
            )


def _is_plain(response: ModelResponse) -> bool:
    return not response.tool_calls and bool((response.text or "").strip())


MAX_PAUSES = 10
"""Maximum number of pauses in a reply, for models that never finish it. Same as in pydantic-ai."""


def is_paused(message: ModelMessage) -> bool:
    """Return whether a message is a reply that its provider paused."""
    return message.kind == "response" and message.state == "suspended"


def joined(paused: ModelResponse | None, response: ModelResponse) -> ModelResponse:
    """Join a reply to the paused one that it continues.

    Args:
        paused: The paused reply, or None.
        response: The reply.

    Returns:
        The complete reply. Its usage is that of its last part.
    """
    if paused is None:
        return response
    details = {**(paused.provider_details or {}), **(response.provider_details or {})}
    parts = [*paused.parts, *response.parts]
    return replace(response, parts=parts, provider_details=details or None)


FOLDER = "images"
_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


async def save_images(response: ModelResponse, call: int, keep: WriteImage | None) -> ModelResponse:
    """Save the images of a reply as files, and replace them in the reply with their names.

    Args:
        response: The reply.
        call: The number of the request, for the file names.
        keep: Writes a file. None if the agent has no workspace.
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
        with CancelScope(shield=True):  # the image has been paid for
            parts.append(TextPart(await _answer_so_far(part, f"{call}_{number}", keep)))
    return replace(response, parts=parts)


async def _answer_so_far(part: FilePart, name: str, keep: WriteImage | None) -> str:
    kind, data = part.content.media_type, part.content.data
    if keep is None or kind not in _ENDINGS:
        return f"[The model created a file of type {kind[:50]}. It is not saved.]"
    path = f"{FOLDER}/{name}.{_ENDINGS[kind]}"
    try:
        await keep(path, data)
    except ToolError as exc:
        return f"[The model created an image. It is not saved: {exc}.]"
    return f"[The model created an image: {path} in the workspace, {len(data)} bytes.]"


def read_response(
    response: ModelResponse, context: RoundContext, offer: Offer, answer_so_far: str = ""
) -> Reading:
    """Read the answer or vote in a response.

    Args:
        response: The model's message. Of several answers or votes, the last one counts.
        context: Validates the decision.
        offer: The decisions that the request offered.
        answer_so_far: The beginning of the answer, from earlier replies that were cut off.
    """
    deciding = [c for c in response.tool_calls if c.tool_name in offer.decisions]
    if len({call.tool_name for call in deciding}) > 1 and not offer.judges:
        return Reading(None, prompts.BOTH, "it answered and voted in one turn")
    if deciding:
        return read_call(deciding[-1].tool_name, deciding[-1].args, context, answer_so_far)
    if offer.judges:
        return Reading(None) if response.tool_calls else read_plain(response.text or "", offer)
    if response.tool_calls:
        return Reading(None)
    text = response.text or ""
    if offer.text_counts and text.strip():
        return read_answer(join(answer_so_far, text).strip(), context)
    return read_plain(text, offer)


def has_refused_answer(response: ModelResponse, complaint: str) -> bool:
    """Return whether ``complaint`` is about a complete answer in the response."""
    answered = any(call.tool_name == ANSWER.name for call in response.tool_calls)
    malformed = ("", prompts.BOTH, prompts.UNREADABLE, prompts.EMPTY)
    return answered and complaint not in malformed
