"""Sends one small request to a model, and records the raw response without keys."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import NamedTuple, TypeVar

from nb_agents.config.secrets import Secret, secrets_of_environment, secrets_of_team
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.private import write_private
from nb_agents.errors import UserError
from nb_agents.loop import submit, wait_interruptibly
from nb_agents.masking import Mask
from nb_agents.models.cassettes import cassette_text, record_request
from nb_agents.models.providers import (
    agent_start_errors,
    find_key,
    load,
    provider_of,
)

T = TypeVar("T")


class RecordedStream(NamedTuple):
    """A recorded request.

    Attributes:
        agent: The agent whose model was asked.
        model: The backend type and the model.
        status: The HTTP status of the last response.
        size: The size of the file in bytes.
        failure: Why the reply could not be read, or "".
    """

    agent: str
    model: str
    status: int
    size: int
    failure: str


def record_stream(team: TeamSpec, path: Path, agent: str = "", task: str = "") -> RecordedStream:
    """Send a request to an agent's model, and write the request and response to a file.

    Args:
        team: The team.
        path: The file. It is in the format of vcrpy's cassettes.
        agent: The agent. Only needed if several agents have a model.
        task: The text of the request, by default a short one.

    Raises:
        UserError: There is no such agent, it can't start, its server did not respond, or the file
            can't be written.
        KeyboardInterrupt: The user interrupted the request. Nothing is written.
    """
    chosen = _choose(team, agent)
    for error in agent_start_errors(team, chosen):
        raise error
    load([chosen.backend.type])
    future = submit(record_request, chosen, *([task] if task else []))
    exchanges, failure = _wait(future)
    mask = _mask(team, chosen)
    failure = mask.text(failure)
    if not exchanges:
        raise UserError(f"Nothing was recorded. {failure or 'No request was sent.'}")
    text = cassette_text(exchanges, mask.text)
    try:
        write_private(path, text)
    except OSError as exc:
        raise UserError(f"{path} can't be written: {exc.strerror}.") from None
    model = f"{chosen.backend.type}:{chosen.backend.model}"
    return RecordedStream(chosen.id, model, exchanges[-1].status, len(text.encode()), failure)


def _wait(future: Future[T]) -> T:
    """Wait for a request. An interrupt cancels it."""

    def cancel() -> None:
        future.cancel()

    try:
        return wait_interruptibly(future, cancel, None)
    except CancelledError:
        raise KeyboardInterrupt from None


def _choose(team: TeamSpec, name: str) -> AgentSpec:
    """Return the agent with a name, or the only agent that has a model."""
    with_model = [each for each in team.agents if provider_of(each.backend.type)]
    found = [each for each in with_model if name in ("", each.id)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.id for each in with_model)
    if not with_model:
        raise UserError("No agent of this team has a model with an HTTP API. Use --model.")
    if name:
        raise UserError(f"No agent {name!r} has a model. Use one of: {names}.")
    raise UserError(f"Several agents have a model. Choose one with --agent: {names}.")


def _mask(team: TeamSpec, agent: AgentSpec) -> Mask:
    key = Secret(find_key(agent).value, ("api_key",))
    return Mask([*secrets_of_environment(), *secrets_of_team(team), key])
