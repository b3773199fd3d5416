"""``nb-agents mcp``: a team as tools of other agents, by the Model Context Protocol.

A call of `run_team` waits for the turn and tells its progress; a client that cancels it stops the
turn at once, and the turn is kept. Over HTTP each request needs the token that the start prints.
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

from nb_agents.cli.application import ROOT, add_command
from nb_agents.config.programs import TEAM
from nb_agents.config.team import TeamSpec, chosen_team
from nb_agents.errors import NbAgentsError
from nb_agents.launch.api import resume, start
from nb_agents.nouns import count
from nb_agents.options import RunOptions
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.cards import card_text
from nb_agents.runs.finding import find_run
from nb_agents.runs.live_runs import stop_runs
from nb_agents.runs.run import Run
from nb_agents.session.layout import session_root
from nb_agents.verbs import on_runs, on_sessions
from nb_agents.verbs.facts import SessionFacts
from nb_agents.verbs.on_runs import find_work
from nb_agents.verbs.parameters import of_run
from nb_agents.verbs.verb import Caller, Parameter

if TYPE_CHECKING:
    from nb_agents.verbs.verb import Work

_TOLD_S = 1.0
"""How often a client is told of a turn's progress, seconds."""


_HTTP = Parameter(
    "http", "port of 127.0.0.1; by default stdin and stdout", None, is_option=True, kind=int
)


def serve_tools(
    config: str | None,
    model: str | None,
    root: Path | None,
    timeout: float | None,
    http: int | None,
) -> None:
    """Be tools of a coding agent: run_team, status, stop, resume, list_sessions."""
    team = chosen_team(config, model)
    if isinstance(team, str):
        team = TeamSpec.from_file(team)
    server = TeamServer(team, session_root(root), timeout).server
    signal.signal(signal.SIGTERM, _end)
    if http is None:
        anyio.run(server.run_stdio_async)
    else:
        anyio.run(_serve, server, http)


add_command("mcp", serve_tools, (*of_run("config", "model", "timeout"), _HTTP, ROOT))


def _end(*_: object) -> None:
    """Save the turns that work, and end; the thread that waits for stdin would go on waiting."""
    stop_runs()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


async def _serve(server: Any, port: int) -> None:
    """Serve over HTTP until an interrupt."""
    import uvicorn

    token = secrets.token_urlsafe(32)
    # Before the server listens: a client may wait for this line.
    print(f"http://127.0.0.1:{port}/mcp Authorization: Bearer {token}", file=sys.stderr)  # noqa: T201
    app = _Guarded(server.streamable_http_app(), f"Bearer {token}".encode())
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", ws="none")
    await uvicorn.Server(config).serve()


class _Guarded:
    """An ASGI application that answers only to those who have the token."""

    def __init__(self, app: Any, token: bytes) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or secrets.compare_digest(given, self._token):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class TeamServer:
    """The tools.

    Args:
        team: The team; None for the demo team.
        root: The session root.
        timeout_s: The time limit of a turn.

    Attributes:
        server: The server of the protocol's library.
    """

    def __init__(self, team: TeamSpec | None, root: Path, timeout_s: float | None = None) -> None:
        from nb_agents.tools.mcp_sdk import tool_server

        self._team, self._root = team, root
        self._caller = Caller("api", TERMINAL, root)
        self._options = RunOptions(session_root=root, timeout=timeout_s)
        self._begun: dict[str, anyio.Event] = {}
        self._called: dict[str, Run] = {}
        self.server, context = tool_server(TEAM)

        async def run_team(task: str, ctx: Any, session: str = "") -> str:  # noqa: D417
            """Let the team work on a task and return its answer.

            Args:
                task: What is asked, with all that the team has to know.
                session: Id of an earlier session, to ask its team something new.
            """
            begin = partial(start, task, self._team, session or None, options=self._options)
            return await self._work(begin, ctx)

        async def resume_team(ctx: Any, session: str = "") -> str:  # noqa: D417
            """Go on with the turn that was stopped last; nothing that it finished runs again.

            Args:
                session: Its id; by default the last one.
            """
            return await self._work(
                partial(resume, session, self._team, options=self._options), ctx
            )

        for waits in (run_team, resume_team):
            waits.__annotations__["ctx"] = context  # by its type the library knows it
        for tool in (run_team, self.status, self.stop, self.list_sessions):
            self.server.add_tool(tool)
        self.server.add_tool(resume_team, name="resume")

    async def _work(self, begin: Callable[[], Run], ctx: Any) -> str:
        from nb_agents.tools.mcp_sdk import key_of

        key, done = key_of(ctx), anyio.Event()
        begun = self._begun[key] = anyio.Event()
        try:
            run = self._called[key] = await to_thread.run_sync(begin)
        except NbAgentsError as exc:
            return f"Not started: {exc}"
        finally:
            begun.set()
            self._begun.pop(key, None)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_tell, ctx, run, done)
                wait = partial(run.wait, raise_on_stop=False)
                await to_thread.run_sync(wait, abandon_on_cancel=True)
                done.set()
        except anyio.get_cancelled_exc_class():
            run.stop(now=True, reason="cancelled by the client")
            raise
        finally:
            self._called.pop(key, None)
        return _said_of(run)

    async def status(self, run: str = "") -> str:
        """Say how far a turn is: each agent's state, answers and votes so far.

        Args:
            run: Its session; by default the one that works.
        """
        try:
            return _said_of(await to_thread.run_sync(find_run, run, self._root))
        except NbAgentsError as exc:
            return str(exc)

    async def stop(self, run: str = "", now: bool = False) -> str:
        """Stop a turn; all that it has is kept, and `resume` goes on with it.

        Args:
            run: Its session; by default the one that works.
            now: Whether to cut the model calls that are open, and not wait for their end.
        """
        why = "stopped by a tool call"
        try:
            found: Work | None = None
            if run:  # a team names its own call, whose turn may just begin
                if (begun := self._begun.get(run)) is not None:
                    await begun.wait()
                found = self._called.get(run)
            if found is None:
                found = await to_thread.run_sync(find_work, run, self._caller)
            act = partial(on_runs.stop, found, self._caller, now=now, reason=why)
            return (await to_thread.run_sync(act)).said
        except NbAgentsError as exc:
            return str(exc)

    async def list_sessions(self) -> str:
        """List the sessions, the latest first: id, turns, and whether the last one is complete."""
        found = await to_thread.run_sync(on_sessions.sessions, self._root, self._caller)
        return "\n".join(map(_line, found.items or ())) or found.said


async def _tell(ctx: Any, run: Run, done: anyio.Event) -> None:
    """Tell the client of the progress until the turn is over."""
    number = 0
    while not done.is_set():
        number += 1
        doing = ", ".join(f"{agent.id}: {agent.phase}" for agent in run.view.agents.values())
        await ctx.report_progress(number, message=doing or run.state)
        with anyio.move_on_after(_TOLD_S):
            await done.wait()


def _said_of(run: Run) -> str:
    if run.view.status == "completed" and run.is_over:
        found = run.result
        text = found if isinstance(found, str) else json.dumps(found, default=str)
        return f"{text}\n\n(session {run.session})"
    return card_text(run.view, str(run.path))


def _line(session: SessionFacts) -> str:
    last = session.turns[-1]
    turns = f"{count(len(session.turns), 'turn')}, the last one {last.state}"
    return f"{session.session}: {turns}: {last.task[:80]}"
