"""The prompt of ``nb-agents chat``: the turns of one session, one after the other.

What is typed while a turn works is said to it, or answers what it asks. Ctrl+C stops the turn and
comes back to the prompt; twice: the turn stops at once, all of it saved, and the chat ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Queue
from threading import Thread

from nb_agents.cli.printing import in_terminal
from nb_agents.errors import UserError
from nb_agents.presentation.text import waits_for
from nb_agents.runs.registry import interrupts_press_new
from nb_agents.runs.run import Run
from nb_agents.service_loops import ServiceLoop
from nb_agents.view.run_view import RunView

NEXT = "The next task goes on from what is kept; /quit leaves."
LATER = "All is kept: `nb-agents chat --continue` goes on from it."
GOODBYE = "Goodbye!"

_YES, _NO = ("y", "yes"), ("n", "no")


class Chat:
    """A conversation with a team.

    Args:
        begin: Starts the next turn, on a task.
        show: Says what became of a turn that is over.
        tell: Writes a line for the person.
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
        """Talk until the lines end, the person says /quit, or an interrupt comes at the prompt.

        Args:
            lines: What is typed; read in a thread of its own.
        """
        Thread(target=self._listen, args=(lines,), name="nb_agents chat", daemon=True).start()
        with suppress(KeyboardInterrupt):  # while a turn is waited for, it is the turn's
            while (task := self._next_task()) not in (None, "/quit"):
                with interrupts_press_new():
                    goes_on = self._turn(str(task))
                if not goes_on:
                    break
        self._tell(GOODBYE)

    def _listen(self, lines: Iterable[str]) -> None:
        try:
            for line in lines:
                with ServiceLoop.CHAT.item(self._tell):
                    if text := line.strip():
                        self._hear(text)
        finally:
            self._tasks.put(None)

    def _hear(self, text: str) -> None:
        """Pass a text to the turn that works, or else to the next one."""
        run = self._run
        if run is None or run.is_over or text == "/quit":
            self._tasks.put(text)
            return
        try:
            self._tell(_said(run, text))
        except UserError as exc:
            if not run.is_over:
                self._tell(in_terminal(exc))
                return
            self._tasks.put(text)

    def _next_task(self) -> str | None:
        self._tell("You:")
        return self._tasks.get()

    def _turn(self, task: str) -> bool:
        """Wait for a turn's end; return whether the chat goes on."""
        try:
            run = self._run = self._begin(task)
        except UserError as exc:
            self._tell(in_terminal(exc))
            return True
        self._printed.clear()
        end = run.subscribe(self._news)
        try:
            run.wait(raise_on_stop=False)
        finally:
            end()
        self._tell(self._show(run))
        stop = run.view.stop
        goes_on = stop is None or (stop.source, stop.level) != ("interrupt", "immediate")
        if stop is not None and run.status == "cancelled":
            self._tell(NEXT if goes_on else LATER)
        return goes_on

    def _news(self, view: RunView) -> None:
        """Print news of the turn, each once."""
        doing = " · ".join(f"{agent.id}: {agent.phase}" for agent in view.agents.values())
        asked = [f"{gate.prompt} {_how(gate.wants)}" for gate in view.gates.values()]
        for news in (*view.notices, doing, *asked):
            if news and news not in self._printed:
                self._printed.add(news)
                self._tell(news)
        level = view.stop.level if view.stop else ""
        if level not in self._printed and (news := waits_for(view)):
            self._printed.add(level)  # once: what it waits for gets less
            self._tell(news)


def _how(wants: str) -> str:
    return "(type the answer)" if wants == "input" else "(yes / no, and why)"


def _said(run: Run, text: str) -> str:
    """Pass a text to a run that works; return what was done with it."""
    gate = next(iter(run.view.gates.values()), None)
    if gate is not None and gate.wants == "input":
        run.answer(text)
        return "Answered."
    word, _, why = text.partition(" ")
    verdict = word.rstrip(",.:").lower()
    if gate is not None and verdict in _YES + _NO:
        run.decide(verdict in _YES, why, gate=gate.address)
        return "Approved." if verdict in _YES else "Denied."
    run.say(text)
    return "The agents read it with their next request."
