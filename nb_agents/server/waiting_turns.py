"""Resumes turns of the server's session roots whose provider accepts calls again.

The server does so if its configuration has ``c.NbAgents.wait_for_quota = True``.
"""

from __future__ import annotations

import logging
import time

from anyio import to_thread
from tornado.ioloop import IOLoop, PeriodicCallback

from nb_agents.errors import NbAgentsError
from nb_agents.launch.quota_waits import resume_due_turns
from nb_agents.server.handler import Shared

logger = logging.getLogger("nb_agents")

INTERVAL_S = 60.0
"""Seconds between two searches for turns whose wait is over."""


def resume_regularly(shared: Shared, interval_s: float = INTERVAL_S) -> PeriodicCallback:
    """Resume turns whose wait is over, now and at each interval.

    Args:
        shared: The state of the server, which knows its session roots.
        interval_s: Seconds between two searches.
    """

    async def resume_all() -> None:
        await to_thread.run_sync(_resume_all, shared)

    IOLoop.current().add_callback(resume_all)
    timer = PeriodicCallback(resume_all, interval_s * 1000)
    timer.start()
    return timer


def _resume_all(shared: Shared) -> None:
    for root in shared.places.session_roots():
        try:
            turns = resume_due_turns(root, time.time())
        except (NbAgentsError, OSError) as exc:
            logger.warning("The waiting turns in %s can't be resumed: %s", root, exc)
            continue
        for turn in turns:
            if turn.resumed:
                logger.info("%s was resumed as %s", turn.name, turn.resumed)
            elif turn.error:
                logger.warning("%s can't be resumed: %s", turn.name, turn.error)
