"""The round context and tools of an agent that works alone: a recipe's step or a sub-agent."""

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
    """The round context of an agent that works alone. Its plain text is the result.

    Args:
        agent: The agent's id, or the address of its step.
        messages: The user's messages to the run, oldest first. It grows while the agent works.
        message_count: The number of these messages that the agent has received.
        emit: Called with each event.
    """

    def __init__(
        self,
        agent: str,
        messages: Sequence[str],
        message_count: int,
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._agent = agent
        self._messages = messages
        self._received = message_count
        self._emit = emit

    def offer(self) -> Offer:
        """Return an offer without decision tools: any plain text is the result."""
        return Offer(answers=False, text_counts=True)

    def judge_answer(self, answer: str) -> str:
        """Accept every answer."""
        return ""

    def judge_vote(self, label: str) -> Verdict:
        """Reject every vote."""
        return Verdict("", "There is nothing to vote on. Write the result as plain text.")

    def note(self, *, was_refused: bool) -> Note:
        """Return an empty note, because an agent that works alone has no team to report on."""
        return Note()

    def take_messages(self) -> str:
        """Return the user's new messages as a prompt, or ""."""
        fresh = self._messages[self._received :]
        if not fresh:
            return ""
        self._received = len(self._messages)
        text = follow_up(fresh)
        self._emit(ev.NoteSent(agent=self._agent, text=text, heard=self._received))
        return text


def solo_toolbox(
    workspace: Path,
    context: Sequence[Path],
    agent_tools: AgentTools,
    project: WritablePath | None = None,
    own: Iterable[Tool] = (),
) -> Toolbox:
    """Return the tools of an agent that works alone.

    Args:
        context: Read-only files and directories.
        agent_tools: The agent's tools other than file tools.
        project: The workspace, if it is the user's project directory.
        own: Additional file tools.
    """
    files = Workspace(workspace, {}, list(context), project=project)
    tools = agent_tools.with_files([*files.tools(), *own])
    return Toolbox(tools, agent_tools.image_writer(files.keep), agent_tools.place)
