"""Runs the rounds of an external agent, which gets prompts and decides through an MCP server.

Each round starts the agent's process again, under nb_agents's supervisor and in the sandbox if
there is one, so that no process runs between rounds. An immediate stop cancels the prompt, records
the updates until its answer, closes the session and ends every process. The agent's text and calls
are recorded as they arrive. A resume continues the agent's own session with a note about
interrupted work. The agent's home directory, which contains its own sessions, is inside the
directory of the nb_agents session.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.ballot import Ballot
from nb_agents.agents.decisions import Decision
from nb_agents.agents.replay import Exchange, PastRound
from nb_agents.agents.replies import Replies
from nb_agents.agents.runner import Promise, Round, TextStream
from nb_agents.agents.stop_scope import current_policy
from nb_agents.cancel import AgentStopped
from nb_agents.config.decision_tools import DECISIONS
from nb_agents.config.team import AgentSpec
from nb_agents.errors import ModelCallError
from nb_agents.extensions.external_agents.acp.acp_permits import as_calls, is_of_team, tool_of
from nb_agents.extensions.external_agents.acp.acp_session import ANSWER_S, TEAM_ANSWER_S, AcpSession
from nb_agents.extensions.external_agents.acp.acp_updates import (
    CostUpdate,
    OwnCall,
    PlanUpdate,
    PromptEnded,
    TextUpdate,
    Update,
)
from nb_agents.extensions.external_agents.acp.agent_programs import prepare
from nb_agents.extensions.external_agents.tool_server import ToolAddress, ToolServer
from nb_agents.models.failures import QuotaLimit
from nb_agents.models.providers import find_key
from nb_agents.models.retry import AgentRefusedError, Wait, time_to_retry
from nb_agents.process.command import OpenCommand
from nb_agents.session.layout import PROGRAMS
from nb_agents.tools.base import (
    BUILT_IN,
    Tool,
    ToolCall,
    ToolEnvironment,
    ToolError,
    summarize,
    use_call,
)
from nb_agents.tools.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream


MAX_CHARS = 5_000_000
"""Maximum length of an agent's text in a round, in characters.

An agent that writes more is terminated.
"""
MAX_CALLS = 1_000
"""Maximum number of recorded tool calls per prompt. Further calls are not recorded."""
_HEAR_S = 0.1
"""Interval of the checks for new messages from the user, in seconds."""

_TOOLS_NOTE = (
    "The tools named here are on the MCP server `team`. You may see them under longer names, such "
    "as `mcp__team__new_answer`. Your working directory is your workspace. Use your built-in tools "
    "to write files and run commands."
)
_CONFINED_MODE = {"codex": "agent-full-access"}
"""Session modes for agents whose own sandbox can't run inside that of nb_agents."""

_INTERRUPTED = "You were interrupted during your work. Continue it now."
_SESSION_KEPT = "You still have the conversation so far."


class AcpRunner:
    """Plays the rounds of an agent that speaks the Agent Client Protocol."""

    resumes: Promise = "goes on"

    def __init__(self, agent: AgentSpec) -> None:
        self.name = agent.backend.model or agent.backend.type
        self._agent = agent

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`."""
        environment = round.toolbox.place
        if environment is None:
            raise ModelCallError(self.name, "It has no workspace.")
        await round.scope.wait_if_paused()
        playing = AcpRound(self.name, round, environment)
        async with ToolServer(environment.context.session) as server:
            address = await server.offer(playing.tools)
            async with self._started(playing, environment) as (session, mode):
                opening = partial(_open, session, round.workspace.resolve(), address, past, mode)
                # Nothing can be lost before the first prompt, so a graceful stop also cancels it.
                is_known = await round.scope.call_or_stop(opening)
                round.emit(ev.SessionBound(agent=round.agent, session=session.id))
                text = _first_prompt(round, past, is_known)
                return await playing.run(session, text, past, is_known)

    @asynccontextmanager
    async def _started(
        self, playing: AcpRound, environment: ToolEnvironment
    ) -> AsyncIterator[tuple[AcpSession, str]]:
        """Start the agent's process, and end it with all its child processes.

        Yields:
            The session, and the mode to set, or "" for the agent's default.
        """
        spec, home = self._agent.backend, environment.context.session / PROGRAMS / self._agent.id
        key = find_key(self._agent).value
        confined = partial(Sandbox, environment.context, spec, network=True)
        program: OpenCommand | None = None
        try:
            # In a thread, because the import takes a second.
            await to_thread.run_sync(import_module, "acp")
            prepared = await to_thread.run_sync(prepare, spec, key, home)
            sandbox = await to_thread.run_sync(confined)
            opened = sandbox.open(
                prepared.argv,
                readable=prepared.readable,
                writable=prepared.writable,
                env=prepared.env,
            )
            async with opened as program:
                mode = _CONFINED_MODE.get(spec.type, "") if sandbox.confinement.is_confined else ""
                mask = environment.context.mask.text
                async with AcpSession(
                    program, self.name, playing.permits, playing.tell, mask
                ) as session:
                    yield session, mode
        except (ToolError, OSError, ValueError) as exc:
            raise ModelCallError(self.name, f"It can't be started: {exc}") from exc
        finally:
            if program is not None:
                playing.tell_ends(program)

    async def close(self) -> None:
        """Do nothing, because each round ends its process."""


class AcpRound:
    """One round of an external agent.

    Args:
        name: The agent's display name.
        environment: The agent's workspace, and the rules for its calls.
    """

    def __init__(self, name: str, round: Round, environment: ToolEnvironment) -> None:
        self._name = name
        self._round = round
        self._check = environment.check
        self._snapshot_files = environment.keep
        self._ballot = Ballot(round)
        self._calls = _OwnCalls(round)
        self._cost = self._waited_s = 0.0
        self._chars = 0
        self._last = ""
        self._added: list[str] = []
        self._ends: tuple[ev.ProcessExitChecked, ...] = ()

    def tools(self) -> list[Tool]:
        """Return the agent's tools, without those that external agents have built in."""
        offered_tools = (tool for tool in self._round.toolbox.tools if not _is_built_in(tool.name))
        # The server calls tools in its own tasks, which don't know the agent.
        return [*self._ballot.tools(), *(tool.within(self._calling) for tool in offered_tools)]

    @asynccontextmanager
    async def _calling(self, args: dict[str, Any]) -> AsyncIterator[None]:
        with use_call(ToolCall(self._round.agent)):
            yield

    async def run(
        self, session: AcpSession, text: str, past: PastRound | None, is_known: bool
    ) -> Decision:
        """Send prompts until the round is decided.

        Args:
            session: The agent's session.
            text: The first prompt.
            past: The recorded part of an interrupted round, or None.
            is_known: Whether the agent still has the session of that round.
        """
        from pydantic_ai.messages import ModelResponse, TextPart

        resumes_turn = is_known and past is not None and past.was_asking
        replies = Replies(self._round, self._name, calls_tools=not session.is_team)
        for before in past.exchanges if past else ():
            replies.recall(Exchange(before.call, ModelResponse(parts=[]), complaint="-"))
        if past is not None and past.was_asking and past.wait is not None:
            self._waited_s = past.wait.seconds_at(time.time())
        is_opening = True
        while True:
            reason = await self._ask_until_accepted(
                session, text, is_opening=is_opening, resumes_turn=resumes_turn
            )
            resumes_turn = is_opening = False
            self._ballot.check(self._name)
            if self._round.decision is not None:
                return self._round.decision
            if self._added:
                text, self._added = "\n\n".join(self._added), []
                continue
            if reason == "cancelled":  # its text is not an answer
                self._last = ""
            parts = [TextPart(self._last)] if self._last.strip() else []
            was_cut = reason == "max_tokens"
            reply = ModelResponse(parts=parts, finish_reason="length" if was_cut else "stop")
            exchange, offer = Exchange(self._round.calls, reply), self._round.context.offer()
            reading = replies.read(exchange, offer)
            self._round.decision = reading.decision
            replies.settle(exchange, reading, offer)
            if reading.decision is not None:
                return reading.decision
            # Stop before the note is written, because a resumed round needs a new one.
            self._round.scope.checkpoint()
            note = self._round.context.note(was_refused=False)
            text = "\n\n".join(filter(None, (reading.complaint, note.in_result, note.text)))

    async def _ask_until_accepted(
        self, session: AcpSession, text: str, *, is_opening: bool, resumes_turn: bool
    ) -> str:
        """Send a prompt, and return the reason why it ended.

        If the agent's provider refuses calls, wait within the limit of the run. Then the agent
        continues in the same session, with the prompt that a resume sends.

        Args:
            session: The agent's session.
            text: The prompt.
            is_opening: Whether it is the first prompt of the round or of its resume.
            resumes_turn: Whether an nb_agents team should resume its stopped turn.
        """
        scope, clock = self._round.scope, current_policy().hold.clock
        texts, earlier_s, failed_at = [text], self._waited_s, math.inf
        self._waited_s = 0.0
        for attempt in count(1):
            await scope.wait_if_paused()
            texts += filter(None, [self._round.context.take_messages()])
            tries = _Tries(attempt, earlier_s, failed_at)
            try:
                return await self._ask(session, "\n\n".join(texts), tries, resumes_turn)
            except _WaitingError as exc:
                failed_at = min(failed_at, clock())
                await scope.sleep_for(exc.wait)
                whole = _first_prompt(self._round, self._interrupted(exc.text), is_known=True)
                # The agent may have dropped the refused prompt. The opening is part of `whole`.
                texts = [whole, *texts[1 if is_opening else 0 :]]
                is_opening, resumes_turn = True, False
        raise AssertionError("unreachable")

    def _interrupted(self, text: str) -> PastRound:
        """Return the round as a resume would find it.

        Args:
            text: What the agent has written since the last prompt.
        """
        round, doing = self._round, self._calls.interrupted
        return PastRound(round.number, {}, round.opening, words=text, doing=doing)

    def tell(self, text: str) -> None:
        """Emit a notice about the agent."""
        self._round.emit(ev.Noticed(text=f"{self._round.agent}: {text}"))

    def tell_ends(self, program: OpenCommand) -> None:
        """Emit whether all processes of the agent have ended."""
        name = f"{self._round.agent}: {self._name}"
        whole = ev.ProcessExitChecked.of_processes(name, program.is_gone)
        for end in self._ends:
            self._round.emit(replace(end, what=f"{whole.what}: {end.what}"))
        self._round.emit(whole)

    async def _ask(self, session: AcpSession, text: str, tries: _Tries, resumes_turn: bool) -> str:
        """Send a prompt, record the updates, and return the reason why the prompt ended.

        Raises:
            _WaitingError: The agent's provider refuses calls, but may accept them later.
        """
        self._last = ""
        patience = anyio.CancelScope()
        saving = nullcontext() if self._snapshot_files is None else self._snapshot_files(None)
        async with (
            saving,
            self._round.call() as words,
            session.prompt(text, resumes_turn=resumes_turn) as updates,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._interrupt, session, patience)
                if session.is_team:
                    tasks.start_soon(self._stop_gracefully, session)
                try:
                    with patience:
                        prompt_end = await self._listen(updates, words)
                    if patience.cancelled_caught:
                        prompt_end = PromptEnded("cancelled")
                        if self._round.decision is None:
                            prompt_end = PromptEnded(
                                "failed", error="It did not react to a cancel."
                            )
                except anyio.get_cancelled_exc_class():
                    with anyio.CancelScope(shield=True):
                        await session.cancel()
                        with anyio.move_on_after(TEAM_ANSWER_S if session.is_team else ANSWER_S):
                            await self._listen(updates, words)
                    raise
                finally:
                    tasks.cancel_scope.cancel()
                    self._calls.cut()
            if prompt_end.refusal is not None:
                if self._round.decision is not None:  # nothing is left to ask for
                    return prompt_end.reason
                await self._fail(session, prompt_end.refusal, tries, words)
            if prompt_end.error:
                raise ModelCallError(self._name, prompt_end.error)
            if prompt_end.usage is not None:
                words.usage = replace(prompt_end.usage, cost=words.usage.cost)
            if prompt_end.reason == "cancelled" and not (self._round.decision or self._added):
                self._round.scope.checkpoint()  # a resume sends the prompt again
        return prompt_end.reason

    async def _fail(
        self, session: AcpSession, refusal: AgentRefusedError, tries: _Tries, words: TextStream
    ) -> None:
        """Raise a `_WaitingError`, or a `ModelCallError` if the prompt is given up."""
        policy, waited_s = current_policy(), tries.waited_s()
        if session.can_continue:
            words.wait = await policy.retry_after(refusal, tries.attempt, waited_s)
        if words.wait is not None:
            raise _WaitingError(refusal, words.wait, words.text)
        now = time.time()
        at = time_to_retry(refusal, now)
        advice = "" if at is None else QuotaLimit(policy.quota_wait_s, waited_s).advice(at - now)
        if policy.quota_wait_s and not session.can_continue:
            advice = "It can't continue its session later, so nb_agents does not wait."
        end = "" if not advice or refusal.message.endswith(".") else "."
        raise ModelCallError(self._name, f"{refusal.message}{end} {advice}".strip()) from refusal

    async def _interrupt(self, session: AcpSession, patience: anyio.CancelScope) -> None:
        """Cancel the prompt when the round is decided or the user sends a message."""
        while not self._ballot.ended.is_set():
            with anyio.move_on_after(_HEAR_S):
                await self._ballot.ended.wait()
            if not self._ballot.ended.is_set() and (message := self._round.context.take_messages()):
                self._added.append(message)
                break
        await session.cancel()
        patience.deadline = anyio.current_time() + (ANSWER_S if not self._added else 10 * ANSWER_S)

    async def _stop_gracefully(self, session: AcpSession) -> None:
        """Forward a graceful stop to a team, which then finishes its calls and ends the prompt."""
        with suppress(AgentStopped):
            await self._round.scope.wait_or_stop(anyio.sleep_forever)
        await session.send_cancel()

    async def _listen(
        self, updates: MemoryObjectReceiveStream[Update], words: TextStream
    ) -> PromptEnded:
        """Record updates until the prompt has ended. Returns how it ended."""
        async for update in updates:
            match update:
                case TextUpdate(channel, text):
                    words.write(text, channel)
                    self._chars += len(text)
                    self._last += text if channel == "text" else ""
                    if self._chars > MAX_CHARS:
                        limit = f"{MAX_CHARS:,} characters"
                        return PromptEnded("failed", error=f"It wrote more than {limit}.")
                case OwnCall():
                    self._calls.take(update)
                    self._last = ""
                case PlanUpdate(text):
                    self._calls.tell_plan(text)
                case CostUpdate(dollars):
                    cost = (words.usage.cost or 0.0) + max(0.0, dollars - self._cost)
                    words.usage = replace(words.usage, cost=cost)
                    self._cost = max(dollars, self._cost)
                case PromptEnded():
                    self._ends = update.ends
                    return update
        return PromptEnded("cancelled")

    async def permits(self, call: OwnCall) -> bool:
        """Return whether the rules of the team file allow the agent to make a call."""
        merged = self._calls.known(call)
        if is_of_team(merged, self.tools()):
            return True  # the tool checks its rules itself
        self._calls.take(call)
        if merged.is_cut:
            return False
        with use_call(ToolCall(self._round.agent, self._calls.id_of(merged))):
            try:
                for name, args in as_calls(merged):
                    await self._check(name, args)
            except ToolError:
                return False
        return True


class _WaitingError(AgentRefusedError):
    """A prompt failed, and the agent continues after a wait.

    Args:
        refusal: The agent's error.
        wait: The wait.
        text: What the agent had written.
    """

    def __init__(self, refusal: AgentRefusedError, wait: Wait, text: str) -> None:
        super().__init__(refusal.model, refusal.message, refusal.status_code)
        self.wait = wait
        self.text = text


class _Tries(NamedTuple):
    """The attempts to send a prompt.

    Attributes:
        attempt: The number of the current one, starting at 1.
        earlier_s: Seconds that an earlier process has waited with the prompt.
        failed_at: When the first one failed, on the run's clock. Infinite if none has failed.
    """

    attempt: int
    earlier_s: float
    failed_at: float

    def waited_s(self) -> float:
        """Return the seconds since the first attempt failed, without pauses."""
        return self.earlier_s + max(0.0, current_policy().hold.clock() - self.failed_at)


class _OwnCalls:
    """Records the calls of an external agent's own tools.

    Attributes:
        interrupted: Descriptions of the calls that the last prompt left unfinished, by id.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._open: dict[str, OwnCall] = {}
        self._ids: dict[str, str] = {}
        self._started_at: dict[str, float] = {}
        self._names: dict[str, str] = {}
        self._summaries: dict[str, str] = {}
        self.interrupted: dict[str, str] = {}

    def id_of(self, call: OwnCall) -> str:
        """Return the id of a call in the journal, or "" if it is not recorded."""
        return self._ids.get(call.id, "")

    def known(self, call: OwnCall) -> OwnCall:
        """Return a call merged with its earlier updates."""
        before = self._open.get(call.id)
        return before.merged(call) if before else call

    def take(self, call: OwnCall) -> None:
        """Record an update of a call."""
        is_new = call.id not in self._ids
        if is_new and len(self._ids) >= MAX_CALLS:
            return
        if not is_new and call.id not in self._open:
            return  # it has ended
        now = self._open[call.id] = self.known(call)
        if is_new:
            self._ids[call.id] = f"{self._round.calls}.own{len(self._ids)}"
            self._begin(now)
        if now.status in ("completed", "failed"):
            self._end(now, "ok" if now.status == "completed" else "error", now.result)

    def tell_plan(self, text: str) -> None:
        """Record the agent's plan."""
        call = OwnCall(f"plan {len(self._ids)}", title="plan", status="completed", result=text)
        self.take(call)

    def cut(self) -> None:
        """Record unfinished calls as interrupted, and clear the list of calls."""
        self.interrupted = {
            self.id_of(call): f"{self._names[id]} {self._summaries[id]}"
            for id, call in self._open.items()
        }
        for call in tuple(self._open.values()):
            self._end(call, "cut", "")
        self._ids.clear()
        self._names.clear()
        self._summaries.clear()
        self._started_at.clear()

    def _begin(self, call: OwnCall) -> None:
        self._started_at[call.id] = anyio.current_time()
        tool = self._names[call.id] = tool_of(call)
        about = summarize(tool, call.args) if isinstance(call.args, dict) else ""
        self._round.flush()
        summary = self._summaries[call.id] = call.title[:80] if call.title != tool else about
        self._round.begin_tool(self.id_of(call), tool, call.args, summary=summary)

    def _end(self, call: OwnCall, outcome: Any, result: str) -> None:
        del self._open[call.id]
        if self._round.decision is not None and any(name in call.title for name in DECISIONS):
            outcome = "ok"  # the decision was recorded before its prompt was cancelled
        name, began = self._names[call.id], self._started_at[call.id]
        self._round.end_tool(self.id_of(call), name, outcome, result, began)


async def _open(
    session: AcpSession, cwd: Path, tools: ToolAddress, past: PastRound | None, mode: str
) -> bool:
    """Start a session, or continue that of an interrupted round. Returns whether it was continued.

    Args:
        cwd: The session's working directory.
        tools: The address of nb_agents's tools.
        past: The recorded part of an interrupted round, or None.
        mode: The mode to set, or "" for the agent's default.
    """
    await session.start()
    is_known = await session.open(cwd, tools, past.session if past else "")
    if mode:
        await session.set_mode(mode)
    return is_known


def _first_prompt(round: Round, past: PastRound | None, is_known: bool) -> str:
    """Return the prompt that begins or continues a round.

    Args:
        past: The recorded part of an interrupted round, or None.
        is_known: Whether the agent still has the session of that round.
    """
    opening = past.opening if past else round.opening
    whole = "\n\n".join([opening.system, _TOOLS_NOTE, *opening.asks])
    if past is None:
        return whole
    texts = [str(each.response.get("text") or "") for each in past.exchanges]
    return "\n\n".join(_resuming(whole, texts, past, is_known))


def _resuming(whole: str, texts: Iterable[str], past: PastRound, is_known: bool) -> Iterator[str]:
    if is_known:
        yield f"{_INTERRUPTED} {_SESSION_KEPT} Its last task was:"
        yield whole
    else:
        yield whole
        yield _INTERRUPTED
        for text in texts:
            yield f"You had written:\n{text}"
        yield from past.notes
    if past.words:
        yield f"You were interrupted while you wrote:\n{past.words}"
    if past.doing:
        calls = "\n".join(f"- {about}" for about in past.doing.values())
        yield f"These calls may have run in part. Check first before you repeat them:\n{calls}"
    yield "Continue where you were interrupted."


def _is_built_in(tool: str) -> bool:
    """Return whether external agents have a built-in tool for the same purpose as this one."""
    declared = BUILT_IN.get(tool)
    changes = declared is not None and declared.target and declared.action != "read_file"
    return bool(changes) or tool == "web_search"
