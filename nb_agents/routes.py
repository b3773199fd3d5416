"""The table of the Jupyter server's routes below ``/nb-agents``.

The request handlers, the OpenAPI document and `nb_agents.Client` are derived from these rows. This
module imports neither jupyter_server nor the verbs, so that a client loads only the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple
from urllib.parse import quote

Method = Literal["GET", "POST", "DELETE"]
Permission = Literal["read", "execute"]

_GROUPS = {
    "id": r"(?P<name>.+)",
    "n": r"(?P<number>[0-9]+)",
    "path": r"(?P<name>.*)",
}
"""The regular expression of each path parameter, with the name of the handler's argument."""


class Route(NamedTuple):
    """A route of the Jupyter server: one HTTP method of one path.

    Attributes:
        name: The operation, and the name under which its handler is registered.
        method: The HTTP method.
        path: The path below ``/nb-agents``, with parameters in braces.
        summary: What the request does, in a sentence.
        reply: What a successful reply contains, in a sentence.
        schema: Name of the reply's JSON schema in `nb_agents.server.openapi`, or "" for other
            content.
        body: Name of the body's class in `nb_agents.server.openapi`, or "" for a request without a
            body.
        query: Names of the query parameters in `nb_agents.server.openapi`.
        status: HTTP status of a successful reply.
        permission: What the server's authorizer must allow on the resource "nb_agents".
        refusals: Additional HTTP error statuses, and when each is sent.
    """

    name: str
    method: Method
    path: str
    summary: str
    reply: str
    schema: str = ""
    body: str = ""
    query: tuple[str, ...] = ()
    status: int = 200
    permission: Permission = "read"
    refusals: Mapping[int, str] = MappingProxyType({})

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def pattern(self) -> str:
        """The regular expression that matches the path below ``/nb-agents``.

        A run's name may end like a verb, so the pattern matches a verb as a part of the name.
        """
        path = re.sub(r"\.", r"\\.", self.path).removesuffix("/{verb}")
        path = re.sub(r"/\{path\}$", "/?{path}", path)
        return re.sub(r"\{(\w+)\}", lambda match: _GROUPS[match[1]], path)

    def address(self, **values: str | int) -> str:
        """Return the path for these parameters, quoted, without a leading slash."""
        quoted = {name: quote(str(value)) for name, value in values.items()}
        return self.path.format(**quoted).removeprefix("/")


_STREAM = "Server-sent events. Closing the stream does not stop the run."
_PANELS = f"{_STREAM} Each event has the state of the panel. The last one has the card."
_BEGUN = "The run has started. Its turn is `id`. Also has `session`, `turn` and `status`."
_BUSY = {409: "A turn of the session is running, or another turn was added in the meantime."}

ROUTES = (
    Route(
        "openapi", "GET", "/openapi.json", "Return the OpenAPI document.", "This OpenAPI document."
    ),
    Route(
        "list_runs",
        "GET",
        "/runs",
        "List live turns and sweeps. The rows of a sweep are not listed separately.",
        "A list of `TurnFacts` and `SweepFacts`, each with its `id`.",
        schema="Runs",
    ),
    Route(
        "start_run",
        "POST",
        "/runs",
        "Start a run in a separate process, which outlives this server.",
        _BEGUN,
        schema="Begun",
        body="Start",
        status=202,
        permission="execute",
        refusals=_BUSY,
    ),
    Route(
        "resume_run",
        "POST",
        "/runs/{id}/resume",
        "Resume an incomplete turn as the next turn of its session.",
        f"{_BEGUN} A paused run or sweep continues instead, and its `status` is returned.",
        schema="Begun",
        body="Resume",
        status=202,
        permission="execute",
        refusals={409: "The turn is live, is complete, or is not the session's last turn."},
    ),
    Route(
        "stream_events",
        "GET",
        "/runs/{id}/events",
        "Stream the events of a turn, or the starts and ends of a sweep's rows, after "
        "`Last-Event-ID`.",
        f"{_STREAM} Each contains an event of the turn's `events.jsonl`, or a line of the sweep's "
        "`rows.jsonl`.",
    ),
    Route(
        "get_timeline",
        "GET",
        "/runs/{id}/timeline",
        "Return a drawing of a turn's timeline so far.",
        "The timeline as `html`, which is empty before the first event.",
        schema="Timeline",
    ),
    Route(
        "get_transcript",
        "GET",
        "/runs/{id}/transcript",
        "Return the transcript of an agent, starting at byte `after` of the journal.",
        "`pieces` of the transcript, the byte `end` up to which the journal was read, and whether "
        "there is `more`.",
        query=("agent", "after"),
        refusals={400: "`after` is not a number of bytes, or `agent` is missing."},
    ),
    Route(
        "stream_view",
        "GET",
        "/runs/{id}/view",
        "Stream the panel of a turn or sweep.",
        _PANELS,
    ),
    Route(
        "stream_views",
        "GET",
        "/view",
        "Stream the panels of the turns and sweeps given by `id`.",
        _PANELS,
        query=("id",),
    ),
    Route(
        "get_run",
        "GET",
        "/runs/{id}",
        "Return the state of a live or finished turn or sweep.",
        "`WholeTurnFacts` or `SweepFacts`, with its `id`.",
        schema="Run",
    ),
    Route(
        "ask",
        "POST",
        "/runs/{id}/{verb}",
        "Send a command to a run or sweep.",
        "The command was sent. `status` is the state of the run. For a stop, `changed` is false "
        "if it had already been requested. After a rewind, `id` is the new turn, or the sweep if "
        "`times` was given.",
        schema="Asked",
        status=202,
        permission="execute",
        refusals={409: "The run has ended, or its current state does not allow the command."},
    ),
    Route(
        "list_sessions",
        "GET",
        "/sessions",
        "List the sweeps on disk, and the thousand most recently used sessions of each root.",
        "A list of `SessionFacts`. Sessions and their turns have an `id`. The item of a sweep has "
        "`SweepFacts` in `sweep`, and no turns.",
        schema="Sessions",
        query=("folder", "sweep"),
    ),
    Route(
        "stream_turn_view",
        "GET",
        "/sessions/{id}/turns/{n}/view",
        "Stream the panel of a turn.",
        _PANELS,
    ),
    Route(
        "get_turn",
        "GET",
        "/sessions/{id}/turns/{n}",
        "Return the state of a live or finished turn.",
        "`WholeTurnFacts`, with its `id`.",
        schema="Turn",
    ),
    Route(
        "continue_session",
        "POST",
        "/sessions/{id}/continue",
        "Give the session's team a new task, which becomes the next turn.",
        _BEGUN,
        schema="Begun",
        body="NextTask",
        status=202,
        permission="execute",
        refusals=_BUSY,
    ),
    Route(
        "rename_session",
        "POST",
        "/sessions/{id}/rename",
        "Rename a session.",
        "The session's new `id` and name.",
        schema="Renamed",
        body="Rename",
        permission="execute",
        refusals={409: "A turn of the session is live."},
    ),
    Route(
        "export_session",
        "GET",
        "/sessions/{id}/export",
        "Export all files of a session.",
        "A zip file with one directory.",
    ),
    Route(
        "get_session",
        "GET",
        "/sessions/{id}",
        "Return the state of a session and its turns.",
        "`SessionFacts`, with its `id`.",
        schema="Session",
    ),
    Route(
        "delete_session",
        "DELETE",
        "/sessions/{id}",
        "Delete a session and all its files.",
        "The session was deleted.",
        status=204,
        permission="execute",
        refusals={409: "A turn of the session is live."},
    ),
    Route(
        "get_contents",
        "GET",
        "/contents/{path}",
        "Return a directory or file of a turn in the format of Jupyter's contents API.",
        "The contents model. Its `path` consists of the session, the turn and the path inside the "
        "turn.",
        refusals={413: "The file is too large to be shown."},
    ),
    Route(
        "get_file",
        "GET",
        "/files/{path}",
        "Download a file of a turn.",
        "The content of the file. Images and text have their own content type. Other files are "
        "sent as attachments.",
    ),
    Route(
        "get_authors",
        "POST",
        "/authors",
        "Name the agent's call that wrote each line of a text file.",
        "The `calls`, oldest first. `lines` has the position in `calls` for each line of the text, "
        "or null for a line that is from no agent. `is_current` is false if the file's content "
        "differs from the text.",
        schema="Authors",
        body="AuthoredText",
    ),
    Route(
        "get_new_options",
        "GET",
        "/new",
        "List the providers, models and tools for a new team.",
        "The `providers` with a key in the server's environment or a local server that answers, "
        "each with its `models`; all `types` with the `variables` for their key and the one that "
        "is set (`found`), never the key; and the `tools` with their keys.",
        schema="NewOptions",
    ),
    Route(
        "make_file",
        "POST",
        "/new",
        "Return the text of a new team file or notebook, without writing it.",
        "The `text` of the file.",
        schema="NewText",
        body="NewFile",
    ),
    Route(
        "check_text",
        "POST",
        "/check",
        "Check the text of a team file or recipe without running anything.",
        "`findings` with their positions. `severity` is error, warning or info.",
        schema="Findings",
        body="CheckedText",
        permission="execute",
    ),
)
"""All routes. A request goes to the first row with a matching path."""

BY_NAME: Mapping[str, Route] = MappingProxyType({route.name: route for route in ROUTES})
