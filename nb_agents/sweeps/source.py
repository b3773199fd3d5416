"""Reading the rows of a sweep from a file, a data frame or an iterable.

A row's name is derived from its values only, so that the row is recognised in a source that has
grown or was reordered.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from nb_agents.errors import UserError

MAX_ROWS = 100_000
"""Rows of a source; each gets a directory of its own."""

MAX_NAME = 32
"""Characters of a row's name that are taken from its first value."""

VALUE = "value"
"""Name of the column when a source's rows are plain values."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a sweep's source.

    Attributes:
        name: The id of the row's session.
        values: JSON values by column.
    """

    name: str
    values: Mapping[str, Any]


def source_name(source: object) -> str:
    """Return the name of a source: a file's absolute path, else the type's name."""
    if isinstance(source, str | os.PathLike):
        return str(Path(source).expanduser().absolute())
    return type(source).__name__


def read_rows(source: Any) -> tuple[Row, ...]:
    """Read all rows of a source.

    Args:
        source: A CSV, JSONL or Parquet file, a pandas DataFrame, or an iterable of mappings or of
            plain values, which become the column `VALUE`.

    Returns:
        The rows in order; equal rows get different names.

    Raises:
        UserError: The source can't be read, is of an unknown kind, or has no rows or too many.
    """
    records = list(islice(_records(source), MAX_ROWS + 1))
    if not records:
        raise UserError(f"There are no rows in {source_name(source)}.")
    if len(records) > MAX_ROWS:
        raise UserError(f"{source_name(source)} has over {MAX_ROWS} rows. Split it.")
    seen = Counter[str]()
    return tuple(_row(_plain(record), seen) for record in records)


def _records(source: Any) -> Iterator[Any]:
    if isinstance(source, str | os.PathLike):
        yield from _file(Path(source).expanduser())
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):  # a data frame
        yield from _frame(source)
    elif isinstance(source, Iterable) and not isinstance(source, Mapping):
        yield from source
    else:
        raise UserError(
            f"A source of type {type(source).__name__!r} has no rows. Give a CSV, JSONL or Parquet "
            "file, a DataFrame, or a list of mappings."
        )


def _file(path: Path) -> Iterator[Any]:
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        kind = path.suffix or "no suffix"
        known = ", ".join(readers)
        raise UserError(f"{path} has {kind}; a file of rows has one of {known}.")
    try:
        yield from reader(path)
    except OSError as exc:
        why = f"{exc.strerror or exc} (looked from {Path.cwd()})"
        raise UserError(f"{path} can't be read: {why}. Check the path.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except csv.Error as exc:
        raise UserError(f"{path} is not valid CSV: {exc}.") from None


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restval="")
        for row in reader:
            if None in row:
                raise UserError(f"{path}:{reader.line_num} has more values than there are columns.")
            yield row


def _jsonl(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as exc:
                raise UserError(f"{path}:{number} is not valid JSON: {exc}.") from None


def _parquet(path: Path) -> Iterator[Any]:
    try:
        frame = import_module("pandas").read_parquet(path)
    except ImportError:
        raise UserError(
            "Parquet files need pandas and pyarrow: `pip install pandas pyarrow`."
        ) from None
    except ValueError as exc:
        raise UserError(f"{path} is not a Parquet file: {exc}.") from None
    yield from _frame(frame)


def _frame(frame: Any) -> Iterator[Any]:
    """Yield a data frame's rows, with None for missing values of any kind."""
    yield from frame.astype(object).where(frame.notna(), None).to_dict("records")


def _plain(record: Any) -> dict[str, Any]:
    """Return a record's values as JSON values."""
    values = record if isinstance(record, Mapping) else {VALUE: record}
    plain: dict[str, Any] = to_jsonable_python(
        {str(name): value for name, value in values.items()},
        fallback=lambda each: each.tolist() if hasattr(each, "tolist") else str(each),  # numpy's
    )
    return plain


def _row(values: dict[str, Any], seen: Counter[str]) -> Row:
    text = json.dumps(values, sort_keys=True)
    digest = sha256(f"{text}{seen[text] or ''}".encode()).hexdigest()[:8]
    seen[text] += 1
    first = next((str(value) for value in values.values() if str(value).strip()), "")
    words = re.sub(r"[^a-z0-9]+", "-", first.lower())[:MAX_NAME].strip("-")
    return Row(f"{words or 'row'}-{digest}", values)
