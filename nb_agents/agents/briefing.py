"""What an agent starts a round with: its first messages and its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nb_agents.agents import prompts, voting
from nb_agents.agents.rules import Rules
from nb_agents.config.team import TeamSpec
from nb_agents.session.conversation import Message
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.base import Toolbox
from nb_agents.tools.output_log import kept_folder
from nb_agents.tools.policy import AgentTools
from nb_agents.tools.workspace import Workspace
from nb_agents.tools.writable import WritablePath

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

__all__ = ["Briefing"]

HARMLESS = frozenset({"list_files", "read_file"})
"""Tools that an agent has while it only plans; of any other it is not known what it changes."""


@dataclass(frozen=True)
class Briefing:
    """Briefs the agents of one turn.

    Attributes:
        spec: The team.
        rules: How it works.
        paths: The turn's files.
        task: What was asked.
        history: The conversation before.
        context: Files and directories that may be read.
        tools: For each agent id, what it has besides the tools of its workspace.
    """

    spec: TeamSpec
    rules: Rules
    paths: TurnPaths
    task: str
    history: Sequence[Message]
    context: Sequence[Path]
    tools: Mapping[str, AgentTools] = field(default_factory=dict)

    def opening(self, state: voting.Coordination, agent: str, note: str) -> list[ModelMessage]:
        """Make the messages that open a round.

        Args:
            state: Where the team stands.
            agent: Whose round.
            note: What it is told besides, or "".
        """
        answers, own = _answers_for(state, agent)
        prompt = prompts.coordination_prompt(self.task, self.history, answers, own, state.said)
        role: prompts.Role = "member" if voting.may_answer(state, self.rules, agent) else "voter"
        if voting.is_alone(state):
            role = "alone"
        return self._messages(agent, role, f"{prompt}\n\n{note}" if note else prompt)

    def presentation(
        self, state: voting.Coordination, agent: str, votes: Mapping[str, int]
    ) -> list[ModelMessage]:
        """Make the messages that ask an agent to present; ``votes`` is by agent id."""
        answers, own = _answers_for(state, agent)
        labels = {a: label for label, a in voting.labels(state).items()}
        tally = {} if self.rules.skips_voting else {labels[a]: n for a, n in votes.items()}
        prompt = prompts.presentation_prompt(
            self.task, self.history, answers, own, tally, state.said
        )
        return self._messages(agent, "presenter", prompt)

    def toolbox(self, state: voting.Coordination, agent: str, *, is_presenting: bool) -> Toolbox:
        """Give an agent its tools; while the team plans, only those that change nothing."""
        spaces = self.paths.live_workspaces
        peers = {label: spaces / a for label, a in voting.labels(state).items() if a != agent}
        readable = [*self.context, kept_folder(self.paths.tools, agent)]
        given = self.tools.get(agent, AgentTools())
        given.access.is_open = self._may_write(is_presenting)
        files = Workspace(spaces / agent, peers, readable, given.access.now).tools()
        tools = given.with_files(files)
        only_plans = self.rules.plans_first and not is_presenting
        return Toolbox(tool for tool in tools if not only_plans or tool.name in HARMLESS)

    def writable(self, agent: str) -> Sequence[WritablePath]:
        """Give the context paths that an agent may write once it presents, or when it is alone."""
        return self.tools[agent].access.paths if agent in self.tools else ()

    def _may_write(self, is_presenting: bool) -> bool:
        return is_presenting or len(self.spec.agents) == 1

    def _messages(self, agent: str, role: prompts.Role, prompt: str) -> list[ModelMessage]:
        from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

        own = next(a.system_message for a in self.spec.agents if a.id == agent)
        places = self.writable(agent) if self._may_write(role == "presenter") else ()
        writable = [place.path for place in places]
        system = prompts.system_prompt(own, role, self.rules, self.context, writable)
        return [ModelRequest(parts=[SystemPromptPart(system), UserPromptPart(prompt)])]


def _answers_for(state: voting.Coordination, agent: str) -> tuple[dict[str, str], str]:
    """The latest answers by anonymous name, and which name is the agent's own."""
    labels = voting.labels(state)
    answers = {label: state.answers[a][-1] for label, a in labels.items() if a in state.answers}
    return answers, next(label for label, a in labels.items() if a == agent)
