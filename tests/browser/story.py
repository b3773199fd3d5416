"""Shared code of the browser tests: a notebook with nb_agents, as a user sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Dialog, Locator, expect
from playwright.sync_api import Request as PageRequest

from tests.browser.lab import IS_OLD_LAB, NotebookPage, write_notebook
from tests.model_server import ModelServer, Reply, Request, ToolCall

__all__ = ["KERNELS_SETTINGS", "LOAD", "Story", "agent", "demo_team", "server_team"]

KERNELS_SETTINGS = "@jupyterlab/apputils-extension:kernels-settings"
LOAD = "%load_ext nb_agents"
WIDGET_ERRORS = ("Error displaying widget", "Loading widget", "Error creating widget")
# If a kernel replies slowly, the page also asks the server. The run may have ended by then, and the
# browser logs each refusal.
_LATE_STOP = r"status of 409 \(Conflict\) \(\S+/stop\?"
# JupyterLab's debugger queries each kernel, and the tests end kernels between notebooks.
_ENDED_KERNEL = r"Could not restore the debugger state: Canceled future for debug_request"
# A Jupyter server caches the paths of static files by name. JupyterLab and Notebook 7 have fonts
# with the same names, so the second page is refused its own.
_FONT = r"status of 403 \(Forbidden\) \(\S+/static/\w+/\w+\.woff\)"
# JupyterLab 4.2 reads the models of files and cells that it has closed. It still measures the
# toolbar of such a cell: https://github.com/jupyterlab/jupyterlab/issues/16667
_OLD_LAB = (
    r"Cannot read properties of undefined \(reading 'last_modified'\)",
    r"Cannot read properties of null \(reading 'type'\)\s+at \w+\._cellToolbarOverlapsContents ",
)
_LOCAL = re.compile(r"(https?|wss?)://(127\.0\.0\.1|localhost)[:/]|data:|blob:|about:")


class Story:
    """One test's notebook, alone in a folder; the kernel works in that folder.

    Attributes:
        page: The browser tab.
        folder: The directory of the notebook and its sessions.
        strangers: Requests of the page to other machines.
        dialogs: Messages of alert, confirm and prompt.
        harmless: Patterns of expected errors, and of errors that nb_agents does not cause.
    """

    def __init__(self, page: NotebookPage, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.strangers: list[str] = []
        self.dialogs: list[str] = []
        self.harmless = [_LATE_STOP, _ENDED_KERNEL, _FONT, *(_OLD_LAB if IS_OLD_LAB else ())]
        page.console_errors.clear()

    def __enter__(self) -> Story:
        self.page.page.on("request", self._note_request)
        self.page.page.on("dialog", self._note_dialog)
        return self

    def __exit__(self, *error: object) -> None:
        self.page.page.remove_listener("request", self._note_request)
        self.page.page.remove_listener("dialog", self._note_dialog)

    def _note_request(self, request: PageRequest) -> None:
        if not _LOCAL.match(request.url):
            self.strangers.append(request.url)

    def _note_dialog(self, dialog: Dialog) -> None:
        if dialog.type != "beforeunload":
            self.dialogs.append(dialog.message)

    def check(self) -> None:
        """Assert that the page showed no errors and sent no requests to other machines."""
        shown = self.page.output_text() if self.page.notebook else ""
        assert not [error for error in WIDGET_ERRORS if error in shown], shown
        harmless = re.compile("|".join(self.harmless))
        errors = [error for error in self.page.console_errors if not harmless.search(error)]
        assert not errors, errors
        assert not self.strangers, self.strangers
        assert not self.dialogs, self.dialogs

    # Cells

    def open(self, *cells: str, view: str = "lab/tree") -> None:
        """Write a notebook, open it and load the extension; ``cells`` come after."""
        write_notebook(self.folder / "story.ipynb", [LOAD, *cells])
        notebook = f"{self.folder.name}/story.ipynb"
        if view == "lab/tree" and self.page.is_loaded():
            self.page.show_notebook(notebook)
        else:
            self.page.open_notebook(notebook, view=view)
        self.page.run_cell(0)

    def run(self, source: str, wait: bool = True) -> int:
        """Append a cell and run it. Returns its index."""
        i = self.page.append_cell(source)
        self.page.run_cell(i, wait)
        return i

    def start(self, task: str, options: str = "", wait: bool = True) -> int:
        """Start a run in a new cell. Returns the cell's index when it shows the run.

        A run that ends immediately shows only its card, and possibly no panel.
        """
        i = self.run(f"%%agents {options}\n{task}".replace("%%agents \n", "%%agents\n"), wait)
        self.panel(i).or_(self.card(i)).filter(visible=True).first.wait_for()
        return i

    def team(self, team: Mapping[str, Any], name: str = "team.yaml") -> str:
        """Write a team file. Returns the option with its path."""
        (self.folder / name).write_text(yaml.safe_dump(dict(team)))
        return f"--config {name}"

    # What is seen

    def panel(self, i: int) -> Locator:
        """The live panel in a cell's output."""
        return self.page.outputs(i).locator(".nba")

    def card(self, i: int) -> Locator:
        """The card in a cell's output; a row that is opened on a sweep's panel has its own."""
        return self.page.outputs(i).locator(
            '[role="group"][aria-label^="nb_agents:"]:not(.nba.sweep *)'
        )

    def chip(self, i: int) -> Locator:
        """The panel's status chip."""
        return self.panel(i).locator("header .chip")

    def row(self, i: int, name: str) -> Locator:
        """Return an agent's row on the panel."""
        rows = self.panel(i).locator("tbody tr:not(.below)")
        return rows.filter(has=self.page.page.get_by_text(name, exact=True))

    def expect_writing(self, i: int, name: str) -> None:
        """Wait until an agent's row shows that it writes, or how long its model is silent."""
        expect(self.row(i, name)).to_contain_text(re.compile(r"writing|silent for \d"))

    def wait_running(self, i: int) -> None:
        """Wait until an agent is writing."""
        self.page.wait_until(
            lambda: self.panel(i).locator(".caret:visible").count(),
            what=f"words on the panel of cell {i}",
            seen=lambda: self.page.output_text(i),
        )

    def wait_card(self, i: int, state: str) -> Locator:
        """Wait for the card of a state, such as "stopped", which replaces the panel."""
        card = self.card(i)
        # The chip of the card itself; the steps of a recipe have chips with the same text.
        card.get_by_text(re.compile(rf"^\W+ {state}$")).first.wait_for()
        expect(self.panel(i)).to_have_count(0)
        return card

    # What is on the disk

    def sessions(self) -> list[Path]:
        """The sessions, by name."""
        return sorted((self.folder / ".nb_agents" / "sessions").glob("session_*"))

    def turn(self, number: int = 1, session: int = 0) -> Path:
        """A turn's directory."""
        return self.sessions()[session] / f"turn_{number}"

    def events(self, kind: str, number: int = 1, session: int = 0) -> list[dict[str, Any]]:
        """Return the events of one kind in a turn's journal."""
        lines = (self.turn(number, session) / "events.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event["kind"] == kind]

    def wait_streamed(self, **words: int) -> None:
        """Wait until the first turn's journal has this many words of each of these agents."""

        def streamed() -> dict[str, int]:
            texts = dict.fromkeys(words, "")
            for event in self.events("text_streamed"):
                if event["agent"] in texts and event["channel"] == "text":
                    texts[event["agent"]] += event["text"]
            return {name: len(text.split()) for name, text in texts.items()}

        self.page.wait_until(lambda: streamed() == words, what=f"{words} words", seen=streamed)

    def metadata(self, number: int = 1, session: int = 0) -> dict[str, Any]:
        """A turn's metadata."""
        data: dict[str, Any] = json.loads(
            (self.turn(number, session) / "metadata.json").read_text()
        )
        return data


def demo_team(words_per_second: float, count: int = 3) -> dict[str, Any]:
    """Return a team of the demo model with another speed."""
    backend = {"type": "demo", "words_per_second": words_per_second}
    names = ["ada", "ben", "cleo", *(f"agent_{n:02}" for n in range(4, count + 1))]
    return {"agents": [{"id": name, "backend": backend} for name in names[:count]]}


def server_team(server: ModelServer, **models: str) -> dict[str, Any]:
    """Return a team with models of the server, from the agents' names and models."""
    return {
        "agents": [
            {
                "id": name,
                "backend": {
                    "type": "openai",
                    "model": model,
                    "base_url": server.url,
                    "api_key": "k",
                },
            }
            for name, model in models.items()
        ]
    }


def agent(
    answer: str,
    says: str = "",
    files: Mapping[str, str] | None = None,
    final: str = "",
    hang_after: int | None = None,
) -> Callable[[Request], Reply]:
    """Return the replies of an agent that writes files, answers, votes, and presents if it wins.

    Args:
        answer: The answer to submit.
        says: The text to stream before the answer.
        files: The files to write first, by path.
        final: The final answer. By default, the same as `answer`.
        hang_after: Number of chunks after which the model stops responding.
    """

    def reply(request: Request) -> Reply:
        if "<FINAL PRESENTATION>" in request.prompt:
            return _call(final or answer, "new_answer", content=final or answer)
        if answers := re.findall(r'<ANSWER from="(agent\d+)">', request.prompt):
            why = "It is the most complete of the answers."
            return _call("I compared the answers. ", "vote", agent_id=answers[0], reason=why)
        written = sum(message["role"] == "tool" for message in request.messages)
        for path, content in list((files or {}).items())[written:]:
            return _call(f"First I write {path}. ", "write_file", path=path, content=content)
        return replace(_call(says, "new_answer", content=answer), hang_after=hang_after)

    return reply


def _call(says: str, tool: str, **args: str) -> Reply:
    return Reply(text=says, tool_calls=(ToolCall(tool, args),))
