"""Specs of a recipe, loaded from an Amplifier YAML file. They are frozen and validated.

A recipe includes its file's source text, which a turn stores. Keys without effect are listed in
`Recipe.warnings`. A key that closely resembles a known one is reported as a misspelling.

Source: amplifier-bundle-recipes, `models.py`. Stage keys that it silently ignores (`condition`,
`approval_required`, `approval_message`, `auto_approve_if`) work here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from nb_agents.config.document import Document, FileKind, Keys, parse_document, read_source
from nb_agents.config.faults import errors_from_faults, validate_document
from nb_agents.config.spec import Spec
from nb_agents.errors import ConfigError
from nb_agents.extensions.recipes import recipe_rules as rules
from nb_agents.extensions.recipes.recipe_keys import replace_aliases
from nb_agents.extensions.recipes.recipe_step import Stage, Step
from nb_agents.extensions.recipes.recipe_values import (
    Orchestrator,
    PlainMap,
    RateLimiting,
    Recursion,
)

RECIPE_FILE = FileKind("recipe", "`name:`, `description:`, `version:` and `steps:`", expands=False)
"""Recipe files.

``${VAR}`` is not expanded, because in a recipe it is bash syntax and may be a secret.
"""

_A_TEAM = "This is a team file, not a recipe. Pass it with --config (`config=` in Python)."

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
        raise ValueError(f'{value} is a number; write text with three parts, such as "1.0.0"')
    if isinstance(value, str) and not _VERSION.fullmatch(value):
        raise ValueError(f'{value!r} is not a version; write three numbers, such as "1.0.0"')
    return value


def _description(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank; describe what the recipe does")
    return text


def _is_declared(value: object) -> bool:
    """Return whether a value declares a variable, as ``{type: string, required: true}`` does."""
    if not isinstance(value, dict) or not value.keys() <= _DECLARING_KEYS:
        return False
    return len(value) > 1 and value.get("type") in _DECLARED_TYPES


def _is_required(value: object) -> bool:
    if not isinstance(value, dict) or not _is_declared(value):
        return False
    return bool(value.get("required")) and "default" not in value


def _defaults(context: Mapping[str, Any]) -> Mapping[str, Any]:
    optional = {name: value for name, value in context.items() if not _is_required(value)}
    return {k: v.get("default", "") if _is_declared(v) else v for k, v in optional.items()}


class LocatedStage(NamedTuple):
    """A stage and its position in the file.

    Attributes:
        path: Keys and list indices from the top level; () in a recipe without stages.
    """

    stage: Stage
    path: Keys


class Recipe(Spec):
    """A parsed recipe. `from_file` and `from_text` read one and check its rules.

    Attributes:
        name: The recipe's name.
        description: What the recipe does.
        version: The version, three numbers.
        author: The author. Can be any value.
        created: The date of creation. Can be any value.
        updated: The date of the last change. Can be any value.
        tags: Tags. Can be any value.
        context: The initial variables. A declared variable (``{type: string, default: x}``) has
            its default. One that is `required` has no value until the caller sets it.
        stages: The stages. A recipe without stages has a single one with the name "".
        steps: The steps of a recipe without stages.
        recursion: Limits of recipes that call recipes.
        rate_limiting: How fast models may be called. By default, there are no limits.
        orchestrator: Delays between the model calls of an agent.
        workspace: With ``project``, the steps run in the directory in which the run is started
            instead of a separate workspace.
        sandbox: Whether commands require a sandbox. If there is none, they don't run.
        network: Whether sandboxed commands can use the network.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, "
        >>> text += "steps: [{id: a, type: bash, command: 'echo hi'}]}"
        >>> Recipe.from_text(text, "hi.yaml").stages[0].steps[0].kind
        'bash'
    """

    name: Annotated[str, AfterValidator(_name)]
    description: Annotated[str, AfterValidator(_description)]
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
    _is_kept: bool = PrivateAttr(default=False)

    @property
    def text(self) -> str:
        """The source text of the file."""
        return self._text

    @property
    def path(self) -> Path | None:
        """The absolute path of the file, or None for a recipe without a file."""
        return self._path

    @property
    def warnings(self) -> tuple[ConfigError, ...]:
        """Warnings about keys without effect, in the order of the file."""
        document = self._document
        unknown = rules.unknown_keys(type(self), document.data)
        return tuple(
            errors_from_faults(document, (*unknown, *rules.ineffective_keys(document.data)))
        )

    @property
    def is_staged(self) -> bool:
        """Whether the file has stages."""
        return not self.steps

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the declared variables that a caller must set."""
        return self._required

    @property
    def placed_stages(self) -> tuple[LocatedStage, ...]:
        """The stages with their positions in the file."""
        if not self.is_staged:
            return (LocatedStage(self.stages[0], ()),)
        return tuple(LocatedStage(each, ("stages", i)) for i, each in enumerate(self.stages))

    def walk(self) -> Iterator[Step]:
        """Yield all steps in order, each before its nested steps."""
        for stage in self.stages:
            for step in stage.steps:
                yield from step.walk()

    def fault(self, what: str, *path: object) -> ConfigError:
        """Return an error with the line and column of its cause in the file.

        Recipes created in Python have no positions.

        Args:
            what: The message, as a sentence.
            path: Keys and list indices from the top level of the file.
        """
        return self._document.error(what, path)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read a recipe file.

        Raises:
            ConfigError: The file is invalid. The error has the file, line, column and nearest valid
                key. Further errors in the same file are in its ``others``.
        """
        text = read_source(path, RECIPE_FILE)
        return cls.from_text(text, str(path), path=Path(path).absolute())

    @classmethod
    def from_text(
        cls, text: str, name: str, *, path: Path | None = None, is_kept: bool = False
    ) -> Recipe:
        """Parse the source text of a recipe, such as that of a stored turn or a cell.

        Args:
            text: The YAML text.
            name: The recipe's name in messages.
            path: The recipe's file. None resolves sub-recipes in the working directory.
            is_kept: Whether the text comes from a journal. Unknown keys that were ignored when it
                ran are not errors then.

        Raises:
            ConfigError: As for `from_file`.
        """
        try:
            document = replace_aliases(parse_document(text, name, RECIPE_FILE))
            if "agents" in document.data and not document.data.keys() & {"steps", "stages"}:
                raise ConfigError(_A_TEAM, file=document.file)
            return cls._read(document, text, path, is_kept)
        except RecursionError:
            raise ConfigError("Nested too deeply for a recipe. Flatten it.", file=name) from None

    @classmethod
    def _read(cls, document: Document, text: str, path: Path | None, is_kept: bool) -> Recipe:
        data = document.data
        unread = () if is_kept else rules.unknown_work_keys_in(cls, data)
        wrong_keys = (*rules.misspelled_keys(cls, data), *unread)
        recipe = validate_document(cls, document, rules.broken_rules(data), wrong_keys)
        if recipe.steps:
            only = Stage.model_construct(name="", steps=recipe.steps)
            recipe = recipe.model_copy(update={"stages": (only,)})
        recipe._document, recipe._text, recipe._path = document, text, path
        recipe._is_kept = is_kept
        declared = data.get("context") or {}
        recipe._required = tuple(str(name) for name, v in declared.items() if _is_required(v))
        return recipe


def is_kept(recipe: Recipe) -> bool:
    """Return whether a recipe comes from a journal, so the recipes that it calls are checked."""
    return recipe._is_kept


def is_recipe(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a recipe: it has steps or stages, or a description and no agents.

    In a file with syntax errors, lines that begin with such a key decide.
    """
    try:
        return is_recipe_text(read_source(path, RECIPE_FILE))
    except ConfigError:
        return False


def is_recipe_text(source: str) -> bool:
    """Return whether the text of a file is a recipe; see `is_recipe`."""
    try:
        keys = set(parse_document(source, "", RECIPE_FILE).data)
    except ConfigError:
        keys = set(_TOP_KEY.findall(source))
    return bool(keys & {"steps", "stages"}) or ("description" in keys and "agents" not in keys)
