"""Running a program in bubblewrap: its mounts, and whether bubblewrap works on this machine.

Every mount is read-only except the writable paths passed in, a ``/tmp`` and a ``/dev/shm`` of
bounded size that are removed with the program, and its own terminals. ``/proc`` is read-only as
well: the kernel checks the user outside the sandbox, so root's programs could otherwise write the
machine's ``/proc/sys`` from any namespace and without capabilities. There is no ``/sys``.

Limits. A read-only mount does not prevent writing to a named pipe or socket in it. Bubblewrap
before 0.8 lacks ``--disable-userns``, and before 0.7 ``--size``: then a program may create user
namespaces, and its ``/tmp`` may grow to half of the machine's memory.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

HOME = "/tmp/home"
TMP = "/tmp"

_TRY_TIMEOUT_S = 10
_WORKS = 42
_TRIAL_TMP_BYTES = 1_000_000
_LEAKS = 43
# Outside, root may write the first ones, and everybody the last one.
_TRIAL = (
    "for path in / /usr /proc/sys/kernel/core_pattern /var/tmp; "
    f"do [ -w $path ] && exit {_LEAKS}; done; exit {_WORKS}"
)

_ISOLATED = (
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
)
# Not --die-with-parent: a TERM ends bwrap itself first, and everything inside would then be killed
# before it can clean up; the supervisor ends what is left. Not --new-session either: the supervisor
# already has a session of its own, without a terminal.

_READ_ONLY_AT_LAST = ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# The parts of /etc that programs need. Others may hold passwords, which a root's notebook can read.
_ETC = (
    "alternatives",
    "ca-certificates",
    "fonts",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)

_DEVICES = str(Path(__file__).with_name("readonly_devices.py"))

_found: list[str] = []
_options_of: dict[str, frozenset[str]] = {}
_tried: set[str] = set()


class Unusable(Exception):
    """Bubblewrap is installed but can't be used; ``args[0]`` is the reason."""


def installed() -> str | None:
    """Return bubblewrap's path; None where it is not installed.

    Once found, it counts as installed until this process ends, so that removing it from the PATH
    does not make commands run unconfined.
    """
    if sys.platform != "linux":
        return None
    if path := shutil.which("bwrap") or shutil.which("bwrap", path=os.defpath):
        _found.append(os.path.abspath(path))
    return _found[-1] if _found else None


def check_confinement(program: str) -> None:
    """Run a trial command in bubblewrap and check that it is confined.

    A success is remembered; a failure is not, as the machine may have been short of resources.

    Args:
        program: Bubblewrap's path.

    Raises:
        Unusable: The command was not confined, or did not run.
    """
    if program in _tried:
        return
    trial = argv(program, ["bash", "-c", _TRIAL], tmp_bytes=_TRIAL_TMP_BYTES)
    done = _run(trial)
    if done.returncode == _LEAKS:
        raise Unusable("it does not keep commands from writing to the machine")
    if done.returncode != _WORKS:
        said = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise Unusable(said or f"exit code {done.returncode}")
    _tried.add(program)


def argv(
    program: str,
    command: Sequence[str],
    *,
    tmp_bytes: int,
    cwd: Path | None = None,
    readable: Iterable[Path] = (),
    writable: Iterable[Path] = (),
    hidden: Iterable[Path] = (),
    network: bool = False,
) -> list[str]:
    """Return the command line that runs a program confined.

    Args:
        program: Bubblewrap's path.
        command: The program and its arguments.
        tmp_bytes: Capacity of its ``/tmp`` and of its ``/dev/shm``, each.
        cwd: Its working directory.
        readable: Paths that it may read besides the system's and this Python's.
        writable: Files and directories that it may write.
        hidden: Real files that are masked, even where their directory is readable.
        network: Whether it may use the machine's network, loopback included.

    Raises:
        Unusable: Bubblewrap does not list its options.
    """
    options = _options(program)
    mounts = [*_base_mounts(), *_scratch_mounts(tmp_bytes, options)]
    for path in readable:
        mounts += _read_only(path)
    mounts += [("--bind", str(path), str(path)) for path in writable]
    can_disable = "--disable-userns" in options
    # Only root owns devices.
    devices = [sys.executable, "-I", "-S", _DEVICES] if os.geteuid() == 0 else []
    return [
        *devices,
        program,
        *(("--unshare-user", "--disable-userns") if can_disable else ("--unshare-user-try",)),
        *_ISOLATED,
        *(() if network else ("--unshare-net",)),
        *_arguments(mounts, hidden),
        *_READ_ONLY_AT_LAST,
        *(("--chdir", str(cwd)) if cwd else ()),
        "--",
        *command,
    ]


def readable_directories() -> list[Path]:
    """Return the directories that every program can read: the system's and this Python's."""
    return [Path(mount[1]) for mount in _base_mounts() if len(mount) == 3]


def startup_error(program: str, errors: str) -> str:
    """Return bubblewrap's own error line when it could not start the command, or "".

    Args:
        program: Bubblewrap's path.
        errors: What was written to stderr.
    """
    said = ("bwrap: ", f"{program}: ")
    return next((line for line in errors.splitlines() if line.startswith(said)), "")


_Mount = tuple[str, ...]
"""A bwrap option and its arguments; the path inside the sandbox comes last."""


def _options(program: str) -> frozenset[str]:
    if program not in _options_of:
        shown = _run([program, "--help"])
        found = frozenset(re.findall(rb"--[a-z][a-z-]*", shown.stdout + shown.stderr))
        if b"--remount-ro" not in found:
            raise Unusable(f"it does not say what it can do (exit code {shown.returncode})")
        _options_of[program] = frozenset(option.decode() for option in found)
    return _options_of[program]


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        ) as process:
            try:
                output, errors = process.communicate(timeout=_TRY_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # itself and what it started
                raise Unusable(f"it did nothing for {_TRY_TIMEOUT_S} s") from None
    except OSError as exc:
        raise Unusable(exc.strerror or type(exc).__name__) from None
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def _base_mounts() -> list[_Mount]:
    """Return the mounts that every command needs."""
    mounts: list[_Mount] = [("--proc", "/proc"), ("--dev", "/dev")]
    for place in [*_SYSTEM, *(f"/etc/{name}" for name in _ETC)]:
        mounts.append(("--ro-bind-try", place, place))
    for path in _python_places():
        mounts += _read_only(path)
    return mounts


def _scratch_mounts(tmp_bytes: int, options: frozenset[str]) -> list[_Mount]:
    size = ("--size", str(tmp_bytes)) if "--size" in options else ()
    return [(*size, "--tmpfs", TMP), (*size, "--tmpfs", "/dev/shm"), ("--dir", HOME)]


def _python_places() -> Iterator[Path]:
    """Yield the directories of this Python and its packages."""
    home = Path(os.path.expanduser("~")).resolve()
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    for name in dict.fromkeys([sys.prefix, sys.base_prefix, *users]):
        # A prefix of / would show everything.
        if not home.is_relative_to(Path(name).resolve()):
            yield Path(name)


def _read_only(path: Path) -> list[_Mount]:
    """Mount a path read-only under its real name and under the one that the agent knows."""
    given, real = Path(os.path.abspath(path)), path.resolve()
    return [("--ro-bind-try", str(real), str(place)) for place in dict.fromkeys([given, real])]


def _arguments(mounts: list[_Mount], hidden: Iterable[Path]) -> list[str]:
    # Outer before inner, or the outer would hide the inner; for one path, the last mount counts.
    ordered: dict[Path, _Mount] = {}
    for mount in sorted(mounts, key=lambda mount: len(Path(mount[-1]).parts)):
        ordered[Path(mount[-1])] = mount
    shown = list(_without_aliases(ordered))
    return [part for mount in [*shown, *_hiding(shown, hidden)] for part in mount]


def _hiding(shown: Sequence[_Mount], hidden: Iterable[Path]) -> Iterator[_Mount]:
    """Mask files under every name by which they are mounted."""
    sources = [(Path(mount[1]).resolve(), Path(mount[2])) for mount in shown if len(mount) == 3]
    for path in hidden:
        for source, place in sources:
            if path.is_relative_to(source):
                # A device can't be executed and has no content to copy.
                yield "--ro-bind", "/dev/null", str(place / path.relative_to(source))


def _without_aliases(mounts: dict[Path, _Mount]) -> Iterator[_Mount]:
    """Drop aliases inside a directory that is mounted already, where a symlink leads to them.

    bwrap can't create their mount points in a read-only directory, and would fail to start.
    """
    shown = {place for place, mount in mounts.items() if len(mount) == 3}
    for place, mount in mounts.items():
        is_alias = len(mount) == 3 and mount[1] != mount[2]
        if not (is_alias and shown.intersection(place.parents)):
            yield mount
