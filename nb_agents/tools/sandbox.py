"""What an agent's commands see of the machine, where bubblewrap is at hand.

Inside, the workspace can be written and what the agent may read can be read. There are besides the
system's programs, the Python environment that this process runs in, and a ``/tmp`` that ends with
the command: no home directory, no notebook, no other agent, no process but the command's own, and
no network unless it is allowed. An allowed network is the machine's own, its loopback too.

Without bubblewrap a command may do what the user may; `why_not` says that, for the panel. It is
tried out once, because containers often have it and don't permit it. Linux only.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from nb_agents.tools.context import ToolContext
from nb_agents.tools.process import clean_env

__all__ = ["Sandbox", "why_not"]

_PROBE_TIMEOUT_S = 10

_ISOLATED = (
    "--unshare-user-try",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
)
# Not --die-with-parent: a TERM ends bwrap itself first, and everything inside would then be killed
# before it can tidy up. The supervisor sees to it that nothing is left.

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# Of /etc what programs need to run. The rest may hold passwords, and a root's notebook reads it.
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
    "pki",
    "protocols",
    "resolv.conf",
    "services",
    "ssl",
    "timezone",
)
_TMP = "/tmp"
_HOME = "/tmp/home"

# A kernel asks programs for colours, and tells them of its own parent and its own plots. Under
# pytest, an ipykernel would not hear what commands write.
_OF_THE_KERNEL = frozenset(
    {
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "FORCE_COLOR",
        "IPYTHONDIR",
        "JPY_INTERRUPT_EVENT",
        "JPY_PARENT_PID",
        "JPY_SESSION_NAME",
        "MPLBACKEND",
        "PYTEST_CURRENT_TEST",
    }
)


@cache
def why_not() -> str | None:
    """Say why commands are not sandboxed on this machine; None when they are."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    probe = [*_bwrap(_base(), network=False), "bash", "-c", "exit 42"]
    try:
        done = subprocess.run(
            probe,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"bubblewrap can't be run here: {type(exc).__name__}"
    if done.returncode == 42:
        return None
    said = done.stderr.decode("utf-8", "replace").strip()[:200]
    return f"bubblewrap is not permitted here: {said or f'exit code {done.returncode}'}"


class Sandbox:
    """Where one agent's commands run.

    Args:
        context: What the agent may write and read.
        network: Whether they reach the network; without bubblewrap they do anyway.
    """

    def __init__(self, context: ToolContext, *, network: bool) -> None:
        self.why_not = why_not()
        self.cwd = context.workspace.resolve()
        self._context = context
        self._network = network

    @property
    def is_active(self) -> bool:
        """Whether commands are confined."""
        return self.why_not is None

    def command(
        self, argv: Sequence[str], *, readable: Iterable[Path] = (), writable: Iterable[Path] = ()
    ) -> list[str]:
        """Give what to run in order to run a program confined, or as it is.

        Args:
            argv: The program and its arguments.
            readable: What it may read besides.
            writable: Directories that it may write besides its workspace.
        """
        if not self.is_active:
            return list(argv)
        mounts = _base()
        for path in [*self._context.readable, *readable]:
            mounts += _read_only(path)
        for path in [*writable, self.cwd]:
            mounts.append(("--bind", str(path), str(path)))
        inside = _bwrap(mounts, network=self._network)
        return [*inside, "--chdir", str(self.cwd), "--", *argv]

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Make the environment of a command: no secrets, nothing that is the kernel's own affair.

        Args:
            extra: Variables to add.
        """
        kept = clean_env({}, self._context.secrets)
        # `python` is the one that the notebook has.
        path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", os.defpath)])
        ours = {"TERM": "dumb", "NO_COLOR": "1", "PATH": path}
        if self.is_active:
            ours |= {"HOME": _HOME, "TMPDIR": _TMP}
        kept = {name: value for name, value in kept.items() if name not in _OF_THE_KERNEL}
        return kept | ours | dict(extra)


_Mount = tuple[str, ...]
"""An option of bwrap's; the place inside comes last."""


def _base() -> list[_Mount]:
    """List what every command needs to run at all."""
    mounts: list[_Mount] = [("--proc", "/proc"), ("--dev", "/dev")]
    mounts += [("--tmpfs", _TMP), ("--dir", _HOME)]
    for place in [*_SYSTEM, *(f"/etc/{name}" for name in _ETC)]:
        mounts.append(("--ro-bind-try", place, place))
    for path in _python_places():
        mounts += _read_only(path)
    return mounts


def _python_places() -> Iterator[Path]:
    """Give the directories of this Python and its packages."""
    home = Path(os.path.expanduser("~")).resolve()
    for name in dict.fromkeys([sys.prefix, sys.base_prefix, *_user_packages()]):
        # A prefix of / would show everything.
        if not home.is_relative_to(Path(name).resolve()):
            yield Path(name)


def _user_packages() -> list[str]:
    return [site.getusersitepackages()] if site.ENABLE_USER_SITE else []


def _read_only(path: Path) -> list[_Mount]:
    """Show a path under its real name and under the one that the agent was told."""
    given, real = Path(os.path.abspath(path)), path.resolve()
    return [("--ro-bind-try", str(real), str(place)) for place in dict.fromkeys([given, real])]


def _bwrap(mounts: list[_Mount], *, network: bool) -> list[str]:
    # Outer before inner, or the outer would hide it; for one place, the last word counts.
    ordered: dict[Path, _Mount] = {}
    for mount in sorted(mounts, key=lambda mount: len(Path(mount[-1]).parts)):
        ordered[Path(mount[-1])] = mount
    shown = [part for mount in _without_aliases(ordered) for part in mount]
    return ["bwrap", *_ISOLATED, *(() if network else ("--unshare-net",)), *shown]


def _without_aliases(mounts: dict[Path, _Mount]) -> Iterator[_Mount]:
    """Leave out second names that lie in what is shown already: a symlink there does the same.

    bwrap could not make the place for them in a read-only directory, and would run nothing.
    """
    shown = {place for place, mount in mounts.items() if len(mount) == 3}
    for place, mount in mounts.items():
        is_alias = len(mount) == 3 and mount[1] != mount[2]
        if not (is_alias and shown.intersection(place.parents)):
            yield mount
