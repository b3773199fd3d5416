"""Starting a run: loading its team, session and recipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.agents.programs.program_objects import check_objects
from nb_agents.config.team import TeamSpec
from nb_agents.errors import SessionBusyError, TaskError, UserError
from nb_agents.launch.here import Loaded, RunRequest, launch
from nb_agents.launch.team_report import skipped
from nb_agents.launch.trust import trusted_mark, would_run
from nb_agents.models.fit import check_fit
from nb_agents.models.providers import check_team, load_or_leave
from nb_agents.options import RunOptions
from nb_agents.runs.live_runs import owner_of, wait_until_saved
from nb_agents.runs.run import Run
from nb_agents.runs.turn_spec import TurnSpec, checked_functions, config_path, timeout_of
from nb_agents.session import layout
from nb_agents.session.copying import not_copied
from nb_agents.session.history import Session, load_session
from nb_agents.session.lookup import find_session, with_task
from nb_agents.session.manage import fork_session
from nb_agents.session.ownership import OwnerMark
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

DEMO_NOTICE = (
    "Demo model: offline, free, nobody's key is used. For real models give --config team.yaml "
    "(see the README)."
)


@dataclass(frozen=True, kw_only=True)
class StartRequest(RunRequest):
    """The arguments of `nb_agents.start`, and their digest when it was made."""

    task: str
    continue_: bool
    digest: str = ""

    def load(self) -> Loaded:
        """Load the team and the session."""
        options = self.options
        task = _task(self.task, self.recipe)
        _check_arguments(self.config, self.context, self.recipe, options)
        team, notices = team_for(self.config, options)
        found = _find_session(options, self.session, self.continue_)
        mark = trusted_mark(found, options, lambda: would_run(team, _recipes(self.recipe)))
        return Loaded(
            team,
            found.name if found else self.session,
            mark,
            partial(self._begin, task, team, notices, found, mark),
            _project_of(self.recipe) if options.cluster is not None else None,
        )

    def _begin(
        self,
        task: str,
        team: TeamSpec,
        notices: tuple[str, ...],
        found: Path | None,
        mark: OwnerMark,
    ) -> Run:
        functions = checked_functions(self.tools)
        recipe, given, title, recipe_notices = _load_recipe(self.recipe, self.context or {}, team)
        timeout_s = timeout_of(self.options.timeout_s, team, is_recipe=recipe is not None)
        load_or_leave({agent.backend.type for agent in team.everyone})
        fit = check_fit(team)
        session, left_out = _open_session(self.options, found)
        past = [f"Session: {with_task(session.path, t.view.task)}" for t in session.turns[-1:]]
        spec = TurnSpec(
            task=title or task,
            team=team,
            paths=session.next_turn,
            mark=mark,
            timeout_s=timeout_s,
            notices=(*notices, *fit, *recipe_notices, *session.restored(), *past, *left_out),
            config=config_path(self.config),
            digest=self.digest,
            recipe=recipe,
            given=given,
            functions=functions,
            options=replace(self.options, from_turn=None),
        )
        try:
            return launch(spec, session)
        except BaseException:
            if found is None and not layout.turns_of(session.path):
                shutil.rmtree(session.path, ignore_errors=True)
            raise


class _LoadedRecipe(NamedTuple):
    """The recipe of a run; all fields are empty for a run without one.

    Attributes:
        recipe: The recipe.
        given: The values that it starts with.
        title: The turn's title.
        notices: Notices for the user.
    """

    recipe: Recipe | None = None
    given: dict[str, Any] = {}
    title: str = ""
    notices: tuple[str, ...] = ()


def _recipes(recipe: str | os.PathLike[str] | Recipe | None) -> tuple[Recipe, ...]:
    """Read the recipe of a run, if any."""
    if isinstance(recipe, str | os.PathLike):
        from nb_agents.config.recipe import Recipe

        recipe = Recipe.from_file(recipe)
    return () if recipe is None else (recipe,)


def _load_recipe(
    recipe: str | os.PathLike[str] | Recipe | None, context: Mapping[str, Any], team: TeamSpec
) -> _LoadedRecipe:
    if recipe is None:
        return _LoadedRecipe()
    from nb_agents.launch.recipes import given_values, read_recipe, recipe_notices, title, unread

    given = given_values(context)
    read = read_recipe(recipe, given, team)
    notices = (*recipe_notices(read, team, given), *unread(read, given))
    return _LoadedRecipe(read, given, title(read), notices)


def _task(task: str, recipe: object) -> str:
    if not isinstance(task, str):
        raise TaskError(f"The task is of type {type(task).__name__!r}. Give a string.")
    task = well_formed(task.strip())
    if task and recipe is not None:
        raise TaskError("A task and a recipe are both given. A recipe asks for itself.")
    if not task and recipe is None:
        raise TaskError(
            "The task is empty. Write what the agents are to do; in a cell, below its first line."
        )
    return task


def _check_arguments(config: object, context: object, recipe: object, options: object) -> None:
    if context and recipe is None:
        raise TaskError("Values (--set, `context=`) are given without a recipe. Add --recipe FILE.")
    if not isinstance(config, str | os.PathLike | TeamSpec | None):
        kind = type(config).__name__
        raise UserError(f"config is of type {kind!r}. Give the path of a team file, or a TeamSpec.")
    if not isinstance(options, RunOptions):
        kind = type(options).__name__
        raise UserError(f"options is of type {kind!r}. Give RunOptions, as RunOptions(timeout=60).")


def _skipping(spec: TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    """Return the team without the agents that can't run here, and a notice about those."""
    gone = spec.unsupported
    if not gone:
        return spec, ()
    return spec.without_unsupported(), (f"Skipped, not supported here: {skipped(gone)}",)


def _project_of(recipe: str | os.PathLike[str] | Recipe | None) -> Path | None:
    """Return the user's directory that a recipe works in, if any."""
    is_there = any(each.workspace == "project" for each in _recipes(recipe))
    return Path.cwd() if is_there else None


def team_for(
    config: str | os.PathLike[str] | TeamSpec | None, options: RunOptions
) -> tuple[TeamSpec, tuple[str, ...]]:
    """Return the team to start, and notices for the user.

    Args:
        config: As for `start`.
        options: The options. On a cluster, keys are not checked here, as the workers' keys count.

    Raises:
        ConfigError: The team is not valid.
        MissingKeyError: A provider's key is not set.
    """
    spec, notices = (demo_team(), (DEMO_NOTICE,)) if config is None else _own_team(config)
    spec = spec.reading(options.context_paths)
    if options.skip_unsupported:
        spec, skipped = _skipping(spec)
        notices += skipped
    if options.cluster is None:
        check_team(spec)
        check_objects(spec)
    return spec, notices


def demo_team() -> TeamSpec:
    """Return the default team of demo agents."""
    agents = [{"id": name, "backend": {"type": "demo"}} for name in ("ada", "ben", "cleo")]
    return TeamSpec.model_validate({"agents": agents})


def _own_team(config: str | os.PathLike[str] | TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    spec = config if isinstance(config, TeamSpec) else TeamSpec.from_file(config)
    return spec, spec.notices


def _find_session(options: RunOptions, session: str | None, continue_: bool) -> Path | None:
    """Return the session that a run goes on with, made if it is named; None for a new one."""
    where = layout.session_root(options.session_root)
    if options.from_turn is not None and not continue_:
        raise UserError("--from names a turn to go on from: it goes with --continue.")
    if continue_:
        return find_session(where, session or "")
    return layout.named_session(where, session) if session else None


def _open_session(options: RunOptions, path: Path | None) -> tuple[Session, tuple[str, ...]]:
    """Load or create the session of a run; return it with notices on what could not be copied."""
    if path is None:
        where = layout.session_root(options.session_root)
        return Session(layout.new_session(where, datetime.now())), ()
    if options.from_turn is not None:
        fork = fork_session(path, options.from_turn, datetime.now())
        return load_session(fork.path), not_copied(fork.left_out)
    wait_until_saved(path)
    found = load_session(path)
    if any(turn.is_live for turn in found.turns[-1:]):
        raise SessionBusyError(path.name, owner_of(path))
    return found, ()
