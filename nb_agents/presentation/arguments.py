"""Completion of a command's arguments, and the values that a cell passes to a recipe."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nb_agents.config.document import SCALAR_ERRORS
from nb_agents.errors import TaskError
from nb_agents.session.layout import session_root, sessions_in

MAX_FILES = 200
_NAME = re.compile(r"(\\?)(\{\{\s*([^\W\d][\w .-]*?)\s*\}\})")
"""What can be meant as a variable of the notebook, and hardly as another's template."""


def session_names() -> list[str]:
    """Return the names of the sessions on disk, the one used last first."""
    return [path.name for path in sessions_in(session_root()).by_use]


def files_at(word: str) -> list[str]:
    """Return the directories, team files and recipes that complete a path."""
    head, slash, begun = word.rpartition("/")
    folder = Path(f"{head}{slash}").expanduser()
    try:
        found = sorted(p for p in folder.iterdir() if p.name.startswith(begun))[:MAX_FILES]
    except OSError:
        return []
    # A word ends at a space, and what is hidden is asked for by its dot.
    shown = [p for p in found if " " not in p.name and (begun or p.name[0] != ".")]
    of_ours = [p for p in shown if p.is_dir() or p.suffix in (".yaml", ".yml", ".json", ".zip")]
    return [f"{head}{slash}{p.name}{'/' if p.is_dir() else ''}" for p in of_ours]


def context_of(cell: str, settings: Sequence[str], names: Mapping[str, Any]) -> dict[str, Any]:
    r"""Return the initial context of a recipe from a cell and its line.

    Args:
        cell: The cell's text: YAML, ``name: value`` a line. ``{{variable}}`` takes a variable of
            the notebook as it is, a list as a list; within other text it is put in as text.
            ``\{{variable}}`` stays ``{{variable}}``.
        settings: ``name=value`` of the cell's line, values as YAML; they win.
        names: The notebook's variables.

    Returns:
        The values by name.

    Raises:
        TaskError: The text is not a YAML mapping, or a variable is not defined.

    Example:
        >>> context_of("files: {{found}}", ["depth=2"], {"found": ["a.md"]})
        {'files': ['a.md'], 'depth': 2}
    """
    marks = _Marks(names)
    read = _yaml(marks.put_into(cell))
    if not isinstance(read, dict | None):
        raise TaskError(
            "Below --recipe the cell holds the recipe's values, one `name: value` a line."
        )
    given = {marks.text(name): marks.value(value) for name, value in (read or {}).items()}
    return given | dict(map(_setting, settings))


class _Marks:
    """Placeholders for variables while the YAML around them is parsed.

    So no variable's value is parsed as YAML, whatever it contains.

    Args:
        names: The notebook's variables.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._stem = f"nb{secrets.token_hex(8)}"
        self._mark = re.compile(rf"{self._stem}_(\d+)_")
        self._found: list[re.Match[str]] = []

    def put_into(self, cell: str) -> str:
        def mark(found: re.Match[str]) -> str:
            self._found.append(found)
            return f"{self._stem}_{len(self._found) - 1}_"

        return _NAME.sub(mark, cell)

    def value(self, value: Any) -> Any:
        """Return a value of the YAML with its variables filled in."""
        if isinstance(value, dict):
            return {self.text(k): self.value(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if isinstance(value, str) and (whole := self._mark.fullmatch(value)):
            return self._meant(whole)
        return self.text(value) if isinstance(value, str) else value

    def text(self, value: Any) -> str:
        return self._mark.sub(lambda mark: str(self._meant(mark)), str(value))

    def _meant(self, mark: re.Match[str]) -> Any:
        return _meant(self._found[int(mark[1])], self._names, "cell")


def fill_in(task: str, names: Mapping[str, Any]) -> str:
    r"""Replace the names of notebook variables in a task with their values.

    Args:
        task: The cell's text; ``{{name}}`` takes a variable, ``\{{name}}`` stays ``{{name}}``.
        names: The notebook's variables.

    Returns:
        The task.

    Raises:
        TaskError: A name is not defined, or can't be a variable's.
    """
    return _NAME.sub(lambda found: str(_meant(found, names, "task")), task)


def _meant(found: re.Match[str], names: Mapping[str, Any], where: str) -> Any:
    escaped, braces, name = found.groups()
    if escaped:
        return braces
    if name in names:
        return names[name]
    why = f"no variable {name!r} is defined. Define it in a cell before"
    if not name.isidentifier():
        why = "no variable of the notebook can be called that. Put the value into one"
    raise TaskError(
        f"The {where} uses {{{{{name}}}}}, and {why}, or write \\{{{{{name}}}}} for the braces "
        "themselves."
    )


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise TaskError(f"--set {text} is not NAME=VALUE. Write, for example, --set depth=2.")
    return name.strip(), _yaml(value)


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, *SCALAR_ERRORS) as exc:
        place = getattr(exc, "problem_mark", None)
        where = f" (line {place.line + 1} of it)" if place else ""
        raise TaskError(
            f"The recipe's values are not valid YAML{where}: write `name: value`, and text with "
            "a colon or a `#` in quotes."
        ) from None
