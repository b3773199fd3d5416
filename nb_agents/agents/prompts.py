"""What agents are told. Text only; who needs which is decided elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from nb_agents.agents.rules import Rules
from nb_agents.config.orchestrator import Sensitivity
from nb_agents.session.conversation import Message

__all__ = [
    "REMINDER",
    "Role",
    "coordination_prompt",
    "follow_up",
    "news",
    "presentation_prompt",
    "system_prompt",
]

Role = Literal["alone", "member", "voter", "presenter"]
"""Who an agent is: a team of one, one of a team, one that can only vote, the one that presents."""

_FRAMES = re.compile(
    r"<(/?(?:TASK|FOLLOW_UP|ANSWER|CURRENT_ANSWERS|CONVERSATION_HISTORY|FINAL PRESENTATION))",
    re.IGNORECASE,
)

REMINDER = (
    "Finish your turn by calling exactly one of the tools {tools}. Plain text alone does not count."
)
BOTH = "Call either new_answer or vote in one turn, not both."
UNREADABLE = (
    "The arguments of your call are not valid JSON; they may have been cut off. Call it again, "
    "with a shorter text if need be."
)
TAKEN_AS_TEXT = (
    "Or write your complete answer now as plain text: it will be taken as it is, with nothing "
    "around it."
)
NO_TEXT = "Your reply held no text. Write the result as plain text."
CUT_ANSWER = (
    "Your reply was cut off {by}. What you wrote so far is kept; it ends in: {tail}\n"
    "{how}, going on exactly where it stopped and without repeating anything. If nothing is "
    "missing, write only {end}."
)
REST_AS_TEXT = "Write the rest alone"
REST_BY_CALL = "Call new_answer again with the rest alone"
CUT_SILENT = (
    "Your reply was cut off {by} before anything that counts. Be brief, and come sooner to {how}."
)
CUT_CALL = (
    "This call was cut off {by}; nothing of it was done. Make it smaller: write a large file in "
    "several calls."
)
EMPTY = "The answer was empty. Call new_answer with the full text of your answer."

NO_TOOLS = "Error: the time of this round is over. Finish with {tools}."

_TEAM = """You are one of a team of agents that work on the same task side by side.
Every turn of yours ends in exactly one of two tool calls:
- `new_answer(content)`: submit a complete answer of your own, when you can better what is there.
- `vote(agent_id, reason)`: vote for the best answer, when that is the better choice.
Answers of others are anonymous. When somebody submits a new answer you see it and decide again.
A copy of an answer that is there already is refused."""

_TEAM_WITHOUT_VOTES = """You are one of a team of agents that work on the same task side by side.
Your turn ends when you call `new_answer(content)` with a complete answer of your own. A copy of an
answer that is there already is refused."""

_VOTER = """You are one of a team of agents. All answers are in. End your turn by calling
`vote(agent_id, reason)` for the best of them."""

_CRITERIA: dict[Sensitivity, str] = {
    "lenient": "Vote as soon as an answer solves the task and you could not make it substantially "
    "better.",
    "balanced": "Before you decide, name the weakest point of the best answer. Vote for it only if "
    "it (1) does all that the task asks, (2) is right in what it says, and (3) would not gain "
    "anything that a reader would miss now. Otherwise submit a better one.",
    "strict": "Grade the best answer from 0 to 3 on each of: complete, correct, clear, well "
    "founded. Vote only for an answer with 3 on all of them; otherwise submit one that earns the "
    "missing points.",
}
_GAIN = (
    "Weigh gain against cost: estimate by how many per cent another answer of yours would better "
    "the best one. Submit it if that is {percent} % or more, else vote."
)
# Source: MassGen's thresholds.
_CRITERIA |= {
    "roi": _GAIN.format(percent=15),
    "roi_conservative": _GAIN.format(percent=30),
    "roi_balanced": _GAIN.format(percent=15),
    "roi_aggressive": _GAIN.format(percent=5),
}

_SOLO = """Work on the task. End your turn by calling `new_answer(content)` with your complete
answer."""

_PRESENT = """Your answer won the team's vote. Present the final answer to the person who asked:
complete, in your own words, using what is good in the other answers. Write it as plain text, or
call `new_answer` once with it."""

_CHOSEN = """Your answer was chosen. Present the final answer to the person who asked: complete, in
your own words, using what is good in the other answers. Write it as plain text, or call
`new_answer` once with it."""

_SYNTHESIZE = """All agents of the team have answered. Put their answers together into one final
answer for the person who asked: keep what is best in each, settle where they differ, and say
everything once. Write it as plain text, or call `new_answer` once with it."""

_PLAN = """This is the planning phase: nothing is to be changed yet, and no tool changes anything.
Your answer is a plan of what is to be done, step by step. The agent whose plan wins carries it out
afterwards."""

_ACT = """Planning is over: now carry the plan out, with the tools that you have, and then say what
you did."""

_FILES = """You have a workspace of files, reached by the tools list_files, read_file, write_file,
edit_file and delete_file with relative paths. Workspaces of the others can be read below
`peers/`."""

_READING = """You can read files with the tools list_files and read_file: your workspace by relative
paths, those of the others below `peers/`."""

_READ_ONLY = "You may read, but not change, what is below these paths:"
_WRITABLE = "You may read and change, by absolute paths, what is below these paths:"

_NEWS = """While you worked, others have submitted new answers:
{answers}
Take them into account in what you decide."""

_FOLLOW_UP = """While you worked, the person who gave the task has added to it:
{texts}
Where it differs from what was asked before, this holds."""


def system_prompt(
    own: str, role: Role, rules: Rules, context: Sequence[Path], writable: Sequence[Path] = ()
) -> str:
    """Make an agent's system prompt.

    Args:
        own: The agent's own system message, or "".
        role: Who it is in this round.
        rules: How the team works.
        context: Files and directories that may be read.
        writable: Those of them that may be written now.

    Returns:
        The prompt.
    """
    is_planning = rules.plans_first and role in ("member", "voter")
    parts = [own, *_role(role, rules), _READING if is_planning else _FILES]
    if read_only := [path for path in context if path not in writable]:
        parts.append(f"{_READ_ONLY}\n{_listed(read_only)}")
    if writable:
        parts.append(f"{_WRITABLE}\n{_listed(writable)}")
    return "\n\n".join(part for part in parts if part)


def _listed(paths: Sequence[Path]) -> str:
    return "\n".join(f"- {path}" for path in paths)


def _role(role: Role, rules: Rules) -> list[str]:
    match role:
        case "alone":
            return [_SOLO]
        case "voter":
            return [_VOTER]
        case "presenter":
            return [_presenting(rules), _ACT if rules.plans_first else ""]
    team = [_TEAM_WITHOUT_VOTES] if rules.skips_voting else [_TEAM, _CRITERIA[rules.sensitivity]]
    return [*team, _PLAN if rules.plans_first else ""]


def _presenting(rules: Rules) -> str:
    if rules.final == "synthesize":
        return _SYNTHESIZE
    return _CHOSEN if rules.skips_voting else _PRESENT


def coordination_prompt(
    task: str,
    history: Sequence[Message],
    answers: Mapping[str, str],
    own_label: str,
    said: Sequence[str] = (),
) -> str:
    """Make the message that opens a round.

    Args:
        task: What was asked.
        history: The conversation before this turn.
        answers: Latest answers by anonymous name.
        own_label: Which of those names is the reader's own.
        said: Texts that the person has added to the task, oldest first.

    Returns:
        The message.
    """
    asked = f"<TASK>\n{_fenced(task)}\n</TASK>\n\n"
    if said:
        asked += f"{_added(said)}\n\n"
    return f"{_history(history)}{asked}{_answers(answers, own_label)}"


def presentation_prompt(
    task: str,
    history: Sequence[Message],
    answers: Mapping[str, str],
    own_label: str,
    votes: Mapping[str, int],
    said: Sequence[str] = (),
) -> str:
    """Make the message that asks the winner to present.

    Args:
        task: What was asked.
        history: The conversation before this turn.
        answers: Latest answers by anonymous name.
        own_label: Which of those names is the reader's own.
        votes: By anonymous name; empty when there was no vote.
        said: Texts that the person has added to the task, oldest first.

    Returns:
        The message.
    """
    tally = ", ".join(f"{name}: {count}" for name, count in votes.items())
    counted = f"Votes: {tally}. " if tally else ""
    opening = coordination_prompt(task, history, answers, own_label, said)
    return f"{opening}\n\n<FINAL PRESENTATION>\n{counted}You are {own_label}.\n"


def news(answers: Mapping[str, str]) -> str:
    """Make the message that shows a working agent new answers of others, by anonymous name."""
    return _NEWS.format(answers=_blocks(answers, ""))


def follow_up(texts: Sequence[str]) -> str:
    """Make the message that tells a working agent what the person has added to the task."""
    return _FOLLOW_UP.format(texts=_added(texts))


def _added(texts: Sequence[str]) -> str:
    return "\n".join(f"<FOLLOW_UP>\n{_fenced(text)}\n</FOLLOW_UP>" for text in texts)


def _history(history: Sequence[Message]) -> str:
    if not history:
        return ""
    lines = "\n".join(f"{m.role.capitalize()}: {_fenced(m.content)}" for m in history)
    return f"<CONVERSATION_HISTORY>\n{lines}\n</CONVERSATION_HISTORY>\n\n"


def _answers(answers: Mapping[str, str], own_label: str) -> str:
    if not answers:
        return "<CURRENT_ANSWERS>\n(no answers yet)\n</CURRENT_ANSWERS>"
    return f"<CURRENT_ANSWERS>\n{_blocks(answers, own_label)}\n</CURRENT_ANSWERS>"


def _blocks(answers: Mapping[str, str], own_label: str) -> str:
    return "\n".join(
        f'<ANSWER from="{name}">{_own(name, own_label)}\n{_fenced(text)}\n</ANSWER>'
        for name, text in answers.items()
    )


def _own(name: str, own_label: str) -> str:
    return "\n(this one is yours)" if name == own_label else ""


def _fenced(text: str) -> str:
    """Keep a text from closing its own frame and speaking for the team or another agent."""
    return _FRAMES.sub(r"<\\\1", text)
