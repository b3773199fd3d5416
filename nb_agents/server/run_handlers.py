"""The routes of runs: list, start, resume, show, and send commands."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tornado import web

from nb_agents.errors import NotYoursError, UserError
from nb_agents.launch.api import start_verbatim
from nb_agents.launch.finding import attach, handle_of
from nb_agents.launch.group_lookup import open_group
from nb_agents.launch.run import Run
from nb_agents.options import RunOptions
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.transcript import read_transcript
from nb_agents.server.handler import Handler, handles_route
from nb_agents.server.openapi import Resume, Start, document
from nb_agents.server.places import DEFAULT_ROOT, facts_with_id, resume_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.session.lookup import TERMINAL_ORIGIN, origin_of, with_origin
from nb_agents.turns.groups import GroupFacts, kind_of
from nb_agents.turns.live_turns import live_turns
from nb_agents.verbs.facts import TurnFacts
from nb_agents.verbs.outcome import NewGroup, NewRun, Reply, Work
from nb_agents.verbs.parameters import split_options
from nb_agents.verbs.requests import BODIES, Request, values_of
from nb_agents.verbs.table import ROUTES
from nb_agents.verbs.targets import target_of
from nb_agents.verbs.verb import Caller

CALLER = Caller("rest", TERMINAL)
"""The caller that verbs record for requests."""


@handles_route("openapi")
async def openapi(request: Handler) -> None:
    """Reply with the OpenAPI document."""
    request.reply(document(request.base_url))


@handles_route("list_runs")
async def list_runs(request: Handler) -> None:
    """Reply with the live turns and groups."""
    resolver = request.places
    live = await to_thread(resolver.live)
    feeds = [(request.feeds.of(path), where) for path, where in live.work]
    await request.feeds.read([feed for feed, _ in feeds])
    request.reply([facts_with_id(resolver, feed.facts(where)) for feed, where in feeds])


@handles_route("start_run")
async def start_run(request: Handler) -> None:
    """Start a run, and reply once its turn is on disk."""
    body = request.body(Start)
    request.reply_begun(await to_thread(_start, request, body))


def _start(request: Handler, body: Request) -> Run:
    fields = body.model_dump()
    folder = request.places.folder(fields.pop("folder"))
    arguments, options = split_options(_with_files(request, folder, fields))
    options = {"detach": True, "session_root": folder / DEFAULT_ROOT, **options}
    with with_origin(TERMINAL_ORIGIN):  # the run belongs to no notebook
        return start_verbatim(**arguments, options=RunOptions(**options))


def _with_files(request: Handler, folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, with the paths of its files below a directory resolved."""
    named = {name: fields[name] for name in ("config", "recipe") if fields.get(name)}
    return {**fields, **{name: request.places.file(folder, file) for name, file in named.items()}}


@handles_route("get_run")
async def get_run(request: Handler, name: str) -> None:
    """Reply with the state of a turn or group."""
    path = await to_thread(request.places.run, name)
    request.reply(facts_with_id(request.places, await to_thread(_facts_at, path)))


@handles_route("get_turn")
async def get_turn(request: Handler, name: str, number: str) -> None:
    """Reply with the state of a turn."""
    path = (await to_thread(request.turn, name, number)).path
    request.reply(facts_with_id(request.places, await to_thread(_facts_at, path)))


def _facts_at(path: Path) -> TurnFacts | GroupFacts:
    paths = TurnPaths(path)
    live = (turn.where for turn in live_turns(paths.session) if turn.paths == paths)
    return target_of(open_group(path) or handle_of(paths, next(live, ""))).facts


@handles_route("get_transcript")
async def get_transcript(request: Handler, name: str) -> None:
    """Reply with an agent's transcript from a position in the journal."""
    agent, after = request.get_query_argument("agent"), request.get_query_argument("after", "0")
    if not (after.isascii() and after.isdecimal() and len(after) < 16):
        raise web.HTTPError(400, "`after` must be a number of bytes.")
    paths = await to_thread(request.turn, name)
    request.reply(await to_thread(read_transcript, paths, agent, int(after)))


@handles_route("get_timeline")
async def get_timeline(request: Handler, name: str) -> None:
    """Reply with the drawn timeline of a turn."""
    feed = request.feeds.turn((await to_thread(request.turn, name)).path)
    await request.feeds.read([feed])
    request.reply({"html": await to_thread(feed.timeline)})


# Commands ---------------------------------------------------------------------------------------

_Content = dict[str, Any] | Work
"""Content of a reply to a command: the state of the run, or a run or group that was started."""


@handles_route("resume_run")
async def resume_run(request: Handler, name: str) -> None:
    """Resume an incomplete turn."""
    body = request.body(Resume)
    path = await to_thread(request.places.run, name)
    arguments = _with_files(request, path.parents[2], body.model_dump())
    _reply(request, path, *await to_thread(_resume, path, arguments))


def _resume(path: Path, arguments: Mapping[str, Any]) -> tuple[int, _Content]:
    work = open_group(path) or attach(path)
    if target_of(work).is_resumable:
        return _refusable(work, lambda: (202, resume_turn(TurnPaths(path), arguments)))
    # Clients of version 0.1, which had no "unpause", end a pause with this request.
    return _ask(path, "unpause", BODIES["unpause"]())


@handles_route("ask")
async def ask(request: Handler, name: str) -> None:
    """Carry out a verb on a turn or group, in whichever process it runs."""
    name, _, verb = name.rpartition("/")
    if verb not in BODIES:
        command_names = ", ".join(sorted(BODIES))
        raise UserError(f"There is no command {verb!r}. Use one of: {command_names}.")
    body = request.body(BODIES[verb])
    path = await to_thread(request.places.run, name)
    if config := getattr(body, "config", None):
        file = request.places.file(path.parents[2], config)
        body = body.model_copy(update={"config": str(file)})
    # In a thread, because it waits for the writer's reply.
    _reply(request, path, *await to_thread(_ask, path, verb, body, request.user_name))


def _reply(request: Handler, path: Path, status: int, content: _Content) -> None:
    if not isinstance(content, dict):  # it has just started
        path, content = content.path, {**target_of(content).start_facts}
    request.set_status(status)
    request.reply({"id": request.places.name(path), **content})


def _ask(path: Path, verb: str, body: Any, user: str = "") -> tuple[int, _Content]:
    """Carry out a verb. Returns the HTTP status and the content of the reply."""
    work = open_group(path) or attach(path)
    # The group may stop the run before the run gets the command, which has then taken effect.
    is_group_stopped = verb == "stop" and _stop_group(path, body)
    if verb == "stop" and target_of(work).has_agents:  # an unknown agent is an invalid request
        return _act(work, verb, body, user, is_group_stopped)
    return _refusable(work, lambda: _act(work, verb, body, user, is_group_stopped))


def _act(
    work: Work, verb: str, body: Any, user: str, is_group_stopped: bool
) -> tuple[int, _Content]:
    caller = CALLER._replace(source=getattr(body, "source", "rest"), user=user)
    target = target_of(work)
    act, of_turn = ROUTES[verb].act, ROUTES[verb].on == "turn"
    match act(target.run if of_turn else work, caller, **values_of(body)):
        case NewRun(begin):
            with with_origin(origin_of(TurnPaths(work.path))):  # belongs to the same notebook
                return 202, begin().run
        case NewGroup(begin_group):
            with with_origin(origin_of(TurnPaths(work.path))):
                return 202, begin_group()
        case Reply(text, facts):
            reply = {name: each for name, each in facts.items() if name != target.noun}
            if "status" not in reply:  # a verb of an extension
                reply["status"] = target.status
        case outcome:
            raise TypeError(f"The verb {verb!r} returned a {type(outcome).__name__}.")
    if reply["status"] == "finished" and not is_group_stopped:
        return 409, {"status": target.status, "message": text}
    changed = {"changed": True, "status": "asked"} if is_group_stopped else {}
    return 202, {**reply, "message": text, **changed}


def _refusable(work: Work, act: Callable[[], tuple[int, _Content]]) -> tuple[int, _Content]:
    """Carry out an action. A user error becomes a 409 Conflict reply with the run's state."""
    try:
        return act()
    except NotYoursError:
        raise
    except UserError as exc:
        return 409, {"status": target_of(work).status, "message": str(exc)}


def _stop_group(turn: Path, body: Any) -> bool:
    """Stop the group of a turn, if requested. Returns whether the group is live."""
    group = open_group(turn.parents[1])
    if group is None or not getattr(body, kind_of(group).noun):
        return False
    stopped = group.stop(body.now, reason=body.reason, source=body.source)
    return stopped.status != "finished"
