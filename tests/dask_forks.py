"""Preloaded by the nannies of tests, so that workers are forked from a process without threads.

A nanny has threads when it starts a worker, and a fork of it would never get a lock that one of
them held at that moment. So workers come from multiprocessing's fork server; and that is forked
from the nanny, before this has threads, as one that is started has all to import.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker, util
from unittest.mock import patch

from distributed import utils


def _fork(path: str, args: Sequence[str], files: Sequence[int]) -> int:
    """Do what `multiprocessing.util.spawnv_passfds` does, without importing anything."""
    if pid := os.fork():
        return pid
    try:
        for before, after in pairwise([2, *sorted(files), 1024]):
            os.closerange(before + 1, after)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        exec(args[-1], {})  # the text behind Python's -c
    finally:
        os._exit(1)


assert threading.active_count() == 1
utils._forkserver_preload_set = True  # else the server imports pandas, too
forkserver.set_forkserver_preload([])
resource_tracker.ensure_running()
with patch.object(util, "spawnv_passfds", _fork):
    forkserver.ensure_running()
