"""An agent that works alone on one prompt: a recipe's step, or a sub-agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nb_agents import events as ev
from nb_agents.agents.decisions import Note, Offer, Verdict
from nb_agents.agents.prompts import follow_up
from nb_agents.process.writable import WritablePath
from nb_agents.tools.base import Tool, Toolbox
from nb_agents.tools.policy import AgentTools
from nb_agents.tools.workspace import Workspace


class SoloContext:
    """The turn context of an agent that works alone on one prompt: its plain text is the result.

    Args:
        agent: The agent's id; of a step, its address.
        said: Texts that the person has added, oldest first; grows while the agent works.
        heard: How many of them the agent has received.
        emit: Publishes an event.
    """

    def __init__(
        self, agent: str, said: Sequence[str], heard: int, emit: Callable[[ev.Event], None]
    ) -> None:
        self._agent = agent
        self._said = said
        self._heard = heard
        self._emit = emit

    def offer(self) -> Offer:
        """Offer nothing but the tools: any plain text is the result."""
        return Offer(answers=False, text_counts=True)

    def judge_answer(self, answer: str) -> str:
        """Accept every answer."""
        return ""

    def judge_vote(self, label: str) -> Verdict:
        """Refuse votes: there is nothing to vote on."""
        return Verdict("", "There is nothing to vote on. Write the result as plain text.")

    def note(self, *, was_refused: bool) -> Note:
        """Return an empty note."""
        return Note()

    def hear(self) -> str:
        """Return what the person has added since."""
        fresh = self._said[self._heard :]
        if not fresh:
            return ""
        self._heard = len(self._said)
        text = follow_up(fresh)
        self._emit(ev.Told(agent=self._agent, text=text, heard=self._heard))
        return text


def solo_toolbox(
    workspace: Path,
    context: Sequence[Path],
    others: AgentTools,
    project: WritablePath | None = None,
    own: Iterable[Tool] = (),
) -> Toolbox:
    """Return the tools of an agent that works alone.

    Args:
        workspace: Its workspace.
        context: Read-only files and directories.
        others: Its other tools.
        project: The workspace, if it is the user's own directory.
        own: Tools for files of its own.
    """
    files = Workspace(workspace, {}, list(context), project=project)
    keep = files.keep if others.keeps_images else None
    return Toolbox(others.with_files([*files.tools(), *own]), keep, others.place)
