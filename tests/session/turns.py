"""Create turns from events, for tests of files on disk."""

from dataclasses import replace
from pathlib import Path

from nb_agents import events as ev
from tests.kit.sessions import Journal, TurnPaths, workspace_files, write_views
from tests.kit.views import RunView, fold

ADA = "An answer of some length."
BEN = "Another."


def turn_paths(root: Path, number: int = 1, session: str = "session_1") -> TurnPaths:
    """Create a turn's directory, with a workspace for each agent."""
    paths = TurnPaths(root / session / f"turn_{number}")
    for agent in ("ada", "ben"):
        (paths.workspaces / agent).mkdir(parents=True, exist_ok=True)
    return paths


def started(number: int = 1, task: str = "Why?") -> ev.TurnStarted:
    return ev.TurnStarted(
        session="session_1",
        turn=number,
        task=task,
        agents=(ev.AgentInfo(id="ada", model="m1"), ev.AgentInfo(id="ben", model="m2")),
        timeout_s=60,
    )


def answer(agent: str, text: str) -> ev.AnswerGiven:
    return ev.AnswerGiven(agent=agent, answer=text)


def vote(agent: str, target: str) -> ev.VoteCast:
    return ev.VoteCast(agent=agent, target=target, reason="best")


def writing(agent: str, text: str) -> list[ev.Event]:
    """Return events of a call that does not end."""
    return [
        ev.ModelStarted(agent=agent, call=1),
        ev.TextStreamed(agent=agent, call=1, channel="answer", text=text),
    ]


STOP = ev.StopRequested(level="requested", source="widget", reason="enough")
CANCELLED = ev.TurnEnded(status="cancelled", phase="coordinating")
COMPLETED = ev.TurnEnded(status="completed", phase="presenting", winner="ada", answer="The answer.")


def stamped(*events: ev.Event) -> list[ev.Event]:
    """Number the events, and set their times."""
    return [replace(e, seq=n, at=1_800_000_000.0 + n) for n, e in enumerate(events, 1)]


def view_of(*events: ev.Event) -> RunView:
    return fold(stamped(*events))


def write_journal(paths: TurnPaths, *events: ev.Event) -> RunView:
    """Write only a turn's journal, as a killed process leaves it."""
    journal = Journal(paths.journal)
    for event in stamped(*events):
        journal.append(event)
    journal.close()
    return view_of(*events)


def write_turn(paths: TurnPaths, *events: ev.Event) -> RunView:
    """Write a turn as a process leaves it that ended normally."""
    if any(isinstance(event, ev.TurnEnded) for event in events):
        events = (*events, workspace_files(paths, ("ada", "ben")))
    view = write_journal(paths, *events)
    write_views(view, paths)
    return view
