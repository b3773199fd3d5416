"""Feeds: one client polls for all clients that watch."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from nb_agents.server import feeds as feeds_module
from nb_agents.server.feeds import Feed, Feeds, TurnFeed
from tests.kit.cards import TURN_MIME
from tests.kit.sessions import TurnPaths
from tests.kit.sweeps import SweepFeed
from tests.session.turns import ADA, answer, started, turn_paths, write_journal
from tests.team_kit import WAIT_S


class Counted(Feed):
    """A feed that has news when the test says so, and counts the reads."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.looks = 0
        self.has_news = self.is_found = False

    def card(self) -> dict[str, Any]:
        return {}

    def facts(self, where: str = "") -> Any:
        return None

    def record_reader(self) -> Any:
        return list

    _has_recorded_end = False
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
    """Wait until a poll has found a change."""
    with feeds.follow([feed]):
        seen = await feeds.read([feed])
        while not feed.is_found:
            seen = await feeds.news(seen)
        woken.append(feed.looks)


@pytest.mark.anyio
async def test_waiting_clients_share_polls() -> None:
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
async def test_another_client_polls_when_the_polling_one_leaves() -> None:
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


def test_unused_feed_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, feeds = turn_paths(tmp_path).path, Feeds()
    feed = feeds.turn(path)
    assert feeds.turn(path) is feed
    monkeypatch.setattr(feeds_module, "UNREAD_S", 0)
    assert feeds.turn(path) is not feed


@pytest.mark.parametrize("is_longer", [True, False])
def test_feed_restarts_for_a_new_session_of_the_same_name(tmp_path: Path, is_longer: bool) -> None:
    paths = turn_paths(tmp_path)
    short, long = [started(task="Why?")], [started(task="How?"), answer("ada", ADA * 9)]
    feed = Feeds().turn(paths.path)
    with paths.lock():
        for events in (short, long) if is_longer else (long, short):
            shutil.rmtree(paths.path, ignore_errors=True)
            feed.read()  # it is not there
            paths = turn_paths(tmp_path)
            view = write_journal(paths, *events)
            feed.read()
            assert (feed.view.task, feed.view.seq) == (view.task, len(events))
            assert ("1 answer" in feed.timeline()) == (events is long)


@pytest.mark.parametrize("is_longer", [True, False])
def test_feed_restarts_for_a_new_sweep_of_the_same_name(tmp_path: Path, is_longer: bool) -> None:
    sweep = TurnPaths(tmp_path / "asked")
    feed = SweepFeed(sweep.path, Feeds())
    lengths = (1, 4) if is_longer else (4, 1)
    for total, ended in zip((7, 8), lengths, strict=True):
        shutil.rmtree(sweep.path, ignore_errors=True)
        feed.read()  # it is not there
        sweep.path.mkdir()
        (sweep.path / "sweep.json").write_text("{}")
        began = {"kind": "sweep_began", "at": total, "rows": total, "first": [], "others": []}
        rows = [{"row": f"r{number}", "status": "completed"} for number in range(ended)]
        lines = [json.dumps(line) for line in ({**began, "retry_failed": False}, *rows)]
        (sweep.path / "rows.jsonl").write_text("\n".join(lines) + "\n")
        feed.read()
        assert (feed.view.total, feed.view.completed) == (total, ended)


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ("notebook:../story.ipynb", "my sessions/session_1/turn_1"),
        ("notebook:../other/story.ipynb", "{}"),
        ("notebook:story.ipynb", "{}"),
        ("terminal", "{}"),
    ],
)
def test_card_shows_the_directory_as_the_kernel_of_the_notebook_does(
    tmp_path: Path, origin: str, shown: str
) -> None:
    paths = turn_paths(tmp_path / "my sessions")
    write_journal(paths, replace(started(), origin=origin))
    feed = TurnFeed(paths.path)
    assert feed.card()[TURN_MIME]["path"] == shown.format(paths.path)
