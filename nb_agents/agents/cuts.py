"""Replies that broke off: what of them is kept, and how the next one goes on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nb_agents.agents import prompts
from nb_agents.agents.stream_buffer import ANSWER_TOOL, answer_so_far, read_arguments
from nb_agents.models.ending import ending_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ToolCallPart

__all__ = ["Cut", "cut_of", "join", "marked", "told"]

END = "END"
"""What an agent writes whose reply was whole when it was cut."""

_TAIL = 60
_SAME_START = 40
_MIN_OVERLAP = 16
_MAX_OVERLAP = 1000


class Cut(NamedTuple):
    """How a reply broke off.

    Attributes:
        by: What cut it, in words.
        text: What it had of an answer; "" when that is not where it broke off.
        is_call: Whether it broke off in a call of `new_answer`, not in plain text.
        call: Position of another tool's call that it broke off in, or -1.
    """

    by: str
    text: str = ""
    is_call: bool = False
    call: int = -1


def cut_of(response: ModelResponse, *, text_counts: bool) -> Cut | None:
    """Tell how a reply broke off.

    Args:
        response: The reply.
        text_counts: Whether its plain text is an answer.

    Returns:
        How; None when nothing of it is missing, as its calls are whole, or it does not count.
    """
    end = ending_of(response)
    if end.kind != "cut":
        return None
    calls = response.tool_calls
    if not calls:
        text = response.text or ""
        return Cut(end.by, text) if text_counts or not text.strip() else None
    last = calls[-1]
    if response.parts[-1] is not last or _is_whole(last):
        return None
    if last.tool_name == ANSWER_TOOL:
        return Cut(end.by, answer_so_far(str(last.args)), is_call=True)
    return Cut(end.by, call=len(calls) - 1)


def _is_whole(call: ToolCallPart) -> bool:
    args = call.args
    return not isinstance(args, str) or bool(args.strip() and read_arguments(args) is not None)


def told(cut: Cut, kept: str, names: str) -> str:
    """Say to an agent what became of its reply.

    Args:
        cut: How it broke off.
        kept: Its answer so far.
        names: The tools that end a turn, in words; "" for plain text.
    """
    if cut.text:
        how = prompts.REST_BY_CALL if cut.is_call else prompts.REST_AS_TEXT
        return prompts.CUT_ANSWER.format(by=cut.by, tail=kept[-_TAIL:], how=how, end=END)
    if cut.call >= 0:
        return prompts.CUT_CALL.format(by=cut.by)
    return prompts.CUT_SILENT.format(by=cut.by, how=f"calling {names}" if names else "writing it")


def join(kept: str, more: str) -> str:
    """Go on with an answer that broke off.

    Args:
        kept: The answer so far.
        more: What the agent wrote next: the rest, or the whole again, or some last words and then
            the rest, or `END`.

    Returns:
        The answer.
    """
    if not kept or (len(kept) >= _SAME_START and more.startswith(kept[:_SAME_START])):
        return more
    if more.strip().rstrip(".") == END:
        return kept
    for size in range(min(len(kept), len(more), _MAX_OVERLAP), _MIN_OVERLAP - 1, -1):
        if kept.endswith(more[:size]):
            return kept + more[size:]
    return kept + more


def marked(answer: str, cut: Cut) -> str:
    """Return an answer that stays cut, with a line that says so."""
    return f"{answer.rstrip()}\n\n[Cut off here {cut.by}.]"
