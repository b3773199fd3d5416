"""Base classes for the work of extensions in which agents work alone, one step after another.

A step that has finished is not repeated by a resume, so a driver can always begin with its first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nb_agents import events as ev
from nb_agents.agents.decisions import Answered
from nb_agents.agents.message_json import Opening
from nb_agents.agents.prompts import follow_up
from nb_agents.agents.runner import Round, Runners
from nb_agents.agents.solo import SoloContext, solo_toolbox
from nb_agents.agents.stop_scope import StopScope
from nb_agents.agents.subagents import SubAgents
from nb_agents.agents.turn_result import TurnResult
from nb_agents.cancel import AgentStopped
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ModelCallError, error_message
from nb_agents.session.history import Session
from nb_agents.tools.run_tools import RunTools
from nb_agents.turns.drivers import DriverDeps
from nb_agents.turns.turn_spec import TurnSpec


@dataclass(frozen=True)
class StepsWork:
    """Work in steps; see `nb_agents.turns.turn_spec.TurnWork`.

    Attributes:
        kind: The name of the kind of work.
        name: The name of the work, and of the workspace that all steps share.
        given: Everything that a resume needs, as JSON values.
        planned: The label of each known step, by its address.
        opens_tools: False, because tools are opened when their steps start.
        has_default_timeout: False, because the number of steps is not limited.
    """

    kind: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    planned: Mapping[str, str] = field(default_factory=dict)
    opens_tools: bool = False
    has_default_timeout: bool = False

    def members(self, team: TeamSpec) -> tuple[AgentSpec, ...]:
        """Return no agents, because they start with their steps."""
        return ()

    def workspaces(self, team: TeamSpec) -> tuple[str, ...]:
        """Return the single workspace that all steps share."""
        return (self.name,)

    def first_events(self) -> tuple[ev.Event, ...]:
        """Return the event with the planned steps."""
        units = (ev.PlannedUnit(step, "agent", label) for step, label in self.planned.items())
        return (ev.RecipeLoaded(step="", path="", text="", outline=tuple(units)),)

    def fill(self, spec: TurnSpec, session: Session) -> TurnSpec:
        """Return the spec unchanged, because the work starts without files."""
        return spec


class StepsDriver(ABC):
    """Drives work in steps. A subclass implements `work`, which calls `ask` for each step.

    Args:
        deps: The turn's spec and the run's functions.
        runners: The runners of the turn's agents.
        run_tools: The run's tools.
        children: The run's sub-agents.
    """

    def __init__(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> None:
        self._deps, self._runners = deps, runners
        self._run_tools, self._children = run_tools, children
        resumed = deps.spec.resumed
        # Messages sent before this turn had a driver are forwarded separately.
        self._messages = list(resumed.view.said) if resumed else []
        self._past = resumed.past if resumed else None
        steps = resumed.view.steps.values() if resumed else ()
        self._answers = {step.address: str(step.output) for step in steps if step.status == "ok"}
        self._has_begun: dict[str, bool] = {}

    @property
    def spec(self) -> TurnSpec:
        """The turn's spec, with the team and the work."""
        return self._deps.spec

    @abstractmethod
    async def work(self) -> TurnResult:
        """Do the steps, and return the result with its ``outputs``.

        The work has failed if it raises `ModelCallError`, as `ask` does, or returns no outputs.
        """

    async def run(self) -> TurnResult:
        """Work until there is a result, which is empty if a step failed."""
        try:
            return await self.work()
        except ModelCallError as exc:
            self._deps.note(f"A step failed: {exc}")
            return TurnResult()

    async def ask(self, step: str, agent: AgentSpec, prompt: str) -> str:
        """Let an agent do a step, unless it has finished in an earlier turn.

        Args:
            step: The step's address, which is unique in the turn and the same in a resumed turn.

        Returns:
            The agent's answer.

        Raises:
            AgentStopped: The run was stopped. A resume continues the step.
            ModelCallError: The agent failed.
        """
        if step in self._answers:
            return self._answers[step]
        token = self._deps.token
        self._has_begun[step] = False
        with StopScope(token, ignore_graceful=True) as scope:
            await scope.wait_if_paused()
            token.checkpoint()
            self._has_begun[step] = True
            await self._finish(step, agent, prompt, scope)
        if scope.was_cut:
            if self._has_begun[step]:
                self._deps.emit(ev.AgentEnded(agent=step, outcome="killed"))
            token.checkpoint()
        del self._has_begun[step]
        return self._answers[step]

    async def _finish(self, step: str, agent: AgentSpec, prompt: str, scope: StopScope) -> None:
        emit = self._deps.emit
        try:
            answer = await self._run_agent(step, agent, prompt, scope)
        except AgentStopped:
            emit(ev.AgentEnded(agent=step, outcome="stopped"))
            raise
        except Exception as exc:
            emit(ev.StepFinished(step=step, outcome="failed", why=error_message(exc)))
            raise
        self._answers[step] = answer
        emit(ev.StepFinished(step=step, outcome="ok", output=answer))

    async def _run_agent(self, step: str, agent: AgentSpec, prompt: str, scope: StopScope) -> str:
        spec, emit, messages = self._deps.spec, self._deps.emit, self._messages
        model = agent.backend.model or agent.backend.type
        emit(ev.StepStarted(step=step, unit="agent", worker=agent.id, model=model, asks=prompt))
        workspace = spec.paths.live_workspaces / spec.work.name
        sub_agent_tools = self._children.tools(agent.id, agent.backend)
        tools = await self._run_tools.open(agent.id, workspace, agent.backend, sub_agent_tools)
        past = self._past.rounds.get(step) if self._past else None
        message_count = (
            self._past.state.heard.get(step, 0) if self._past and past else len(messages)
        )
        asks = f"{prompt}\n\n{follow_up(messages)}" if messages else prompt
        round = Round(
            step,
            1,
            Opening(agent.system_message, (asks,)),
            solo_toolbox(workspace, spec.context, tools),
            SoloContext(step, messages, message_count, emit),
            emit,
            scope,
            workspace,
            prompt,
            calls=self._past.calls.get(step, 0) if self._past else 0,
            heard=message_count,
        )
        decision = await self._runners.play(agent, round, past)
        if not isinstance(decision, Answered):
            raise ModelCallError(model, "The agent ended without any text.")
        return decision.answer

    def flush(self) -> None:
        """Emit the text received so far."""
        self._runners.flush()

    def add_message(self, event: ev.UserMessage) -> None:
        """Add a message from the user. Agents read it at their next boundary."""
        self._messages.append(event.text)

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Return "", because there are no gates."""
        return ""

    def next(self) -> tuple[str, ...]:
        """Return the steps with which a resume begins."""
        return tuple(self._has_begun)
