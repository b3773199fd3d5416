"""A timer of systemd's user manager that runs ``nb-agents wait-for-quota`` every five minutes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from nb_agents.disk.private import make_folder, write_private
from nb_agents.errors import UserError

SYSTEMD = Path("/run/systemd/system")
"""The directory that exists on each machine that systemd runs."""

PACKAGE = __name__.rpartition(".")[0]
"""The package that is run as the command line."""

NO_SYSTEMD = (
    "systemd does not run on this machine, so no timer was written. Let the Jupyter server resume "
    "turns while it runs, with `c.NbAgents.wait_for_quota = True` in jupyter_server_config.py, or "
    "run `nb-agents wait-for-quota` with cron."
)

SERVICE = """\
[Unit]
Description=Resume turns of nb_agents in {root}

[Service]
Type=oneshot
WorkingDirectory={directory}
ExecStart={command}
# Without this line, systemd ends the resumed turns together with the command.
KillMode=process
"""

TIMER = """\
[Unit]
Description=Resume turns of nb_agents in {root}

[Timer]
OnStartupSec=1min
OnUnitActiveSec=5min

[Install]
WantedBy=timers.target
"""


class QuotaTimer(NamedTuple):
    """The timer of a session root.

    Attributes:
        name: The name of its units, without their suffix.
        units: The directory with the user's units.
    """

    name: str
    units: Path

    @classmethod
    def of(cls, root: Path) -> QuotaTimer:
        """Return the timer of a session root."""
        digest = sha256(os.fsencode(root)).hexdigest()[:8]
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return cls(f"nb-agents-wait-{digest}", Path(config, "systemd", "user"))

    @property
    def files(self) -> tuple[Path, Path]:
        """The files of the service and of the timer."""
        service, timer = (self.units / f"{self.name}.{end}" for end in ("service", "timer"))
        return service, timer

    @property
    def link(self) -> Path:
        """The link with which systemd enables the timer."""
        return self.units / "timers.target.wants" / f"{self.name}.timer"


def service_unit(root: Path, directory: Path, environment: Path | None) -> str:
    """Return the text of the service's unit.

    Args:
        root: The session root.
        directory: The directory in which the command runs.
        environment: A file with API keys, or None.
    """
    words = (sys.executable, "-m", PACKAGE, "wait-for-quota", "--session-root", str(root))
    command = " ".join(f'"{_escaped(word, "$")}"' for word in words)
    text = SERVICE.format(root=_escaped(root), directory=_escaped(directory), command=command)
    return text if environment is None else f"{text}EnvironmentFile={_escaped(environment)}\n"


def _escaped(value: Path | str, doubled: str = "") -> str:
    r"""Return a value for a unit, in which ``%`` begins a specifier and ``\`` an escape sequence.

    Raises:
        UserError: The value contains a line break.
    """
    text = str(value)
    if "\n" in text or "\r" in text:
        raise UserError(f"The path {text!r} contains a line break, which systemd does not allow.")
    if doubled:  # an argument in quotation marks
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace(doubled, 2 * doubled)
    return text.replace("%", "%%")


def has_systemd() -> bool:
    """Return whether systemd runs on this machine."""
    return SYSTEMD.is_dir() and shutil.which("systemctl") is not None


def install(root: Path, directory: Path) -> list[str]:
    """Write the units of a timer.

    Args:
        root: The session root.
        directory: The directory of the project.

    Returns:
        The commands that the user runs to start the timer.

    Raises:
        UserError: systemd does not run here, or the files can't be written.
    """
    if not has_systemd():
        raise UserError(NO_SYSTEMD)
    timer, env = QuotaTimer.of(root), directory / ".env"
    service = service_unit(root, directory, env if env.is_file() else None)
    try:
        make_folder(timer.units)
        write_private(timer.files[0], service)
        write_private(timer.files[1], TIMER.format(root=_escaped(root)))
    except OSError as exc:
        raise UserError(f"{exc.filename} can't be written: {exc.strerror}.") from exc
    return [
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {shlex.quote(timer.files[1].name)}",
    ]


def remove(root: Path) -> list[str]:
    """Delete the units of a timer.

    Args:
        root: The session root.

    Returns:
        The commands that the user runs to stop the timer.

    Raises:
        UserError: There is no timer for the session root, or it can't be deleted.
    """
    timer = QuotaTimer.of(root)
    if not any(file.exists() for file in timer.files):
        raise UserError(f"There is no timer for the session root {root}.")
    try:
        for file in (timer.link, *timer.files):
            file.unlink(missing_ok=True)
    except OSError as exc:
        raise UserError(f"{exc.filename} can't be deleted: {exc.strerror}.") from exc
    return [
        f"systemctl --user stop {shlex.quote(timer.files[1].name)}",
        "systemctl --user daemon-reload",
    ]
