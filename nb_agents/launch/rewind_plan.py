"""Computing what a rewind keeps and leaves out, from a turn's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from nb_agents import events as ev
from nb_agents.agents.runner_types import chooses_models
from nb_agents.config.team import TeamSpec
from nb_agents.disk.entry import join_names, printable_name
from nb_agents.errors import UserError
from nb_agents.events import Event
from nb_agents.launch.resume_plan import Preview, started_of, stored_team, what_resumes
from nb_agents.nouns import count
from nb_agents.process.writable import WritablePath
from nb_agents.runs.turn_spec import RESERVED_NAMES
from nb_agents.session.file_changes import MAX_FILES, FileChange, change_of, file_changes
from nb_agents.session.history import PastTurn, as_died, with_past
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.own_files import OwnFiles, OwnHistory, changes_after
from nb_agents.session.own_rewind import OwnPlan, lines_of, plan_of
from nb_agents.session.snapshots import SnapshotStore
from nb_agents.tools.base import BUILT_IN
from nb_agents.view.fold import fold
from nb_agents.view.points import Point, find_point, points_of
from nb_agents.view.prefix import Prefix, prefix_of
from nb_agents.view.run_view import RunView

MAX_NAMED = 20
"""Files that the words of a preview name."""

_OUR_TOOLS = RESERVED_NAMES - {tool.name for tool in BUILT_IN.values() if tool.action == "code"}
"""Tools whose effects are in files or in the journal alone; an interpreter has variables, too."""


@dataclass(frozen=True)
class RewindPreview:
    """What a rewind keeps, leaves out and can't take back.

    Attributes:
        turn: The turn, as SESSION/TURN.
        point: The number of the last event that is kept.
        at: The point in words.
        kept: What a resume from there keeps and runs again.
        left_out: What comes behind the point and is left out, counted, in words.
        dropped: US dollars that were paid for what is left out; None when a price is unknown.
        files: What becomes of files, the first of them.
        file_count: How many files that are; -1 when files were not kept, and stay as they are.
        not_taken_back: Calls behind the point whose effects lie elsewhere, as "agent: tool".
        points: All points of the turn.
        outside: What agents changed behind the point in files of yours and stays, absolute names.
        refused: Files of yours that stay as they are though agents changed them, and why.
        worktrees: Git worktrees that were in use by the point, as "agent/place".
        about_model: A sentence on the agents that another model is not for, or "".
    """

    turn: str
    point: int
    at: str
    kept: Preview
    left_out: tuple[str, ...]
    dropped: float | None
    not_taken_back: tuple[str, ...]
    files: tuple[FileChange, ...] = ()
    file_count: int = 0
    points: tuple[Point, ...] = ()
    outside: tuple[str, ...] = ()
    worktrees: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    about_model: str = ""

    @property
    def lines(self) -> list[str]:
        """The preview in sentences, but for what becomes of files."""
        kept = self.kept
        what = f"{count(kept.answers, 'answer')}, {count(kept.votes, 'vote')}"
        if kept.recipe is not None:
            what = count(kept.recipe.finished, "finished step")
        cost = "" if not self.dropped else f", ${self.dropped:.3f}"
        left_out = ", ".join(self.left_out) + f"{cost}; turn {self.turn} keeps it"
        lines = [
            f"Goes back to event {self.point} of {self.turn}: {self.at}.",
            f"Kept, and not paid again: {what}, {count(kept.calls, 'model call')}.",
            f"Left out: {left_out if self.left_out else 'nothing'}.",
        ]
        if kept.runs_again != "nothing":
            lines.append(f"Open at that moment, and made again: {kept.runs_again}.")
        if kept.tools_told:
            lines.append(f"May have happened in part, and not made again: {kept.not_again}.")
        if self.not_taken_back:
            lines.append(f"Can't be taken back: {', '.join(self.not_taken_back)}.")
        if kept.goes_on:
            agents = ", ".join(kept.goes_on)
            lines.append(f"From the ends of their prompts, not call by call, go on: {agents}.")
        if self.outside:
            names = join_names(self.outside)
            lines.append(f"Changed outside the workspaces, and left as it is: {names}.")
        lines += [f"Not put back: {each}" for each in self.refused]
        if self.worktrees:
            names = join_names(self.worktrees)
            lines.append(f"Files of git worktrees go back, their branches do not: {names}.")
        if self.about_model:
            lines.append(self.about_model)
        if self.file_count < 0:
            lines.append("Files stay as they are now: none were kept in this turn.")
        return lines

    def __str__(self) -> str:
        """Return the preview in lines."""
        return "\n".join([*self.lines, *self._file_lines()])

    def _file_lines(self) -> Iterator[str]:
        """Yield what becomes of files."""
        if self.file_count > 0:
            yield f"Files that become as they were ({self.file_count}):"
        signs = {"back": "A", "gone": "D", "changed": "M"}
        for file in self.files[:MAX_NAMED]:
            lines = "" if file.plus < 0 else f"  +{file.plus} -{file.minus}"
            yield f"  {signs[file.what]} {file.path}{lines}"
        if (more := self.file_count - MAX_NAMED) > 0:
            yield f"  and {more} more"


class TurnPrefix:
    """A turn up to a point. It is read and folded once; another process reads it again.

    Args:
        paths: The turn.
        to: The point.
    """

    def __init__(self, paths: TurnPaths, to: str) -> None:
        self.paths = paths
        self.to = to

    def __reduce__(self) -> tuple[type[TurnPrefix], tuple[TurnPaths, str]]:
        return TurnPrefix, (self.paths, str(self.point.seq))

    def in_copy(self, paths: TurnPaths) -> TurnPrefix:
        """Return the same of a copy of the turn, without reading it."""
        found = TurnPrefix(paths, self.to)
        vars(found).update({**vars(self), "paths": paths})
        return found

    @property
    def name(self) -> str:
        """The turn, as SESSION/TURN."""
        return f"{self.paths.session}/{self.paths.number}"

    @cached_property
    def own(self) -> Sequence[Event]:
        """The turn's own events."""
        return read_journal(self.paths.journal).events

    @cached_property
    def points(self) -> list[Point]:
        """All points of the turn."""
        return points_of(self.own)

    @cached_property
    def point(self) -> Point:
        """The point.

        Raises:
            UserError: There is no such point.
        """
        last = self.own[-1].seq if self.own else 0
        return find_point(self.points, self.to, self.name, last)

    @cached_property
    def prefix(self) -> Prefix:
        """The turn up to the point, preceded by the turns that it resumed."""
        return prefix_of(with_past(self.paths, self.own), self.point.seq)

    @property
    def events(self) -> Sequence[Event]:
        """The events that count."""
        return self.prefix.events

    @property
    def left_out(self) -> list[Event]:
        """The turn's events behind the point."""
        return [event for event in self.own if event.seq > self.point.seq]

    def file_changes(self) -> list[FileChange]:
        """Return what becomes of the files of the workspaces, and of the person's own."""
        store = SnapshotStore(self.paths.path.parent)
        found: list[FileChange] = []
        for name, tree in self.prefix.trees.items():
            with files_read(name):
                found += file_changes(store, tree, self.paths.workspaces / name)
        for own in self.own_plan.back:
            found.append(change_of(store, own.name, Path(own.name), own.before, own.after))
        return found

    @cached_property
    def own_changes(self) -> OwnHistory:
        """What was changed behind the point in files of the person's own."""
        with files_read("your own"):
            return changes_after(self.paths.path.parent, self.paths.number, self.point.seq)

    @cached_property
    def own_plan(self) -> OwnPlan:
        """What becomes of files of the person's own, where the team may write what it could."""
        roots = dict.fromkeys(change.place for change in self.own_changes.changes)
        places = [WritablePath(Path(root)) for root in roots]
        return plan_of(self.own_changes, OwnFiles(self.paths.path.parent), places)

    @cached_property
    def _view(self) -> RunView:
        return as_died(fold(self.events))

    @property
    def turn(self) -> PastTurn:
        """The turn as if its process had died at the point."""
        view = replace(self._view, session=self.paths.session, turn=self.paths.number)
        return PastTurn(self.paths, view, events=tuple(self.events))


@contextmanager
def files_read(name: str, failure: type[OSError] = OSError) -> Iterator[None]:
    """Raise a `UserError` where files of a point can't be read.

    Args:
        name: Whose they are.
        failure: The errors that mean so.
    """
    try:
        yield
    except failure as exc:
        raise UserError(
            f"The files of {name} at that point can't be read: {exc.strerror or exc}. Go back to "
            "a later point, or restore the session's `snapshots` from a copy."
        ) from None


def models_of_their_own(team: TeamSpec) -> list[str]:
    """Return the agents that choose their models themselves, so that no other can be set."""
    return [agent.id for agent in team.everyone if chooses_models(agent)]


def about_model(model: str, team: TeamSpec | None) -> str:
    """Return a sentence that names the agents that don't ask another model, or ""."""
    own = models_of_their_own(team) if team is not None and model else ()
    named = ", ".join(own)
    return f"Do not ask {model}, as they choose their models themselves: {named}." if own else ""


def preview_rewind(prefix: TurnPrefix, model: str) -> RewindPreview:
    """Return what a rewind of a turn would do, without doing it.

    Args:
        prefix: The turn up to the point, live or over.
        model: The model that all its agents would ask, or "" for their own.
    """
    team = stored_team(started_of(prefix.events))
    kept = what_resumes(prefix.events, (), team).preview
    files = prefix.file_changes()
    return RewindPreview(
        turn=prefix.name,
        point=prefix.point.seq,
        at=str(prefix.point),
        kept=kept,
        left_out=tuple(_counted(prefix)),
        dropped=_cost_of(prefix.left_out),
        files=tuple(files[:MAX_FILES]),
        file_count=len(files) if prefix.prefix.is_kept else -1,
        points=tuple(prefix.points),
        not_taken_back=tuple(dict.fromkeys(_beyond_reach(prefix.left_out))),
        outside=tuple(dict.fromkeys(_outside(prefix))),
        refused=_refused(prefix),
        worktrees=tuple(dict.fromkeys(_worktrees(prefix.events))),
        about_model=about_model(model, team),
    )


def _counted(prefix: TurnPrefix) -> list[str]:
    nouns = {
        ev.AnswerGiven: "answer",
        ev.VoteCast: "vote",
        ev.StepFinished: "step",
        ev.ModelFinished: "model call",
        ev.ToolFinished: "tool call",
        ev.Said: "follow-up text",
    }
    # Those of agents and commands alone, as what is kept is counted.
    steps = {
        event.step
        for event in prefix.own
        if isinstance(event, ev.StepStarted) and event.unit in ("agent", "bash")
    }
    counts = Counter(
        type(event)
        for event in prefix.left_out
        if not isinstance(event, ev.StepFinished) or event.step in steps
    )
    return [count(counts[kind], noun) for kind, noun in nouns.items() if counts[kind]]


def _cost_of(events: Sequence[Event]) -> float | None:
    costs = [event.usage.cost for event in events if isinstance(event, ev.ModelFinished)]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _beyond_reach(events: Sequence[Event]) -> list[str]:
    """Return the calls that began behind the point and whose effects are not in workspaces."""
    calls = [event for event in events if isinstance(event, ev.ToolStarted)]
    return [f"{call.agent}: {call.tool}" for call in calls if _is_beyond(call)]


def _outside(prefix: TurnPrefix) -> Iterator[str]:
    """Yield the files that changed outside the workspaces and were not kept, as far as named."""
    kept = {change.name for change in prefix.own_changes.changes}
    for event in prefix.left_out:
        if isinstance(event, ev.ContextChanged):
            names = (*event.made, *event.changed, *event.deleted)
            yield from map(printable_name, [name for name in names if name not in kept])
            if event.count > len(names) and not kept:
                yield f"{event.count - len(names)} more of {event.agent}"


def _refused(prefix: TurnPrefix) -> tuple[str, ...]:
    """Return a line for each file of the person's own that stays as it is."""
    following = turns_of(prefix.paths.path.parent)[-1].number + 1
    found = [*lines_of(prefix.own_plan.refused, f"turn_{following}")]
    more = len(found) - MAX_NAMED
    return (*found[:MAX_NAMED], *([count(more, "more file")] if more > 0 else ()))


def _worktrees(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, ev.WorktreeBased):
            yield printable_name(f"{event.agent}/{event.place}")


def _is_beyond(call: ev.ToolStarted) -> bool:
    return call.tool not in _OUR_TOOLS and not call.is_repeatable
