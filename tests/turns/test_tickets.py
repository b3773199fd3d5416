"""A run on a cluster starts at most once, whatever happens to its ticket."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nb_agents.launch.tickets import Ticket

WORKERS = st.sampled_from(["tcp://127.0.0.1:1", "tls://[::1]:22", "inproc://a/b/%2F"])


class Tickets(RuleBasedStateMachine):
    """Workers that do what they do in any order, and a submitter that believes anything."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self.ticket = Ticket.new(Path(self._folder.name), "nb_agents-1")
        self.begun: list[str] = []
        self.is_withdrawn = False

    def teardown(self) -> None:
        self._folder.cleanup()

    @rule(worker=WORKERS)
    def take(self, worker: str) -> None:
        was_waiting = self.ticket.is_waiting
        assert self.ticket.take(worker) is was_waiting
        if was_waiting:
            assert self.ticket.worker == worker

    @rule(worker=WORKERS)
    def begin(self, worker: str) -> None:
        has_it = self.ticket.worker == worker
        assert self.ticket.begin(worker, {"worker": worker}) is has_it
        if has_it:
            self.begun.append(worker)

    @rule()
    def put_back(self) -> None:
        has_worker = bool(self.ticket.worker)
        assert self.ticket.put_back() is has_worker

    @rule()
    def take_away(self) -> None:
        has_worker = bool(self.ticket.worker)
        assert self.ticket.take_away() is has_worker
        self.is_withdrawn |= has_worker

    @rule()
    def withdraw(self) -> None:
        assert self.ticket.withdraw() is not (bool(self.begun) or self.is_withdrawn)
        self.is_withdrawn = not self.begun

    @invariant()
    def begins_once_and_only_if_it_was_not_withdrawn(self) -> None:
        assert len(self.begun) + self.is_withdrawn <= 1
        is_open = self.ticket.is_waiting + bool(self.ticket.worker)
        assert is_open + len(self.begun) + self.is_withdrawn == 1
        answer = self.ticket.answer
        assert answer == ({"worker": self.begun[0]} if self.begun else None)


TestTickets = Tickets.TestCase
TestTickets.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
