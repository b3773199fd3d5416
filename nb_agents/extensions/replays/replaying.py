"""Starts the replay of a recorded turn, or of a recorded group of runs such as a sweep.

A replay is a new turn whose `StandIn` answers from the recording. A turn that resumed, continued or
rewound another one does so again: the earlier turns of its session are written as they were, and
the replay resumes, continues or rewinds them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from nb_agents.config.backends import BackendSpec
from nb_agents.config.spec import Spec, safe_name
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.private import make_folder
from nb_agents.errors import UserError
from nb_agents.events.work_kinds import TEAM
from nb_agents.extensions.replays.recording import (
    GroupRecording,
    Recording,
    ReplayError,
    unsupported_reason,
)
from nb_agents.extensions.replays.recording_file import read_recording
from nb_agents.extensions.replays.replay_runner import ReplayRunner
from nb_agents.extensions.replays.stage import ReplayStage
from nb_agents.launch.api import resume, rewind, start_verbatim
from nb_agents.launch.group_record import RECORDERS, GroupReplay
from nb_agents.launch.run import Run
from nb_agents.launch.team_findings import load_team
from nb_agents.launch.team_kind import kind_named, stored_team
from nb_agents.launch.work_kind import StoresSource
from nb_agents.options import ApprovalConfig, RunOptions
from nb_agents.session.journal import Journal
from nb_agents.session.layout import TurnPaths, new_session, session_root, turns_of
from nb_agents.session.ownership import OwnerMark, nobodys_mark, using_mark
from nb_agents.turns.groups import Group
from nb_agents.turns.stand_in import standing_in
from nb_agents.view.fold import fold


@dataclass
class Replay:
    """A replay.

    Attributes:
        work: The run, or the group of runs.
        stages: The state of each run, by its name in the group. "" is a single run.
        errors: Why runs of the group could not start, by their names.
    """

    work: Run | Group | None = None
    stages: dict[str, ReplayStage] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        """The run of a replayed turn."""
        assert isinstance(self.work, Run)
        return self.work

    @property
    def group(self) -> Group:
        """The replayed group of runs."""
        assert self.work is not None and not isinstance(self.work, Run)
        return self.work

    @property
    def difference(self) -> str:
        """How the replay differs from the recording, or "" if it has not differed so far."""
        failures = {name: stage.failure for name, stage in [*self.stages.items()]}
        found = ((name, each) for name, each in {**failures, **self.errors}.items() if each)
        name, first = next(found, ("", ""))
        return f"Row {name}: {first}" if name else first

    @property
    def requests(self) -> int:
        """The number of requests that were answered from the recording so far."""
        return sum(stage.requests for stage in [*self.stages.values()])

    def error(self) -> ReplayError | None:
        """Return the difference from the recording as an error, or None."""
        return ReplayError(self.difference) if self.difference else None


def replay(
    path: str | os.PathLike[str],
    task: str | None = None,
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    source: Any = None,
    recipe: str | os.PathLike[str] | Spec | None = None,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
) -> Run | Group:
    """Start a recorded turn or sweep again, with its models and tools answering from the recording.

    It needs no network and no key. If an agent makes a request that differs from the recorded one,
    the run fails with an error that shows the first difference.

    Args:
        path: The recording, which ``nb-agents record`` writes.
        task: The task. By default, the recorded one.
        config: A team file or team to compare with the recorded one. By default, the recorded team.
        source: The rows of a sweep, to compare them with the recorded ones. Needed to compare its
            task or recipe.
        recipe: A recipe to compare with the recorded one. By default, the recorded recipe.
        context: The recipe's initial values. By default, the recorded ones.
        options: The run's options, such as the session root.

    Returns:
        The running run, in a new session, or the running sweep. Like a session of another user, it
        can be resumed or continued only with `RunOptions.trust`.

    Raises:
        ReplayError: The recording can't be read, contains no team, or does not fit the arguments.
        ConfigError: The team is invalid.
    """
    work = {"source": source, "recipe": recipe, "context": context}
    replayed = start_replay(path, task, config, **work, options=options)
    assert replayed.work is not None
    return replayed.work


def start_replay(
    path: str | os.PathLike[str],
    task: str | None = None,
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    source: Any = None,
    recipe: str | os.PathLike[str] | Spec | None = None,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
) -> Replay:
    """Start the replay of a file; see `replay`."""
    work = {"source": source, "recipe": recipe, "context": context}
    return start_recorded(
        read_recording(Path(path).expanduser()), task, config, **work, options=options
    )


def start_recorded(
    recording: Recording | GroupRecording,
    task: str | None = None,
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    source: Any = None,
    recipe: str | os.PathLike[str] | Spec | None = None,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
) -> Replay:
    """Start a recorded turn or group again; see `replay`."""
    team = load_team(config) if isinstance(config, str | os.PathLike) else config
    options, replayed = options or RunOptions(), Replay()
    if isinstance(recording, Recording):
        if source is not None:
            raise ReplayError("The recording contains a turn, not a sweep. Leave out the rows.")
        stage = replayed.stages[""] = ReplayStage(recording, _runner, has_recipes=recipe is None)
        work = {"task": task, "recipe": recipe, "context": context}
        replayed.work = _begin(recording, stage, work, team, options)
    else:
        begin = partial(_begin_row, replayed, recording.runs, team, options)
        arguments = GroupReplay(
            recording.group, begin, replayed.error, source, task or "", recipe, options
        )
        replayed.work = _begin_group(arguments)
    return replayed


def _begin_group(arguments: GroupReplay) -> Group:
    """Start a recorded group again.

    Raises:
        ReplayError: The arguments don't fit the recording.
    """
    recorder = RECORDERS.all().get(arguments.record.noun)
    if recorder is None:
        noun = arguments.record.noun
        raise ReplayError(f"The recording contains a {noun!r}. Install the extension for it.")
    try:
        return recorder.replay(arguments)
    except UserError as exc:
        raise ReplayError(str(exc)) from None


def _begin_row(
    replayed: Replay,
    recordings: Mapping[str, Recording],
    team: TeamSpec | None,
    options: RunOptions,
    session: Path,
    work: Mapping[str, Any],
) -> Run:
    """Start a run of a recorded group again; see `GroupReplay.begin`."""
    recording, name = recordings[session.name], session.name
    try:
        if turns_of(session):
            raise ReplayError("It has already been replayed. Start the replay again.")
        if why := unsupported_reason(recording):
            raise ReplayError(f"It can't be replayed: {why}")
        stage = ReplayStage(recording, _runner, has_recipes="recipe" not in work)
        replayed.stages[name] = stage
        return _begin(recording, stage, work, team, options, session)
    except UserError as exc:
        replayed.errors[name] = str(exc)
        raise


def _begin(
    recording: Recording,
    stage: ReplayStage,
    work: Mapping[str, Any],
    team: TeamSpec | None,
    options: RunOptions,
    session: Path | None = None,
) -> Run:
    """Start a recorded turn again.

    Args:
        recording: The recording.
        stage: The state of the replay.
        work: The arguments of `replay` that describe the work.
        team: The team, or None for the recorded one.
        options: The options.
        session: The path of the new session. None means a new name in the session root.
    """
    if session is not None:
        options = replace(options, session_root=session.parent)
    team = team or _recorded_team(recording.started)
    options = _options(options, recording.started, team)
    # A recording can come from anyone. What it names must not run when its session is resumed.
    mark = nobodys_mark()
    with standing_in(stage), using_mark(mark):
        given = _work(recording.events, **work)
        team = _stand_ins(team, recording.started)
        return _start(recording, given, team, options, mark, session)


def _start(
    recording: Recording,
    work: Mapping[str, Any],
    team: TeamSpec,
    options: RunOptions,
    mark: OwnerMark,
    session: Path | None,
) -> Run:
    started, own = recording.started, recording.events
    if len(recording.turns) == 1:
        name = session and session.name
        return start_verbatim(**work, config=team, session=name, options=options)
    session = session or new_session(session_root(options.session_root), datetime.now())
    _write_turns(recording, session, mark)
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
    task: str | None = None,
    recipe: str | os.PathLike[str] | Spec | None = None,
    context: Mapping[str, Any] | None = None,
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


def _write_turns(recording: Recording, session: Path, mark: OwnerMark) -> None:
    """Write the turns before the recorded one in a new session."""
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
