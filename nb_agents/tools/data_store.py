"""The data store, an SQLite file shared by the agents and functions of a session.

Each session has one file with JSON values by key, in namespaces. Every operation opens the file and
is one transaction. Threads, agents and processes may use the store concurrently, nothing has to be
closed, and `kill -9` loses at most the current transaction. A bulk operation is atomic: a stop
rolls it back, and a resumed run repeats it from the start.

Source: gofannon's ``data_store`` has the same operations; there, a stop can leave a bulk operation
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
from nb_agents.disk.private import make_folder, open_private
from nb_agents.errors import UserError
from nb_agents.tools.base import ToolContext

DEFAULT_NAMESPACE = "default"
FILE_NAME = "data_store.sqlite"
"""Name of the file in a session's directory."""

MAX_FILE_BYTES = 100_000_000
MAX_NAME_CHARS = 1000
"""Maximum length of a key or namespace."""
MAX_VALUE_CHARS = 1_000_000
"""Maximum length of a value, as JSON."""
MAX_OPERATIONS = 10_000
"""Maximum number of recorded operations. Older ones are deleted."""
MAX_PREVIEW_CHARS = 200

WAIT_S = 10.0
"""Seconds that an operation waits for the lock of the file."""
_TRY_S = 0.1
"""Seconds that SQLite waits for the lock before the store checks for a stop and retries."""

_VERSION = 1
"""Version of the table layout."""
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
    """A value, its metadata, the id of the agent that set it last (or ""), and the time in UTC."""

    value: JsonValue
    metadata: JsonValue
    by: str
    at: str


class Operation(NamedTuple):
    """A recorded operation on the store.

    Attributes:
        at: The time in UTC.
        by: The id of the agent, or "".
        name: The name of the method.
        about: The keys and values, truncated to `MAX_PREVIEW_CHARS`.
    """

    at: str
    by: str
    name: str
    namespace: str
    about: str


class DataStore:
    """Values by key, in one namespace of a file.

    Keys and namespaces are any text; values and metadata are JSON. Every operation starts with
    `nb_agents.checkpoint`, so no operation runs in a run that is being stopped. Operations on
    several keys also check between the keys, and change nothing if they are stopped.

    Args:
        path: The file, ``data_store.sqlite`` in a session's directory. It is created with its
            directory at the first use.
        by: The user of the store, as recorded in `operations`.
        namespace: See `use_namespace`.

    Raises:
        UserError: From every operation, if the file can't be used or an argument can't be stored.
        AgentStopped: From every operation, if a stop was requested.

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
        """Return the store of an agent's session. Operations are recorded with the agent's id."""
        return cls(context.session / FILE_NAME, context.agent)

    def use_namespace(self, namespace: str) -> DataStore:
        """Return the same store with another namespace, which need not exist yet."""
        other = copy.copy(self)
        other._namespace = _name(namespace)
        return other

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if the key does not exist."""
        return self._get("get", [key]).get(key, default)

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of several keys. Missing keys are left out."""
        return self._get("get_many", list(keys))

    def get_all(self) -> dict[str, Any]:
        """Return all values of the namespace by key, sorted by key."""
        query = "SELECT key, value FROM entries WHERE namespace = ? ORDER BY key"
        with self._operation("get_all") as db:
            rows = _each(db.execute(query, (self._namespace,)))
            return {key: json.loads(value) for key, value in rows}

    def set(self, key: str, value: JsonValue, metadata: JsonValue = None) -> None:
        """Set or replace the value of a key. `entry` returns the metadata."""
        self._set("set", {key: value}, metadata)

    def set_many(self, items: Mapping[str, JsonValue], metadata: JsonValue = None) -> int:
        """Set the values of several keys with the same metadata. Returns their number."""
        return self._set("set_many", items, metadata)

    def delete(self, key: str) -> bool:
        """Delete a key. Returns whether it existed."""
        return self._delete("delete", [key]) == 1

    def delete_many(self, keys: Iterable[str]) -> int:
        """Delete several keys. Returns the number of keys, including keys that did not exist."""
        keys = list(keys)
        self._delete("delete_many", keys)
        return len(keys)

    def clear(self) -> int:
        """Delete all keys of the namespace. Returns how many there were."""
        return self._delete("clear", None)

    def list_keys(self, prefix: str | None = None) -> list[str]:
        """Return the keys that start with a prefix, sorted. None means all keys."""
        start = _name(prefix or "")
        query = "SELECT key FROM entries WHERE namespace = ? AND key >= ? ORDER BY key"
        with self._operation("list_keys", [start]) as db:
            keys = (key for (key,) in _each(db.execute(query, (self._namespace, start))))
            return list(takewhile(lambda key: key.startswith(start), keys))

    def list_namespaces(self) -> list[str]:
        """Return the namespaces that contain keys, sorted."""
        query = "SELECT DISTINCT namespace FROM entries ORDER BY namespace"
        with self._operation("list_namespaces") as db:
            return [namespace for (namespace,) in _each(db.execute(query))]

    def entry(self, key: str) -> Entry | None:
        """Return a key's value, metadata, agent and time, or None if the key does not exist."""
        query = (
            "SELECT value, metadata, set_by, set_at FROM entries WHERE (namespace, key) = (?, ?)"
        )
        with self._operation("entry", [key]) as db:
            row = db.execute(query, (self._namespace, _name(key))).fetchone()
        return Entry(json.loads(row[0]), json.loads(row[1]), *row[2:]) if row else None

    def operations(self) -> list[Operation]:
        """Return the last operations on all namespaces, oldest first. This call is not recorded."""
        query = "SELECT at, by, name, namespace, about FROM operations ORDER BY id"
        with self._file.transaction() as db:
            return [Operation(*row) for row in _each(db.execute(query))]

    def _get(self, name: str, keys: Sequence[str]) -> dict[str, Any]:
        query = "SELECT value FROM entries WHERE (namespace, key) = (?, ?)"
        with self._operation(name, keys) as db:
            rows = ((key, db.execute(query, (self._namespace, _name(key)))) for key in _each(keys))
            return {key: json.loads(value) for key, cursor in rows for (value,) in cursor}

    def _set(self, name: str, items: Mapping[str, JsonValue], metadata: JsonValue) -> int:
        metadata_json = _json("metadata", metadata)
        rows = [(_name(key), _json(key, value)) for key, value in _each(items.items())]
        about = [f"{key}={value[:MAX_PREVIEW_CHARS]}" for key, value in rows]
        with self._operation(name, about) as db:
            each = ((self._namespace, *row, metadata_json, self._by, _now()) for row in _each(rows))
            db.executemany("REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", each)
        return len(rows)

    def _delete(self, name: str, keys: Sequence[str] | None) -> int:
        with self._operation(name, keys or ()) as db:
            if keys is None:
                query = "SELECT key FROM entries WHERE namespace = ?"
                keys = [key for (key,) in db.execute(query, (self._namespace,)).fetchall()]
            deleted = ((self._namespace, _name(key)) for key in _each(keys))
            return db.executemany(
                "DELETE FROM entries WHERE (namespace, key) = (?, ?)", deleted
            ).rowcount

    @contextmanager
    def _operation(self, name: str, about: Sequence[str] = ()) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction and record the operation."""
        with self._file.transaction() as db:
            yield db
            text = ", ".join(about[:MAX_PREVIEW_CHARS])
            cut = text if len(text) <= MAX_PREVIEW_CHARS else f"{text[: MAX_PREVIEW_CHARS - 1]}…"
            values = (_now(), self._by, name, self._namespace, cut)
            last = db.execute("INSERT INTO operations VALUES (NULL, ?, ?, ?, ?, ?)", values)
            old = (last.lastrowid or 0) - MAX_OPERATIONS
            db.execute("DELETE FROM operations WHERE id <= ?", (old,))


class _DataFile:
    """The file of a store. The file and its directory are created on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_kept_open = False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction. Other writers wait."""
        checkpoint()
        try:
            with closing(_open(self._path)) as db:  # closing rolls back
                self._keep_open()
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as exc:
            why = (exc.strerror if isinstance(exc, OSError) else str(exc)) or type(exc).__name__
            if self._path.is_dir():
                why = f"it is a directory. Pass the path of a file, in a session {FILE_NAME!r}"
            raise UserError(f"The data store {self._path.name!r} can't be used: {why}.") from exc

    def _keep_open(self) -> None:
        """Keep an idle connection open. Closing the last one writes the log back, which is slow."""
        if not self._is_kept_open:
            self._is_kept_open = True
            db = sqlite3.connect(self._path, check_same_thread=False)
            weakref.finalize(self, db.close)
            db.execute("PRAGMA user_version").fetchone()  # SQLite opens a file when it first reads


def _open(path: Path) -> sqlite3.Connection:
    """Open the file and wait for its lock, checking for a stop."""
    make_folder(path.parent)
    open_private(path, "ab").close()  # SQLite's other files get the same permissions
    give_up = time.monotonic() + WAIT_S
    while True:
        db = sqlite3.connect(path, timeout=_TRY_S, isolation_level=None)
        try:
            _prepare(db)
            return db
        except BaseException as exc:
            db.close()
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
            is_busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_busy or time.monotonic() > give_up:
                raise
        checkpoint()
        time.sleep(0.01)  # SQLite does not wait where it sees a deadlock


def _prepare(db: sqlite3.Connection) -> None:
    # With write-ahead logging, readers ignore an unfinished transaction of a killed process. Where
    # that is not possible (network disks), SQLite keeps its rollback journal, which is equally
    # safe.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    page_bytes = db.execute("PRAGMA page_size").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // page_bytes}")
    # Readers need the write lock too, because they record their operations.
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise UserError(
            f"The data store has version {version}, from a newer nb_agents; this one reads "
            f"version {_VERSION}. Update nb_agents."
        )
    for statement in _TABLES.split(";\n") if version == 0 else ():
        db.execute(statement)  # executescript would commit


def _each(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, checking for a stop before each."""
    for item in items:
        checkpoint()
        yield item


def _name(text: str) -> str:
    """Return a key or namespace unchanged. Raises UserError if it is invalid."""
    if not isinstance(text, str):
        raise UserError(f"{text!r} is not a string. Keys and namespaces are strings: use str().")
    if len(text) > MAX_NAME_CHARS:
        raise UserError(
            f"{text[:20]!r}… has {len(text)} characters; a key or namespace has at most "
            f"{MAX_NAME_CHARS}. Choose a shorter one."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{text!r} contains a lone surrogate. Choose another key.") from None
    return text


def _json(key: str, value: JsonValue) -> str:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise UserError(
            f"The value of {key!r} can't be stored: {exc}. Use JSON values: text, finite numbers, "
            "booleans, None, lists, and mappings with text as keys."
        ) from exc
    if len(text) > MAX_VALUE_CHARS:
        raise UserError(
            f"The value of {key!r} has {len(text)} characters as JSON; at most {MAX_VALUE_CHARS} "
            "can be stored. Split it or write it to a file."
        )
    return text


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
