"""``nb-agents acp``: a team as an agent of other programs, by the Agent Client Protocol.

A prompt is a turn. What each agent writes streams as thoughts, under its name; what it answers is
the result of a tool call; the final answer is the message. A gate is a request for permission,
`session/cancel` is a stop, and the second one a stop at once.
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
from nb_agents.cli.application import ROOT, add_command
from nb_agents.config.programs import NO_LIBRARY, TEAM
from nb_agents.config.team import TeamSpec, chosen_team
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.launch.api import resume, start
from nb_agents.options import RunOptions
from nb_agents.presentation.cards import card_text
from nb_agents.runs.run import Run
from nb_agents.session.history import load_session
from nb_agents.session.lookup import find_session
from nb_agents.verbs.parameters import of_run

RESUME = ("resume", "/resume")
"""Prompts that go on with the turn that was stopped."""

_SESSIONS = Path(".nb_agents", "sessions")
_LAST_S = 5.0
_NO_THOUGHTS = "Jupyter AI"
"""The client that shows no thoughts, and after a cancel no messages: only tool calls."""


def serve_agent(
    config: str | None, model: str | None, root: Path | None, timeout: float | None
) -> None:
    """Be an agent of Jupyter AI, Zed and others: speak their protocol on stdin and stdout."""
    try:
        import acp
    except ImportError:
        raise UserError(NO_LIBRARY) from None
    team = chosen_team(config, model)
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


add_command("acp", serve_agent, (*of_run("config", "model", "timeout"), ROOT))


@dataclass
class _Conversation:
    """A session of a client.

    Attributes:
        root: Where its turns are.
        run: The turn that works, or the last one.
        begins: Whether a turn is about to begin.
        stops: How often the client has cancelled the turn.
        speaker: Whose words came last.
    """

    root: Path
    run: Run | None = None
    begins: bool = False
    stops: int = 0
    speaker: str = ""
    asking: set[asyncio.Task[None]] = field(default_factory=set)


class TeamAgent:
    """The agent side of the protocol.

    Args:
        team: The team; None for the demo team.
        root: The session root; by default below each session's working directory.
        timeout_s: The time limit of a turn.
    """

    def __init__(
        self, team: TeamSpec | None, root: Path | None = None, timeout_s: float | None = None
    ) -> None:
        self._team, self._root, self._timeout_s = team, root, timeout_s
        self._open: dict[str, _Conversation] = {}
        self._client_name = ""

    def on_connect(self, conn: Any) -> None:
        """Take the connection to the client."""
        self._client = conn

    async def initialize(self, protocol_version: int, client_info: Any = None, **_: Any) -> Any:
        """Say who this is, and what it can do."""
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
        """Open a conversation; its first prompt makes its directory."""
        from acp.schema import NewSessionResponse

        name = f"session_{datetime.now():%Y%m%d_%H%M%S}_{token_hex(2)}"
        self._open[name] = _Conversation(self._root_at(cwd))
        return NewSessionResponse(session_id=name)

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> Any:
        """Open a conversation of before."""
        from acp.schema import ResumeSessionResponse

        self._find(session_id, cwd)
        return ResumeSessionResponse()

    async def load_session(self, session_id: str, cwd: str, **_: Any) -> Any:
        """Open a conversation of before, and say again what was said."""
        import acp

        path = self._find(session_id, cwd)
        for turn in (await to_thread.run_sync(load_session, path)).begun:
            await self._tell(session_id, acp.update_user_message_text(turn.view.task))
            said = turn.view.answer or "(stopped)"
            await self._tell(session_id, acp.update_agent_message_text(said))
        return acp.schema.LoadSessionResponse()

    def _root_at(self, cwd: str) -> Path:
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
        """Stop a conversation's turn at once."""
        from acp.schema import CloseSessionResponse

        if (known := self._open.get(session_id)) is not None:
            await _ended(known)
        return CloseSessionResponse()

    async def end(self) -> None:
        """Stop all turns at once, and wait until they are saved."""
        for known in self._open.values():
            await _ended(known)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop a conversation's turn: gracefully, and the second time at once."""
        if (known := self._open.get(session_id)) is not None:
            known.stops += 1
            if known.run is not None and not known.begins:
                known.run.stop(now=known.stops > 1, reason="cancelled by the client")

    async def prompt(self, session_id: str, prompt: list[Any], **meta: Any) -> Any:
        """Work through one turn, or go on with one where the client's ``_meta`` asks for it."""
        import acp
        from acp.schema import PromptResponse

        known = self._open.get(session_id)
        if known is None:
            raise acp.RequestError.invalid_params({"details": f"No session {session_id!r}."})
        if known.begins or (known.run is not None and not known.run.is_over):
            raise acp.RequestError.invalid_params({"details": "A turn works. Cancel it first."})
        try:
            async with _beginning(known):
                goes_on = bool((meta.get(TEAM) or {}).get("goes_on"))
                known.run = await to_thread.run_sync(
                    self._begin, session_id, known.root, _text_of(prompt), goes_on
                )
        except NbAgentsError as exc:
            await self._tell(session_id, acp.update_agent_message_text(str(exc)))
            return PromptResponse(stop_reason="end_turn")
        for number in range(known.stops):  # they came while it began
            known.run.stop(now=number > 0, reason="cancelled by the client")
        await self._show(session_id, known, known.run)
        view = known.run.view
        await self._tell_end(session_id, known.run)
        return PromptResponse(
            stop_reason="cancelled" if view.status == "cancelled" else "end_turn",
            usage=_usage(known.run),
            field_meta={TEAM: {"ends": known.run.receipt.ends}},
        )

    def _begin(self, session: str, root: Path, text: str, goes_on: bool) -> Run:
        options = RunOptions(session_root=root, timeout=self._timeout_s)
        if text.strip() in RESUME or (goes_on and _was_stopped(root, session)):
            return resume(session, self._team, options=options)
        return start(text, self._team, session, options=options)

    async def _show(self, session: str, known: _Conversation, run: Run) -> None:
        """Pass on what happens until the turn has ended."""
        try:
            async for event in run.events():
                for update in _updates(event, known):
                    await self._tell(session, update)
                if isinstance(event, ev.ApprovalAsked) and event.wants == "approval":
                    task = asyncio.create_task(self._ask(session, run, event))
                    known.asking.add(task)
                    task.add_done_callback(known.asking.discard)
        finally:
            for task in tuple(known.asking):
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

    async def _tell_end(self, session: str, run: Run) -> None:
        import acp

        end, is_stopped = _end_of(run), run.view.status == "cancelled"
        if self._client_name == TEAM and is_stopped:
            return  # it has a card of its own
        if self._client_name != _NO_THOUGHTS:
            await self._tell(session, acp.update_agent_message_text(end))
        elif is_stopped:
            await self._tell(session, _said("end", "Stopped. Write “resume” to go on.", end))
        else:
            await self._tell(session, acp.update_agent_message_text(f"\n\n---\n\n{end}"))

    async def _tell(self, session: str, update: Any) -> None:
        import acp

        is_thought = update.session_update == "agent_thought_chunk"
        if is_thought and self._client_name == _NO_THOUGHTS:
            update = acp.update_agent_message_text(update.content.text)
        await self._client.session_update(session_id=session, update=update)


@asynccontextmanager
async def _beginning(known: _Conversation) -> AsyncIterator[None]:
    known.begins, known.stops, known.speaker = True, 0, ""
    try:
        yield
    finally:
        known.begins = False


async def _ended(known: _Conversation) -> None:
    run = known.run
    if run is not None and not run.is_over:
        run.stop(now=True, reason="the client closed the session")
        wait = partial(run.wait, _LAST_S, raise_on_stop=False)
        with suppress(TimeoutError):
            await to_thread.run_sync(wait, abandon_on_cancel=True)


def _was_stopped(root: Path, session: str) -> bool:
    turns = load_session(find_session(root, session)).begun
    return bool(turns) and turns[-1].view.status != "completed"


def _text_of(prompt: list[Any]) -> str:
    """Return a prompt's text; a file that it links to is named."""
    parts = [getattr(block, "text", None) or getattr(block, "uri", "") for block in prompt]
    return "\n".join(part for part in parts if part)


def _updates(event: ev.Event, known: _Conversation) -> list[Any]:
    """Return what a client is told of an event."""
    import acp

    match event:
        case ev.TextStreamed(agent=agent, channel="text" | "thinking" | "answer", text=text):
            head = "" if agent == known.speaker else f"\n\n**{agent}**: "
            known.speaker = agent
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
            return [_said(f"answer {event.seq}", f"{agent} answers", answer)]
        case ev.VoteCast(agent=agent, target=target, reason=reason):
            return [_said(f"vote {event.seq}", f"{agent} votes for {target}", reason)]
        case ev.Noticed(text=text):
            return [acp.update_agent_thought_text(f"\n\n{text}")]
        case ev.ApprovalAsked(prompt=prompt, wants="input"):
            asked = f"\n\n{prompt} (`nb-agents answer` answers it.)"
            return [acp.update_agent_thought_text(asked)]
    return []


def _said(call: str, title: str, text: str) -> Any:
    import acp

    content = [acp.tool_content(acp.text_block(text))]
    return acp.start_tool_call(
        call, title, kind="think", status="completed", content=content, raw_output=text
    )


def _end_of(run: Run) -> str:
    """Return the final answer, or what became of the turn."""
    if run.view.status != "completed":
        return card_text(run.view, str(run.path), run.preview)
    found = run.result
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)


def _usage(run: Run) -> Any:
    from acp.schema import Usage

    agents = run.view.agents.values()
    given, taken = sum(a.input_tokens for a in agents), sum(a.output_tokens for a in agents)
    return Usage(input_tokens=given, output_tokens=taken, total_tokens=given + taken)
