"""``nb-agents wait-for-quota``: resumes turns whose provider accepts calls again."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

from nb_agents.cli.application import FAILED, JSON, ROOT, add_command
from nb_agents.cli.printing import print_text, say_json
from nb_agents.cli.quota_timer import QuotaTimer, install, remove
from nb_agents.errors import UserError
from nb_agents.launch.quota_waits import ResumedTurn, resume_due_turns
from nb_agents.session.layout import session_root
from nb_agents.verbs.verb import Command, Parameter

INSTALL_TIMER = Parameter(
    "install_timer",
    "write a timer of your systemd that runs this command every five minutes, and print how to "
    "start it",
    False,
    is_option=True,
)
REMOVE_TIMER = Parameter(
    "remove_timer", "delete the timer of this session root", False, is_option=True
)


def wait_for_quota(
    root: Path | None, install_timer: bool, remove_timer: bool, as_json: bool
) -> None:
    """Resume turns and rows of sweeps whose process ended while they waited for a provider.

    Each is resumed in a separate process once its wait is over. The command itself does not wait.
    Run it regularly, for example with --install-timer or cron.
    """
    if install_timer and remove_timer:
        raise UserError("Use either --install-timer or --remove-timer.")
    if install_timer or remove_timer:
        _change_timer(session_root(root).absolute(), remove_timer, as_json)
        return
    turns = resume_due_turns(root, time.time())
    if as_json:
        say_json([turn._asdict() for turn in turns])
    else:
        print_text("\n".join(map(_line, turns)) or "No turn waits for a provider.")
    if any(turn.error for turn in turns):
        sys.exit(FAILED)


def _line(turn: ResumedTurn) -> str:
    if turn.resumed:
        return f"{turn.name} was resumed as {turn.resumed}."
    if turn.error:
        return f"{turn.name} can't be resumed: {turn.error}"
    return f"{turn.name} waits until {datetime.fromtimestamp(turn.until):%Y-%m-%d %H:%M:%S}."


def _change_timer(root: Path, is_removed: bool, as_json: bool) -> None:
    files = QuotaTimer.of(root).files
    commands = remove(root) if is_removed else install(root, Path.cwd())
    if as_json:
        say_json({"files": [str(file) for file in files], "commands": commands})
        return
    done, then = ("Deleted", "stop") if is_removed else ("Wrote", "start")
    lines = [f"{done} {file}" for file in files] + [f"To {then} the timer, run:"]
    print_text("\n".join(lines + [f"  {command}" for command in commands]))
    if not is_removed:
        print_text("To let it run while you are not logged in: loginctl enable-linger")


add_command("wait-for-quota", Command(wait_for_quota, (ROOT, INSTALL_TIMER, REMOVE_TIMER, JSON)))
