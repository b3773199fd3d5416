"""Sweeps, which run a team or recipe for each row of a table. `nb_agents.map` starts one."""

from __future__ import annotations

from nb_agents.plugins import Extension

EXTENSION = Extension(
    name="sweeps",
    groups={"sweep": f"{__name__}.sweep_kind:SWEEPS"},
    group_recorders={"sweep": f"{__name__}.sweep_replay:RECORDER"},
    verbs={
        "sweeps": f"{__name__}.sweep_verbs:LIST_SWEEPS",
        "steer": f"{__name__}.sweep_verbs:STEER",
    },
    public_names={
        "Sweep": f"{__name__}.sweep:Sweep",
        "TeamComparison": f"{__name__}.compare:TeamComparison",
        "compare": f"{__name__}.compare:compare",
        "fork": f"{__name__}.forks:fork",
        "map": f"{__name__}.mapping:map",
    },
)
