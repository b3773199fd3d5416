"""An agent that is a program: it plays a round by prompts, and decides by our MCP server.

Each round starts the program anew, below our supervisor and in the sandbox where there is one, so
that nothing of it lives between rounds. A stop at once cancels the prompt, takes what still comes
until its answer, closes the session and ends every process. What the program has written and done
is journalled as it comes; a resume goes on with the program's own session, and a note on what was
cut. The home directory with these sessions lies in the directory of ours.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.acp.acp_session import ANSWER_S, TEAM_ANSWER_S, AcpSession
from nb_agents.agents.acp.acp_updates import (
    CostTold,
    OwnCall,
    PlanTold,
    PromptEnded,
    Update,
    Words,
)
from nb_agents.agents.acp.agent_programs import prepare
from nb_agents.agents.ballot import Ballot
from nb_agents.agents.decisions import Decision
from nb_agents.agents.replay import Exchange, PastRound
from nb_agents.agents.replies import Replies
from nb_agents.agents.runner import Promise, Round, WordStream
from nb_agents.cancel import AgentStopped
from nb_agents.config.decision_tools import DECISIONS
from nb_agents.config.team import AgentSpec
from nb_agents.errors import ModelCallError
from nb_agents.models.providers import find_key
from nb_agents.process.command import OpenCommand
from nb_agents.tools.base import BUILT_IN, Tool, ToolCall, ToolError, ToolPlace, calling, summarize
from nb_agents.tools.sandbox import Sandbox
from nb_agents.tools.tool_server import ToolServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream


MAX_CHARS = 5_000_000
"""Limit of the words of one prompt; a program that writes more is ended."""
MAX_CALLS = 1_000
"""Tool calls of one prompt that are journalled; more are only counted."""
_HEAR_S = 0.1
"""How often a working agent's new follow-up texts are looked for, seconds."""

_NAME = re.compile(r"[\w.-]{1,64}")

_TOOLS_NOTE = (
    "The tools named here are those of the MCP server `team`; you may know them by longer names, "
    "such as `mcp__team__new_answer`. Your working directory is your own workspace. Write files "
    "and run commands with the tools of your own."
)
_CONFINED_MODE = {"codex": "agent-full-access"}
"""Modes of programs whose own sandbox does not start within ours."""

_GO_ON = "You were stopped in the middle of your work, and now go on with it."
_STILL_HELD = "The conversation so far is the one that you remember."


class AcpRunner:
    """Plays an agent's rounds by a program that speaks the Agent Client Protocol.

    Args:
        agent: The agent.
    """

    resumes: Promise = "goes on"

    def __init__(self, agent: AgentSpec) -> None:
        self.name = agent.backend.model or agent.backend.type
        self._agent = agent

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`."""
        place = round.toolbox.place
        if place is None:
            raise ModelCallError(self.name, "It has no place to work in.")
        await round.scope.wait_if_paused()
        playing = AcpRound(self.name, round, place)
        async with ToolServer() as server:
            address = await server.offer(playing.tools)
            async with self._started(playing, place) as (session, mode):
                await session.start()
                is_known = await session.open(
                    round.workspace.resolve(), address, past.session if past else ""
                )
                if mode:
                    await session.set_mode(mode)
                round.emit(ev.SessionBound(agent=round.agent, session=session.id))
                text = _first_prompt(round, past, is_known)
                return await playing.run(session, text, past, is_known)

    @asynccontextmanager
    async def _started(
        self, playing: AcpRound, place: ToolPlace
    ) -> AsyncIterator[tuple[AcpSession, str]]:
        """Start the program, and end it with all that it has started.

        Yields:
            Its session, and the mode that it is to be in; "" for its own.
        """
        spec, home = self._agent.backend, place.context.session / "programs" / self._agent.id
        key = find_key(self._agent).value
        given = await to_thread.run_sync(prepare, spec, key, home)
        confined = partial(Sandbox, place.context, spec, network=True)
        sandbox = await to_thread.run_sync(confined)
        program: OpenCommand | None = None
        try:
            opened = sandbox.open(
                given.argv, readable=given.readable, writable=given.writable, env=given.env
            )
            async with opened as program:
                mode = _CONFINED_MODE.get(spec.type, "") if sandbox.confinement.is_confined else ""
                async with AcpSession(program, self.name, playing.permits) as session:
                    yield session, mode
        except (ToolError, OSError, ValueError) as exc:
            raise ModelCallError(self.name, f"It can't be started: {exc}") from exc
        finally:
            if program is not None:
                playing.tell_ends(program)

    async def close(self) -> None:
        """Do nothing: each round ends its program."""


class AcpRound:
    """One round of a program.

    Args:
        name: What people call the program.
        round: The round.
        place: Where it works, and the rules of its calls.
    """

    def __init__(self, name: str, round: Round, place: ToolPlace) -> None:
        self._name = name
        self._round = round
        self._check = place.check
        self._keep = place.keep
        self._ballot = Ballot(round)
        self._calls = _OwnCalls(round)
        self._cost = 0.0
        self._chars = 0
        self._last = ""
        self._added: list[str] = []
        self._ends: tuple[ev.EndChecked, ...] = ()

    def tools(self) -> list[Tool]:
        """Return the tools that the program is offered."""
        others = (tool for tool in self._round.toolbox.tools if not _is_its_own(tool.name))
        return [*self._ballot.tools(), *others]

    async def run(
        self, session: AcpSession, text: str, past: PastRound | None, is_known: bool
    ) -> Decision:
        """Send prompts until the round is decided.

        Args:
            session: The program's session.
            text: The first prompt.
            past: The journalled part of an interrupted round.
            is_known: Whether the program still has the session of that.
        """
        from pydantic_ai.messages import ModelResponse, TextPart

        goes_on = is_known and past is not None and past.was_asking
        replies = Replies(self._round, self._name, calls_tools=not session.is_team)
        for before in past.exchanges if past else ():
            replies.recall(Exchange(before.call, ModelResponse(parts=[]), complaint="-"))
        while True:
            await self._round.scope.wait_if_paused()
            if heard := self._round.context.hear():
                text = f"{text}\n\n{heard}"
            reason = await self._ask(session, text, goes_on=goes_on)
            goes_on = False
            self._ballot.check(self._name)
            if self._round.decision is not None:
                return self._round.decision
            if self._added:
                text, self._added = "\n\n".join(self._added), []
                continue
            if reason == "cancelled":  # its words are no answer
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
            # A stop comes first: a resumed round gets a new note on the time left.
            self._round.scope.checkpoint()
            note = self._round.context.note(was_refused=False)
            text = "\n\n".join(filter(None, (reading.complaint, note.in_result, note.text)))

    def tell_ends(self, program: OpenCommand) -> None:
        """Emit what is known of the end of the program, and of what a team had at work itself."""
        name = f"{self._round.agent}: {self._name}"
        whole = ev.EndChecked.of_processes(name, program.is_gone)
        for end in self._ends:
            self._round.emit(replace(end, what=f"{whole.what}: {end.what}"))
        self._round.emit(whole)

    async def _ask(self, session: AcpSession, text: str, *, goes_on: bool) -> str:
        """Send one prompt and journal what comes; return the reason of its end."""
        self._last = ""
        patience = anyio.CancelScope()
        kept = nullcontext() if self._keep is None else self._keep()
        async with (
            kept,
            self._round.call() as words,
            session.prompt(text, goes_on=goes_on) as updates,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._interrupt, session, patience)
                if session.is_team:
                    tasks.start_soon(self._stop_gracefully, session)
                try:
                    with patience:
                        ended = await self._listen(updates, words)
                    if patience.cancelled_caught:
                        ended = PromptEnded("cancelled")
                        if self._round.decision is None:
                            ended = PromptEnded("failed", error="It did not take a cancel.")
                except anyio.get_cancelled_exc_class():
                    with anyio.CancelScope(shield=True):
                        await session.cancel()
                        with anyio.move_on_after(TEAM_ANSWER_S if session.is_team else ANSWER_S):
                            await self._listen(updates, words)
                    raise
                finally:
                    tasks.cancel_scope.cancel()
                    self._calls.cut()
            if ended.error:
                raise ModelCallError(self._name, ended.error)
            if ended.usage is not None:
                words.usage = replace(ended.usage, cost=words.usage.cost)
            if ended.reason == "cancelled" and not (self._round.decision or self._added):
                self._round.scope.checkpoint()  # a resume sends the prompt again
        return ended.reason

    async def _interrupt(self, session: AcpSession, patience: anyio.CancelScope) -> None:
        """Cancel the prompt when the round is decided, or a person says something."""
        while not self._ballot.ended.is_set():
            with anyio.move_on_after(_HEAR_S):
                await self._ballot.ended.wait()
            if not self._ballot.ended.is_set() and (heard := self._round.context.hear()):
                self._added.append(heard)
                break
        await session.cancel()
        patience.deadline = anyio.current_time() + (ANSWER_S if not self._added else 10 * ANSWER_S)

    async def _stop_gracefully(self, session: AcpSession) -> None:
        """Pass a graceful stop on to a team, whose work in hand then ends the prompt."""
        with suppress(AgentStopped):
            await self._round.scope.wait_or_stop(anyio.sleep_forever)
        await session.send_cancel()

    async def _listen(
        self, updates: MemoryObjectReceiveStream[Update], words: WordStream
    ) -> PromptEnded:
        """Journal updates until the prompt has ended, and return how."""
        async for update in updates:
            match update:
                case Words(channel, text):
                    words.write(text, channel)
                    self._chars += len(text)
                    self._last += text if channel == "text" else ""
                    if self._chars > MAX_CHARS:
                        limit = f"{MAX_CHARS:,} characters"
                        return PromptEnded("failed", error=f"It wrote more than {limit}.")
                case OwnCall():
                    self._calls.take(update)
                    self._last = ""
                case PlanTold(text):
                    self._calls.tell_plan(text)
                case CostTold(dollars):
                    cost = (words.usage.cost or 0.0) + max(0.0, dollars - self._cost)
                    words.usage = replace(words.usage, cost=cost)
                    self._cost = max(dollars, self._cost)
                case PromptEnded():
                    self._ends = update.ends
                    return update
        return PromptEnded("cancelled")

    async def permits(self, call: OwnCall) -> bool:
        """Return whether the program may make a call, by the rules of the team's file."""
        known = self._calls.known(call)
        if self._is_ours(known):
            return True  # its own rules are heeded where it is called
        self._calls.take(call)
        with calling(ToolCall(self._round.agent, self._calls.id_of(known))):
            try:
                for name, args in as_calls(known):
                    await self._check(name, args)
            except ToolError:
                return False
        return True

    def _is_ours(self, call: OwnCall) -> bool:
        if call.kind in ("execute", "edit", "delete", "move", "fetch"):
            return False
        names = (tool.name for tool in self.tools())
        return "team" in call.title and any(name in call.title for name in names)


def as_calls(call: OwnCall) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a program's call as calls of our tools, for rules that name these.

    Args:
        call: The call; of what it does, its kind counts.
    """
    raw = call.args if isinstance(call.args, dict) else {}
    paths = call.paths or tuple(
        text for key in ("file_path", "path", "filePath") if isinstance(text := raw.get(key), str)
    )
    match call.kind:
        case "execute":
            given = raw.get("command")
            line = given if isinstance(given, str) else call.title
            if isinstance(given, list):
                line = shlex.join(map(str, given))
            yield "run_command", {"command": line}
        case "edit" | "delete" | "move" | "read" | "search":
            name = {"delete": "delete_file", "read": "read_file", "search": "read_file"}
            for path in paths or ("",):
                yield name.get(call.kind, "edit_file"), {**raw, "path": path}
        case "fetch":
            yield "fetch", {"url": call.title, **raw}
        case _:
            yield tool_of(call), raw


def tool_of(call: OwnCall) -> str:
    """Return what a call's tool is called: by its title where that is a name, or by its kind."""
    is_named = call.kind in ("", "other", "think") and _NAME.fullmatch(call.title)
    return call.title if is_named else call.kind or "other"


class _OwnCalls:
    """The calls of a program's own tools, as they begin and end."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._open: dict[str, OwnCall] = {}
        self._ids: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._names: dict[str, str] = {}

    def id_of(self, call: OwnCall) -> str:
        """Return the id by which the journal knows a call; "" if it does not."""
        return self._ids.get(call.id, "")

    def known(self, call: OwnCall) -> OwnCall:
        """Return a call with what was told of it before."""
        before = self._open.get(call.id)
        return before.merged(call) if before else call

    def take(self, call: OwnCall) -> None:
        """Emit what is new of a call."""
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
        """Emit the program's plan."""
        call = OwnCall(f"plan {len(self._ids)}", title="plan", status="completed", result=text)
        self.take(call)

    def cut(self) -> None:
        """Emit that the calls which have no end were cut, and begin anew."""
        for call in tuple(self._open.values()):
            self._end(call, "cut", "")
        self._ids.clear()
        self._names.clear()
        self._began.clear()

    def _begin(self, call: OwnCall) -> None:
        self._began[call.id] = anyio.current_time()
        tool = self._names[call.id] = tool_of(call)
        about = summarize(tool, call.args) if isinstance(call.args, dict) else ""
        self._round.flush()
        summary = call.title[:80] if call.title != tool else about
        self._round.begin_tool(self.id_of(call), tool, call.args, summary=summary)

    def _end(self, call: OwnCall, outcome: Any, result: str) -> None:
        del self._open[call.id]
        if self._round.decision is not None and any(name in call.title for name in DECISIONS):
            outcome = "ok"  # it was taken, and then its prompt was cancelled
        name, began = self._names[call.id], self._began[call.id]
        self._round.end_tool(self.id_of(call), name, outcome, result, began)


def _first_prompt(round: Round, past: PastRound | None, is_known: bool) -> str:
    """Return the prompt that begins a round, or goes on with one.

    Args:
        round: The round.
        past: The journalled part of an interrupted round.
        is_known: Whether the program still has the session of before.
    """
    opening = past.opening if past else round.opening
    whole = "\n\n".join([opening.system, _TOOLS_NOTE, *opening.asks])
    if past is None:
        return whole
    said = [str(each.response.get("text") or "") for each in past.exchanges]
    return "\n\n".join(_resuming(whole, said, past, is_known))


def _resuming(whole: str, said: Iterable[str], past: PastRound, is_known: bool) -> Iterator[str]:
    if is_known:
        yield f"{_GO_ON} {_STILL_HELD} Its last task was:"
        yield whole
    else:
        yield whole
        yield _GO_ON
        for text in said:
            yield f"You had written:\n{text}"
        yield from past.notes
    if past.words:
        yield f"You had begun to write, and were cut:\n{past.words}"
    if past.doing:
        calls = "\n".join(f"- {about}" for about in past.doing.values())
        yield f"These calls may have happened in part; look before you repeat them:\n{calls}"
    yield "Go on where you were stopped."


def _is_its_own(tool: str) -> bool:
    """Return whether a program has a tool of its own that does the same."""
    declared = BUILT_IN.get(tool)
    changes = declared is not None and declared.target and declared.action != "read_file"
    return bool(changes) or tool == "web_search"
