"""The verbs that record a turn and replay it."""

from __future__ import annotations

import re
from pathlib import Path

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import UserError
from nb_agents.extensions.replays.differences import Replacement
from nb_agents.extensions.replays.recording import record_turn, write_recording
from nb_agents.extensions.replays.replaying import replay
from nb_agents.launch.once import CachedRun
from nb_agents.launch.run import Run
from nb_agents.masking import Mask
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.verbs.outcome import NewRun, Reply
from nb_agents.verbs.verb import Caller, Parameter, Verb


def record(
    run: Run, caller: Caller, *, output: str | None = None, volatile: tuple[str, ...] = ()
) -> Reply:
    """Record a turn in a file, to replay it in tests without a network or a key."""
    paths = TurnPaths(run.path)
    rules = [Replacement(_checked(pattern), "<volatile>") for pattern in volatile]
    recording = record_turn(load_turn(paths), Mask(secrets_of_environment()), rules)
    path = Path(output or f"{paths.session}.nbar").expanduser()
    size = write_recording(recording, path)
    facts = {"path": str(path), "bytes": size}
    return Reply(f"Wrote {text.shown_path(path)} ({text.size(size)}).", facts)


def replay_file(file: str, caller: Caller, *, config: str | None = None) -> NewRun:
    """Replay a recorded turn, without a network or a key."""
    options = RunOptions(session_root=caller.root)
    return NewRun(lambda: CachedRun(replay(file, config=config, options=options), False))


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
)

RECORD = Verb(
    "record",
    record,
    "turn",
    (
        Parameter(
            "output",
            "file to write (default: SESSION.nbar in this directory)",
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
