"""Replays of recorded turns."""

from nb_agents.extensions.replays import stage as replay_stage
from nb_agents.extensions.replays.differences import DEFAULT_RULES, first_difference
from nb_agents.extensions.replays.recording_file import read_recording
from nb_agents.extensions.replays.replay_fixture import replayed_run
from nb_agents.extensions.replays.replaying import start_recorded, start_replay
from nb_agents.extensions.replays.script import RECORDING, script_of

__all__ = [
    "DEFAULT_RULES",
    "RECORDING",
    "first_difference",
    "read_recording",
    "replay_stage",
    "replayed_run",
    "script_of",
    "start_recorded",
    "start_replay",
]
