"""Rewinds a turn to a checkpoint: resumes a prefix of its events, with changes.

The new turn starts from the old turn's events up to the checkpoint, and from the files as they were
then. The old turn does not change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from nb_agents import events as ev
from nb_agents.config.team import TeamSpec
from nb_agents.errors import SessionBusyError, UserError
from nb_agents.events import Event
from nb_agents.launch.carry_over import CarryOver, carry_over
from nb_agents.launch.resume import ContinuingRequest, ResumedTeam
from nb_agents.launch.resume_plan import Preview
from nb_agents.launch.rewind_plan import (
    RewindPreview,
    TurnPrefix,
    about_model,
    models_of_their_own,
    preview_rewind,
)
from nb_agents.launch.team_kind import started_of
from nb_agents.session.history import PastTurn, Session, load_session
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_turn, parse_reference
from nb_agents.signatures import described
from nb_agents.turns.handle import checked_message
from nb_agents.turns.live_runs import owner_of, wait_until_saved
from nb_agents.turns.turn_spec import Resumed

MAX_TIMES = 100
"""Maximum number of forks that one call can create."""


def check_times(times: int) -> None:
    """Raise `UserError` unless a turn can be forked so many times in one call."""
    if not 1 <= times <= MAX_TIMES:
        raise UserError(f"A turn can't be forked {times} times. Use 1 to {MAX_TIMES}.")


@dataclass(frozen=True)
class RewindRequest(ContinuingRequest):
    """The arguments of `nb_agents.rewind`, which describes them. The turn becomes its path."""

    turn: str | os.PathLike[str] = field(default="", metadata=described("the turn"))
    to: str | int = field(
        default="",
        metadata=described(
            'checkpoint: an event number, words such as "before ben\'s 2nd answer", or a time',
            metavar="POINT",
        ),
    )
    config: str | os.PathLike[str] | TeamSpec | None = field(
        default=None,
        metadata=described(
            "continue with this team file, which has the same agents",
            metavar="F",
            flags=("--config", "-c", "--agents-config"),
        ),
    )
    _: KW_ONLY
    say: str = field(default="", metadata=described("a message for the agents", metavar="TEXT"))
    agent: str = field(
        default="", metadata=described("send the message only to this agent", metavar="A")
    )
    model: str = field(
        default="",
        metadata=described(
            "continue with this model for all agents, such as openai:gpt-5-mini",
            metavar="T:M",
            flags=("--model", "-m"),
        ),
    )
    now: bool = field(
        default=False, metadata=described("interrupt calls in progress if the turn is live")
    )

    def _locate(self) -> None:
        location = parse_reference(self.turn, self.options.session_root)
        paths = find_turn(session_root(location.root), location.name)
        self._set(turn=paths.path, options=replace(self.options, session_root=paths.root))

    def __post_init__(self) -> None:
        """Check the message, and find the turn."""
        super().__post_init__()
        if self.agent and not self.say:
            raise UserError(f"There is no message for {self.agent!r}. Add say=, or --say.")
        self._set(say=checked_message(self.say) if self.say else "")

    @cached_property
    def at(self) -> TurnPrefix:
        """The turn up to the checkpoint."""
        return TurnPrefix(TurnPaths(Path(self.turn)), str(self.to))

    def for_copy(self, paths: TurnPaths) -> Self:
        """Return the same request for a copy of the turn, without reading the copy."""
        options = replace(self.options, session_root=paths.root)
        return self.changed(turn=paths.path, at=self.at.in_copy(paths), options=options)

    def after_stop(self) -> Self:
        """Return the request for the turn after it was stopped, which added events to it."""
        at = TurnPrefix(self.at.paths, str(self.at.point.seq))
        return self.changed(to=at.to, at=at)

    def preview(self) -> RewindPreview:
        """Return what the rewind would do, without doing it.

        Raises:
            UserError: The checkpoint or agent does not exist, or the team does not match the turn.
        """
        self.check()
        return preview_rewind(self.at, self.model)

    def find(self) -> tuple[PastTurn, Session]:
        """Return the turn as it was at the checkpoint, and its session."""
        turn = self.at.turn
        path = turn.paths.path.parent
        wait_until_saved(path)
        session = load_session(path, turn)
        if any(turn.is_live for turn in session.turns[-1:]):
            raise SessionBusyError(path.name, owner_of(path))
        self._check_addressee()
        return turn, session

    def check(self) -> None:
        """Check the request while its turn may still be live.

        Raises:
            UserError: The checkpoint or agent does not exist, or the team does not match the turn.
        """
        self._check_addressee()
        self.team_of(self.at.events)

    def _check_addressee(self) -> None:
        agent, started = self.agent, started_of(self.at.events)
        ids = [each.id for each in started.agents]
        if agent and not ids and started.work_kind:
            raise UserError(
                f"The turn ran a {started.work_kind}, so a message can't be sent to the agent "
                f"{agent!r} alone. Send it to all, without --agent."
            )
        if agent and agent not in ids:
            raise UserError(f"The turn has no agent {agent!r}. It has: {', '.join(ids)}.")

    def team_of(self, events: Sequence[Event]) -> ResumedTeam:
        """Return the team that continues from the checkpoint."""
        team = super().team_of(events)
        if not self.model:
            return team
        spec = team.spec.with_model(self.model, models_of_their_own(team.spec))
        notice = about_model(self.model, spec)
        return team._replace(spec=spec, notices=(*team.notices, *([notice] if notice else ())))

    def changes_request(self, turn: PastTurn, team: TeamSpec) -> bool:
        """Return whether the new turn answers a different request than the old turn."""
        return bool(self.say or self.model) or super().changes_request(turn, team)

    def carried(self, turn: TurnPaths) -> CarryOver:
        """Return what extensions add to the new turn after the checkpoint."""
        return carry_over(turn, self.at.point.seq)

    def resumed(self, resumed: Resumed) -> Resumed:
        """Return the state at the checkpoint, with the files as they were then and the message."""
        message = ev.UserMessage(text=self.say, to=self.agent) if self.say else None
        trees, point = self.at.prefix.trees, self.at.point.seq
        going_back = replace(resumed, point=point, said=message, own=self.at.own_changes)
        return replace(going_back, trees=trees, kept={**resumed.kept, **trees})

    def about(self, preview: Preview) -> str:
        """Return the new turn's first notice."""
        turn, point = self.at.paths.number, self.at.point.seq
        return f"Goes back to event {point} of turn {turn}, which does not change. {preview}"
