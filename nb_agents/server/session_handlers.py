"""The routes of sessions: list, show, continue, rename, export and delete."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tornado import web

from nb_agents.server.handler import Handler, handles_route
from nb_agents.server.openapi import NextTask, Rename
from nb_agents.server.places import NameResolver, facts_with_id
from nb_agents.server.places import continue_session as begin_next_turn
from nb_agents.server.run_handlers import CALLER
from nb_agents.session.layout import sessions_in
from nb_agents.turns.groups import GroupKind, groups_in, kinds
from nb_agents.verbs import on_sessions
from nb_agents.verbs.facts import session_facts

MAX_FOLDERS = 100
"""Maximum number of folders in a request to list sessions."""
MAX_ROWS = 100
"""Maximum number of listed sessions of a group."""
MAX_LISTED = 1_000
"""Maximum number of listed sessions of a root. The most recently used ones are listed."""


@handles_route("list_sessions")
async def list_sessions(request: Handler) -> None:
    """Reply with the sessions and groups on disk, the most recently used first."""
    folders = dict.fromkeys(request.get_query_arguments("folder"))
    if len(folders) > MAX_FOLDERS:
        raise web.HTTPError(400, f"A request can name at most {MAX_FOLDERS} folders.")
    if group := next(filter(None, (request.get_query_argument(k.noun, "") for k in kinds())), ""):
        request.reply(await to_thread(list_group, request.places, group))
    else:
        request.reply(await to_thread(list_folders, request.places, folders))


def list_group(resolver: NameResolver, name: str) -> list[dict[str, Any]]:
    """Return the list entries and ids of the sessions in a group, most recently used first."""
    sessions = sessions_in(resolver.group(name)).by_use[:MAX_ROWS]
    return [_session(resolver, path) for path in sessions]


def list_folders(resolver: NameResolver, folders: Iterable[str]) -> list[dict[str, Any]]:
    """Return the list entries of the groups and sessions on disk, with their ids.

    Args:
        resolver: The resolver of names.
        folders: Directories of notebooks. Their sessions are listed as well.
    """
    roots = resolver.session_roots(*folders)
    groups = [_group(resolver, kind, path) for root in roots for kind, path in groups_in(root)]
    sessions = [path for root in roots for path in sessions_in(root).by_use[:MAX_LISTED]]
    return [*groups, *(_session(resolver, path) for path in sessions)]


def _group(resolver: NameResolver, kind: GroupKind, path: Path) -> dict[str, Any]:
    facts = facts_with_id(resolver, kind.facts_at(path))
    return {"id": facts["id"], "session": facts["session"], "turns": [], kind.noun: facts}


def _session(resolver: NameResolver, path: Path) -> dict[str, Any]:
    facts, name = asdict(session_facts(path)), resolver.name(path)
    turns = [{"id": f"{name}/turn_{turn['turn']}", **turn} for turn in facts["turns"]]
    return {"id": name, **facts, "turns": turns}


@handles_route("get_session")
async def get_session(request: Handler, name: str) -> None:
    """Reply with the state of a session."""
    path = await to_thread(request.places.session, name)
    request.reply(await to_thread(_session, request.places, path))


@handles_route("delete_session")
async def delete_session(request: Handler, name: str) -> None:
    """Delete a session."""
    path = await to_thread(request.places.session, name)
    await to_thread(on_sessions.delete, path, CALLER, yes=True)
    request.set_status(204)
    request.finish()


@handles_route("continue_session")
async def continue_session(request: Handler, name: str) -> None:
    """Start the next turn of a session."""
    body = request.body(NextTask)
    path = await to_thread(request.places.session, name)
    request.reply_begun(await to_thread(begin_next_turn, path, body.model_dump()))


@handles_route("rename_session")
async def rename_session(request: Handler, name: str) -> None:
    """Rename a session."""
    body = request.body(Rename)
    path = await to_thread(request.places.session, name)
    done = await to_thread(on_sessions.rename, path, CALLER, name=body.name)
    named = request.places.name(Path(done.facts["path"]))
    request.reply({"id": named, "session": done.facts["session"]})


@handles_route("export_session")
async def export_session(request: Handler, name: str) -> None:
    """Reply with a session as a zip file."""
    path = await to_thread(request.places.session, name)
    with TemporaryDirectory(prefix="nb-agents-") as folder:
        zipped = Path(folder, "session.zip")
        await to_thread(on_sessions.export, path, CALLER, file=str(zipped))
        request.set_header("Content-Type", "application/zip")
        request.set_attachment_header(f"{path.name}.zip")
        with await to_thread(zipped.open, "rb") as file:
            await request.send(file)
            request.finish(set_content_type="application/zip")
