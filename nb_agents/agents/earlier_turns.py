"""Shortens the earlier turns of a session in prompts.

A session can have many turns, and each prompt would otherwise repeat all of their answers. A prompt
contains the latest answers and the beginnings of older ones. Agents read the rest with the
``read_turn`` tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nb_agents.agents.capabilities import Capability
from nb_agents.session.conversation import PastMessage
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, declare

WHOLE_CHARS = 20_000
"""Maximum total length, in characters, of the latest answers, which a prompt contains in full."""

HEAD_CHARS = 300
"""Number of characters of each other answer that a prompt contains."""

MAX_READ_CHARS = 20_000
"""Maximum length of a result of ``read_turn``, in characters."""

READ_TURN = declare(BuiltInTool("read_turn"))[0]


def shorten(history: Sequence[PastMessage]) -> list[PastMessage]:
    """Return a conversation with only the beginnings of older answers.

    The user's messages are not shortened.

    Args:
        history: The messages of the session's earlier turns, oldest first.
    """
    shortened: list[PastMessage] = []
    rest = WHOLE_CHARS
    for message in reversed(history):
        if message.role == "user" or len(message.content) <= max(rest, HEAD_CHARS):
            shortened.append(message)
        else:
            shortened.append(replace(message, content=_head(message)))
        if message.role != "user":
            rest -= len(message.content)
    return shortened[::-1]


def _head(message: PastMessage) -> str:
    size = len(message.content)
    return (
        f"{message.content[:HEAD_CHARS]} […]\n"
        f"[{size:,} characters in total. {READ_TURN}({message.turn}) returns them.]"
    )


class EarlierTurns(Capability):
    """The earlier turns of a session.

    Args:
        history: The messages of the session's earlier turns, oldest first.

    Attributes:
        messages: The messages for prompts.
    """

    holds_in_planning = True

    def __init__(self, history: Sequence[PastMessage]) -> None:
        self._history = history
        self.messages = shorten(history)

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Return the ``read_turn`` tool if the prompt does not contain everything."""
        if self.messages == list(self._history):
            return ()
        return [Tool(self.read_turn, is_repeatable=True)]

    async def read_turn(self, turn: int, offset: int = 0) -> str:
        """Return the messages and answers of an earlier turn of this conversation.

        Args:
            turn: The number of the turn.
            offset: The number of characters to skip, for long texts.
        """
        messages = [each for each in self._history if each.turn == turn]
        if not messages:
            turns = sorted({each.turn for each in self._history})
            raise ToolError(f"There is no turn {turn}. The turns are {turns[0]} to {turns[-1]}.")
        text = "\n\n".join(f"{each.role.capitalize()}: {each.content}" for each in messages)
        begin = max(offset, 0)
        part = text[begin : begin + MAX_READ_CHARS]
        if (end := begin + len(part)) < len(text):
            part += f"\n[{end:,} of {len(text):,} characters. Continue with offset={end}.]"
        return part
