"""The recipe's driver: does what the plan says, and tells it what happened.

Thin by design, as the team's driver is. Every unit of work is a task with a boundary: a graceful
stop lets the step in hand finish and begins none, nor another attempt at one; an immediate stop
cuts model streams and process groups, as does the end of a called recipe's time for those in it.
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
from nb_agents.config.recipe import Recipe
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.errors import ModelCallError, NbAgentsError, RecipeError, said_by
from nb_agents.process.writable import WritablePath
from nb_agents.recipes.agents import Worker, opening, resolve_agent, still_asked
from nb_agents.recipes.check import fault_at, find_recipe
from nb_agents.recipes.command_runner import CommandRunner
from nb_agents.recipes.output import Output, final_text
from nb_agents.recipes.plan import Planner, plan
from nb_agents.recipes.progress import Progress, apply
from nb_agents.recipes.rate_limiter import RateLimiter, SubRecipeTimeouts
from nb_agents.recipes.tasks import (
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
from nb_agents.recipes.units import is_within, planned
from nb_agents.tools.base import Toolbox
from nb_agents.tools.policy import AgentTools, ApprovalConfig, ApprovalDecision, Tally
from nb_agents.tools.run_tools import KeepFiles
from nb_agents.tools.shell import kept_folder, last_chars

_MAX_STREAMED = 100_000
"""Characters of one event of a command's output: views show its end, its result has the whole."""

_FAULTY = {LoadWork: "recipe", CommandWork: "cwd"}
"""The key that is at fault where a step's work can't begin."""

_RUN_AGAIN = """This command was cut by a stop or a crash: all, a part or nothing of it may have
happened. Look at what is there. Run it again?

{command}"""

_NO_JSON = "Its answer holds no JSON, and later steps read fields of it (parse_json)."

_MAX_ERRORS = 2000
"""Characters of what a command wrote to its error stream that a message quotes."""

logger = logging.getLogger("nb_agents")


@dataclass(frozen=True)
class Models:
    """How steps come to models.

    Attributes:
        team: The agents that there are.
        runners: The runners of the turn's agents.
        is_usable: Whether an agent's model can be called.
        tools: Gives an agent its tools besides those of the workspace.
        kept: Directory of what tools wrote that was too long for a model.
        secrets: The team's keys: no command inherits them.
        capabilities: What steps can do besides, by the team's file.
        ask: Asks a person about a step, given its address and the question.
        keep: Keeps what a command of a step may change; None keeps nothing.
    """

    team: TeamSpec
    runners: Runners
    is_usable: Callable[[AgentSpec], bool]
    tools: Callable[[str, Path, ToolKeys], Awaitable[AgentTools]]
    kept: Path
    secrets: Sequence[str] = ()
    capabilities: Sequence[Capability] = ()
    ask: Callable[[str, str], Awaitable[ApprovalDecision]] | None = None
    keep: KeepFiles | None = None


@dataclass(frozen=True)
class _Gate:
    """A gate that waits: who has approved so far, and what ends the waiting."""

    tally: Tally
    decided: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Executor:
    """Drives a recipe through one turn; make it on the loop.

    Args:
        progress: How far it is; its recipe is loaded.
        models: How steps come to models.
        workspace: Where commands and file tools work.
        context: Read-only files and directories for all agents.
        token: The run's token.
        emit: Takes what happens.
        deny: Called with the denied gate and the decision; it stops the run.
        said: Texts that the person has added so far.
        past: Where the agents of steps were, when this goes on with an earlier turn.
        approval: Who decides its gates, and how long those wait that do not say it themselves.
        project: The workspace, when it is a person's own directory.
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
        said: Sequence[str] = (),
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
        self._said = list(said)
        self._open_rounds = dict(past.rounds) if past else {}
        self._calls = dict(past.calls) if past else {}
        self._heard = past.state.heard if past else {}
        self._approval = approval or ApprovalConfig()
        self._planner = Planner(self._approval)
        recipe = progress.recipes[""]
        pause_ms = recipe.orchestrator.config.min_delay_between_calls_ms
        self._pace = RateLimiter(
            recipe.rate_limiting, pause_ms, {**recipe.context, **progress.context}
        )
        self._busy: set[str] = set()
        self._written: dict[str, list[str]] = {}
        self._gates: dict[str, _Gate] = {}
        self._boundaries: dict[str, StopScope] = {}
        self._clocks = SubRecipeTimeouts(token, self._only_waits, self._take_too_long)
        self._changed = anyio.Event()

    # What the run asks of it -----------------------------------------------------------------

    def flush(self) -> None:
        """Emit the words that have arrived from models and commands."""
        self._models.runners.flush()
        for address in tuple(self._written):
            self._flush_output(address)

    def hear(self, event: ev.Said) -> None:
        """Add a text of the person, which agents read at their next boundary."""
        self._said.append(event.text)

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide a gate, or count towards it.

        Args:
            approved: Whether the recipe goes on.
            message: What the person says, for later steps.
            by: Who decides.
            gate: Its address, or "" for the one that has waited longest.

        Returns:
            The address of the gate, or "" when it does not wait.

        Raises:
            UserError: This person is not among the approvers.
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
        """Return the addresses of what is to be done next, in order."""
        return tuple(work.address for work in plan(self._progress).work)

    async def run(self) -> TurnResult:
        """Work until the recipe has ended.

        Returns:
            Its outputs, or none when it failed.

        Raises:
            AgentStopped: The run was stopped; all work has ended by then.
        """
        ended = None
        async with anyio.create_task_group() as group:
            while ended is None:
                if not self._token.is_stopping:
                    ended = self._go_on(group)
                elif not self._busy:
                    ended = self._close()
                    break
                if ended is None and self._busy:
                    self._changed = anyio.Event()
                    await self._changed.wait()
            self._clocks.keep(group, ())
            if isinstance(ended, Denied):
                self._deny(ended.address, ApprovalDecision(False, ended.message, ended.by))
        match ended:
            case Completed(outputs=outputs):
                answer = final_text(outputs) or _last_text(self._progress)
                return TurnResult(answer=answer, outputs=outputs)
            case Failed(addresses=addresses, error=error):
                named = ", ".join(addresses)
                self._emit(ev.Noticed(text=f"The recipe failed at {named}: {error}"))
                return TurnResult()
        self._token.checkpoint()
        raise AssertionError("a recipe stops only when it is asked to")

    # The loop --------------------------------------------------------------------------------

    def _go_on(self, group: anyio.abc.TaskGroup) -> Completed | Failed | Denied | None:
        """Start what the plan says; return how the recipe ended, or None."""
        now = self._planner.plan(self._progress, self._busy)
        for event in now.events:
            if self._token.is_stopping:
                return None
            self._emit(event)
        self._clocks.keep(group, now.limits)
        for work in now.work:
            self._busy.add(work.address)
            if isinstance(work, GateWork):
                # Already here: who sees the question may answer before its task runs.
                self._gates[work.address] = _Gate(Tally(self._approval))
            token = self._clocks.token(work.address)
            group.start_soon(self._do, work, token, name=work.address)
        return now.ended

    def _close(self) -> Completed | None:
        """Complete a recipe whose last step was in hand when the stop came; None for another."""
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
        """Return whether a called recipe has nothing running but what waits for a person."""
        in_hand = [address for address in self._busy if is_within(address, recipe)]
        return bool(in_hand) and all(map(self._waits_for_person, in_hand))

    def _waits_for_person(self, address: str) -> bool:
        boundary = self._boundaries.get(address)
        return address in self._gates or (boundary is not None and boundary.is_waiting)

    def _take_too_long(self, recipe: str, why: str) -> None:
        """Record that a called recipe's time is over; nothing in it begins after that."""
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
        """Do one piece of work within its boundary; a resume repeats what a stop cut."""
        # A step in hand is done as a whole: an agent may make further calls for it.
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
        error = self._told(work, exc)
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

    def _told(self, work: Work, exc: Exception) -> str:
        """Return why a step failed: with its place where the recipe's text is at fault."""
        error = said_by(exc)
        if not isinstance(exc, RecipeError):
            return error
        return fault_at(self._progress.recipes, work.address, error, _FAULTY.get(type(work), ""))

    # Agents ----------------------------------------------------------------------------------

    async def _agent(self, work: AgentWork, boundary: StopScope) -> None:
        await boundary.sleep(work.delay_s)
        worker = resolve_agent(work.step, self._models.team, self._models.is_usable)
        runner = await self._models.runners.of(worker.agent)
        async with self._pace.turn(boundary):
            with boundary.limit(work.timeout_s) as clock:
                text = await self._ask(work, worker, runner, boundary)
                if work.needs_json and isinstance(Output(text).found, str):
                    raise ModelCallError(runner.name, _NO_JSON)
                # One event: a process that dies between two would ask again.
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
        past = still_asked(self._open_rounds.pop(address, None), work)
        names = [each.name for each in toolbox.definitions]
        guides = [each.guide(address, names) for each in self._models.capabilities]
        heard = self._heard.get(address, 0) if past else len(self._said)
        round = Round(
            address,
            work.attempt,
            opening(spec.system_message, work.prompt, self._context, self._said, guides),
            toolbox,
            SoloContext(address, self._said, heard, self._emit),
            self._emit,
            boundary,
            self._workspace,
            work.prompt,
            calls=self._calls.get(address, 0),
            heard=heard,
        )
        decision = await self._models.runners.play(spec, round, past)
        if not isinstance(decision, Answered):
            raise ModelCallError(runner.name, "The step ended without a text.")
        return decision.answer

    async def _toolbox(self, address: str, agent: AgentSpec) -> Toolbox:
        kept = kept_folder(self._models.kept, agent.id)
        tools = await self._models.tools(agent.id, self._workspace, agent.backend)
        given = [await c.tools(address, self._workspace) for c in self._models.capabilities]
        readable = [*self._context, kept]
        return solo_toolbox(self._workspace, readable, tools, self._project, chain(*given))

    # Commands --------------------------------------------------------------------------------

    async def _command(self, work: CommandWork, boundary: StopScope) -> None:
        await boundary.sleep(work.delay_s)
        address = work.address
        if work.was_cut and not work.is_repeatable:
            await self._ask_to_repeat(work)
        self._emit(
            ev.StepStarted(step=address, unit="bash", attempt=work.attempt, asks=work.command)
        )
        written = self._written[address] = []
        wake = current_policy().wake

        def write(text: str) -> None:
            written.append(text)
            wake()

        try:
            async with self._kept(address):
                done = await self._commands.run(work, self._recipes_of(address), write)
        finally:
            self._flush_output(address)
            del self._written[address]
        if done.exit_code and not work.tolerates:
            errors = last_chars(done.errors.strip(), _MAX_ERRORS)
            said = f": {errors}" if errors else "."
            raise OSError(f"The command ended with exit code {done.exit_code}{said}")
        self._emit(
            ev.StepFinished(
                step=address, outcome="ok", output=done.output, exit_code=done.exit_code
            )
        )

    def _kept(self, address: str) -> AbstractAsyncContextManager[None]:
        """Keep what a command may change within the block."""
        if self._models.keep is None:
            return nullcontext()
        own = [self._project] if self._project else []
        return self._models.keep(self._workspace, address, None, own)

    def _recipes_of(self, address: str) -> list[Recipe]:
        """Return the recipe that has a step, and those on the way to it."""
        recipes = self._progress.recipes
        return [recipes[each] for each in recipes if not each or is_within(address, each)]

    async def _ask_to_repeat(self, work: CommandWork) -> None:
        assert self._models.ask is not None
        said = await self._models.ask(work.address, _RUN_AGAIN.format(command=work.command))
        if not said.approved:
            self._deny(work.address, said)
            self._token.checkpoint()

    def _flush_output(self, address: str) -> None:
        written = self._written[address]
        text = "".join(written)
        written.clear()
        end = last_chars(text, _MAX_STREAMED)
        if left_out := len(text) - len(end):
            text = f"[… {left_out} characters left out]\n{end}"
        if text:
            self._emit(ev.OutputStreamed(step=address, text=text))

    # Sub-recipes and gates -------------------------------------------------------------------

    async def _load(self, work: LoadWork) -> None:
        recipe = await to_thread.run_sync(
            _read_recipe, work.path, work.beside, self._models.team.bundles
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
    """Return the text of the last step, for a recipe that names no outputs."""
    said = [unit.output.text.strip() for unit in progress.units.values() if unit.output.text]
    return said[-1] if said else ""


def _read_recipe(path: str, beside: Path | None, bundles: Mapping[str, str]) -> Recipe:
    return Recipe.from_file(find_recipe(path, beside, bundles))
