"""A recording: the requests, replies and tool results of one turn, or of the rows of a sweep.

Streamed text of complete replies is left out, and secrets are masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.events.work_kinds import TEAM
from nb_agents.extensions.replays.differences import DEFAULT_RULES, Replacement
from nb_agents.extensions.replays.script import script_of
from nb_agents.launch.group_record import RECORDERS, GroupRecord
from nb_agents.launch.team_kind import kind_named
from nb_agents.launch.work_kind import StoresSource
from nb_agents.masking import Mask
from nb_agents.models.providers import load
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import turns_of
from nb_agents.turns.groups import kind_at
from nb_agents.view.prefix import prefix_of

_LEFT_OUT = (ev.UsageUpdated, ev.ToolNotice, ev.FilesSaved, ev.UserFilesSaved, ev.OutputStreamed)


class ReplayError(UserError):
    """Raised when a replay differs from its recording, or a turn can't be recorded."""

    code = "replay"


@dataclass(frozen=True)
class Recording:
    """A recorded turn, with the earlier turns of its session.

    Attributes:
        turns: The events of each turn, without the streamed text of complete replies. The last
            turn is the recorded one.
        rules: The rules that replace volatile text before requests are compared, in order.
    """

    turns: tuple[tuple[ev.Event, ...], ...]
    rules: tuple[Replacement, ...] = DEFAULT_RULES

    @property
    def events(self) -> tuple[ev.Event, ...]:
        """The events of the recorded turn."""
        return self.turns[-1]

    @property
    def started(self) -> ev.TurnStarted:
        """The turn's first event."""
        first = self.events[0]
        assert isinstance(first, ev.TurnStarted)
        return first

    @cached_property
    def past(self) -> Sequence[ev.Event]:
        """The events of the turns that the recorded turn resumes, in order."""
        started, number, parts = self.started, len(self.turns), list[Sequence[ev.Event]]()
        while 0 < started.resumes < number:
            number, events = started.resumes, self.turns[started.resumes - 1]
            parts.append(prefix_of(events, started.point).events)
            first = events[0] if events else None
            if not isinstance(first, ev.TurnStarted):
                break
            started = first
        return [event for each in reversed(parts) for event in each]


@dataclass(frozen=True)
class GroupRecording:
    """A recorded group of runs, such as a sweep.

    Attributes:
        group: The group, without the turns of its runs.
        runs: The last turn of each run, by the name of its session.
        left_out: Why runs that can't be replayed are left out, by the names of their sessions.
    """

    group: GroupRecord
    runs: Mapping[str, Recording]
    left_out: Mapping[str, str] = field(default_factory=dict)


def record_turn(turn: PastTurn, mask: Mask, rules: Sequence[Replacement] = ()) -> Recording:
    """Return the recording of a turn that has ended.

    Args:
        turn: The turn.
        mask: Hides secrets. The journal's are already masked.
        rules: More rules for volatile text.

    Raises:
        ReplayError: The turn contains work that can't be replayed.
    """
    paths = turn.paths
    name = f"{paths.session}/{paths.number}"
    if turn.is_live:
        raise ReplayError(f"Turn {name} is still running. Wait until it ends, then record it.")
    if turn.view.ending == "killed":
        raise ReplayError(
            f"Turn {name} was killed. Resume it with `nb-agents resume {paths.session}`, and "
            "record the resumed turn."
        )
    numbers = [each for each in turns_of(paths.path.parent) if each.number <= paths.number]
    turns = tuple(_recorded(read_journal(each.journal).events, mask) for each in numbers)
    recording = Recording(turns, (*DEFAULT_RULES, *rules))
    if [each.number for each in numbers] != [*range(1, paths.number + 1)]:
        raise ReplayError(
            f"Turn {name} can't be recorded: An earlier turn of its session was removed. Run the "
            "task in a new session."
        )
    if why := unsupported_reason(recording):
        raise ReplayError(f"Turn {name} can't be recorded: {why}")
    return recording


def _recorded(events: Sequence[ev.Event], mask: Mask) -> tuple[ev.Event, ...]:
    """Return the events of a turn that a recording contains."""
    finished = {(e.agent, e.call) for e in events if isinstance(e, ev.ModelFinished)}
    kept = (
        each
        for each in events
        if not isinstance(each, _LEFT_OUT)
        and not (isinstance(each, ev.TextStreamed) and (each.agent, each.call) in finished)
    )
    return tuple(mask.value(each) for each in kept)


def unsupported_reason(recording: Recording) -> str:
    """Return why a turn can't be replayed and what to do, in sentences, or ""."""
    if not all(turn and isinstance(turn[0], ev.TurnStarted) for turn in recording.turns):
        return "A journal of its session has no first event. Run the task in a new session."
    if recording.started.resumes >= len(recording.turns):
        return "Its journal is damaged. Run the task again."
    kind = recording.started.work_kind
    if kind != TEAM and not isinstance(kind_named(kind), StoresSource):
        return f"Its work, a {kind}, can't be started from its journal. Record a task or a recipe."
    load()  # a script contains messages, and a thread of a kernel may still import their library
    return script_of(recording.events, recording.past).unsupported


def record_group(path: Path, mask: Mask, rules: Sequence[Replacement] = ()) -> GroupRecording:
    """Return the recording of a group of runs that has ended.

    Args:
        path: The group's directory.
        mask, rules: As for `record_turn`.

    Raises:
        ReplayError: The group is still running, or no run can be replayed.
    """
    kind = kind_at(path)
    recorder = None if kind is None else RECORDERS.all().get(kind.noun)
    if kind is None or recorder is None:
        raise ReplayError(f"{path.name} can't be recorded as a whole. Record its single turns.")
    if kind.is_live(path):
        raise ReplayError(
            f"{path.name} is still running. Wait until it ends, or stop it, then record it."
        )
    group, runs, left_out = recorder.record(path), dict[str, Recording](), dict[str, str]()
    for name in group.runs:
        turn = load_turn([each for each in turns_of(path / name) if each.has_begun][-1])
        try:
            if turn.view.ending == "killed":
                raise ReplayError("Its process died. Start it again, which resumes it.")
            runs[name] = record_turn(turn, mask, rules)
        except ReplayError as exc:
            left_out[name] = str(exc)
    if not runs:
        why = next(iter(left_out.values()), "It has no turns.")
        raise ReplayError(f"{path.name} can't be recorded: {why}")
    return GroupRecording(mask.value(replace(group, runs=(*runs,))), runs, left_out)
