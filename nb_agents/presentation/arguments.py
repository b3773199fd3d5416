"""Completes arguments, and reads the values that a cell passes to a recipe."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nb_agents.config.document import SCALAR_ERRORS
from nb_agents.disk.names import as_on_disk, composed
from nb_agents.errors import TaskError
from nb_agents.session.layout import session_root, sessions_in

MAX_FILES = 200
_SUFFIXES = frozenset({".yaml", ".yml", ".json", ".zip", ".nbar"})
"""Suffixes of the files that commands take: team files, recipes, exports and recordings."""
_NAME = re.compile(r"(\\?)(\{\{\s*([^\W\d][\w .-]*?)\s*\}\})")
"""Matches ``{{name}}`` where it can refer to a notebook variable."""


def session_names() -> list[str]:
    """Return the names of the sessions on disk, most recently used first."""
    return [path.name for path in sessions_in(session_root()).by_use]


def complete_path(word: str) -> list[str]:
    """Return the directories and files for commands whose paths start with a string."""
    head, slash, start = word.rpartition("/")
    folder, start = as_on_disk(Path(f"{head}{slash}").expanduser()), composed(start)
    try:
        matches = sorted(p for p in folder.iterdir() if composed(p.name).startswith(start))[
            :MAX_FILES
        ]
    except OSError:
        return []
    # Names with spaces can't be completed. Hidden files are offered only after a dot.
    completions = [p for p in matches if " " not in p.name and (start or p.name[0] != ".")]
    usable = [p for p in completions if p.is_dir() or p.suffix in _SUFFIXES]
    return [f"{head}{slash}{p.name}{'/' if p.is_dir() else ''}" for p in usable]


def recipe_context(cell: str, settings: Sequence[str], names: Mapping[str, Any]) -> dict[str, Any]:
    r"""Return the initial context of a recipe from a cell and its line.

    Args:
        cell: The cell's text as YAML, with one ``name: value`` per line. ``{{variable}}`` alone is
            replaced with the notebook variable, which keeps its type, such as a list. Within other
            text, it is inserted as text. ``\{{variable}}`` stays ``{{variable}}``.
        settings: ``name=value`` options of the cell's line, with YAML values. They override the
            cell.
        names: The notebook's variables.

    Returns:
        The values by name.

    Raises:
        TaskError: The text is not a YAML mapping, or a variable is not defined.

    Example:
        >>> recipe_context("files: {{found}}", ["depth=2"], {"found": ["a.md"]})
        {'files': ['a.md'], 'depth': 2}
    """
    marks = _Marks(names)
    data = _yaml(marks.put_into(cell))
    if not isinstance(data, dict | None):
        raise TaskError(
            "A cell with --recipe contains the recipe's values, one `name: value` per line."
        )
    values = {marks.text(name): marks.value(value) for name, value in (data or {}).items()}
    return values | dict(map(_setting, settings))


class _Marks:
    """Placeholders for variables while the YAML around them is parsed.

    With them, the value of a variable is never parsed as YAML.

    Args:
        names: The notebook's variables.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._stem = f"nb{secrets.token_hex(8)}"
        self._mark = re.compile(rf"{self._stem}_(\d+)_")
        self._matches: list[re.Match[str]] = []

    def put_into(self, cell: str) -> str:
        def mark(match: re.Match[str]) -> str:
            self._matches.append(match)
            return f"{self._stem}_{len(self._matches) - 1}_"

        return _NAME.sub(mark, cell)

    def value(self, value: Any) -> Any:
        """Return a value from the YAML with its variables filled in."""
        if isinstance(value, dict):
            return {self.text(k): self.value(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if isinstance(value, str) and (whole := self._mark.fullmatch(value)):
            return self._resolve(whole)
        return self.text(value) if isinstance(value, str) else value

    def text(self, value: Any) -> str:
        return self._mark.sub(lambda mark: str(self._resolve(mark)), str(value))

    def _resolve(self, mark: re.Match[str]) -> Any:
        return _resolve(self._matches[int(mark[1])], self._names, "cell")


def insert_variables(task: str, names: Mapping[str, Any]) -> str:
    r"""Replace the names of notebook variables in a task with their values.

    Args:
        task: The cell's text. ``{{name}}`` inserts a variable, ``\{{name}}`` stays ``{{name}}``.
        names: The notebook's variables.

    Raises:
        TaskError: A name is not defined, or is not a valid variable name.
    """
    return _NAME.sub(lambda match: str(_resolve(match, names, "task")), task)


def _resolve(match: re.Match[str], names: Mapping[str, Any], where: str) -> Any:
    escaped, braces, name = match.groups()
    if escaped:
        return braces
    if name in names:
        return names[name]
    why = f"variable {name!r} is not defined. Define it in an earlier cell"
    if not name.isidentifier():
        why = "that is not a valid variable name. Assign the value to a variable"
    raise TaskError(
        f"The {where} uses {{{{{name}}}}}, but {why}, or write \\{{{{{name}}}}} for literal braces."
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
        mark = getattr(exc, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise TaskError(
            f"The recipe's values are not valid YAML{where}. Write `name: value`, and quote text "
            "with a colon or a `#`."
        ) from None
