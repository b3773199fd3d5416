"""Starts a run: loads its team, session and work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec
from nb_agents.config.uploads import cell_mentions, mentions
from nb_agents.errors import SessionBusyError, TaskError, UserError
from nb_agents.launch.estimate import Estimate, start_lines
from nb_agents.launch.here import Loaded, RunRequest, absolute, launch
from nb_agents.launch.past_runs import estimate_of
from nb_agents.launch.team_findings import check_start, load_team
from nb_agents.launch.team_kind import kind_of_source
from nb_agents.launch.team_report import skipped
from nb_agents.launch.trust import trusted_mark, would_run
from nb_agents.launch.work_kind import WorkKind
from nb_agents.models.fit import check_fit
from nb_agents.models.prices import prices_of
from nb_agents.models.providers import load_or_leave
from nb_agents.options import RunOptions
from nb_agents.session import layout
from nb_agents.session.copying import skipped_notice
from nb_agents.session.history import Session, load_session
from nb_agents.session.lookup import find_session, parse_session_reference, with_task
from nb_agents.session.manage import fork_session, last_resumption
from nb_agents.session.ownership import OwnerMark
from nb_agents.signatures import described
from nb_agents.turns.budget import budget_of
from nb_agents.turns.day_budget import check_day_budget
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.live_runs import owner_of, wait_until_saved
from nb_agents.turns.turn_spec import TurnSpec, checked_functions, config_path, timeout_of
from nb_agents.unicode import well_formed

DEMO_NOTICE = (
    "Demo model: offline and free, without an API key. To use real models, add --config team.yaml "
    "(see the README)."
)


def named_in(task: str, options: RunOptions) -> tuple[str, RunOptions]:
    """Return a task without @ marks, and options that let agents read the files it mentions.

    Raises:
        TaskError: A mentioned file does not exist, is hidden, or is outside the working directory.
    """
    if not isinstance(task, str) or "@" not in task:  # another type is refused later
        return task, options
    mentioned = mentions(task, Path.cwd().resolve())
    paths = (*options.context_paths, *mentioned.paths)
    return mentioned.task, replace(options, context_paths=paths)


@dataclass(frozen=True)
class StartRequest(RunRequest):
    """The arguments of `nb_agents.start`, which describes them.

    Attributes:
        digest: The request's digest if `nb_agents.once` computed it, or "".
        estimates: Whether a new session's first turn shows an estimate of its cost.
    """

    task: str = field(default="", metadata=described("the task; empty for a recipe"))
    config: str | os.PathLike[str] | TeamSpec | None = field(
        default=None,
        metadata=described(
            "team file, in MassGen's YAML or JSON format",
            metavar="F",
            flags=("--config", "-c", "--agents-config"),
        ),
    )
    session: str | os.PathLike[str] | None = field(
        default=None,
        metadata=described(
            "session to continue, or to create under this name",
            metavar="S",
            flags=("--session", "-s"),
        ),
    )
    continue_: bool = field(
        default=False,
        metadata=described(
            "continue the last session (or the one given with --session)", flags=("--continue",)
        ),
    )
    _: KW_ONLY
    recipe: str | os.PathLike[str] | Spec | None = field(
        default=None,
        metadata=described("recipe file to run", metavar="F", flags=("--recipe", "-r")),
    )
    context: Mapping[str, Any] | None = field(
        default=None, metadata=described("initial values of the recipe")
    )
    digest: str = field(default="", init=False)
    estimates: bool = field(default=True, init=False)

    def _locate(self) -> None:
        if self.session:
            location = parse_session_reference(self.session, self.options.session_root)
            options = replace(self.options, session_root=location.root)
            self._set(session=location.name, options=options)

    def reading_mentions(self) -> Self:
        """Return the request without the @ marks of the task. Agents may read the marked files.

        Raises:
            TaskError: As for `named_in`.
        """
        task, options = named_in(self.task, self.options)
        return self.changed(task=task, options=options)

    def outgoing(self, session: str | None) -> Self:
        """Return a copy of the request for another process, with absolute paths."""
        config, recipe = absolute(self.config), absolute(self.recipe)
        return self.changed(session=session, config=config, recipe=recipe)

    def load(self) -> Loaded:
        """Load the team and the session."""
        options = self.options
        task = _task(self.task, self.recipe)
        _check_arguments(self.config, self.context, self.recipe, options)
        team, notices = team_for(self.config, options)
        check_day_budget()
        budget_of(team, options)  # reports a mistake in the environment before the run exists
        session = os.fspath(self.session) if self.session else None
        existing = _find_session(options, session, self.continue_)
        kind = kind_of_source(self.recipe)
        mark = trusted_mark(existing, options, lambda: would_run(team, kind.would_run(self.recipe)))
        return Loaded(
            team,
            existing.name if existing else session,
            mark,
            partial(self._start, kind, task, team, notices, existing, mark),
            kind.project(self.recipe) if options.cluster is not None else None,
        )

    def _start(
        self,
        kind: WorkKind,
        task: str,
        team: TeamSpec,
        notices: tuple[str, ...],
        existing: Path | None,
        mark: OwnerMark,
        handle: type[RunHandle],
    ) -> RunHandle:
        functions = checked_functions(self.tools)
        work, title, work_notices = kind.load(self.recipe, self.context or {}, team)
        timeout_s = timeout_of(self.options.timeout_s, team, has_default=work.has_default_timeout)
        load_or_leave({agent.backend.type for agent in team.everyone})
        fit = check_fit(team)
        estimate = self._estimate(team, existing, work.name)
        session, left_out = _open_session(self.options, existing)
        past = [f"Session: {with_task(session.path, t.view.task)}" for t in session.turns[-1:]]
        spec = TurnSpec(
            task=title or task,
            team=team,
            paths=session.next_turn,
            mark=mark,
            timeout_s=timeout_s,
            notices=(
                *notices,
                *fit,
                *_unread_cells(title or task, team),
                *work_notices,
                *session.restored(),
                *past,
                *left_out,
                *start_lines(estimate),
            ),
            config=config_path(self.config),
            digest=self.digest,
            work=work,
            functions=functions,
            options=replace(self.options, from_turn=None),
            unpriced=estimate.unpriced,
        )
        try:
            return launch(spec, session, handle)
        except BaseException:
            if existing is None and not layout.turns_of(session.path):
                shutil.rmtree(session.path, ignore_errors=True)
            raise

    def _estimate(self, team: TeamSpec, existing: Path | None, work: str) -> Estimate:
        """Return the estimate of the run. It has earlier runs only in a new session."""
        budget = budget_of(team, self.options)
        with_prices = budget.max_cost is not None  # otherwise, importing the libraries can wait
        if self.estimates and not (existing and layout.turns_of(existing)):
            return estimate_of(team, self.options, work=work, with_prices=with_prices)
        prices = prices_of(team.everyone) if with_prices else {}
        return Estimate(len(team.agents), prices=prices, budget=budget)


def _task(task: str, recipe: object) -> str:
    if not isinstance(task, str):
        raise TaskError(f"The task is of type {type(task).__name__!r}. Use a string.")
    task = well_formed(task.strip())
    if task and recipe is not None:
        raise TaskError("Provide either a task or a recipe, not both.")
    if not task and recipe is None:
        raise TaskError(
            "The task is empty. Describe what the agents should do (in a cell, below %%agents)."
        )
    return task


def _check_arguments(config: object, context: object, recipe: object, options: object) -> None:
    if context and recipe is None:
        raise TaskError(
            "Values (--set, `context=`) can only be used with a recipe. Add --recipe FILE."
        )
    if not isinstance(config, str | os.PathLike | TeamSpec | None):
        type_ = type(config).__name__
        raise UserError(f"config is of type {type_!r}. Use the path of a team file or a TeamSpec.")
    if not isinstance(options, RunOptions):
        type_ = type(options).__name__
        raise UserError(
            f"options is of type {type_!r}. Use RunOptions, for example RunOptions(timeout=60)."
        )


def _without_unsupported(spec: TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    """Return the team without the agents that can't run here, and a notice about them."""
    unsupported = spec.unsupported
    if not unsupported:
        return spec, ()
    return spec.without_unsupported(), (f"Skipped unsupported agents: {skipped(unsupported)}",)


def team_for(
    config: str | os.PathLike[str] | TeamSpec | None, options: RunOptions
) -> tuple[TeamSpec, tuple[str, ...]]:
    """Return the team to start, and notices for the user.

    Args:
        config: As for `start`.
        options: The options. With a cluster, API keys are not checked, because those of the workers
            are used.

    Raises:
        ConfigError: The team is invalid.
        MissingKeyError: A provider's key is not set.
    """
    spec, notices = (demo_team(), (DEMO_NOTICE,)) if config is None else _own_team(config)
    spec = spec.reading(options.context_paths).with_notebook(options.notebook)
    notices += (*_notebook_notices(spec, options),)
    if options.skip_unsupported:
        spec, skipped = _without_unsupported(spec)
        notices += skipped
    if options.cluster is None:
        check_start(spec)
    return spec, notices


def _notebook_notices(spec: TeamSpec, options: RunOptions) -> Iterator[str]:
    """Yield what is wrong with the options for the notebook.

    Raises:
        UserError: There is no notebook with the given name.
    """
    if options.notebook_file is None:
        return
    path = Path(options.notebook_file).expanduser()
    if not path.is_file():
        raise UserError(f"There is no notebook {str(path)!r}. Correct the path after --on.")
    if not any(agent.backend.notebook for agent in spec.everyone):
        yield f"No agent may read {path.name}. Add --notebook read, propose or run."


def _unread_cells(task: str, team: TeamSpec) -> Iterator[str]:
    if cell_mentions(task) and not any(agent.backend.notebook for agent in team.everyone):
        yield "No agent can read the cells that the task mentions. Add --notebook read."


def demo_team() -> TeamSpec:
    """Return the default team of demo agents."""
    agents = [{"id": name, "backend": {"type": "demo"}} for name in ("ada", "ben", "cleo")]
    return TeamSpec.model_validate({"agents": agents})


def _own_team(config: str | os.PathLike[str] | TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    spec = config if isinstance(config, TeamSpec) else load_team(config)
    return spec, spec.notices


def _find_session(options: RunOptions, session: str | None, continue_: bool) -> Path | None:
    """Return the session to continue, which is created if it is missing. None means a new one."""
    root = layout.session_root(options.session_root)
    if options.from_turn is not None and not continue_:
        raise UserError("--from can only be used with --continue.")
    if continue_:
        return find_session(root, session or "")
    return layout.named_session(root, session) if session else None


def _open_session(options: RunOptions, path: Path | None) -> tuple[Session, tuple[str, ...]]:
    """Load or create the session of a run.

    Also returns notices, such as about files that could not be copied.
    """
    if path is None:
        root = layout.session_root(options.session_root)
        return Session(layout.new_session(root, datetime.now())), ()
    if options.from_turn is not None:
        turn = last_resumption(path, options.from_turn)
        fork = fork_session(path, turn, datetime.now())
        resumed = f"Turn {options.from_turn} was resumed as turn {turn}, which is continued."
        notices = skipped_notice(fork.left_out)
        return load_session(fork.path), (
            resumed,
            *notices,
        ) if turn != options.from_turn else notices
    wait_until_saved(path)
    existing = load_session(path)
    if any(turn.is_live for turn in existing.turns[-1:]):
        raise SessionBusyError(path.name, owner_of(path))
    return existing, ()
