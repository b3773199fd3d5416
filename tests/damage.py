"""Two small sessions, possible damage to their files, and all ways to look at a session.

    python -m tests.damage 10000

runs that many random edits and every truncation, which takes minutes. tests/test_damage.py runs
some of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nb_agents import events as ev
from nb_agents.errors import UserError
from tests.kit.cards import card_bundle, session_row
from tests.kit.recipes import Recipe, planned
from tests.kit.runs import log_lines, preview
from tests.kit.sessions import (
    Journal,
    TurnPaths,
    load_session,
    past_events,
    read_journal,
    write_views,
)
from tests.kit.views import RunView, fold_timeline

__all__ = [
    "Damage",
    "cuts",
    "edits",
    "end_next_turn",
    "files_of",
    "look",
    "mend",
    "small_sessions",
    "spoil",
]

RECIPE = """
name: main
description: d
version: 1.0.0
context: {names: [a, b]}
stages:
- name: gather
  steps:
  - {id: draft, agent: worker, prompt: "Draft it", output: draft}
  - {id: each, type: bash, foreach: "{{names}}", collect: each, command: "echo {{item}}"}
  approval: {required: true, prompt: "Use {{draft}}?"}
- name: work
  steps:
  - {id: end, agent: worker, output: end, prompt: "End {{each}}"}
"""


def _asked(agent: str) -> list[ev.Event]:
    request = [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Why?"}]}]
    words = {"part_kind": "text", "content": "Let me see."}
    call = {"part_kind": "tool-call", "tool_name": "write_file", "args": "{}", "tool_call_id": "w"}
    return [
        ev.RoundStarted(agent=agent, number=1, request=request, seen={"ben": 0}),
        ev.ModelStarted(agent=agent, call=1),
        ev.TextStreamed(agent=agent, call=1, channel="text", text="Let me see."),
        ev.ModelFinished(
            agent=agent,
            call=1,
            response={"kind": "response", "parts": [words, call]},
            usage=ev.Usage(input_tokens=40, output_tokens=2, cost=0.01),
        ),
        ev.ToolStarted(agent=agent, call_id="1.0", tool="write_file", args="{}", summary="a.md"),
        ev.ToolFinished(
            agent=agent,
            call_id="1.0",
            tool="write_file",
            outcome="ok",
            result="Wrote.",
            seconds=0.1,
        ),
        ev.ModelStarted(agent=agent, call=2),
    ]


_STOPPED = [
    ev.StopRequested(level="immediate", source="widget", reason="enough"),
    ev.TurnEnded(status="cancelled", phase="coordinating", next=("gather",)),
]


def _team() -> list[ev.Event]:
    agents = tuple(ev.AgentInfo(id=name, model="m") for name in ("ada", "ben"))
    return [
        ev.TurnStarted(session="team", turn=1, task="Why?", agents=agents, timeout_s=60),
        *_asked("ada"),
        ev.AnswerGiven(agent="ada", answer="Because."),
        ev.VoteCast(agent="ada", target="ada", reason="best", seen={"ada": 1}),
        *_asked("ben"),
        ev.TextStreamed(agent="ben", call=2, channel="answer", text="Half a thou"),
        ev.UserMessage(text="Be brief."),
        *_STOPPED[:1],
        ev.ModelCut(agent="ben", call=2),
        *_STOPPED[1:],
        ev.FilesListed(files=(ev.FileInfo(agent="ada", path="a.md", size=3),), count=1, size=3),
    ]


def _recipe() -> list[ev.Event]:
    outline = planned(Recipe.from_text(RECIPE, "main.yaml"))
    started = ev.TurnStarted(
        session="recipe", turn=1, task="main: d", agents=(), timeout_s=0, recipe="main"
    )
    return [
        replace(started, context={"_project": "/p"}),
        ev.RecipeLoaded(step="", path="", text=RECIPE, outline=outline),
        ev.StepStarted(step="gather", unit="stage"),
        ev.StepStarted(step="gather/draft", unit="agent", worker="worker", model="m", asks="Draft"),
        *_asked("gather/draft"),
        ev.StepFinished(step="gather/draft", outcome="ok", output="Drafted."),
        ev.StepStarted(step="gather/each", unit="foreach", total=2),
        ev.StepStarted(step="gather/each[0]", unit="bash", asks="echo a"),
        ev.OutputStreamed(step="gather/each[0]", text="a"),
        ev.StepFinished(step="gather/each[0]", outcome="ok", output="a", exit_code=0),
        ev.StepStarted(step="gather/each[1]", unit="bash", asks="echo b"),
        ev.StepFailed(step="gather/each[1]", attempt=1, error="no", attempts=2, retry_in_s=1.0),
        ev.ApprovalAsked(step="gather", prompt="Use it?", timeout_s=5),
        *_STOPPED,
    ]


def small_sessions(root: Path) -> list[Path]:
    """Write a stopped team's session and a stopped recipe's."""
    made = []
    for name, events in (("team", _team()), ("recipe", _recipe())):
        paths = TurnPaths(root / name / "turn_1")
        for space in ("ada", "ben") if name == "team" else ("main",):
            (paths.workspaces / space).mkdir(parents=True)
            (paths.workspaces / space / "a.md").write_text("abc")
        journal = Journal(paths.journal)
        for seq, event in enumerate(events, 1):
            journal.append(replace(event, seq=seq, at=1.8e9 + seq))
        journal.close()
        write_views(load_session(paths.path.parent).turns[0].view, paths)
        winners = paths.path.parent / "winning_agents_history.json"
        winners.write_text('[{"agent_id": "ada", "turn": 7}]')
        made.append(paths.path.parent)
    return made


# Damage to files ----------------------------------------------------------------------------


class Damage(NamedTuple):
    """A file with other bytes; `alone`: the journal is lost besides."""

    file: str
    data: bytes
    alone: bool = False


def files_of(session: Path) -> dict[str, bytes]:
    found = (p for p in session.rglob("*") if p.is_file() and "workspaces" not in p.parts)
    return {str(p.relative_to(session)): p.read_bytes() for p in sorted(found)}


def cuts(session: Path, step: int = 1) -> Iterator[Damage]:
    """Cut each file at every byte, or at every so many and at each line's end."""
    for name, data in files_of(session).items():
        ends = {found.end() for found in re.finditer(b"\n", data)}
        for place in sorted({*range(0, len(data), step), *ends}):
            yield Damage(name, data[:place])
            if not name.endswith(".jsonl"):
                yield Damage(name, data[:place], alone=True)


_TOKEN = re.compile(rb'-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|null|true|false')
_ABSURD = (
    *(b"1e308", b"NaN", b"-Infinity", b"-1", b"1e999", b"9" * 400, b"9" * 5000, b"0", b"1.5"),
    *(b"253402300800", b"99999999999", b"null", b"true", b"[]", b"{}", b'""', b'"x"', b'"\\ud800"'),
    *(b"[" * 10_000 + b"]" * 10_000, b"[" * 150 + b"]" * 150, b'{"a":' * 150 + b"1" + b"}" * 150),
    *(b'"../../.."', b'"/"', b'"a/b[0]/c"', b'"\\u001b[2J"', b'"ada"', b'"ben"', b'"gather"'),
)


def edits(session: Path, count: int, seed: int) -> Iterator[Damage]:
    """Edit a file at random, so many times over; most often the journal."""
    chance, files = random.Random(seed), files_of(session)
    journal = next(name for name in files if name.endswith(".jsonl"))
    for _ in range(count):
        name = journal if chance.random() < 0.6 else chance.choice(list(files))
        data = files[name]
        for _ in range(chance.choice([1, 1, 1, 2, 4])):
            data = _edited(data, chance)
        yield Damage(name, data, alone=name != journal and chance.random() < 0.5)


def _edited(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice([1, 1, 2, 5, 20, 200]))
    before, held, after = data[:start], data[start:end], data[end:]
    lines = data.split(b"\n")
    some, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(9):
        case 0:
            return before + after
        case 1:
            return before + held + held + after
        case 2:
            return before + chance.randbytes(len(held)) + after
        case 3:
            return before + chance.randbytes(chance.randrange(5)) + held + after
        case 4:
            lines[some], lines[other] = lines[other], lines[some]
        case 5:
            lines.insert(some, lines[other])
        case 6:
            del lines[some]
        case _:
            tokens = list(_TOKEN.finditer(data))
            if not tokens:
                return data
            token, source = chance.choice(tokens), chance.choice(tokens)
            new = chance.choice(_ABSURD) if chance.random() < 0.6 else source[0]
            return data[: token.start()] + new + data[token.end() :]
    return b"\n".join(lines)


# Views of a session --------------------------------------------------------------------------


def look(session: Path) -> str:
    """Read a session through every entry point. Return the message of a user error, or "".

    Any other exception is a bug.
    """
    loaded = load_session(session)
    assert loaded.messages is not None and loaded.context_paths is not None
    assert all("\n" not in line for line in session_row(loaded))
    assert len(loaded.restored()) < 50
    for turn in loaded.turns:
        timeline = fold_timeline(past_events(turn.paths), is_live=turn.is_live)
        bundle = card_bundle(turn.view, str(turn.paths.path), timeline)
        json.dumps(bundle, allow_nan=False).encode()
        "\n".join(log_lines(read_journal(turn.paths.journal).events)).encode()
    try:
        str(preview(session.name, session_root=session.parent)).encode()
    except UserError as exc:
        return str(exc)
    return ""


def end_next_turn(session: Path) -> None:
    """Write the files of another turn that ends next to the damage."""
    paths = TurnPaths(session / "turn_2")
    (paths.workspaces / "ada").mkdir(parents=True)
    view = RunView(session.name, 2, "And then?", "completed", winner="ada", ended_at=1.9e9)
    write_views(view, paths)
    assert "TURN 2" in paths.summary.read_text()
    shutil.rmtree(paths.path)


def spoil(session: Path, damage: Damage) -> None:
    """Damage a session."""
    (session / damage.file).write_bytes(damage.data)
    if damage.alone:
        (session / "turn_1" / "events.jsonl").unlink(missing_ok=True)


def mend(session: Path, files: dict[str, bytes]) -> None:
    """Make a session's files what they were."""
    for name, data in files.items():
        path = session / name
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


def _main(count: int, seed: int) -> None:
    """Try every truncation and a number of edits. Print messages that are not sentences."""
    os.fsync = lambda fd: None  # type: ignore[assignment]
    defects: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        for session in small_sessions(Path(root)):
            files, looked = files_of(session), 0
            for damage in (*cuts(session), *edits(session, count // 2, seed)):
                spoil(session, damage)
                try:
                    look(session)
                    end_next_turn(session)
                except Exception:
                    defects["".join(traceback.format_exc().splitlines(True)[-4:])] += 1
                mend(session, files)
                looked += 1
            print(f"{session.name}: {looked} looked at", flush=True)
    for defect, times in defects.most_common():
        print(f"{times} times:\n{defect}")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0]))
