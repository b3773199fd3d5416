"""Computes what a rewind keeps and what it leaves out, from a turn's events."""

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
from nb_agents.launch.carry_over import carry_over
from nb_agents.launch.resume_plan import Preview, what_resumes
from nb_agents.launch.team_kind import started_of, stored_team
from nb_agents.nouns import count, dollars
from nb_agents.process.writable import WritablePath
from nb_agents.session.history import PastTurn, as_killed, with_resumed_events
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.snapshots.diff import MAX_FILES, FileChange, change_of, file_changes
from nb_agents.snapshots.store import SnapshotStore
from nb_agents.snapshots.user_file_restore import RestorePlan, plan_restore, refusal_lines
from nb_agents.snapshots.user_files import UserFileHistory, UserFiles, changes_after
from nb_agents.tools.base import BUILT_IN
from nb_agents.turns.turn_spec import RESERVED_NAMES
from nb_agents.unicode import visible
from nb_agents.view.fold import fold
from nb_agents.view.points import Checkpoint, checkpoints_of, find_checkpoint
from nb_agents.view.prefix import Prefix, prefix_of
from nb_agents.view.run_view import RunView

_USER_FILES = "yours"
MAX_NAMED = 20
"""Maximum number of files listed in the text of a preview."""

_CONTAINED_TOOLS = RESERVED_NAMES - {
    tool.name for tool in BUILT_IN.values() if tool.action == "code"
}
"""Tools that only affect files or the journal. Not the interpreter, which has variables."""


MAX_WORDS = 80
"""Maximum length of the first words of an answer, in characters."""


@dataclass(frozen=True)
class RewindPreview:
    """The work that a rewind keeps, leaves out and can't undo.

    Attributes:
        turn: The turn, as SESSION/TURN.
        point: The number of the last event that is kept.
        at: A description of the checkpoint.
        kept: What a resume from the checkpoint keeps and runs again.
        left_out: Counts of what is left out after the checkpoint, such as "2 votes".
        dropped: Cost of what is left out, in US dollars. None if a price is unknown.
        files: The files that change, up to a limit.
        file_count: The number of files that change. -1 if no files were saved and none can change.
        not_taken_back: Calls after the checkpoint with effects that can't be undone, as
            "agent: tool".
        points: All checkpoints of the turn.
        words: For each of `points`, the first words of its answer, or "".
        outside: Absolute paths of user files that agents changed after the checkpoint and that are
            not restored.
        refused: User files that agents changed but that can't be restored, with the reasons.
        worktrees: Git worktrees that were in use before the checkpoint, as "agent/place".
        about_model: A sentence about agents that can't use the other model, or "".
        carried: Sentences of extensions, such as on changes of cells that are taken back.
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
    points: tuple[Checkpoint, ...] = ()
    words: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    worktrees: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    about_model: str = ""
    carried: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The preview as sentences, without the list of files."""
        kept = self.kept
        spent = dollars(self.dropped)
        price = f", {spent}" if spent else ""
        left_out = ", ".join(self.left_out) + f"{price}; turn {self.turn} keeps it"
        lines = [
            f"Goes back to event {self.point} of {self.turn}: {self.at}.",
            f"Kept at no new cost: {kept.kept_work}, {count(kept.calls, 'model call')}.",
            f"Left out: {left_out if self.left_out else 'nothing'}.",
        ]
        if kept.runs_again != "nothing":
            lines.append(f"In progress at that checkpoint, and repeated: {kept.runs_again}.")
        if kept.tools_told:
            lines.append(f"Possibly done in part, and not repeated: {kept.not_again}.")
        if self.not_taken_back:
            lines.append(f"Can't be undone: {', '.join(self.not_taken_back)}.")
        if kept.goes_on:
            agents = ", ".join(kept.goes_on)
            lines.append(f"Continued from a summary, so calls may be repeated: {agents}.")
        lines += self.carried
        if self.outside:
            names = join_names(self.outside)
            lines.append(f"Changed outside the workspaces, and not restored: {names}.")
        lines += [f"Not restored: {each}" for each in self.refused]
        if self.worktrees:
            names = join_names(self.worktrees)
            lines.append(f"Files of git worktrees are restored, but not their branches: {names}.")
        if self.about_model:
            lines.append(self.about_model)
        if self.file_count < 0:
            lines.append("Files are not restored, because none were saved in this turn.")
        return lines

    def __str__(self) -> str:
        """Return the preview as lines of text."""
        return "\n".join([*self.lines, *self._file_lines()])

    def _file_lines(self) -> Iterator[str]:
        """Yield a line for each file that changes."""
        if self.file_count > 0:
            yield f"Files to restore ({self.file_count}):"
        signs = {"back": "A", "gone": "D", "changed": "M"}
        for file in self.files[:MAX_NAMED]:
            lines = "" if file.plus < 0 else f"  +{file.plus} -{file.minus}"
            yield f"  {signs[file.what]} {file.path}{lines}"
        if (more := self.file_count - MAX_NAMED) > 0:
            yield f"  and {more} more"


class TurnPrefix:
    """A turn up to a checkpoint. It is read once. A process that receives it reads it again.

    Args:
        to: The checkpoint, as the user describes it.
    """

    def __init__(self, paths: TurnPaths, to: str) -> None:
        self.paths = paths
        self.to = to

    def __reduce__(self) -> tuple[type[TurnPrefix], tuple[TurnPaths, str]]:
        return TurnPrefix, (self.paths, str(self.point.seq))

    def in_copy(self, paths: TurnPaths) -> TurnPrefix:
        """Return the same prefix for a copy of the turn, without reading the copy."""
        copy = TurnPrefix(paths, self.to)
        vars(copy).update({**vars(self), "paths": paths})
        return copy

    @property
    def name(self) -> str:
        """The turn, as SESSION/TURN."""
        return f"{self.paths.session}/{self.paths.number}"

    @cached_property
    def own(self) -> Sequence[Event]:
        """The turn's own events."""
        return read_journal(self.paths.journal).events

    @cached_property
    def points(self) -> list[Checkpoint]:
        """All checkpoints of the turn."""
        return checkpoints_of(self.own)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """For each checkpoint after an answer, the answer's first words. Otherwise ""."""
        return tuple(_first_words(self.own, self.points))

    @cached_property
    def point(self) -> Checkpoint:
        """The checkpoint.

        Raises:
            UserError: It does not exist.
        """
        last = self.own[-1].seq if self.own else 0
        return find_checkpoint(self.points, self.to, self.name, last)

    @cached_property
    def prefix(self) -> Prefix:
        """The turn up to the checkpoint, preceded by the turns that it resumed."""
        return prefix_of(with_resumed_events(self.paths, self.own), self.point.seq)

    @property
    def events(self) -> Sequence[Event]:
        """The events up to the checkpoint."""
        return self.prefix.events

    @property
    def left_out(self) -> list[Event]:
        """The turn's events after the checkpoint."""
        return [event for event in self.own if event.seq > self.point.seq]

    def file_changes(self) -> list[FileChange]:
        """Return the changes to the files of the workspaces and to user files."""
        store = SnapshotStore(self.paths.path.parent)
        changes: list[FileChange] = []
        for name, tree in self.prefix.trees.items():
            with files_read(name):
                changes += file_changes(store, tree, self.paths.workspaces / name)
        with files_read(_USER_FILES):
            changes += [
                change_of(store, c.name, Path(c.root), c.path, c.before, c.after)
                for c in self.own_plan.changes
            ]
        return changes

    @cached_property
    def own_changes(self) -> UserFileHistory:
        """The changes to user files after the checkpoint."""
        with files_read(_USER_FILES):
            return changes_after(self.paths.path.parent, self.paths.number, self.point.seq)

    @cached_property
    def own_plan(self) -> RestorePlan:
        """The changes that restore user files, if the team may write to the same paths."""
        roots = dict.fromkeys(change.root for change in self.own_changes.changes)
        locations = [WritablePath(Path(root)) for root in roots]
        return plan_files(self.own_changes, UserFiles(self.paths.path.parent), locations)

    @cached_property
    def _view(self) -> RunView:
        return as_killed(fold(self.events))

    @property
    def turn(self) -> PastTurn:
        """The turn as if its process had died at the checkpoint."""
        view = replace(self._view, session=self.paths.session, turn=self.paths.number)
        return PastTurn(self.paths, view, events=tuple(self.events))


def plan_files(
    history: UserFileHistory, own: UserFiles, locations: Sequence[WritablePath]
) -> RestorePlan:
    """Return how to restore user files. Takes the arguments of `plan_restore`.

    Raises:
        UserError: The saved content of a file is missing or damaged.
    """
    with files_read(_USER_FILES):
        return plan_restore(history, own, locations)


@contextmanager
def files_read(name: str, failure: type[OSError] = OSError) -> Iterator[None]:
    """Raise `UserError` if the block can't read the files of a checkpoint.

    Args:
        name: The agent of the files, for the message.
        failure: The type of exceptions that the block raises in this case.
    """
    try:
        yield
    except failure as exc:
        raise UserError(
            f"Files of {name} at that checkpoint can't be read: {exc.strerror or exc}. Go back to "
            "a later checkpoint, or restore the session's `snapshots` from a backup."
        ) from None


def models_of_their_own(team: TeamSpec) -> list[str]:
    """Return the agents that choose their models themselves, so that their model can't be set."""
    return [agent.id for agent in team.everyone if chooses_models(agent)]


def about_model(model: str, team: TeamSpec | None) -> str:
    """Return a sentence on the agents that do not use the model, or ""."""
    agents = models_of_their_own(team) if team is not None and model else ()
    names = ", ".join(agents)
    return f"These agents choose their own model, not {model}: {names}." if agents else ""


def preview_rewind(prefix: TurnPrefix, model: str) -> RewindPreview:
    """Return what a rewind of a turn would do, without doing it.

    Args:
        prefix: The turn up to the checkpoint. The turn may be live.
        model: The model for all agents, or "" for their own models.
    """
    team = stored_team(started_of(prefix.events))
    kept = what_resumes(prefix.events, (), team).preview
    files = prefix.file_changes()
    rewind_preview = RewindPreview(
        turn=prefix.name,
        point=prefix.point.seq,
        at=str(prefix.point),
        kept=kept,
        left_out=tuple(_counts(prefix)),
        dropped=_cost_of(prefix.left_out),
        files=tuple(files[:MAX_FILES]),
        file_count=len(files) if prefix.prefix.is_kept else -1,
        points=tuple(prefix.points),
        words=prefix.words,
        not_taken_back=tuple(dict.fromkeys(_irreversible_calls(prefix.left_out))),
        outside=tuple(dict.fromkeys(_outside_changes(prefix))),
        refused=_refusal_lines(prefix),
        worktrees=tuple(dict.fromkeys(_worktrees(prefix.events))),
        about_model=about_model(model, team),
        carried=carry_over(prefix.paths, prefix.point.seq).lines,
    )
    return visible(rewind_preview)  # contains names and text chosen by agents and servers


def _counts(prefix: TurnPrefix) -> list[str]:
    nouns = {
        ev.AnswerGiven: "answer",
        ev.VoteCast: "vote",
        ev.StepFinished: "step",
        ev.ModelFinished: "model call",
        ev.ToolFinished: "tool call",
        ev.UserMessage: "follow-up text",
    }
    # Only agent and command steps, as in the number of kept steps.
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
    priced = [each for each in costs if each is not None]
    return sum(priced) if len(priced) == len(costs) else None


def _irreversible_calls(events: Sequence[Event]) -> list[str]:
    """Return the calls after the checkpoint with effects outside the workspaces."""
    calls = [event for event in events if isinstance(event, ev.ToolStarted)]
    return [f"{call.agent}: {call.tool}" for call in calls if _is_irreversible(call)]


def _outside_changes(prefix: TurnPrefix) -> Iterator[str]:
    """Yield the recorded files outside the workspaces that changed and were not saved."""
    saved = {change.name for change in prefix.own_changes.changes}
    for event in prefix.left_out:
        if isinstance(event, ev.ContextChanged):
            names = (*event.made, *event.changed, *event.deleted)
            yield from map(printable_name, [name for name in names if name not in saved])
            if event.count > len(names) and not saved:
                yield f"{event.count - len(names)} more of {event.agent}"


def _refusal_lines(prefix: TurnPrefix) -> tuple[str, ...]:
    """Return a line for each user file that can't be restored."""
    following = turns_of(prefix.paths.path.parent)[-1].number + 1
    lines = [*refusal_lines(prefix.own_plan.refusals, f"turn_{following}")]
    more = len(lines) - MAX_NAMED
    return (*lines[:MAX_NAMED], *([count(more, "more file")] if more > 0 else ()))


def _worktrees(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, ev.WorktreeBased):
            yield printable_name(f"{event.agent}/{event.place}")


def _is_irreversible(call: ev.ToolStarted) -> bool:
    return call.tool not in _CONTAINED_TOOLS and not call.is_repeatable


def _first_words(events: Sequence[Event], points: Sequence[Checkpoint]) -> Iterator[str]:
    answers = {e.seq: e.answer for e in events if isinstance(e, ev.AnswerGiven)}
    for point in points:
        line = " ".join(answers.get(point.seq, "")[: 4 * MAX_WORDS].split())
        yield line if len(line) <= MAX_WORDS else f"{line[:MAX_WORDS]}…"
