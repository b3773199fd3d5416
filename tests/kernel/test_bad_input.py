"""Mistakes of users: a sentence for each, no traceback, and nothing is started."""

from __future__ import annotations

import re

import pytest

from tests.kernel.driver import Kernel, Result
from tests.kernel.notebook import Notebook
from tests.kit.cells import VERBS

NO_RUNS = "len(__import__('nb_agents').runs())"


def sentence(result: Result) -> str:
    """Return the only message for the user. IPython prints a UsageError; nb_agents draws others."""
    error = result.error
    told = result.stderr.strip()
    if error and error.ename != "UsageError":
        told = "\n".join([told, *error.traceback]).strip()
    shown = "\n".join([told, result.stdout, *(error.traceback if error else [])])
    assert "Traceback" not in shown
    assert 'File "' not in shown
    assert "\n" not in told, told
    assert re.match(r"(\x1b\[[\d;]*m)*\w+(Error)?: ", told), repr(told)
    assert result.displays == []
    return told


def team(backend: str = "type: demo", agents: str = "a", extra: str = "") -> str:
    blocks = [f"  - id: {a}\n    backend: {{{backend}}}" for a in agents.split(" ")]
    return "agents:\n" + "\n".join(blocks) + f"\n{extra}\n"


CELLS = {
    "unknown option": (
        "%%agents --confg team.yaml\nCount.",
        r"--confg. Did you mean --config\? %%agents\?",
    ),
    "a cluster without a number": (
        "%%agents --cluster local:x\nCount.",
        r"'local:x' does not contain a number of workers. Write, for example, local:4",
    ),
    "unknown verb": (
        "%agents stahp",
        r"no verb 'stahp'. Did you mean 'stop'\? The verbs are: stop, pause, unpause, say",
    ),
    "unknown option of a verb": ("%agents stop --fast", r"--fast.*%agents\?"),
    "open quote": ('%agents stop --reason "why', r"can.t be parsed"),
    "empty task": ("%%agents\n \n", r"The task is empty"),
    "a comment above": (
        "# Ask them.\n\n%%agents\nIs it, and why?",
        r"%%agents must be the first line of its cell. Move the lines above",
    ),
    "code above": ("x = 1\n!true\n%%agents --config t\nIs it?", r"must be the first line"),
    "no task at all": ("%%agents", r"task is empty|cell body"),
    "unknown name": ("%%agents\nDo {{nothing_here}}.", r"variable 'nothing_here' is not defined"),
    "timeout is no number": ("%%agents --orchestrator-timeout soon\nCount.", r"'soon'"),
    "timeout of 0": ("%%agents --orchestrator-timeout 0\nCount.", r"0.0 seconds.*positive number"),
    "timeout below 0": ("%%agents --orchestrator-timeout -5\nCount.", r"-5"),
    "timeout nan": ("%%agents --orchestrator-timeout nan\nCount.", r"nan"),
    "timeout inf": ("%%agents --orchestrator-timeout inf\nCount.", r"inf"),
    "out is no name": ("%%agents --out 1st\nCount.", r"--out 1st is not a variable name"),
    "out is a keyword": ("%%agents --out class\nCount.", r"--out class"),
    "unknown run": ("%agents stop r999", r"No run named 'r999'"),
    "unknown run to wait for": ("%agents wait r999", r"No run named 'r999'"),
    "unknown session": ("%agents show nowhere", r"nowhere"),
    "unknown session to continue": ("%%agents --continue --session nope\nGo on.", r"nope"),
    "nothing to continue": ("%%agents --continue\nGo on.", r"[Nn]o session"),
    "unsafe session name": ("%%agents --session ../up\nCount.", r"No session 'up' in"),
    "missing file": ("%%agents --config gone.yaml\nCount.", r"gone\.yaml"),
    "a directory": ("%%agents --config /\nCount.", r"/"),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_mistake_in_a_cell(notebook: Notebook, name: str) -> None:
    source, pattern = CELLS[name]
    before = notebook.kernel.eval(NO_RUNS)
    told = sentence(notebook.kernel.run(source))
    assert re.search(pattern, told), told
    assert notebook.kernel.eval(NO_RUNS) == before
    assert not list(notebook.root.glob("*/turn_*"))


FILES = {
    "malformed YAML": ("agents:\n  - id: [a\n    backend: {}\n", r"team\.yaml:\d"),
    "not a mapping": ("- a\n- b\n", r"team\.yaml"),
    "empty": ("", r"team\.yaml"),
    "no agents": ("agents: []\n", r"team\.yaml:1"),
    "missing key": ("agents:\n  - id: a\n", r"team\.yaml:2.*backend.*missing"),
    "slip in a key": (team("type: demo, modle: x"), r"team\.yaml:3.*modle.*did you mean 'model'"),
    "unknown type": (
        team("type: openia, model: x"),
        r"type 'openia', which is not supported. Did you mean 'openai'\?",
    ),
    "no model": (team("type: openai, api_key: k"), r"has no model"),
    "unset key variable": (
        team('type: openai, model: x, api_key: "${UNSET_KEY}"'),
        r"UNSET_KEY is not set",
    ),
    "no key": (team("type: openai, model: x"), r"OPENAI_API_KEY is not set"),
    "unset variable in the address": (
        team('type: openai, model: x, api_key: k, base_url: "${UNSET_URL}/v1"'),
        r"UNSET_URL is not set",
    ),
    "same id twice": (team(agents="a a"), r"two agents are named 'a'"),
    "unsafe id": (team(agents="a ../b"), r"team\.yaml:4.*'../b' can't be a directory name"),
    "timeout is no number": (
        team(extra="timeout_settings: {orchestrator_timeout_seconds: soon}"),
        r"team\.yaml:4.*orchestrator_timeout_seconds",
    ),
    "timeout of 0": (
        team(extra="timeout_settings: {orchestrator_timeout_seconds: 0}"),
        r"team\.yaml:4.*above 0",
    ),
    "empty file": ("", r"team\.yaml:1: The file is empty; a team file is a mapping with"),
    "a list": ("- a\n", r"The file contains a list; a team file is a mapping"),
    "no text": ("agents: \x00", r"character 9 is not printable. Save the file as plain text"),
    "a recipe": (
        "name: r\nsteps:\n  - {id: a, agent: x, prompt: p}\n",
        r"This is a recipe, not a team file. Start it with --recipe",
    ),
    "missing context path": (
        team(extra="orchestrator: {context_paths: [/no/such/place]}"),
        r"/no/such/place.*does not exist",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_in_the_team_file(notebook: Notebook, name: str) -> None:
    text, pattern = FILES[name]
    notebook.team.write_text(text)
    before = notebook.kernel.eval(NO_RUNS)
    told = sentence(notebook.kernel.run(notebook.magic()))
    assert re.search(pattern, told), told
    assert notebook.kernel.eval(NO_RUNS) == before
    assert not list(notebook.root.glob("*"))
    # In Python, the sentence is the same and there is no traceback either.
    code = f"__import__('nb_agents').start('Count.', config={str(notebook.team)!r})"
    assert re.search(pattern, sentence(notebook.kernel.run(code)))


def test_a_session_root_below_a_file(notebook: Notebook) -> None:
    blocker = notebook.place / "file"
    blocker.write_text("")
    root = blocker / "sessions"
    told = sentence(notebook.kernel.run(notebook.magic(f"--session-root {root}")))
    assert str(root) in told
    told = sentence(notebook.kernel.run(notebook.magic(f"--session-root {root} --session s")))
    assert str(root) in told
    listed = notebook.kernel.run(f"%agents sessions --session-root {root}")
    assert listed.status == "ok"
    assert notebook.server.count() == 0


def test_a_busy_session(notebook: Notebook) -> None:
    turn = notebook.start_held("--session busy")
    told = sentence(notebook.kernel.run(notebook.magic("--session busy")))
    assert f"'busy' is already running (run {turn.run} in this kernel)" in told
    assert notebook.server.count() == 3
    told = sentence(notebook.kernel.run(notebook.magic("--continue")))
    assert "'busy' is already running" in told


@pytest.mark.parametrize(
    "cell",
    [
        'x = """\n%%agents\nWhy?\n"""\nprint(x)',
        "%%writefile {place}/cell.txt\n# A cell.\n%%agents\nWhy?",
        "print('' 'a \\\n%%agents')",
    ],
)
def test_option_names_in_the_task_are_text(notebook: Notebook, cell: str) -> None:
    assert notebook.kernel.run(cell.format(place=notebook.place)).status == "ok"


def test_an_unknown_agent(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    told = sentence(notebook.kernel.run(f"%agents stop {turn.run} --agent zoe"))
    assert "has no agent 'zoe'. Its agents are: ada, Ben, cleo." in told
    told = sentence(notebook.kernel.run("run.stop(agent='zoe')"))
    assert "has no agent 'zoe'" in told
    assert turn.events("stop_requested") == []


def test_stop_without_a_run() -> None:
    with Kernel() as kernel:
        kernel.run("%load_ext nb_agents")
        for verb in ("stop", "wait"):
            assert "No run" in sentence(kernel.run(f"%agents {verb}"))
        for verb in ("show", "log"):
            assert "session" in sentence(kernel.run(f"%agents {verb}"))


def test_help_names_every_option_and_verb(notebook: Notebook) -> None:
    def page(source: str) -> str:
        [payload] = notebook.kernel.run(source).reply["payload"]
        return str(payload["data"]["text/plain"])

    for option in ("--config", "--session", "--continue", "--orchestrator-timeout", "--wait"):
        assert option in page("%%agents?")
    assert "%%agents [--config F]" in page("%%agents?")
    shown = page("%agents?")
    for verb, action in VERBS.items():
        assert f"%agents {verb}" in shown
        for option in re.findall(r"--[a-z-]+", action.parser.format_usage()):
            assert option in shown


def test_internal_error_shows_its_traceback(notebook: Notebook) -> None:
    notebook.kernel.run(
        "from nb_agents.launch import start as _start\n"
        "_team_for = _start.team_for\n"
        "def broken(*args, **kwargs): raise RuntimeError('a defect')\n"
        "_start.team_for = broken"
    )
    error = notebook.kernel.run(notebook.magic()).error
    notebook.kernel.run("_start.team_for = _team_for")
    assert error
    assert (error.ename, error.evalue) == ("RuntimeError", "a defect")
    assert "start.py" in "".join(error.traceback)


def test_internal_error_in_a_run_shows_its_traceback_in_the_waiting_cell(
    notebook: Notebook,
) -> None:
    """The turn is saved anyway, and the panel shows what happened."""
    notebook.kernel.run(
        "import asyncio\n"
        "from nb_agents.agents.team_driver import Team\n"
        "_work, is_shown = Team._work, []\n"
        "async def broken(self, agent):\n"
        "    while not is_shown: await asyncio.sleep(0.01)\n"
        "    raise RuntimeError('a defect')\n"
        "Team._work = broken"
    )
    turn = notebook.start("--out run")
    notebook.kernel.run("is_shown.append(True)")
    result = notebook.kernel.run("run.wait()")
    notebook.kernel.run("Team._work = _work")
    assert result.error
    assert result.error.ename == "ExceptionGroup"
    assert "RuntimeError: a defect" in result.stderr  # where IPython prints groups
    turn.wait_over()
    assert turn.metadata["status"] == "incomplete"
    assert any("bug in nb_agents" in e["text"] for e in turn.events("noticed"))
