"""Rules for all tests: only local network connections, no leaked keys; and a browser.

Tests may talk to a model server of their own on loopback, so pydantic-ai's switch
ALLOW_MODEL_REQUESTS is no guard; the sockets of this process are.
"""

import gc
import ipaddress
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import canaries

# A busy machine is slow, not wrong; 50 examples keep each property under a second.
settings.register_profile("nb_agents", deadline=None, max_examples=50)
settings.load_profile("nb_agents")

_HERE = Path(__file__).parent
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # see tests/lean
_KINDS = ("kernel", "browser", "server")
HEAVY = (
    *("acp", "ag2", "agents", "anthropic", "google.genai", "langgraph", "matplotlib", "mcp"),
    "schemathesis",
)
"""What takes a second to load, or longer. Each process of tests imports all test modules, so these
are imported within the few tests that need them."""

LOADED = pytest.StashKey[list[str]]()
"""Which of them were loaded when all test modules were."""

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_NO_BROWSER = (
    "No Chromium found. `apt-get install chromium`, or put chromium or google-chrome on PATH."
)

# Read before the environment is cleaned.
_ARTIFACTS = Path(os.environ.get("NB_AGENTS_ARTIFACTS") or _HERE / "artifacts").absolute()
_BROWSER_REQUIRED = bool(os.environ.get("CI")) or (
    os.environ.get("NB_AGENTS_REQUIRE_BROWSER") == "1"
)


def _is_personal(name: str) -> bool:
    """Tell whether a variable belongs to the developer's own set-up: keys, servers, proxies."""
    name = name.upper()
    if name == "NB_AGENTS_CASSETTES":  # for the tests; see tests/models/streams.py
        return False
    return name.startswith("NB_AGENTS_") or name.endswith(("_API_KEY", "_BASE_URL", "_PROXY"))


def pytest_configure(config: pytest.Config) -> None:
    # Fixtures wider than a test start kernels and servers, which inherit this environment.
    for name in filter(_is_personal, list(os.environ)):
        del os.environ[name]
    canaries.plant(os.environ)
    # What a shell starts in the background ignores it, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Live runs are visible to all processes of a user, but must not be to other tests.
    state = tempfile.TemporaryDirectory(prefix="nb-agents-state-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    # Several processes of tests share what theirs are forked from: it takes seconds to start.
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from tests import warm

        warm.address()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Disable garbage collection during collection, and freeze imported objects afterwards."""
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        session.config.stash[LOADED] = [name for name in HEAVY if name in sys.modules]
        gc.freeze()
        gc.enable()


def _import_share(config: pytest.Config) -> None:
    """Import some test modules before the others, so that each is rewritten by one process alone.

    All processes of tests collect all modules in the same order: without this, each would rewrite
    the assertions of those that pytest has not cached yet.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    ignored = [Path(each).absolute() for each in config.getoption("ignore") or ()]
    roots = [Path(each.partition("::")[0]).absolute() for each in config.args]
    found = [file for root in roots for file in sorted(root.rglob("test_*.py"))]
    files = [file for file in found if not any(map(file.is_relative_to, ignored))]
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception):  # it is told when the module is collected
            import_module(".".join(file.relative_to(_HERE.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for kind in _kinds_of(item.path):
            item.add_marker(kind)


@cache
def _kinds_of(file: Path) -> list[str]:
    return [kind for kind in _KINDS if file.is_relative_to(_HERE / kind)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") is None or any(map(shutil.which, _BROWSERS)):
        return
    if _BROWSER_REQUIRED:
        pytest.fail(_NO_BROWSER, pytrace=False)
    pytest.skip(_NO_BROWSER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that has logged or printed a canary."""
    report = yield
    if report.when == "call" and report.failed:
        _end_runs()
    # A half of a character can't be sent to xdist's controller.
    report.sections = [(title, _encodable(text)) for title, text in report.sections]
    output = "".join(text for _, text in report.sections)  # at teardown: that of all phases
    if report.when == "teardown" and (found := canaries.found_in(output.encode())):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} has logged or printed {', '.join(found)}."
    return report


def _end_runs() -> None:
    """Stop the runs that a failed test left behind, which later tests would find."""
    for run in getattr(sys.modules.get("nb_agents.turns.live_runs"), "live_runs", tuple)():
        run.stop(True)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.fixture(autouse=True, scope="session")
def no_canary_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end of all tests if a file of their runs contains a canary."""
    yield
    found = [*canaries.found_on_disk(tmp_path_factory.getbasetemp())]
    assert not found, "\n".join(["Secrets have reached the disk:", *found])


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without keys or settings that an earlier test left behind."""
    for name in filter(_is_personal, list(os.environ)):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def warm_hosts() -> None:
    """Fork the processes of detached runs: each would take more than a second to start."""
    from tests import warm

    warm.fork_hosts()


@pytest.fixture(autouse=True, scope="session")
def loopback_only() -> Iterator[None]:
    """Fail any connection or name look-up of this process that would leave the machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _guarded_connect(getattr(socket.socket, name)))
        patch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo))
        yield


def _guarded_connect(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _require_local(address[0], address)
        return connect(self, address)

    return guarded


def _guarded_lookup(getaddrinfo: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        _require_local(host, (host, port))
        return getaddrinfo(host, port, *args, **kwargs)

    return guarded


def _require_local(host: str | bytes | None, address: Any) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if not name or name == "localhost":
        return
    try:
        ip = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        ip = None
    if ip is None or not (ip.is_loopback or ip.is_unspecified):
        raise AssertionError(f"A test reached for {address!r}. Tests may only connect to loopback.")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """The directory for screenshots, kept after the run."""
    _ARTIFACTS.mkdir(parents=True, exist_ok=True)
    return _ARTIFACTS
