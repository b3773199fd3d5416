"""What agents are told. Text only; who needs which is decided elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from nb_agents.session.history import Message

__all__ = ["REMINDER", "coordination_prompt", "presentation_prompt", "system_prompt"]

_FRAMES = re.compile(
    r"<(/?(?:TASK|ANSWER|CURRENT_ANSWERS|CONVERSATION_HISTORY|FINAL PRESENTATION))", re.IGNORECASE
)

REMINDER = (
    "Finish your turn by calling exactly one of the tools {tools}. Plain text alone does not count."
)
BOTH = "Call either new_answer or vote in one turn, not both."
UNREADABLE = (
    "The arguments of your call are not valid JSON; they may have been cut off. Call it again, "
    "with a shorter text if need be."
)
EMPTY = "The answer was empty. Call new_answer with the full text of your answer."

_TEAM = """You are one of a team of agents that work on the same task side by side.
Every turn of yours ends in exactly one of two tool calls:
- `new_answer(content)`: submit a complete answer of your own, when you can better what is there.
- `vote(agent_id, reason)`: vote for the best answer, when it solves the task and you could not
  make it substantially better.
Answers of others are anonymous. When somebody submits a new answer you see it and decide again."""

_SOLO = """Work on the task. End your turn by calling `new_answer(content)` with your complete
answer."""

_PRESENT = """Your answer won the team's vote. Present the final answer to the person who asked:
complete, in your own words, using what is good in the other answers. Write it as plain text, or
call `new_answer` once with it."""

_FILES = """You have a workspace of files, reached by the tools list_files, read_file, write_file,
edit_file and delete_file with relative paths. Workspaces of the others can be read below
`peers/`."""


def system_prompt(own: str, *, solo: bool, presenting: bool, context: Sequence[Path]) -> str:
    """Make an agent's system prompt.

    Args:
        own: The agent's own system message, or "".
        solo: Whether it is a team of one.
        presenting: Whether it is the winner's presentation.
        context: Read-only files and directories.

    Returns:
        The prompt.
    """
    role = _PRESENT if presenting else (_SOLO if solo else _TEAM)
    parts = [own, role, _FILES]
    if context:
        paths = "\n".join(f"- {path}" for path in context)
        parts.append(f"You may read, but not change, what is below these paths:\n{paths}")
    return "\n\n".join(part for part in parts if part)


def coordination_prompt(
    task: str, history: Sequence[Message], answers: Mapping[str, str], own_label: str
) -> str:
    """Make the message that opens a round.

    Args:
        task: What was asked.
        history: The conversation before this turn.
        answers: Latest answers by anonymous name.
        own_label: Which of those names is the reader's own.

    Returns:
        The message.
    """
    return f"{_history(history)}<TASK>\n{_fenced(task)}\n</TASK>\n\n{_answers(answers, own_label)}"


def presentation_prompt(
    task: str,
    history: Sequence[Message],
    answers: Mapping[str, str],
    own_label: str,
    votes: Mapping[str, int],
) -> str:
    """Make the message that asks the winner to present; ``votes`` is by anonymous name."""
    tally = ", ".join(f"{name}: {count}" for name, count in votes.items())
    opening = coordination_prompt(task, history, answers, own_label)
    return f"{opening}\n\n<FINAL PRESENTATION>\nVotes: {tally}. You are {own_label}.\n"


def _history(history: Sequence[Message]) -> str:
    if not history:
        return ""
    lines = "\n".join(f"{m.role.capitalize()}: {_fenced(m.content)}" for m in history)
    return f"<CONVERSATION_HISTORY>\n{lines}\n</CONVERSATION_HISTORY>\n\n"


def _answers(answers: Mapping[str, str], own_label: str) -> str:
    if not answers:
        return "<CURRENT_ANSWERS>\n(no answers yet)\n</CURRENT_ANSWERS>"
    blocks = "\n".join(
        f'<ANSWER from="{name}">{_own(name, own_label)}\n{_fenced(text)}\n</ANSWER>'
        for name, text in answers.items()
    )
    return f"<CURRENT_ANSWERS>\n{blocks}\n</CURRENT_ANSWERS>"


def _own(name: str, own_label: str) -> str:
    return "\n(this one is yours)" if name == own_label else ""


def _fenced(text: str) -> str:
    """Keep a text from closing its own frame and speaking for the team or another agent."""
    return _FRAMES.sub(r"<\\\1", text)
