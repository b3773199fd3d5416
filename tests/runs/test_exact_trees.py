"""Exact resume of agents that call agents: what finished at any depth is never asked for again.

With many trees, each killed at each event: ``python -m tests.runs.test_exact_trees FIRST LAST``.
"""

import sys
import tempfile
from pathlib import Path

import pytest

from nb_agents.runs.resume import preview
from tests.runs.proof import all_events
from tests.runs.trees import Script, cut_copy, random_tree
from tests.team_kit import WAIT_S

SEEDS = {15: 3, 24: 3, 22: 3, 27: 17}
"""Trees, and how many events lie between two kills."""


def play_killed(tmp_path: Path, seed: int, pace: int = 1) -> int:
    """Kill a tree at events, resume it, and compare; return how often that was done."""
    whole = Script(random_tree(seed))
    result = whole.start(tmp_path / "whole").wait(WAIT_S)
    assert max(whole.asked.values()) == max(whole.looked.values()) == 1
    kills = range(2 + seed % pace, len(all_events(tmp_path / "whole")) - 1, pace)
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
def test_a_tree_that_is_killed_at_any_event_asks_for_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    assert play_killed(tmp_path, seed, SEEDS[seed]) > 5


if __name__ == "__main__":
    for number in range(*map(int, sys.argv[1:])):
        with tempfile.TemporaryDirectory() as folder:
            print(number, play_killed(Path(folder), number), "kills", flush=True)
