"""The file of a data store: SQLite, which many may use at once.

Every transaction opens the file anew and is done whole or not at all: threads and processes may use
it together, nothing has to be closed, and `kill -9` loses at most the transaction in hand. It knows
its tables, and nothing of what is in them.
"""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from nb_agents.cancel import checkpoint
from nb_agents.errors import UserError

__all__ = ["DEFAULT_NAMESPACE", "DataFile", "FILE_NAME", "MAX_FILE_BYTES", "WAIT_S"]

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
        """Do what is done within the block as one; others wait for their turn.

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
