"""The sandbox: an agent's commands see what the agent may see."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nb_agents.tools import sandbox
from nb_agents.tools.context import ToolContext
from nb_agents.tools.process import Finished, run_command
from nb_agents.tools.sandbox import Sandbox, why_not
from tests.tools.sandboxes import Place, needs_sandbox, place, sandboxed

__all__ = ["place"]


@pytest.fixture
def fresh_answer() -> Iterator[None]:
    why_not.cache_clear()
    yield
    why_not.cache_clear()


async def run(context: ToolContext, script: str, *, network: bool = False) -> Finished:
    box = Sandbox(context, network=network)
    argv = box.command(["bash", "-c", script])
    return await run_command(argv, cwd=box.cwd, env=box.env({}))


@sandboxed
async def test_the_workspace_is_written_and_context_paths_are_only_read(place: Place) -> None:
    script = f"""
    pwd; touch made; cat {place.given}/data.txt; echo
    touch {place.given}/no || echo refused; rm {place.given}/data.txt || echo kept
    """
    done = await run(place.context, script)
    assert done.output.splitlines() == [str(place.workspace), "data", "refused", "kept"]
    assert (place.workspace / "made").exists()
    assert (place.given / "data.txt").exists()


@sandboxed
async def test_nothing_else_of_the_persons_files_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place.root / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("private key")
    monkeypatch.setenv("HOME", str(home))
    hidden = [home, home / ".ssh" / "id", place.peer, Path(__file__), Path("/etc/shadow")]
    tests = "; ".join(f"test -e {path} && echo {path}" for path in hidden)
    done = await run(place.context, f"{tests}; ls -A ~ {place.root}/session/workspaces")
    assert done.output.splitlines() == [
        "/tmp/home:",
        "",
        f"{place.root}/session/workspaces:",
        "a",
    ]


@sandboxed
async def test_the_system_and_its_own_files_are_beyond_its_reach(place: Place) -> None:
    name = f"/tmp/{place.root.name}-made"
    script = f"for path in /usr/x /etc/x /bin/x {name}; do touch $path; echo $?; done"
    assert (await run(place.context, script)).output.split() == ["1", "0", "1", "0"]
    assert (await run(place.context, f"ls {name}")).exit_code != 0


@sandboxed
async def test_it_sees_no_process_but_its_own(place: Place) -> None:
    script = f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} || echo none"
    count, said = (await run(place.context, script)).output.split()
    assert int(count) < 8 and said == "none"


@sandboxed
@pytest.mark.parametrize("network", [False, True])
async def test_the_network_is_there_when_it_is_allowed(place: Place, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        done = await run(place.context, script, network=network)
    assert (done.output == "reached\n") is network


@sandboxed
async def test_it_has_no_privileges_to_change_what_it_sees(place: Place) -> None:
    script = f"grep CapEff /proc/self/status; mount -o remount,rw,bind {place.given}; echo $?"
    words = (await run(place.context, script)).output.split()
    assert set(words[1]) == {"0"} and words[2] != "0"


@sandboxed
async def test_the_python_of_the_notebook_is_there_with_its_packages(place: Place) -> None:
    done = await run(place.context, "python -c 'import sys, yaml; print(sys.prefix)'")
    assert done.output.strip() == sys.prefix


@sandboxed
async def test_a_context_path_may_be_a_file_a_symlink_or_gone(place: Place) -> None:
    link, file, gone = place.root / "link", place.root / "file", place.root / "gone"
    inner = place.given / "inner"
    link.symlink_to(place.given)
    inner.symlink_to(place.peer)
    file.write_text("file")
    context = replace(place.context, readable=[link, file, gone, place.given, inner])
    done = await run(context, f"cat {link}/data.txt {file} {inner}/private.txt; ls {gone}")
    assert done.output == "datafileprivate"


@sandboxed
async def test_a_workspace_below_a_context_path_can_be_written(place: Place) -> None:
    context = replace(place.context, readable=[place.root, place.workspace])
    script = f"touch made && cat {place.peer}/private.txt; touch {place.peer}/no"
    assert (await run(context, script)).output == "private"
    assert (place.workspace / "made").exists() and not (place.peer / "no").exists()


async def test_secrets_and_the_kernels_own_affairs_are_not_in_the_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-2")
    monkeypatch.setenv("INNOCENT", "sk-1")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("PLAIN", "yes")
    env = Sandbox(place.context, network=False).env({"MORE": "1"})
    assert not {"SOME_API_KEY", "INNOCENT", "JPY_PARENT_PID", "FORCE_COLOR"} & env.keys()
    assert (env["PLAIN"], env["MORE"], env["HOME"]) == ("yes", "1", os.environ["HOME"])


# Without it


@pytest.mark.usefixtures("fresh_answer")
def test_a_machine_without_bubblewrap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", "/nowhere")
    assert why_not() == "bubblewrap is not installed"


@pytest.mark.usefixtures("fresh_answer")
def test_a_bubblewrap_that_may_not_run_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert why_not() == (
        "bubblewrap is not permitted here: bwrap: No permissions to create new namespace"
    )


@pytest.mark.usefixtures("fresh_answer")
@needs_sandbox
def test_bubblewrap_is_tried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shutil.which("bwrap") and why_not() is None
    monkeypatch.setattr(sandbox.subprocess, "run", lambda *_, **__: pytest.fail("again"))
    assert why_not() is None
