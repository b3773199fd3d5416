"""Exports the cancellation names that programs written for Amplifier's recipes import."""

from nb_agents.cancel import CancellationStatus
from nb_agents.errors import CancellationRequestedError

__all__ = ["CancellationRequestedError", "CancellationStatus"]
