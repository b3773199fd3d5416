"""Recordings of turns, which replay without a network, a key or a tool's side effects."""

from __future__ import annotations

from nb_agents.plugins import Extension

EXTENSION = Extension(
    name="replays",
    verbs={
        "record": f"{__name__}.record_verb:RECORD",
        "replay": f"{__name__}.record_verb:REPLAY",
    },
    public_names={
        "ReplayError": f"{__name__}.recording:ReplayError",
        "replay": f"{__name__}.replaying:replay",
    },
)
