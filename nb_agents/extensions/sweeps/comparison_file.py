"""The part of ``sweep.json`` that makes a sweep a comparison of two teams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from nb_agents.extensions.sweeps.comparison import (
    ComparisonSpec,
    ComparisonVerdict,
    unscored_reason,
    verdict_of,
)
from nb_agents.extensions.sweeps.notes import NoteReader, RowBegan, RowResult
from nb_agents.extensions.sweeps.sweep_file import SWEEP_FILE
from nb_agents.extensions.sweeps.sweep_fold import fold_notes
from nb_agents.session.views import read_json

COMPARISON = "comparison"
"""The key of a comparison in ``sweep.json``."""


@cache
def _spec_type() -> TypeAdapter[ComparisonSpec]:
    return TypeAdapter(ComparisonSpec)


def comparison_document(spec: ComparisonSpec, identity: str) -> dict[str, Any]:
    """Return a comparison as JSON data.

    Args:
        identity: Identifies the teams and the order of the rows. Results under another identity
            belong to another comparison.
    """
    return {**asdict(spec), "identity": identity}


def identity_at(path: Path) -> str | None:
    """Return the identity of the comparison in a directory, "" for a sweep, None for neither."""
    about = read_json(path / SWEEP_FILE)
    if not about:
        return None
    document = about.get(COMPARISON)
    return str(document.get("identity", "")) if isinstance(document, dict) else ""


def comparison_at(path: Path) -> ComparisonSpec | None:
    """Return the comparison in a sweep's directory, or None if it is another kind of sweep."""
    document = read_json(path / SWEEP_FILE).get(COMPARISON)
    if not isinstance(document, dict):
        return None
    try:
        return _spec_type().validate_python(document)
    except ValidationError:  # the file was edited
        return None


class ComparisonOnDisk(NamedTuple):
    """A comparison, as its files describe it.

    Attributes:
        spec: What is compared.
        verdict: The verdict so far.
        results: The results of both teams' rows, by the names of their sessions.
        unscored: The first row that was left out, and why it has no score. Empty texts if none was.
        values: The values of this row and of the verdict's rows that differ most as short text, by
            the names of their sessions.
    """

    spec: ComparisonSpec
    verdict: ComparisonVerdict
    results: Mapping[str, RowResult]
    unscored: tuple[str, str]
    values: Mapping[str, Mapping[str, str]]


def read_comparison(path: Path) -> ComparisonOnDisk | None:
    """Return the comparison in a sweep's directory, or None if it is another kind of sweep."""
    spec = comparison_at(path)
    if spec is None:
        return None
    fold = fold_notes(path)
    verdict = verdict_of(spec, fold.results, fold.change.reason)
    unscored = unscored_reason(spec, fold.results) if verdict.rows_unscored else ("", "")
    names = {unscored[0], *(row for row, _ in verdict.different)}
    return ComparisonOnDisk(spec, verdict, fold.results, unscored, _values(path, names))


def _values(path: Path, rows: set[str]) -> dict[str, Mapping[str, str]]:
    """Return the recorded values of rows of the source, by their names."""
    values, reader = dict[str, Mapping[str, str]](), NoteReader(path)
    while notes := reader.read():
        for _, note in notes:
            if isinstance(note, RowBegan) and note.row[:-2] in rows:
                values[note.row[:-2]] = note.values
    return values
