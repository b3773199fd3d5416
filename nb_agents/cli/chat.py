"""The prompt of ``nb-agents chat``, which runs the turns of one session.

Text typed while a turn is running is sent to its agents, or answers an open gate. Ctrl+C stops the
turn gracefully and returns to the prompt. A second Ctrl+C stops it immediately, saves it, and ends
the chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Queue
from threading import Thread

from nb_agents.cli.printing import in_terminal
from nb_agents.errors import UserError
from nb_agents.launch.run import Run
from nb_agents.presentation.text import waits_for
from nb_agents.service_loops import ServiceLoop
from nb_agents.turns.registry import interrupts_stop_new_runs
from nb_agents.view.run_view import RunView

NEXT = "The next task continues from here. /quit ends the chat."
LATER = "Everything is saved. `nb-agents chat --continue` continues the session."
GOODBYE = "Goodbye!"

_YES, _NO = ("y", "yes"), ("n", "no")


class Chat:
    """A conversation with a team.

    Args:
        begin: Starts the next turn with a task.
        show: Returns the result of a finished turn as text.
        tell: Prints a line.
    """

    def __init__(
        self,
        begin: Callable[[str], Run],
        show: Callable[[Run], str],
        tell: Callable[[str], None],
    ) -> None:
        self._begin, self._show, self._tell = begin, show, tell
        self._run: Run | None = None
        self._printed: set[str] = set()
        self._tasks: Queue[str | None] = Queue()

    def talk(self, lines: Iterable[str]) -> None:
        """Run the chat until the input ends, or the user types /quit or presses Ctrl+C.

        Args:
            lines: The typed lines, read in a separate thread.
        """
        Thread(target=self._listen, args=(lines,), name="nb_agents chat", daemon=True).start()
        with suppress(KeyboardInterrupt):  # while a turn runs, an interrupt stops the turn
            while (task := self._next_task()) not in (None, "/quit"):
                with interrupts_stop_new_runs():
                    continues = self._run_turn(str(task))
                if not continues:
                    break
        self._tell(GOODBYE)

    def _listen(self, lines: Iterable[str]) -> None:
        try:
            for line in lines:
                with ServiceLoop.CHAT.item(self._tell):
                    if text := line.strip():
                        self._receive(text)
        finally:
            self._tasks.put(None)

    def _receive(self, text: str) -> None:
        """Send text to the running turn, or queue it as the next task."""
        run = self._run
        if run is None or run.is_over or text == "/quit":
            self._tasks.put(text)
            return
        try:
            self._tell(_send(run, text))
        except UserError as exc:
            if not run.is_over:
                self._tell(in_terminal(exc))
                return
            self._tasks.put(text)

    def _next_task(self) -> str | None:
        self._tell("You:")
        return self._tasks.get()

    def _run_turn(self, task: str) -> bool:
        """Run a turn until it ends. Returns whether the chat continues."""
        try:
            run = self._run = self._begin(task)
        except UserError as exc:
            self._tell(in_terminal(exc))
            return True
        self._printed.clear()
        unsubscribe = run.subscribe(self._print_news)
        try:
            run.wait(raise_on_stop=False)
        finally:
            unsubscribe()
        self._tell(self._show(run))
        stop = run.view.stop
        continues = stop is None or (stop.source, stop.level) != ("interrupt", "immediate")
        if stop is not None and run.status == "cancelled":
            self._tell(NEXT if continues else LATER)
        return continues

    def _print_news(self, view: RunView) -> None:
        """Print the turn's notices, phases and questions, each one once."""
        phases = " · ".join(f"{agent.id}: {agent.phase}" for agent in view.agents.values())
        questions = [f"{gate.prompt} {_answer_hint(gate.wants)}" for gate in view.gates.values()]
        for news in (*view.notices, phases, *questions):
            if news and news not in self._printed:
                self._printed.add(news)
                self._tell(news)
        level = view.stop.level if view.stop else ""
        if level not in self._printed and (news := waits_for(view)):
            self._printed.add(level)  # once per level, although the list shrinks later
            self._tell(news)


def _answer_hint(wants: str) -> str:
    return "(type the answer)" if wants == "input" else "(type yes or no, and optionally a reason)"


def _send(run: Run, text: str) -> str:
    """Send text to a live run, as an answer, decision or message. Returns a confirmation."""
    gate = next(iter(run.view.gates.values()), None)
    if gate is not None and gate.wants == "input":
        run.answer(text)
        return "Answered."
    word, _, reason = text.partition(" ")
    verdict = word.rstrip(",.:").lower()
    if gate is not None and verdict in _YES + _NO:
        run.decide(verdict in _YES, reason, gate=gate.address)
        return "Approved." if verdict in _YES else "Denied."
    run.say(text)
    return "The agents receive it with their next request."
