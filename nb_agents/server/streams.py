"""The routes that stream events and panels. Closing a stream does not stop the run."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tornado import web

from nb_agents.server.feeds import Feed, Feeds, RecordReader
from nb_agents.server.handler import Handler, handles_route
from nb_agents.server.places import UnknownNameError
from nb_agents.service_loops import ServiceLoop
from nb_agents.unicode import json_text

MAX_WATCHED = 200
"""Maximum number of turns and groups in one stream."""


@handles_route("stream_events")
async def stream_events(request: Handler, name: str) -> None:
    """Stream the events of a turn, or the changes of a group, that follow ``Last-Event-ID``."""
    path = await to_thread(request.places.run, name)
    feed = request.feeds.of(path)
    try:
        read = feed.record_reader()
    except FileNotFoundError:
        raise UnknownNameError(name) from None
    try:
        after = int(request.request.headers.get("Last-Event-ID", "0"))
    except ValueError:
        raise web.HTTPError(400, "Last-Event-ID is not a number.") from None
    await request.stream(_new_records(request.feeds, feed, read, after))


async def _new_records(
    feeds: Feeds, feed: Feed, read: RecordReader, after: int
) -> AsyncGenerator[str]:
    last_standing = None
    with feeds.follow([feed]):
        changes = await feeds.read([feed])
        while True:
            # The feed, which all streams share, shows whether there is anything new to read.
            is_live, status = feed.is_live, feed.standing
            with suppress(FileNotFoundError):  # deleted in the meantime
                while status != last_standing and (added := await to_thread(read)):
                    for kind, data, number in added:
                        message = ""
                        with ServiceLoop.PAGES.item():
                            message = _message(kind, data, number)
                        if number > after:
                            yield message
            last_standing = status
            if not is_live:
                return
            yield ""
            changes = await feeds.news(changes)


# Panels -----------------------------------------------------------------------------------------


@handles_route("stream_view")
async def stream_view(request: Handler, name: str) -> None:
    """Stream the panel of a turn or group, and its card at the end."""
    path = await to_thread(request.places.run, name)
    await request.stream(panels(request.feeds, {request.places.name(path): path}))


@handles_route("stream_turn_view")
async def stream_turn_view(request: Handler, name: str, number: str) -> None:
    """Stream the panel of a turn, and its card at the end."""
    path = (await to_thread(request.turn, name, number)).path
    await request.stream(panels(request.feeds, {request.places.name(path): path}))


@handles_route("stream_views")
async def stream_views(request: Handler) -> None:
    """Stream the panels of several turns and groups.

    A browser opens only a few connections to a server, and JupyterLab needs some of them, so a page
    uses a single stream for all panels.
    """
    names = dict.fromkeys(request.get_query_arguments("id"))
    if len(names) > MAX_WATCHED:
        raise web.HTTPError(400, f"A stream can show at most {MAX_WATCHED} turns and sweeps.")
    feeds_by_name, unknown = await to_thread(_find_requested, request, names)
    await request.stream(panels(request.feeds, feeds_by_name, unknown))


def _find_requested(request: Handler, names: Iterable[str]) -> tuple[dict[str, Path], list[str]]:
    feeds_by_name, unknown = {}, []
    for name in names:
        try:
            feeds_by_name[name] = request.places.run(name)
        except UnknownNameError:
            unknown.append(name)
    return feeds_by_name, unknown


async def panels(
    source: Feeds, paths: dict[str, Path], unknown: Sequence[str] = ()
) -> AsyncGenerator[str]:
    """Yield the state of panels whenever it changes, and each card at the end.

    Args:
        source: The feeds of the server.
        paths: The turns and groups by their ids.
        unknown: Ids that were not found. They are reported first.
    """
    for name in unknown:
        yield _message("unknown", {"id": name})
    feeds = {name: source.of(path) for name, path in paths.items()}
    panel_data: dict[str, Any] = {}
    with source.follow(feeds.values()):
        changes = await source.read(feeds.values())
        while feeds:
            for name, feed in list(feeds.items()):
                if not feed.is_live:
                    del feeds[name]
                    yield await _card(name, feed)
                    continue
                message = ""
                with ServiceLoop.PAGES.item():
                    if panel_data.get(name) is not (state := feed.state()):
                        panel_data[name] = state
                        message = _message("state", {"id": name, "state": state})
                yield message
            yield ""
            if feeds:
                changes = await source.news(changes)


async def _card(name: str, feed: Feed) -> str:
    with ServiceLoop.PAGES.item(), suppress(FileNotFoundError):
        return _message("card", {"id": name, "bundle": await to_thread(feed.card)})
    return _message("unknown", {"id": name})  # deleted in the meantime


def _message(kind: str, data: Any, number: int | None = None) -> str:
    """Return a server-sent event. Its JSON contains no line breaks."""
    head = f"event: {kind}\n" if number is None else f"event: {kind}\nid: {number}\n"
    return f"{head}data: {json_text(data)}\n\n"
