"""The sandbox: an agent's commands can access the same files as the agent."""

import os
import shutil
import site
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from nb_agents.tools.sandbox import Sandbox, confinement
from tests.kit.processes import Finished, bubblewrap, read_chunk
from tests.kit.tools import ToolContext, ToolError
from tests.tools.sandboxes import Place, both, needs_sandbox, place, sandboxed

__all__ = ["place"]


async def run(context: ToolContext, script: str, *, network: bool = False) -> Finished:
    return await Sandbox(context, network=network).run(["bash", "-c", script])


@sandboxed
async def test_workspace_is_writable_and_context_paths_are_read_only(place: Place) -> None:
    script = f"""
    pwd; touch made; cat {place.given}/data.txt; echo
    touch {place.given}/no || echo refused; rm {place.given}/data.txt || echo kept
    """
    done = await run(place.context, script)
    assert done.output.splitlines() == [str(place.workspace), "data", "refused", "kept"]
    assert (place.workspace / "made").exists()
    assert (place.given / "data.txt").exists()


@sandboxed
async def test_other_user_files_are_not_visible(
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
async def test_system_files_are_read_only_and_tmp_is_temporary(place: Place) -> None:
    name = f"/tmp/{place.root.name}-made"
    script = f"for path in /usr/x /etc/x /bin/x {name}; do touch $path; echo $?; done"
    assert (await run(place.context, script)).output.split() == ["1", "1", "1", "0"]
    assert (await run(place.context, f"ls {name}")).exit_code != 0


@sandboxed
async def test_only_own_processes_are_visible(place: Place) -> None:
    script = f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} || echo none"
    count, said = (await run(place.context, script)).output.split()
    assert int(count) < 8 and said == "none"


@sandboxed
@pytest.mark.parametrize("network", [False, True])
async def test_network_is_available_only_if_allowed(place: Place, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        done = await run(place.context, script, network=network)
    assert (done.output == "reached\n") is network


@sandboxed
async def test_no_privileges_to_change_mounts(place: Place) -> None:
    script = f"grep CapEff /proc/self/status; mount -o remount,rw,bind {place.given}; echo $?"
    words = (await run(place.context, script)).output.split()
    assert set(words[1]) == {"0"} and words[2] != "0"


@sandboxed
async def test_python_of_the_notebook_is_available_with_its_packages(place: Place) -> None:
    done = await run(place.context, "python -c 'import sys, yaml; print(sys.prefix)'")
    assert done.output.strip() == sys.prefix


@sandboxed
async def test_context_path_may_be_a_file_a_symlink_or_missing(place: Place) -> None:
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


# Environment of processes


@both
async def test_process_gets_only_its_own_variables(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "JWT", "PIP_INDEX_URL", "HTTPS_PROXY", "JPY_PARENT_PID", "PLAIN"):
        monkeypatch.setenv(name, "not for it")
    monkeypatch.setenv("LANGUAGE", "sk-1")  # a team's key, under any name
    monkeypatch.setenv("NAMED", "for it")
    box = place.sandbox(pass_env=["NAMED"])
    done = await box.run(["bash", "-c", "env; cat /proc/self/environ"], env={"MORE": "1"})
    assert "not for it" not in done.output and "sk-1" not in done.output
    env = dict(line.split("=", 1) for line in done.output.split("\0")[0].splitlines())
    assert (env["NAMED"], env["MORE"]) == ("for it", "1")
    assert env["HOME"] == ("/tmp/home" if place.is_sandboxed else str(place.workspace))
    assert env["PATH"].startswith(os.path.dirname(sys.executable))


@both
async def test_common_programs_work_without_the_users_variables(place: Place) -> None:
    if shutil.which("git") is None:
        script = "echo initial"
    else:
        name = "-c user.name=a -c user.email=a@b"
        script = (
            f"git init -q . && git {name} commit -q --allow-empty -m initial && git log --format=%s"
        )
    script += f"""
    python() {{ {sys.executable} "$@"; }}
    python -c 'import pydantic; print("packages")'
    python -c 'import tempfile; tempfile.mkdtemp(); print("temporary")'
    python -c 'import multiprocessing as m; print(m.Pool(1).map(abs, [-1]))'
    cat <(echo substitution); echo redirected | tee /dev/null; cd && touch file && echo home
    """
    done = await place.sandbox().run(["bash", "-c", script])
    assert done.output.splitlines() == [
        *("initial", "packages", "temporary", "[1]", "substitution", "redirected", "home")
    ], done


@both
async def test_packages_in_the_users_home_are_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = place.root / "home" / ".local"
    packages = base / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (packages / "mine.py").write_text("mine")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "USER_BASE", str(base))
    monkeypatch.setattr(site, "USER_SITE", str(packages))
    script = f'cat "$({sys.executable} -m site --user-site)/mine.py"'
    assert (await place.sandbox().run(["bash", "-c", script])).output == "mine"


# Fails closed


def remove(program: Path) -> None:
    program.unlink()


def forbid(program: Path) -> None:
    program.chmod(0o644)


def fail(program: Path) -> None:
    program.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2; exit 1\n")


@pytest.fixture
def own_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of bubblewrap that a test may break, with no cached checks."""
    real = shutil.which("bwrap")
    program = tmp_path / "programs" / "bwrap"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name, empty in (("_installed", []), ("_confining", set()), ("_options_of", {})):
        monkeypatch.setattr(bubblewrap, name, empty)
    return program


@sandboxed
@pytest.mark.parametrize("spoil", [remove, forbid, fail])
async def test_command_is_refused_if_bubblewrap_disappears(
    place: Place, own_bwrap: Path, spoil: Callable[[Path], None]
) -> None:
    box = place.sandbox()
    command = ["bash", "-c", f"touch {place.root}/outside"]
    assert (await box.run(["true"])).exit_code == 0
    spoil(own_bwrap)
    with pytest.raises(ToolError, match=r"nothing was run: (bwrap|/.*/bwrap): "):
        await box.run(command)
    # The next run may find another one or is refused too.
    with suppress(ToolError):
        await place.sandbox().run(command)
    assert not (place.root / "outside").exists()


@sandboxed
async def test_without_permission_for_bubblewrap_nothing_runs_and_the_notice_names_a_remedy(
    place: Place, own_bwrap: Path
) -> None:
    fail(own_bwrap)
    box = place.sandbox()
    assert box.confinement.is_refused
    with pytest.raises(ToolError, match="`sandbox: off` in its backend runs them unconfined"):
        await box.run(["touch", str(place.root / "outside")])
    assert not (place.root / "outside").exists()


@needs_sandbox
def test_temporary_failure_leaves_no_later_run_unconfined(own_bwrap: Path) -> None:
    good = own_bwrap.read_text()
    fail(own_bwrap)
    assert confinement().is_refused
    own_bwrap.write_text(good)
    found = confinement()
    assert (found.program, found.why_not) == (str(own_bwrap), "")


def test_user_can_turn_the_sandbox_off() -> None:
    found = confinement(is_wanted=False)
    assert found.program is None and not found.is_refused
    assert found.notice("a") == ("Commands of a are not sandboxed: its backend has `sandbox: off`.")


@pytest.mark.parametrize(
    "system, why", [("linux", "bubblewrap is not installed"), ("darwin", "bubblewrap needs Linux")]
)
def test_notice_without_bubblewrap(monkeypatch: pytest.MonkeyPatch, system: str, why: str) -> None:
    monkeypatch.setattr(bubblewrap, "_installed", [])
    monkeypatch.setattr(os, "defpath", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "platform", system)
    found = confinement()
    assert not found.is_refused
    assert found.notice("a") == f"Commands of a are not sandboxed: {why}."


@both
async def test_the_output_of_an_open_program_ends_when_the_program_closes_it(place: Place) -> None:
    script = "cat; echo said; exec >&-; exec sleep 1000"
    async with place.sandbox().open(["bash", "-c", script]) as opened:
        opened.stdin.write(b"heard ")
        opened.stdin.close()
        with anyio.fail_after(60):
            whole = b""
            while data := await read_chunk(opened.stdout):
                whole += data
    assert whole == b"heard said\n"
    assert opened.is_gone
