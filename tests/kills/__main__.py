"""Prints what kills cost, by shape of work: ``python -m tests.kills [COUNT [SHAPE ...]]``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.table import print_table
from tests.kills.shapes import SHAPES
from tests.kills.stage import Played, Stage, kills_for, stage

COUNT = 42


def main(args: list[str]) -> None:
    count, keys = int((*args[:1], COUNT)[0]), args[1:] or list(SHAPES)
    with TemporaryDirectory() as place, stage(Path(place)) as here:
        rows = [_row(here, key, count) for key in keys]
    heads = ("shape", "plays", "kills", "equal", "unread", "what differs")
    title = (
        "kill -9 by shape of work, one to three in a row\n"
        "equal: results, files, recorded calls, tools, and what models were sent\n"
        "unread: replies that were sent to their end and had not been read at a kill (age at most)"
    )
    print_table(title, heads, rows)


def _row(here: Stage, key: str, count: int) -> list[str]:
    _, events = here.whole(key)
    plays: list[Played] = []
    for in_a_row in (1, 2, 3):
        for kills in kills_for(events, count // 3, in_a_row, seed=0):
            plays.append(here.play(key, kills))
            if plays[-1].differs or plays[-1].error:
                print(key, plays[-1], file=sys.stderr, flush=True)
    late = [ms for play in plays for ms in play.again_ms]
    wrong = [p for p in plays if p.differs or p.error]
    differs = sorted(
        {name for p in wrong for name in (*p.differs, *([p.error] if p.error else []))}
    )
    return [
        SHAPES[key].title,
        str(len(plays)),
        str(sum(len(p.kills) for p in plays)),
        f"{len(plays) - len(wrong)}/{len(plays)}",
        f"{len(late)} ({max(late):.0f} ms)" if late else "0",
        ", ".join(differs) or "nothing",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
