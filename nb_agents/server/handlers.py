"""The routes of the Jupyter server under ``/nb-agents``; ``openapi.json`` describes each.

Reading needs the authorizer's permission to "read" the resource "nb_agents", all else to "execute"
it. Closing a stream of events stops no run.
"""

from __future__ import annotations

import json
import time
from asyncio import to_thread  # anyio's threads would outlive the server
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from tornado import web
from tornado.iostream import StreamClosedError

from nb_agents.errors import NotYoursError, SessionBusyError, SessionChangedError, UserError
from nb_agents.events import EVENT, Event
from nb_agents.launch.api import start
from nb_agents.options import RunOptions
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.transcript import read_transcript
from nb_agents.runs.finding import attach, handle_of
from nb_agents.runs.live_turns import LiveTurn, live_turns
from nb_agents.runs.run import Run
from nb_agents.server.feeds import Feed, Feeds, SweepFeed, TurnFeed
from nb_agents.server.openapi import NextTask, Rename, Start, document
from nb_agents.server.places import (
    DEFAULT_ROOT,
    Places,
    UnknownNameError,
    continue_session,
    resume_turn,
)
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths, sessions_in
from nb_agents.session.lookup import TERMINAL_ORIGIN, acting_for, origin_of
from nb_agents.sweeps.manifest import is_sweep, sweep_paths
from nb_agents.sweeps.notes import Note, NoteReader, RowResult
from nb_agents.sweeps.sweep_handle import SweepHandle
from nb_agents.sweeps.sweep_lookup import open_sweep
from nb_agents.verbs import on_sessions
from nb_agents.verbs.facts import (
    SweepFacts,
    TurnFacts,
    facts_of_session,
    facts_of_sweep,
    facts_of_sweep_at,
    facts_of_turn,
    facts_of_work,
)
from nb_agents.verbs.on_runs import status_of_work
from nb_agents.verbs.requests import BODIES, read, values_of
from nb_agents.verbs.table import ROUTES
from nb_agents.verbs.verb import Caller

__all__ = ["RUN_ROUTES"]

MAX_BODY = 200_000
"""Limit of a request, bytes: the longest follow-up text, each character escaped."""
MAX_WATCHED = 200
"""Limit of turns and sweeps in one stream."""
MAX_FOLDERS = 100
"""Limit of folders whose sessions are listed."""
MAX_ROWS = 100
"""Limit of listed sessions of a sweep's rows."""
MAX_LISTED = 1_000
"""Limit of listed sessions of a root, those used last."""
CALLER = Caller("rest", TERMINAL)
"""The caller of verbs."""
FILE_PART = 1_000_000
"""Size of the parts in which a file is sent, bytes."""
KEEP_ALIVE_S = 15.0
"""Interval of comments in a silent stream, which proxies would close, seconds."""


Route = tuple[str, type[web.RequestHandler]]
"""A pattern of paths below ``/nb-agents``, and what answers there."""

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Body = TypeVar("_Body", bound=BaseModel)
_Item = TypeVar("_Item")


def allowed(action: Literal["read", "execute"]) -> Callable[[_Method], _Method]:
    """Require that a request is authenticated and authorized for this action."""

    def guarded(method: _Method) -> _Method:
        return cast(_Method, web.authenticated(authorized(action=action)(method)))

    return guarded


_CODES: dict[type[UserError], int] = {
    UnknownNameError: 404,
    SessionBusyError: 409,
    SessionChangedError: 409,
    NotYoursError: 428,
}
"""HTTP status of user errors, if not 400."""


@web.stream_request_body
class Handler(APIHandler):
    """Base of all routes: authorization, lookup of turns, limits of bodies, error replies."""

    auth_resource = "nb_agents"

    def initialize(self, places: Places, feeds: Feeds) -> None:
        self.places = places
        self.feeds = feeds
        self._body = b""

    async def prepare(self) -> None:  # type: ignore[override]  # as its base
        """Refuse a body that is too large before it is read."""
        length = self.request.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise web.HTTPError(413, f"A request has at most {MAX_BODY} bytes.")
        # A body without a length is cut. Tornado's types lack this method.
        connection: Any = self.request.connection
        connection.set_max_body_size(MAX_BODY)
        await super().prepare()

    def data_received(self, chunk: bytes) -> None:
        self._body += chunk

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        exc = kwargs.get("exc_info", (None, None))[1]
        if isinstance(exc, UserError):
            self.set_status(_CODES.get(type(exc), 400))
            self.finish(json.dumps({"message": str(exc), "reason": None}))
            return
        super().write_error(status_code, **kwargs)

    def log_exception(self, *exc_info: Any) -> None:
        if not isinstance(exc_info[1], UserError):  # the reply says it
            super().log_exception(*exc_info)

    def turn(self, name: str, number: str | None = None) -> TurnPaths:
        """Return the turn of a path."""
        return self.places.turn(name if number is None else f"{name}/turn_{number}")

    def body(self, kind: type[_Body]) -> _Body:
        """Return the parsed body."""
        return read(kind, self._body or b"{}")

    def named(self, facts: TurnFacts | SweepFacts) -> dict[str, Any]:
        """Return how a turn or a sweep stands, with its name."""
        return {"id": self.places.name(Path(facts.path)), **asdict(facts)}

    def session(self, path: Path) -> dict[str, Any]:
        """Return how a session and its turns stand, with their names."""
        facts, name = asdict(facts_of_session(path)), self.places.name(path)
        turns = [{"id": f"{name}/turn_{turn['turn']}", **turn} for turn in facts["turns"]]
        return {"id": name, **facts, "turns": turns}

    def reply(self, data: Any) -> None:
        """Answer with JSON."""
        self.finish(json.dumps(data))

    async def send(self, file: BinaryIO) -> None:
        """Answer with a file, a part at a time."""
        with suppress(StreamClosedError):  # the client has gone
            while part := await to_thread(file.read, FILE_PART):
                self.write(part)
                await self.flush()

    def reply_begun(self, run: Run) -> None:
        """Answer that a run has begun."""
        self.set_status(202)
        name = self.places.name(run.path)
        self.reply(
            {"id": name, "session": run.session, "turn": run.turn, "status": run.view.standing}
        )


class OpenApi(Handler):
    """Serves the OpenAPI document."""

    @allowed("read")
    def get(self) -> None:
        self.reply(document(self.base_url))


class Runs(Handler):
    """Lists live turns and sweeps, and starts runs."""

    @allowed("read")
    async def get(self) -> None:
        live = await to_thread(self.places.live)
        turns = [(turn, self.feeds.turn(turn.paths.path)) for turn in live.turns]
        sweeps = [(path, self.feeds.sweep(path), rows) for path, rows in live.sweeps.items()]
        await self.feeds.read([*(feed for _, feed in turns), *(feed for _, feed, _ in sweeps)])
        self.reply(
            [
                *(self._of_sweep(path, feed, rows) for path, feed, rows in sweeps),
                *(self._of_turn(turn, feed) for turn, feed in turns),
            ]
        )

    @allowed("execute")
    async def post(self) -> None:
        body = self.body(Start)
        self.reply_begun(await to_thread(self._start, body))

    def _start(self, body: Start) -> Run:
        folder = self.places.folder(body.folder)
        with acting_for(TERMINAL_ORIGIN):  # no notebook's
            return start(
                body.task,
                config=self.places.file(folder, body.config),
                session=body.session,
                recipe=self.places.file(folder, body.recipe),
                context=body.context,
                options=RunOptions(
                    detach=True, session_root=folder / DEFAULT_ROOT, trust=body.trust
                ),
            )

    def _of_turn(self, turn: LiveTurn, feed: TurnFeed) -> dict[str, Any]:
        is_live, where = feed.is_live, turn.where
        return self.named(facts_of_turn(feed.view, feed.path, is_live=is_live, where=where))

    def _of_sweep(self, path: Path, feed: SweepFeed, rows: Sequence[LiveTurn]) -> dict[str, Any]:
        where = rows[0].where if rows else ""
        return self.named(facts_of_sweep(feed.view, feed.changed_at, path, where))


class OneRun(Handler):
    """Shows a turn or a sweep, live or over."""

    @allowed("read")
    async def get(self, name: str, number: str | None = None) -> None:
        if number is None:
            path = await to_thread(self.places.run, name)
        else:
            path = (await to_thread(self.turn, name, number)).path
        self.reply(self.named(await to_thread(_facts_at, path)))


def _facts_at(path: Path) -> TurnFacts | SweepFacts:
    paths = TurnPaths(path)
    live = (turn.where for turn in live_turns(paths.session) if turn.paths == paths)
    return facts_of_work(open_sweep(path) or handle_of(paths, next(live, "")))


class AgentTranscript(Handler):
    """Reads an agent's transcript from a position in the journal on."""

    @allowed("read")
    async def get(self, name: str) -> None:
        agent, after = self.get_query_argument("agent"), self.get_query_argument("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < 16):
            raise web.HTTPError(400, "after is not a number of bytes.")
        paths = await to_thread(self.turn, name)
        self.reply(await to_thread(read_transcript, paths, agent, int(after)))


class TurnTimeline(Handler):
    """Draws what has happened in a turn so far."""

    @allowed("read")
    async def get(self, name: str) -> None:
        feed = self.feeds.turn((await to_thread(self.turn, name)).path)
        await self.feeds.read([feed])
        self.reply({"html": await to_thread(feed.timeline)})


class Command(Handler):
    """Asks a verb of a turn or a sweep, whichever process runs it."""

    @allowed("execute")
    async def post(self, name: str, action: str) -> None:
        body = self.body(BODIES[action])
        path = await to_thread(self.places.run, name)
        if config := getattr(body, "config", None):
            file = self.places.file(path.parents[2], config)
            body = body.model_copy(update={"config": str(file)})
        # In a thread: it waits a moment for the writer's answer.
        code, reply = await to_thread(_ask, path, action, body)
        if isinstance(reply, Run):
            self.reply_begun(reply)
            return
        self.set_status(code)
        if isinstance(reply, SweepHandle):
            self.reply(self.named(facts_of_work(reply)))
        else:
            self.reply({"id": self.places.name(path), **reply})


def _ask(path: Path, action: str, body: Any) -> tuple[int, dict[str, Any] | Run | SweepHandle]:
    """Carry out a verb; return the HTTP status and the reply, or a new run or sweep."""
    work = open_sweep(path) or attach(path)
    # Its sweep may end the run before it is asked itself: then the request was followed.
    is_sweep_stopped = action == "stop" and body.sweep and _stop_sweep(path.parents[1], body)
    caller = CALLER._replace(source=getattr(body, "source", "rest"))
    try:
        if action == "resume" and isinstance(work, Run) and work.is_over:
            return 202, resume_turn(TurnPaths(path), body.trust)
        done = ROUTES[action].act(work, caller, **values_of(body))
        if done.begin is not None:
            with acting_for(origin_of(TurnPaths(path))):  # it stays its notebook's
                return 202, done.begin().run
        if done.begin_sweep is not None:
            with acting_for(origin_of(TurnPaths(path))):
                return 202, done.begin_sweep()
    except NotYoursError:
        raise
    except UserError as exc:
        if action == "stop" and isinstance(work, Run):  # of an agent that is not there
            raise
        return 409, {"status": status_of_work(work)["status"], "message": str(exc)}
    reply = {name: each for name, each in done.facts.items() if name not in ("run", "sweep")}
    if reply["status"] == "finished" and not is_sweep_stopped:
        return 409, {"status": status_of_work(work)["status"], "message": done.said}
    facts = {"changed": True, "status": "asked"} if is_sweep_stopped else {}
    return 202, {**reply, "message": done.said, **facts}


def _stop_sweep(path: Path, body: Any) -> bool:
    """Stop the sweep in a directory; return whether one is running there."""
    sweep = open_sweep(path)
    if sweep is None:
        return False
    stopped = sweep.stop(body.now, reason=body.reason, source=body.source)
    return stopped.status != "finished"


class Sessions(Handler):
    """Lists sessions and sweeps on disk, those used last first."""

    @allowed("read")
    async def get(self) -> None:
        folders = dict.fromkeys(self.get_query_arguments("folder"))
        if len(folders) > MAX_FOLDERS:
            raise web.HTTPError(400, f"At most {MAX_FOLDERS} folders are looked at.")
        sweep = self.get_query_argument("sweep", "")
        self.reply(
            await (to_thread(self._rows, sweep) if sweep else to_thread(self._list, folders))
        )

    def _rows(self, sweep: str) -> list[dict[str, Any]]:
        found = sessions_in(self.places.sweep(sweep)).by_use[:MAX_ROWS]
        return [self.session(path) for path in found]

    def _list(self, folders: Iterable[str]) -> list[dict[str, Any]]:
        roots = self.places.session_roots(*folders)
        found = [path for root in roots for path in sweep_paths(root)]
        sweeps = [self.named(facts_of_sweep_at(path)) for path in found]
        found = [path for root in roots for path in sessions_in(root).by_use[:MAX_LISTED]]
        listed = [
            {"id": facts["id"], "session": facts["session"], "turns": [], "sweep": facts}
            for facts in sweeps
        ]
        return [*listed, *(self.session(path) for path in found)]


class OneSession(Handler):
    """Shows or deletes a session."""

    @allowed("read")
    async def get(self, name: str) -> None:
        path = await to_thread(self.places.session, name)
        self.reply(await to_thread(self.session, path))

    @allowed("execute")
    async def delete(self, name: str) -> None:
        path = await to_thread(self.places.session, name)
        await to_thread(on_sessions.delete, path, CALLER, yes=True)
        self.set_status(204)
        self.finish()


class ContinueSession(Handler):
    """Starts the next turn of a session."""

    @allowed("execute")
    async def post(self, name: str) -> None:
        body = self.body(NextTask)
        path = await to_thread(self.places.session, name)
        self.reply_begun(await to_thread(continue_session, path, body.task, body.trust))


class RenameSession(Handler):
    """Renames a session."""

    @allowed("execute")
    async def post(self, name: str) -> None:
        body = self.body(Rename)
        path = await to_thread(self.places.session, name)
        done = await to_thread(on_sessions.rename, path, CALLER, name=body.name)
        named = self.places.name(Path(done.facts["path"]))
        self.reply({"id": named, "session": done.facts["session"]})


class ExportSession(Handler):
    """Exports a session as a zip."""

    @allowed("read")
    async def get(self, name: str) -> None:
        path = await to_thread(self.places.session, name)
        with TemporaryDirectory(prefix="nb-agents-") as folder:
            zipped = Path(folder, "session.zip")
            await to_thread(on_sessions.export, path, CALLER, file=str(zipped))
            self.set_header("Content-Type", "application/zip")
            self.set_attachment_header(f"{path.name}.zip")
            with await to_thread(zipped.open, "rb") as file:
                await self.send(file)
                self.finish(set_content_type="application/zip")


# Streams ----------------------------------------------------------------------------------------


class _Stream(Handler):
    """Streams server-sent events until the client disconnects."""

    _is_gone = False

    def on_connection_close(self) -> None:
        self._is_gone = True
        super().on_connection_close()

    async def stream(self, messages: AsyncGenerator[str]) -> None:
        """Send messages until they end or the client disconnects.

        Args:
            messages: Gives "" now and then where nothing has come.
        """
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")  # nginx would keep it back
        spoke_at = time.monotonic()
        try:
            await self.flush()
            async with aclosing(messages):
                async for message in messages:
                    if self._is_gone:
                        return
                    if not message and time.monotonic() - spoke_at < KEEP_ALIVE_S:
                        continue
                    self.write(message or ": still here\n\n")
                    await self.flush()
                    spoke_at = time.monotonic()
            self.finish(set_content_type="text/event-stream")
        except StreamClosedError:
            pass


class Events(_Stream):
    """Streams the events of a turn, or the notes of a sweep.

    First those so far, or those after ``Last-Event-ID``.
    """

    @allowed("read")
    async def get(self, name: str) -> None:
        path = await to_thread(self.places.run, name)
        if not is_sweep(path) and not TurnPaths(path).journal.is_file():
            raise UnknownNameError(name)  # another program's turn
        try:
            after = int(self.request.headers.get("Last-Event-ID", "0"))
        except ValueError:
            raise web.HTTPError(400, "Last-Event-ID is not a number.") from None
        read = _notes_of(path) if is_sweep(path) else _events_of(path)
        await self.stream(self._messages(self.feeds.of(path), read, after))

    async def _messages(
        self, feed: Feed, read: Callable[[], list[_Happened]], after: int
    ) -> AsyncGenerator[str]:
        known: object = None
        with self.feeds.follow([feed]):
            seen = await self.feeds.read([feed])
            while True:
                # One look for all who listen says whether there is anything to read.
                is_live, standing = feed.is_live, feed.standing
                with suppress(FileNotFoundError):  # somebody has deleted it meanwhile
                    while standing != known and (happened := await to_thread(read)):
                        for kind, data, number in happened:
                            message = ""
                            with ServiceLoop.PAGES.item():
                                message = _message(kind, data, number)
                            if number > after:
                                yield message
                known = standing
                if not is_live:
                    return
                yield ""
                seen = await self.feeds.news(seen)


class _Happened(NamedTuple):
    """An event or note to send, numbered from 1."""

    kind: str
    data: Any
    number: int


def _events_of(turn: Path) -> Callable[[], list[_Happened]]:
    reader = JournalReader(TurnPaths(turn).journal)

    def happened(event: Event) -> _Happened:
        return _Happened(event.kind, EVENT.dump_python(event, mode="json"), event.seq)

    return lambda: _all_of(reader.read(), happened)


def _notes_of(sweep: Path) -> Callable[[], list[_Happened]]:
    reader = NoteReader(sweep)

    def happened(numbered: tuple[int, Note]) -> _Happened:
        number, note = numbered
        kind = "row_ended" if isinstance(note, RowResult) else note.kind
        return _Happened(kind, to_jsonable_python(note, inf_nan_mode="null"), number)

    return lambda: _all_of(reader.read(), happened)


def _all_of(items: Iterable[_Item], make: Callable[[_Item], _Happened]) -> list[_Happened]:
    made = []
    for item in items:
        with ServiceLoop.PAGES.item():
            made.append(make(item))
    return made


class Views(_Stream):
    """Streams the panels of turns and sweeps, and their cards at the end.

    One stream for all of them on a page: a browser keeps few connections to one server open, and
    JupyterLab needs them.
    """

    @allowed("read")
    async def get(self, name: str = "", number: str | None = None) -> None:
        if number is not None:
            path = (await to_thread(self.turn, name, number)).path
        elif name:
            path = await to_thread(self.places.run, name)
        else:
            await self._get_many()
            return
        await self.stream(self._messages({self.places.name(path): path}))

    async def _get_many(self) -> None:
        names = dict.fromkeys(self.get_query_arguments("id"))
        if len(names) > MAX_WATCHED:
            many = f"At most {MAX_WATCHED} turns and sweeps are shown in one stream."
            raise web.HTTPError(400, many)
        known, unknown = await to_thread(self._found, names)
        await self.stream(self._messages(known, unknown))

    def _found(self, names: Iterable[str]) -> tuple[dict[str, Path], list[str]]:
        known, unknown = {}, []
        for name in names:
            try:
                known[name] = self.places.run(name)
            except UnknownNameError:
                unknown.append(name)
        return known, unknown

    async def _messages(
        self, paths: dict[str, Path], unknown: Sequence[str] = ()
    ) -> AsyncGenerator[str]:
        for name in unknown:
            yield _message("unknown", {"id": name})
        feeds = {name: self.feeds.of(path) for name, path in paths.items()}
        shown: dict[str, Any] = {}
        with self.feeds.follow(feeds.values()):
            seen = await self.feeds.read(feeds.values())
            while feeds:
                for name, feed in list(feeds.items()):
                    if not feed.is_live:
                        del feeds[name]
                        yield await self._card(name, feed)
                        continue
                    message = ""
                    with ServiceLoop.PAGES.item():
                        if shown.get(name) is not (state := feed.state()):
                            shown[name] = state
                            message = _message("state", {"id": name, "state": state})
                    yield message
                yield ""
                if feeds:
                    seen = await self.feeds.news(seen)

    async def _card(self, name: str, feed: Feed) -> str:
        with ServiceLoop.PAGES.item(), suppress(FileNotFoundError):
            return _message("card", {"id": name, "bundle": await to_thread(feed.card)})
        return _message("unknown", {"id": name})  # somebody has deleted it meanwhile


def _message(kind: str, data: Any, number: int | None = None) -> str:
    """Return a server-sent event; its JSON holds no line end."""
    head = f"event: {kind}\n" if number is None else f"event: {kind}\nid: {number}\n"
    return f"{head}data: {json.dumps(data)}\n\n"


_TURN = r"(?P<name>.+)"
RUN_ROUTES: tuple[Route, ...] = (
    (r"/openapi\.json", OpenApi),
    (r"/runs", Runs),
    (rf"/runs/{_TURN}/(?P<action>{'|'.join(BODIES)})", Command),
    (rf"/runs/{_TURN}/events", Events),
    (rf"/runs/{_TURN}/timeline", TurnTimeline),
    (rf"/runs/{_TURN}/transcript", AgentTranscript),
    (rf"/runs/{_TURN}/view", Views),
    (r"/view", Views),
    (rf"/runs/{_TURN}", OneRun),
    (r"/sessions", Sessions),
    (rf"/sessions/{_TURN}/turns/(?P<number>[0-9]+)/view", Views),
    (rf"/sessions/{_TURN}/turns/(?P<number>[0-9]+)", OneRun),
    (rf"/sessions/{_TURN}/continue", ContinueSession),
    (rf"/sessions/{_TURN}/rename", RenameSession),
    (rf"/sessions/{_TURN}/export", ExportSession),
    (rf"/sessions/{_TURN}", OneSession),
)
"""The routes of runs and sessions; those of files are in `turn_files` and `new_files`."""
