"""Reads the rows of a sweep from a file, a data frame or an iterable.

A row's name is derived only from its values, so a row is recognized in a source that has grown or
was reordered.
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

from nb_agents.disk.names import as_on_disk
from nb_agents.errors import UserError
from nb_agents.json_text import plain

MAX_ROWS = 100_000
"""Maximum number of rows in a source. Each row gets its own directory."""

MAX_NAME = 32
"""Maximum number of characters of a row's first value that become part of its name."""

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars (|)"}
_SAMPLE = 50
"""Number of lines to read when detecting a file's separator."""

VALUE = "value"
"""The name of the column if a source's rows are plain values."""


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
    """Return the name of a source: the absolute path of a file, or the name of its type."""
    if isinstance(source, str | os.PathLike):
        return str(as_on_disk(Path(source).expanduser().absolute()))
    return type(source).__name__


def read_rows(source: Any) -> tuple[Row, ...]:
    """Read all rows of a source.

    Args:
        source: A CSV, JSONL or Parquet file, a pandas DataFrame, or an iterable of mappings or of
            plain values, which become the column `VALUE`.

    Returns:
        The rows in order. Equal rows get different names.

    Raises:
        UserError: The source can't be read, has an unknown type, has no rows, or has too many.
    """
    records = list(islice(_records(source), MAX_ROWS + 1))
    if not records:
        raise UserError(f"{source_name(source)} has no rows.")
    if len(records) > MAX_ROWS:
        raise UserError(f"{source_name(source)} has more than {MAX_ROWS} rows. Split it.")
    counts = Counter[str]()
    return tuple(_row(_values(record), counts) for record in records)


def _records(source: Any) -> Iterator[Any]:
    if isinstance(source, str | os.PathLike):
        yield from _file(as_on_disk(Path(source).expanduser()))
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):  # a data frame
        yield from _frame(source)
    elif isinstance(source, Iterable) and not isinstance(source, Mapping):
        yield from source
    else:
        raise UserError(
            f"A source of type {type(source).__name__!r} has no rows. Use a CSV, JSONL or Parquet "
            "file, a DataFrame, or a list of mappings."
        )


def _file(path: Path) -> Iterator[Any]:
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        suffix = path.suffix or "no suffix"
        suffixes = ", ".join(readers)
        raise UserError(f"{path} has {suffix}. Supported suffixes are {suffixes}.")
    try:
        yield from reader(path)
    except OSError as exc:
        why = f"{exc.strerror or exc} (working directory: {Path.cwd()})"
        raise UserError(f"{path} can't be read: {why}. Check the path.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except csv.Error as exc:
        raise UserError(f"{path} is not valid CSV: {exc}.") from None


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        _check_separator(path, list(islice(file, _SAMPLE)))
        file.seek(0)
        reader = csv.DictReader(file, restval="")
        _check_names(str(path), reader.fieldnames or ())
        for row in reader:
            if None in row:
                raise UserError(f"{path}:{reader.line_num} has more values than columns.")
            yield row


def _check_separator(path: Path, lines: list[str]) -> None:
    """Raise `UserError` for a file that uses a separator other than a comma."""
    first = "".join(lines[:1]).strip()
    if first.lower() == "sep=,":
        raise UserError(
            f"{path} starts with a separator line for Excel ({first!r}). Remove this line."
        )
    for separator, name in _SEPARATORS.items():
        if first.lower() == f"sep={separator}" or _is_table(lines, separator):
            raise UserError(f"{path} uses {name} as separators. Save it with commas.")


def _is_table(lines: list[str], separator: str) -> bool:
    widths = {len(row) for row in csv.reader(lines, delimiter=separator) if row}
    return len(widths) == 1 and widths != {1} and len(next(csv.reader(lines))) == 1


def _check_names(source: str, names: Iterable[object]) -> None:
    """Raise `UserError` for a duplicate column name, because one column would hide the other."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{source} has two columns {str(twice)!r}. Rename one of them.")


def _jsonl(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line, object_pairs_hook=_unique_keys)
            except _DuplicateError as exc:
                raise UserError(f"{path}:{number} has the key {str(exc)!r} twice.") from None
            except ValueError as exc:
                raise UserError(f"{path}:{number} is not valid JSON: {exc}.") from None


class _DuplicateError(Exception):
    """Raised when a JSON object contains a key twice."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _DuplicateError(next(key for key, n in Counter(k for k, _ in pairs).items() if n > 1))
    return mapping


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
    """Yield a data frame's rows. Missing values of any kind become None."""
    _check_names("The data frame", frame.columns)
    yield from frame.astype(object).where(frame.notna(), None).to_dict("records")


def _values(record: Any) -> dict[str, Any]:
    """Return a record's values as JSON values. Missing values become None."""
    values = record if isinstance(record, Mapping) else {VALUE: record}
    converted: dict[str, Any] = plain(
        {str(name): value for name, value in values.items()},
        fallback=lambda each: each.tolist() if hasattr(each, "tolist") else str(each),  # numpy's
    )
    return converted


def _row(values: dict[str, Any], counts: Counter[str]) -> Row:
    text = json.dumps(values, sort_keys=True)
    digest = sha256(f"{text}{counts[text] or ''}".encode()).hexdigest()[:8]
    counts[text] += 1
    first = next((str(value) for value in values.values() if str(value).strip()), "")
    words = re.sub(r"[^a-z0-9]+", "-", first.lower())[:MAX_NAME].strip("-")
    return Row(f"{words or 'row'}-{digest}", values)
