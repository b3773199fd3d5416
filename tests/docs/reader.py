"""A reader who tries the examples of a page, one after the other, in one notebook and terminal.

    with Reader(tmp_path, page) as reader:
        reader.try_page()

The reader uses the demo model instead of providers' models, waits for a run to end before the next
example unless that one acts on a live run, and skips what needs a server that tests don't have. A
page that names the address of a Jupyter server gets a real one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from types import TracebackType

import yaml

from tests import warm
from tests.docs.blocks import ROOT, Block, blocks
from tests.kernel.driver import Kernel
from tests.model_server import wait_until
from tests.server.conftest import jupyter_server

__all__ = ["Reader"]

FAST, SLOW = 150, 25
"""Words per second of the demo model: a turn takes about two seconds, or twelve."""

NEEDS = {
    "tcp://scheduler": "a Dask scheduler",
    "OTLPSpanExporter": "a collector of traces",
    "--endpoint": "a collector of traces",
    "TeamPersona": "Jupyter AI",
    "doctor --record": "a model provider",
}
"""Text of examples that need a server, which only have to parse."""

_VERBS = "runs|show|stop|pause|continue|say|fold|approve|deny|answer|follow|wait|steer"
WHILE_LIVE = re.compile(rf"curl|(?:%agents|nb-agents)(?: (?:{_VERBS})\b|$)", re.MULTILINE)
"""Commands that a reader uses while a run works."""

_SPEED = "from nb_agents.models import demo; demo.DEMO_WORDS_PER_SECOND = {}"
_CLI = f"{_SPEED}; from nb_agents.cli import main; main()"
_SETTLED = "[(r.id, r.status) for r in __import__('nb_agents').runs() if not r.is_over]"
_FAILED = "[str(r) for r in __import__('nb_agents').runs() if r.state == 'failed']"
_END = "[(r.stop(now=True), r.wait(raise_on_stop=False)) for r in nb_agents.runs()]"


ADDRESS, TOKEN = "http://localhost:8888", "$JUPYTER_TOKEN"
"""How the pages call a Jupyter server and its token."""


class Reader:
    """A notebook and a terminal in one directory.

    Args:
        home: An empty directory. The reader works in a directory below it.
        page: The page whose examples are tried.
    """

    def __init__(self, home: Path, page: Path) -> None:
        self._home, self._page = home, page
        self._folder = home / "root"  # where a server's directory is
        self._open = ExitStack()

    def __enter__(self) -> Reader:
        with ExitStack() as stack:
            self._server = None
            if ADDRESS in self._page.read_text("utf-8"):
                self._server = stack.enter_context(jupyter_server(self._home))
            self._folder.mkdir(exist_ok=True)
            self._kernel = stack.enter_context(Kernel(cwd=self._folder))
            self._run("%load_ext nb_agents")
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._open:
            if self._kernel.is_alive:
                self._kernel.run(f"import nb_agents; {_END};")

    def try_page(self, without: str = "") -> None:
        """Try the examples of the page, in their order.

        A run is slow if the next example acts on it while it works.

        Args:
            without: A pattern of examples to skip.
        """
        every = blocks("cell", "shell", "yaml", "python", pages=[self._page])
        examples = [each for each in every if not (without and re.match(without, each.text))]
        for block, following in zip_longest(examples, examples[1:]):
            is_used_live = following is not None and WHILE_LIVE.match(following.text)
            self._try(block, SLOW if is_used_live else FAST)

    def _try(self, block: Block, speed: int) -> None:
        if any(part in block.text for part in NEEDS):
            return
        text = _offline(block.text)
        if self._server is not None:
            text = text.replace(ADDRESS, self._server.base).replace(TOKEN, self._server.token)
        if block.kind == "yaml":
            self._save(text)
        elif block.kind == "shell":
            for line in text.replace("\\\n", " ").splitlines():
                self._type(line, speed)
        else:
            self._wait_for_runs(text)
            self._run(_SPEED.format(speed))
            self._run(text)

    @property
    def failed(self) -> list[str]:
        """The notebook's runs that failed."""
        self._wait_for_runs("")
        return list(self._kernel.eval(_FAILED))

    def _save(self, text: str) -> None:
        named = re.match(r"# (\S+\.yaml)$", text, re.MULTILINE)
        data = yaml.safe_load(text)
        is_recipe = "steps" in data or "stages" in data
        name = named[1] if named else f"{data['name']}.yaml" if is_recipe else "team.yaml"
        (self._folder / name).write_text(text)

    def _run(self, text: str) -> None:
        result = self._kernel.run(text, timeout_s=120)
        assert result.status == "ok", f"{text}\n{result}"
        assert "UsageError" not in result.stderr, f"{text}\n{result.stderr}"

    def _type(self, line: str, speed: int) -> None:
        if line.startswith("curl ") and (curl := shutil.which("curl")):
            argv = [curl, "--fail", *shlex.split(line, comments=True)[1:]]
            subprocess.run(argv, cwd=self._folder, check=True, timeout=120)
        if not line.startswith("nb-agents "):
            return
        self._wait_for_runs(line)
        argv = [sys.executable, "-c", _CLI.format(speed), *shlex.split(line, comments=True)[1:]]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        process = warm.WarmProcess(
            argv,
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, f"{line}\n{output.decode()}"

    def _wait_for_runs(self, text: str) -> None:
        """Wait until runs are over or ask, unless the next example acts on a live run."""
        if re.match(r"\S+ (?:approve|deny|answer)", text):
            wait_until(lambda: "awaiting" in self._states, 60, "a question", self._look)
        elif not WHILE_LIVE.match(text):
            ended = lambda: set(self._states) <= {"awaiting"}  # noqa: E731
            wait_until(ended, 60, "the runs to end", self._look)

    @property
    def _states(self) -> list[str]:
        return [status for _, status in self._look()]

    def _look(self) -> list[tuple[str, str]]:
        return list(self._kernel.eval(_SETTLED))


def _offline(text: str) -> str:
    """Return an example with the demo model instead of the providers' models."""
    text = re.sub(r"type: \w+, model: [\w.-]+|type: \w+, model: \"[^\"]+\"", "type: demo", text)
    text = re.sub(r"type: \w+\n( +)model: \S+", r"type: demo", text)
    text = re.sub(r'\b(Agent|ctx\.model)\(([^)]*)"openai:gpt-5-mini"', r'\1(\2"test"', text)
    return text.replace("openai:gpt-5-mini", "demo:demo")
