"""How a model's reply ended, out of the words that each provider has for it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

__all__ = ["BrokenReplyError", "Ending", "ending_of"]

_NORMAL = frozenset({"end_turn", "eos", "eos_token", "stop_sequence"})
"""Reasons that pydantic-ai has no word for, and that are a reply's own end all the same.

Source: Together's and TGI's OpenAI-like servers, and Anthropic's words behind gateways.
"""

MAX_REASON = 100
MAX_WORDS = 300


class BrokenReplyError(Exception):
    """A reply came to its end, and is none: the call is tried again."""


class Ending(NamedTuple):
    """How a reply ended.

    Attributes:
        kind: As a whole; cut, by a limit of tokens or whatever its server had against it; refused,
            by the model or a filter; or broken, which another try may mend.
        reason: The provider's word, such as "length" or "SAFETY".
        words: What a refusal says, or "".
    """

    kind: Literal["whole", "cut", "refused", "broken"]
    reason: str = ""
    words: str = ""

    @property
    def by(self) -> str:
        """What a cut was made by, for agents and people."""
        if self.reason in _LENGTH:
            return "at its token limit (max_tokens)"
        return f"by its server ({self.reason})"


_LENGTH = frozenset({"length", "max_tokens", "MAX_TOKENS", "model_context_window_exceeded"})


def ending_of(response: ModelResponse) -> Ending:
    """Tell how a reply ended.

    Args:
        response: The whole of it.

    Returns:
        Its ending. A server that gives no reason, as some do, and a reason that is known as an end
        make it whole; a reason that is not known makes it cut.
    """
    details = response.provider_details or {}
    given = details.get("finish_reason") or details.get("block_reason") or ""
    reason = str(given)[:MAX_REASON]
    match response.finish_reason:
        case "content_filter":
            return Ending("refused", reason, str(details.get("refusal") or "")[:MAX_WORDS])
        case "length":
            return Ending("cut", reason if reason in _LENGTH else "length")
        case "error":
            return Ending("broken", reason or "error")
        case None if reason and reason.lower() not in _NORMAL:
            return Ending("cut", reason)
    return Ending("whole", reason)
