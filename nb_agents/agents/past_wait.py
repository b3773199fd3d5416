"""How long an interrupted model call has waited for its provider. Pure.

`wait_for_quota` limits the time from the call's first failure, even if another process resumes the
call. While the run is paused, and between a user's stop and the resume, no time passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nb_agents import events as ev


@dataclass(frozen=True)
class PastWait:
    """A stopwatch.

    Attributes:
        waited_s: The seconds measured when it was last started.
        since: When it was last started, in Unix seconds. None while it is stopped.
    """

    waited_s: float
    since: float | None = None

    def seconds_at(self, now: float) -> float:
        """Return the measured seconds.

        Args:
            now: The current time, in Unix seconds.
        """
        return self.waited_s + (0.0 if self.since is None else max(0.0, now - self.since))

    def stopped(self, now: float) -> PastWait:
        """Return the stopwatch, stopped."""
        return PastWait(self.seconds_at(now))

    def started(self, now: float) -> PastWait:
        """Return the stopwatch, running."""
        return self if self.since is not None else replace(self, since=now)


def past_wait(failed: ev.ModelFailed) -> PastWait | None:
    """Return the wait that begins or continues with a failed call, or None if it does not wait.

    Journals of earlier versions don't have the seconds. There, the wait begins with the failure.
    """
    return PastWait(failed.waited_s or 0.0, failed.at) if failed.waits_for else None
