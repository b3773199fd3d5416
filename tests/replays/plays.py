"""Records random turns of each kind and replays them.

``python -m tests.replays.plays [TURNS [FIRST [KIND]]]`` plays that many turns in sum.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

from nb_agents import ReplayError, RunOptions, Sweep
from nb_agents import events as ev
from tests.cli.calls import call_here
from tests.kit.replays import DEFAULT_RULES, start_replay
from tests.kit.runs import Run, find_run
from tests.model_server import ModelServer
from tests.replays.kinds import KEY, KINDS, Arena
from tests.team_kit import events

__all__ = ["play", "tree_of", "wait_for"]

TREE = (
    ev.RoundStarted,
    ev.ModelStarted,
    ev.ModelFinished,
    ev.ModelFailed,
    ev.ModelCut,
    ev.ToolStarted,
    ev.ToolFinished,
    ev.ContextFolded,
    ev.NoteSent,
    ev.AnswerGiven,
    ev.VoteCast,
    ev.VoteIgnored,
    ev.Abstained,
    ev.AgentFailed,
    ev.AgentCalled,
    ev.AgentEnded,
    ev.PresentationStarted,
    ev.FinalAnswerGiven,
    ev.SessionBound,
    ev.StepStarted,
    ev.StepFailed,
    ev.StepFinished,
    ev.ApprovalAsked,
    ev.ApprovalGiven,
    ev.StopRequested,
    ev.UserMessage,
    ev.Paused,
    ev.Continued,
    ev.TurnEnded,
)
"""The kinds of events that a replay repeats."""
DECISIONS = (ev.AnswerGiven, ev.VoteCast, ev.VoteIgnored, ev.Abstained)
OF_PLACE = {"seconds", "session", "session_a", "session_b"}
"""The columns of a sweep's table with times and paths."""
TIMES = {"at", "seq", "seconds", "thread", "retry_in_s", "retry_at", "waited_s", "grace_s"}


def trees_of(work: Run | Sweep) -> list[Any]:
    """Return the tree of a run, or those of a sweep's rows after its verdict and table."""
    if isinstance(work, Run):
        return tree_of(work)
    rows = [row for row in work.table() if row.get("status") != "waiting"]
    table = [{k: v for k, v in row.items() if k not in OF_PLACE} for row in rows]
    turns = {turn.parent: turn for turn in sorted(work.path.glob("*/turn_*")) if _began(turn)}
    runs = [find_run(str(turns[row])) for row in sorted(turns)]
    first = [
        ("verdict", repr(getattr(work, "verdict", ""))),
        *(("row", str(each)) for each in table),
    ]
    return first + [each for run in runs for each in tree_of(run)]


def _began(turn: Path) -> bool:
    return (turn / "events.jsonl").exists()


def tree_of(run: Run) -> list[Any]:
    """Return what each agent did and received, without times, in the order of each agent.

    An agent that is stopped between two rounds ends only if it had begun to prepare the next one,
    and one that was stopped before its first round only if the team had begun. These ends depend on
    the moment of the stop, so they are left out.
    """
    decided = set[str]()
    found, [started, *_] = [], events(run, ev.TurnStarted)
    directory = str(started.context.get("_project", ""))
    for event in events(run, *TREE):
        if isinstance(event, DECISIONS):
            decided.add(event.agent)
        elif isinstance(event, ev.RoundStarted):
            decided.discard(event.agent)
        elif isinstance(event, ev.AgentEnded):
            if event.outcome == "never started":
                continue
            if event.outcome == "stopped" and event.agent in decided:
                continue
        fields = ev.EVENT.dump_python(event, mode="json")
        timeless = {k: v for k, v in fields.items() if k not in TIMES}
        text = str(timeless).replace(directory, "<directory>") if directory else str(timeless)
        for rule in DEFAULT_RULES:
            text = re.sub(rule.pattern, rule.replacement, text)
        found.append((timeless.get("agent") or timeless.get("step", ""), text))
    return sorted(found, key=lambda each: each[0])


def wait_for(work: Any) -> None:
    """Wait until a run or sweep has ended, in any way."""
    if isinstance(work, Run):
        work.wait(raise_on_stop=False)
    else:
        with suppress(ReplayError):
            work.wait()


def play(server: ModelServer, root: Path, kind: str, seed: int) -> dict[str, Any]:
    """Record a turn, replay it in another directory, and return the figures."""
    arena = Arena(server, root / "recorded", seed)
    work = KINDS[kind](arena)
    wait_for(work)
    path = root / f"{kind.replace(' ', '-')}-{seed}.nbar"
    call_here("record", str(work.path), "-o", str(path))
    shutil.rmtree(arena.files, ignore_errors=True)
    count, began = server.count(), time.monotonic()
    (root / "replays").mkdir(exist_ok=True)
    with chdir(root / "replays"):
        replayed = start_replay(path, options=RunOptions(session_root=root / "replays"))
        wait_for(replayed.work)
    took = time.monotonic() - began
    trees = trees_of(work), trees_of(replayed.work)
    return {
        "kind": kind,
        "seed": seed,
        "status": work.status,
        "events": len(trees[0]),
        "equal": trees[0] == trees[1],
        "first": next(((a, b) for a, b in zip(*trees, strict=False) if a != b), None),
        "lengths": [*map(len, trees)],
        "difference": replayed.difference[:400],
        "requests": server.count() - count,
        "recorded": replayed.requests,
        "leaks": KEY in gzip.decompress(path.read_bytes()).decode(),
        "size": path.stat().st_size,
        "took_s": round(took, 3),
    }


def main(turns: int = 32, first: int = 0, only: str = "") -> int:
    """Play the turns and print the figures. Return how many differ."""
    os.environ["OPENAI_API_KEY"] = KEY
    found: dict[str, list[dict[str, Any]]] = {}
    kinds = [only] if only else [*KINDS]
    with ModelServer() as server, tempfile.TemporaryDirectory() as root:
        for number in range(first, first + turns):
            kind = kinds[number % len(kinds)]
            try:
                figures = play(server, Path(root), kind, number)
            except Exception as exc:
                figures = {"kind": kind, "seed": number, "equal": False, "error": repr(exc)[:600]}
            found.setdefault(kind, []).append(figures)
            if _is_fault(figures):
                print(figures, flush=True)
    for kind, plays in found.items():
        print(_row(kind, plays))
    faults = sum(_is_fault(play) for plays in found.values() for play in plays)
    print(f"{turns} turns, {faults} differ")
    return faults


def _is_fault(figures: dict[str, Any]) -> bool:
    return not figures["equal"] or bool(figures["requests"]) or figures["leaks"]


def _row(kind: str, plays: list[dict[str, Any]]) -> str:
    equal = [each for each in plays if not _is_fault(each)]
    sizes = [each["size"] for each in equal] or [0]
    times = [each["took_s"] for each in equal] or [0.0]
    recorded = sum(each["recorded"] for each in equal)
    return (
        f"{kind:20} {len(equal):3} of {len(plays):3} equal, {recorded:5} requests answered, "
        f"at most {max(sizes):6} bytes, median {statistics.median(times):.2f} s"
    )


if __name__ == "__main__":
    numbers = [*map(int, sys.argv[1:3]), *[32, 0][len(sys.argv[1:3]) :]]
    sys.exit(main(numbers[0], numbers[1], " ".join(sys.argv[3:])) > 0)
