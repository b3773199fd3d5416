"""Starts the replay of a recorded turn."""

from __future__ import annotations

import os
from pathlib import Path

from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.extensions.replays.recording import ReplayError, read_recording
from nb_agents.extensions.replays.replay_runner import ReplayRunner
from nb_agents.extensions.replays.stage import ReplayStage
from nb_agents.launch.api import start_verbatim
from nb_agents.launch.run import Run
from nb_agents.launch.team_findings import load_team
from nb_agents.launch.team_kind import stored_team
from nb_agents.options import RunOptions


class Replay:
    """A started replay.

    Attributes:
        run: The run.
    """

    def __init__(self, run: Run, stage: ReplayStage) -> None:
        self.run = run
        self._stage = stage

    @property
    def difference(self) -> str:
        """How the replay differs from the recording, or "" if it has not differed so far."""
        return self._stage.failure

    @property
    def requests(self) -> int:
        """The number of requests that were answered from the recording so far."""
        return self._stage.requests


def replay(
    path: str | os.PathLike[str],
    task: str | None = None,
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    options: RunOptions | None = None,
) -> Run:
    """Start a recorded turn again, with its models and tools answering from the recording.

    It needs no network and no key. If an agent makes a request that differs from the recorded one,
    the run fails with an error that shows the first difference.

    Args:
        path: The recording, which ``nb-agents record`` writes.
        task: The task. By default, the recorded one.
        config: A team file or team to compare with the recorded one. By default, the recorded team.
        options: The run's options, such as the session root.

    Returns:
        The running run, in a new session.

    Raises:
        ReplayError: The recording can't be read, or contains no team.
        ConfigError: The team is invalid.
    """
    return start_replay(path, task, config, options=options).run


def start_replay(
    path: str | os.PathLike[str],
    task: str | None = None,
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    options: RunOptions | None = None,
) -> Replay:
    """Start a recorded turn again; see `replay`."""
    recording = read_recording(Path(path).expanduser())
    stage = ReplayStage(recording)
    team = load_team(config) if isinstance(config, str | os.PathLike) else config
    team = team or stored_team(recording.started)
    if team is None:
        raise ReplayError(f"Recording {path} contains no team. Pass the team as `config`.")
    names = {agent.id: agent.model for agent in recording.started.agents}
    run = start_verbatim(
        recording.started.task if task is None else task,
        config=_stand_ins(team, stage, names),
        options=options or RunOptions(),
    )
    return Replay(run, stage)


def _stand_ins(team: TeamSpec, stage: ReplayStage, names: dict[str, str]) -> TeamSpec:
    """Return a team whose agents answer from the recording."""

    def stand_in(agent: AgentSpec) -> AgentSpec:
        name = names.get(agent.id) or agent.backend.model or "recorded model"
        # Without other keys, no connection is opened and no process is started.
        backend = BackendSpec(type="python", instance=ReplayRunner(stage, name))
        return agent.model_copy(update={"backend": backend})

    agents = {
        "agents": tuple(map(stand_in, team.agents)),
        "callable_agents": tuple(map(stand_in, team.callable_agents)),
    }
    return team.model_copy(update=agents)
