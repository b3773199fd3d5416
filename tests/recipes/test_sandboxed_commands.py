"""``sandbox: on`` in a recipe or team file: commands are confined, or not run."""

import socket
from pathlib import Path
from typing import Any

import pytest

from nb_agents import RunOptions, start
from nb_agents.testing import ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run
from tests.kit.tools import Confinement, sandbox
from tests.recipes.live import begin, write
from tests.recipes.test_project_workspace import project
from tests.team_kit import finish
from tests.tools.sandboxes import needs_sandbox

__all__ = ["project"]

LOOKS = """
steps:
- id: look
  type: bash
  output: seen
  cwd: sub
  command: |
    cat {{secret}} || echo hidden
    echo x > {{secret}}.new
    (echo > /dev/tcp/127.0.0.1/{{port}}) && echo online || echo offline
    echo "$(pwd) $GIVEN ${KEPT:-none}" | sed "s,.*/,,"
    echo made > made.txt
  env: {GIVEN: given}
- {id: again, type: bash, command: "mkdir -p sub; cat sub/made.txt", output: made}
"""


def seen(root: Path, recipe: str = "", port: int = 1, **team: Any) -> Run:
    """Run the recipe with a secret file next to its workspace."""
    secret = root / "secret"
    secret.write_text("secret\n")
    first = "steps:\n- {id: first, type: bash, command: mkdir -p sub}\n"
    body = recipe + LOOKS.replace("steps:\n", first)
    spec = scripted_team(None, worker=ScriptedModel(Turn(text="x"))).model_copy(update=team)
    context = {"secret": str(secret), "port": port}
    options = RunOptions(session_root=root / "sessions")
    return finish(start(config=spec, recipe=write(root, body), context=context, options=options))


@pytest.fixture
def port() -> Any:
    """Return a local port that replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


CONFINED = ["hidden"]
OPEN = ["secret"]


@needs_sandbox
@pytest.mark.parametrize(
    "recipe, team, says",
    [
        ("", {}, [*OPEN, "online"]),
        ("network: on\n", {"network": True}, [*OPEN, "online"]),
        ("sandbox: on\n", {}, [*CONFINED, "offline"]),
        ("", {"sandbox": True}, [*CONFINED, "offline"]),
        ("sandbox: on\nnetwork: on\n", {}, [*CONFINED, "online"]),
        ("network: on\n", {"sandbox": True}, [*CONFINED, "offline"]),
        ("sandbox: on\nnetwork: on\n", {"sandbox": True}, [*CONFINED, "offline"]),
        ("sandbox: on\n", {"sandbox": True, "network": True}, [*CONFINED, "offline"]),
        ("", {"sandbox": True, "network": True}, [*CONFINED, "online"]),
    ],
)
def test_commands_are_confined_and_have_a_network_only_if_all_files_allow_it(
    tmp_path: Path, port: int, recipe: str, team: Any, says: list[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("KEPT", "mine")
    run = seen(tmp_path, recipe, port, **team)
    kept = "none" if "hidden" in says else "mine"
    assert run.result["seen"].split("\n") == [*says, f"sub given {kept}"]
    assert run.result["made"] == "made"
    assert (tmp_path / "secret.new").exists() is (kept == "mine")


@needs_sandbox
def test_commands_of_a_called_recipe_are_confined_like_its_callers(tmp_path: Path) -> None:
    write(tmp_path, "steps: [{id: a, type: bash, command: 'ls /home /root', output: o}]", "sub")
    body = "sandbox: on\nsteps: [{id: s, type: recipe, recipe: sub.yaml, output: r}]\n"
    run = finish(begin(write(tmp_path, body), ScriptedModel(Turn(text="x"))))
    assert run.status == "failed" and "No such file" in str(run.view.steps["s/a"])


@needs_sandbox
def test_a_confined_command_writes_the_project_but_not_its_repository(
    tmp_path: Path, project: Path
) -> None:
    command = "echo new > mine.txt; echo x > .git/hooks/pre-commit || echo x > .env || echo kept"
    body = "workspace: project\nsandbox: on\nsteps:\n"
    body += f"- {{id: a, type: bash, command: '{command}', output: o}}\n"
    run = finish(begin(write(tmp_path / "recipes", body), ScriptedModel(Turn(text="x"))))
    assert run.result["o"] == "kept" and (project / "mine.txt").read_text() == "new\n"
    assert not (project / ".git/hooks/pre-commit").exists()


@needs_sandbox
def test_confined_command_that_exceeds_a_limit_is_ended(tmp_path: Path) -> None:
    def ends(command: str, more: str = "") -> str:
        body = f"sandbox: on\nsteps: [{{id: a, type: bash, command: '{command}'{more}}}]"
        run = finish(begin(write(tmp_path, body), ScriptedModel(Turn(text="x"))))
        return str(run.view.steps["a"])

    assert "took longer than 1 s" in ends("sleep 60", ", timeout: 1")
    assert "more than 2000 processes" in ends(
        "for ((i=0; i<2100; i++)); do sleep 1000 & done; wait"
    )
    assert "exit code 3" in ends("exit 3")


@pytest.mark.parametrize(
    "found", [Confinement(None, "bubblewrap needs Linux"), Confinement("bwrap", "no", True)]
)
def test_command_is_not_run_without_its_required_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Confinement
) -> None:
    monkeypatch.setattr(sandbox, "confinement", lambda _: found)
    ran = tmp_path / "ran"
    body = f"sandbox: on\nsteps: [{{id: a, type: bash, command: 'touch {ran}'}}]"
    run = finish(begin(write(tmp_path, body), ScriptedModel(Turn(text="x"))))
    assert run.status == "failed" and not ran.exists()
    why = f"`sandbox: on` can't be enforced, so the command was not run: {found.why_not}"
    assert why in str(run.view.steps["a"])
