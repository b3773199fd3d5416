"""The verbs that record a turn or a group of runs, and replay it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import UserError
from nb_agents.extensions.replays.differences import Replacement
from nb_agents.extensions.replays.recording import (
    GroupRecording,
    Recording,
    record_group,
    record_turn,
)
from nb_agents.extensions.replays.recording_file import read_recording, write_recording
from nb_agents.extensions.replays.replaying import start_recorded
from nb_agents.launch.once import CachedRun
from nb_agents.launch.run import Run
from nb_agents.masking import Mask
from nb_agents.nouns import count
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.verbs.outcome import NewGroup, NewRun, Reply, Work
from nb_agents.verbs.verb import Caller, Parameter, Verb


def record(
    work: Work, caller: Caller, *, output: str | None = None, volatile: tuple[str, ...] = ()
) -> Reply:
    """Record a turn or sweep in a file, to replay it in tests without a network or a key."""
    rules = [Replacement(_checked(pattern), "<volatile>") for pattern in volatile]
    mask = Mask(secrets_of_environment())
    recording: Recording | GroupRecording
    if isinstance(work, Run):
        paths = TurnPaths(work.path)
        recording, name = record_turn(load_turn(paths), mask, rules), paths.session
    else:
        recording, name = record_group(work.path, mask, rules), work.name
    path = Path(output or f"{name}.nbar").expanduser()
    size = write_recording(recording, path)
    facts: dict[str, object] = {"path": str(path), "bytes": size}
    lines = [f"Wrote {text.shown_path(path)} ({text.size(size)})."]
    if isinstance(recording, GroupRecording):
        facts |= {"rows": len(recording.runs), "left_out": dict(recording.left_out)}
        lines[0] = f"{lines[0][:-2]}, {count(len(recording.runs), 'row')})."
        lines += [f"Left out row {row}: {why}" for row, why in recording.left_out.items()]
    return Reply("\n".join(lines), facts)


def replay_file(file: str, caller: Caller, *, config: str | None = None) -> NewRun | NewGroup:
    """Replay a recorded turn or sweep, without a network or a key."""
    options = RunOptions(session_root=caller.root)
    recording = read_recording(Path(file).expanduser())
    start = partial(start_recorded, recording, config=config, options=options)
    if isinstance(recording, GroupRecording):
        return NewGroup(lambda: start().group)
    return NewRun(lambda: CachedRun(start().run, is_earlier=False))


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise UserError(f"--volatile {pattern!r} is not a regular expression: {exc}.") from None
    return pattern


REPLAY = Verb(
    "replay",
    replay_file,
    "file",
    (
        Parameter(
            "config",
            "team file to compare with the recorded team",
            None,
            is_option=True,
            metavar="F",
            flags=("--config", "-c"),
        ),
    ),
    target_help="recording, which `record` writes",
)

RECORD = Verb(
    "record",
    record,
    "shown",
    (
        Parameter(
            "output",
            "file to write (default: SESSION.nbar or SWEEP.nbar in this directory)",
            None,
            is_option=True,
            metavar="F",
            flags=("--output", "-o"),
        ),
        Parameter(
            "volatile",
            "regular expression of text that may differ in a replay (repeatable)",
            (),
            is_option=True,
            metavar="REGEX",
        ),
    ),
)
