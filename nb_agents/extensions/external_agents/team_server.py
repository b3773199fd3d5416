"""``nb-agents mcp``: serves a team as tools over the Model Context Protocol (MCP).

A call to `run_team` waits for the turn and reports its progress. If the client cancels the call,
the turn stops immediately and can be resumed. Over HTTP, each request needs the token that the
command prints when it starts.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from nb_agents.cli.application import ROOT
from nb_agents.config.extras import missing_extra
from nb_agents.config.mcp_servers import TEAM
from nb_agents.config.team import TeamSpec, team_from_options
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.launch.api import resume, start_verbatim
from nb_agents.launch.finding import find_live
from nb_agents.launch.run import Run
from nb_agents.nouns import count
from nb_agents.options import RunOptions
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.cards import card_text
from nb_agents.session.layout import session_root
from nb_agents.turns.live_runs import stop_runs
from nb_agents.verbs import on_runs, on_sessions
from nb_agents.verbs.facts import SessionFacts
from nb_agents.verbs.on_runs import find_work
from nb_agents.verbs.outcome import text_of
from nb_agents.verbs.parameters import run_parameters
from nb_agents.verbs.verb import Caller, Command, Parameter

if TYPE_CHECKING:
    from nb_agents.verbs.outcome import Work

_PROGRESS_S = 1.0
"""Seconds between two progress reports to a client."""


_HTTP = Parameter(
    "http",
    "serve over HTTP on this port of 127.0.0.1 (default: on stdin and stdout)",
    None,
    is_option=True,
    kind=int,
)


def serve_tools(
    config: str | None,
    model: str | None,
    root: Path | None,
    timeout: float | None,
    http: int | None,
) -> None:
    """Serve a team as MCP tools: run_team, status, stop, resume, list_sessions."""
    if remedy := missing_extra("mcp"):
        raise UserError(f"An MCP server needs a library. {remedy}")
    team = team_from_options(config, model)
    if isinstance(team, str):
        team = TeamSpec.from_file(team)
    server = TeamServer(team, session_root(root), timeout).server
    signal.signal(signal.SIGTERM, _end)
    if http is None:
        anyio.run(server.run_stdio_async)
    else:
        anyio.run(_serve, server, http)


COMMAND = Command(serve_tools, (*run_parameters("config", "model", "timeout"), _HTTP, ROOT))


def _end(*_: object) -> None:
    """Stop and save the live turns, and end the process, although it may be waiting for stdin."""
    stop_runs()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


async def _serve(server: Any, port: int) -> None:
    """Serve the tools over HTTP until an interrupt."""
    import uvicorn

    token = secrets.token_urlsafe(32)
    # Printed before the server listens, because a client may wait for this line.
    print(f"http://127.0.0.1:{port}/mcp Authorization: Bearer {token}", file=sys.stderr)  # noqa: T201
    app = _Guarded(server.streamable_http_app(), f"Bearer {token}".encode())
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", ws="none")
    await uvicorn.Server(config).serve()


class _Guarded:
    """ASGI middleware that rejects requests without the token."""

    def __init__(self, app: Any, token: bytes) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        header = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or secrets.compare_digest(header, self._token):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class TeamServer:
    """An MCP server with the tools run_team, status, stop, resume and list_sessions.

    Args:
        team: The team, or None for the demo team.
        root: The session root.
        timeout_s: The time limit of a turn, in seconds.

    Attributes:
        server: The server object of the MCP library.
    """

    def __init__(self, team: TeamSpec | None, root: Path, timeout_s: float | None = None) -> None:
        from nb_agents.tools.mcp_sdk import tool_server

        self._team, self._root = team, root
        self._caller = Caller("mcp", TERMINAL, root)
        self._options = RunOptions(session_root=root, timeout=timeout_s)
        self._starting: dict[str, anyio.Event] = {}
        self._runs: dict[str, Run] = {}
        self.server, context = tool_server(TEAM)

        async def run_team(task: str, ctx: Any, session: str = "") -> str:
            """Let the team work on a task and return its answer.

            Args:
                task: The task, with all information that the team needs.
                session: Id of an earlier session to continue with this task.
            """
            begin = partial(
                start_verbatim, task, self._team, session or None, options=self._options
            )
            return await self._work(begin, ctx)

        async def resume_team(ctx: Any, session: str = "") -> str:
            """Resume an incomplete turn. Finished work is not repeated.

            Args:
                session: Id of the session. Defaults to the last session.
            """
            return await self._work(
                partial(resume, session, self._team, options=self._options), ctx
            )

        for waits in (run_team, resume_team):
            waits.__annotations__["ctx"] = context  # the library recognizes it by its type
        for tool in (run_team, self.status, self.stop, self.list_sessions):
            self.server.add_tool(tool)
        self.server.add_tool(resume_team, name="resume")

    async def _work(self, begin: Callable[[], Run], ctx: Any) -> str:
        from nb_agents.tools.mcp_sdk import call_key

        key, done = call_key(ctx), anyio.Event()
        begun = self._starting[key] = anyio.Event()
        try:
            run = self._runs[key] = await to_thread.run_sync(begin)
        except NbAgentsError as exc:
            return f"Not started: {exc}"
        finally:
            begun.set()
            self._starting.pop(key, None)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_report_progress, ctx, run, done)
                wait = partial(run.wait, raise_on_stop=False)
                await to_thread.run_sync(wait, abandon_on_cancel=True)
                done.set()
        except anyio.get_cancelled_exc_class():
            run.stop(now=True, reason="its call was cancelled", source="mcp")
            raise
        finally:
            self._runs.pop(key, None)
        return _result_text(run)

    async def status(self, run: str = "") -> str:
        """Return the progress of a turn: each agent's state, and answers and votes so far.

        Args:
            run: Id of its session. Defaults to the live session.
        """
        try:
            return _result_text(await to_thread.run_sync(find_live, run, self._root))
        except NbAgentsError as exc:
            return str(exc)

    async def stop(self, run: str = "", now: bool = False) -> str:
        """Stop a turn. All its work is saved, and `resume` resumes it.

        Args:
            run: Id of its session. Defaults to the live session.
            now: Whether to interrupt model calls in flight instead of waiting for them.
        """
        why = "stopped by a tool call"
        try:
            work: Work | None = None
            if run:  # `run` may be the key of a call that is still starting its turn
                if (begun := self._starting.get(run)) is not None:
                    await begun.wait()
                work = self._runs.get(run)
            if work is None:
                work = await to_thread.run_sync(find_work, run, self._caller)
            act = partial(on_runs.stop, work, self._caller, now=now, reason=why)
            return (await to_thread.run_sync(act)).text
        except NbAgentsError as exc:
            return str(exc)

    async def list_sessions(self) -> str:
        """List the sessions, latest first: id, number of turns, and state of the last turn."""
        outcome = await to_thread.run_sync(on_sessions.sessions, self._root, self._caller)
        return "\n".join(map(_line, outcome.items or ())) or text_of(outcome)


async def _report_progress(ctx: Any, run: Run, done: anyio.Event) -> None:
    """Report the progress to the client until the turn is over."""
    number = 0
    while not done.is_set():
        number += 1
        phases = ", ".join(f"{agent.id}: {agent.phase}" for agent in run.view.agents.values())
        await ctx.report_progress(number, message=phases or run.state)
        with anyio.move_on_after(_PROGRESS_S):
            await done.wait()


def _result_text(run: Run) -> str:
    if run.view.status == "completed" and run.is_over:
        result = run.result
        text = result if isinstance(result, str) else json.dumps(result, default=str)
        return f"{text}\n\n(session {run.session})"
    return card_text(run.view, str(run.path))


def _line(session: SessionFacts) -> str:
    last = session.turns[-1]
    turns = f"{count(len(session.turns), 'turn')}, the last one {last.state}"
    return f"{session.session}: {turns}: {last.task[:80]}"
