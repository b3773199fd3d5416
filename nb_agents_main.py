"""The command ``nb-agents``, before nb_agents is loaded.

It is next to the package: importing anything in the package takes a second, in which a user may
already press Ctrl-C.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""Exit code of a command that was interrupted, as shells have it: 128 and the signal's number."""


def main() -> None:
    """Run the command line; an interrupt while it is loaded ends the process without a word."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from nb_agents.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()
