"""The browser harness works like a user of JupyterLab."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.lab import Lab, NotebookPage, start_lab, write_notebook

KERNELS_SETTINGS = "@jupyterlab/apputils-extension:kernels-settings"
SLEEP = "import time; print('begun', flush=True); time.sleep(600)"
BUTTON = (
    "import ipywidgets\n"
    "label = ipywidgets.Label('not yet')\n"
    "button = ipywidgets.Button(description='Press me')\n"
    "button.on_click(lambda _: setattr(label, 'value', 'pressed'))\n"
    "ipywidgets.VBox([button, label])"
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = {KERNELS_SETTINGS: {"commsOverSubshells": "disabled"}}
    with start_lab(tmp_path_factory.mktemp("lab"), settings) as lab:
        yield lab


@pytest.fixture
def page(lab: Lab, browser: BrowserContext) -> Iterator[NotebookPage]:
    with NotebookPage(lab, browser) as page:
        yield page
        page.shutdown_kernel()


def test_a_notebook_is_run_interrupted_saved_and_reloaded(page: NotebookPage, lab: Lab) -> None:
    write_notebook(lab.root / "a b" / "one.ipynb", ["print(1+1)", SLEEP])
    page.open_notebook("a b/one.ipynb")
    page.run_cell(0)
    assert (page.output_text(0), page.prompt(0)) == ("2", "[1]:")

    for via in ("toolbar", "command"):
        page.run_cell(1, wait=False)
        page.wait_busy()  # its old output is removed by then
        page.wait_for_text("begun", i=1)  # an earlier interrupt would reach no cell
        assert page.prompt(1) == "[*]:"
        page.interrupt(via)
        page.wait_for_text("KeyboardInterrupt", i=1)
        page.wait_idle()

    last = page.append_cell("draft")
    page.set_cell_source(last, "'the last one'")
    page.run_cell(last)
    page.save()
    assert page.saved().cells[2].outputs[0].data["text/plain"] == "'the last one'"
    page.reload()
    assert page.cell_source(2) == "'the last one'"
    page.wait_for_text("the last one", i=2)
    page.wait_for_text("KeyboardInterrupt")
    assert page.console_errors == []


def test_a_button_is_clicked_and_the_kernel_restarted(page: NotebookPage, lab: Lab) -> None:
    write_notebook(lab.root / "widget.ipynb", [BUTTON, "'button' in globals()"])
    page.open_notebook("widget.ipynb")
    page.run_cell(0)
    page.wait_for_text("not yet", i=0)
    page.click_button("Press me", i=0)
    page.wait_for_text("pressed", i=0)
    page.restart_kernel()
    page.run_cell(1)
    page.wait_for_text("False", i=1)
    with pytest.raises(TimeoutError, match="'never' in the output of cell 1; saw 'False'"):
        page.wait_for_text("never", i=1, timeout_s=0.1)


def test_both_themes_are_shown(page: NotebookPage, lab: Lab, tmp_path: Path) -> None:
    write_notebook(lab.root / "themes.ipynb", ["print('seen')"])
    page.open_notebook("themes.ipynb")
    page.run_cell(0)
    shots = []
    for name in ("JupyterLab Dark", "JupyterLab Light"):
        page.set_theme(name)
        shots.append(page.screenshot(tmp_path / "shots" / f"{name}.png").read_bytes())
    assert shots[0] != shots[1]
    assert page.screenshot(tmp_path / "cell.png", i=0).stat().st_size > 100


def test_each_server_has_its_own_settings_and_kernels(page: NotebookPage, lab: Lab) -> None:
    write_notebook(lab.root / "own.ipynb", ["1"])
    page.open_notebook("own.ipynb")
    setting = page.page.evaluate(
        "id => jupyterapp.serviceManager.settings.fetch(id).then(s => s.raw)", KERNELS_SETTINGS
    )
    assert "disabled" in setting
    assert len(lab.api("kernels")) == 1
    page.shutdown_kernel()
    assert lab.api("kernels") == []
    with pytest.raises(urllib.error.HTTPError):
        lab.api("contents/none.ipynb")


def test_failed_server_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended at its start. Its log:\n.*no_such"):
        start_lab(tmp_path, extra=["--ServerApp.root_dir=/no_such"])
