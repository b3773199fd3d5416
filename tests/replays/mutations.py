"""Changes one message of a recorded request at random, and checks that a replay reports it.

``python -m tests.replays.mutations [CHANGES [FIRST]]`` makes that many changes, over all kinds.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nb_agents import RunOptions
from tests.cli.calls import call_here
from tests.kit.replays import replay_stage, script_of, start_replay
from tests.model_server import ModelServer
from tests.replays.kinds import KINDS, Arena
from tests.replays.plays import wait_for

__all__ = ["difference_after_change"]


def difference_after_change(
    server: ModelServer, root: Path, kind: str, seed: int
) -> tuple[str, str]:
    """Record a turn or sweep, change a message of a request, and replay it.

    Returns:
        The difference that the replay reports, without the name of a sweep's row, and how it has to
        begin. Both are "" if no request was made.
    """
    work = KINDS[kind](Arena(server, root / "recorded", seed))
    wait_for(work)
    path = root / f"{seed}.nbar"
    call_here("record", str(work.path), "-o", str(path))
    chosen, wanted = random.Random(seed), []

    def changed(events: Sequence[Any], past: Sequence[Any] = ()) -> Any:
        script = script_of(events, past)
        if not script.requests or wanted:
            return script
        agent, call = place = chosen.choice([*script.requests])
        of_rounds = [each for each in script.rounds if each[0] == agent]
        if of_rounds:  # only the first messages of its rounds are compared
            agent, number = place = chosen.choice(of_rounds)
            played = script.rounds[place]
            assert played.started is not None
            started = replace(played.started, asks=(*played.started.asks, "More."))
            script.rounds[place] = played._replace(started=started)
            wanted.append(
                f"Round {number} of {agent} differs from the recording in message 1 of 1."
            )
            return script
        messages = script.requests[place] = deepcopy(script.requests[place])
        number = chosen.randrange(len(messages))
        _change(messages[number].parts[0])
        wanted.append(
            f"Request {call} of {agent} differs from the recording in message {number + 1} of "
            f"{len(messages)}."
        )
        return script

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_stage, "script_of", changed)
        replayed = start_replay(path, options=RunOptions(session_root=root / "replays"))
        wait_for(replayed.work)
    return re.sub("^Row [^:]*: ", "", replayed.difference), "".join(wanted)


def _change(part: Any) -> None:
    if isinstance(getattr(part, "content", None), str):
        part.content = part.content.replace(" ", "  ", 1) + "!"
    else:
        part.args = {"other": 1}


def main(changes: int = 64, first: int = 0) -> int:
    """Make the changes and print how many were reported at the right message."""
    kinds, found, made = [*KINDS], 0, 0
    with ModelServer() as server, tempfile.TemporaryDirectory() as root:
        for number in range(first, first + changes):
            kind = kinds[number % len(kinds)]
            difference, wanted = difference_after_change(server, Path(root), kind, number)
            made += bool(wanted)
            found += bool(wanted) and difference.startswith(wanted)
            if not difference.startswith(wanted):
                print(kind, number, wanted, difference[:400], flush=True)
    print(f"{found} of {made} changed messages reported; {changes - made} turns made no request")
    return made - found


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
