"""Going back to a point of a turn, and on from there differently: a resume of a prefix.

The new turn starts from the old one's events up to the point, and from its files as they were then.
The old turn stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nb_agents import events as ev
from nb_agents.errors import SessionBusyError, UserError
from nb_agents.events import Event
from nb_agents.launch.resume import ResumedTeam, ResumeRequest
from nb_agents.launch.resume_plan import Preview, started_of
from nb_agents.launch.rewind_plan import TurnPrefix, about_model, models_of_their_own
from nb_agents.runs.live_runs import owner_of, wait_until_saved
from nb_agents.runs.turn_spec import Resumed
from nb_agents.session.history import PastTurn, Session, load_session


@dataclass(frozen=True, kw_only=True)
class RewindRequest(ResumeRequest):
    """The arguments of `nb_agents.rewind`.

    Attributes:
        at: The turn up to the point.
        say: What the person says, or "".
        say_to: The one agent that it is for, or "" for all.
        model: The model that all its agents ask from then on, or "" for their own.
    """

    at: TurnPrefix
    say: str = ""
    say_to: str = ""
    model: str = ""

    def find(self) -> tuple[PastTurn, Session]:
        """Return the turn as it was at the point, and its session."""
        turn = self.at.turn
        path = turn.paths.path.parent
        wait_until_saved(path)
        found = load_session(path, turn)
        if any(turn.is_live for turn in found.turns[-1:]):
            raise SessionBusyError(path.name, owner_of(path))
        self._check_agent()
        return turn, found

    def check(self) -> None:
        """Check what can be told of the request while its turn is live.

        Raises:
            UserError: There is no such point or agent, or the team is not the turn's.
        """
        self._check_agent()
        self.team_of(self.at.events)

    def _check_agent(self) -> None:
        agent, started = self.say_to, started_of(self.at.events)
        known = [each.id for each in started.agents]
        if agent and started.recipe:
            raise UserError(
                f"The turn ran a recipe: a word to one agent ({agent!r}) has no reader. Say it "
                "to all, without --agent."
            )
        if agent and agent not in known:
            raise UserError(f"The turn has no agent {agent!r}. It has: {', '.join(known)}.")

    def team_of(self, events: Sequence[Event]) -> ResumedTeam:
        """Return the team that goes on from the point."""
        team = super().team_of(events)
        if not self.model:
            return team
        spec = team.spec.with_model(self.model, models_of_their_own(team.spec))
        said = about_model(self.model, spec)
        return team._replace(spec=spec, notices=(*team.notices, *([said] if said else ())))

    def resumed(self, resumed: Resumed) -> Resumed:
        """Return what the new turn goes on from: the point, the files of then, and a word."""
        said = ev.Said(text=self.say, to=self.say_to) if self.say else None
        trees, point = self.at.prefix.trees, self.at.point.seq
        going_back = replace(resumed, point=point, said=said, own=self.at.own_changes)
        return replace(going_back, trees=trees, kept={**resumed.kept, **trees})

    def about(self, preview: Preview) -> str:
        """Return the new turn's first notice."""
        turn, point = self.at.paths.number, self.at.point.seq
        return f"Goes back to event {point} of turn {turn}, which stays as it was. {preview}"
