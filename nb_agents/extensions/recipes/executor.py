"""Runs a recipe: starts the work that the plan returns, and reports the results as events.

Each unit of work is a task with its own boundary. A graceful stop lets a step that is under way
finish, and starts no other step and no other attempt. An immediate stop cancels model streams and
ends processes. So does the timeout of a called recipe, for the work inside it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.capabilities import Capability
from nb_agents.agents.decisions import Answered
from nb_agents.agents.replay import Past
from nb_agents.agents.runner import AgentRunner, Round, Runners
from nb_agents.agents.solo import SoloContext, solo_toolbox
from nb_agents.agents.stop_scope import StopScope, current_policy
from nb_agents.agents.turn_result import TurnResult
from nb_agents.cancel import AgentStopped, CancelToken
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.errors import ModelCallError, NbAgentsError, RecipeError, error_message
from nb_agents.extensions.recipes.agents import Worker, if_still_current, opening, resolve_agent
from nb_agents.extensions.recipes.check import fault_at, find_recipe
from nb_agents.extensions.recipes.command_runner import CommandRunner
from nb_agents.extensions.recipes.output import Output, final_text
from nb_agents.extensions.recipes.plan import Planner, plan
from nb_agents.extensions.recipes.progress import Progress, apply
from nb_agents.extensions.recipes.rate_limiter import RateLimiter, SubRecipeTimeouts
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.tasks import (
    AgentWork,
    CommandWork,
    Completed,
    Denied,
    Failed,
    GateWork,
    LoadWork,
    StepWork,
    Work,
)
from nb_agents.extensions.recipes.units import is_within, planned
from nb_agents.process.command import Finished
from nb_agents.process.writable import WritablePath
from nb_agents.tools.base import Toolbox
from nb_agents.tools.policy import AgentTools, ApprovalConfig, ApprovalDecision, Tally
from nb_agents.tools.run_tools import SnapshotFiles
from nb_agents.tools.shell import kept_folder, last_chars
from nb_agents.turns.stand_in import StandIn

_MAX_STREAMED = 100_000
"""Maximum number of characters in an output event.

Views show only the end, and the step's result has all.
"""

_FAULTY_KEYS = {LoadWork: "recipe", CommandWork: "cwd"}
"""The key of the step to blame if its work can't start."""

_RUN_AGAIN = """This command was interrupted by a stop or a crash. It may have done all, some or
none of its work. Check its results first. Run it again?

{command}"""

_NO_JSON_ERROR = "The answer contains no JSON, but later steps read its fields (parse_json)."

_MAX_ERRORS = 2000
"""Maximum number of characters of a command's error output quoted in an error message."""

logger = logging.getLogger("nb_agents")


@dataclass(frozen=True)
class Models:
    """The dependencies of steps that call models and tools.

    Attributes:
        runners: The runners of the turn's agents.
        is_usable: Whether an agent's model can be called.
        tools: Returns an agent's tools, except those for the workspace.
        kept: The directory for tool output that is too long for a model.
        secrets: The team's API keys, which commands do not inherit.
        capabilities: Optional features that the team file enables.
        ask: Asks the user about a step, given its address and the question.
        keep: Saves the files that a step's command may change. None saves nothing.
        stand_in: What answers the calls of steps in place of models and commands, or None.
    """

    team: TeamSpec
    runners: Runners
    is_usable: Callable[[AgentSpec], bool]
    tools: Callable[[str, Path, ToolKeys], Awaitable[AgentTools]]
    kept: Path
    secrets: Sequence[str] = ()
    capabilities: Sequence[Capability] = ()
    ask: Callable[[str, str], Awaitable[ApprovalDecision]] | None = None
    keep: SnapshotFiles | None = None
    stand_in: StandIn | None = None


@dataclass(frozen=True)
class _Gate:
    """A waiting gate, with its approvals so far and the scope to cancel when it is decided."""

    tally: Tally
    decided: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Executor:
    """Runs a recipe through one turn. Create it on the event loop.

    Args:
        progress: The progress, with the recipe loaded.
        models: The dependencies of steps that call models and tools.
        workspace: The working directory of commands and file tools.
        context: Read-only files and directories for all agents.
        token: The run's cancel token.
        emit: Receives events.
        deny: Called with a denied gate and the decision. It stops the run.
        user_messages: The messages that the user has added so far.
        past: The interrupted rounds of agents, if this turn resumes an earlier one.
        approval: Who approves gates, and how long a gate without its own timeout waits.
        project: The workspace, if it is the user's own directory.
    """

    def __init__(
        self,
        progress: Progress,
        models: Models,
        workspace: Path,
        context: Sequence[Path],
        token: CancelToken,
        emit: Callable[[ev.Event], None],
        deny: Callable[[str, ApprovalDecision], None],
        user_messages: Sequence[str] = (),
        past: Past | None = None,
        approval: ApprovalConfig | None = None,
        project: WritablePath | None = None,
    ) -> None:
        self._progress = progress
        self._project = project
        self._commands = CommandRunner(models.team, workspace, context, project, models.secrets)
        self._models = models
        self._workspace = workspace
        self._context = context
        self._token = token
        self._publish = emit
        self._deny = deny
        self._user_messages = list(user_messages)
        self._open_rounds = dict(past.rounds) if past else {}
        self._calls = dict(past.calls) if past else {}
        self._messages_received = past.state.heard if past else {}
        self._approval = approval or ApprovalConfig()
        self._planner = Planner(self._approval)
        recipe = progress.recipes[""]
        pause_ms = recipe.orchestrator.config.min_delay_between_calls_ms
        self._pace = RateLimiter(
            recipe.rate_limiting, pause_ms, {**recipe.context, **progress.context}
        )
        self._busy: set[str] = set()
        self._output_chunks: dict[str, list[str]] = {}
        self._gates: dict[str, _Gate] = {}
        self._boundaries: dict[str, StopScope] = {}
        self._clocks = SubRecipeTimeouts(token, self._only_waits, self._time_out)
        self._changed = anyio.Event()

    # Called by the run -----------------------------------------------------------------------

    def flush(self) -> None:
        """Emit the text received so far from models and commands."""
        self._models.runners.flush()
        for address in tuple(self._output_chunks):
            self._flush_output(address)

    def add_message(self, event: ev.UserMessage) -> None:
        """Add a message from the user. Agents read it at their next boundary."""
        self._user_messages.append(event.text)

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Record a decision on a gate. A gate can need more than one approval.

        Args:
            approved: Whether the recipe may continue.
            message: A message for later steps.
            by: The user who decides.
            gate: The gate's address, or "" for the gate that has been waiting longest.

        Returns:
            The gate's address, or "" if it is not waiting.

        Raises:
            UserError: The user is not among the approvers.
        """
        address = gate or next(iter(self._gates), "")
        if address not in self._gates:
            return ""
        tally = self._gates[address].tally
        decision = tally.take(approved, message, by)
        if decision is None:
            self._emit(ev.Noticed(text=f"{address}: {tally}."))
        else:
            self._give(address, decision)
        return address

    def next(self) -> tuple[str, ...]:
        """Return the addresses of the units to run next, in order."""
        return tuple(work.address for work in plan(self._progress).work)

    async def run(self) -> TurnResult:
        """Run until the recipe has ended.

        Returns:
            The outputs. Empty if the recipe failed.

        Raises:
            AgentStopped: The run was stopped. All work has ended.
        """
        ending = None
        async with anyio.create_task_group() as group:
            while ending is None:
                if not self._token.is_stopping:
                    ending = self._start_work(group)
                elif not self._busy:
                    ending = self._close()
                    break
                if ending is None and self._busy:
                    self._changed = anyio.Event()
                    await self._changed.wait()
            self._clocks.keep(group, ())
            if isinstance(ending, Denied):
                self._deny(ending.address, ApprovalDecision(False, ending.message, ending.by))
        match ending:
            case Completed(outputs=outputs):
                answer = final_text(outputs) or _last_text(self._progress)
                return TurnResult(answer=answer, outputs=outputs)
            case Failed(addresses=addresses, error=error):
                failed_at = ", ".join(addresses)
                self._emit(ev.Noticed(text=f"The recipe failed at {failed_at}: {error}"))
                return TurnResult()
        self._token.checkpoint()
        raise AssertionError("a recipe stops only if that is requested")

    # The loop --------------------------------------------------------------------------------

    def _start_work(self, group: anyio.abc.TaskGroup) -> Completed | Failed | Denied | None:
        """Start the planned work. Returns how the recipe ended, or None."""
        now = self._planner.plan(self._progress, self._busy)
        for event in now.events:
            if self._token.is_stopping:
                return None
            self._emit(event)
        self._clocks.keep(group, now.limits)
        for work in now.work:
            self._busy.add(work.address)
            if isinstance(work, GateWork):
                # Before its task runs, because the user may answer as soon as the question is
                # shown.
                self._gates[work.address] = _Gate(Tally(self._approval))
            token = self._clocks.token(work.address)
            group.start_soon(self._do, work, token, name=work.address)
        return now.ended

    def _close(self) -> Completed | None:
        """Complete the recipe if its last step finished during a stop. Otherwise, return None."""
        now = plan(self._progress)
        if not isinstance(now.ended, Completed):
            return None
        for event in now.events:
            self._emit(event)
        return now.ended

    def _emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.ModelStarted):
            self._calls[event.agent] = event.call
        elif isinstance(event, ev.ModelFinished):
            self._pace.succeeded()
        elif isinstance(event, ev.ModelFailed) and event.is_throttled:
            self._pace.throttled()
        self._progress = apply(self._progress, event)
        self._publish(event)

    def _only_waits(self, recipe: str) -> bool:
        """Return whether all work inside a called recipe is waiting for the user."""
        busy = [address for address in self._busy if is_within(address, recipe)]
        return bool(busy) and all(map(self._waits_for_user, busy))

    def _waits_for_user(self, address: str) -> bool:
        boundary = self._boundaries.get(address)
        return address in self._gates or (boundary is not None and boundary.is_waiting)

    def _time_out(self, recipe: str, why: str) -> None:
        """Record that a called recipe timed out, so that nothing else starts in it."""
        self._emit(ev.StepFailed(step=recipe, attempt=1, error=why))
        self._changed.set()

    async def _do(self, work: Work, token: CancelToken) -> None:
        try:
            await self._try(work, token)
        finally:
            self._busy.discard(work.address)
            self._gates.pop(work.address, None)
            self._boundaries.pop(work.address, None)
            self._changed.set()

    async def _try(self, work: Work, token: CancelToken) -> None:
        """Run a unit of work in its own boundary. A resume repeats work that a stop interrupts."""
        # A graceful stop lets the step finish, even if its agent needs more model calls.
        with StopScope(token, ignore_graceful=True) as boundary:
            self._boundaries[work.address] = boundary
            try:
                await boundary.wait_if_paused()
                token.checkpoint()
                match work:
                    case AgentWork():
                        await self._agent(work, boundary)
                    case CommandWork():
                        await self._command(work, boundary)
                    case LoadWork():
                        await self._load(work)
                    case GateWork():
                        await self._gate(work, boundary)
            except AgentStopped:
                self._end(work, "stopped")
                return
            except Exception as exc:
                self._fail(work, exc)
                return
        if boundary.was_cut:
            self._end(work, "killed")

    def _end(self, work: Work, outcome: ev.Outcome) -> None:
        if isinstance(work, AgentWork) and work.address in self._progress.units:
            self._emit(ev.AgentEnded(agent=work.address, outcome=outcome))

    def _fail(self, work: Work, exc: Exception) -> None:
        if not isinstance(exc, NbAgentsError | OSError | TimeoutError | ValueError):
            logger.error("step %s crashed", work.address, exc_info=exc)
        error = self._error_message(work, exc)
        if isinstance(work, LoadWork):
            self._emit(ev.StepFinished(step=work.address, outcome="failed", why=error))
        elif isinstance(work, StepWork):
            if isinstance(work, AgentWork) and work.address in self._progress.units:
                self._emit(ev.AgentFailed(agent=work.address, error=error))
            self._emit(
                ev.StepFailed(
                    step=work.address,
                    attempt=work.attempt,
                    error=error,
                    attempts=work.attempts,
                    retry_in_s=work.retry_s,
                )
            )

    def _error_message(self, work: Work, exc: Exception) -> str:
        """Return why a step failed, with file and line if the recipe is at fault."""
        error = error_message(exc)
        if not isinstance(exc, RecipeError):
            return error
        key = _FAULTY_KEYS.get(type(work), "")
        return fault_at(self._progress.recipes, work.address, error, key)

    # Agents ----------------------------------------------------------------------------------

    async def _agent(self, work: AgentWork, boundary: StopScope) -> None:
        await boundary.delay(work.delay_s)
        worker = resolve_agent(work.step, self._models.team, self._models.is_usable)
        runner = await self._models.runners.of(worker.agent)
        async with self._pace.turn(boundary):
            with boundary.limit(work.timeout_s) as clock:
                text = await self._ask(work, worker, runner, boundary)
                if work.needs_json and isinstance(Output(text).found, str):
                    raise ModelCallError(runner.name, _NO_JSON_ERROR)
                # A single event. If the process died between two, a resume would ask the model
                # again.
                self._emit(ev.StepFinished(step=work.address, outcome="ok", output=text))
        if clock.cancelled_caught:
            raise TimeoutError(f"The agent took longer than {work.timeout_s:g} s.")

    async def _ask(
        self, work: AgentWork, worker: Worker, runner: AgentRunner, boundary: StopScope
    ) -> str:
        address, spec = work.address, worker.agent
        self._emit(
            ev.StepStarted(
                step=address,
                unit="agent",
                attempt=work.attempt,
                worker=worker.why,
                model=spec.backend.model or spec.backend.type,
                asks=work.prompt,
            )
        )
        toolbox = await self._toolbox(address, spec)
        past = if_still_current(self._open_rounds.pop(address, None), work)
        names = [each.name for each in toolbox.definitions]
        guides = [each.guide(address, names) for each in self._models.capabilities]
        message_count = (
            self._messages_received.get(address, 0) if past else len(self._user_messages)
        )
        round = Round(
            address,
            work.attempt,
            opening(spec.system_message, work.prompt, self._context, self._user_messages, guides),
            toolbox,
            SoloContext(address, self._user_messages, message_count, self._emit),
            self._emit,
            boundary,
            self._workspace,
            work.prompt,
            calls=self._calls.get(address, 0),
            heard=message_count,
        )
        decision = await self._models.runners.play(spec, round, past)
        if not isinstance(decision, Answered):
            raise ModelCallError(runner.name, "The agent ended without any text.")
        return decision.answer

    async def _toolbox(self, address: str, agent: AgentSpec) -> Toolbox:
        output_folder = kept_folder(self._models.kept, agent.id)
        tools = await self._models.tools(agent.id, self._workspace, agent.backend)
        extra_tools = [await c.tools(address, self._workspace) for c in self._models.capabilities]
        readable = [*self._context, output_folder]
        return solo_toolbox(self._workspace, readable, tools, self._project, chain(*extra_tools))

    # Commands --------------------------------------------------------------------------------

    async def _command(self, work: CommandWork, boundary: StopScope) -> None:
        await boundary.delay(work.delay_s)
        address = work.address
        if work.was_cut and not work.is_repeatable:
            await self._ask_to_repeat(work)
        self._emit(
            ev.StepStarted(step=address, unit="bash", attempt=work.attempt, asks=work.command)
        )
        chunks = self._output_chunks[address] = []
        wake = current_policy().wake

        def write(text: str) -> None:
            chunks.append(text)
            wake()

        try:
            async with self._keep_changes(address):
                done = await self._run_command(work, write)
        finally:
            self._flush_output(address)
            del self._output_chunks[address]
        if done.exit_code and not work.tolerates:
            errors = last_chars(done.errors.strip(), _MAX_ERRORS)
            details = f": {errors}" if errors else "."
            raise OSError(f"The command ended with exit code {done.exit_code}{details}")
        self._emit(
            ev.StepFinished(
                step=address, outcome="ok", output=done.output, exit_code=done.exit_code
            )
        )

    async def _run_command(self, work: CommandWork, write: Callable[[str], None]) -> Finished:
        if (stand_in := self._models.stand_in) is not None:
            return await stand_in.command(work.address, work.attempt, write)
        return await self._commands.run(work, self._recipes_of(work.address), write)

    def _keep_changes(self, address: str) -> AbstractAsyncContextManager[None]:
        """Save the files that a command changes during the block, if the run saves files."""
        if self._models.keep is None:
            return nullcontext()
        own = [self._project] if self._project else []
        return self._models.keep(self._workspace, address, None, own)

    def _recipes_of(self, address: str) -> list[Recipe]:
        """Return the recipe of a step, and the recipes that call it."""
        recipes = self._progress.recipes
        return [recipes[each] for each in recipes if not each or is_within(address, each)]

    async def _ask_to_repeat(self, work: CommandWork) -> None:
        assert self._models.ask is not None
        decision = await self._models.ask(work.address, _RUN_AGAIN.format(command=work.command))
        if not decision.approved:
            self._deny(work.address, decision)
            self._token.checkpoint()

    def _flush_output(self, address: str) -> None:
        chunks = self._output_chunks[address]
        text = "".join(chunks)
        chunks.clear()
        end = last_chars(text, _MAX_STREAMED)
        if left_out := len(text) - len(end):
            text = f"[… {left_out} characters omitted]\n{end}"
        if text:
            self._emit(ev.OutputStreamed(step=address, text=text))

    # Sub-recipes and gates -------------------------------------------------------------------

    async def _load(self, work: LoadWork) -> None:
        stand_in = self._models.stand_in
        if stand_in is not None and (loaded := stand_in.recipe(work.address)) is not None:
            self._emit(loaded)
            return
        recipe = await to_thread.run_sync(
            _read_recipe, work.path, work.caller_path, self._models.team.bundles
        )
        path = str(recipe.path or "")
        outline = planned(recipe, work.address)
        self._emit(ev.RecipeLoaded(step=work.address, path=path, text=recipe.text, outline=outline))

    async def _gate(self, work: GateWork, boundary: StopScope) -> None:
        gate = self._gates.get(work.address)
        if gate is None:
            return
        with gate.decided:
            await boundary.sleep(work.timeout_s or math.inf)
            self._give(work.address, ApprovalDecision(work.default == "approve", "", "timeout"))

    def _give(self, address: str, decision: ApprovalDecision) -> None:
        approved, message, by = decision
        self._emit(ev.ApprovalGiven(step=address, approved=approved, message=message, by=by))
        self._gates.pop(address).decided.cancel()


def _last_text(progress: Progress) -> str:
    """Return the last text of any step, for a recipe without outputs."""
    texts = [unit.output.text.strip() for unit in progress.units.values() if unit.output.text]
    return texts[-1] if texts else ""


def _read_recipe(path: str, caller_path: Path | None, bundles: Mapping[str, str]) -> Recipe:
    return Recipe.from_file(find_recipe(path, caller_path, bundles))
