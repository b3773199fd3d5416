"""The verb that applies proposals to a notebook's file, for notebooks that no page has open."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from getpass import getuser
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.cell_events import (
    CellsState,
    ChangeDecided,
    ChangesReverted,
)
from nb_agents.extensions.notebook_cells.cell_verbs import record, state_of
from nb_agents.extensions.notebook_cells.cells import cells_in, parse_notebook, source_of
from nb_agents.extensions.notebook_cells.changes import Applied, apply_changes, describe
from nb_agents.extensions.notebook_cells.notebook_files import MAX_FILE_BYTES, notebook_path
from nb_agents.extensions.notebook_cells.reverting import RevertPlan, apply_steps, plan_revert
from nb_agents.extensions.notebook_cells.rewinding import changes_named
from nb_agents.launch.run import Run
from nb_agents.nouns import count
from nb_agents.presentation.asking import CELL
from nb_agents.session.lookup import current_origin
from nb_agents.verbs.outcome import Reply
from nb_agents.verbs.verb import REQUIRED, Caller, Parameter, Verb


def apply(run: Run, caller: Caller, *, notebook: str, out: str | None = None) -> Reply:
    """Apply the open proposals of a turn to a notebook's file, which must not be open in a page.

    If the turn started with a rewind, first take back the changes after its checkpoint.

    Args:
        run: The turn.
        caller: The user interface that makes the request.
        notebook: The path of the notebook.
        out: The path of a changed copy to write instead. The proposals then stay open.

    Raises:
        UserError: The file is not a notebook, is open in the calling notebook, or can't be
            written.
    """
    path, target = Path(notebook).expanduser(), Path(out or notebook).expanduser()
    if caller.entry_point is CELL and _is_open_here(run, target):
        raise UserError(
            f"{target} is the notebook that runs this cell. Accept the proposals in the page, or "
            "write a copy with --out."
        )
    state = state_of(run)
    if not state.open and not state.is_revert_open:
        return Reply("There are no open proposals.", {"applied": [], "stale": []})
    try:
        data = read_file(path, MAX_FILE_BYTES)
    except OSError as exc:
        raise UserError(f"{path} can't be read: {exc.strerror or exc}.") from None
    before = _parsed(data, path)
    plan = _revert_plan(run, state, before)
    applied = apply_changes(apply_steps(before, plan), state.open)
    if applied.done or plan.steps:
        _write(target, notebook_text(applied.notebook), None if out else data)
    if not out:
        for event in (*_reverts(state, plan), *_decisions(applied)):
            record(run, event)
    stale = [describe(each) for each in state.open if each.number in applied.stale]
    lines = [f"Applied {count(len(applied.done), 'change')} to {target}.", *plan.lines]
    lines += [f"Not applied, because the cell has changed: {each}." for each in stale]
    return Reply("\n".join(lines), {"applied": [*applied.done], "stale": [*applied.stale]})


def notebook_text(notebook: Mapping[str, Any]) -> str:
    """Return a notebook as JSON text, formatted as JupyterLab does."""
    cells = [{**each, "source": source_of(each).splitlines(True)} for each in notebook["cells"]]
    return json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


def _revert_plan(run: Run, state: CellsState, notebook: Mapping[str, Any]) -> RevertPlan:
    """Return how to take back the changes after the checkpoint of a rewind, if there are any."""
    names = state.revert.changes if state.revert and state.is_revert_open else ()
    return plan_revert(cells_in(notebook), changes_named(run.path.parent, names))


def _reverts(state: CellsState, plan: RevertPlan) -> Iterator[ChangesReverted]:
    if state.is_revert_open:
        names = (*plan.done, *(name for step in plan.steps for name in step.changes))
        kept = tuple(each.cell for each in plan.kept)
        yield ChangesReverted(changes=names, kept=kept, by=getuser())


def _decisions(applied: Applied) -> Iterator[ChangeDecided]:
    user = getuser()
    for number, cell in applied.done.items():
        removed, above = applied.before[number]
        yield ChangeDecided(
            number=number, how="accepted", by=user, cell=cell, removed=removed, above=above
        )
    for number in applied.stale:
        yield ChangeDecided(number=number, how="stale", by=user)


def _is_open_here(run: Run, target: Path) -> bool:
    root = run.path.parents[1]
    here = notebook_path(current_origin(root), root)
    return here is not None and here.resolve() == target.resolve()


def _parsed(data: bytes, path: Path) -> dict[str, Any]:
    try:
        return parse_notebook(data)
    except UserError as exc:
        raise UserError(f"{path}: {exc}") from None


def _write(target: Path, text: str, before: bytes | None) -> None:
    """Write a notebook in one step.

    Args:
        target: The file.
        text: The new content.
        before: The content that the file must still have, or None for a new file.
    """
    temp: Path | None = None
    try:
        # A new name, because an agent may have put a link at one that it can guess.
        with NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
            temp = Path(file.name)
            file.write(text.encode())
        if before is not None:
            shutil.copymode(target, temp)
            if read_file(target, MAX_FILE_BYTES) != before:
                raise UserError(f"{target} was changed by another program. Try again.")
        os.replace(temp, target)
    except OSError as exc:
        raise UserError(f"{target} can't be written: {exc.strerror or exc}.") from None
    finally:
        if temp is not None:
            temp.unlink(missing_ok=True)


APPLY = Verb(
    "apply",
    apply,
    "turn",
    (
        Parameter("notebook", "the notebook's file", REQUIRED, metavar="NOTEBOOK"),
        Parameter(
            "out", "write a changed copy instead of the file", None, is_option=True, metavar="FILE"
        ),
    ),
    needs_name=True,
)
