"""``nb-agents trace``: exports a turn on disk as an OpenTelemetry trace."""

from __future__ import annotations

from pathlib import Path

from nb_agents.cli.application import ROOT, add_command
from nb_agents.session.history import past_events
from nb_agents.session.layout import session_root
from nb_agents.session.lookup import find_turn, parse_reference
from nb_agents.turns.telemetry import exporting_provider, trace_events
from nb_agents.verbs.verb import Command, Parameter

_SESSION = Parameter(
    "session", "session or session/turn (default: the last turn)", "", metavar="SESSION[/TURN]"
)
_ENDPOINT = Parameter(
    "endpoint", "OTLP/HTTP address of a collector", "", metavar="URL", is_option=True
)


def send_trace(session: str, endpoint: str, root: Path | None) -> None:
    """Export a turn as an OpenTelemetry trace. Without --endpoint, prints the spans."""
    provider = exporting_provider(endpoint)
    named = parse_reference(session, root)
    trace_events(past_events(find_turn(session_root(named.root), named.name)), provider)
    provider.shutdown()


add_command("trace", Command(send_trace, (_SESSION, _ENDPOINT, ROOT)))
