"""What a recipe would do, and what is wrong with it, without running anything.

The files that it calls by name are read too. Everything that is shown comes from files and may be
anything: it is put on one line and cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.config.document import Keys
from nb_agents.config.recipe import PlacedStage, Recipe
from nb_agents.config.recipe_step import Stage, Step
from nb_agents.config.recipe_values import is_template
from nb_agents.config.spec import start_place
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, RecipeError
from nb_agents.models.providers import is_usable
from nb_agents.nouns import did_you_mean, nearest
from nb_agents.recipes.agents import resolve_agent, unknown_names
from nb_agents.recipes.diagram import Outline, one_line
from nb_agents.recipes.expression import parse
from nb_agents.recipes.output import value_of
from nb_agents.recipes.shell_values import misplaced
from nb_agents.recipes.template import reads, texts_in, variables
from nb_agents.recipes.units import FailedError, FaultyError, join, last_part, recipe_of

_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")


def placed(recipe: Recipe, what: str, path: Keys, text: str) -> ConfigError:
    """Return an error about a text inside the value at ``path``: a prompt has many lines.

    Args:
        recipe: The recipe.
        what: A sentence.
        path: Keys and list positions from the top.
        text: What to look for, from there on.
    """
    found = recipe.fault(what, *path)
    if found.line is None:
        return found
    for number, line in enumerate(recipe.text.split("\n")[found.line - 1 :], found.line):
        # A key may hold the same words as its value begins with.
        start = found.column - 1 if found.column and number == found.line else 0
        if (at := line.find(text, start)) >= 0:
            return ConfigError(what, file=found.file, line=number, column=at + 1)
    return found


def path_of(recipe: Recipe, step: str) -> Keys:
    """Return the keys of a step, by its id; () for a recipe that has none."""
    for stage, path in recipe.placed_stages:
        for each, keys in _steps(stage.steps, (*path, "steps")):
            if join("", each.id) == join("", step):
                return keys
    return ()


def _steps(steps: Sequence[Step], path: Keys) -> Iterator[tuple[Step, Keys]]:
    for number, step in enumerate(steps):
        yield step, (*path, number)
        yield from _steps(step.steps, (*path, number, "steps"))


def with_place(failure: FailedError, recipe: Recipe, path: Keys) -> FailedError:
    """Return a failure with its file, line and column where the recipe's text is at fault.

    Args:
        failure: Of a unit.
        recipe: The recipe that has it.
        path: Its keys.
    """
    if not isinstance(failure, FaultyError):
        return failure
    template = _TEMPLATE.search(failure.error)
    path = (*path, failure.key) if failure.key else path
    found = placed(recipe, failure.error, path, template[0] if template else failure.error)
    return FailedError(failure.addresses, str(found))


def fault_at(recipes: Mapping[str, Recipe], address: str, what: str, key: str = "") -> str:
    """Return a sentence about a step with its file, line and column.

    Args:
        recipes: The recipes at work, by the addresses of the steps that call them.
        address: The step's.
        what: The sentence.
        key: The step's key that it is about, or "".
    """
    recipe = recipes[recipe_of(recipes, address)]
    path = path_of(recipe, last_part(address))
    return with_place(FaultyError((address,), what, key), recipe, path).error


RESERVED = {
    "recipe": {"name", "version", "description"},
    "session": {"id", "started", "project"},
    "stage": {"name", "index"},
    "step": {"id", "index", "stage"},
}
"""What every step sees besides the recipe's variables, and what is in it."""

_NUMBERS = ("_loop_index", "_loop_iteration")
_CONDITIONS = ("condition", "while_condition", "break_when")
_BEFORE_LOOP = ["condition", "while_condition", "foreach", "max_iterations", "parallel"]
_AFTER_BODY = ("update_context", "break_when", "steps")
_NO_TEMPLATES = ("id", "agent_config")
_IN_LOOP = [
    key for key in Step.model_fields if key not in (*_BEFORE_LOOP, *_AFTER_BODY, *_NO_TEMPLATES)
]

# What looks like a template of ours or of Jinja; ``\{{`` and GitHub's ``${{`` are meant as such.
_BRACES = re.compile(r"(?<![\\$])\{\{\s*[#/\w][^{}\n]*\}\}|\{%[^\n]*?%\}")
_ALONE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_PLAIN = re.compile(r"\w+(\.\w+)*")
_UNDERSTOOD = re.compile(
    r"\{\{\s*\w+(\.\w+)*(\s*\|\s*raw)?\s*\}\}|\{\{#if\s.+\}\}|\{\{else\}\}|\{\{/if\}\}"
)


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        faults: What must be mended before the recipe can run.
        warnings: What may be meant otherwise.
        plan: What it would do, as lines of text.
    """

    faults: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...]
    plan: tuple[str, ...]


def check(recipe: Recipe, team: TeamSpec | None = None) -> Report:
    """Return what a recipe would do, and what is wrong with it.

    Args:
        recipe: The recipe; files that it names literally are read.
        team: Whose agents would work; None leaves their names unchecked.

    Returns:
        Faults, warnings and the plan, those of sub-recipes included.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, "
        >>> text += "steps: [{id: a, type: bash, command: 'echo {{who}}'}]}"
        >>> check(Recipe.from_text(text, "hi.yaml")).warnings[0].message
        "Step 'a' uses {{who}}, which nothing sets before it."
    """
    checker = _Checker(team, recipe)
    checker.check(set())
    faults, warnings = (_each_once(found) for found in (checker.faults, checker.warnings))
    return Report(faults, warnings, tuple(checker.outline.lines))


def _each_once(found: Iterable[ConfigError]) -> tuple[ConfigError, ...]:
    return tuple({str(each): each for each in found}.values())


def find_recipe(written: str, beside: Path | None, bundles: Mapping[str, str]) -> Path:
    """Find the file that a step calls.

    Args:
        written: The path as the step has it, or ``@bundle:path``.
        beside: The file of the recipe that calls it, or None.
        bundles: The directory of each bundle.

    Returns:
        The file, in its bundle, or else beside the caller or from the working directory.

    Raises:
        RecipeError: There is none.
    """
    if written.startswith("@"):
        return _in_bundle(written, bundles)
    folders = [*([beside.parent] if beside else []), start_place()]
    for folder in folders:
        if path := _file(folder, written):
            return path
    hint = _with_suffix(folders, written)
    said = one_line(written)
    raise RecipeError(f"No recipe {said!r} beside this one or in {start_place()}.{hint}")


def _in_bundle(written: str, bundles: Mapping[str, str]) -> Path:
    name, _, rest = written[1:].partition(":")
    said = one_line(name)
    if name not in bundles:
        hint = did_you_mean(name, bundles)
        raise RecipeError(
            f"No bundle {said!r} is known.{hint} Say where it is: `bundles: {{{said}: DIR}}` in "
            f"the team's file, or --bundle {said}=DIR."
        )
    if path := _file(Path(bundles[name]), rest):
        return path
    hint = _with_suffix([Path(bundles[name])], rest)
    missing = f"The bundle {said!r} has no file {one_line(rest)!r} in {bundles[name]}."
    raise RecipeError(f"{missing}{hint}")


def _with_suffix(folders: Sequence[Path], written: str) -> str:
    """Return a hint for a path that lacks the file's suffix, or ""."""
    names = [f"{written}.yaml", f"{written}.yml"]
    near = next((n for n in names if any(_file(folder, n) for folder in folders)), "")
    return f" Did you mean {one_line(near)!r}?" if near else ""


def _file(folder: Path, written: str) -> Path | None:
    try:
        path = (folder / written).resolve()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a NUL, a loop of links
        return None


class _Caller(NamedTuple):
    """A recipe on the way to another, and whether it is called whatever comes."""

    file: Path
    is_certain: bool


@dataclass
class _Checker:
    """Walks a recipe; those that it calls are walked by others, which find into the same lists."""

    team: TeamSpec | None
    recipe: Recipe
    callers: tuple[_Caller, ...] = ()
    """The recipes on the way to it, itself last while it is walked."""
    faults: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigError] = field(default_factory=list)
    outline: Outline = field(default_factory=Outline)
    seen: set[Path] = field(default_factory=set)
    settled: dict[str, Any] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)
    is_certain: bool = True
    """Whether the step at hand is done whatever comes, and its failure ends the recipe."""

    def check(self, given: set[str], fenced: Set[str] = frozenset()) -> None:
        """Check the recipe.

        Args:
            given: Variables that its caller gives.
            fenced: Those of them whose values are made of what steps gave.
        """
        recipe = self.recipe
        self.warnings += recipe.warnings
        self.outline.recipe(recipe)
        if path := recipe.path.resolve() if recipe.path else None:
            self.seen.add(path)
            self.callers = (*self.callers, _Caller(path, self.is_certain))
        known = {*recipe.context, *recipe.required, *given}
        self.settled, self.fenced = _settled(recipe, given), _fenced(recipe, fenced)
        self.is_certain = True
        with self.outline.inside():
            for placed in recipe.placed_stages:
                with self._only_if(bool(placed.stage.condition)):
                    self._stage(placed, known)

    @contextmanager
    def _only_if(self, has_condition: bool) -> Iterator[None]:
        outer = self.is_certain
        self.is_certain = outer and not has_condition
        yield
        self.is_certain = outer

    def _stage(self, placed: PlacedStage, known: set[str]) -> None:
        stage, path = placed
        who = f"Stage {stage.name!r}"
        self._condition(stage.condition, (*path, "condition"), who, known)
        with self.outline.stage(stage):
            for number, step in enumerate(stage.steps):
                self._step(step, (*path, "steps", number), known)
        self._gate(stage, path, known)

    def _gate(self, stage: Stage, path: Keys, known: set[str]) -> None:
        if stage.gate is None:
            return
        self.outline.gate(stage)
        who = f"The gate of stage {stage.name!r}"
        inside = "approval" if stage.approval.prompt else "approval_message"
        at = (*path, inside, "prompt") if inside == "approval" else (*path, inside)
        for text in _texts(stage.gate.prompt) + _texts(stage.gate.timeout):
            self._text(text, at, who, known)
        for number, condition in enumerate(stage.auto_approve_if):
            self._condition(condition, (*path, "auto_approve_if", number), who, known)

    def _step(self, step: Step, path: Keys, known: set[str]) -> None:
        may_pass = step.condition or step.foreach or step.while_condition
        is_certain = self.is_certain and not may_pass and step.on_error == "fail"
        self.outline.step(step, self._worker(step, path, is_certain))
        self._uses(step, path, known, _BEFORE_LOOP)
        self._loops(step, path)
        inner = {*known, step.as_} if step.foreach else known
        self._uses(step, path, inner, _IN_LOOP)
        with self.outline.inside(), self._only_if(not is_certain):
            for number, each in enumerate(step.steps):
                self._step(each, (*path, "steps", number), inner)
            if step.kind == "recipe":
                self._call(step, path)
        given = (step.output, step.output_exit_code, step.collect)
        inner |= {name for name in given if name}
        self._uses(step, path, inner, ["update_context"])
        inner |= step.update_context.keys()
        self._uses(step, path, inner, ["break_when"])
        known |= inner - ({step.as_} - known if step.foreach else set())

    def _worker(self, step: Step, path: Keys, is_certain: bool) -> str:
        """Return who of the team would do a step, as a run finds it; "" where a value says it."""
        if self.team is None or step.kind != "agent" or step.is_named_by_values:
            return ""
        for what in unknown_names(step, self.team):
            self.warnings.append(self.recipe.fault(f"Step {step.id!r} names {what}", *path))
        try:
            worker = resolve_agent(step, self.team, is_usable)
        except RecipeError as exc:
            findings = self.faults if is_certain else self.warnings
            findings.append(self.recipe.fault(f"Step {step.id!r}: {exc}", *path))
            return ""
        return f"{worker.agent.id} ({worker.why})"

    def _loops(self, step: Step, path: Keys) -> None:
        """Check that a loop has a list, as far as that is known before."""
        name = _ALONE.fullmatch(step.foreach.strip())
        if name and name[1] in self.settled and not _is_list(self.settled[name[1]]):
            what = (
                f"Step {step.id!r} needs a list for `foreach`, and {name[1]!r} of the recipe's "
                "`context` is none. Write `[a, b]`, or let a step give one, with "
                "`parse_json: true`."
            )
            self.warnings.append(self.recipe.fault(what, *path, "foreach"))

    def _call(self, step: Step, path: Keys) -> None:
        """Check the recipe that a step calls, once, when its name is no template."""
        if is_template(step.recipe):
            return
        try:
            found = find_recipe(
                step.recipe, self.recipe.path, self.team.bundles if self.team else {}
            )
        except RecipeError as exc:
            self.faults.append(self.recipe.fault(str(exc), *path, "recipe"))
            return
        way = [caller.file for caller in self.callers]
        if found in way:
            circle = self.callers[way.index(found) + 1 :]
            is_endless = self.is_certain and all(caller.is_certain for caller in circle)
            what = f"Step {step.id!r} calls a recipe that called it; only a condition "
            what += "ends that: give it one." if is_endless else "or `recursion` ends that."
            findings = self.faults if is_endless else self.warnings
            findings.append(self.recipe.fault(what, *path, "recipe"))
        elif found not in self.seen:
            self._called(step, path, found)

    def _called(self, step: Step, path: Keys, file: Path) -> None:
        self.seen.add(file)
        try:
            sub = Recipe.from_file(file)
        except ConfigError as exc:
            self.faults += (exc, *exc.others)
            exc.others = ()
            return
        missing = [name for name in sub.required if name not in step.context]
        if missing:
            what = f"Recipe {sub.name!r} requires {_named(missing)}, which step {step.id!r} "
            self.warnings.append(self.recipe.fault(f"{what}does not give.", *path, "recipe"))
        fenced = {name for name, value in step.context.items() if reads(value) & self.fenced}
        replace(self, recipe=sub).check(set(step.context), fenced)

    def _uses(self, step: Step, path: Keys, known: set[str], keys: list[str]) -> None:
        who = f"Step {step.id!r}"
        for key in keys:
            value, alias = getattr(step, key), type(step).model_fields[key].alias or key
            if key in _CONDITIONS:
                self._condition(value, (*path, alias), who, known)
            else:
                for text in _texts(value):
                    self._text(text, (*path, alias), who, known)
                    if key == "command":
                        self._command(text, (*path, alias), who, known)

    def _command(self, text: str, path: Keys, who: str, known: set[str]) -> None:
        """Check that values stand where they stay data."""
        try:
            found = misplaced(
                text,
                lambda name: _is_known(name, known),
                {*known, *RESERVED, *_NUMBERS} - self.fenced,
            )
        except RecipeError:  # it is no template, which was told
            return
        for each in found:
            line = text.split("\n")[each.line - 1].strip()
            findings = self.faults if each.is_fault else self.warnings
            findings.append(placed(self.recipe, f"{who}: {each.what}", path, line))

    def _condition(self, text: str, path: Keys, who: str, known: set[str]) -> None:
        if not text:
            return
        try:
            names = parse(text).variables
        except RecipeError as exc:
            self.faults.append(self.recipe.fault(_unreadable(who, path, exc), *path))
        else:
            self._known(names, path, who, known)

    def _text(self, text: str, path: Keys, who: str, known: set[str]) -> None:
        try:
            names = variables(text)
        except RecipeError as exc:
            self.faults.append(self.recipe.fault(_unreadable(who, path, exc), *path))
            return
        plain = tuple(name for name in names if _PLAIN.fullmatch(name))
        self._known(plain, path, who, known)
        others = {name for name in names if name not in plain and _is_known(name, known)}
        foreign = [
            b[0]
            for b in _BRACES.finditer(text)
            if not _UNDERSTOOD.fullmatch(b[0]) and b[0].strip("{} \t") not in others
        ]
        if foreign:
            more = f" ({len(foreign) - 1} more such)" if len(foreign) > 1 else ""
            what = (
                f"{who} has {one_line(foreign[0])}, which is not a template here and stays as it is"
            )
            self.warnings.append(placed(self.recipe, f"{what}{more}.", path, foreign[0]))

    def _known(self, names: tuple[str, ...], path: Keys, who: str, known: set[str]) -> None:
        for name in names:
            if not _is_known(name, known):
                near = nearest(name.partition(".")[0], [*known, *RESERVED])
                hint = f" Did you mean {{{{{near}}}}}?" if near and near not in name else ""
                what = f"{who} uses {{{{{name}}}}}, which nothing sets before it.{hint}"
                self.warnings.append(placed(self.recipe, what, path, name))


def _is_list(value: object) -> bool:
    return isinstance(value_of(value) if isinstance(value, str) else value, list)


def _settled(recipe: Recipe, given: set[str]) -> dict[str, Any]:
    """Return the values that stay what the recipe says, by name.

    An empty one is there to be given; an index is a number.
    """
    changed: set[str | None] = {*given}
    for step in recipe.walk():
        changed |= {step.output, step.output_exit_code, step.collect, step.as_}
        changed |= step.update_context.keys()
    index = {"index": 0}
    settled = {
        name: value
        for name, value in recipe.context.items()
        if name not in changed and value not in (None, "")
    }
    return {**settled, "step": index, "stage": index, "_loop_index": 0, "_loop_iteration": 1}


def _fenced(recipe: Recipe, given: Set[str]) -> set[str]:
    """Return the names of the values that are a step's, or made of such."""
    steps = list(recipe.walk())
    fenced = {*given, "_approval_message"}
    fenced |= {name for s in steps for name in (s.output, s.output_exit_code, s.collect) if name}
    made = [(step.as_, step.foreach) for step in steps if step.foreach]
    made += [each for step in steps for each in step.update_context.items()]
    while more := {name for name, value in made if name not in fenced and reads(value) & fenced}:
        fenced |= more
    return fenced


def _unreadable(who: str, path: Keys, exc: RecipeError) -> str:
    key = next(part for part in reversed(path) if isinstance(part, str))
    return f"{who}: `{key}` can't be read: {exc}"


def _is_known(name: str, known: set[str]) -> bool:
    first, _, rest = name.partition(".")
    if first in known or first.startswith("_"):  # those the run sets begin with it
        return True
    return first in RESERVED and (not rest or rest in RESERVED[first])


def _texts(value: object) -> list[str]:
    """Return the texts inside a value that may have templates."""
    return [text for text in texts_in(value) if "{" in text]


def _named(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(repr(one_line(name)) for name in names)
