"""The public handle of a run, which also resumes and rewinds it, and shows it in notebooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from nb_agents.errors import UserError
from nb_agents.launch.begin import begin_forks, begin_with, stop_before
from nb_agents.launch.here import RunRequest
from nb_agents.launch.resume import ResumeRequest
from nb_agents.launch.resume_plan import Preview, preview_of
from nb_agents.launch.rewind import RewindRequest, check_times
from nb_agents.launch.rewind_plan import RewindPreview
from nb_agents.plugins import ExtensionPoint
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.signatures import takes_changes
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.reader import TurnReader
from nb_agents.turns.turn import TurnWriter
from nb_agents.turns.turn_spec import TurnSpec

if TYPE_CHECKING:
    from anywidget import AnyWidget

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


def _accepting_old_arguments(
    method: Callable[Concatenate[Run, _P], _Result],
) -> Callable[Concatenate[Run, _P], _Result]:
    """Make a method accept the arguments of version 0.1: ``say`` by position, and ``times``."""

    @wraps(method)
    def call(self: Run, /, *args: Any, **kwargs: Any) -> Any:
        arguments = list[Any](args)
        if len(arguments) == 2 and isinstance(arguments[1], str):
            kwargs["say"] = arguments.pop()
            _warn(f"Pass say to {method.__name__}() by name: say={kwargs['say']!r}.")
        if (times := kwargs.pop("times", None)) is not None:
            _warn(f"{method.__name__}(times=) is deprecated. Use nb_agents.fork().")
            check_times(times)
            if method.__name__ == "rewind":
                return begin_forks(rewind_request(self, *arguments, **kwargs), times)
        return method(self, *arguments, **kwargs)

    return call


def _warn(message: str) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=3)


class Run(RunHandle):
    """Handle of a run, to watch it, stop it and wait for its result.

    `nb_agents.start` returns it. ``await run`` and `wait` return the final answer. All methods may
    be called from any thread.

    Args:
        run_id: The run's id in this process, such as "r1".
        turn: The writer of a turn in this process, or the reader of a turn in another process or
            on disk.
        paths: The turn's paths.
        spec: The turn's spec, for a run in this process.
        where: A description of the process, for a run in another process.

    Attributes:
        policy: The policy that `cancel` follows.
        where: A description of the run's process; "" for this process.
        functions: The functions of this process that the run's agents may call.
        began_at: Unix time at which this process started the run or created its handle.
    """

    def __init__(
        self,
        run_id: str,
        turn: TurnWriter | TurnReader,
        paths: TurnPaths,
        spec: TurnSpec | None = None,
        where: str = "",
    ) -> None:
        super().__init__(run_id, turn, paths, spec, where)
        # A team from a file is loaded again on resume; any other is stored here, with its keys.
        self._team = None if spec is None or spec.config else spec.team
        self._preview: Preview | None = None

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        """Return the card without text/plain, so that Jupyter falls back to the repr."""
        return {kind: each for kind, each in self._card().items() if kind != "text/plain"}

    def _mime_(self) -> tuple[str, str]:
        """Return the card for marimo."""
        return "text/html", str(self._card()["text/html"])

    def _card(self) -> Mapping[str, object]:
        return _DISPLAYS["run"](self)

    @property
    def panel(self) -> AnyWidget:
        """The run's live panel, an anywidget; it shows the card when the run has ended."""
        return _PANELS["run"](self)

    @property
    def preview(self) -> Preview | None:
        """A preview of `resume` for a run that has ended; None when there is nothing to resume.

        It is computed on first access, which is slow for a long recipe.
        """
        if self._preview is None and self.view.is_over:
            self._preview = preview_of(self.view, self._paths)
        return self._preview

    def _completed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Add the run's team, tools and options to arguments."""
        own = {"config": self._team, "tools": self.functions, "options": self.options}
        completed = own | {name: each for name, each in arguments.items() if each is not None}
        return completed | {"options": replace(completed["options"], session_root=self._paths.root)}

    def _resume_request(self, arguments: Mapping[str, Any]) -> ResumeRequest:
        return ResumeRequest(self.session, **self._completed(arguments))

    def _rewind_request(self, arguments: Mapping[str, Any]) -> RewindRequest:
        return RewindRequest(self.path, **self._completed(arguments))

    @takes_changes(ResumeRequest, _resume_request)
    def resume(self, request: ResumeRequest) -> Run:
        """Resume the turn as a new turn; a paused run is unpaused instead.

        A run is only unpaused if no arguments are given.

        Args:
            config: The team. By default, that of the run.
            agent: Id of an agent that failed or was stopped individually, to let it take part
                again.
            recipe: A recipe to use instead of that of the run.
            context: Values to add to a recipe's context, or new outputs of its steps.
            from_step: Id of a recipe's step to run again, with all later steps.
            tools: Functions that all agents may call. By default, those of the run.
            options: The options. By default, those of the run. The session root stays the same.

        Returns:
            This run if it was paused; else a new one. See `nb_agents.resume`.

        Raises:
            UserError: The turn is complete, or is not the session's last turn.
        """
        if request == self._resume_request({}) and self._unpause():
            return self
        last = turns_of(self.path.parent)[-1].number
        if last != self.turn:
            raise UserError(
                f"Turn {self.session}/{self.turn} is followed by turn {last}, and only the last "
                f"turn can be resumed. Resume it with `%agents resume {self.session}`."
            )
        return begin(request)

    @_accepting_old_arguments
    @takes_changes(RewindRequest, _rewind_request)
    def rewind(self, request: RewindRequest) -> Run:
        """Start a new turn from a checkpoint of this turn, which does not change.

        Args:
            to: The checkpoint; see `nb_agents.rewind`.
            config: A team with the same agents. By default, that of the run.
            say: A message for the agents.
            agent: Id of the only agent to get the message. By default, all agents get it.
            model: The model that all agents use from the checkpoint on, as ``openai:gpt-5-mini``.
            now: If the run is live, whether to interrupt calls in flight.
            tools: Functions that all agents may call. By default, those of the run.
            options: The options. By default, those of the run. The session root stays the same.

        Returns:
            The new run.

        Raises:
            UserError: There is no such checkpoint.

        Example:
            run.rewind(to="before ben's 2nd answer", say="Think of the cost, too.")
        """
        is_live = self._paths.is_live()
        return begin(stop_before(request, self) if is_live else request)

    @_accepting_old_arguments
    @takes_changes(RewindRequest, _rewind_request)
    def preview_rewind(self, request: RewindRequest) -> RewindPreview:
        """Return a preview of `rewind`: the work that it would keep, drop and change.

        Args:
            to: The checkpoint.
            config: A team with the same agents. By default, that of the run.
            say: A message for the agents.
            agent: Id of the only agent to get the message. By default, all agents get it.
            model: The model that all agents would use. By default, that of the team.
            now: As for `rewind`.
            tools: As for `rewind`.
            options: The options. By default, those of the run.

        Raises:
            UserError: `rewind` would fail, for example because the checkpoint does not exist.
        """
        return request.preview()


@takes_changes(RewindRequest, Run._rewind_request)
def rewind_request(run: Run, request: RewindRequest) -> RewindRequest:
    """Return the request for a rewind of a run, with its team, tools and options."""
    return request


_DISPLAYS = ExtensionPoint[Callable[[Run], Mapping[str, object]]]("displays")
_PANELS = ExtensionPoint[Callable[[Run], "AnyWidget"]]("panels")


def begin(request: RunRequest) -> Run:
    """Start the run of a request, in this process or another."""
    return begin_with(request, Run)
