"""Where the agents of a turn find their notebook: in an open page, or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.cells import Cell, cells_in, parse_notebook
from nb_agents.loop import interrupt_source
from nb_agents.session.lookup import TERMINAL_ORIGIN
from nb_agents.turns.turn_spec import TurnSpec
from nb_agents.unicode import json_text

MAX_FILE_BYTES = 50_000_000
"""Maximum size of a notebook's file that is read when no page is open."""

NO_PAGE = (
    "No open page shows this run in a notebook, and the notebook's file can't be read. Continue "
    "without the notebook."
)
NO_NOTEBOOK = (
    "The run was not started in a notebook. The user can name a notebook's file with --on FILE. "
    "Continue without the notebook."
)
_PLAIN = frozenset({"stream", "error"})


class NotebookPlace(NamedTuple):
    """Where a turn finds its notebook.

    Attributes:
        path: The notebook's file, or None if it is unknown.
        has_page: Whether an open page may show the run.
        is_own: Whether the user named the file for this run, so it is open in no page.
        is_executing: Whether the notebook is being executed without a user, as in nbclient.
    """

    path: Path | None
    has_page: bool = True
    is_own: bool = False
    is_executing: bool = False


def place_of(spec: TurnSpec) -> NotebookPlace:
    """Return where a turn of this process finds its notebook."""
    if spec.options.notebook_file is not None:
        path = Path(spec.options.notebook_file).expanduser().absolute()
        return NotebookPlace(path, has_page=False, is_own=True)
    path_here = notebook_path(spec.origin, spec.paths.root)
    is_executing = interrupt_source() == "notebook"
    has_page = spec.origin != TERMINAL_ORIGIN and not is_executing
    return NotebookPlace(path_here, has_page, is_executing=is_executing)


def notebook_path(origin: str, root: Path) -> Path | None:
    """Return the path of the notebook that started a turn, or None if it is unknown.

    Args:
        origin: The turn's origin.
        root: The session root, to which the path is relative.
    """
    kind, _, path = origin.partition(":")
    return root / path if kind == "notebook" and path else None


def read_notebook(place: NotebookPlace) -> dict[str, Any]:
    """Return the JSON of a turn's notebook, from its file.

    Raises:
        UserError: There is no file, or it can't be read.
    """
    if place.path is None:
        raise UserError(NO_PAGE if place.has_page or place.is_executing else NO_NOTEBOOK)
    try:
        return parse_notebook(read_file(place.path, MAX_FILE_BYTES))
    except OSError as exc:
        if place.is_own:
            why = exc.strerror or exc
            raise UserError(f"{place.path.name} can't be read: {why}.") from None
        raise UserError(NO_PAGE) from None


def find_cell(place: NotebookPlace, name: str) -> Cell | None:
    """Return the cell with an id from the notebook's file, or None.

    Raises:
        UserError: The file can't be read.
    """
    cells = cells_in(read_notebook(place))
    return next((each for each in cells if each.id == name), None)


def kernel_name(notebook: Mapping[str, Any]) -> str:
    """Return the name of a notebook's kernelspec, or ""."""
    metadata = notebook.get("metadata")
    spec = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    name = spec.get("name") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


def is_trusted(notebook: Mapping[str, Any]) -> bool:
    """Return whether the user has trusted a notebook's outputs, or it has none but text.

    Jupyter stores a signature of each notebook whose outputs the user made or trusted.
    """
    outputs = [
        each
        for cell in notebook["cells"]
        if isinstance(cell.get("outputs"), list)
        for each in cell["outputs"]
    ]
    if all(isinstance(each, dict) and each.get("output_type") in _PLAIN for each in outputs):
        return True
    try:
        nbformat, sign = import_module("nbformat"), import_module("nbformat.sign")
        notary = sign.NotebookNotary()
        try:
            return bool(notary.check_signature(nbformat.reads(json_text(notebook), as_version=4)))
        finally:
            notary.store.close()
    except Exception:  # without nbformat, or with a notebook or a database that it can't read
        return False
