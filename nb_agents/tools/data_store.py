"""The data store: what the agents and functions of a session keep for each other, in SQLite.

One file a session; values are JSON, by key, in namespaces. Every operation is one transaction that
opens the file anew: threads, agents and processes may use it at once, nothing has to be closed, and
`kill -9` loses at most the transaction in hand. A bulk operation is done whole or not at all; a
stop in its middle leaves nothing of it, so a resumed run does it again from the start.

Source: the operations are those of gofannon's ``data_store``; there, a stop leaves a bulk operation
half done.
"""

from __future__ import annotations

import json
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic import JsonValue

from nb_agents.cancel import checkpoint
from nb_agents.errors import UserError
from nb_agents.tools.base import ToolContext

__all__ = [
    "DEFAULT_NAMESPACE",
    "DataFile",
    "DataStore",
    "Entry",
    "FILE_NAME",
    "MAX_FILE_BYTES",
    "Operation",
    "WAIT_S",
]

DEFAULT_NAMESPACE = "default"
"""Where the entries are of those who name no namespace."""

FILE_NAME = "data_store.sqlite"
"""In a session's directory."""

MAX_FILE_BYTES = 100_000_000

WAIT_S = 10.0
"""How long an operation waits for others to end."""
_TRY_S = 0.1
"""How long SQLite waits by itself; in between, a stop is felt."""

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

MAX_NAME_CHARS = 1000
"""The longest key or namespace."""
MAX_VALUE_CHARS = 1_000_000
"""The longest value, as JSON."""
MAX_OPERATIONS = 10_000
"""How many operations are remembered."""
MAX_PREVIEW_CHARS = 200

_SET = """
INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
value = excluded.value, metadata = excluded.metadata, set_by = excluded.set_by,
set_at = excluded.set_at
"""

T = TypeVar("T")


class DataFile:
    """A file of entries in namespaces, and of the operations on them.

    Args:
        path: Where it is; made with its directory at the first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keeper: _Keeper | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction; other writers wait.

        Yields:
            The open file.

        Raises:
            UserError: The file can't be used.
            AgentStopped: A stop was asked for, here or while it waited.
        """
        checkpoint()
        try:
            # Closing takes back what is not committed.
            with closing(_begin(self._path)) as db:
                self._keeper = self._keeper or _keeper(self._path)
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as exc:
            raise UserError(
                f"The data store {self._path.name!r} can't be used: {self._why(exc)}."
            ) from exc

    def _why(self, exc: sqlite3.Error | OSError) -> str:
        if self._path.is_dir():
            return f"it is a directory. Give the file in it; a session's is {FILE_NAME!r}"
        return (exc.strerror if isinstance(exc, OSError) else str(exc)) or type(exc).__name__


class _Keeper:
    """An idle connection: only the last one to be closed writes the log back, which is slow."""

    def __init__(self, path: Path) -> None:
        db = sqlite3.connect(path, check_same_thread=False)
        weakref.finalize(self, db.close)
        db.execute("PRAGMA user_version").fetchone()  # SQLite opens a file when it is first read


_keepers: WeakValueDictionary[Path, _Keeper] = WeakValueDictionary()


def _keeper(path: Path) -> _Keeper:
    # Two threads that come first may make two: one is dropped.
    return _keepers.get(path) or _keepers.setdefault(path, _Keeper(path))


def _begin(path: Path) -> sqlite3.Connection:
    """Open the file and wait for the turn to use it; a stop ends the waiting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + WAIT_S
    while True:
        db = sqlite3.connect(path, timeout=_TRY_S, isolation_level=None)
        try:
            _prepare(db)
            return db
        except BaseException as exc:
            db.close()
            if not _is_busy(exc) or time.monotonic() > give_up:
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
    if version == 0:
        for statement in _TABLES.split(";\n"):  # executescript would commit
            db.execute(statement)


def _is_busy(exc: BaseException) -> bool:
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)  # the rest says why


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with what is known of it.

    Attributes:
        value: What was set.
        metadata: What was said of it.
        by: Who set it last: an agent's id, or "".
        at: When, in UTC, ISO 8601.
    """

    value: JsonValue
    metadata: JsonValue
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A use of the store.

    Attributes:
        at: When, in UTC, ISO 8601.
        by: Who: an agent's id, or "".
        name: Which, such as "set_many".
        namespace: Where.
        about: The keys and values of it, cut.
    """

    at: str
    by: str
    name: str
    namespace: str
    about: str


class DataStore:
    """Values by key, in one namespace of a file.

    Every operation begins with `nb_agents.checkpoint`: within a run that is being stopped, none is
    done. Those over many keys ask between the keys, too.

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
        self._path = Path(path)
        self._file = DataFile(self._path)
        self._by = by
        self._namespace = _name(namespace)

    @classmethod
    def of(cls, context: ToolContext) -> DataStore:
        """Return the store of an agent's session, as that agent uses it."""
        return cls(context.session / FILE_NAME, context.agent)

    def use_namespace(self, namespace: str) -> DataStore:
        """Return the same store with another namespace.

        Args:
            namespace: Any text; a new one needs no making.
        """
        return DataStore(self._path, self._by, namespace)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value.

        Args:
            key: Any text.
            default: What to give when the key is not there.
        """
        with self._operation("get", [key]) as db:
            found = list(self._read(db, [key]))
        return found[0][1] if found else default

    def set(self, key: str, value: JsonValue, metadata: JsonValue = None) -> None:
        """Set a key's value, replacing one that is there.

        Args:
            key: Any text.
            value: What JSON can say.
            metadata: What is to be known of it; `entry` gives it.
        """
        self._write("set", {key: value}, metadata)

    def delete(self, key: str) -> bool:
        """Remove a key.

        Returns:
            Whether it was there.
        """
        return self._remove("delete", [key]) == 1

    def delete_many(self, keys: Iterable[str]) -> int:
        """Remove keys; all or, at a stop, none.

        Returns:
            How many are gone now: those that were not there count.
        """
        keys = list(keys)
        self._remove("delete_many", keys)
        return len(keys)

    def list_keys(self, prefix: str | None = None) -> list[str]:
        """List the keys, sorted.

        Args:
            prefix: What they begin with; None means all.
        """
        start = _name(prefix or "")
        query = "SELECT key FROM entries WHERE namespace = ? AND key >= ? ORDER BY key"
        with self._operation("list_keys", [start]) as db:
            keys = (key for (key,) in _each(db.execute(query, (self._namespace, start))))
            return list(takewhile(lambda key: key.startswith(start), keys))

    def list_namespaces(self) -> list[str]:
        """List the namespaces that have keys, sorted."""
        query = "SELECT DISTINCT namespace FROM entries ORDER BY namespace"
        with self._operation("list_namespaces") as db:
            return [namespace for (namespace,) in _each(db.execute(query))]

    def get_all(self) -> dict[str, Any]:
        """Return all values of the namespace by their keys, sorted."""
        query = "SELECT key, value FROM entries WHERE namespace = ? ORDER BY key"
        with self._operation("get_all") as db:
            rows = _each(db.execute(query, (self._namespace,)))
            return {key: json.loads(value) for key, value in rows}

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of keys; those that are not there are left out."""
        keys = list(keys)
        with self._operation("get_many", keys) as db:
            return dict(self._read(db, keys))

    def set_many(self, items: Mapping[str, JsonValue], metadata: JsonValue = None) -> int:
        """Set the values of keys; all or, at a stop, none.

        Args:
            items: The values by their keys.
            metadata: What is to be known of each.

        Returns:
            How many there are.
        """
        return self._write("set_many", items, metadata)

    def clear(self) -> int:
        """Remove all keys of the namespace; all or, at a stop, none.

        Returns:
            How many there were.
        """
        with self._operation("clear") as db:
            keys = db.execute("SELECT key FROM entries WHERE namespace = ?", (self._namespace,))
            return self._drop(db, [key for (key,) in keys.fetchall()])

    def entry(self, key: str) -> Entry | None:
        """Return a key's value with what is known of it; None when the key is not there."""
        query = (
            "SELECT value, metadata, set_by, set_at FROM entries WHERE namespace = ? AND key = ?"
        )
        with self._operation("entry", [key]) as db:
            row = db.execute(query, (self._namespace, _name(key))).fetchone()
        return Entry(json.loads(row[0]), json.loads(row[1]), *row[2:]) if row else None

    def operations(self) -> list[Operation]:
        """List the last operations on all namespaces, in their order; asking is none."""
        query = "SELECT at, by, name, namespace, about FROM operations ORDER BY id"
        with self._file.transaction() as db:
            return [Operation(*row) for row in _each(db.execute(query))]

    def _read(self, db: sqlite3.Connection, keys: Sequence[str]) -> Iterator[tuple[str, JsonValue]]:
        query = "SELECT value FROM entries WHERE namespace = ? AND key = ?"
        for key in _each(keys):
            row = db.execute(query, (self._namespace, _name(key))).fetchone()
            if row is not None:
                yield key, json.loads(row[0])

    def _write(self, name: str, items: Mapping[str, JsonValue], metadata: JsonValue) -> int:
        said = _json("metadata", metadata)
        rows = [(_name(key), _json(key, value)) for key, value in _each(items.items())]
        about = [f"{key}={value[:MAX_PREVIEW_CHARS]}" for key, value in rows]
        with self._operation(name, about) as db:
            for row in _each(rows):
                db.execute(_SET, (self._namespace, *row, said, self._by, _now()))
        return len(rows)

    def _remove(self, name: str, keys: Sequence[str]) -> int:
        with self._operation(name, keys) as db:
            return self._drop(db, keys)

    def _drop(self, db: sqlite3.Connection, keys: Sequence[str]) -> int:
        query = "DELETE FROM entries WHERE namespace = ? AND key = ?"
        return sum(db.execute(query, (self._namespace, _name(key))).rowcount for key in _each(keys))

    @contextmanager
    def _operation(self, name: str, about: Sequence[str] = ()) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, and record who ran it."""
        with self._file.transaction() as db:
            yield db
            values = (_now(), self._by, name, self._namespace, _preview(about))
            last = db.execute("INSERT INTO operations VALUES (NULL, ?, ?, ?, ?, ?)", values)
            old = (last.lastrowid or 0) - MAX_OPERATIONS
            db.execute("DELETE FROM operations WHERE id <= ?", (old,))


def _each(items: Iterable[T]) -> Iterator[T]:
    """Return the items; feel a stop before each."""
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


def _preview(parts: Sequence[str]) -> str:
    text = ", ".join(parts[:MAX_PREVIEW_CHARS])
    return text if len(text) <= MAX_PREVIEW_CHARS else f"{text[: MAX_PREVIEW_CHARS - 1]}…"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
