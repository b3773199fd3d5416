"""The data store, shared by the agents and functions of a session, in SQLite.

One file a session; values are JSON, by key, in namespaces. Every operation is one transaction that
opens the file: threads, agents and processes may use it concurrently, nothing has to be closed, and
`kill -9` loses at most the current transaction. A bulk operation is atomic; a stop during it rolls
it back, so a resumed run repeats it from the start.

Source: the operations are those of gofannon's ``data_store``; there, a stop leaves a bulk operation
half done.
"""

from __future__ import annotations

import copy
import json
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import JsonValue

from nb_agents.cancel import checkpoint
from nb_agents.errors import UserError
from nb_agents.tools.base import ToolContext

DEFAULT_NAMESPACE = "default"
FILE_NAME = "data_store.sqlite"
"""In a session's directory."""

MAX_FILE_BYTES = 100_000_000
MAX_NAME_CHARS = 1000
"""The longest key or namespace."""
MAX_VALUE_CHARS = 1_000_000
"""The longest value, as JSON."""
MAX_OPERATIONS = 10_000
"""How many operations are recorded."""
MAX_PREVIEW_CHARS = 200

WAIT_S = 10.0
"""Seconds that an operation waits for others to end."""
_TRY_S = 0.1
"""Seconds that SQLite itself waits for a lock; a stop is checked in between."""

_VERSION = 1
"""Of the tables: 1, these."""
_TABLES = f"""
CREATE TABLE entries (
    namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, metadata TEXT NOT NULL,
    set_by TEXT NOT NULL, set_at TEXT NOT NULL, PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
CREATE TABLE operations (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, by TEXT NOT NULL, name TEXT NOT NULL,
    namespace TEXT NOT NULL, about TEXT NOT NULL
);
PRAGMA user_version = {_VERSION};
"""

T = TypeVar("T")


class Entry(NamedTuple):
    """A value, its metadata, who set it last (an agent's id, or ""), and when (UTC)."""

    value: JsonValue
    metadata: JsonValue
    by: str
    at: str


class Operation(NamedTuple):
    """A use of the store: when (UTC), by whom, what and where; its keys and values, cut."""

    at: str
    by: str
    name: str
    namespace: str
    about: str


class DataStore:
    """Values by key, in one namespace of a file.

    Keys and namespaces are any text, values and metadata what JSON can say. Every operation begins
    with `nb_agents.checkpoint`: within a run that is being stopped, none is done. Those over many
    keys ask between the keys, too, and then do nothing.

    Args:
        path: The file, ``data_store.sqlite`` in a session's directory; made with its directory at
            the first use.
        by: Who uses it, for `operations`.
        namespace: See `use_namespace`.

    Raises:
        UserError: By every operation: the file can't be used, or what is given can't be kept.
        AgentStopped: By every operation: a stop was asked for.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     store = DataStore(Path(folder, FILE_NAME))
        ...     store.set("limits", {"rows": 3})
        ...     store.get("limits")
        {'rows': 3}
    """

    def __init__(self, path: Path | str, by: str = "", namespace: str = DEFAULT_NAMESPACE) -> None:
        self._file = _DataFile(Path(path))
        self._by = by
        self._namespace = _name(namespace)

    @classmethod
    def of(cls, context: ToolContext) -> DataStore:
        """Return the store of an agent's session, as that agent uses it."""
        return cls(context.session / FILE_NAME, context.agent)

    def use_namespace(self, namespace: str) -> DataStore:
        """Return the same store with another namespace; a new one needs no making."""
        other = copy.copy(self)
        other._namespace = _name(namespace)
        return other

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value, or ``default`` when it is not there."""
        return self._get("get", [key]).get(key, default)

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of keys; those that are not there are left out."""
        return self._get("get_many", list(keys))

    def get_all(self) -> dict[str, Any]:
        """Return all values of the namespace by their keys, sorted."""
        query = "SELECT key, value FROM entries WHERE namespace = ? ORDER BY key"
        with self._operation("get_all") as db:
            rows = _each(db.execute(query, (self._namespace,)))
            return {key: json.loads(value) for key, value in rows}

    def set(self, key: str, value: JsonValue, metadata: JsonValue = None) -> None:
        """Set a key's value, replacing one that is there; `entry` has the metadata."""
        self._set("set", {key: value}, metadata)

    def set_many(self, items: Mapping[str, JsonValue], metadata: JsonValue = None) -> int:
        """Set the values of keys, all with the same metadata; return how many there are."""
        return self._set("set_many", items, metadata)

    def delete(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return self._delete("delete", [key]) == 1

    def delete_many(self, keys: Iterable[str]) -> int:
        """Remove keys; return how many are gone now, those that did not exist included."""
        keys = list(keys)
        self._delete("delete_many", keys)
        return len(keys)

    def clear(self) -> int:
        """Remove all keys of the namespace; return how many there were."""
        return self._delete("clear", None)

    def list_keys(self, prefix: str | None = None) -> list[str]:
        """Return the keys that begin with a prefix, sorted; None means all."""
        start = _name(prefix or "")
        query = "SELECT key FROM entries WHERE namespace = ? AND key >= ? ORDER BY key"
        with self._operation("list_keys", [start]) as db:
            keys = (key for (key,) in _each(db.execute(query, (self._namespace, start))))
            return list(takewhile(lambda key: key.startswith(start), keys))

    def list_namespaces(self) -> list[str]:
        """Return the namespaces that have keys, sorted."""
        query = "SELECT DISTINCT namespace FROM entries ORDER BY namespace"
        with self._operation("list_namespaces") as db:
            return [namespace for (namespace,) in _each(db.execute(query))]

    def entry(self, key: str) -> Entry | None:
        """Return a key's value with what is known of it; None when the key is not there."""
        query = (
            "SELECT value, metadata, set_by, set_at FROM entries WHERE (namespace, key) = (?, ?)"
        )
        with self._operation("entry", [key]) as db:
            row = db.execute(query, (self._namespace, _name(key))).fetchone()
        return Entry(json.loads(row[0]), json.loads(row[1]), *row[2:]) if row else None

    def operations(self) -> list[Operation]:
        """Return the last operations on all namespaces, in order; this call is not recorded."""
        query = "SELECT at, by, name, namespace, about FROM operations ORDER BY id"
        with self._file.transaction() as db:
            return [Operation(*row) for row in _each(db.execute(query))]

    def _get(self, name: str, keys: Sequence[str]) -> dict[str, Any]:
        query = "SELECT value FROM entries WHERE (namespace, key) = (?, ?)"
        with self._operation(name, keys) as db:
            rows = ((key, db.execute(query, (self._namespace, _name(key)))) for key in _each(keys))
            return {key: json.loads(value) for key, found in rows for (value,) in found}

    def _set(self, name: str, items: Mapping[str, JsonValue], metadata: JsonValue) -> int:
        said = _json("metadata", metadata)
        rows = [(_name(key), _json(key, value)) for key, value in _each(items.items())]
        about = [f"{key}={value[:MAX_PREVIEW_CHARS]}" for key, value in rows]
        with self._operation(name, about) as db:
            each = ((self._namespace, *row, said, self._by, _now()) for row in _each(rows))
            db.executemany("REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", each)
        return len(rows)

    def _delete(self, name: str, keys: Sequence[str] | None) -> int:
        with self._operation(name, keys or ()) as db:
            if keys is None:
                query = "SELECT key FROM entries WHERE namespace = ?"
                keys = [key for (key,) in db.execute(query, (self._namespace,)).fetchall()]
            gone = ((self._namespace, _name(key)) for key in _each(keys))
            return db.executemany(
                "DELETE FROM entries WHERE (namespace, key) = (?, ?)", gone
            ).rowcount

    @contextmanager
    def _operation(self, name: str, about: Sequence[str] = ()) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, and record who ran it."""
        with self._file.transaction() as db:
            yield db
            text = ", ".join(about[:MAX_PREVIEW_CHARS])
            cut = text if len(text) <= MAX_PREVIEW_CHARS else f"{text[: MAX_PREVIEW_CHARS - 1]}…"
            values = (_now(), self._by, name, self._namespace, cut)
            last = db.execute("INSERT INTO operations VALUES (NULL, ?, ?, ?, ?, ?)", values)
            old = (last.lastrowid or 0) - MAX_OPERATIONS
            db.execute("DELETE FROM operations WHERE id <= ?", (old,))


class _DataFile:
    """The file of a store, made with its directory at the first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_kept_open = False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction; other writers wait."""
        checkpoint()
        try:
            with closing(_begin(self._path)) as db:  # which takes back what is not committed
                self._keep_open()
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as exc:
            why = (exc.strerror if isinstance(exc, OSError) else str(exc)) or type(exc).__name__
            if self._path.is_dir():
                why = f"it is a directory. Give the file in it; a session's is {FILE_NAME!r}"
            raise UserError(f"The data store {self._path.name!r} can't be used: {why}.") from exc

    def _keep_open(self) -> None:
        """Hold an idle connection: the last one that closes writes the log back, which is slow."""
        if not self._is_kept_open:
            self._is_kept_open = True
            db = sqlite3.connect(self._path, check_same_thread=False)
            weakref.finalize(self, db.close)
            db.execute("PRAGMA user_version").fetchone()  # SQLite opens a file when it first reads


def _begin(path: Path) -> sqlite3.Connection:
    """Open the file and wait for its lock; a stop ends the wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + WAIT_S
    while True:
        db = sqlite3.connect(path, timeout=_TRY_S, isolation_level=None)
        try:
            _prepare(db)
            return db
        except BaseException as exc:
            db.close()
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # the rest says why
            is_busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_busy or time.monotonic() > give_up:
                raise
        checkpoint()
        time.sleep(0.01)  # SQLite does not wait where it sees a deadlock


def _prepare(db: sqlite3.Connection) -> None:
    # Written ahead, what a killed process left half done is just not read. Where that can't be (a
    # network disk), SQLite stays with its rollback journal, which is as safe.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    page_bytes = db.execute("PRAGMA page_size").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // page_bytes}")
    # Readers wait for their turn, too: they write down that they read.
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise UserError(
            f"The data store is of version {version}, made by a newer nb_agents; this one reads "
            f"{_VERSION}. Update nb_agents."
        )
    for statement in _TABLES.split(";\n") if version == 0 else ():
        db.execute(statement)  # executescript would commit


def _each(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; check for a stop before each."""
    for item in items:
        checkpoint()
        yield item


def _name(text: str) -> str:
    """Check a key or namespace."""
    if not isinstance(text, str):
        raise UserError(f"{text!r} is not a key or namespace: those are strings. Use str() of it.")
    if len(text) > MAX_NAME_CHARS:
        raise UserError(
            f"{text[:20]!r}… has {len(text)} characters; a key or namespace has at most "
            f"{MAX_NAME_CHARS}. Choose a shorter one."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{text!r} holds half a character. Choose another key.") from None
    return text


def _json(key: str, value: JsonValue) -> str:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise UserError(
            f"The value of {key!r} can't be kept: {exc}. Use what JSON has: text, finite numbers, "
            "true, false, null, lists, and mappings by text."
        ) from exc
    if len(text) > MAX_VALUE_CHARS:
        raise UserError(
            f"The value of {key!r} has {len(text)} characters as JSON; at most {MAX_VALUE_CHARS} "
            "can be kept. Split it, or write a file."
        )
    return text


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
