"""Checks a recipe without running it, and lists what it would do.

Sub-recipes that are called by a literal name are also checked. Text in a recipe is untrusted, so
everything that is shown is shortened to one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.config.document import Keys
from nb_agents.config.expression import parse
from nb_agents.config.file_findings import Finding, finding_of
from nb_agents.config.spec import start_directory
from nb_agents.config.team import TeamSpec
from nb_agents.config.template import reads, texts_in, variables
from nb_agents.disk.names import as_on_disk
from nb_agents.errors import ConfigError, RecipeError
from nb_agents.extensions.recipes.agents import resolve_agent, unknown_names
from nb_agents.extensions.recipes.diagram import Outline, one_line
from nb_agents.extensions.recipes.recipe import LocatedStage, Recipe, is_kept
from nb_agents.extensions.recipes.recipe_step import Stage, Step
from nb_agents.extensions.recipes.recipe_values import is_template
from nb_agents.extensions.recipes.shell_values import misplaced
from nb_agents.extensions.recipes.units import FailedError, FaultyError, join, last_part, recipe_of
from nb_agents.models.providers import is_usable
from nb_agents.nouns import did_you_mean, nearest
from nb_agents.view.step_values import value_of

_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")


def placed(recipe: Recipe, message: str, path: Keys, text: str) -> ConfigError:
    """Return an error that points to text inside the value at ``path``.

    A value, such as a prompt, can have many lines.

    Args:
        message: The error message.
        path: Keys and list indices from the top level of the recipe.
        text: The text to find, at or after the start of the value.
    """
    error = recipe.fault(message, *path)
    if error.line is None:
        return error
    for number, line in enumerate(recipe.text.split("\n")[error.line - 1 :], error.line):
        # A key can contain the text with which its value starts.
        start = error.column - 1 if error.column and number == error.line else 0
        if (at := line.find(text, start)) >= 0:
            return ConfigError(message, file=error.file, line=number, column=at + 1)
    return error


def step_path(recipe: Recipe, step: str) -> Keys:
    """Return the path of keys to the step with this id, or () if there is none."""
    for stage, path in recipe.placed_stages:
        for each, keys in _steps(stage.steps, (*path, "steps")):
            if join("", each.id) == join("", step):
                return keys
    return ()


def _steps(steps: Sequence[Step], path: Keys) -> Iterator[tuple[Step, Keys]]:
    for number, step in enumerate(steps):
        yield step, (*path, number)
        yield from _steps(step.steps, (*path, number, "steps"))


def with_location(failure: FailedError, recipe: Recipe, path: Keys) -> FailedError:
    """Add the file, line and column to a failure that the recipe's text causes.

    Other failures are returned unchanged.

    Args:
        failure: The failure of a unit.
        recipe: The recipe of the unit.
        path: The path of keys to the unit.
    """
    if not isinstance(failure, FaultyError):
        return failure
    template = _TEMPLATE.search(failure.error)
    path = (*path, failure.key) if failure.key else path
    error = placed(recipe, failure.error, path, template[0] if template else failure.error)
    return FailedError(failure.addresses, str(error))


def fault_at(recipes: Mapping[str, Recipe], address: str, message: str, key: str = "") -> str:
    """Return a message about a step, with its file, line and column.

    Args:
        recipes: The loaded recipes, by the addresses of the steps that call them.
        address: The address of the step.
        key: The key of the step that the message is about, or "".
    """
    recipe = recipes[recipe_of(recipes, address)]
    path = step_path(recipe, last_part(address))
    return with_location(FaultyError((address,), message, key), recipe, path).error


RESERVED = {
    "recipe": {"name", "version", "description"},
    "session": {"id", "started", "project"},
    "stage": {"name", "index"},
    "step": {"id", "index", "stage"},
}
"""The built-in variables that every step has, with their fields."""

_NUMBERS = ("_loop_index", "_loop_iteration")
_CONDITIONS = ("condition", "while_condition", "break_when")
_BEFORE_LOOP = ["condition", "while_condition", "foreach", "max_iterations", "parallel"]
_AFTER_BODY = ("update_context", "break_when", "steps")
_NO_TEMPLATES = ("id", "agent_config")
_IN_LOOP = [
    key for key in Step.model_fields if key not in (*_BEFORE_LOOP, *_AFTER_BODY, *_NO_TEMPLATES)
]

# What looks like a template of nb_agents or Jinja. ``\{{`` and GitHub's ``${{`` are literal text.
_BRACES = re.compile(r"(?<![\\$])\{\{\s*[#/\w][^{}\n]*\}\}|\{%[^\n]*?%\}")
_ONLY_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_BUNDLES_PATH = re.compile(r"([\w-]{2,}):(?!//)\S+")
_PLAIN = re.compile(r"\w+(\.\w+)*")
_OWN_TEMPLATE = re.compile(
    r"\{\{\s*\w+(\.\w+)*(\s*\|\s*raw)?\s*\}\}|\{\{#if\s.+\}\}|\{\{else\}\}|\{\{/if\}\}"
)


@dataclass(frozen=True)
class CheckedRecipe:
    """The result of a check.

    Attributes:
        findings: The errors that prevent the recipe from running, then likely mistakes.
        plan: Lines of text that describe what the recipe would do.
    """

    findings: tuple[Finding, ...]
    plan: tuple[str, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The errors that prevent a run."""
        return tuple(each for each in self.findings if each.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The likely mistakes."""
        return tuple(each for each in self.findings if each.severity == "warning")


def check(recipe: Recipe, team: TeamSpec | None = None) -> CheckedRecipe:
    """Check a recipe and its sub-recipes, without running anything.

    Args:
        team: The team that would run it. If None, agents and models are not checked.

    Returns:
        The findings and the plan.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, "
        >>> text += "steps: [{id: a, type: bash, command: 'echo {{who}}'}]}"
        >>> check(Recipe.from_text(text, "hi.yaml")).warnings[0].message
        "Step 'a' uses {{who}}, which nothing sets before it."
    """
    checker = _Checker(team, recipe)
    checker.check(set())
    faults = map(finding_of, checker.faults)
    warnings = (finding_of(each, "warning") for each in checker.warnings)
    findings = tuple(dict.fromkeys([*faults, *warnings]))
    return CheckedRecipe(findings, tuple(checker.outline.lines))


def find_recipe(written: str, caller: Path | None, bundles: Mapping[str, str]) -> Path:
    """Find the file of a recipe that a step calls.

    A path is searched for next to the calling recipe, then in the working directory.

    Args:
        written: The path as written in the step, or ``@bundle:path``.
        caller: The file of the calling recipe, or None.
        bundles: The directory of each bundle, by name.

    Raises:
        RecipeError: The file or the bundle does not exist.
    """
    if written.startswith("@"):
        return _in_bundle(written, bundles)
    folders = [*([caller.parent] if caller else []), start_directory()]
    for folder in folders:
        if path := _file(folder, written):
            return path
    hint = _missing_suffix_hint(folders, written) or _missing_at_hint(written, bundles)
    name = one_line(written)
    raise RecipeError(f"No recipe {name!r} next to this one or in {start_directory()}.{hint}")


def _in_bundle(written: str, bundles: Mapping[str, str]) -> Path:
    name, _, rest = written[1:].partition(":")
    shown_name = one_line(name)
    if name not in bundles:
        hint = did_you_mean(name, bundles)
        raise RecipeError(
            f"Unknown bundle {shown_name!r}.{hint} "
            f"Set its directory with `bundles: {{{shown_name}: DIR}}` in the team file, or "
            f"with --bundle {shown_name}=DIR."
        )
    if path := _file(Path(bundles[name]), rest):
        return path
    hint = _missing_suffix_hint([Path(bundles[name])], rest)
    missing = f"The bundle {shown_name!r} has no file {one_line(rest)!r} in {bundles[name]}."
    raise RecipeError(f"{missing}{hint}")


def _missing_at_hint(written: str, bundles: Mapping[str, str]) -> str:
    """Return a hint for a bundle path without its @, or ""."""
    match = _BUNDLES_PATH.fullmatch(written)
    if not match:
        return ""
    article = "the" if match[1] in bundles else "a"
    return f" Did you mean {one_line('@' + written)!r}, of {article} bundle {match[1]!r}?"


def _missing_suffix_hint(folders: Sequence[Path], written: str) -> str:
    """Return a hint for a path without its file suffix, or ""."""
    names = [f"{written}.yaml", f"{written}.yml"]
    near = next((n for n in names if any(_file(folder, n) for folder in folders)), "")
    return f" Did you mean {one_line(near)!r}?" if near else ""


def _file(folder: Path, written: str) -> Path | None:
    try:
        path = as_on_disk(folder / written).resolve()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # the name is too long, a NUL, a symlink loop
        return None


class _Caller(NamedTuple):
    """A recipe that is being checked, and whether it is always called."""

    file: Path
    is_certain: bool


@dataclass
class _Checker:
    """Walks one recipe. Checkers of sub-recipes share its lists of findings."""

    team: TeamSpec | None
    recipe: Recipe
    callers: tuple[_Caller, ...] = ()
    """The recipes from the outermost to this one, which is added while it is walked."""
    faults: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigError] = field(default_factory=list)
    outline: Outline = field(default_factory=Outline)
    checked_files: set[Path] = field(default_factory=set)
    settled: dict[str, Any] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)
    is_certain: bool = True
    """Whether the current step always runs, and its failure would end the recipe."""

    def check(self, given_names: set[str], fenced: Set[str] = frozenset()) -> None:
        """Check the recipe.

        Args:
            given_names: Variables that the caller sets.
            fenced: Those variables that depend on the results of steps.
        """
        recipe = self.recipe
        self.warnings += recipe.warnings
        self.outline.recipe(recipe)
        if path := recipe.path.resolve() if recipe.path else None:
            self.checked_files.add(path)
            self.callers = (*self.callers, _Caller(path, self.is_certain))
        defined = {*recipe.context, *recipe.required, *given_names}
        self.constants, self.fenced = _constants(recipe, given_names), _fenced(recipe, fenced)
        self.is_certain = True
        with self.outline.inside():
            for placed in recipe.placed_stages:
                with self._only_if(bool(placed.stage.condition)):
                    self._stage(placed, defined)

    @contextmanager
    def _only_if(self, has_condition: bool) -> Iterator[None]:
        outer = self.is_certain
        self.is_certain = outer and not has_condition
        yield
        self.is_certain = outer

    def _stage(self, placed: LocatedStage, defined: set[str]) -> None:
        stage, path = placed
        who = f"Stage {stage.name!r}"
        self._condition(stage.condition, (*path, "condition"), who, defined)
        with self.outline.stage(stage):
            for number, step in enumerate(stage.steps):
                self._step(step, (*path, "steps", number), defined)
        self._gate(stage, path, defined)

    def _gate(self, stage: Stage, path: Keys, defined: set[str]) -> None:
        if stage.gate is None:
            return
        self.outline.gate(stage)
        who = f"The gate of stage {stage.name!r}"
        inside = "approval" if stage.approval.prompt else "approval_message"
        at = (*path, inside, "prompt") if inside == "approval" else (*path, inside)
        for text in _texts(stage.gate.prompt) + _texts(stage.gate.timeout):
            self._text(text, at, who, defined)
        for number, condition in enumerate(stage.auto_approve_if):
            self._condition(condition, (*path, "auto_approve_if", number), who, defined)

    def _step(self, step: Step, path: Keys, defined: set[str]) -> None:
        may_pass = step.condition or step.foreach or step.while_condition
        is_certain = self.is_certain and not may_pass and step.on_error == "fail"
        self.outline.step(step, self._worker(step, path, is_certain))
        self._uses(step, path, defined, _BEFORE_LOOP)
        self._loops(step, path)
        inner = {*defined, step.as_} if step.foreach else defined
        self._uses(step, path, inner, _IN_LOOP)
        with self.outline.inside(), self._only_if(not is_certain):
            for number, each in enumerate(step.steps):
                self._step(each, (*path, "steps", number), inner)
            if step.kind == "recipe":
                self._call(step, path)
        outputs = (step.output, step.output_exit_code, step.collect)
        inner |= {name for name in outputs if name}
        self._uses(step, path, inner, ["update_context"])
        inner |= step.update_context.keys()
        self._uses(step, path, inner, ["break_when"])
        defined |= inner - ({step.as_} - defined if step.foreach else set())

    def _worker(self, step: Step, path: Keys, is_certain: bool) -> str:
        """Return the agent that would run a step, or "" if that depends on values of the run."""
        if self.team is None or step.kind != "agent" or step.is_named_by_values:
            return ""
        for unknown in unknown_names(step, self.team):
            self.warnings.append(self.recipe.fault(f"Step {step.id!r} uses {unknown}", *path))
        try:
            worker = resolve_agent(step, self.team, is_usable)
        except RecipeError as exc:
            findings = self.faults if is_certain else self.warnings
            findings.append(self.recipe.fault(f"Step {step.id!r}: {exc}", *path))
            return ""
        return f"{worker.agent.id} ({worker.why})"

    def _loops(self, step: Step, path: Keys) -> None:
        """Warn if a loop runs over a constant that is not a list."""
        name = _ONLY_VARIABLE.fullmatch(step.foreach.strip())
        if name and name[1] in self.constants and not _is_list(self.constants[name[1]]):
            message = (
                f"Step {step.id!r} needs a list for `foreach`, but {name[1]!r} of the recipe's "
                "`context` is not a list. Write `[a, b]`, or let a step return one with "
                "`parse_json: true`."
            )
            self.warnings.append(self.recipe.fault(message, *path, "foreach"))

    def _call(self, step: Step, path: Keys) -> None:
        """Check the recipe that a step calls, unless its name is a template.

        Each file is checked once. A recipe from a journal has been checked with those it calls.
        """
        if is_template(step.recipe) or is_kept(self.recipe):
            return
        try:
            file = find_recipe(
                step.recipe, self.recipe.path, self.team.bundles if self.team else {}
            )
        except RecipeError as exc:
            self.faults.append(self.recipe.fault(str(exc), *path, "recipe"))
            return
        files = [caller.file for caller in self.callers]
        if file in files:
            circle = self.callers[files.index(file) + 1 :]
            is_endless = self.is_certain and all(caller.is_certain for caller in circle)
            message = f"Step {step.id!r} makes a recipe call itself. "
            message += (
                "Add a condition. Nothing else ends this recursion."
                if is_endless
                else "Only a condition or `recursion` ends this."
            )
            findings = self.faults if is_endless else self.warnings
            findings.append(self.recipe.fault(message, *path, "recipe"))
        elif file not in self.checked_files:
            self._check_call(step, path, file)

    def _check_call(self, step: Step, path: Keys, file: Path) -> None:
        self.checked_files.add(file)
        try:
            sub = Recipe.from_file(file)
        except ConfigError as exc:
            self.faults += (exc, *exc.others)
            exc.others = ()
            return
        missing = [name for name in sub.required if name not in step.context]
        if missing:
            message = (
                f"Recipe {sub.name!r} requires {_quoted_list(missing)}, which step {step.id!r} "
            )
            self.warnings.append(self.recipe.fault(f"{message}does not set.", *path, "recipe"))
        fenced = {name for name, value in step.context.items() if reads(value) & self.fenced}
        replace(self, recipe=sub).check(set(step.context), fenced)

    def _uses(self, step: Step, path: Keys, defined: set[str], keys: list[str]) -> None:
        who = f"Step {step.id!r}"
        for key in keys:
            value, alias = getattr(step, key), type(step).model_fields[key].alias or key
            if key in _CONDITIONS:
                self._condition(value, (*path, alias), who, defined)
            else:
                for text in _texts(value):
                    self._text(text, (*path, alias), who, defined)
                    if key == "command":
                        self._command(text, (*path, alias), who, defined)

    def _command(self, text: str, path: Keys, who: str, defined: set[str]) -> None:
        """Check that the values inserted into a command can't be run as code."""
        try:
            misplaced_values = misplaced(
                text,
                lambda name: _is_defined(name, defined),
                {*defined, *RESERVED, *_NUMBERS} - self.fenced,
            )
        except RecipeError:  # not a valid template; `_text` reports it
            return
        for each in misplaced_values:
            line = text.split("\n")[each.line - 1].strip()
            findings = self.faults if each.is_fault else self.warnings
            findings.append(placed(self.recipe, f"{who}: {each.what}", path, line))

    def _condition(self, text: str, path: Keys, who: str, defined: set[str]) -> None:
        if not text:
            return
        try:
            names = parse(text).variables
        except RecipeError as exc:
            self.faults.append(self.recipe.fault(_parse_error(who, path, exc), *path))
        else:
            self._check_defined(names, path, who, defined)

    def _text(self, text: str, path: Keys, who: str, defined: set[str]) -> None:
        try:
            names = variables(text)
        except RecipeError as exc:
            self.faults.append(self.recipe.fault(_parse_error(who, path, exc), *path))
            return
        plain = tuple(name for name in names if _PLAIN.fullmatch(name))
        self._check_defined(plain, path, who, defined)
        dotted_names = {name for name in names if name not in plain and _is_defined(name, defined)}
        foreign = [
            b[0]
            for b in _BRACES.finditer(text)
            if not _OWN_TEMPLATE.fullmatch(b[0]) and b[0].strip("{} \t") not in dotted_names
        ]
        if foreign:
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            message = (
                f"{who} has {one_line(foreign[0])}{more}, which is not a supported template and is "
                "left unchanged."
            )
            self.warnings.append(placed(self.recipe, message, path, foreign[0]))

    def _check_defined(
        self, names: tuple[str, ...], path: Keys, who: str, defined: set[str]
    ) -> None:
        for name in names:
            if not _is_defined(name, defined):
                near = nearest(name.partition(".")[0], [*defined, *RESERVED])
                hint = f" Did you mean {{{{{near}}}}}?" if near and near not in name else ""
                message = f"{who} uses {{{{{name}}}}}, which nothing sets before it.{hint}"
                self.warnings.append(placed(self.recipe, message, path, name))


def _is_list(value: object) -> bool:
    return isinstance(value_of(value) if isinstance(value, str) else value, list)


def _constants(recipe: Recipe, given_names: set[str]) -> dict[str, Any]:
    """Return the recipe's context variables that never change, with their values.

    Omits empty values, which are placeholders to be filled in. Adds numbers for the index variables
    (`step`, `stage`, `_loop_index`, `_loop_iteration`).
    """
    changed: set[str | None] = {*given_names}
    for step in recipe.walk():
        changed |= {step.output, step.output_exit_code, step.collect, step.as_}
        changed |= step.update_context.keys()
    index = {"index": 0}
    constants = {
        name: value
        for name, value in recipe.context.items()
        if name not in changed and value not in (None, "")
    }
    return {**constants, "step": index, "stage": index, "_loop_index": 0, "_loop_iteration": 1}


def _fenced(recipe: Recipe, given_names: Set[str]) -> set[str]:
    """Return the variables that depend on results of steps or on an approval's message."""
    steps = list(recipe.walk())
    fenced = {*given_names, "_approval_message"}
    fenced |= {name for s in steps for name in (s.output, s.output_exit_code, s.collect) if name}
    derived = [(step.as_, step.foreach) for step in steps if step.foreach]
    derived += [each for step in steps for each in step.update_context.items()]
    while more := {name for name, value in derived if name not in fenced and reads(value) & fenced}:
        fenced |= more
    return fenced


def _parse_error(who: str, path: Keys, exc: RecipeError) -> str:
    key = next(part for part in reversed(path) if isinstance(part, str))
    return f"{who}: Invalid `{key}`: {exc}"


def _is_defined(name: str, defined: set[str]) -> bool:
    first, _, rest = name.partition(".")
    if first in defined or first.startswith("_"):  # the variables that the run sets start with _
        return True
    return first in RESERVED and (not rest or rest in RESERVED[first])


def _texts(value: object) -> list[str]:
    """Return the strings inside a value that may contain templates."""
    return [text for text in texts_in(value) if "{" in text]


def _quoted_list(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(repr(one_line(name)) for name in names)
