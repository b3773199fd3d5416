"""The command line."""

from nb_agents.cli import app, quota_timer, quota_waiting, run_end
from nb_agents.cli.application import COMPLETE, FAILED, INCOMPLETE, USAGE, main
from nb_agents.cli.chat import GOODBYE, NEXT, Chat
from nb_agents.cli.run_end import begin_and_wait

__all__ = [
    "COMPLETE",
    "Chat",
    "FAILED",
    "GOODBYE",
    "INCOMPLETE",
    "NEXT",
    "USAGE",
    "app",
    "begin_and_wait",
    "main",
    "quota_timer",
    "quota_waiting",
    "run_end",
]
