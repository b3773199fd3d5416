"""The data store: gofannon's operations from Python and agents, concurrency, and kills."""

import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.errors import UserError
from nb_agents.tools import data_store
from nb_agents.tools.data_store import DEFAULT_NAMESPACE, FILE_NAME, DataStore, Operation
from tests.kit.agents import StopScope
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken, bind
from tests.kit.secrets import Mask, Secret
from tests.kit.tools import AgentStore, Tool, Toolbox, ToolCall, ToolContext, ToolResult, use_call
from tests.processes import line, python, tell

pytestmark = pytest.mark.anyio

WAIT_S = 200.0
KEY = "sk-secret-1234567890"
START = {"a": 1, "b": {"deep": [True, None, "é"]}, "ba": "text"}


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    mask = Mask([Secret(KEY)])
    return ToolContext("agent_a", tmp_path, (), tmp_path, tmp_path, (), lambda text: None, mask)


@pytest.fixture
def store(tmp_path: Path) -> DataStore:
    """A store with three keys in its namespace and one in another."""
    made = DataStore(tmp_path / FILE_NAME)
    made.set_many(START)
    made.use_namespace("other").set("a", "elsewhere")
    return made


class Row(NamedTuple):
    """An operation of gofannon, in Python and as a tool.

    Attributes:
        do: The call in Python.
        gives: The expected result.
        leaves: The expected content of the namespace.
        args: The tool's arguments.
        told: The tool's expected result.
    """

    name: str
    do: Callable[[DataStore], Any]
    gives: Any
    leaves: dict[str, Any]
    args: dict[str, Any]
    told: str


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in START.items() if key not in keys}


NOT_THERE = "(no key 'x' in namespace 'default')"
TABLE = [
    Row("get", lambda s: s.get("a"), 1, START, {"key": "a"}, "1"),
    Row("get", lambda s: s.get("x"), None, START, {"key": "x"}, NOT_THERE),
    Row("get", lambda s: s.get("x", 3), 3, START, {"key": "x"}, NOT_THERE),
    Row(
        "set",
        lambda s: s.set("x", [1]),
        None,
        START | {"x": [1]},
        {"key": "x", "value": [1]},
        "Set 'x'.",
    ),
    Row(
        "set",
        lambda s: s.set("a", 2),
        None,
        START | {"a": 2},
        {"key": "a", "value": 2},
        "Set 'a'.",
    ),
    Row("delete", lambda s: s.delete("a"), True, without("a"), {"key": "a"}, "Deleted 'a'."),
    Row("delete", lambda s: s.delete("x"), False, START, {"key": "x"}, NOT_THERE),
    Row(
        "delete_many",
        lambda s: s.delete_many(["a", "x", "b"]),
        3,
        without("a", "b"),
        {"keys": ["a", "x", "b"]},
        "Deleted 3 keys.",
    ),
    Row("list_keys", lambda s: s.list_keys(), ["a", "b", "ba"], START, {}, '["a", "b", "ba"]'),
    Row(
        "list_keys",
        lambda s: s.list_keys("b"),
        ["b", "ba"],
        START,
        {"prefix": "b"},
        '["b", "ba"]',
    ),
    Row(
        "list_namespaces",
        lambda s: s.list_namespaces(),
        ["default", "other"],
        START,
        {},
        '["default", "other"]',
    ),
    Row("get_all", lambda s: s.get_all(), START, START, {}, json.dumps(START, ensure_ascii=False)),
    Row(
        "get_many",
        lambda s: s.get_many(["ba", "x", "a"]),
        {"ba": "text", "a": 1},
        START,
        {"keys": ["ba", "x", "a"]},
        '{"ba": "text", "a": 1}',
    ),
    Row(
        "set_many",
        lambda s: s.set_many({"a": 2, "x": None}),
        2,
        START | {"a": 2, "x": None},
        {"items": {"a": 2, "x": None}},
        "Set 2 keys.",
    ),
    Row("clear", lambda s: s.clear(), 3, {}, {}, "Deleted 3 keys."),
]

by_row = pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.name} {row.args}")


@by_row
def test_operations_match_gofannon(row: Row, store: DataStore) -> None:
    assert row.do(store) == row.gives
    assert store.get_all() == row.leaves
    assert store.use_namespace("other").get_all() == {"a": "elsewhere"}


def store_tools(context: ToolContext) -> list[Tool]:
    return AgentStore(DataStore.of(context), context.mask).tools()


@by_row
async def test_each_operation_is_a_tool(row: Row, store: DataStore, context: ToolContext) -> None:
    tools = Toolbox(store_tools(context))
    result = await tools.call(f"data_{row.name}", row.args)
    assert (result, result.is_error) == (row.told, False)
    assert store.get_all() == row.leaves
    last = [each for each in store.operations() if each.by == "agent_a"]
    assert [each.namespace for each in last] == [DEFAULT_NAMESPACE]


@by_row
def test_each_operation_checks_for_a_stop(row: Row, store: DataStore) -> None:
    token = CancelToken()
    token.request(CancellationStatus.REQUESTED, "api")
    before = store.operations()
    with bind(token), pytest.raises(AgentStopped):
        row.do(store)
    assert store.get_all() == START
    assert store.operations() == [*before, store.operations()[-1]]  # only get_all remains


@by_row
def test_file_is_not_opened_after_a_stop(row: Row, tmp_path: Path) -> None:
    token = CancelToken()
    token.request(CancellationStatus.REQUESTED, "api")
    with bind(token), pytest.raises(AgentStopped):
        row.do(DataStore(tmp_path / "made" / FILE_NAME))
    assert not (tmp_path / "made").exists()


def test_use_namespace_returns_the_same_store(store: DataStore) -> None:
    other = store.use_namespace("other")
    other.set("only here", 1)
    assert store.get("only here") is None
    assert other.use_namespace(DEFAULT_NAMESPACE).get_all() == START
    assert other.clear() == 2
    assert store.list_namespaces() == ["default"]


async def test_tools_use_the_given_namespace(store: DataStore, context: ToolContext) -> None:
    tools = Toolbox(store_tools(context))
    args = {"key": "k", "value": 1, "namespace": "new"}
    assert await tools.call("data_set", args) == "Set 'k'."
    assert await tools.call("data_get", {"key": "k", "namespace": "new"}) == "1"
    assert await tools.call("data_get", {"key": "k"}) == "(no key 'k' in namespace 'default')"
    assert DataStore.of(context).use_namespace("new").get("k") == 1


class Countdown(CancelToken):
    """A token that is stopped at the n-th check."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self.left = checks

    def checkpoint(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.request(CancellationStatus.REQUESTED, "api")
        super().checkpoint()


MANY = {f"k{number}": number for number in range(20)}


@pytest.mark.parametrize(
    "do",
    [
        lambda s: s.set_many(MANY),
        lambda s: s.delete_many(list(START) * 5),
        lambda s: s.use_namespace("many").clear(),
        lambda s: s.get_many(list(MANY)),
        lambda s: s.use_namespace("many").get_all(),
        lambda s: s.use_namespace("many").list_keys(),
    ],
    ids=["set_many", "delete_many", "clear", "get_many", "get_all", "list_keys"],
)
@pytest.mark.parametrize("checks", [1, 2, 9, 14])
def test_stop_between_items_rolls_back_a_bulk_operation(
    do: Callable[[DataStore], Any], checks: int, store: DataStore
) -> None:
    store.use_namespace("many").set_many(MANY)
    token = Countdown(checks)
    with bind(token), pytest.raises(AgentStopped):
        do(store)
    assert token.left == 0
    assert store.get_all() == START
    assert store.use_namespace("many").get_all() == MANY
    store.set("a", 1)  # no lock remains


class Watched(CancelToken):
    """A token that signals when an operation waits for the lock: at its second check."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self.left = checks
        self.is_waiting = threading.Event()

    def checkpoint(self) -> None:
        super().checkpoint()
        self.left -= 1
        if self.left == 0:
            self.is_waiting.set()


def test_stop_ends_the_wait_for_the_lock(store: DataStore, tmp_path: Path) -> None:
    token = Watched(checks=2)
    ended: list[type[BaseException]] = []

    def wait() -> None:
        with bind(token):
            try:
                store.get("a")
            except AgentStopped as exc:
                ended.append(type(exc))

    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert token.is_waiting.wait(WAIT_S)
        token.request(CancellationStatus.REQUESTED, "api")
        waiting.join(WAIT_S)
    assert ended == [AgentStopped]


def test_wait_for_the_lock_has_a_limit(
    store: DataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_store, "WAIT_S", 0.2)
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match="can't be used: database is locked"):
            store.set("a", 2)
    store.set("a", 2)
    assert store.get("a") == 2


async def test_no_write_happens_after_an_immediate_stop(
    store: DataStore, context: ToolContext, tmp_path: Path
) -> None:
    token = Watched(
        checks=5
    )  # checks of the tool, the operation and its items, and two while waiting
    tools = Toolbox(store_tools(context))

    async def stop() -> None:
        assert await anyio.to_thread.run_sync(token.is_waiting.wait, WAIT_S)
        token.request(CancellationStatus.IMMEDIATE, "api")

    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with pytest.raises(AgentStopped), StopScope(token):
                await tools.call("data_set", {"key": "a", "value": 2})
    assert store.get("a") == 1
    assert "agent_a" not in [each.by for each in store.operations()]


def test_operations_are_recorded_with_agent_and_time(
    store: DataStore, context: ToolContext
) -> None:
    mine = DataStore.of(context)
    mine.set("plan", {"step": 1}, metadata={"source": "a file"})
    mine.get("plan")
    entry = mine.entry("plan")
    assert entry is not None
    assert (entry.value, entry.metadata, entry.by) == ({"step": 1}, {"source": "a file"}, "agent_a")
    assert entry.at.endswith("+00:00")
    assert mine.entry("x") is None
    last = [each for each in store.operations() if each.by]
    assert [(each.name, each.about) for each in last] == [
        ("set", 'plan={"step": 1}'),
        ("get", "plan"),
        ("entry", "plan"),
        ("entry", "x"),
    ]
    assert isinstance(last[0], Operation) and last[0].at.endswith("+00:00")


def test_recorded_operations_are_limited(store: DataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_store, "MAX_OPERATIONS", 5)
    store.set("long", "x" * 1000)
    store.set_many({f"k{number}": "y" * 10 for number in range(1000)})
    for _ in range(3):
        store.get("a")
    names = [each.name for each in store.operations()]
    assert names == ["set", "set_many", "get", "get", "get"]
    assert all(len(each.about) <= data_store.MAX_PREVIEW_CHARS for each in store.operations())


@pytest.mark.parametrize("key", ["", " ", "a\0b", "ключ", "'; DROP TABLE entries; --", "%", "😀"])
def test_keys_and_namespaces_are_any_text(key: str, tmp_path: Path) -> None:
    store = DataStore(tmp_path / FILE_NAME, namespace=key)
    store.set(key, key)
    store.set(key + "a", 2)
    assert store.get_all() == {key: key, key + "a": 2}
    assert store.list_keys(key) == [key, key + "a"]
    assert store.list_namespaces() == [key]


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "key, value, told",
    [
        ("k", {1, 2}, "The value of 'k' can't be stored: Object of type set is not JSON"),
        ("k", float("nan"), "The value of 'k' can't be stored: Out of range float"),
        ("k", LOOP, "The value of 'k' can't be stored: Circular"),
        ("k", "x" * 1_000_000, "has 1000002 characters as JSON; at most 1000000"),
        ("k" * 1001, 1, "has 1001 characters; a key or namespace has at most 1000"),
        ("\ud800", 1, "a lone surrogate"),
        (3, 1, "3 is not a string"),
    ],
)
def test_value_that_cannot_be_stored_is_reported_and_nothing_is_set(
    key: Any, value: Any, told: str, store: DataStore
) -> None:
    with pytest.raises(UserError) as error:
        store.set_many({"a": 2, key: value})
    assert told in str(error.value)
    assert store.get_all() == START


async def test_error_is_sent_to_the_model(store: DataStore, context: ToolContext) -> None:
    args = '{"key": "k", "value": NaN}'
    result = await Toolbox(store_tools(context)).call("data_set", args)
    assert result.is_error
    assert result.startswith("Error: The value of 'k' can't be stored")


@pytest.mark.parametrize(
    "tool, args",
    [
        ("data_set", {"key": "k", "value": {"env": [f"KEY={KEY}"]}}),
        ("data_set", {"key": KEY, "value": 1}),
        ("data_set_many", {"items": {"a": 2, "k": KEY}}),
    ],
)
async def test_api_key_is_not_stored(
    tool: str, args: dict[str, Any], store: DataStore, context: ToolContext, tmp_path: Path
) -> None:
    result = await Toolbox(store_tools(context)).call(tool, args)
    assert result == (
        "Error: the value contains an API key or another secret. Secrets can't be stored"
    )
    assert store.get_all() == START
    assert all(KEY.encode() not in (tmp_path / name).read_bytes() for name in os.listdir(tmp_path))


async def test_interrupted_call_is_repeated_without_error(
    store: DataStore, context: ToolContext
) -> None:
    tools = Toolbox(store_tools(context))
    assert await tools.call("data_delete", {"key": "a"}) == "Deleted 'a'."
    with use_call(ToolCall(is_repeated=True)):
        assert await tools.call("data_delete", {"key": "a"}) == "Deleted 'a'."


def test_file_size_is_limited(store: DataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_store, "MAX_FILE_BYTES", 200_000)
    with pytest.raises(UserError, match="database or disk is full"):
        store.set("k", "x" * 300_000)
    assert store.get_all() == START


def test_file_of_another_kind_is_reported_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("something else" * 1000)
    with pytest.raises(UserError, match=f"'{FILE_NAME}' can't be used: file is not a database"):
        DataStore(path).get("a")
    assert path.read_text() == "something else" * 1000


def test_impossible_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="can't be used: "):
        DataStore(tmp_path / "file" / FILE_NAME).get("a")


def test_path_may_be_text_and_a_directory_is_reported(tmp_path: Path) -> None:
    DataStore(str(tmp_path / FILE_NAME)).set("a", 1)
    assert DataStore(tmp_path / FILE_NAME).get("a") == 1
    with pytest.raises(UserError, match=f"is a directory.* {FILE_NAME!r}"):
        DataStore(tmp_path).get("a")


def test_newer_store_version_is_refused_with_a_remedy(store: DataStore, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
        other.execute("PRAGMA user_version = 2")
    with pytest.raises(UserError, match=r"version 2, .* reads version 1\. Update nb_agents\."):
        store.get("a")


VERSION_1 = """
CREATE TABLE entries (
    namespace TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, metadata TEXT NOT NULL,
    set_by TEXT NOT NULL, set_at TEXT NOT NULL, PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
CREATE TABLE operations (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, by TEXT NOT NULL, name TEXT NOT NULL,
    namespace TEXT NOT NULL, about TEXT NOT NULL
);
INSERT INTO entries VALUES ('default', 'a', '{"b": 1}', '"said"', 'ada', '2026-01-01T00:00:00Z');
INSERT INTO operations VALUES (7, '2026-01-01T00:00:00Z', 'ada', 'set', 'default', 'a={"b": 1}');
PRAGMA user_version = 1;
"""


def test_first_store_version_is_supported(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        old.executescript(VERSION_1)
    store = DataStore(tmp_path / FILE_NAME)
    assert store.entry("a") == ({"b": 1}, "said", "ada", "2026-01-01T00:00:00Z")
    store.set("a", 2)
    assert store.get_all() == {"a": 2}
    assert [each.name for each in store.operations()] == ["set", "entry", "set", "get_all"]


def test_unused_store_is_a_single_file(tmp_path: Path) -> None:
    store = DataStore(tmp_path / "made" / FILE_NAME)
    store.set("a", 1)
    del store
    assert [path.name for path in (tmp_path / "made").iterdir()] == [FILE_NAME]
    assert DataStore(tmp_path / "made" / FILE_NAME).get("a") == 1


async def test_parallel_agents_lose_no_data(context: ToolContext) -> None:
    async def work(agent: int) -> None:
        tools = Toolbox(store_tools(context))
        for number in range(5):
            args = {"key": f"{agent}.{number}", "value": number}
            assert not (await tools.call("data_set", args)).is_error
            items = {"one": agent, "two": agent}
            assert not (await tools.call("data_set_many", {"items": items})).is_error
            got = json.loads(await tools.call("data_get_many", {"keys": ["one", "two"]}))
            assert got["one"] == got["two"]

    async with anyio.create_task_group() as tasks:
        for agent in range(8):
            tasks.start_soon(work, agent)
    kept = DataStore.of(context).get_all()
    expected = {f"{agent}.{number}": number for agent in range(8) for number in range(5)}
    assert {key: value for key, value in kept.items() if "." in key} == expected


# The following tests talk to other processes.

SERVE = """
import json, sys
from pathlib import Path
from nb_agents.tools.data_store import DataStore
for line in sys.stdin:
    path, namespace, operation, args = json.loads(line)
    store = DataStore(Path(path), namespace=namespace)
    print(json.dumps(getattr(store, operation)(*args)), flush=True)
"""

WRITE = """
import sys
from itertools import count
from pathlib import Path
from nb_agents.tools.data_store import DataStore
store = DataStore(Path(sys.argv[1]), sys.argv[2])
sys.stdin.readline()
for number in count(1):
    store.set(f"{sys.argv[2]}.{number}", number)
    print(number, flush=True)
    store.set_many({f"k{each}": [sys.argv[2], number] for each in range(50)})
"""

NAMES = st.sampled_from(["", "a", "b", "b1"])
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.none() | st.integers() | st.text() | st.lists(FLOATS, max_size=2)
CALLS = st.one_of(
    st.tuples(st.sampled_from(["get", "delete"]), st.tuples(NAMES)),
    st.tuples(st.just("set"), st.tuples(NAMES, VALUES)),
    st.tuples(st.sampled_from(["get_many", "delete_many"]), st.tuples(st.lists(NAMES))),
    st.tuples(st.just("set_many"), st.tuples(st.dictionaries(NAMES, VALUES))),
    st.tuples(st.just("list_keys"), st.tuples(NAMES)),
    st.tuples(st.sampled_from(["get_all", "list_namespaces", "clear"]), st.just(())),
)
STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["default", "other"]), CALLS))

Model = dict[str, dict[str, Any]]


def expected(model: Model, namespace: str, operation: str, args: tuple[Any, ...]) -> Any:
    """Apply an operation to a dict of dicts."""
    kept = model.setdefault(namespace, {})
    match operation, args:
        case "get", (key,):
            return kept.get(key)
        case "set", (key, value):
            kept[key] = value
        case "delete", (key,):
            return kept.pop(key, model) is not model
        case "get_many", (keys,):
            return {key: kept[key] for key in keys if key in kept}
        case "set_many", (items,):
            kept.update(items)
            return len(items)
        case "delete_many", (keys,):
            for key in keys:
                kept.pop(key, None)
            return len(keys)
        case "list_keys", (prefix,):
            return sorted(key for key in kept if key.startswith(prefix))
        case "list_namespaces", ():
            return sorted(each for each, held in model.items() if held)
        case "get_all", ():
            return kept
        case "clear", ():
            model[namespace] = {}
            return len(kept)
    return None


@pytest.fixture(scope="module")
def servers() -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(python(SERVE)) for _ in range(2)]


@given(steps=STEPS)
def test_store_shared_by_two_processes_behaves_like_a_dict(
    servers: list[subprocess.Popen[str]], steps: list[Any]
) -> None:
    model: Model = {}
    with TemporaryDirectory() as folder:
        for server, namespace, (operation, args) in steps:
            tell(servers[server], json.dumps([f"{folder}/x", namespace, operation, args]))
            assert json.loads(line(servers[server])) == expected(model, namespace, operation, args)


def test_sigkill_loses_only_the_current_operation(
    tmp_path: Path,
) -> None:
    path = tmp_path / FILE_NAME
    with ExitStack() as stack:
        writers = {name: stack.enter_context(python(WRITE, path, name)) for name in "abc"}
        for writer in writers.values():
            tell(writer)
        told = {name: 0 for name in writers}
        for _ in range(10):
            told |= {name: int(line(writer)) for name, writer in writers.items()}
        for writer in writers.values():
            writer.kill()
        for name, writer in writers.items():
            # Operations that it reported before it was killed count too.
            assert writer.stdout is not None
            told[name] = max([told[name], *map(int, writer.stdout.read().split("\n")[:-1])])
    kept = DataStore(path).get_all()
    for name, last in told.items():
        mine = sorted(value for key, value in kept.items() if key.startswith(f"{name}."))
        assert mine in (list(range(1, last + 1)), list(range(1, last + 2)))
    assert len({json.dumps(kept[f"k{each}"]) for each in range(50)}) == 1
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_kill_during_a_bulk_operation_rolls_it_back(store: DataStore, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from nb_agents import cancel
from nb_agents.tools.data_store import DataStore
class PauseGate(cancel.CancelToken):
    checks = 0
    def checkpoint(self):
        self.checks += 1
        if self.checks == 40:
            print("in the middle", flush=True)
            sys.stdin.readline()
with cancel.bind(PauseGate()):
    DataStore(Path(sys.argv[1])).set_many({f"k{each}": each for each in range(30)})
"""
    with python(code, tmp_path / FILE_NAME) as process:
        assert line(process) == "in the middle"
        process.kill()
        process.wait(WAIT_S)
        assert store.get_all() == START
        store.set("a", 1)


@given(st.text() | st.dictionaries(st.text(), st.text() | st.integers()).map(json.dumps))
async def test_no_arguments_crash_a_call(args: str) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        context = ToolContext("a", place, (), place, place, (), lambda text: None)
        for each in store_tools(context):
            assert isinstance(await each.call(args), ToolResult)
