"""A real Jupyter server for each test file, and its root for runs of the test process."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.model_server import free_port, wait_until
from tests.team_kit import wait_others_ended
from tests.warm import WarmProcess

ROOT = Path(__file__).parents[2]
START_S = 240
OTHERS = ("jupyterlab", "jupyter_lsp", "jupyter_server_terminals", "notebook_shim")


class JupyterServer:
    """A Jupyter server on 127.0.0.1 with the extension enabled, as after an installation.

    Attributes:
        root: The server's root directory.
        url: The extension's address.
        client: A client that sends the token with each request.
    """

    def __init__(self, home: Path, *flags: str, is_warm: bool = True) -> None:
        self.root = home / "root"
        self.root.mkdir()
        self._home = home
        self.token = secrets.token_hex(16)
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self.url = f"{self.base}/nb-agents"
        options = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": port,
            "ServerApp.port_retries": 0,
            "ServerApp.root_dir": self.root,
            "IdentityProvider.token": self.token,
        }
        given = [f"--{name}={value}" for name, value in options.items()]
        self._leave_out_others()
        with self._log.open("wb") as log:
            start = WarmProcess if is_warm else subprocess.Popen
            self.process: Any = start(
                [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
                + [*given, *flags],
                cwd=home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.client = httpx2.Client(headers={"Authorization": f"token {self.token}"}, timeout=120)

    def _environment(self) -> dict[str, str]:
        names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        own = {name: str(self._home / name.lower()) for name in names}
        config = str(ROOT / "nb_agents" / "server")
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "lean")])
        return {**os.environ, **own, "PYTHONPATH": path, "JUPYTER_CONFIG_PATH": config}

    def _leave_out_others(self) -> None:
        """Load no other extensions, which start slowly; our own configuration file enables ours."""
        config = self._home / "jupyter_config_dir" / "jupyter_server_config.json"
        config.parent.mkdir()
        off = dict.fromkeys(OTHERS, False)
        config.write_text(json.dumps({"ServerApp": {"jpserver_extensions": off}}))

    @property
    def _log(self) -> Path:
        return self._home / "server.log"

    @property
    def log(self) -> str:
        """The output of the server."""
        return self._log.read_text(errors="replace")

    @property
    def sessions(self) -> Path:
        """The session root of notebooks in the server's root."""
        return self.root / ".nb_agents" / "sessions"

    def name(self, turn: Path) -> str:
        """Return the name of a turn for requests."""
        return turn.relative_to(self.root).as_posix()

    def get(self, path: str, **options: Any) -> Any:
        """Send a GET request that must succeed. Return the decoded reply."""
        answer = self.client.get(f"{self.url}/{path}", **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        """Send a POST request."""
        return self.client.post(f"{self.url}/{path}", json=body or {}, **options)

    @contextmanager
    def stream(self, path: str, **options: Any) -> Iterator[Iterator[tuple[str, Any, str]]]:
        """Yield server-sent events, each as its kind, data and id."""
        with self.client.stream("GET", f"{self.url}/{path}", **options) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["Content-Type"] == "text/event-stream"
            yield _messages(answer.iter_lines())

    def wait_ready(self) -> None:
        wait_until(self._answers, START_S, "the server to answer", lambda: self.log[-3000:])

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"The server ended at its start. Its log:\n{self.log[-3000:]}")
        try:
            return self.client.get(f"{self.base}/api").status_code == 200
        except httpx2.TransportError:
            return False

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _messages(lines: Iterator[str]) -> Iterator[tuple[str, Any, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield fields["event"], json.loads(fields["data"]), fields.get("id", "")
        fields = {}


@contextmanager
def jupyter_server(home: Path, *flags: str, is_warm: bool = True) -> Iterator[JupyterServer]:
    """Run a server. A warm one has already looked for installed extensions."""
    server = JupyterServer(home, *flags, is_warm=is_warm)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    wait_others_ended()
    with jupyter_server(tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture
def jupyter(running_server: JupyterServer) -> Iterator[JupyterServer]:
    """A server without sessions."""
    before = len(running_server.log)
    yield running_server
    assert "Traceback" not in running_server.log[before:]
    for path in running_server.root.iterdir():
        # The server may poll a turn after a test has closed its stream, and recreate its lock.
        path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
