"""`rewind` without a checkpoint lists the checkpoints."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.cli.calls import answer, call_here, told_here
from tests.model_server import ModelServer


def test_rewind_without_a_checkpoint_lists_those_of_the_turn(
    place: Path, server: ModelServer
) -> None:
    server.script("m", answer("Use *mmap*."), answer("Use a store."))
    call_here("run", "-c", "team.yaml", "-s", "caches", "Compare three caches.")
    listed = call_here("rewind", "caches")
    assert "a's 1st answer" in listed and "Use mmap." in listed
    points = told_here("rewind", "caches")
    assert points[0]["says"] == "the start"
    assert os.listdir(place / ".nb_agents" / "sessions" / "caches").count("turn_2") == 0
    # The command that the list offers works.
    [command] = [part for part in listed.split("`") if part.startswith("nb-agents rewind")]
    assert "caches/turn_2" in call_here(*shlex.split(command)[1:])


def test_rewind_of_a_turn_without_events_lists_nothing(place: Path, server: ModelServer) -> None:
    server.script("m", answer("Use mmap."))
    call_here("run", "-c", "team.yaml", "-s", "caches", "Compare three caches.")
    (place / ".nb_agents" / "sessions" / "caches" / "turn_1" / "events.jsonl").unlink()
    assert "has no checkpoints" in call_here("rewind", "caches")
