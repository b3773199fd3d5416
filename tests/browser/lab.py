"""Drives a real JupyterLab in a real Chromium, as a user would.

    write_notebook(root / "a.ipynb", ["print(1 + 1)"])
    with start_lab(root) as lab, chromium() as browser:
        page = NotebookPage(lab, browser)
        page.open_notebook("a.ipynb")
        page.run_cell(0)
        page.wait_for_text("2", i=0)

Except for notebooks, the server writes only to its own temporary directory. One server serves a
whole test file. Notebooks are identified by their path below the server's root, cells by index.

Playwright's synchronous API occupies the thread's event loop: while a browser is open, the same
thread can't run `asyncio.run` or async tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import nbformat
from nbformat import v4
from playwright.sync_api import (
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    ViewportSize,
    sync_playwright,
)

from tests import warm
from tests.model_server import free_port, wait_until

__all__ = [
    "IS_OLD_LAB",
    "Lab",
    "NotebookPage",
    "chromium",
    "chromium_path",
    "start_lab",
    "write_notebook",
]

_ROOT = Path(__file__).parents[2]
# `make compat` tries the page in it, too.
IS_OLD_LAB = version("jupyterlab").startswith("4.2.")
_START_S = 200  # generous, for busy machines
_ACTION_S = 60
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_SERVER_FLAGS = (
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    # Ports are chosen before a kernel opens them: another process may take them meanwhile.
    "--KernelManager.transport=ipc",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    # Otherwise each page checks whether to rebuild JupyterLab, which starts two programs.
    "--ServerApp.tornado_settings={'page_config_data': {'buildCheck': False}}",
)
_QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
# By default, JupyterLab 4.2 sometimes does not draw an inserted cell:
# https://github.com/jupyterlab/jupyterlab/issues/17023
_DRAWS_ALL_CELLS = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "defer"}}

_WARM_KERNELS = """
from tests import warm
c.KernelProvisionerFactory.default_provisioner_name = warm.PROVISIONER
"""


def chromium_path() -> str | None:
    """The Chromium of this machine, or None."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


@contextlib.contextmanager
def chromium() -> Iterator[BrowserContext]:
    """Run a headless Chromium. Its pages share a cache, so they load twice as fast.

    Playwright's own download isn't needed.
    """
    path = chromium_path()
    if path is None:
        raise RuntimeError(f"No browser found: none of {', '.join(_BROWSERS)} is on PATH.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*_CHROMIUM_FLAGS])
        try:
            yield browser.new_context()
        finally:
            browser.close()


def write_notebook(path: Path, cells: Iterable[str | nbformat.NotebookNode]) -> Path:
    """Write a notebook; a string is a code cell. Returns the path."""
    made = [v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = v4.new_notebook(cells=made, metadata={"kernelspec": kernel})
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


# --- the server -----------------------------------------------------------------------------------


class Lab:
    """A JupyterLab server from `start_lab`. Stop it or use it as a context manager.

    Attributes:
        root: The directory that it serves.
        url: Its address, without token.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Mapping[str, Any]],
        env: Mapping[str, str],
        extra: Iterable[str],
    ) -> None:
        self.root = root
        self.token = secrets.token_hex(16)
        self._home = Path(tempfile.mkdtemp(prefix="nb-lab-"))
        self.set_settings({**_QUIET, **(_DRAWS_ALL_CELLS if IS_OLD_LAB else {}), **settings})
        self._warm_kernels()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = [*_SERVER_FLAGS, f"--ServerApp.port={port}", f"--ServerApp.root_dir={root}"]
        self._flags = [*flags, f"--IdentityProvider.token={self.token}", *extra]
        self._env = self._environment(env)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *self._flags],
                cwd=self.root,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for pytest
            )

    def kill(self) -> None:
        """End the server with SIGKILL. Its kernels may continue."""
        self.process.kill()
        self.process.wait(5)

    def restart(self) -> None:
        """Start the server again at the same address, and wait until it answers."""
        self.process = self._start()
        self.wait_ready()

    def __enter__(self) -> Lab:
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
        return self._home / "server.log"

    @property
    def log(self) -> str:
        """The terminal output of the server and its kernels."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        names = {"JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"}
        names |= {"JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"}
        lean = str(_ROOT / "tests" / "lean")
        path = [str(_ROOT), lean, *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {name: str(self._home / name.lower()) for name in names}
        own |= {"JUPYTER_CONFIG_PATH": str(_ROOT / "nb_agents" / "server")}
        own |= {"JUPYTER_PATH": str(self._link_plugin())}
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(path), **extra}

    def _link_plugin(self) -> Path:
        """Serve the current build of the plugin instead of the installed one."""
        link = self._home / "data" / "labextensions" / "nb-agents"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(_ROOT / "nb_agents" / "labextension", target_is_directory=True)
        return self._home / "data"

    def set_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Set user settings, by plugin, for pages that are loaded from now on."""
        for plugin, values in settings.items():
            package, _, name = plugin.partition(":")
            file = self._home / "jupyterlab_settings_dir" / package / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))

    def disable_plugins(self, *names: str) -> None:
        """Disable these plugins, and no others, for pages that are loaded from now on."""
        file = self._home / "jupyter_config_dir" / "labconfig" / "page_config.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"disabledExtensions": dict.fromkeys(names, True)}))

    def _warm_kernels(self) -> None:
        """Fork kernels from a process of the tests; see `tests.warm`."""
        if sys.platform == "linux":
            warm.address()  # found by the environment
            config = self._home / "jupyter_config_dir" / "jupyter_server_config.py"
            config.parent.mkdir(exist_ok=True)
            config.write_text(_WARM_KERNELS)

    def page_url(self, notebook: str, view: str = "lab/tree") -> str:
        """The address that opens a notebook in a fresh workspace.

        Args:
            notebook: Its path.
            view: JupyterLab's, or "notebooks", which is Notebook 7's.
        """
        quoted = urllib.parse.quote(notebook)
        return f"{self.url}/{view}/{quoted}?token={self.token}&reset"

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Call the server's REST API, such as `api("kernels")`. Returns the decoded reply."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data, method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=_ACTION_S) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None

    def end_kernels(self) -> None:
        """Shut down all kernels by the REST API."""
        for kernel in self.api("kernels"):
            self.api(f"kernels/{kernel['id']}", "DELETE")

    def wait_ready(self) -> None:
        """Wait until the server answers."""
        wait_until(self._answers, _START_S, "JupyterLab to answer", lambda: self.log[-3000:])

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at its start. Its log:\n{self.log[-3000:]}")
        try:
            return bool(self.api("status"))
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False

    def stop(self) -> None:
        """End the server and its kernels as Ctrl-C in its terminal does. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        shutil.rmtree(self._home, ignore_errors=True)


def start_lab(
    root_dir: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    env: Mapping[str, str] | None = None,
    extra: Iterable[str] = (),
) -> Lab:
    """Start JupyterLab on a free port of 127.0.0.1 and wait until it answers.

    Args:
        root_dir: The directory with the notebooks.
        settings: By plugin, such as `{"@jupyterlab/apputils-extension:themes": {"theme": ...}}`.
        env: Variables added to the server's and so to the kernels' environment.
        extra: More flags for the server.
    """
    lab = Lab(root_dir, settings or {}, env or {}, extra)
    try:
        lab.wait_ready()
    except BaseException:
        lab.stop()
        raise
    return lab


# --- the page -------------------------------------------------------------------------------------

# Runs before the page's own scripts at each load. `start` stores a promise's outcome, because the
# test clicks (in dialogs, on Stop) while JupyterLab's command is still running.
_HELPERS = """
window.harness = {
  started: [],
  panel(path) {
    const widgets = [...(window.jupyterapp?.shell.widgets('main') ?? [])];
    return widgets.find(w => w.context?.path === path && w.content?.widgets);
  },
  start(action) {
    const outcome = {done: false, error: null};
    Promise.resolve().then(action).then(
      () => { outcome.done = true; },
      e => { outcome.done = true; outcome.error = String(e); });
    return this.started.push(outcome) - 1;
  },
};
"""


class NotebookPage:
    """A browser tab with one notebook.

    Attributes:
        page: Playwright's page, for what this class doesn't offer.
        console_errors: Errors in the console, and uncaught exceptions with their stacks, since the
            page was created.
    """

    def __init__(
        self, lab: Lab, browser: BrowserContext, width: int = 1280, height: int = 900
    ) -> None:
        self.lab = lab
        self.notebook = ""
        self.console_errors: list[str] = []
        self.page: Page = browser.new_page()
        self._size: ViewportSize = {"width": width, "height": height}
        self.page.set_viewport_size(self._size)
        self.page.set_default_timeout(_ACTION_S * 1000)
        self.page.add_init_script(_HELPERS)
        self.page.on("console", self._note_console)
        self.page.on(
            "pageerror", lambda error: self.console_errors.append(error.stack or str(error))
        )
        # "Leave site?" on a reload with unsaved changes; Playwright would not leave.
        self.page.on("dialog", lambda dialog: dialog.accept())

    def __enter__(self) -> NotebookPage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.console_errors.append(f"{message.text} ({message.location['url']})")

    # The page

    def open_notebook(self, notebook: str, kernel: bool = True, view: str = "lab/tree") -> None:
        """Open a notebook by its path below the server's root and wait for its kernel to be idle.

        Args:
            notebook: The path, such as "demo/a.ipynb".
            kernel: Don't wait for a kernel if False.
            view: As for `Lab.page_url`.
        """
        self.notebook = notebook
        self.page.goto(self.lab.page_url(notebook, view))
        self._wait_open(kernel)

    def is_loaded(self) -> bool:
        """Whether JupyterLab is loaded, with or without a notebook."""
        return bool(self.page.evaluate("window.jupyterapp?.name === 'JupyterLab'"))

    def show_notebook(self, notebook: str, kernel: bool = True) -> None:
        """Open a notebook in the loaded JupyterLab, as a click in the file browser does."""
        self.notebook = notebook
        self.command("docmanager:open", path=notebook)
        self._wait_open(kernel)

    def leave(self) -> None:
        """Leave JupyterLab for an empty page of the original size."""
        self.page.goto("about:blank")
        self.page.set_viewport_size(self._size)

    def close_notebooks(self) -> None:
        """Close all notebooks without saving, and restore the original layout."""
        models = "[...app.shell.widgets('main')].flatMap(w => w.context?.model ?? [])"
        # Immediately, or the page would ask whether to save after a run that ends in between.
        self._do(
            f"for (const model of {models}) model.dirty = false; "
            "await app.commands.execute('application:close-all')"
        )
        if self._ask("app.shell.leftCollapsed"):
            self.command("application:toggle-left-area")
        self.page.set_viewport_size(self._size)

    def _wait_open(self, kernel: bool) -> None:
        # Unlike an evaluation, this works during a navigation.
        is_open = "path => Boolean(window.harness?.panel(path))"
        self.page.wait_for_function(is_open, arg=self.notebook, timeout=_START_S * 1000)
        self._do("await panel.context.ready; await panel.revealed")
        self._wait_splash()
        # A loaded page opens its notebook twice: from the saved layout and from its address. A
        # notebook that is closed in between would be opened again.
        self.page.wait_for_selector(".jp-FileBrowser.jp-mod-restoring", state="detached")
        if kernel:
            self.wait_until(
                lambda: self.kernel_status() == "idle", _START_S, "the kernel", self.kernel_status
            )

    def reload(self, kernel: bool = True) -> None:
        """Reload the page, as F5 does; unsaved changes are lost."""
        self.page.reload()
        self._wait_open(kernel)

    def close(self) -> None:
        """Close the tab; its kernel keeps running."""
        self.page.close()

    def save(self) -> None:
        """Save the notebook. Save it again if it changed while it was saved."""

        def is_saved() -> bool:
            self.command("docmanager:save")
            return not self._ask("panel.context.model.dirty")

        self.wait_until(is_saved, _ACTION_S, "the notebook to be saved")

    def saved(self) -> nbformat.NotebookNode:
        """The notebook as it is on the disk."""
        notebook: nbformat.NotebookNode = nbformat.read(self.lab.root / self.notebook, 4)
        return notebook

    def set_theme(self, name: str) -> None:
        """Switch to "JupyterLab Dark" or "JupyterLab Light"."""
        self.command("apputils:change-theme", theme=name)
        self.page.wait_for_selector(f'body[data-jp-theme-name="{name}"]', state="attached")
        self._wait_splash()

    def _wait_splash(self) -> None:
        """Wait until the splash screen of loading and theme changes disappears."""
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def screenshot(self, path: Path, i: int | None = None) -> Path:
        """Save a PNG of the page, or of one cell's output. Returns its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        target: Page | Locator = self.page if i is None else self.outputs(i)
        target.screenshot(path=path)
        return path

    # Cells

    def cell(self, i: int) -> Locator:
        """The cell's element."""
        panel = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        return panel.locator(f'.jp-Cell[data-windowed-list-index="{i}"]')

    def outputs(self, i: int | None = None) -> Locator:
        """The output area of a cell, or all of them."""
        scope = self.page if i is None else self.cell(i)
        return scope.locator(".jp-Cell-outputArea")

    def output_text(self, i: int | None = None) -> str:
        """Return the visible text in the outputs of a cell, or of all cells."""
        # Each output separately, because the area also contains prompts and nested outputs.
        outputs = self.outputs(i).locator("> .jp-OutputArea-child > .jp-OutputArea-output")
        return "\n".join(output.inner_text().strip("\n") for output in outputs.all())

    def cell_count(self) -> int:
        """How many cells the notebook has."""
        return int(self._ask("panel.content.widgets.length"))

    def cell_source(self, i: int) -> str:
        """The source of a cell."""
        return str(self._ask("panel.content.model.sharedModel.getCell(arg).getSource()", i))

    def set_cell_source(self, i: int, source: str) -> None:
        """Replace the source of a cell."""
        self._do("panel.content.model.sharedModel.getCell(arg[0]).setSource(arg[1])", [i, source])

    def insert_cell(self, i: int, source: str) -> None:
        """Insert a code cell before the i-th."""
        cell = {"cell_type": "code", "source": source}
        self._do("panel.content.model.sharedModel.insertCell(arg[0], arg[1])", [i, cell])
        self.cell(i).wait_for()

    def append_cell(self, source: str) -> int:
        """Add a code cell at the end. Returns its index."""
        count = self.cell_count()
        self.insert_cell(count, source)
        return count

    def run_cell(self, i: int, wait: bool = True, timeout_s: float = 60) -> None:
        """Run a cell, as Ctrl-Enter does.

        Args:
            i: The cell's index.
            wait: Whether to wait for the end of the cell.
            timeout_s: Seconds to wait for its end.
        """
        select = "panel.content.activeCellIndex = arg; panel.content.deselectAll()"
        self._do(f"app.shell.activateById(panel.id); {select}", i)
        number = self._start("notebook:run-cell")
        if wait:
            self._finish(number, timeout_s, f"cell {i} to end")

    def prompt(self, i: int) -> str:
        """Return the cell's prompt: `[ ]:`, `[*]:` while it waits or runs, or its count."""
        return self.cell(i).locator(".jp-InputPrompt").first.inner_text().replace("\xa0", " ")

    # The kernel

    def kernel_status(self) -> str | None:
        """`idle`, `busy`, …; None without a kernel."""
        status = self._ask("panel.sessionContext.session?.kernel?.status ?? null")
        return None if status is None else str(status)

    def wait_idle(self, timeout_s: float = 60) -> None:
        """Wait until the kernel is idle and no cell waits or runs."""
        starred = "panel.content.widgets.some(c => c.promptNode?.textContent.includes('*'))"
        self.wait_until(
            lambda: self.kernel_status() == "idle" and not self._ask(starred),
            timeout_s,
            "an idle kernel",
            lambda: (self.kernel_status(), self.output_text()),
        )

    def wait_busy(self, timeout_s: float = 60) -> None:
        """Wait until the kernel works."""
        self.wait_until(
            lambda: self.kernel_status() == "busy", timeout_s, "a busy kernel", self.kernel_status
        )

    def interrupt(self, via: Literal["toolbar", "command"] = "toolbar") -> None:
        """Interrupt the kernel."""
        if via == "toolbar":
            panel = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
            panel.locator('.jp-Toolbar [data-jp-item-name="interrupt"] jp-button').click()
        else:
            self.command("notebook:interrupt-kernel")

    def restart_kernel(self) -> None:
        """Restart the kernel, and confirm the dialog. Returns when the new kernel is idle."""
        number = self._start("notebook:restart-kernel")
        self.accept_dialog()
        self._finish(number, _START_S, "the kernel to restart")
        self.wait_idle()

    def shutdown_kernel(self) -> None:
        """Shut the kernel down and leave the notebook open."""
        self._do("await panel.sessionContext.shutdown()")

    def accept_dialog(self) -> None:
        """Press the main button of JupyterLab's dialog."""
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    # Waiting and doing

    def wait_for_text(
        self, text: str | re.Pattern[str], i: int | None = None, timeout_s: float = 60
    ) -> None:
        """Wait until the outputs of a cell, or of any cell, contain this text."""
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        where = "any cell" if i is None else f"cell {i}"
        self.wait_until(
            lambda: pattern.search(self.output_text(i)),
            timeout_s,
            f"{text!r} in the output of {where}",
            lambda: self.output_text(i),
        )

    def wait_until(
        self,
        predicate: Any,
        timeout_s: float = 60,
        what: str = "the page's state",
        seen: Any = None,
    ) -> Any:
        """Wait until a predicate is true, while the page keeps working."""
        pause = lambda seconds: self.page.wait_for_timeout(seconds * 1000)  # noqa: E731
        return wait_until(predicate, timeout_s, what, seen, pause)

    def button(self, name: str | re.Pattern[str], i: int | None = None) -> Locator:
        """Return the button with an accessible name in the output of a cell, or of any cell."""
        exact = isinstance(name, str)  # "Stop" is not "Stop ada"
        return self.outputs(i).get_by_role("button", name=name, exact=exact)

    def click_button(self, name: str | re.Pattern[str], i: int | None = None) -> None:
        """Click a button in the output of a cell, or of any cell."""
        self.button(name, i).click()

    def command(self, command: str, **args: Any) -> None:
        """Execute a command of JupyterLab's palette and wait for its end."""
        self._finish(self._start(command, args), _ACTION_S, command)

    def _start(self, command: str, args: Mapping[str, Any] | None = None) -> int:
        script = "([id, args]) => harness.start(() => jupyterapp.commands.execute(id, args))"
        return int(self.page.evaluate(script, [command, dict(args or {})]))

    def _finish(self, number: int, timeout_s: float, what: str) -> None:
        ask = f"() => harness.started[{number}]"
        self.wait_until(lambda: self.page.evaluate(ask)["done"], timeout_s, what, self.output_text)
        if error := self.page.evaluate(ask)["error"]:
            raise RuntimeError(f"{what}: {error}")

    def _ask(self, expression: str, arg: Any = None) -> Any:
        """Evaluate a JavaScript expression with `panel`, `app` and `arg`."""
        return self._do(f"return {expression}", arg)

    def _do(self, statements: str, arg: Any = None) -> Any:
        head = "const app = window.jupyterapp, panel = window.harness.panel(path)"
        script = f"async ([path, arg]) => {{ {head}; {statements} }}"
        return self.page.evaluate(script, [self.notebook, arg])
