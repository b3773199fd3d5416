"""Print the cost of stops and kills by shape: ``python -m tests.kills [SHAPE ...]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.table import print_table
from tests.kills.shapes import SHAPES
from tests.kills.stage import FOLD, Played, Stage, at_each, every_event, kills_for, stage
from tests.kills.understudy import Kill

MANY = 14
"""Number of executions of each shape with two and with three kills."""


def main(keys: list[str]) -> None:
    """Run each shape, or the named ones, and print the results."""
    with TemporaryDirectory() as place, stage(Path(place)) as here:
        rows = [row for key in keys or SHAPES for row in _rows(here, key)]
    counts = ("runs", "equal", "paid twice", "words lost", "processes left")
    title = (
        "stop and kill -9 at every event: afterwards, a new process resumes the run and completes "
        "it\n"
        "equal: runs with the same results, files, recorded calls, tools and model requests as a "
        "run without interruption\n"
        "paid twice: repeated calls whose whole reply the model had sent, but the process had not "
        "read before the interruption (in parentheses: the maximum age of such a reply)\n"
        "words lost: words of text and thinking, in all runs together, that models had sent and "
        "that no journal contains"
    )
    print_table(title, ("shape", "how", *counts, "differences"), rows)


def _rows(here: Stage, key: str) -> list[list[str]]:
    _, events = here.whole(key)
    many = [kills for n in (2, 3) for kills in kills_for(events, MANY, n, seed=0)]
    folds = here.count(key, FOLD)
    at_folds = [kills for is_stop in (0, 1) for kills in at_each(FOLD, folds, bool(is_stop))]
    return [
        *([_row(here, key, "stop and kill -9 at folds", at_folds)] if folds else []),
        _row(here, key, "immediate stop", every_event(events, is_stop=True)),
        _row(here, key, "kill -9", every_event(events, is_stop=False)),
        _row(here, key, "kill -9, two or three times", many),
    ]


def _row(here: Stage, key: str, how: str, tries: Iterable[tuple[Kill, ...]]) -> list[str]:
    plays = [_play(here, key, kills) for kills in tries]
    late = [ms for play in plays for ms in play.again_ms]
    wrong = [play for play in plays if play.differs or play.error]
    differs = {name for play in wrong for name in (*play.differs, *filter(None, [play.error]))}
    return [
        *(SHAPES[key].title, how, str(len(plays)), f"{len(plays) - len(wrong)}/{len(plays)}"),
        f"{len(late)} ({max(late):.0f} ms)" if late else "0",
        str(sum(play.words_lost for play in plays)),
        str(sum(len(play.left) for play in plays)),
        ", ".join(sorted(differs)) or "none",
    ]


def _play(here: Stage, key: str, kills: tuple[Kill, ...]) -> Played:
    played = here.play(key, kills)
    if played.differs or played.error or played.left:
        print(key, played, file=sys.stderr, flush=True)
    return played


if __name__ == "__main__":
    main(sys.argv[1:])
