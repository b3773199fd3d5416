"""A recipe, from an Amplifier YAML file, as frozen validated specs.

The file's exact source goes with the recipe, because a turn keeps what it ran. Keys that mean
nothing here are listed in `Recipe.warnings`; a key that is nearly one of ours is refused.

Source: amplifier-bundle-recipes, `models.py`; what it drops silently (a stage's `condition`,
`approval_required`, `approval_message`, `auto_approve_if`) is part of the spec here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from nb_agents.config import recipe_rules as rules
from nb_agents.config.document import Document, FileKind, Keys, parse_document, read_source
from nb_agents.config.faults import checked, errors_of
from nb_agents.config.recipe_step import Stage, Step
from nb_agents.config.recipe_values import (
    Orchestrator,
    PlainMap,
    RateLimiting,
    Recursion,
)
from nb_agents.config.spec import Spec
from nb_agents.errors import ConfigError

RECIPE_FILE = FileKind("recipe", "`name:`, `description:`, `version:` and `steps:`", expands=False)
"""``${VAR}`` is left alone: in a recipe it belongs to bash, and may be a secret."""

_A_TEAM = "This is a team file, not a recipe. Give it with --config (`config=` in Python)."

_NAME = re.compile(r"[\w-]*[^\W_][\w-]*")
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)
_DECLARED_TYPES = {"string", "integer", "number", "boolean", "array", "object"}
_TOP_KEY = re.compile(r"^(\w+):", re.MULTILINE)
_DECLARING_KEYS = {"type", "required", "default", "description"}


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a recipe name: use letters, digits, '-' and '_'")
    return text


def _version(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError(f'{value} is a number; write text with three parts, as "1.0.0"')
    if isinstance(value, str) and not _VERSION.fullmatch(value):
        raise ValueError(f'{value!r} is not a version; write three numbers, as "1.0.0"')
    return value


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank; say what the recipe does")
    return text


def _is_declared(value: object) -> bool:
    """Return whether a value declares a variable, as ``{type: string, required: true}`` does."""
    if not isinstance(value, dict) or not value.keys() <= _DECLARING_KEYS:
        return False
    return len(value) > 1 and value.get("type") in _DECLARED_TYPES


def _is_needed(value: object) -> bool:
    if not isinstance(value, dict) or not _is_declared(value):
        return False
    return bool(value.get("required")) and "default" not in value


def _defaults(context: Mapping[str, Any]) -> Mapping[str, Any]:
    given = {name: value for name, value in context.items() if not _is_needed(value)}
    return {k: v.get("default", "") if _is_declared(v) else v for k, v in given.items()}


class PlacedStage(NamedTuple):
    """A stage, and where the file has it.

    Attributes:
        stage: The stage.
        path: Its keys from the top: () for the one stage of a recipe without stages.
    """

    stage: Stage
    path: Keys


class Recipe(Spec):
    """A parsed recipe; read one with `from_file` or `from_text`, which check its rules.

    Attributes:
        name: Names it.
        description: What it does.
        version: Three numbers.
        author: Its author, as in the file.
        created: When, as the file says it.
        updated: When last, as the file says it.
        tags: As the file says them.
        context: The variables that a run begins with. One that the file declares
            (``{type: string, default: x}``) has its default, or is left out when it is `required`.
        stages: Its stages. A recipe without stages has one, named "".
        steps: The steps of a recipe without stages, as the file has them.
        recursion: How far recipes may call recipes.
        rate_limiting: How fast models may be called, or None when the file leaves it out.
        orchestrator: Delays between the calls of an agent.
        workspace: With "project" its steps work in the directory that the run is started in, and
            not in one of the run's own.
        sandbox: Whether its commands need a sandbox; without one they don't run.
        network: Whether they reach the network there.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, "
        >>> text += "steps: [{id: a, type: bash, command: 'echo hi'}]}"
        >>> Recipe.from_text(text, "hi.yaml").stages[0].steps[0].kind
        'bash'
    """

    name: Annotated[str, AfterValidator(_name)]
    description: Annotated[str, AfterValidator(_said)]
    version: Annotated[str, BeforeValidator(_version)]
    author: Any = None
    created: Any = None
    updated: Any = None
    tags: Any = None
    context: Annotated[PlainMap, AfterValidator(_defaults)] = Field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    steps: tuple[Step, ...] = ()
    recursion: Recursion = Recursion()
    rate_limiting: RateLimiting | None = None
    orchestrator: Orchestrator = Orchestrator()
    workspace: Literal["own", "project"] = "own"
    sandbox: bool = False
    network: bool = False
    _document: Document = PrivateAttr(default=Document())
    _text: str = PrivateAttr(default="")
    _path: Path | None = PrivateAttr(default=None)
    _required: tuple[str, ...] = PrivateAttr(default=())

    @property
    def text(self) -> str:
        """The file's exact source."""
        return self._text

    @property
    def path(self) -> Path | None:
        """The file, absolute; None for a recipe from text alone."""
        return self._path

    @property
    def warnings(self) -> tuple[ConfigError, ...]:
        """What is to be said of keys of the file that have no effect here, in its order."""
        document = self._document
        unknown = rules.unknown_keys(type(self), document.data)
        return tuple(errors_of(document, (*unknown, *rules.idle_keys(document.data))))

    @property
    def is_staged(self) -> bool:
        """Whether the file has stages."""
        return not self.steps

    @property
    def required(self) -> tuple[str, ...]:
        """The declared variables that a caller must give."""
        return self._required

    @property
    def placed_stages(self) -> tuple[PlacedStage, ...]:
        """The stages with their places."""
        if not self.is_staged:
            return (PlacedStage(self.stages[0], ()),)
        return tuple(PlacedStage(each, ("stages", i)) for i, each in enumerate(self.stages))

    def walk(self) -> Iterator[Step]:
        """Yield its steps in order, each before those within it."""
        for stage in self.stages:
            for step in stage.steps:
                yield from step.walk()

    def fault(self, what: str, *path: object) -> ConfigError:
        """Return an error with the place of its cause in the file.

        Args:
            what: The sentence.
            path: Keys and list positions from the top, as in the file.

        Returns:
            The error; without a place when the recipe was made in Python.
        """
        return self._document.error(what, path)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read a recipe file.

        Args:
            path: The file.

        Returns:
            The recipe.

        Raises:
            ConfigError: With file, line, column and the nearest valid key; further faults in the
                same file are in its ``others``.
        """
        text = read_source(path, RECIPE_FILE)
        return cls.from_text(text, str(path), path=Path(path).absolute())

    @classmethod
    def from_text(cls, text: str, name: str, *, path: Path | None = None) -> Recipe:
        """Read a recipe from its source, as a turn keeps it or a cell has it.

        Args:
            text: The source.
            name: Its name in messages.
            path: Its file; None resolves sub-recipes in the working directory.

        Returns:
            The recipe.

        Raises:
            ConfigError: As `from_file`.
        """
        document = parse_document(text, name, RECIPE_FILE)
        if "agents" in document.data and not document.data.keys() & {"steps", "stages"}:
            raise ConfigError(_A_TEAM, file=document.file)
        try:
            return cls._read(document, text, path)
        except RecursionError:
            raise ConfigError("Nested too deeply: not a recipe.", file=name) from None

    @classmethod
    def _read(cls, document: Document, text: str, path: Path | None) -> Recipe:
        data = document.data
        recipe = checked(cls, document, rules.breaches(data), rules.slipped_keys(cls, data))
        if recipe.steps:
            only = Stage.model_construct(name="", steps=recipe.steps)
            recipe = recipe.model_copy(update={"stages": (only,)})
        recipe._document, recipe._text, recipe._path = document, text, path
        declared = data.get("context") or {}
        recipe._required = tuple(str(name) for name, v in declared.items() if _is_needed(v))
        return recipe


def is_recipe(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a recipe: it has steps or stages, or a description and no agents.

    Of a file that can't be read the lines count that begin with such a key.
    """
    try:
        return is_recipe_text(read_source(path, RECIPE_FILE))
    except ConfigError:
        return False


def is_recipe_text(source: str) -> bool:
    """Return whether the source of a file is a recipe's; see `is_recipe`."""
    try:
        keys = set(parse_document(source, "", RECIPE_FILE).data)
    except ConfigError:
        keys = set(_TOP_KEY.findall(source))
    return bool(keys & {"steps", "stages"}) or ("description" in keys and "agents" not in keys)
