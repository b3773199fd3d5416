"""Starts the run of a request, in this process or another."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar, cast

from nb_agents.errors import UserError
from nb_agents.launch.detach import begin_elsewhere, is_detached
from nb_agents.launch.here import RunRequest
from nb_agents.launch.rewind import RewindRequest, check_times
from nb_agents.plugins import public_name
from nb_agents.turns.groups import Group
from nb_agents.turns.handle import RunHandle

_Handle = TypeVar("_Handle", bound=RunHandle)
_Rewind = TypeVar("_Rewind", bound=RewindRequest)


def begin_with(request: RunRequest, handle: type[_Handle]) -> _Handle:
    """Start the run of a request, in this process or another.

    Args:
        handle: The class of the run's handle.
    """
    loaded = request.load()
    if is_detached(request.options, loaded.team):
        return begin_elsewhere(request, loaded, handle)
    return cast(_Handle, loaded.begin(handle))


def stop_before(request: _Rewind, live: RunHandle) -> _Rewind:
    """Stop the live turn of a rewind, and return the request for the stopped turn.

    Raises:
        UserError: The rewind would fail. The turn is not stopped.
    """
    request.check()
    live.stop(request.now, reason="to go back to an earlier checkpoint")
    live.wait(raise_on_stop=False)
    return request.after_stop()


def begin_forks(request: RewindRequest, times: int) -> Group:
    """Start several runs from the same checkpoint, with `nb_agents.fork`.

    Args:
        request: The rewind that each run carries out.
        times: The number of runs.

    Raises:
        UserError: As for `nb_agents.fork`, or the extension that provides it is missing.
    """
    check_times(times)
    fork = public_name("fork")
    if not callable(fork):
        raise UserError("Several forks need the extension 'sweeps', which is missing.")
    values = {each.name: getattr(request, each.name) for each in fields(request)}
    return cast(Group, fork(**values, times=times))
