"""``nb-agents acp``: serves a team as an agent over the Agent Client Protocol (ACP).

A prompt starts a turn. The client receives the text of each agent as thoughts under the agent's
name, each answer as the result of a tool call, and the final answer as the message. A gate becomes
a permission request. `session/cancel` is a graceful stop, and a second one an immediate stop.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any

from anyio import to_thread

from nb_agents import events as ev
from nb_agents.cli.application import ROOT
from nb_agents.config.extras import missing_extra
from nb_agents.config.mcp_servers import TEAM
from nb_agents.config.team import TeamSpec, team_from_options
from nb_agents.disk.entry import can_be_path
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.extensions.external_agents.program_types import NO_LIBRARY
from nb_agents.launch.api import resume, start_verbatim
from nb_agents.launch.run import Run
from nb_agents.options import RunOptions
from nb_agents.presentation.cards import card_text
from nb_agents.session.history import load_session
from nb_agents.session.lookup import find_session
from nb_agents.verbs.parameters import run_parameters
from nb_agents.verbs.verb import Command

RESUME = ("resume", "/resume")
"""Prompts that resume an incomplete turn."""

_SESSIONS = Path(".nb_agents", "sessions")
_LAST_S = 5.0
_NO_THOUGHTS = "Jupyter AI"
"""A client that does not show thoughts and that, after a cancel, only shows tool calls."""


def serve_agent(
    config: str | None, model: str | None, root: Path | None, timeout: float | None
) -> None:
    """Serve a team as an Agent Client Protocol (ACP) agent on stdin/stdout, such as for Zed."""
    if remedy := missing_extra("acp"):
        raise UserError(f"{NO_LIBRARY} {remedy}")
    import acp

    team = team_from_options(config, model)
    if isinstance(team, str):
        team = TeamSpec.from_file(team)

    async def main() -> None:
        agent: Any = TeamAgent(team, root, timeout)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await acp.run_agent(agent, use_unstable_protocol=True)
        except asyncio.CancelledError:
            pass
        finally:
            await agent.end()

    asyncio.run(main())


COMMAND = Command(serve_agent, (*run_parameters("config", "model", "timeout"), ROOT))


@dataclass
class _Conversation:
    """An ACP session of a client, and its turn.

    Attributes:
        root: The session root.
        run: The live turn, or the last one.
        begins: Whether a turn is being started.
        stops: Number of times the client has cancelled the turn.
        speaker: The agent of the latest streamed text.
        asking: Tasks that are waiting for the client's answer to a permission request.
    """

    root: Path
    run: Run | None = None
    begins: bool = False
    stops: int = 0
    speaker: str = ""
    asking: set[asyncio.Task[None]] = field(default_factory=set)


class TeamAgent:
    """The agent side of the Agent Client Protocol, whose work is done by a team.

    Args:
        team: The team, or None for the demo team.
        root: The session root. By default, a directory in each session's working directory.
        timeout_s: The time limit of a turn, in seconds.
    """

    def __init__(
        self, team: TeamSpec | None, root: Path | None = None, timeout_s: float | None = None
    ) -> None:
        self._team, self._root, self._timeout_s = team, root, timeout_s
        self._open: dict[str, _Conversation] = {}
        self._client_name = ""

    def on_connect(self, conn: Any) -> None:
        """Store the connection to the client."""
        self._client = conn

    async def initialize(self, protocol_version: int, client_info: Any = None, **_: Any) -> Any:
        """Return the name, version and capabilities of this agent."""
        from acp.schema import (
            AgentCapabilities,
            Implementation,
            InitializeResponse,
            SessionCapabilities,
            SessionCloseCapabilities,
            SessionResumeCapabilities,
        )

        self._client_name = client_info.name if client_info else ""
        sessions = SessionCapabilities(
            close=SessionCloseCapabilities(), resume=SessionResumeCapabilities()
        )
        return InitializeResponse(
            protocol_version=1,
            agent_capabilities=AgentCapabilities(load_session=True, session_capabilities=sessions),
            agent_info=Implementation(name=TEAM, version=version(TEAM)),
        )

    async def new_session(self, cwd: str, **_: Any) -> Any:
        """Open a new session. Its first prompt creates the directory."""
        from acp.schema import NewSessionResponse

        name = f"session_{datetime.now():%Y%m%d_%H%M%S}_{token_hex(2)}"
        self._open[name] = _Conversation(self._root_at(cwd))
        return NewSessionResponse(session_id=name)

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> Any:
        """Open an existing session."""
        from acp.schema import ResumeSessionResponse

        self._find(session_id, cwd)
        return ResumeSessionResponse()

    async def load_session(self, session_id: str, cwd: str, **_: Any) -> Any:
        """Open an existing session, and send its earlier tasks and answers to the client."""
        import acp

        path = self._find(session_id, cwd)
        for turn in (await to_thread.run_sync(load_session, path)).begun:
            await self._send(session_id, acp.update_user_message_text(turn.view.task))
            answer = turn.view.answer or "(stopped)"
            await self._send(session_id, acp.update_agent_message_text(answer))
        return acp.schema.LoadSessionResponse()

    def _root_at(self, cwd: str) -> Path:
        from acp import RequestError

        if not can_be_path(cwd):
            raise RequestError.invalid_params({"details": f"{cwd!r} is not a directory."})
        return self._root or Path(cwd) / _SESSIONS

    def _find(self, session: str, cwd: str) -> Path:
        from acp import RequestError

        root = self._root_at(cwd)
        try:
            path = find_session(root, session or "-")
        except NbAgentsError as exc:
            raise RequestError.invalid_params({"details": str(exc)}) from None
        self._open[session] = _Conversation(root)
        return path

    async def close_session(self, session_id: str, **_: Any) -> Any:
        """Stop a session's turn immediately."""
        from acp.schema import CloseSessionResponse

        if (conversation := self._open.get(session_id)) is not None:
            await _end_turn(conversation)
        return CloseSessionResponse()

    async def end(self) -> None:
        """Stop all turns immediately, and wait until they are saved."""
        for conversation in self._open.values():
            await _end_turn(conversation)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop a session's turn gracefully, or immediately if this is the second cancel."""
        if (conversation := self._open.get(session_id)) is not None:
            conversation.stops += 1
            if conversation.run is not None and not conversation.begins:
                conversation.run.stop(now=conversation.stops > 1, source="acp")

    async def prompt(self, session_id: str, prompt: list[Any], **meta: Any) -> Any:
        """Run a turn, or resume one if the prompt or the client's ``_meta`` requests it."""
        import acp
        from acp.schema import PromptResponse

        conversation = self._open.get(session_id)
        if conversation is None:
            raise acp.RequestError.invalid_params({"details": f"No session {session_id!r}."})
        run = conversation.run
        if conversation.begins or (run is not None and not run.is_over):
            details = "A turn is still running. Cancel it first."
            raise acp.RequestError.invalid_params({"details": details})
        try:
            async with _beginning(conversation):
                resumes = bool((meta.get(TEAM) or {}).get("goes_on"))
                run = conversation.run = await to_thread.run_sync(
                    self._begin, session_id, conversation.root, _text_of(prompt), resumes
                )
        except NbAgentsError as exc:
            await self._send(session_id, acp.update_agent_message_text(str(exc)))
            return PromptResponse(stop_reason="end_turn")
        for number in range(conversation.stops):  # cancels that arrived during the start
            run.stop(now=number > 0, source="acp")
        await self._show(session_id, conversation, run)
        view = run.view
        await self._send_end(session_id, run)
        return PromptResponse(
            stop_reason="cancelled" if view.status == "cancelled" else "end_turn",
            usage=_usage(run),
            field_meta={TEAM: {"ends": run.receipt.ends}},
        )

    def _begin(self, session: str, root: Path, text: str, resumes: bool) -> Run:
        options = RunOptions(session_root=root, timeout=self._timeout_s)
        if text.strip() in RESUME or (resumes and _was_stopped(root, session)):
            return resume(session, self._team, options=options)
        return start_verbatim(text, self._team, session, options=options)

    async def _show(self, session: str, conversation: _Conversation, run: Run) -> None:
        """Send the turn's events and gates to the client until the turn has ended."""
        try:
            async for event in run.events():
                for update in _updates(event, conversation):
                    await self._send(session, update)
                if isinstance(event, ev.ApprovalAsked) and event.wants == "approval":
                    task = asyncio.create_task(self._ask(session, run, event))
                    conversation.asking.add(task)
                    task.add_done_callback(conversation.asking.discard)
        finally:
            for task in tuple(conversation.asking):
                task.cancel()
        await to_thread.run_sync(partial(run.wait, raise_on_stop=False))

    async def _ask(self, session: str, run: Run, gate: ev.ApprovalAsked) -> None:
        from acp.schema import PermissionOption, ToolCallUpdate

        about = ToolCallUpdate(
            tool_call_id=f"gate {gate.step}", kind="other", title=gate.prompt, status="pending"
        )
        options = [
            PermissionOption(option_id="approve", name="Approve", kind="allow_once"),
            PermissionOption(option_id="deny", name="Deny", kind="reject_once"),
        ]
        answer = await self._client.request_permission(
            session_id=session, tool_call=about, options=options
        )
        outcome = answer.outcome
        if outcome.outcome == "selected" and not run.is_over:
            await to_thread.run_sync(
                partial(run.decide, outcome.option_id == "approve", gate=gate.step)
            )

    async def _send_end(self, session: str, run: Run) -> None:
        import acp

        end, is_stopped = _end_of(run), run.view.status == "cancelled"
        if self._client_name == TEAM and is_stopped:
            return  # nb_agents as the client shows its own card
        if self._client_name != _NO_THOUGHTS:
            await self._send(session, acp.update_agent_message_text(end))
        elif is_stopped:
            title = "Stopped. Write “resume” to resume it."
            await self._send(session, _text_call("end", title, end))
        else:
            await self._send(session, acp.update_agent_message_text(f"\n\n---\n\n{end}"))

    async def _send(self, session: str, update: Any) -> None:
        import acp

        is_thought = update.session_update == "agent_thought_chunk"
        if is_thought and self._client_name == _NO_THOUGHTS:
            update = acp.update_agent_message_text(update.content.text)
        await self._client.session_update(session_id=session, update=update)


@asynccontextmanager
async def _beginning(conversation: _Conversation) -> AsyncIterator[None]:
    conversation.begins, conversation.stops, conversation.speaker = True, 0, ""
    try:
        yield
    finally:
        conversation.begins = False


async def _end_turn(conversation: _Conversation) -> None:
    run = conversation.run
    if run is not None and not run.is_over:
        run.stop(now=True, reason="the client closed the session", source="acp")
        wait = partial(run.wait, _LAST_S, raise_on_stop=False)
        with suppress(TimeoutError):
            await to_thread.run_sync(wait, abandon_on_cancel=True)


def _was_stopped(root: Path, session: str) -> bool:
    turns = load_session(find_session(root, session)).begun
    return bool(turns) and turns[-1].view.status != "completed"


def _text_of(prompt: list[Any]) -> str:
    """Return a prompt's text. Linked files are included as their URI."""
    parts = [getattr(block, "text", None) or getattr(block, "uri", "") for block in prompt]
    return "\n".join(part for part in parts if part)


def _updates(event: ev.Event, conversation: _Conversation) -> list[Any]:
    """Return the updates that a client receives for an event."""
    import acp

    match event:
        case ev.TextStreamed(agent=agent, channel="text" | "thinking" | "answer", text=text):
            head = "" if agent == conversation.speaker else f"\n\n**{agent}**: "
            conversation.speaker = agent
            return [acp.update_agent_thought_text(f"{head}{text}")]
        case ev.ToolStarted(agent=agent, call_id=call, tool=tool, summary=summary):
            title = f"{agent}: {tool} {summary}".strip()
            return [acp.start_tool_call(f"{agent} {call}", title, kind="other", status="pending")]
        case ev.ToolFinished(agent=agent, call_id=call, outcome=outcome, result=result):
            status: Any = "completed" if outcome == "ok" else "failed"
            text = result[:2000]
            content = [acp.tool_content(acp.text_block(text))]
            end = acp.update_tool_call(
                f"{agent} {call}", status=status, content=content, raw_output=text
            )
            return [end]
        case ev.AnswerGiven(agent=agent, answer=answer):
            return [_text_call(f"answer {event.seq}", f"{agent} answers", answer)]
        case ev.VoteCast(agent=agent, target=target, reason=reason):
            return [_text_call(f"vote {event.seq}", f"{agent} votes for {target}", reason)]
        case ev.Noticed(text=text):
            return [acp.update_agent_thought_text(f"\n\n{text}")]
        case ev.ApprovalAsked(prompt=prompt, wants="input"):
            question = f"\n\n{prompt} (`nb-agents answer` answers it.)"
            return [acp.update_agent_thought_text(question)]
    return []


def _text_call(call: str, title: str, text: str) -> Any:
    """Return a completed tool call whose result is text."""
    import acp

    content = [acp.tool_content(acp.text_block(text))]
    return acp.start_tool_call(
        call, title, kind="think", status="completed", content=content, raw_output=text
    )


def _end_of(run: Run) -> str:
    """Return the final answer, or the card of a turn that did not complete."""
    if run.view.status != "completed":
        return card_text(run.view, str(run.path), run.preview)
    result = run.result
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, default=str)


def _usage(run: Run) -> Any:
    from acp.schema import Usage

    agents = run.view.agents.values()
    sent, received = sum(a.input_tokens for a in agents), sum(a.output_tokens for a in agents)
    return Usage(input_tokens=sent, output_tokens=received, total_tokens=sent + received)
