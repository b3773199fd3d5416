"""Runs programs in bubblewrap, and checks whether bubblewrap works on this machine.

Every mount is read-only except for the given writable paths, the program's terminals, and a
``/tmp`` and ``/dev/shm`` of limited size, which are removed when the program ends. ``/proc`` is
read-only too: the kernel checks the user id outside the sandbox, so root's programs could otherwise
write to the host's ``/proc/sys`` from any namespace, even without capabilities. There is no
``/sys``.

Limits: A read-only mount does not prevent writing to a named pipe or socket in it. Bubblewrap
before 0.8 has no ``--disable-userns``, so a program may create user namespaces. Before 0.7 it has
no ``--size``, so ``/tmp`` may grow to half of the machine's memory.
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
# Outside the sandbox, root can write to the first three paths, and everybody to the last one.
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
# No --die-with-parent: TERM would end bwrap first, and the processes inside would be killed before
# they can clean up. The supervisor ends the remaining ones. No --new-session: the supervisor is
# already in a separate session without a terminal.

# Bubblewrap's own processes hold only stdin, stdout and stderr open, so the program gets its output
# as another descriptor.
_KEEP_OUTPUT = ("sh", "-c", 'exec "$@" 3>&1 >/dev/null', "sh")
_TAKE_OUTPUT = ("sh", "-c", 'exec "$@" >&3 3>&-', "sh")

_READ_ONLY_AT_LAST = ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# The parts of /etc that programs need. Others may contain passwords, which root can read.
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

_installed: list[str] = []
_options_of: dict[str, frozenset[str]] = {}
_confining: set[str] = set()


class Unusable(Exception):
    """Bubblewrap is installed but can't be used; ``args[0]`` is the reason."""


def installed() -> str | None:
    """Return bubblewrap's path, or None if it is not installed.

    Once found, it is considered installed until this process ends, so that removing it from the
    PATH does not make commands run unconfined.
    """
    if sys.platform != "linux":
        return None
    if path := shutil.which("bwrap") or shutil.which("bwrap", path=os.defpath):
        _installed.append(os.path.abspath(path))
    return _installed[-1] if _installed else None


def check_confinement(program: str) -> None:
    """Run a trial command in bubblewrap and check that it is confined.

    Only success is cached, because a failure may be due to a temporary lack of resources.

    Args:
        program: Bubblewrap's path.

    Raises:
        Unusable: The command was not confined, or did not run.
    """
    if program in _confining:
        return
    trial = argv(program, ["bash", "-c", _TRIAL], tmp_bytes=_TRIAL_TMP_BYTES)
    done = _run(trial)
    if done.returncode == _LEAKS:
        raise Unusable("it does not prevent commands from writing to the machine")
    if done.returncode != _WORKS:
        errors = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise Unusable(errors or f"exit code {done.returncode}")
    _confining.add(program)


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
    owns_output: bool = False,
) -> list[str]:
    """Return the command line that runs a program in the sandbox.

    Args:
        program: Bubblewrap's path.
        command: The program and its arguments.
        tmp_bytes: Size limit of ``/tmp``, and also of ``/dev/shm``.
        cwd: The program's working directory.
        readable: Paths that the program may read, in addition to the system's and this Python's.
        writable: Files and directories that the program may write to.
        hidden: Files that are masked, even in readable directories. Their paths must not contain
            links.
        network: Whether the program may use the machine's network, including loopback.
        owns_output: Whether stdout is closed as soon as the program closes it. Otherwise,
            bubblewrap's processes hold it open.

    Raises:
        Unusable: Bubblewrap does not list its options.
    """
    options = _options(program)
    mounts = [*_base_mounts(), *_scratch_mounts(tmp_bytes, options)]
    for path in readable:
        mounts += _read_only(path)
    mounts += [("--bind", str(path), str(path)) for path in writable]
    can_disable = "--disable-userns" in options
    # Only root owns device files, so only root could change them.
    devices = [sys.executable, "-I", "-S", _DEVICES] if os.geteuid() == 0 else []
    outside, inside = (_KEEP_OUTPUT, _TAKE_OUTPUT) if owns_output else ((), ())
    return [
        *outside,
        *devices,
        program,
        *(("--unshare-user", "--disable-userns") if can_disable else ("--unshare-user-try",)),
        *_ISOLATED,
        *(() if network else ("--unshare-net",)),
        *_arguments(mounts, hidden),
        *_READ_ONLY_AT_LAST,
        *(("--chdir", str(cwd)) if cwd else ()),
        "--",
        *inside,
        *command,
    ]


def readable_directories() -> list[Path]:
    """Return the directories that every sandboxed program can read."""
    return [Path(mount[1]) for mount in _base_mounts() if len(mount) == 3]


def startup_error(program: str, errors: str) -> str:
    """Return bubblewrap's error message if it could not start the command, or "".

    Args:
        program: Bubblewrap's path.
        errors: The content of stderr.
    """
    prefixes = ("bwrap: ", f"{program}: ")
    return next((line for line in errors.splitlines() if line.startswith(prefixes)), "")


_Mount = tuple[str, ...]
"""A bwrap option and its arguments. The last one is the path inside the sandbox."""


def _options(program: str) -> frozenset[str]:
    if program not in _options_of:
        result = _run([program, "--help"])
        options = frozenset(re.findall(rb"--[a-z][a-z-]*", result.stdout + result.stderr))
        if b"--remount-ro" not in options:
            raise Unusable(f"its --help does not list its options (exit code {result.returncode})")
        _options_of[program] = frozenset(option.decode() for option in options)
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
                os.killpg(process.pid, signal.SIGKILL)  # includes the processes that it started
                raise Unusable(f"it did not finish within {_TRY_TIMEOUT_S} s") from None
    except OSError as exc:
        raise Unusable(exc.strerror or type(exc).__name__) from None
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def _base_mounts() -> list[_Mount]:
    """Return the mounts that every command needs."""
    mounts: list[_Mount] = [("--proc", "/proc"), ("--dev", "/dev")]
    for system_path in [*_SYSTEM, *(f"/etc/{name}" for name in _ETC)]:
        mounts.append(("--ro-bind-try", system_path, system_path))
    for path in _python_directories():
        mounts += _read_only(path)
    return mounts


def _scratch_mounts(tmp_bytes: int, options: frozenset[str]) -> list[_Mount]:
    size = ("--size", str(tmp_bytes)) if "--size" in options else ()
    return [(*size, "--tmpfs", TMP), (*size, "--tmpfs", "/dev/shm"), ("--dir", HOME)]


def _python_directories() -> Iterator[Path]:
    """Yield the directories of this Python and its packages."""
    home = Path(os.path.expanduser("~")).resolve()
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    for name in dict.fromkeys([sys.prefix, sys.base_prefix, *users]):
        # Skip a prefix such as /, which contains the user's home directory.
        if not home.is_relative_to(Path(name).resolve()):
            yield Path(name)


def _read_only(path: Path) -> list[_Mount]:
    """Mount a path read-only under its real path and under the one that the agent uses."""
    absolute, real = Path(os.path.abspath(path)), path.resolve()
    return [("--ro-bind-try", str(real), str(target)) for target in dict.fromkeys([absolute, real])]


def _arguments(mounts: list[_Mount], hidden: Iterable[Path]) -> list[str]:
    # Parents first, because they would hide earlier mounts below them. The last mount of a path
    # wins.
    ordered: dict[Path, _Mount] = {}
    for mount in sorted(mounts, key=lambda mount: len(Path(mount[-1]).parts)):
        ordered[Path(mount[-1])] = mount
    shown = list(_without_aliases(ordered))
    return [part for mount in [*shown, *_masks(shown, hidden)] for part in mount]


def _masks(mounts: Sequence[_Mount], hidden: Iterable[Path]) -> Iterator[_Mount]:
    """Mask files under every path at which they are mounted."""
    sources = [(Path(mount[1]).resolve(), Path(mount[2])) for mount in mounts if len(mount) == 3]
    for path in hidden:
        for source, target in sources:
            if path.is_relative_to(source):
                # /dev/null can't be executed and has no content.
                yield "--ro-bind", "/dev/null", str(target / path.relative_to(source))


def _without_aliases(mounts: dict[Path, _Mount]) -> Iterator[_Mount]:
    """Drop the mounts for aliases of a path that are inside another mounted directory.

    They are not needed, because a symlink in that directory leads to the real path. bwrap would
    fail to start, because it can't create mount points in a read-only directory.
    """
    simple_mounts = {target for target, mount in mounts.items() if len(mount) == 3}
    for target, mount in mounts.items():
        is_alias = len(mount) == 3 and mount[1] != mount[2]
        if not (is_alias and simple_mounts.intersection(target.parents)):
            yield mount
