"""Exact resume of agents that call agents: finished work at any depth is not repeated.

With many trees, each killed at each event: ``python -m tests.turns.test_exact_trees FIRST LAST``.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nb_agents import events as ev
from tests.kit.runs import CancellationStatus, Run, StopRequest, TurnWriter, preview
from tests.samples import sample
from tests.team_kit import WAIT_S
from tests.turns.proof import all_events
from tests.turns.trees import Script, cut_copy, random_tree
from tests.watching import turns_watched

SEEDS = [15, 24, 22, 27]
"""The seeds of the trees in CI."""


def play_killed(tmp_path: Path, seed: int, count: int = 10_000) -> int:
    """Kill a tree at this many events, resume it, and compare. Return the number of kills."""
    whole = Script(random_tree(seed))
    result = whole.start(tmp_path / "whole").wait(WAIT_S)
    assert max(whole.asked.values()) == max(whole.looked.values()) == 1
    kills = sample(range(2, len(all_events(tmp_path / "whole")) - 1), count)
    for after in kills:
        root = tmp_path / str(after)
        old = cut_copy(tmp_path / "whole", root, after)
        script = Script(whole.tree)
        replies, looks = script.finished(old)
        told = preview("s", session_root=root)
        assert script.resume(root).wait(WAIT_S) == result, after
        assert script.asked + replies == whole.asked, after
        assert script.looked + looks == whole.looked, after
        assert told.calls == replies.total()
        script.assert_truthful(told, old, all_events(root)[len(old) :])
    return len(kills)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(300)
def test_tree_killed_at_any_event_repeats_no_request(tmp_path: Path, seed: int) -> None:
    assert play_killed(tmp_path, seed, 4) >= 4


LEVELS = {"graceful": CancellationStatus.REQUESTED, "at once": CancellationStatus.IMMEDIATE}


def stopped(begin: Callable[[Path], Run], root: Path, after: int, level: CancellationStatus) -> Run:
    """Start or resume a run, and stop it after the event of that number, if it comes."""

    def hear(turn: TurnWriter, event: ev.Event | None) -> None:
        if event is not None and event.seq == after and not turn.view.is_over:
            turn.take(StopRequest(level, "api", "at an event"))

    with turns_watched(hear):
        run = begin(root)
        run.wait(WAIT_S, raise_on_stop=False)
    return run


@pytest.mark.parametrize("seed", [24, 22])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.timeout(300)
def test_tree_stopped_at_any_event_repeats_no_request(
    tmp_path: Path, level: str, seed: int
) -> None:
    """Every second resume is stopped, too."""
    whole = Script(random_tree(seed))
    result = whole.start(tmp_path / "whole").wait(WAIT_S)
    for number, after in enumerate(sample(range(3, len(all_events(tmp_path / "whole")) - 2), 4)):
        root, stops = tmp_path / str(after), [after, 3 + after % 5 if number % 2 else 0, 0]
        script = Script(whole.tree)
        run = stopped(script.start, root, stops.pop(0), LEVELS[level])
        if run.status == "completed":  # the stop came too late
            continue
        while run.status != "completed":
            old, told = all_events(root), preview("s", session_root=root)
            replies, looks = script.finished(old)
            script.asked, script.looked = Counter(), Counter()
            run = stopped(script.resume, root, stops.pop(0), LEVELS[level])
        assert run.result == result, after
        assert script.asked + replies == whole.asked, after
        assert script.looked + looks == whole.looked, after
        script.assert_truthful(told, old, all_events(root)[len(old) :])


if __name__ == "__main__":
    for number in range(*map(int, sys.argv[1:])):
        with tempfile.TemporaryDirectory() as folder:
            print(number, play_killed(Path(folder), number), "kills", flush=True)
