"""A plain `pip install nb_agents` is small and does what it promises."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nb_agents.config import extras
from tests.kit.models import start_errors
from tests.kit.teams import TeamSpec

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_ADDED = 45
"""How many packages the base install may add to an environment with ipykernel and ipywidgets."""
RUN = """
import sys
from importlib.abc import MetaPathFinder


class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
import nb_agents

run = nb_agents.start("a task", options=nb_agents.RunOptions(session_root="sessions"))
run.wait()
print(run.status)
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all installed packages that these requirements need."""
    todo = [Requirement(line) for line in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        each = todo.pop()
        for extra in ("", *each.extras):
            name = canonicalize_name(each.name)
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += needs(name, extra)
    return {name for name, _ in seen}


def needs(name: str, extra: str) -> Iterator[Requirement]:
    try:
        lines = distribution(name).requires or ()
    except PackageNotFoundError:  # only for another platform or version of Python
        return
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def test_base_install_adds_few_packages_to_a_notebook_kernel() -> None:
    added = closure(PROJECT["dependencies"]) - closure(["ipykernel", "ipywidgets"])
    assert len(added) <= MOST_ADDED, sorted(added)


def test_demo_team_runs_with_the_packages_of_the_base_install_alone(tmp_path: Path) -> None:
    base = closure(PROJECT["dependencies"])
    blocked = sorted(
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & {*base, "nb-agents"}
    )
    assert {"anthropic", "mcp", "uvicorn", "jupyterlab"} <= set(blocked)
    code = f"BLOCKED = set({json.dumps(blocked)})\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "completed", done.stderr


@pytest.mark.parametrize("extra", ["anthropic", "google", "mcp"])
def test_missing_library_is_a_start_error_with_the_command_that_installs_it(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not extras.missing_extra(extra)
    monkeypatch.setitem(extras.EXTRAS, extra, ("no_such_package.module",))
    kinds = {"anthropic": "claude", "google": "gemini", "mcp": "ollama"}
    servers = {"mcp_servers": [{"name": "s", "command": "x"}]} if extra == "mcp" else {}
    backend = {"type": kinds[extra], "model": "m", "api_key": "k", **servers}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    [error] = [str(each) for each in start_errors(team)]
    assert "Agent 'a'" in error and f"`pip install 'nb_agents[{extra}]'`" in error


def test_extra_all_contains_each_extra_that_a_team_file_can_need() -> None:
    [line] = PROJECT["optional-dependencies"]["all"]
    assert {*extras.EXTRAS, "keyring", "cluster"} == Requirement(line).extras
