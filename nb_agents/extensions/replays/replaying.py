"""Starts the replay of a recorded turn.

A replay is a new turn whose `StandIn` answers from the recording. A turn that resumed, continued or
rewound another one does so again: the earlier turns of its session are written as they were, and
the replay resumes, continues or rewinds them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from nb_agents.config.backends import BackendSpec
from nb_agents.config.spec import Spec, safe_name
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.private import make_folder
from nb_agents.events.work_kinds import TEAM
from nb_agents.extensions.replays.recording import Recording, ReplayError, read_recording
from nb_agents.extensions.replays.replay_runner import ReplayRunner
from nb_agents.extensions.replays.stage import ReplayStage
from nb_agents.launch.api import resume, rewind, start_verbatim
from nb_agents.launch.run import Run
from nb_agents.launch.team_findings import load_team
from nb_agents.launch.team_kind import kind_named, stored_team
from nb_agents.launch.work_kind import StoresSource
from nb_agents.options import ApprovalConfig, RunOptions
from nb_agents.session.journal import Journal
from nb_agents.session.layout import TurnPaths, new_session, session_root
from nb_agents.session.ownership import OwnerMark, nobodys_mark, using_mark
from nb_agents.turns.stand_in import standing_in
from nb_agents.view.fold import fold


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
    recipe: str | os.PathLike[str] | Spec | None = None,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
) -> Run:
    """Start a recorded turn again, with its models and tools answering from the recording.

    It needs no network and no key. If an agent makes a request that differs from the recorded one,
    the run fails with an error that shows the first difference.

    Args:
        path: The recording, which ``nb-agents record`` writes.
        task: The task. By default, the recorded one.
        config: A team file or team to compare with the recorded one. By default, the recorded team.
        recipe: A recipe to compare with the recorded one. By default, the recorded recipe.
        context: The recipe's initial values. By default, the recorded ones.
        options: The run's options, such as the session root.

    Returns:
        The running run, in a new session. Like a session of another user, it can be resumed or
        continued only with `RunOptions.trust`.

    Raises:
        ReplayError: The recording can't be read, or contains no team.
        ConfigError: The team is invalid.
    """
    replayed = start_replay(path, task, config, recipe=recipe, context=context, options=options)
    return replayed.run


def start_replay(
    path: str | os.PathLike[str],
    task: str | None = None,
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    recipe: str | os.PathLike[str] | Spec | None = None,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
) -> Replay:
    """Start a recorded turn again; see `replay`."""
    recording = read_recording(Path(path).expanduser())
    stage = ReplayStage(recording, _runner, has_recipes=recipe is None)
    team = load_team(config) if isinstance(config, str | os.PathLike) else config
    team = team or _recorded_team(recording.started)
    options = _options(options or RunOptions(), recording.started, team)
    # A recording can come from anyone. What it names must not run when its session is resumed.
    mark = nobodys_mark()
    with standing_in(stage), using_mark(mark):
        work = _work(recording.events, task, recipe, context)
        run = _start(recording, work, _stand_ins(team, recording.started), options, mark)
    return Replay(run, stage)


def _start(
    recording: Recording,
    work: Mapping[str, Any],
    team: TeamSpec,
    options: RunOptions,
    mark: OwnerMark,
) -> Run:
    started, own = recording.started, recording.events
    if len(recording.turns) == 1:
        return start_verbatim(**work, config=team, options=options)
    session = _write_turns(recording, session_root(options.session_root), mark)
    options = replace(options, session_root=session.parent)
    again = started.again[0] if started.again else ""
    if started.point:
        said = next((each for each in own[:3] if isinstance(each, ev.UserMessage)), None)
        return rewind(
            session / f"turn_{started.resumes}",
            str(started.point),
            config=team,
            say=said.text if said else "",
            agent=said.to if said else "",
            options=options,
        )
    if started.resumes:
        return resume(session.name, config=team, agent=again, options=options)
    return start_verbatim(
        **work, config=team, session=session.name, continue_=True, options=options
    )


def _work(
    events: tuple[ev.Event, ...],
    task: str | None,
    recipe: str | os.PathLike[str] | Spec | None,
    context: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the task, or other work and its values, as arguments of `nb_agents.start`.

    Raises:
        ReplayError: The recording contains other work.
    """
    started = events[0]
    assert isinstance(started, ev.TurnStarted)
    if started.work_kind == TEAM:
        if recipe is not None:
            raise ReplayError("The recording contains a task, not a recipe. Leave out `recipe`.")
        return {"task": started.task if task is None else task}
    if task is not None:
        raise ReplayError(f"The recording contains a {started.work_kind}. Leave out the task.")
    kind = kind_named(started.work_kind)
    assert isinstance(kind, StoresSource)  # otherwise, the recording is refused
    source = kind.stored_source(events) if recipe is None else recipe
    return {"recipe": source, "context": started.context if context is None else context}


def _write_turns(recording: Recording, root: Path, mark: OwnerMark) -> Path:
    """Write the turns before the recorded one as a new session, and return its path."""
    session = new_session(root, datetime.now())
    for number, events in enumerate(recording.turns[:-1], 1):
        paths = TurnPaths(session / f"turn_{number}")
        make_folder(paths.path)
        for workspace in fold(events).workspaces:  # prompts name them
            make_folder(paths.workspaces / safe_name(workspace))
        journal = Journal(paths.journal, mark)
        with journal.in_one_write():
            for event in events:
                if isinstance(event, ev.TurnStarted):
                    event = replace(event, session=session.name)
                journal.append(event)
        journal.close()
    return session


def _recorded_team(started: ev.TurnStarted) -> TeamSpec:
    """Return the recorded team. Of models created in Python, only the agents' ids are recorded."""
    if (team := stored_team(started)) is not None:
        return team
    if started.team is not None or not started.agents:
        raise ReplayError("The recording contains no team. Pass the team as `config`.")
    agents = [{"id": each.id, "backend": {"type": "demo"}} for each in started.agents]
    return TeamSpec.model_validate({"agents": agents})


def _options(options: RunOptions, started: ev.TurnStarted, team: TeamSpec) -> RunOptions:
    """Return the options of a replay, in which a single decision of any user opens a gate."""
    rules = started.approval or team.approval
    approval = ApprovalConfig(rules.timeout, rules.auto_approve_on_timeout)
    return replace(options, approval=approval, max_cost=None, max_tokens=None)


def _stand_ins(team: TeamSpec, started: ev.TurnStarted) -> TeamSpec:
    """Return a team whose agents need no key, connection or process."""
    names = {agent.id: agent.model for agent in started.agents}

    def stand_in(agent: AgentSpec) -> AgentSpec:
        own = agent.backend
        name = names.get(agent.id) or own.model or own.type
        backend = BackendSpec(type="python", model=own.model or own.type, instance=_Name(name))
        return agent.model_copy(update={"backend": backend})

    limits = {"max_cost": None, "max_tokens": None}
    changes = {
        "agents": tuple(map(stand_in, team.agents)),
        "callable_agents": tuple(map(stand_in, team.callable_agents)),
        "orchestrator": team.orchestrator.model_copy(update=limits),
    }
    return team.model_copy(update=changes)


class _Name:
    """Stands for a model in the team of a replay. The replay's runners take its place.

    Attributes:
        name: The model's display name.
        calls_tools: Whether the model can call tools.
    """

    calls_tools = True

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, *_: object) -> None:
        """Raise, because the runner answers from the recording."""
        raise NotImplementedError


def _runner(stage: ReplayStage, agent: AgentSpec) -> ReplayRunner:
    """Return the runner of an agent in a replay."""
    own = agent.backend
    name = getattr(own.instance, "name", "") or own.model or own.type
    return ReplayRunner(stage, agent.id, name)
