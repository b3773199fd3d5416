"""Bubblewrap: processes in it can write only their own files, as root and as other users."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nb_agents.process import bubblewrap
from nb_agents.process.bubblewrap import Unusable, check_confinement, installed
from tests.kit.processes import SHOWN
from tests.processes import ROOT
from tests.tools.sandboxes import User, needs_sandbox, user

__all__ = ["user"]

# The script changes nothing, even where it could: files are opened and closed, modes are set to
# their current value, and new files are removed. It tries only the files that the kernel reports as
# writable.
TRY_ALL = r"""
exec 2>/dev/null
# To a file, because a pipe would be read byte by byte.
find / \( -type b -o -type c -o -writable \) ! -type l -print0 >/tmp/list
mapfile -d '' -t places </tmp/list
for place in "${places[@]}"; do
    if [[ -f $place ]]; then
        { : >>"$place"; } && echo "file $place"
    elif [[ -d $place ]]; then
        made="$place/made_by_an_agent"
        { : >"$made"; } && echo "folder $place" && rm "$made"
    elif [[ -c $place || -b $place ]]; then
        chmod "$(stat -c %a "$place")" "$place" && echo "mode $place"
    fi
done
while read -r _ _ _ _ place options _; do
    [[ $options == rw* ]] && echo "mount $place"
done </proc/self/mountinfo
echo end
"""


def run(user: User, script: str) -> str:
    """Run a script in bubblewrap and return its output."""
    done = subprocess.run(
        user.command(script), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_sandbox
def test_only_workspace_and_tmp_can_be_written(user: User) -> None:
    (user.workspace / "file").touch()
    os.chown(user.workspace / "file", user.number, -1)
    found = set(run(user, TRY_ALL).splitlines())
    if user.number:  # devices belong to root
        found -= {f"mount /dev/{name}" for name in SHOWN}
    if ROOT.is_relative_to("/tmp"):  # a checkout is mounted in an empty directory there
        found -= {f"folder {place}" for place in (ROOT, *ROOT.parents) if place != Path("/tmp")}
    own = [str(user.workspace), "/tmp", "/dev/shm"]
    assert sorted(found) == sorted(
        ["end", f"file {user.workspace}/file", "file /tmp/list", "folder /tmp/home"]
        + ["mount /dev/pts", "mode /dev/pts/ptmx"]
        + [f"{what} {place}" for what in ("folder", "mount") for place in own]
    )


@needs_sandbox
def test_kernel_settings_and_devices_are_read_only(user: User) -> None:
    script = """
    for place in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do
        { : >>$place; } 2>/dev/null && echo "$place can be written"
    done
    ls -d /sys 2>/dev/null; cat /proc/sys/kernel/ostype
    echo x >/dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c
    """
    assert run(user, script).split() == ["Linux", "3", "3"]


@needs_sandbox
def test_no_capability_can_be_gained(user: User) -> None:
    seen = run(user, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status").split()
    told = dict(zip(seen[::2], seen[1::2], strict=True))
    assert told.pop("NoNewPrivs:") == "1"
    assert len(told) == 5 and {int(mask, 16) for mask in told.values()} == {0}


@needs_sandbox
def test_new_namespace_makes_nothing_writable(user: User) -> None:
    script = """
    exec 2>/dev/null
    unshare --user --map-root-user --mount --pid --fork bash -c '
        mount -t proc proc /proc; mount -o remount,rw /proc; mount -o remount,bind,rw /usr
        for place in /proc/sys/kernel/core_pattern /usr/made; do { : >>$place; } && echo $place
        done'
    echo end
    """
    assert run(user, script) == "end\n"


@needs_sandbox
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_tmp_and_shm_have_a_size_limit(user: User, place: str) -> None:
    script = f"head -c 3000000 /dev/zero >{place}/x 2>/dev/null; stat -c %s {place}/x"
    done = subprocess.run(user.command(script, tmp_bytes=2_000_000), capture_output=True, text=True)
    assert 1_900_000 < int(done.stdout) < 2_100_000


@needs_sandbox
def test_old_bubblewrap_confines_files_too(
    user: User, tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions before 0.8 have fewer options and refuse unknown ones."""
    real = shutil.which("bwrap")
    old = make_bwrap(
        user.workspace.parent,
        f"""
        if [ "$1" = --help ]; then
            {real} --help 2>&1 | grep -v -e --disable-userns -e --size
            exit
        fi
        case " $* " in *" --disable-userns "*|*" --size "*) echo unknown >&2; exit 1;; esac
        exec {real} "$@"
        """,
    )
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    assert installed() == str(old)
    found = run(user, TRY_ALL.replace("find /", "find /proc /dev"))
    assert set(found.splitlines()) >= {"end", "folder /dev/shm"}
    assert not [line for line in found.splitlines() if "/proc" in line]


# Whether it can be used


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be known of what was tried before."""
    monkeypatch.setattr(bubblewrap, "_installed", [])
    monkeypatch.setattr(bubblewrap, "_confining", set())
    monkeypatch.setattr(bubblewrap, "_options_of", {})


def make_bwrap(folder: Path, body: str) -> Path:
    program = folder / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)
    return program


NOT_PERMITTED = "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"
HELP = '[ "$1" = --help ] && { echo --remount-ro; exit; }\n'


@pytest.mark.parametrize(
    "body, why",
    [
        (HELP + NOT_PERMITTED, "bwrap: No permissions to create new namespace"),
        (NOT_PERMITTED, "its --help does not list its options .exit code 1."),
        (HELP + "exit 7", "exit code 7"),
        (HELP + "sleep 1000", "it did not finish within 0.2 s"),
        # It runs the command as it is.
        (
            HELP + 'until [ "$1" = -- ]; do shift; done; shift; exec "$@"',
            "it does not prevent commands from writing to the machine",
        ),
    ],
)
def test_failed_confinement_is_refused_and_checked_again(
    tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    if "did not finish" in why:
        monkeypatch.setattr(bubblewrap, "_TRY_TIMEOUT_S", 0.2)
    program = make_bwrap(tmp_path, body)
    for _ in range(2):
        with pytest.raises(Unusable, match=why):
            check_confinement(str(program))


@needs_sandbox
def test_confinement_works_when_the_missing_part_is_available(fresh: None) -> None:
    program = installed()
    assert program is not None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # open ones stay open
    try:
        with pytest.raises(Unusable, match="Too many open files"):
            check_confinement(program)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    check_confinement(program)


@needs_sandbox
def test_working_confinement_is_checked_once(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = installed()
    assert program is not None
    check_confinement(program)
    monkeypatch.setattr(bubblewrap.subprocess, "Popen", lambda *_, **__: pytest.fail("again"))
    check_confinement(program)


def test_bubblewrap_that_disappears_still_counts_as_installed(
    tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "defpath", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    assert installed() is None
    program = make_bwrap(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(program.parent))
    assert installed() == str(program)
    monkeypatch.setenv("PATH", "/nowhere")
    assert installed() == str(program)


@needs_sandbox
def test_certificates_are_visible_but_not_private_keys(user: User) -> None:
    found = run(user, "find /etc/ssl /etc/pki -mindepth 1 -maxdepth 2 2>/dev/null || true")
    shown = {Path(line).name for line in found.splitlines()}
    assert "private" not in shown
    assert "certs" in shown
