"""``nb-agents trace``: a turn on disk as a trace of OpenTelemetry."""

from __future__ import annotations

from pathlib import Path

from nb_agents.cli.application import ROOT, add_command
from nb_agents.runs.telemetry import exporting_provider, trace_events
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import session_root
from nb_agents.session.lookup import find_turn
from nb_agents.verbs.verb import Parameter

_SESSION = Parameter("session", "the session, or SESSION/TURN", "", metavar="SESSION[/TURN]")
_ENDPOINT = Parameter(
    "endpoint", "address of a collector, by OTLP over HTTP", "", metavar="URL", is_option=True
)


def send_trace(session: str, endpoint: str, root: Path | None) -> None:
    """Send a turn as an OpenTelemetry trace to a collector; without one, print its spans."""
    provider = exporting_provider(endpoint)
    events = read_journal(find_turn(session_root(root), session).journal).events
    trace_events(events, provider)
    provider.shutdown()


add_command("trace", send_trace, (_SESSION, _ENDPOINT, ROOT))
