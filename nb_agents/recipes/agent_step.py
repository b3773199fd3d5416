"""One agent step: what the agent is told, and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from nb_agents import events as ev
from nb_agents.agents.decisions import Offer, Verdict
from nb_agents.agents.prompts import follow_up
from nb_agents.agents.replay import OpenRound
from nb_agents.recipes.tasks import AgentWork
from nb_agents.tools.base import Toolbox
from nb_agents.tools.policy import AgentTools
from nb_agents.tools.workspace import Workspace

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

__all__ = ["StepContext", "goes_on", "opening", "toolbox"]

_SYSTEM = """You do one step of a workflow. Your last message, as plain text, is the step's result:
the next steps get it as it is, so write the result alone, without asking back. You have a workspace
of files that all steps of the workflow share, reached by the tools list_files, read_file,
write_file, edit_file and delete_file with relative paths."""


class StepContext:
    """The seat of an agent that works alone on one prompt: its plain text is the result.

    Args:
        address: The step's.
        said: Texts that the person has added, oldest first; grows while the step runs.
        heard: How many of them the agent has been told.
        emit: Takes what happens.
    """

    def __init__(
        self, address: str, said: Sequence[str], heard: int, emit: Callable[[ev.Event], None]
    ) -> None:
        self._address = address
        self._said = said
        self._heard = heard
        self._emit = emit

    def offer(self) -> Offer:
        """Offer nothing but the tools: any plain text ends the step."""
        return Offer(answers=False, text_counts=True)

    def judge_answer(self, answer: str) -> str:
        """Take every answer."""
        return ""

    def judge_vote(self, label: str) -> Verdict:
        """Refuse votes: there is nothing to vote on."""
        return Verdict("", "There is nothing to vote on. Write the result as plain text.")

    def note(self, *, was_refused: bool) -> str:
        """Say nothing besides."""
        return ""

    def hear(self) -> str:
        """Say what the person has added meanwhile."""
        fresh = self._said[self._heard :]
        if not fresh:
            return ""
        self._heard = len(self._said)
        text = follow_up(fresh)
        self._emit(ev.Told(agent=self._address, text=text, heard=self._heard))
        return text


def opening(
    own: str, prompt: str, context: Sequence[Path], said: Sequence[str]
) -> list[ModelMessage]:
    """Make the messages that open a step.

    Args:
        own: The agent's own system message, or "".
        prompt: The step's prompt, rendered.
        context: Read-only files and directories.
        said: Texts that the person has added to the task.
    """
    from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

    known = "".join(f"\n- {path}" for path in context)
    paths = f"\n\nThese can be read, too, by their absolute paths:{known}" if known else ""
    asked = f"{prompt}\n\n{follow_up(said)}" if said else prompt
    system = "\n\n".join(part for part in (own, _SYSTEM + paths) if part)
    return [ModelRequest(parts=[SystemPromptPart(system), UserPromptPart(asked)])]


def goes_on(past: OpenRound | None, work: AgentWork) -> TypeGuard[OpenRound]:
    """Tell whether a step goes on with the conversation that a stop cut.

    Args:
        past: The conversation; None when there is none.
        work: The step as it is now; a changed recipe may ask something else.
    """
    if past is None:
        return False
    parts = [part for message in past.request for part in message.get("parts", ())]
    asked = [str(p.get("content")) for p in parts if p.get("part_kind") == "user-prompt"]
    return any(text == work.prompt or text.startswith(f"{work.prompt}\n\n") for text in asked)


def toolbox(workspace: Path, context: Sequence[Path], others: AgentTools) -> Toolbox:
    """Give the tools of a step.

    Args:
        workspace: The run's one workspace.
        context: Read-only files and directories.
        others: What the agent has besides.
    """
    return Toolbox(others.with_files(Workspace(workspace, {}, list(context)).tools()))
