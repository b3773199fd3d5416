"""Scores the answers of a sweep's rows, in threads of its own.

An answer is scored by a function of the user or by a judge, which is a run. Neither may delay the
sweep's thread, so their results are passed to it as functions.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from pathlib import Path
from typing import Any

from nb_agents.cancel import AgentStopped, CancellationStatus, StopRequest
from nb_agents.errors import UserError, error_message
from nb_agents.extensions.sweeps.judge import INTERIM, JUDGE_SESSION, AnswerJudge, Judgement
from nb_agents.launch.run import Run
from nb_agents.presentation.text import clip

logger = logging.getLogger("nb_agents")

Score = Callable[[str, Any], Any]
OnJudgement = Callable[[Judgement | None], object]


class Scoring:
    """Scores answers with a function or a judge. Only the sweep's thread calls its methods.

    Args:
        path: The sweep's directory.
        tasks: Returns the task of a row, given its name.
        score: Returns the score of an answer, given the task and the answer.
        judge: An agent that returns the score instead.
        limit: Maximum number of answers that are scored at the same time.
        post: Passes a function to the sweep's thread.

    Attributes:
        count: The number of answers that are being scored.
    """

    def __init__(
        self,
        path: Path,
        tasks: Callable[[str], str],
        score: Score | None,
        judge: AnswerJudge | None,
        limit: int,
        post: Callable[[Callable[[], object]], object],
    ) -> None:
        self.count = 0
        self._path, self._tasks, self._function, self._judge = path, tasks, score, judge
        self._post = post
        self._threads = ThreadPoolExecutor(limit, "nb_agents score") if self.is_wanted else None
        self._runs: dict[str, Run] = {}
        self._stop: StopRequest | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether answers are scored."""
        return self._function is not None or self._judge is not None

    @property
    def is_judging(self) -> bool:
        """Whether the judge is at work."""
        return self._judge is not None and self.count > 0

    @property
    def runs(self) -> Mapping[str, Run]:
        """The live runs of the judge."""
        return self._runs

    def score(self, row: str, answer: Any, done: OnJudgement, is_interim: bool = False) -> None:
        """Score an answer.

        Args:
            row: The row's name.
            answer: Its answer.
            done: Called by the sweep's thread with the judgement, or None if the judge was stopped.
            is_interim: Whether the row is still running, and the answer is what it has written.
        """
        if self._threads is None:
            return
        self._threads.submit(self._work, row, answer, done, is_interim)
        self.count += 1

    def stop(self, request: StopRequest) -> None:
        """Ask the judge no more. Its live runs are the caller's to stop."""
        self._stop = request

    def close(self) -> None:
        """End the threads, without waiting: a score function that hangs must not delay a stop."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, row: str, answer: Any, done: OnJudgement, is_interim: bool) -> None:
        if self._judge is None:
            judgement: Judgement | None = Judgement(*self._call(row, answer), 0, 0.0)
        else:
            judgement = self._ask(self._judge, row, answer, is_interim)
        self._post(lambda: self._on_judgement(row, judgement, done, is_interim))

    def _call(self, row: str, answer: Any) -> tuple[float | None, str]:
        """Call the score function. Returns the score, and why there is none."""
        assert self._function is not None
        try:
            value = self._function(self._tasks(row), answer)
            return _checked(asyncio.run(_await(value)) if isawaitable(value) else value)
        except (Exception, AgentStopped, SystemExit, KeyboardInterrupt) as exc:
            return None, f"The score function failed: {error_message(exc, named=True)}"

    def _ask(self, judge: AnswerJudge, row: str, answer: Any, is_interim: bool) -> Judgement | None:
        """Ask the judge, in a session of the row. Returns None if it is stopped."""
        if self._stop is not None:
            return None
        session = f"{INTERIM}{time.time_ns()}" if is_interim else JUDGE_SESSION
        begun = lambda run: self._post(lambda: self._on_begun(_key(row, is_interim), run))  # noqa: E731
        try:
            return judge.judge(self._path / row, self._tasks(row), answer, begun, session)
        except Exception as exc:  # an error of the judge must not discard the answer
            if not isinstance(exc, UserError):
                logger.exception("sweep %s: row %s can't be judged", self._path.name, row)
            return Judgement(None, f"The judge can't be asked: {error_message(exc)}", 0, 0.0)

    def _on_begun(self, key: str, run: Run) -> None:
        self._runs[key] = run
        if self._stop is not None:
            now = self._stop.level >= CancellationStatus.IMMEDIATE
            run.stop(now, reason=self._stop.reason, source=self._stop.source)

    def _on_judgement(
        self, row: str, judgement: Judgement | None, done: OnJudgement, is_interim: bool
    ) -> None:
        self._runs.pop(_key(row, is_interim), None)
        self.count -= 1
        done(judgement)


def _key(row: str, is_interim: bool) -> str:
    return f"{INTERIM}{row}" if is_interim else row


async def _await(value: Any) -> Any:
    return await value


def _checked(value: Any) -> tuple[float | None, str]:
    """Return what a score function returned as a finite number, or why it is none."""
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if math.isfinite(score):
        return score, ""
    return None, f"The score function returned {clip(repr(value), 100)}, which is no number."
