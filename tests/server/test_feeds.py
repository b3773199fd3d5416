"""Who watches what a process works on: one looks, for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from nb_agents.server.feeds import Feed, Feeds
from tests.team_kit import WAIT_S


class Counted(Feed):
    """Has news when it is told so, and counts the looks."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.looks = 0
        self.has_news = self.is_found = False

    def card(self) -> dict[str, Any]:
        return {}

    _has_told_its_end = False
    standing = 0

    def _is_owned(self) -> bool:
        return True

    def _read_on(self, is_live: bool) -> bool:
        self.looks += 1
        self.is_found = self.has_news
        return self.has_news

    def _draw(self, now: float) -> dict[str, Any]:
        return {}


async def wait(feeds: Feeds, feed: Counted, woken: list[int]) -> None:
    """Wait until a look has found something."""
    with feeds.follow([feed]):
        seen = await feeds.read([feed])
        while not feed.is_found:
            seen = await feeds.news(seen)
        woken.append(feed.looks)


@pytest.mark.anyio
async def test_one_look_is_for_all_who_wait_and_without_them_there_is_none() -> None:
    feeds, feed, woken = Feeds(), Counted(), list[int]()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(wait, feeds, feed, woken)
        await anyio.sleep(0.5)
        assert 1 <= feed.looks <= 7
        feed.has_news = True
    assert len(woken) == 20
    looks = feed.looks
    await anyio.sleep(0.3)
    assert feed.looks == looks


@pytest.mark.anyio
async def test_when_the_one_who_looks_goes_another_does() -> None:
    feeds, feed, woken = Feeds(), Counted(), list[int]()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as second, anyio.create_task_group() as first:
            first.start_soon(wait, feeds, feed, woken)
            await anyio.sleep(0.05)
            second.start_soon(wait, feeds, feed, woken)
            await anyio.sleep(0.05)
            first.cancel_scope.cancel()
            feed.has_news = True
    assert len(woken) == 1
